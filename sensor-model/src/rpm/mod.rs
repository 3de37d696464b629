//! The database of rpm: which paths packages own, and what they have there.
//!
//! In: pages of an SQLite file, and the header blobs in them. Out: the paths of each package, with the state of each. Reading the file is cheaper and safer than
//! running `rpm`, and works in a pod. The parsers are bounded: a damaged or hostile file gives an error.

mod files;
pub mod header;
pub mod sqlite;
pub mod sqlite_log;
#[cfg(test)]
mod tests;

pub use files::{RpmFile, RpmPackage, package};

/// The table that has a header for each package.
pub const TABLE: &str = "Packages";

/// The formats of rpm's database, by the file's name and its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `rpmdb.sqlite`: read.
    Sqlite,
    /// `Packages` of Berkeley DB, until RHEL 8: not read.
    BerkeleyDb,
    /// `Packages.db` of rpm's own format, of SUSE: not read.
    Ndb,
}
