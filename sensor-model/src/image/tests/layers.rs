use super::{archive::Archive, archive::Fields, archive::GNU, *};
use crate::image::Known;
use crate::observation::FileType;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[test]
fn an_entry_has_the_fields_of_its_header_and_the_digest_of_its_content() {
    let fields = Fields { mode: 0o4755, owner: (7, 8), size: 5, ..Fields::new(b'0', "usr/bin/su") };
    let layer = Archive::new().directory("./usr/").with(fields, b"hello").end();
    for piece in [1, 511, 512, 513, 100_000] {
        let tree = tree_in_pieces(std::slice::from_ref(&layer), piece, ImageLimits::default()).unwrap();
        let found = entries(&tree);
        let su = &found["/usr/bin/su"];
        assert_eq!((su.file_type, su.mode, su.uid, su.gid, su.size), (FileType::Regular, 0o4755, 7, 8, 5));
        assert_eq!((su.sha256, su.layer, su.known), (Some(sha256(b"hello")), 0, Known::All));
        assert_eq!(
            (found["/usr"].known, found["/usr/bin"].known, found["/"].known),
            (Known::All, Known::Content, Known::Content)
        );
    }
}

#[test]
fn links_devices_and_pipes_keep_what_makes_them() {
    let layer = Archive::new()
        .file("a", "x")
        .hard_link("b", "/a")
        .symlink("c", "../../etc/passwd")
        .with(Fields { device: (1, 3), mode: 0o666, ..Fields::new(b'3', "dev/null") }, b"")
        .with(Fields { device: (8, 0), ..Fields::new(b'4', "dev/sda") }, b"")
        .with(Fields::new(b'6', "pipe"), b"")
        .end();
    let found = entries(&tree(&[layer]));
    assert_eq!((found["/b"].sha256, found["/b"].links), (Some(sha256(b"x")), found["/a"].links));
    assert!(found["/a"].links > 0 && found["/c"].links == 0);
    assert_eq!(found["/c"].target.as_deref(), Some(&b"../../etc/passwd"[..]));
    assert_eq!(
        (found["/dev/null"].file_type, found["/dev/null"].device),
        (FileType::CharacterDevice, Some((1, 3)))
    );
    assert_eq!(
        (found["/dev/sda"].file_type, found["/dev/sda"].device),
        (FileType::BlockDevice, Some((8, 0)))
    );
    assert_eq!(found["/pipe"].file_type, FileType::Fifo);
}

#[test]
fn the_newest_layer_that_has_a_path_is_blamed_for_it() {
    let lower = Archive::new().directory("etc").file("etc/a", "1").file("etc/b", "1").end();
    // Layers name the directories of what they change, with the same metadata.
    let upper = Archive::new().directory("etc").file("etc/b", "2").end();
    let layers = [lower, upper];
    assert_eq!(paths(&layers), [("/etc".into(), 0), ("/etc/a".into(), 0), ("/etc/b".into(), 1)]);
    assert_eq!(entry(&layers, "/etc/b").sha256, Some(sha256(b"2")));
    let changed = Archive::new().with(Fields { mode: 0o700, ..Fields::new(b'5', "etc") }, b"").end();
    let layers = [layers[0].clone(), changed];
    let etc = entry(&layers, "/etc");
    assert_eq!((etc.mode, etc.layer, entry(&layers, "/etc/a").layer), (0o700, 1, 0));
}

#[test]
fn a_whiteout_removes_what_lower_layers_have_and_nothing_of_its_own_layer() {
    let lower = Archive::new().file("a/x", "").file("a/y/z", "").file("b", "").end();
    let upper = Archive::new().file(".wh.b", "").file("a/.wh.y", "").end();
    assert_eq!(paths(&[lower.clone(), upper]), [("/a".into(), 0), ("/a/x".into(), 0)]);
    for order in [["a/y/new", "a/.wh.y"], ["a/.wh.y", "a/y/new"]] {
        let upper = Archive::new().file(order[0], "").file(order[1], "").end();
        let found = paths(&[lower.clone(), upper]);
        assert!(found.contains(&("/a/y/new".into(), 1)), "{order:?} {found:?}");
        assert!(found.iter().all(|(path, _)| path != "/a/y/z"), "{order:?} {found:?}");
    }
    // There is nothing to remove.
    let upper = Archive::new().file("none/.wh.x", "").file("b/.wh.x", "").end();
    assert_eq!(paths(&[lower, upper]).len(), 5);
}

#[test]
fn an_opaque_directory_hides_what_lower_layers_have_in_it_in_whatever_order() {
    let lower = Archive::new().file("a/x", "").file("a/y/z", "").end();
    for order in [["a/new", "a/.wh..wh..opq"], ["a/.wh..wh..opq", "a/new"]] {
        let upper = Archive::new().directory("a").file(order[0], "").file(order[1], "").end();
        let found = paths(&[lower.clone(), upper]);
        assert!(found.iter().map(|(path, _)| path.as_str()).eq(["/a", "/a/new"]), "{order:?} {found:?}");
    }
}

