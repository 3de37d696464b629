//! The index of an image, compared file by file with what umoci unpacks.
//!
//! `HOLDFAST_UMOCI` names the program, `HOLDFAST_DEBIAN_ROOT` a directory with a whole Debian, and `HOLDFAST_BUILDAH_LAYOUT` the layout of an image
//! that buildah built. `cargo xtask test` sets them.

use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
    world::World,
};
use holdfast::{
    image::{ImageError, ImageIndex, Images, Verifier},
    observation::Observer,
};
use sensor_model::{image::ImageEntry, observation::FileType, xattr};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::{MetadataExt as _, symlink},
    },
    path::Path,
    process::Command,
};

/// One path, as both show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) file_type: FileType,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) size: u64,
    pub(crate) sha256: Option<[u8; 32]>,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) device: Option<(u64, u64)>,
    pub(crate) xattrs: Vec<(String, String)>,
}

impl Shown {
    /// What an entry says.
    pub(crate) fn of(entry: &ImageEntry) -> Self {
        Self {
            file_type: entry.file_type,
            mode: entry.mode,
            owner: (entry.uid, entry.gid),
            size: entry.size,
            sha256: entry.sha256,
            target: entry.target.clone(),
            device: entry.device.map(|(major, minor)| (major.into(), minor.into())),
            xattrs: entry.xattrs.clone(),
        }
    }
}

pub(crate) fn on_disk(root: &Path) -> BTreeMap<Vec<u8>, Shown> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let mode = metadata.mode();
        let (file_type, is_device) = match mode & nix::libc::S_IFMT {
            nix::libc::S_IFDIR => (FileType::Directory, false),
            nix::libc::S_IFLNK => (FileType::Symlink, false),
            nix::libc::S_IFCHR => (FileType::CharacterDevice, true),
            nix::libc::S_IFBLK => (FileType::BlockDevice, true),
            nix::libc::S_IFIFO => (FileType::Fifo, false),
            _ => (FileType::Regular, false),
        };
        let is_file = file_type == FileType::Regular;
        let device = metadata.rdev();
        let target = (file_type == FileType::Symlink)
            .then(|| fs::read_link(&path).unwrap().into_os_string().into_vec());
        let shown = Shown {
            file_type,
            mode: mode & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            size: if is_file { metadata.size() } else { 0 },
            sha256: is_file.then(|| Sha256::digest(fs::read(&path).unwrap()).into()),
            target,
            device: is_device.then(|| (nix::sys::stat::major(device), nix::sys::stat::minor(device))),
            xattrs: attributes(&path),
        };
        let name = [b"/", path.strip_prefix(root).unwrap().as_os_str().as_bytes()].concat();
        found.insert(name, shown);
        if file_type == FileType::Directory {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

fn attributes(path: &Path) -> Vec<(String, String)> {
    let mut buffer = vec![0; 64 << 10];
    let Ok(length) = rustix::fs::llistxattr(path, &mut buffer) else { return Vec::new() };
    let names = buffer[..length].to_vec();
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut buffer).unwrap();
        let name = String::from_utf8_lossy(name).into_owned();
        let value = xattr::describe(&name, &buffer[..length]);
        found.push((name, value));
    }
    found.sort();
    found
}

fn of_index(index: &ImageIndex) -> BTreeMap<Vec<u8>, Shown> {
    let mut found = BTreeMap::new();
    index
        .each(|path, entry| {
            found.insert(path.to_vec(), Shown::of(&entry));
            Ok::<(), ImageError>(())
        })
        .unwrap();
    found
}

/// Indexes and unpacks an image, and compares every path.
fn assert_same(layers: &[Layer]) -> usize {
    let world = World::new();
    LayoutMaker::one(&world.at("layout"), layers);
    assert_same_image(&world, true).1
}

