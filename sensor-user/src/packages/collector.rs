//! What the packages of a host have at their paths, collected.
//!
//! In: packages, and what each has at its paths. Out: one entry for each path, in the order of an index, with the package that owns it.

use super::{merged::MergedDirectories, unread::Unread};
use sensor_model::{
    host::accounts::Accounts,
    image::{ImageEntry, Package},
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::Path,
};

/// Most packages of a host. The number of a package in an index has 16 bits.
const MOST_PACKAGES: usize = 1 << 16;

/// What packages have at their paths.
#[derive(Debug, Default)]
pub(crate) struct PackageContents {
    /// The packages. The layer of an entry is a place in this list.
    pub(crate) packages: Vec<Package>,
    /// How many of the packages are dpkg's. They are the first ones.
    pub(crate) of_dpkg: usize,
    /// What manages them: `dpkg`, `rpm`.
    pub(crate) managers: Vec<&'static str>,
    /// The entries. A directory is before what is in it.
    pub(crate) entries: BTreeMap<OrderedPath, ImageEntry>,
}

/// A path, ordered by its names: a directory is before what is in it, and that before `DIRECTORY-x`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderedPath(Vec<u8>);

impl OrderedPath {
    /// The path.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }
}

impl Ord for OrderedPath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.names().cmp(other.names())
    }
}

impl PartialOrd for OrderedPath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Takes packages one by one.
pub(super) struct Collector {
    merged: MergedDirectories,
    users: Accounts,
    groups: Accounts,
    found: PackageContents,
}

impl Collector {
    /// For a host with these links of directories, users and groups.
    pub(super) fn new(merged: MergedDirectories, users: Accounts, groups: Accounts) -> Self {
        Self { merged, users, groups, found: PackageContents::default() }
    }

    /// Says that a manager's database was read.
    pub(super) fn read(&mut self, manager: &'static str) {
        self.found.managers.push(manager);
    }

    /// Says that the packages so far are dpkg's.
    pub(super) fn end_of_dpkg(&mut self) {
        self.found.of_dpkg = self.found.packages.len();
    }

    /// What was collected.
    pub(super) fn finish(self) -> PackageContents {
        self.found
    }

    /// Adds a package; gives its place.
    pub(super) fn package(&mut self, package: Package, database: &Path) -> Result<u16, Unread> {
        let place = self.found.packages.len();
        let number = u16::try_from(place).ok().filter(|_| place < MOST_PACKAGES);
        let number = number.ok_or_else(|| Unread::new(database, "it has more than 65,536 packages"))?;
        self.found.packages.push(package);
        Ok(number)
    }

    /// Adds what a package has at a path. Of two packages with one path that which knows more of it is taken, and else the first.
    pub(super) fn add(&mut self, path: &[u8], entry: ImageEntry) {
        let path = Path::new(OsStr::from_bytes(path));
        if !path.is_absolute() {
            return;
        }
        // Without a slash at the end, and without the dot of the root directory's line in dpkg's lists.
        let path = self.merged.on_disk(&path.components().collect::<std::path::PathBuf>());
        let known = |entry: &ImageEntry| {
            (entry.sha256.is_some() || entry.md5.is_some(), std::cmp::Reverse(entry.known))
        };
        let path = OrderedPath(path.into_os_string().into_vec());
        match self.found.entries.get_mut(&path) {
            Some(old) if known(&entry) > known(old) => *old = entry,
            Some(_) => {}
            None => drop(self.found.entries.insert(path, entry)),
        }
    }

    /// The number of a user of the host.
    pub(super) fn uid(&self, name: &[u8]) -> Option<u32> {
        std::str::from_utf8(name).ok().and_then(|name| self.users.ids.get(name).copied())
    }

    /// The number of a group of the host.
    pub(super) fn gid(&self, name: &[u8]) -> Option<u32> {
        std::str::from_utf8(name).ok().and_then(|name| self.groups.ids.get(name).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_before_what_is_in_it_and_that_before_names_that_begin_alike() {
        let path = |text: &str| OrderedPath(text.as_bytes().to_vec());
        let mut paths = ["/a-b", "/a/c/d", "/a", "/a/c", "/", "/a/b"].map(path);
        paths.sort();
        let sorted: Vec<&[u8]> = paths.iter().map(OrderedPath::bytes).collect();
        assert_eq!(sorted, [&b"/"[..], b"/a", b"/a/b", b"/a/c", b"/a/c/d", b"/a-b"]);
    }
}
