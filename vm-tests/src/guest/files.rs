//! Files and kernel modules of a new guest.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result};
use composefs_ioctls::fsverity::fs_ioc_enable_verity;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::mman::{MapFlags, ProtFlags};
use vm_memory::{FileOffset, MmapRegion};

/// The folder with the kernel's modules in every guest. Its file `order` lists the modules that each one needs.
pub(super) const MODULES: &str = "/opt/holdfast/modules";

pub(super) fn mount_pseudo(kind: &str, place: &str) -> Result<()> {
    fs::create_dir_all(place)?;
    match mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>) {
        Ok(()) | Err(nix::Error::EBUSY) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot mount {kind} on {place}")),
    }
}

/// Copies a tree with its modes over another.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else {
            fs::copy(&source, &target).with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}

/// Loads a kernel module with the modules that it needs. A module that this kernel has built in is not in the list, and not loaded.
pub fn load_module(name: &str) -> Result<()> {
    let order = fs::read_to_string(format!("{MODULES}/order")).context("no kernel modules in this guest")?;
    let chain =
        order.lines().filter_map(|line| line.split_once(": ")).find(|(n, _)| *n == name).map(|(_, c)| c);
    for module in chain.unwrap_or_default().split(' ').filter(|module| !module.is_empty()) {
        let file =
            File::open(format!("{MODULES}/{module}.ko")).with_context(|| format!("module {module}"))?;
        match finit_module(&file, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(nix::Error::EEXIST) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot load the module {module}")),
        }
    }
    Ok(())
}

/// Maps a file to run code of it, as a loader does with a library, and unmaps it.
pub fn map_as_library(path: &str) -> Result<()> {
    let file = FileOffset::new(File::open(path).with_context(|| format!("cannot open {path}"))?, 0);
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    MmapRegion::<()>::build(Some(file), 1, protection.bits(), MapFlags::MAP_PRIVATE.bits())?;
    Ok(())
}

/// Seals a file with fs-verity, with SHA-256 and blocks of 4096 bytes: from then on the kernel refuses each change of its content.
pub fn seal(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    fs_ioc_enable_verity(&file, 1, 4096).with_context(|| format!("cannot seal {}", path.display()))
}
