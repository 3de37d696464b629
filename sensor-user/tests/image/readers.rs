//! Random archives, read by Holdfast, by the crate `tar` and by GNU tar.
//!
//! Holdfast may refuse an archive that another reader takes: what two readers could read in two ways, links and names that lead out of the
//! archive's own directories, records that it does not know. If it takes an archive, it has to give what the crate or GNU tar gives. The archives
//! come from a generator with a fixed seed, so that each run reads the same ones.

mod generator;

use crate::unpacked::{Shown, on_disk};
use generator::{Generated, Random};
use sensor_model::{
    image::{ImageLimits, ImageTree, Known, LayerError, LayerReader},
    observation::FileType,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    process::{Command, Stdio},
};

/// Most bytes of all contents of an archive. A changed header can ask for any number of zeros.
const MOST: u64 = 1 << 20;

type Tree = BTreeMap<Vec<u8>, Shown>;

/// Why the entries of another reader are not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    /// It refuses the archive.
    Refused,
    /// What the entries make together depends on the file system, or on rules for layers: names twice, links on the way, whiteouts.
    NotFlat,
    /// It has more than [`MOST`] bytes.
    Large,
    /// The map of a sparse file ends before the file. GNU tar then ends the file there. Holdfast adds a hole, as Go's library does, by which
    /// runtimes of containers unpack layers. The crate does not read such maps.
    HoleAtEnd,
}

/// What Holdfast reads, and the paths that share an inode. Directories that no entry names are left out.
fn ours(archive: &[u8], random: &mut Random) -> Result<(Tree, Vec<Vec<u8>>), LayerError> {
    let limits = ImageLimits { bytes: archive.len() as u64 + MOST, ..ImageLimits::default() };
    let mut tree = ImageTree::new(limits);
    let mut reader = LayerReader::begin(&mut tree);
    let mut left = archive;
    while !left.is_empty() {
        let length = usize::try_from(random.below(3000)).unwrap() + 1;
        let (piece, rest) = left.split_at(length.min(left.len()));
        reader.push(piece, &mut tree)?;
        left = rest;
    }
    reader.finish()?;
    let (mut found, mut linked) = (Tree::new(), Vec::new());
    let each: Result<_, ()> = tree.each(|path, entry| {
        if entry.links != 0 {
            linked.push(path.to_vec());
        }
        if entry.known == Known::All {
            // Extended attributes are not compared.
            found.insert(path.to_vec(), Shown { xattrs: Vec::new(), ..Shown::of(entry) });
        }
        Ok(())
    });
    each.unwrap();
    Ok((found, linked))
}

/// A path with one slash before each name.
fn flat(path: &[u8]) -> Result<Vec<u8>, Left> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let mut flat = Vec::new();
    for name in names {
        if name == b".." || name.starts_with(b".wh.") || name.contains(&0) {
            return Err(Left::NotFlat);
        }
        flat.push(b'/');
        flat.extend_from_slice(name);
    }
    Ok(if flat.is_empty() { b"/".to_vec() } else { flat })
}