/// The same for the image of the world's layout. Gives the index and the number of paths. Without root umoci keeps no owners.
fn assert_same_image(world: &World, with_owners: bool) -> (ImageIndex, usize) {
    let umoci = std::env::var_os("HOLDFAST_UMOCI").expect("HOLDFAST_UMOCI names umoci");
    let image = format!("{}:latest", world.at("layout").display());
    let root = world.at("unpacked");
    let mut unpack = Command::new(umoci);
    unpack.args(["raw", "unpack", "--image", &image]);
    if !nix::unistd::geteuid().is_root() {
        unpack.arg("--rootless");
    }
    let unpacked = unpack.arg(&root).output().unwrap();
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    let result = world.run(&["image", "index", "LAYOUT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    let images = Images::of(&world.at("state"));
    let index = images.open(&images.digests().unwrap()[0]).unwrap();
    let (ours, theirs) = (of_index(&index), on_disk(&root));
    let name = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let mut wrong: Vec<String> = Vec::new();
    for path in ours.keys().chain(theirs.keys()) {
        let (mut our, their) = (ours.get(path).cloned(), theirs.get(path).cloned());
        if let (Some(our), Some(their)) = (&mut our, &their)
            && path == b"/"
        {
            // The directory was made before umoci came.
            (our.mode, our.owner) = (their.mode, their.owner);
        }
        if let (Some(our), Some(their), false) = (&mut our, &their, with_owners) {
            our.owner = their.owner;
        }
        if our != their {
            wrong.push(format!("{}: ours {our:?}, umoci's {their:?}", name(path)));
        }
    }
    wrong.truncate(10);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if !with_owners {
        return (index, ours.len());
    }
    // The comparison of `holdfast image verify` finds no difference either.
    let observer = Observer::new(&root).unwrap();
    let verified = Verifier::new(&index, &observer, &root).all(&[], true, &mut |_| {}).unwrap();
    let differing: Vec<_> =
        verified.differing.iter().map(|found| (&found.path, &found.differences)).collect();
    assert!(
        differing.is_empty() && verified.unexpected.is_empty(),
        "{differing:?} {:?}",
        verified.unexpected
    );
    (index, ours.len())
}

fn layer(archive: Archive, stored: Stored) -> Layer {
    Layer::new(&archive.end(), stored, "ADD")
}

#[test]
#[ignore = "needs umoci; `cargo xtask test` runs it"]
fn whiteouts_replacements_and_links_are_read_as_umoci_reads_them() {
    let lower = Archive::new()
        .entry(b'5', "./", 0o755, "", b"")
        .directory("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("abs", "/../lib/../lib")
        .file("a/x", "1")
        .file("a/y/z", "2")
        .file("b", "3")
        .file("c", "4")
        .directory("d")
        .file("d/e", "5")
        .file("f/g", "6")
        .entry(b'0', "su", 0o4755, "", b"su");
    let upper = Archive::new()
        .file("a/y/new", "new")
        .file("a/.wh.y", "")
        .file(".wh.b", "")
        .hard_link("link", "c")
        .file("c", "replaced")
        .file("lib/through", "x")
        .file("abs/through2", "x")
        .file("../../outside", "x")
        .file("/absolute", "x")
        .file("d/later", "x")
        .file("d/.wh..wh..opq", "")
        .file("f", "a file for a directory")
        .file("none/.wh.x", "")
        .hard_link("lib/hard", "lib/through")
        .symlink("dangling", "../../../nowhere")
        // Names that the layer has twice.
        .file("twice", "first")
        .file("twice", "the second")
        .file("file-link", "x")
        .symlink("file-link", "c")
        .symlink("link-file", "c")
        .file("link-file", "a file and no write through the link")
        .directory("directory-file")
        .file("directory-file/below", "x")
        .file("directory-file", "x")
        .file("file-directory", "x")
        .directory("file-directory")
        .entry(b'5', "modes", 0o700, "", b"")
        .file("modes/stays", "x")
        .entry(b'5', "modes", 0o750, "", b"")
        .file("later", "old")
        .hard_link("linked-before", "later")
        .file("later", "new")
        .hard_link("linked-after", "later")
        .file("other", "other")
        .hard_link("linked-twice", "later")
        .hard_link("linked-twice", "other")
        // Names that are one only for a reader that folds them.
        .file("\u{c9}", "composed")
        .file("E\u{301}", "decomposed")
        .file("A", "upper")
        .file("aa", "lower")
        .file("AA", "upper");
    let third = Archive::new()
        .directory("f")
        .file("f/again", "x")
        .entry(b'5', "a", 0o700, "", b"")
        .file("link/.wh.x", "")
        .file(".wh.lib", "");
    let layers = [layer(lower, Stored::Plain), layer(upper, Stored::Gzip), layer(third, Stored::Plain)];
    assert!(assert_same(&layers) > 25);
}

#[test]
#[ignore = "needs umoci; `cargo xtask test` runs it"]
fn pax_records_and_special_files_are_read_as_umoci_reads_them() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let mut archive = Archive::new()
        .entry(b'5', "./", 0o755, "", b"")
        .pax("path", long.as_bytes())
        .pax("mtime", b"-1.5")
        .file("short", "long")
        .pax("linkpath", "t".repeat(300).as_bytes())
        .symlink("to", "t")
        .pax("SCHILY.xattr.user.a", b"b=c\n")
        .pax("SCHILY.xattr.user.none", b"")
        .file("attributes", "x")
        .entry(b'6', "pipe", 0o640, "", b"")
        .pax("GNU.sparse.map", b"1000,4,1504,4")
        .pax("GNU.sparse.size", b"1604")
        .pax("GNU.sparse.numblocks", b"2")
        .pax("GNU.sparse.name", b"sparse")
        .file("GNUSparseFile.1/sparse", "datamore");
    if nix::unistd::geteuid().is_root() {
        archive = archive
            .pax("uid", b"70000")
            .pax("gid", b"80000")
            .file("owned", "x")
            .pax(
                "SCHILY.xattr.security.capability",
                &[1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            )
            .entry(b'0', "ping", 0o755, "", b"x")
            .entry(b'3', "device", 0o600, "", b"");
    }
    assert!(assert_same(&[layer(archive, Stored::Gzip)]) > 5);
}

#[test]
#[ignore = "needs umoci and a Debian root; `cargo xtask test` runs it"]
fn a_whole_debian_is_read_as_umoci_reads_it() {
    let root = std::env::var_os("HOLDFAST_DEBIAN_ROOT").expect("HOLDFAST_DEBIAN_ROOT names a directory");
    let world = World::new();
    let mut layers = Vec::new();
    // GNU's and PAX archives have other forms of long names and sparse files.
    for (format, what) in [("gnu", "usr"), ("pax", ".")] {
        let archive = world.at(format);
        let mut tar = Command::new("tar");
        tar.args([
            "--format",
            format,
            "--sparse",
            "--numeric-owner",
            "--xattrs",
            "--xattrs-include=*",
            "--exclude=./usr",
        ]);
        if format == "gnu" {
            tar.arg("--no-xattrs");
        }
        let made = tar.arg("-C").arg(&root).arg("-cf").arg(&archive).arg(what).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        layers.push(Layer::new(&fs::read(&archive).unwrap(), Stored::Gzip, "ADD"));
    }
    let update = Archive::new()
        .file("etc/.wh.passwd", "")
        .file("etc/apt/.wh..wh..opq", "")
        .file("etc/hostname", "node")
        .file("bin/new", "through a link")
        .hard_link("etc/other", "etc/group")
        .directory("var/lib/dpkg/status");
    layers.push(layer(update, Stored::Gzip));
    let count = assert_same(&layers);
    assert!(count > 10_000, "{count} paths");
}

#[test]
#[ignore = "needs umoci and an image of buildah; `cargo xtask test` runs it"]
fn an_image_that_buildah_built_in_layers_is_read_as_umoci_reads_it_and_each_path_has_its_line() {
    let layout = std::env::var_os("HOLDFAST_BUILDAH_LAYOUT").expect("HOLDFAST_BUILDAH_LAYOUT names a layout");
    let world = World::new();
    symlink(layout, world.at("layout")).unwrap();
    let (index, count) = assert_same_image(&world, nix::unistd::geteuid().is_root());
    assert!(count > 8, "{count} paths");
    let line = |path: &str| {
        let entry = index.find(path.as_bytes()).unwrap()?;
        index.meta().layers[usize::from(entry.layer)].history.clone()
    };
    for (path, beginning) in [
        ("/srv/suid", "RUN rm -r gone"),
        ("/srv/file/now-a-directory", "COPY later"),
        ("/srv/directory", "COPY later"),
        ("/srv/keep", "COPY later"),
        ("/srv/link/x", "RUN rm linked"),
        ("/srv/opaque", "RUN rm linked"),
    ] {
        assert!(line(path).is_some_and(|line| line.starts_with(beginning)), "{path}: {:?}", line(path));
    }
    for path in ["/srv/gone", "/srv/gone/below/b", "/srv/opaque/old", "/srv/opaque/new", "/srv/linked"] {
        assert_eq!(line(path), None, "{path}");
    }
}
