//! auditd for the guest.
//!
//! In: the cache. Out: Debian's auditd, auditctl and their libraries, at the paths where they expect them. It installs nothing on
//! this machine.

use anyhow::Result;

use crate::cache::Cache;
use crate::tools::PackageTree;
use crate::vm::Vm;

const PROGRAMS: [&str; 2] = ["auditd", "auditctl"];

/// Unpacks it, once.
pub(super) fn ensure(cache: &Cache) -> Result<PackageTree> {
    PackageTree::of_package(cache, "auditd")
}

/// Gives it to a guest.
pub(super) fn add(tree: &PackageTree, vm: &mut Vm) -> Result<()> {
    PROGRAMS.iter().try_for_each(|name| vm.add_program(tree, name, &format!("/usr/sbin/{name}")))
}