/// What the crate reads.
fn of_crate(bytes: &[u8]) -> Result<Tree, Left> {
    let refused = |_: std::io::Error| Left::Refused;
    let mut archive = tar::Archive::new(bytes);
    let mut found = Tree::new();
    for entry in archive.entries().map_err(refused)? {
        let mut entry = entry.map_err(refused)?;
        let path = flat(&entry.path_bytes())?;
        let header = entry.header().clone();
        let number =
            |value: std::io::Result<u64>| u32::try_from(value.map_err(refused)?).map_err(|_| Left::Refused);
        let mut shown = Shown {
            file_type: FileType::Regular,
            mode: header.mode().map_err(refused)? & 0o7777,
            owner: (number(header.uid())?, number(header.gid())?),
            size: 0,
            sha256: None,
            target: None,
            device: None,
            xattrs: Vec::new(),
        };
        let target = |entry: &tar::Entry<'_, &[u8]>| match entry.link_name_bytes() {
            Some(target) => Ok(target.into_owned()),
            None => Err(Left::Refused),
        };
        let device = || {
            let numbers = (header.device_major().map_err(refused)?, header.device_minor().map_err(refused)?);
            Ok((numbers.0.unwrap_or(0).into(), numbers.1.unwrap_or(0).into()))
        };
        match header.entry_type() {
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                let mut content = Vec::new();
                (&mut entry).take(MOST + 1).read_to_end(&mut content).map_err(refused)?;
                if content.len() as u64 > MOST {
                    return Err(Left::Large);
                }
                shown.size = content.len() as u64;
                shown.sha256 = Some(Sha256::digest(&content).into());
            }
            tar::EntryType::Directory => shown.file_type = FileType::Directory,
            tar::EntryType::Symlink => {
                (shown.file_type, shown.mode, shown.target) =
                    (FileType::Symlink, 0o777, Some(target(&entry)?));
            }
            tar::EntryType::Link => {
                let linked = found.get(&flat(&target(&entry)?)?).ok_or(Left::NotFlat)?;
                // Holdfast follows the runtimes of containers, which give the inode the link's mode and owner.
                if (linked.mode, linked.owner) != (shown.mode, shown.owner) {
                    return Err(Left::NotFlat);
                }
                shown = linked.clone();
            }
            tar::EntryType::Char => {
                (shown.file_type, shown.device) = (FileType::CharacterDevice, Some(device()?));
            }
            tar::EntryType::Block => {
                (shown.file_type, shown.device) = (FileType::BlockDevice, Some(device()?));
            }
            tar::EntryType::Fifo => shown.file_type = FileType::Fifo,
            _ => return Err(Left::Refused),
        }
        let mut above = &path[..];
        while let Some(end) = above.iter().rposition(|byte| *byte == b'/').filter(|end| *end > 0) {
            above = &above[..end];
            if found.get(above).is_some_and(|shown| shown.file_type != FileType::Directory) {
                return Err(Left::NotFlat);
            }
        }
        if found.keys().any(|known| known.starts_with(&[&path[..], b"/"].concat()))
            && shown.file_type != FileType::Directory
            || found.insert(path, shown).is_some()
        {
            return Err(Left::NotFlat);
        }
    }
    Ok(found)
}

/// What GNU tar unpacks, of the paths that one of the others has, or that are no directories.
fn of_gnu(archive: &[u8], like: &Tree) -> Result<Tree, Left> {
    let directory = tempfile::tempdir().unwrap();
    let is_root = nix::unistd::geteuid().is_root();
    let owner = if is_root { "--same-owner" } else { "--no-same-owner" };
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--file=-", "--preserve-permissions", "--numeric-owner", owner, "-C"]);
    unpack.arg(directory.path()).env("LC_ALL", "C");
    let mut child =
        unpack.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("GNU tar");
    // It closes its input when it refuses the archive.
    let _ = child.stdin.take().unwrap().write_all(archive);
    if !child.wait().unwrap().success() {
        return Err(Left::Refused);
    }
    let mut found = on_disk(directory.path());
    found.retain(|path, shown| like.contains_key(path) || shown.file_type != FileType::Directory);
    for (path, shown) in &mut found {
        shown.xattrs.clear();
        if let Some(like) = like.get(path).filter(|_| !is_root) {
            shown.owner = like.owner;
        }
    }
    Ok(found)
}

/// How the readers compare on an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Compared {
    /// Holdfast refuses it.
    WeRefuse,
    /// The crate reads the same.
    LikeCrate,
    /// The crate refuses it or reads something else, and GNU tar reads the same.
    LikeGnu,
    /// No other reader can be compared.
    Neither(Left),
}

