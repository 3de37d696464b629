//! Calls that read an open object: its content in pieces, its extended attributes, its inode flags.
//!
//! In: a handle. Out: what the object has. A size and the kernel's own limits bound each call, because others may own the object.

use super::{CallResult, by_handle, raw, set_flags};
use nix::{errno::Errno, fcntl::OFlag, sys::stat::FileStat};
use rustix::fs::{IFlags, fgetxattr, flistxattr, getxattr, ioctl_getflags, listxattr};
use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

/// A directory as an object, and no link to one.
pub(crate) const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// The kernel's limit for a list of names and for a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const LARGEST: usize = 64 << 10;

/// What shows that a file was replaced or changed: its inode, size, and times of change of content and inode in nanoseconds.
pub(crate) type FileVersion = (u64, u64, i128, i128);

/// The version of a file.
pub(crate) fn version_of(stat: &FileStat) -> FileVersion {
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let modified = nanoseconds(stat.st_mtime, stat.st_mtime_nsec);
    (stat.st_ino, stat.st_size.unsigned_abs(), modified, nanoseconds(stat.st_ctime, stat.st_ctime_nsec))
}

/// Reads a file of `size` bytes in pieces. `false` if it has another size now; it then stops at `size` bytes.
pub(crate) fn each_chunk(
    file: &OwnedFd,
    size: u64,
    mut take: impl FnMut(&[u8]) -> CallResult,
) -> CallResult<bool> {
    let mut chunk = vec![0; CHUNK];
    let mut total = 0_u64;
    loop {
        let length = match nix::unistd::read(file, &mut chunk) {
            Ok(length) => length,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        if length == 0 {
            return Ok(total == size);
        }
        total += length as u64;
        if total > size {
            return Ok(false);
        }
        take(&chunk[..length])?;
    }
}

/// Most bytes of values that are read of one object. The owner of a file may give it hundreds of megabytes on some file systems.
pub(crate) const ATTRIBUTE_BYTES: usize = 1 << 20;

/// Extended attributes: names with their values.
type Attributes = Vec<(OsString, Vec<u8>)>;

/// The extended attributes of an open object: `E2BIG` if they have more than [`ATTRIBUTE_BYTES`]. A file system without them gives none.
pub(crate) fn attributes(file: impl AsFd) -> CallResult<Attributes> {
    let file = file.as_fd();
    read_attributes(|list| flistxattr(file, list), |name, value| fgetxattr(file, name, value))
}

/// The same by a handle, which may be that of a symbolic link.
pub(crate) fn attributes_by_handle(handle: &OwnedFd) -> CallResult<Attributes> {
    let path = by_handle(handle);
    read_attributes(|list| listxattr(&path, list), |name, value| getxattr(&path, name, value))
}

/// Calls `take` with each extended attribute of an open object. At most one value is in memory.
pub(crate) fn each_attribute(file: impl AsFd, take: impl FnMut(&OsStr, &[u8]) -> CallResult) -> CallResult {
    let file = file.as_fd();
    read_each(|list| flistxattr(file, list), |name, value| fgetxattr(file, name, value), take)
}

fn read_attributes(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> CallResult<Attributes> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    read_each(list, get, |name, value| {
        bytes += value.len();
        if bytes > ATTRIBUTE_BYTES {
            return Err(Errno::E2BIG);
        }
        found.push((name.to_owned(), value.to_vec()));
        Ok(())
    })?;
    Ok(found)
}

fn read_each(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
    mut take: impl FnMut(&OsStr, &[u8]) -> CallResult,
) -> CallResult {
    let mut names = vec![0; LARGEST];
    let length = match list(&mut names) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => 0,
        Err(errno) => return Err(raw(errno)),
    };
    let mut value = vec![0; LARGEST];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match get(name, &mut value) {
            Ok(length) => take(OsStr::from_bytes(name), &value[..length])?,
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(raw(errno)),
        }
    }
    Ok(())
}

/// Clears the flags that refuse writers. Returns whether one was set.
pub(crate) fn clear_refusing_flags(file: &OwnedFd) -> CallResult<bool> {
    // The file system has no flags.
    let Ok(flags) = ioctl_getflags(file) else { return Ok(false) };
    let refusing = IFlags::IMMUTABLE | IFlags::APPEND;
    if !flags.intersects(refusing) {
        return Ok(false);
    }
    set_flags(file, flags.difference(refusing))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_many_large_attributes_is_not_read_as_a_whole_and_each_one_can_be_removed_by_its_name() {
        let names: Vec<u8> = (0..64).flat_map(|number| format!("user.{number}\0").into_bytes()).collect();
        let list = |into: &mut [u8]| {
            into[..names.len()].copy_from_slice(&names);
            Ok(names.len())
        };
        let get = |_: &[u8], into: &mut [u8]| Ok(into.len());
        assert_eq!(read_attributes(list, get), Err(Errno::E2BIG));
        let mut all = 0;
        read_each(list, get, |_, _| {
            all += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(all, 64);
    }
}
