//! The objects are those that `ostree commit` (2022.7) wrote of a tree with a program, a link and a file in `/usr/etc`.

mod booted;
mod image;
mod layers;

use super::*;
use sha2::{Digest as _, Sha256};

const COMMIT: &str = "6f73747265652e7265662d62696e64696e670000000000006f732f76310006006173132376657273696f6e2031000000000000006b07d21d8bb6741d9c4eda24e7ffb317da7813a9773282a60812abb43b58cc2728b019b5446a0ef11b7cc167f3b603e585c7eeeeb675faa412d5ec73f62988eb0b6c5488582f2e242424";
const COMMIT_CHECKSUM: &str = "7d73f9221ed279c9faab8db89e7cce5e3c5dc7fc70c52ae43db7f78f710f02c0";
const ROOT: &str = "75737200e7c9fecde9793cf4c1b18cd70499afe9eeca83aa9dced38ae799a0b2c947df9e446a0ef11b7cc167f3b603e585c7eeeeb675faa412d5ec73f62988eb0b6c548824044600";
const ROOT_CHECKSUM: &str = "8bb6741d9c4eda24e7ffb317da7813a9773282a60812abb43b58cc2728b019b5";
const USR: &str = "62696e008ad406b7adbac73dd03b44af8f0bedf9a7cc5c84147a8247b3e3c4e60c5c0a43446a0ef11b7cc167f3b603e585c7eeeeb675faa412d5ec73f62988eb0b6c5488240465746300d4867c595df39d90a840db71f672fa7cbc78f99a75373c3f8d5f08140ee8848f446a0ef11b7cc167f3b603e585c7eeeeb675faa412d5ec73f62988eb0b6c54882404468c00";
const BIN: &str = "6c696e6b00570f9acff0d43b1a44f83b9c9b414327f0aeff6a8b486d2d10af3985fca23a9005746f6f6c00767b0ccecb0ee0efc738e84bc0c56b994a8e0ffb2595962db5df7a4056d2e76805264c4e";
const META: &str = "0000000000000000000041ed";
const META_CHECKSUM: &str = "446a0ef11b7cc167f3b603e585c7eeeeb675faa412d5ec73f62988eb0b6c5488";
/// `/usr/bin/link`, which leads to `tool`.
const LINK: &str = "570f9acff0d43b1a44f83b9c9b414327f0aeff6a8b486d2d10af3985fca23a90";
/// The same file with a capability besides.
const CAPABLE: &str = "0d51544cf19a4f9deceb54e8a36ef1fcc16ea3a14c147d1d63c22ebc822d23bf";
/// `/usr/bin/tool`, with the content `tool` and a line ending, and an extended attribute.
const TOOL: &str = "767b0ccecb0ee0efc738e84bc0c56b994a8e0ffb2595962db5df7a4056d2e768";
/// `/usr/etc/app.conf`, with the content `a=1` and a line ending.
const CONF: &str = "7a28d48d4ec9579504350d2a907026196c7a0af3bdeeea5d304c3e09c5529914";

fn bytes(text: &str) -> Vec<u8> {
    hex::decode(text).unwrap()
}

fn checksum(text: &str) -> Checksum {
    bytes(text).try_into().unwrap()
}

fn tree(text: &str) -> DirectoryTree {
    DirectoryTree::parse(&bytes(text)).unwrap()
}

#[test]
fn a_commit_leads_to_its_root_directory() {
    let commit = Commit::parse(&bytes(COMMIT)).unwrap();
    assert_eq!(commit.subject, "version 1");
    assert_eq!(commit.seconds, 0x6b07_d21d);
    assert_eq!(commit.tree, checksum(ROOT_CHECKSUM));
    assert_eq!(commit.meta, checksum(META_CHECKSUM));
    // Its only metadata is a list.
    assert_eq!(commit.texts, Some(std::collections::BTreeMap::new()));
    for (object, sum) in [(COMMIT, COMMIT_CHECKSUM), (ROOT, ROOT_CHECKSUM), (META, META_CHECKSUM)] {
        assert_eq!(<Checksum>::from(Sha256::digest(bytes(object))), checksum(sum), "a fixture was changed");
    }
}