/// Compares the readers. A reader that gives something else than both others is a failure.
fn compare(generated: &Generated, random: &mut Random, always_gnu: bool) -> Compared {
    let archive = &generated.bytes;
    let (ours, linked) = match ours(archive, random) {
        Ok(read) => read,
        // The generator makes no archive that Holdfast should refuse.
        Err(error) => {
            assert!(!always_gnu, "archive {}: {error}", generated.number);
            return Compared::WeRefuse;
        }
    };
    let theirs = of_crate(archive);
    if let Err(left @ (Left::NotFlat | Left::Large)) = theirs {
        return Compared::Neither(left);
    }
    let is_like_crate = theirs.as_ref() == Ok(&ours);
    // Without the right to make devices, GNU tar fails.
    let has_devices = ours.values().any(|shown| shown.device.is_some());
    if is_like_crate && (!always_gnu || has_devices) {
        return Compared::LikeCrate;
    }
    let mut like = without_set_group(ours.clone());
    let gnu = of_gnu(archive, &ours).map(without_set_group);
    for path in &linked {
        // GNU tar leaves mode and owner of an inode alone when it adds a link; runtimes of containers set those of the link.
        if let (Some(ours), Some(Some(gnu))) =
            (like.get_mut(path), gnu.as_ref().ok().map(|gnu| gnu.get(path)))
        {
            (ours.mode, ours.owner) = (gnu.mode, gnu.owner);
        }
    }
    match gnu {
        Ok(gnu) if gnu == like => Compared::LikeGnu,
        _ if is_like_crate => Compared::LikeCrate,
        Err(left) => Compared::Neither(left),
        Ok(gnu) if differ_in_holes_at_ends(&like, &gnu) => Compared::Neither(Left::HoleAtEnd),
        Ok(gnu) => panic!(
            "archive {}: Holdfast, the crate and GNU tar read\n{}\n{}\n{}\nwith the records\n{}",
            generated.number,
            but(&like, &gnu),
            theirs.map_or_else(|left| format!("{left:?}"), |theirs| but(&theirs, &like)),
            but(&gnu, &like),
            generated.records(),
        ),
    }
}

/// The tree without the bit by which a directory passes its group on. GNU tar leaves it on a directory that got it from the one above.
fn without_set_group(mut tree: Tree) -> Tree {
    for shown in tree.values_mut().filter(|shown| shown.file_type == FileType::Directory) {
        shown.mode &= !0o2000;
    }
    tree
}

/// Whether trees differ only in files that are longer in the first one.
fn differ_in_holes_at_ends(tree: &Tree, other: &Tree) -> bool {
    tree.keys().eq(other.keys())
        && tree.iter().zip(other.values()).all(|((_, ours), theirs)| {
            let is_longer = ours.file_type == FileType::Regular && ours.size > theirs.size;
            ours == theirs
                || is_longer && *ours == Shown { size: ours.size, sha256: ours.sha256, ..theirs.clone() }
        })
}

/// The entries of a tree that another one does not have.
fn but(tree: &Tree, other: &Tree) -> String {
    let own = tree.iter().filter(|(path, shown)| other.get(*path) != Some(*shown));
    let lines: Vec<String> =
        own.map(|(path, shown)| format!("  {} {shown:?}", path.escape_ascii())).collect();
    lines.join("\n")
}

#[test]
fn archives_of_every_format_are_read_as_gnu_tar_or_the_crate_reads_them() {
    let mut random = Random::new(1);
    let mut compared: BTreeMap<Compared, u32> = BTreeMap::new();
    for number in 0..150 {
        let generated = Generated::new(number, &mut random);
        *compared.entry(compare(&generated, &mut random, true)).or_default() += 1;
    }
    assert!(compared.get(&Compared::LikeGnu).is_some_and(|count| *count >= 100), "{compared:?}");
}

#[test]
fn changed_archives_are_refused_or_read_as_another_reader_reads_them() {
    let mut random = Random::new(2);
    let mut compared: BTreeMap<Compared, u32> = BTreeMap::new();
    for number in 0..600 {
        let generated = Generated::new(number, &mut random).changed(&mut random);
        *compared.entry(compare(&generated, &mut random, false)).or_default() += 1;
    }
    let count = |wanted: &[Compared]| wanted.iter().filter_map(|one| compared.get(one)).sum::<u32>();
    assert!(count(&[Compared::LikeCrate, Compared::LikeGnu]) >= 100, "{compared:?}");
    assert!(count(&[Compared::WeRefuse]) >= 100, "{compared:?}");
}
