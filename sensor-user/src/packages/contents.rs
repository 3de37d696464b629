//! What the packages of a host have at their paths.
//!
//! In: the databases of dpkg and rpm. Out: one entry for each path. It runs no program, and reads no file of a package.

use super::{
    collector::{Collector, PackageContents},
    dpkg,
    merged::MergedDirectories,
    rpm,
    unread::Unread,
};
use crate::{bounded, observation::Observer};
use nix::fcntl::OFlag;
use sensor_model::host::accounts::Accounts;
use std::path::Path;

/// Reads the databases of packages of a host.
///
/// # Errors
/// A database that is there and cannot be read, or is not sound. An index of a part of the packages would call the others' files
/// unexpected.
pub(crate) fn contents(observer: &Observer) -> Result<PackageContents, Unread> {
    let users = accounts(observer, ["/etc/passwd", "/usr/lib/passwd"]);
    let groups = accounts(observer, ["/etc/group", "/usr/lib/group"]);
    let mut collector = Collector::new(MergedDirectories::of(observer), users, groups);
    if dpkg::collect(observer, &mut collector)? {
        collector.read("dpkg");
        collector.end_of_dpkg();
    }
    if rpm::collect(observer, &mut collector)? {
        collector.read("rpm");
    }
    Ok(collector.finish())
}

fn accounts(observer: &Observer, paths: [&str; 2]) -> Accounts {
    let mut found = Accounts::default();
    for path in paths {
        let opened = observer.root().open_at(Path::new(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK).ok();
        // Without it the owners of its names are not known, and are not compared.
        if let Some(text) = opened.and_then(|file| bounded::read_open(file, bounded::ACCOUNTS).ok()) {
            found.add(&text);
        }
    }
    found
}
