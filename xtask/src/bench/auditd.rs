//! auditd for the guest.
//!
//! In: the cache. Out: Debian's auditd, auditctl and their libraries, at the paths where they expect them. It installs nothing on
//! this machine.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::apt;
use crate::cache::Cache;
use crate::run::output;
use crate::tools::PackageTree;
use crate::vm::Vm;

const PROGRAMS: [&str; 2] = ["auditd", "auditctl"];
const LIBRARIES: &str = "/lib/x86_64-linux-gnu";

/// Unpacks it, once.
pub(super) fn ensure(cache: &Cache) -> Result<PackageTree> {
    if let Some(tree) = PackageTree::cached(cache, "auditd") {
        return Ok(tree);
    }
    let release = apt::codename()?;
    PackageTree::make(cache, "auditd", &[&release], &release, &["auditd"])
}

/// Gives it to a guest.
pub(super) fn add(tree: &PackageTree, vm: &mut Vm) -> Result<()> {
    PROGRAMS.iter().try_for_each(|name| add_program(tree, name, &format!("/usr/sbin/{name}"), vm))
}

/// Gives a program of a package and its libraries to a guest.
pub(super) fn add_program(tree: &PackageTree, name: &str, place: &str, vm: &mut Vm) -> Result<()> {
    let program = tree.program(name).with_context(|| format!("the package holds no {name}"))?;
    for line in output(tree.command("ldd".as_ref()).arg(&program))?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [library, "=>", path, _] => vm.add_file(path.into(), &format!("{LIBRARIES}/{library}"))?,
            // The loader, by its path.
            [path, _] if path.starts_with('/') => vm.add_file(PathBuf::from(path), path)?,
            _ => {}
        }
    }
    vm.add_file(program, place)
}