#[test]
fn a_directory_and_a_file_replace_each_other() {
    let lower = Archive::new().file("a/x", "1").file("b", "2").end();
    let upper = Archive::new().file("a", "3").file("b/y", "4").end();
    // A directory that is only implied does not replace a file.
    assert!(tree_in_pieces(&[lower.clone(), upper], 512, ImageLimits::default()).is_err());
    let upper = Archive::new().file("a", "3").directory("b").file("b/y", "4").end();
    assert_eq!(paths(&[lower, upper]), [("/a".into(), 1), ("/b".into(), 1), ("/b/y".into(), 1)]);
}

#[test]
fn a_hard_link_may_lead_to_a_lower_layer_and_keeps_the_content_when_that_name_is_replaced() {
    let lower = Archive::new().file("a", "old").end();
    let upper = Archive::new().hard_link("b", "a").file("a", "new").end();
    let layers = [lower, upper];
    assert_eq!((entry(&layers, "/b").sha256, entry(&layers, "/b").layer), (Some(sha256(b"old")), 1));
    assert_eq!((entry(&layers, "/a").sha256, entry(&layers, "/a").links), (Some(sha256(b"new")), 0));
}

#[test]
fn links_of_lower_layers_lead_to_where_a_path_is() {
    let lower =
        Archive::new().directory("usr/lib").symlink("lib", "usr/lib").symlink("abs", "/../lib/../lib").end();
    let upper = Archive::new().file("lib/a", "").file("abs/b", "").file("lib/.wh.none", "").end();
    let found = paths(&[lower, upper]);
    assert!(found.contains(&("/usr/lib/a".into(), 1)), "{found:?}");
    assert!(found.contains(&("/usr/lib/b".into(), 1)), "{found:?}");
    assert_eq!(found.len(), 6);
}

#[test]
fn a_path_stays_below_the_root() {
    let layer = Archive::new()
        .file("../../etc/passwd", "")
        .file("/abs", "")
        .file("x/../../y", "")
        .symlink("out", "../../..")
        .file("out/z", "")
        .end();
    let names: Vec<String> = paths(&[layer]).into_iter().map(|(path, _)| path).collect();
    assert_eq!(names, ["/abs", "/etc", "/etc/passwd", "/out", "/y", "/z"]);
}

#[test]
fn names_that_differ_in_case_or_normalisation_are_different_paths() {
    let layer = Archive::new().file("A", "1").file("a", "2").file("\u{e9}", "3").file("e\u{301}", "4").end();
    assert_eq!(paths(&[layer]).len(), 4);
    let bytes = Archive::new().with(Fields { name: b"\xff\xfe", ..Fields::new(b'0', "") }, b"").end();
    let mut names = Vec::new();
    tree(&[bytes])
        .each(|path, _| {
            names.push(path.to_vec());
            Ok::<(), ()>(())
        })
        .unwrap();
    assert_eq!(names, [b"/".to_vec(), b"/\xff\xfe".to_vec()]);
}

#[test]
fn long_names_come_from_gnu_and_from_pax() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let target = "t".repeat(300);
    let gnu = Archive::new()
        .long(b'K', &target)
        .long(b'L', &long)
        .with(Fields { magic: GNU, link: b"short", ..Fields::new(b'2', "short") }, b"")
        .end();
    let pax = Archive::new()
        .pax("path", long.as_bytes())
        .pax("linkpath", target.as_bytes())
        .symlink("s", "s")
        .end();
    for layer in [gnu, pax] {
        let found = entry(&[layer], &format!("/{long}"));
        assert_eq!(found.target.as_deref(), Some(target.as_bytes()));
    }
}

#[test]
fn pax_records_set_size_owner_and_attributes() {
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let layer = Archive::new()
        .pax("size", b"3")
        .pax("uid", b"3000000")
        .pax("gid", b"4000000")
        .pax("mtime", b"-1.5")
        .pax("SCHILY.xattr.security.capability", &capability)
        .pax("SCHILY.xattr.user.a", b"old")
        .pax("SCHILY.xattr.user.a", b"b=c\n")
        .pax("SCHILY.xattr.user.none", b"")
        .pax("SCHILY.xattr.security.selinux", b"system_u:object_r:bin_t:s0\0")
        .with(Fields::new(b'0', "ping"), b"abc")
        .file("next", "n")
        .end();
    let found = entries(&tree(&[layer]));
    let ping = &found["/ping"];
    assert_eq!((ping.size, ping.uid, ping.gid, ping.sha256), (3, 3_000_000, 4_000_000, Some(sha256(b"abc"))));
    let value =
        |name: &str| ping.xattrs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!(value("security.capability"), Some("cap_net_raw+ep"));
    assert_eq!(value("user.a").unwrap(), format!("sha256:{}", hex::encode(Sha256::digest(b"b=c\n"))));
    assert_eq!((value("user.none"), value("security.selinux")), (None, Some("system_u:object_r:bin_t:s0")));
    assert_eq!((found["/next"].uid, found["/next"].sha256), (0, Some(sha256(b"n"))));
}

