use super::{archive::Archive, archive::Fields, archive::GNU, archive::seal, *};

/// A layer with one entry, refused for this reason.
fn assert_refused(layer: Archive, reason: &str) {
    let message = refused(layer);
    assert!(message.contains(reason), "{message:?} has no {reason:?}");
}

#[test]
fn a_layer_that_is_cut_off_is_refused_wherever_the_cut_is() {
    let whole = Archive::new().pax("path", b"a").file("b", "content").bytes().to_vec();
    for cut in (1..whole.len()).filter(|cut| *cut != 512 && *cut != 1024) {
        let cut_off = Archive::new().raw(&whole[..cut]);
        assert!(tree_in_pieces(&[cut_off], 100, ImageLimits::default()).is_err(), "{cut}");
    }
    assert_refused(Archive::new().raw(&whole[..whole.len() - 510]), "within the content of a file");
}

#[test]
fn a_damaged_header_is_refused() {
    let mut block = Fields::new(b'0', "a").block();
    block[0] = b'b';
    assert_refused(Archive::new().raw(&block).end(), "checksum");
    let mut block = Fields::new(b'0', "a").block();
    block[124..136].copy_from_slice(&[0xff; 12]);
    seal(&mut block);
    assert_refused(Archive::new().raw(&block).end(), "negative or too large");
    block[124..136].copy_from_slice(&[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    seal(&mut block);
    assert_refused(Archive::new().raw(&block).end(), "negative or too large");
}

#[test]
fn what_readers_of_tar_read_in_two_ways_is_refused() {
    let two_names = Archive::new().long(b'L', "gnu").pax("path", b"pax").file("a", "");
    assert_refused(two_names.end(), "both as a long name and as a PAX record");
    let two_long = Archive::new().long(b'L', "a").long(b'L', "b").file("c", "");
    assert_refused(two_long.end(), "two long names");
    let mut old = Fields { size: 12, ..Fields::new(b'x', "pax") }.block();
    old[257..265].fill(0);
    seal(&mut old);
    let old = Archive::new().raw(&old).raw(b"12 path=abc\n").raw(&[0; 500]).file("a", "");
    assert_refused(old.end(), "an extension in a header of the oldest format");
    let lone = Archive::new().file("a", "").raw(&[0; 512]).file("b", "");
    assert_refused(lone.end(), "one block of zeros");
    assert_refused(Archive::new().file("a", "").end().file("b", ""), "data follows the end");
    let global = "12 path=abc\n";
    let global =
        Archive::new().with(Fields { size: 12, ..Fields::new(b'g', "g") }, global.as_bytes()).file("a", "");
    assert_refused(global.end(), "for all entries set \"path\"");
    let orphan = Archive::new().long(b'L', "a");
    assert_refused(orphan.end(), "the archive ends after a long name");
}

#[test]
fn pax_records_that_a_reader_could_skip_are_refused() {
    for records in
        ["x path=a\n", "9 path=a", "99 path=a\n", "9 patha\n", "12 path=a\n\0\0\0", " ", "+9 path=a\n"]
    {
        let fields = Fields { size: records.len() as u64, ..Fields::new(b'x', "pax") };
        let layer = Archive::new().with(fields, records.as_bytes()).file("a", "").end();
        assert_refused(layer, "a PAX record that is not valid");
    }
    for (key, value) in [("size", "+3"), ("size", " 3"), ("uid", "-1"), ("gid", ""), ("size", "0x3")] {
        assert_refused(Archive::new().pax(key, value.as_bytes()).file("a", "abc").end(), "is not a number");
    }
    for value in [&b""[..], b"a\0b"] {
        assert_refused(Archive::new().pax("path", value).file("a", "").end(), "is empty or has a zero byte");
    }
    assert_refused(
        Archive::new().pax("uid", b"4294967296").file("a", "").end(),
        "its uid 4294967296 is too large",
    );
}

#[test]
fn entries_that_no_layer_may_have_are_refused_by_their_names() {
    assert_refused(
        Archive::new().with(Fields::new(b'M', "multi"), b"").end(),
        "entry \"multi\": entries of the type 'M'",
    );
    let sized = Fields { size: 3, ..Fields::new(b'5', "dir") };
    assert_refused(Archive::new().with(sized, b"abc").end(), "has no content, but the entry has 3 bytes");
    assert_refused(Archive::new().file("dir/", "").end(), "its name ends with a slash");
    assert_refused(Archive::new().with(Fields::new(b'2', "link"), b"").end(), "the link has no target");
    assert_refused(Archive::new().file("..", "").end(), "it is the root directory");
    for name in [".wh.", "a/.wh..", "a/.wh..."] {
        assert_refused(Archive::new().file("a/b", "").file(name, "").end(), "the whiteout names no file");
    }
}

#[test]
fn hard_links_lead_to_files_that_exist() {
    assert_refused(Archive::new().hard_link("a", "b").end(), "neither in this layer nor in one below it");
    assert_refused(Archive::new().file("a", "").hard_link("a", "a").end(), "neither in this layer");
    assert_refused(Archive::new().directory("d").hard_link("a", "d").end(), "is a directory");
    assert_refused(Archive::new().hard_link("a", "/").end(), "is a directory");
}

#[test]
fn ways_without_an_end_are_refused() {
    assert_refused(
        Archive::new().symlink("a", "b").symlink("b", "a").file("a/x", "").end(),
        "symbolic links are on the way",
    );
    assert_refused(Archive::new().file("f", "").file("f/x", "").end(), "\"f\" on the way is not a directory");
}

#[test]
fn links_that_make_the_ways_to_entries_long_are_refused() {
    let limits = ImageLimits { link_names: 8, ..ImageLimits::default() };
    let layer = |entries: usize| {
        let linked = Archive::new().directory("d").symlink("link", "d/../d/../d");
        (0..entries).fold(linked, |layer, number| layer.file(&format!("link/{number}"), ""))
    };
    let read = |layer: Archive| tree_in_pieces(&[layer.end()], 512, limits).map(drop);
    assert_eq!(read(layer(1)).map_err(|error| error.to_string()), Ok(()));
    for layer in [layer(2), layer(1).file("link/.wh.0", "")] {
        let error = read(layer).unwrap_err().to_string();
        assert!(error.contains("names in the targets of links"), "{error}");
    }
}

#[test]
fn a_layer_with_many_opaque_whiteouts_of_a_large_directory_is_read_in_a_time_that_grows_with_it() {
    let many = |layer: Archive, name: fn(usize) -> String| {
        (0..20_000).fold(layer, |layer, number| layer.file(&name(number), ""))
    };
    let lower = Archive::new().file("d/lower", "").end();
    let upper = many(Archive::new(), |number| format!("d/{number}"));
    let upper = many(upper, |_| "d/.wh..wh..opq".to_owned()).file("d/last", "").end();
    let began = std::time::Instant::now();
    let tree = tree_in_pieces(&[lower, upper], 1 << 20, ImageLimits::default()).unwrap();
    // The square of the numbers takes minutes.
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(!tree.contains(b"/d/lower") && tree.contains(b"/d/0") && tree.contains(b"/d/last"));
}

#[test]
fn long_paths_and_names_are_refused() {
    let name = "n".repeat(256);
    assert_refused(
        Archive::new().pax("path", name.as_bytes()).file("a", "").end(),
        "a name in the path has 256 bytes",
    );
    let path = "n/".repeat(2048);
    assert_refused(
        Archive::new().pax("path", path.as_bytes()).directory("a").end(),
        "the path has 4096 bytes",
    );
    // A link on the way makes it longer.
    let deep = "n/".repeat(2000);
    let layer = Archive::new().pax("linkpath", deep.as_bytes()).symlink("deep", "x");
    let layer = layer.pax("path", format!("deep/{}", "m/".repeat(100)).as_bytes()).directory("a");
    assert_refused(layer.end(), "bytes, and 4095 bytes are the limit");
    let link = "l".repeat(4096);
    assert_refused(
        Archive::new().pax("linkpath", link.as_bytes()).symlink("a", "x").end(),
        "the path has 4096 bytes",
    );
}

#[test]
fn a_sparse_map_that_contradicts_itself_is_refused() {
    for (map, reason) in [
        ("5,1,0,1", "overlap or are out of order"),
        ("0,2,1,1", "overlap or are out of order"),
        ("0,1,9,2", "behind the end"),
        ("0,1", "another size than the data"),
        ("18446744073709551615,2", "too long"),
    ] {
        let layer = Archive::new()
            .pax("GNU.sparse.map", map.as_bytes())
            .pax("GNU.sparse.size", b"10")
            .file("a", "xy");
        assert_refused(layer.end(), reason);
    }
    let layer = Archive::new()
        .pax("GNU.sparse.map", b"0,2")
        .pax("GNU.sparse.size", b"999999999999999")
        .file("a", "xy");
    assert_refused(layer.end(), "uncompressed bytes");
    let layer = Archive::new()
        .pax("GNU.sparse.map", b"0,2")
        .pax("GNU.sparse.size", b"2")
        .pax("size", b"2")
        .file("a", "xy");
    assert_refused(layer.end(), "the size of a sparse file");
    // The blocks of the map have no end.
    let mut block = Fields { magic: GNU, ..Fields::new(b'S', "a") }.block();
    block[482] = 1;
    seal(&mut block);
    let mut map = [0; 512];
    map[504] = 1;
    let layer = Archive::new().raw(&block).raw(&map.repeat(5000));
    assert_refused(layer, "bytes in one header");
}

#[test]
fn holes_of_sparse_files_are_limited_over_all_layers_but_for_those_that_the_size_of_a_layer_allows() {
    let layer = |holes: u64| {
        let size = (holes + 2).to_string();
        let sparse = Archive::new().pax("GNU.sparse.map", b"0,2").pax("GNU.sparse.size", size.as_bytes());
        sparse.file("log", "xy").end()
    };
    let limits = ImageLimits { holes: 1000, ratio: 200, ..ImageLimits::default() };
    let read = |layers: &[(u64, u64)], limits: ImageLimits| {
        let mut tree = ImageTree::new(limits);
        for (holes, compressed) in layers {
            let mut reader = LayerReader::begin_compressed(&mut tree, *compressed);
            reader.push(layer(*holes).bytes(), &mut tree)?;
            reader.finish()?;
        }
        Ok::<_, LayerError>(())
    };
    for accepted in [&[(1000, 0)][..], &[(500, 0), (500, 0)], &[(3000, 10)], &[(3000, 10), (200, 1)]] {
        assert_eq!(read(accepted, limits), Ok(()), "{accepted:?}");
    }
    for refused in [&[(1001, 0)][..], &[(500, 0), (501, 0)], &[(3001, 10)], &[(3000, 10), (201, 1)]] {
        let error = read(refused, limits).unwrap_err();
        assert_eq!(
            error,
            LayerError::Holes { path: "log".to_owned(), limit: 1000, ratio: 200 },
            "{refused:?}"
        );
    }
    let error = read(&[(20_000, 1000)], ImageLimits { bytes: 20_000, ..limits }).unwrap_err().to_string();
    assert!(error.contains("more uncompressed bytes than 20000"), "{error}");
}

#[test]
fn the_limits_of_an_image_hold_over_all_layers() {
    let refused = |limits: ImageLimits| {
        let layer =
            |name: &str| Archive::new().directory(name).file(&format!("{name}/f"), "0123456789").end();
        tree_in_pieces(&[layer("a"), layer("b")], 512, limits).unwrap_err().to_string()
    };
    let limits = ImageLimits::default();
    let message = refused(ImageLimits { entries: 4, ..limits });
    assert_eq!(message, "the image has more entries than 4, which is the limit");
    assert!(refused(ImageLimits { metadata: 3, ..limits }).contains("bytes of names"));
    assert!(refused(ImageLimits { bytes: 3000, ..limits }).contains("uncompressed bytes"));
    let attributes = Archive::new().pax("SCHILY.xattr.user.a", b"b").file("a", "").end();
    let tight = ImageLimits { xattrs: 10, ..limits };
    assert!(
        tree_in_pieces(&[attributes], 512, tight).unwrap_err().to_string().contains("attributes have more")
    );
}

#[test]
fn attributes_that_many_files_of_a_commit_share_count_for_each_file_and_are_unknown_beyond_the_limits() {
    let objects = "sysroot/ostree/repo/objects/aa";
    let mut layer = Archive::new().file(&format!("{objects}/x.file-xattrs"), "attributes");
    for number in 0..4 {
        layer = layer
            .file(&format!("{objects}/{number}.file"), "")
            .hard_link(&format!("{objects}/{number}.file-xattrs-link"), &format!("{objects}/x.file-xattrs"));
    }
    let layers = [layer.end()];
    let known = |limits: ImageLimits, bytes: usize| {
        let mut tree = tree_in_pieces(&layers, 512, limits).unwrap();
        assert!(tree.add_attributes(|_| Some(vec![("user.a".to_owned(), "b".repeat(bytes))])));
        let entries = entries(&tree);
        let of = |number: &usize| &entries[&format!("/{objects}/{number}.file")].xattrs[0].0;
        (0..4).filter(|number| of(number) == "user.a").count()
    };
    let limits = ImageLimits::default();
    assert_eq!(known(limits, 1000), 4);
    assert_eq!(known(ImageLimits { metadata: 3000, ..limits }, 1000), 2);
    assert_eq!(known(ImageLimits { xattrs: 999, ..limits }, 1000), 0);
}

#[test]
fn records_of_a_sparse_file_that_are_not_those_of_one_form_are_refused() {
    let whole: [&[(&str, &str)]; 3] = [
        &[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "0")],
        &[("GNU.sparse.map", "0,0"), ("GNU.sparse.size", "0")],
        &[("GNU.sparse.size", "0"), ("GNU.sparse.offset", "0"), ("GNU.sparse.numbytes", "0")],
    ];
    let refused = |records: &[(&str, &str)]| {
        let add = |archive: Archive, (key, value): &(&str, &str)| archive.pax(key, value.as_bytes());
        let layer = records.iter().fold(Archive::new().pax("GNU.sparse.name", b"x"), add).file("x", "");
        assert_refused(layer.end(), "not all those of one form");
    };
    refused(&[]);
    for records in whole {
        for without in 0..records.len() {
            let part = records.iter().enumerate().filter(|(at, _)| *at != without);
            refused(&part.map(|(_, record)| *record).collect::<Vec<_>>());
        }
    }
    refused(&[whole[0], whole[1]].concat());
    refused(&[whole[1], whole[2]].concat());
}

#[test]
fn a_long_name_that_goes_on_behind_its_size_is_refused() {
    let long = |size: u64| {
        let fields = Fields { size, magic: GNU, ..Fields::new(b'L', "././@LongLink") };
        Archive::new().with(fields, b"abc\0").file("x", "").end()
    };
    assert_refused(long(2), "a long name that does not end with a zero byte");
    for size in [3, 4] {
        // The zero byte is in its size, or right behind it.
        assert_eq!(paths(&[long(size)]), [("/abc".to_owned(), 0)]);
    }
}

#[test]
fn a_number_with_a_zero_byte_before_its_digits_is_refused() {
    for at in [100, 108, 116, 124] {
        let mut block = Fields::new(b'0', "a").block();
        block[at..at + 8].copy_from_slice(b"\x000000005");
        seal(&mut block);
        assert_refused(Archive::new().raw(&block).end(), "a zero byte before its digits");
        block[at..at + 8].copy_from_slice(b" \0 00005");
        seal(&mut block);
        assert_refused(Archive::new().raw(&block).end(), "a zero byte before its digits");
    }
    let mut block = Fields::new(b'0', "a").block();
    block[108..116].fill(0);
    seal(&mut block);
    assert_eq!(paths(&[Archive::new().raw(&block).end()]), [("/a".to_owned(), 0)], "an empty field is zero");
}
