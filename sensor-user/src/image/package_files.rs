//! The files of dpkg's packages, read while their index is made.
//!
//! In: what the packages have at their paths, and the index before. Out: SHA-256, size, mode, owner and capabilities of each file that has the
//! MD5 of dpkg's database, and the files that do not have it. It reads each file once, in pieces. It follows no link at the path, opens
//! nothing but regular files, and takes no content of a file that changes meanwhile.

use super::index::ImageIndex;
use crate::{
    observation::{Observer, resolve::HANDLE},
    packages::PackageContents,
    sys::{self, version_of},
};
use md5::{Digest as _, Md5};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    libc,
    sys::stat::{FileStat, fstat},
};
use rustix::{fs::fgetxattr, io::Errno as CallErrno};
use sensor_model::{
    image::{ImageEntry, UnmatchedFiles, UnmatchedReason},
    observation::FileType,
    xattr,
};
use sha2::Sha256;
use std::{
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
};

/// How often a file is read that changes meanwhile.
const ATTEMPTS: usize = 4;
/// The largest file that is read. A service can own a file of a package, and give it any length.
const LARGEST: u64 = 4 << 30;
/// Room for the attribute of capabilities, of which the kernel takes 24 bytes.
const CAPABILITIES: usize = 256;

/// Adds what each file of dpkg is now, if it has the MD5 of dpkg's database. For another file it adds what the index before has, if that
/// found the same MD5: otherwise a drift would end as soon as the index is made anew. It calls `progress` before each file, with the number
/// of files that are done, and of all files.
pub(super) fn read_files(
    contents: &mut PackageContents,
    observer: &Observer,
    before: Option<&ImageIndex>,
    progress: &mut dyn FnMut(u64, u64),
) -> UnmatchedFiles {
    let of_dpkg = contents.of_dpkg;
    // A configuration file is the admin's to change, and its package does not say what it should be.
    let is_read =
        |entry: &ImageEntry| usize::from(entry.layer) < of_dpkg && entry.md5.is_some() && !entry.config;
    let files = contents.entries.values().filter(|entry| is_read(entry)).count() as u64;
    let mut unmatched = UnmatchedFiles::default();
    let wanted = contents.entries.iter_mut().filter(|(_, entry)| is_read(entry));
    for (done, (path, entry)) in (0..).zip(wanted) {
        progress(done, files);
        let reason = match read(observer, Path::new(OsStr::from_bytes(path.bytes()))) {
            Ok(file) if entry.md5 == file.md5 => {
                *entry = ImageEntry { layer: entry.layer, may_be_missing: entry.may_be_missing, ..file };
                continue;
            }
            Ok(_) => UnmatchedReason::Content,
            Err(UnmatchedReason::Missing) if entry.may_be_missing => continue,
            Err(reason) => reason,
        };
        let kept = before.is_some_and(|index| keep(index, path.bytes(), entry));
        unmatched.add(path.bytes(), contents.packages.get(usize::from(entry.layer)), reason, kept);
    }
    unmatched
}

/// Gives the entry what an index has of a file with the same MD5. `false` if the index has no such file.
fn keep(index: &ImageIndex, path: &[u8], entry: &mut ImageEntry) -> bool {
    let found = index.find(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "Cannot look a file of a package up in the index before.");
        None
    });
    let is_same = |old: &ImageEntry| old.md5 == entry.md5 && old.sha256.is_some();
    let Some(old) = found.filter(is_same) else { return false };
    *entry = ImageEntry { layer: entry.layer, may_be_missing: entry.may_be_missing, config: false, ..old };
    true
}

/// The regular file at a path.
fn read(observer: &Observer, path: &Path) -> Result<ImageEntry, UnmatchedReason> {
    let mut found = Err(UnmatchedReason::Changing);
    for _ in 0..ATTEMPTS {
        found = attempt(observer, path);
        if !matches!(found, Err(UnmatchedReason::Changing)) {
            break;
        }
    }
    found
}

fn attempt(observer: &Observer, path: &Path) -> Result<ImageEntry, UnmatchedReason> {
    let handle = observer.root().open_at(path, HANDLE | OFlag::O_NOFOLLOW).map_err(reason)?;
    if fstat(&handle).map_err(reason)?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(UnmatchedReason::Type);
    }
    // By the handle: whatever takes the name meanwhile is not opened.
    let file = observer.open_again(handle).map_err(reason)?;
    let stat = fstat(&file).map_err(reason)?;
    let size = stat.st_size.unsigned_abs();
    if size > LARGEST {
        return Err(UnmatchedReason::Large);
    }
    let (mut md5, mut sha256) = (Md5::new(), Sha256::new());
    let is_whole = sys::each_chunk(&file, size, |chunk| {
        md5.update(chunk);
        sha256.update(chunk);
        Ok(())
    });
    let is_whole = is_whole.map_err(reason)?;
    let xattrs = capabilities(&file);
    let now = fstat(&file).map_err(reason)?;
    if !is_whole || version_of(&now) != version_of(&stat) {
        return Err(UnmatchedReason::Changing);
    }
    Ok(entry(&stat, md5.finalize().into(), sha256.finalize().into(), xattrs))
}

/// A file that was read.
fn entry(stat: &FileStat, md5: [u8; 16], sha256: [u8; 32], xattrs: Vec<(String, String)>) -> ImageEntry {
    ImageEntry {
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size.unsigned_abs(),
        sha256: Some(sha256),
        md5: Some(md5),
        xattrs,
        ..ImageEntry::of_root(FileType::Regular, stat.st_mode)
    }
}

/// The capabilities of a program in the form of an index. They are unknown if they cannot be read.
fn capabilities(file: &OwnedFd) -> Vec<(String, String)> {
    let mut value = [0; CAPABILITIES];
    let described = match fgetxattr(file, xattr::CAPABILITY, &mut value[..]) {
        Ok(length) => xattr::describe(xattr::CAPABILITY, &value[..length]),
        Err(CallErrno::NODATA | CallErrno::OPNOTSUPP | CallErrno::NOSYS) => return Vec::new(),
        Err(_) => xattr::UNKNOWN.to_owned(),
    };
    vec![(xattr::CAPABILITY.to_owned(), described)]
}

/// Why a file was not read.
fn reason(errno: Errno) -> UnmatchedReason {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR => UnmatchedReason::Missing,
        Errno::EAGAIN => UnmatchedReason::Changing,
        _ => UnmatchedReason::Unreadable,
    }
}

#[cfg(test)]
mod tests;
