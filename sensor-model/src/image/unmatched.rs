//! Files of dpkg's packages that do not have the MD5 of its database, when an index of the packages is made.
//!
//! In: the path, the package and the reason of each such file. Out: their number, and the first of them.

use super::reference::Package;
use sensor_protocol::names;
use serde::{Deserialize, Serialize};

/// Most files that are listed.
const MOST: usize = 1000;

names! {
    /// Why a file of a package does not have the MD5 of dpkg's database.
    pub enum UnmatchedReason {
        /// Its content has another MD5.
        Content = "it does not have the MD5 of its package",
        /// It is missing.
        Missing = "it is missing",
        /// A link, a directory or another object is in its place.
        Type = "it is no regular file",
        /// A process wrote into it each time that it was read.
        Changing = "it changed while it was read",
        /// It is larger than any file of a package.
        Large = "it is larger than 4 GiB, and was not read",
        /// It cannot be opened or read.
        Unreadable = "it cannot be read",
    }
}

/// A file of a package of dpkg that does not have the MD5 of dpkg's database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UnmatchedFile {
    /// Its path on the disk.
    pub path: String,
    /// The package that owns it.
    pub package: Package,
    /// Why it does not have the MD5.
    pub reason: UnmatchedReason,
    /// The index has its SHA-256, mode and owner from the index before, which found the file with this MD5. So a rule with `image: true` watches
    /// it. If false, the index has the MD5 alone, and no rule watches the file.
    pub kept: bool,
}

/// The files of packages of dpkg that do not have the MD5 of dpkg's database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UnmatchedFiles {
    /// How many there are.
    pub count: u64,
    /// Of how many of them the index has SHA-256, mode and owner from the index before.
    pub kept: u64,
    /// The first thousand of them, in the order of their paths.
    pub first: Vec<UnmatchedFile>,
}

impl UnmatchedFiles {
    /// Adds a file.
    pub fn add(&mut self, path: &[u8], package: Option<&Package>, reason: UnmatchedReason, kept: bool) {
        self.count += 1;
        self.kept += u64::from(kept);
        if let Some(package) = package.filter(|_| self.first.len() < MOST) {
            let path = String::from_utf8_lossy(path).into_owned();
            self.first.push(UnmatchedFile { path, package: package.clone(), reason, kept });
        }
    }

    /// How many of them have only their MD5 in the index, so that no rule watches them.
    pub fn unwatched(&self) -> u64 {
        self.count.saturating_sub(self.kept)
    }
}
