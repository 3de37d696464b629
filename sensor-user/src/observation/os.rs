//! The booted system: the kernel's arguments, and the deployment of an ostree host.
//!
//! In: the host's root. Out: the words of the kernel's command line, and the deployment that is the root, from ostree's own files. It
//! runs no tool. It gives a reason if a host has neither.

use super::{
    names::list_names,
    object::{FailedOperation, device, stat_handle},
    resolve::{HANDLE, Root, reopen_directory},
};
use crate::bounded;
use nix::{errno::Errno, fcntl::OFlag};
use rustix::fs::StatxFlags;
use sensor_model::{
    expectation::{KERNEL_ARGUMENTS, OSTREE_BOOTED, Thing},
    observation::Observation,
    os::{arguments, hierarchy::HOST_MOUNTS, of_origin},
};
use std::{
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

/// The directory of ostree's deployments, with one directory for each OS.
const DEPLOYMENTS: &str = "/ostree/deploy";

/// The file in which the Machine Config Operator keeps the name of an image that was built for this node.
const OWN_IMAGE: &str = "/etc/machine-config-daemon/currentimage";

/// Most bytes of a command line or an origin file.
const LIMIT: u64 = 64 << 10;

/// Why this host cannot observe a thing; `None` if it can.
pub(super) fn unchecked(root: &Root, thing: &Thing) -> Option<String> {
    let exists = |path: &str| root.open_at(Path::new(path), HANDLE).is_ok();
    match thing {
        Thing::Hierarchy { .. } if !exists(HOST_MOUNTS) => {
            Some(format!("no host runs in this root (no {HOST_MOUNTS})"))
        }
        Thing::KernelArguments if !exists(KERNEL_ARGUMENTS) => {
            Some(format!("no kernel runs in this root (no {KERNEL_ARGUMENTS})"))
        }
        Thing::OsImage if !exists(OSTREE_BOOTED) => {
            Some(format!("the host did not boot an image (no {OSTREE_BOOTED})"))
        }
        Thing::OsImage if exists(OWN_IMAGE) => {
            Some(format!("the node has an image of its own, built in its cluster ({OWN_IMAGE})"))
        }
        _ => None,
    }
}

/// The words of the kernel's command line.
pub(super) fn kernel_arguments(root: &Root) -> Result<Observation, FailedOperation> {
    let line = read(root, Path::new(KERNEL_ARGUMENTS))?;
    Ok(Observation::KernelArguments { arguments: arguments::split(&line) })
}

/// The booted deployment.
pub(super) fn booted(root: &Root) -> Result<Observation, FailedOperation> {
    let deployment = match deployment_of_root(root)? {
        Some(found) => found,
        // The root may be another file system (composefs). Then the boot loader's argument names the deployment.
        None => deployment_of_argument(root)?
            .ok_or(FailedOperation { operation: "find the deployment of", errno: Errno::ENOENT })?,
    };
    let name = deployment.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let checksum = name.split('.').next().unwrap_or_default().to_owned();
    let origin = read(root, &deployment.with_file_name(format!("{name}.origin")))?;
    Ok(Observation::Os(of_origin(&origin, &checksum)))
}

/// The paths in the directories of all deployments; empty on a host without any.
pub(super) fn deployments(root: &Root) -> Vec<PathBuf> {
    let systems = names(root, Path::new(DEPLOYMENTS)).unwrap_or_default();
    systems.into_iter().flat_map(|os| names(root, &os.join("deploy")).unwrap_or_default()).collect()
}

/// The deployment whose directory is the root directory.
fn deployment_of_root(root: &Root) -> Result<Option<PathBuf>, FailedOperation> {
    let identity = |handle: std::os::fd::BorrowedFd<'_>| {
        stat_handle(handle, StatxFlags::INO).map(|stat| (device(&stat), stat.stx_ino))
    };
    let own = identity(root.directory())?;
    for os in names(root, Path::new(DEPLOYMENTS))? {
        let folder = os.join("deploy");
        for deployment in names(root, &folder)? {
            let flags = HANDLE | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            let Ok(handle) = root.open_at(&deployment, flags) else { continue };
            if identity(handle.as_fd())? == own {
                return Ok(Some(deployment));
            }
        }
    }
    Ok(None)
}

fn deployment_of_argument(root: &Root) -> Result<Option<PathBuf>, FailedOperation> {
    let line = read(root, Path::new(KERNEL_ARGUMENTS))?;
    let split = arguments::split(&line);
    let Some(place) = split.iter().find_map(|word| word.strip_prefix("ostree=")) else { return Ok(None) };
    Ok(root.walk(Path::new(place)).end.ok().map(|(_, real)| real))
}

/// The paths of the entries of a directory; empty without it.
pub(super) fn names(root: &Root, folder: &Path) -> Result<Vec<PathBuf>, FailedOperation> {
    let handle = match root.open_at(folder, HANDLE | OFlag::O_DIRECTORY) {
        Ok(handle) => handle,
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(FailedOperation { operation: "open a directory of", errno }),
    };
    let readable = reopen_directory(handle, OFlag::O_RDONLY)
        .map_err(|errno| FailedOperation { operation: "open a directory of", errno })?;
    Ok(list_names(readable)?.into_iter().map(|name| folder.join(name)).collect())
}

fn read(root: &Root, path: &Path) -> Result<String, FailedOperation> {
    let failed = |errno| FailedOperation { operation: "read the boot facts of", errno };
    let file = root.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).map_err(failed)?;
    let bytes = bounded::read_open(file, LIMIT).map_err(|error| failed(error.errno()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
