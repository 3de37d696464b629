//! `/usr/etc` of a host that booted an encapsulated ostree commit.
//!
//! In: the tree of such an image, which has `/etc` and no `/usr/etc`. Out: its entries, with each one of `/etc` once more in `/usr/etc`: the importer
//! of such an image puts `/etc` there, and the host's `/etc` begins as a copy of it. In `/etc` the entries are marked as configuration files.

use super::write::Entries;
use sensor_model::{
    image::{ImageEntry, ImageTree},
    os::PristineEtc,
};
use std::{os::unix::ffi::OsStrExt as _, path::Path};

/// The entries of an image, and those that the importer makes of them.
pub(super) struct WithShippedEtc<'a>(&'a ImageTree);

impl<'a> WithShippedEtc<'a> {
    /// `None` if the image has no `/etc`, has no `/usr`, or has a `/usr/etc` of its own.
    pub(super) fn of(tree: &'a ImageTree) -> Option<Self> {
        let has = |path: &Path| tree.contains(path.as_os_str().as_bytes());
        let shipped = PristineEtc::Ostree.directory();
        let is_to_be_added = has(Path::new("/etc")) && has(Path::new("/usr")) && !has(shipped);
        is_to_be_added.then_some(Self(tree))
    }
}

impl Entries for WithShippedEtc<'_> {
    fn each<E>(&self, mut take: impl FnMut(&[u8], &ImageEntry) -> Result<(), E>) -> Result<u64, E> {
        let shipped = PristineEtc::Ostree.directory().as_os_str().as_bytes();
        // Entries come in the order of their names, so those of `/etc` come before `/usr`.
        let mut copies: Vec<(Vec<u8>, ImageEntry)> = Vec::new();
        let mut added = 0;
        let count = self.0.each(|path, entry| {
            if names(path).gt(names(shipped)) {
                added += put(&mut copies, &mut take)?;
            }
            match path.strip_prefix(b"/etc").filter(|rest| matches!(rest.first(), None | Some(b'/'))) {
                Some(rest) => {
                    copies.push(([shipped, rest].concat(), entry.clone()));
                    take(path, &ImageEntry { config: true, ..entry.clone() })
                }
                None => take(path, entry),
            }
        })?;
        added += put(&mut copies, &mut take)?;
        Ok(count + added)
    }
}

/// Gives the copies away. Returns their number.
fn put<E>(
    copies: &mut Vec<(Vec<u8>, ImageEntry)>,
    take: &mut impl FnMut(&[u8], &ImageEntry) -> Result<(), E>,
) -> Result<u64, E> {
    let number = copies.len() as u64;
    copies.drain(..).try_for_each(|(path, entry)| take(&path, &entry))?;
    Ok(number)
}

/// The names of a path.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}
