//! Owner, mode, label, extended attributes and inode flags of an object that is open.

use super::{
    RepairError,
    place::{bits, failed, own},
};
use nix::{
    errno::Errno,
    sys::stat::{fchmod, fstat},
};
use rustix::fs::{
    IFlags, XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, ioctl_getflags, ioctl_setflags,
    setxattr,
};
use sensor_model::{selinux::ATTRIBUTE, xattr};
use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

/// The largest list of names and the largest value that the kernel gives.
const LARGEST: usize = 64 << 10;

/// What an object's metadata should be; `None` for what stays as it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metadata<'a> {
    pub(super) mode: Option<u32>,
    pub(super) user: Option<u32>,
    pub(super) group: Option<u32>,
    pub(super) label: Option<&'a str>,
}

/// Makes the metadata of an open object what it should be; says what was done.
pub(super) fn apply(file: &OwnedFd, path: &Path, wanted: Metadata<'_>) -> Result<Vec<String>, RepairError> {
    let mut actions = Vec::new();
    if clear_flags(file, path)? {
        actions.push("inode flags cleared".to_owned());
    }
    // A change of owner takes setuid bits away and an access control list is part of the mode: so the
    // mode comes last.
    if own(file, wanted.user, wanted.group).map_err(|errno| failed(path, "change the owner", errno))? {
        actions.push("owner set".to_owned());
    }
    for name in remove_attributes(file, path)? {
        actions.push(format!("extended attribute {name} removed"));
    }
    if let Some(label) = wanted.label
        && self::label(file).as_deref() != Some(label)
    {
        set_label(file, path, label)?;
        actions.push("label set".to_owned());
    }
    if let Some(mode) = wanted.mode {
        let stat = fstat(file).map_err(|errno| failed(path, "stat", errno))?;
        if stat.st_mode & 0o7777 != mode {
            fchmod(file, bits(mode)).map_err(|errno| failed(path, "change the mode", errno))?;
            actions.push(format!("mode set to {mode:04o}"));
        }
    }
    Ok(actions)
}

/// Takes the flags away that keep writers out. Says whether any was set.
pub(super) fn clear_flags(file: &OwnedFd, path: &Path) -> Result<bool, RepairError> {
    // A file system without flags has none set.
    let Ok(flags) = ioctl_getflags(file) else { return Ok(false) };
    let barred = IFlags::IMMUTABLE | IFlags::APPEND;
    if !flags.intersects(barred) {
        return Ok(false);
    }
    ioctl_setflags(file, flags.difference(barred))
        .map_err(|errno| failed(path, "clear the immutable or append-only flag", raw(errno)))?;
    Ok(true)
}

/// Removes every extended attribute that a MachineConfig cannot declare and that counts as drift; tells
/// their names.
pub(super) fn remove_attributes(file: &OwnedFd, path: &Path) -> Result<Vec<String>, RepairError> {
    let mut list = vec![0; LARGEST];
    let length = match flistxattr(file, list.as_mut_slice()) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(Vec::new()),
        Err(errno) => return Err(failed(path, "list extended attributes", raw(errno))),
    };
    let mut removed = Vec::new();
    for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let text = String::from_utf8_lossy(name).into_owned();
        if text == ATTRIBUTE {
            continue;
        }
        let mut value = vec![0; LARGEST];
        let Ok(length) = fgetxattr(file, name, value.as_mut_slice()) else { continue };
        if xattr::is_ignored(&text, &xattr::describe(&text, &value[..length])) {
            continue;
        }
        match fremovexattr(file, name) {
            Ok(()) => removed.push(text),
            Err(rustix::io::Errno::NODATA) => {}
            Err(errno) => return Err(failed(path, "remove an extended attribute", raw(errno))),
        }
    }
    Ok(removed)
}

/// The SELinux label, where there is one.
pub(super) fn label(file: &OwnedFd) -> Option<String> {
    let mut value = vec![0; 4096];
    let length = fgetxattr(file, ATTRIBUTE, value.as_mut_slice()).ok()?;
    let text = String::from_utf8_lossy(&value[..length]);
    Some(text.trim_end_matches('\0').to_owned())
}

/// Sets the SELinux label.
pub(super) fn set_label(file: &OwnedFd, path: &Path, label: &str) -> Result<(), RepairError> {
    fsetxattr(file, ATTRIBUTE, &value(label), XattrFlags::empty())
        .map_err(|errno| failed(path, "set the label", raw(errno)))
}

/// Sets the SELinux label of a symbolic link. It cannot be opened, so it is reached through its handle's name: that leads to
/// the link itself, whatever has its name by then.
pub(super) fn set_link_label(link: &OwnedFd, path: &Path, label: &str) -> Result<(), RepairError> {
    let place = format!("/proc/self/fd/{}", link.as_raw_fd());
    setxattr(place, ATTRIBUTE, &value(label), XattrFlags::empty())
        .map_err(|errno| failed(path, "set the label", raw(errno)))
}

/// The kernel keeps labels with a zero byte at their end, and gives them back so.
fn value(label: &str) -> Vec<u8> {
    format!("{label}\0").into_bytes()
}

fn raw(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}
