//! Owner, mode, label, extended attributes and inode flags of an open object.
//!
//! In: a handle and the metadata that the object is to have. Out: the changes. Values that the object already has are not written.

use super::error::{DiskError, DiskRefusal};
use crate::sys::{self, CallError};
use nix::{
    errno::Errno,
    sys::stat::{FileStat, fstat},
};
use sensor_model::{journal::Metadata, selinux::ATTRIBUTE, xattr};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// Metadata that an object is to have; `None` for parts that stay unchanged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewMetadata<'a> {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) xattrs: Xattrs<'a>,
}

/// Extended attributes that an object is to have.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Xattrs<'a> {
    /// These, by name, with values in hexadecimal digits. The object may also have attributes that the kernel writes itself.
    Exactly(&'a BTreeMap<String, String>),
    /// No attribute that is drift; and this label, if there is one.
    Declared { label: Option<&'a str> },
    /// Those that the object has, because nothing says which ones it should have; and this label, if there is one.
    Unchanged { label: Option<&'a str> },
}

impl<'a> NewMetadata<'a> {
    /// All of the metadata of a state.
    pub(crate) fn exactly(metadata: &'a Metadata) -> Self {
        let Metadata { mode, uid, gid, xattrs } = metadata;
        Self { mode: Some(*mode), uid: Some(*uid), gid: Some(*gid), xattrs: Xattrs::Exactly(xattrs) }
    }
}

impl Xattrs<'_> {
    /// Whether an attribute of an object stays.
    fn keeps(self, name: &str, value: &[u8]) -> bool {
        match self {
            Self::Exactly(wanted) => wanted.contains_key(name) || xattr::is_ignored(name, ""),
            Self::Declared { .. } => xattr::is_ignored(name, &xattr::describe(name, value)),
            Self::Unchanged { .. } => true,
        }
    }
}

/// One change of an object's metadata, in the words of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The flags that refuse writers were cleared.
    Flags,
    /// The owner or the group was set.
    Owner,
    /// An extended attribute was removed.
    AttributeRemoved(String),
    /// An extended attribute was set.
    Set(String),
    /// The mode was set.
    Mode(u32),
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flags => f.write_str("inode flags cleared"),
            Self::Owner => f.write_str("owner set"),
            Self::AttributeRemoved(name) => write!(f, "extended attribute {name} removed"),
            Self::Set(name) if name == ATTRIBUTE => f.write_str("label set"),
            Self::Set(name) => write!(f, "extended attribute {name} set"),
            Self::Mode(mode) => write!(f, "mode set to {mode:04o}"),
        }
    }
}

/// Sets the metadata of an object that may have flags that refuse writers.
pub(crate) fn set_existing(
    file: &OwnedFd,
    path: &Path,
    wanted: &NewMetadata<'_>,
) -> Result<Vec<Changed>, DiskError> {
    let mut changed = Vec::new();
    if clear_flags(file, path)? {
        changed.push(Changed::Flags);
    }
    changed.extend(set(file, path, wanted)?);
    Ok(changed)
}

/// The extended attributes that an object has.
#[derive(Default)]
struct Present {
    unwanted: Vec<OsString>,
    /// The values of those that may be wanted: each that the state names, and the label.
    kept: BTreeMap<String, Vec<u8>>,
}