#[test]
fn a_directory_has_its_files_links_and_directories() {
    let root = tree(ROOT);
    assert!(root.files.is_empty());
    assert_eq!(root.directories[0].name, "usr");
    assert_eq!(root.directories[0].tree, <Checksum>::from(Sha256::digest(bytes(USR))));
    let usr = tree(USR);
    let names: Vec<&str> = usr.directories.iter().map(|sub| sub.name.as_str()).collect();
    assert_eq!((names, usr.files.len()), (vec!["bin", "etc"], 0));
    assert_eq!(usr.directories[0].tree, <Checksum>::from(Sha256::digest(bytes(BIN))));
    let bin = tree(BIN);
    let files: Vec<(&str, Checksum)> = bin.files.iter().map(|file| (file.name.as_str(), file.file)).collect();
    assert_eq!(files, [("link", checksum(LINK)), ("tool", checksum(TOOL))]);
    assert!(bin.directories.is_empty());
    let meta = DirectoryMeta::parse(&bytes(META)).unwrap();
    assert_eq!((meta.uid, meta.gid, meta.mode, meta.xattrs.len()), (0, 0, 0o40_755, 0));
}

#[test]
fn the_checksum_of_a_file_is_that_of_ostree() {
    let file = |mode, target: &'static [u8], xattrs: &'static [Xattr]| FileHeader {
        uid: 0,
        gid: 0,
        mode,
        target,
        xattrs,
    };
    let whole = |header: FileHeader<'_>, content: &[u8]| -> Checksum {
        let mut digest = header.begin();
        digest.update(content);
        digest.finalize().into()
    };
    assert_eq!(whole(file(0o100_644, b"", &[]), b"a=1\n"), checksum(CONF));
    assert_eq!(file(0o120_777, b"tool", &[]).of_link(), checksum(LINK));
    let xattrs = vec![
        Xattr {
            name: b"security.capability".to_vec(),
            value: bytes("0100000200200000000000000000000000000000"),
        },
        Xattr { name: b"user.note".to_vec(), value: b"v".to_vec() },
    ];
    let header = FileHeader { uid: 0, gid: 0, mode: 0o100_755, target: b"", xattrs: &xattrs };
    assert_eq!(whole(header.clone(), b"tool\n"), checksum(CAPABLE));
    assert_eq!(whole(FileHeader { xattrs: &xattrs[1..], ..header.clone() }, b"tool\n"), checksum(TOOL));
    for other in [
        FileHeader { uid: 1, ..header.clone() },
        FileHeader { gid: 1, ..header.clone() },
        FileHeader { mode: 0o104_755, ..header.clone() },
        FileHeader { xattrs: &xattrs[..1], ..header.clone() },
    ] {
        assert_ne!(whole(other.clone(), b"tool\n"), checksum(CAPABLE), "{other:?}");
    }
}

#[test]
fn an_object_that_ends_early_or_has_other_ends_is_refused_and_nothing_panics() {
    for object in [COMMIT, ROOT, USR, BIN, META] {
        let whole = bytes(object);
        for length in 0..whole.len() {
            let _ = DirectoryTree::parse(&whole[..length]);
            let _ = DirectoryMeta::parse(&whole[..length]);
            assert_eq!(Commit::parse(&whole[..length]), Err(ObjectError::Form), "{length}");
        }
        for place in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[place] = value;
                let _ =
                    (DirectoryTree::parse(&changed), DirectoryMeta::parse(&changed), Commit::parse(&changed));
            }
        }
    }
    assert_eq!(DirectoryTree::parse(&bytes(BIN)[1..]), Err(ObjectError::Form));
}

#[test]
fn a_name_that_leads_elsewhere_is_refused() {
    let usr = bytes(USR);
    let place = usr.windows(3).position(|name| name == b"etc").unwrap();
    for name in [b"a/b", b"..\0", b"bin", b"\0\0\0"] {
        let mut changed = usr.clone();
        changed[place..place + 3].copy_from_slice(name);
        assert!(DirectoryTree::parse(&changed).is_err(), "{name:?}");
    }
    // Of two directories the second has a name before the first.
    let mut changed = usr;
    changed[place..place + 3].copy_from_slice(b"abc");
    assert_eq!(DirectoryTree::parse(&changed), Err(ObjectError::Name));
}