/// 1000 zeros, `data`, 500 zeros, `more`, 96 zeros.
fn sparse_content() -> Vec<u8> {
    let mut content = vec![0; 1604];
    content[1000..1004].copy_from_slice(b"data");
    content[1504..1508].copy_from_slice(b"more");
    content
}

#[test]
fn every_form_of_a_sparse_file_has_the_digest_of_its_whole_content() {
    let mut block = Fields { size: 8, magic: GNU, ..Fields::new(b'S', "sparse") }.block();
    for (at, number) in [(386, 1000), (398, 4), (410, 1504), (422, 4), (483, 1604)] {
        block[at..at + 12].copy_from_slice(format!("{number:011o}\0").as_bytes());
    }
    archive::seal(&mut block);
    let gnu = Archive::new().raw(&block).raw(b"datamore").raw(&[0; 504]);
    let mut map = b"2\n1000\n4\n1504\n4\n".to_vec();
    map.resize(512, 0);
    let lines = Archive::new()
        .pax("GNU.sparse.major", b"1")
        .pax("GNU.sparse.minor", b"0")
        .pax("GNU.sparse.name", b"sparse")
        .pax("GNU.sparse.realsize", b"1604")
        .with(
            Fields { size: 520, ..Fields::new(b'0', "GNUSparseFile.1/sparse") },
            &[&map[..], b"datamore"].concat(),
        );
    let list = Archive::new()
        .pax("GNU.sparse.map", b"1000,4,1504,4")
        .pax("GNU.sparse.size", b"1604")
        .pax("GNU.sparse.name", b"sparse")
        .file("GNUSparseFile.1/sparse", "datamore");
    for layer in [gnu, lines, list] {
        let layer = layer.file("next", "n").end();
        for piece in [5, 512, 4096] {
            let tree = tree_in_pieces(std::slice::from_ref(&layer), piece, ImageLimits::default()).unwrap();
            let found = entries(&tree);
            assert_eq!(
                (found["/sparse"].size, found["/sparse"].sha256),
                (1604, Some(sha256(&sparse_content())))
            );
            assert_eq!(found["/next"].sha256, Some(sha256(b"n")));
        }
    }
}

#[test]
fn the_map_of_a_sparse_file_may_have_many_blocks() {
    let count = 1000;
    let mut map = format!("{count}\n");
    for piece in 0..count {
        writeln!(map, "{}\n1", piece * 2).unwrap();
    }
    let mut data = map.into_bytes();
    data.resize(data.len().next_multiple_of(512), 0);
    data.extend(vec![b'x'; count]);
    let layer = Archive::new()
        .pax("GNU.sparse.major", b"1")
        .pax("GNU.sparse.minor", b"0")
        .pax("GNU.sparse.realsize", b"2000")
        .with(Fields { size: data.len() as u64, ..Fields::new(b'0', "sparse") }, &data)
        .end();
    let content: Vec<u8> = (0..2000).map(|at| if at % 2 == 0 { b'x' } else { 0 }).collect();
    assert_eq!(entry(&[layer], "/sparse").sha256, Some(sha256(&content)));
}

#[test]
fn an_archive_may_end_without_blocks_of_zeros_and_a_global_comment_has_no_effect() {
    let global = |key: &str| {
        let records = format!("{} {key}=abc\n", key.len() + 8);
        let size = records.len() as u64;
        Archive::new()
            .with(Fields { size, ..Fields::new(b'g', "pax_global_header") }, records.as_bytes())
            .file("a", "x")
    };
    assert_eq!(paths(&[global("comment")]), [("/a".into(), 0)]);
    assert_eq!(paths(&[Archive::new().file("a", "x").raw(&[0; 512])]).len(), 1);
    assert_eq!(paths(&[Archive::new().file("a", "x").end().raw(&[0; 9216])]).len(), 1);
    assert!(paths(&[Archive::new(), Archive::new().end()]).is_empty());
}

#[test]
fn the_root_has_the_metadata_of_its_entry() {
    let layer =
        Archive::new().with(Fields { mode: 0o700, owner: (1, 2), ..Fields::new(b'5', "./") }, b"").end();
    let root = entry(&[layer], "/");
    assert_eq!((root.mode, root.uid, root.gid, root.known), (0o700, 1, 2, Known::All));
}