impl Present {
    fn of(file: &OwnedFd, wanted: Xattrs<'_>) -> Result<Self, Errno> {
        let mut found = Self::default();
        sys::each_attribute(file, |name, value| {
            let text = name.to_string_lossy();
            let may_be_wanted = match wanted {
                Xattrs::Exactly(wanted) => wanted.contains_key(&*text),
                Xattrs::Declared { .. } | Xattrs::Unchanged { .. } => text == ATTRIBUTE,
            };
            if may_be_wanted {
                found.kept.insert(text.clone().into_owned(), value.to_vec());
            }
            if !wanted.keeps(&text, value) {
                found.unwanted.push(name.to_owned());
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Sets the metadata of an open object.
pub(crate) fn set(file: &OwnedFd, path: &Path, wanted: &NewMetadata<'_>) -> Result<Vec<Changed>, DiskError> {
    let failed = |operation| move |errno| CallError::new(path, operation, errno);
    let mut changed = Vec::new();
    if own(file, wanted.uid, wanted.gid).map_err(failed("change the owner"))? {
        changed.push(Changed::Owner);
    }
    let Present { unwanted, kept } = Present::of(file, wanted.xattrs).map_err(failed("read attributes"))?;
    for name in unwanted {
        match sys::remove_attribute(file, &name) {
            Ok(()) => changed.push(Changed::AttributeRemoved(name.to_string_lossy().into_owned())),
            Err(Errno::ENODATA) => {}
            Err(errno) => return Err(failed("remove an extended attribute")(errno).into()),
        }
    }
    match wanted.xattrs {
        Xattrs::Exactly(wanted) => {
            for (name, digits) in wanted {
                let value =
                    hex::decode(digits).map_err(|_| DiskError::refused(path, DiskRefusal::BadAttribute))?;
                if kept.get(name) != Some(&value) {
                    sys::set_attribute(file, name, &value).map_err(failed("set an extended attribute"))?;
                    changed.push(Changed::Set(name.clone()));
                }
            }
        }
        Xattrs::Declared { label: Some(label) } | Xattrs::Unchanged { label: Some(label) }
            if kept.get(ATTRIBUTE).is_none_or(|found| label_text(found) != label) =>
        {
            set_label(file, path, label)?;
            changed.push(Changed::Set(ATTRIBUTE.to_owned()));
        }
        Xattrs::Declared { .. } | Xattrs::Unchanged { .. } => {}
    }
    // The mode is set last: chown(2) clears the setuid bits, and an access control list changes the mode.
    if let Some(mode) = wanted.mode {
        let stat = fstat(file).map_err(failed("stat"))?;
        if stat.st_mode & 0o7777 != mode {
            sys::mode(file, mode).map_err(failed("change the mode"))?;
            changed.push(Changed::Mode(mode));
        }
    }
    Ok(changed)
}

/// Sets the owner and the group if they differ. Returns whether one did.
fn own(file: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> Result<bool, Errno> {
    let stat = fstat(file)?;
    let uid = uid.filter(|uid| *uid != stat.st_uid);
    let gid = gid.filter(|gid| *gid != stat.st_gid);
    if uid.is_none() && gid.is_none() {
        return Ok(false);
    }
    sys::own(file, uid, gid)?;
    Ok(true)
}

/// Clears the flags that refuse writers. Returns whether one was set.
pub(crate) fn clear_flags(file: &OwnedFd, path: &Path) -> Result<bool, DiskError> {
    Ok(sys::clear_refusing_flags(file)
        .map_err(|errno| CallError::new(path, "clear the immutable or append-only flag", errno))?)
}

/// Sets the SELinux label.
pub(crate) fn set_label(file: &OwnedFd, path: &Path, label: &str) -> Result<(), DiskError> {
    Ok(sys::set_attribute(file, ATTRIBUTE, &label_value(label))
        .map_err(|errno| CallError::new(path, "set the label", errno))?)
}

/// The attributes of an open object that a copy of it gets, by name, with values in hexadecimal digits. The label is not among them, nor what
/// the kernel writes itself.
pub(crate) fn copied_xattrs(file: impl AsFd) -> Result<BTreeMap<String, String>, Errno> {
    let copied = xattrs(file)?.into_iter().filter(|(name, _)| !xattr::is_ignored(name, ""));
    Ok(copied.map(|(name, value)| (name, hex::encode(value))).collect())
}

/// Mode, owner and attributes of an open object, and its `stat`.
pub(crate) fn read(file: impl AsFd) -> Result<(Metadata, FileStat), Errno> {
    let stat = fstat(file.as_fd())?;
    let xattrs = xattrs(file)?.into_iter().map(|(name, value)| (name, hex::encode(value))).collect();
    Ok((Metadata { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, xattrs }, stat))
}

fn xattrs(file: impl AsFd) -> Result<BTreeMap<String, Vec<u8>>, Errno> {
    let xattrs = sys::attributes(file)?.into_iter();
    Ok(xattrs.map(|(name, value)| (name.to_string_lossy().into_owned(), value)).collect())
}

/// The kernel stores a label with a zero byte at its end, and returns it in that form.
pub(crate) fn label_value(label: &str) -> Vec<u8> {
    format!("{label}\0").into_bytes()
}

/// A label without the zero byte at its end.
pub(super) fn label_text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}
