//! What is booted: the kernel's arguments, and the deployment of an ostree host.
//!
//! In: the host's root. Out: the words of its kernel's command line, and the deployment that is its root, by ostree's own
//! files; no tool runs. What cannot be looked at on a host at all has a reason.

use super::{
    names::list_names,
    object::{Refused, device, stat_handle},
    resolve::{HANDLE, Root, reopen_directory},
};
use crate::bounded;
use nix::{errno::Errno, fcntl::OFlag};
use rustix::fs::StatxFlags;
use sensor_model::{
    expectation::{KERNEL_ARGUMENTS, OSTREE_BOOTED, Thing},
    observation::Observation,
    os::{arguments, of_origin},
};
use std::{
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

/// Where ostree keeps deployments, below it one directory for each OS.
const DEPLOYMENTS: &str = "/ostree/deploy";

/// Where the Machine Config Operator keeps the image of a node that got one of its own.
const OWN_IMAGE: &str = "/etc/machine-config-daemon/currentimage";

/// Command lines and origin files are short.
const LIMIT: u64 = 64 << 10;

/// Why a thing cannot be looked at on this host; `None` when it can.
pub(super) fn unchecked(root: &Root, thing: &Thing) -> Option<String> {
    let is_there = |path: &str| root.open_at(Path::new(path), HANDLE).is_ok();
    match thing {
        Thing::KernelArguments if !is_there(KERNEL_ARGUMENTS) => {
            Some(format!("no kernel runs in this root (no {KERNEL_ARGUMENTS})"))
        }
        Thing::OsImage if !is_there(OSTREE_BOOTED) => {
            Some(format!("the host did not boot an image (no {OSTREE_BOOTED})"))
        }
        Thing::OsImage if is_there(OWN_IMAGE) => {
            Some(format!("the node has an image of its own, built in its cluster ({OWN_IMAGE})"))
        }
        _ => None,
    }
}

/// The words of the kernel's command line.
pub(super) fn kernel_arguments(root: &Root) -> Result<Observation, Refused> {
    let line = read(root, Path::new(KERNEL_ARGUMENTS))?;
    Ok(Observation::KernelArguments { arguments: arguments::split(&line) })
}

/// The deployment that is the root.
pub(super) fn booted(root: &Root) -> Result<Observation, Refused> {
    let deployment = match deployment_of_root(root)? {
        Some(found) => found,
        // The root may be a file system of its own (composefs); then the boot loader's argument names the deployment.
        None => deployment_of_argument(root)?
            .ok_or(Refused { operation: "find the deployment of", errno: Errno::ENOENT })?,
    };
    let name = deployment.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let checksum = name.split('.').next().unwrap_or_default().to_owned();
    let origin = read(root, &deployment.with_file_name(format!("{name}.origin")))?;
    Ok(Observation::Os(of_origin(&origin, &checksum)))
}

/// The deployment that is the same directory as the root.
fn deployment_of_root(root: &Root) -> Result<Option<PathBuf>, Refused> {
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

fn deployment_of_argument(root: &Root) -> Result<Option<PathBuf>, Refused> {
    let line = read(root, Path::new(KERNEL_ARGUMENTS))?;
    let split = arguments::split(&line);
    let Some(place) = split.iter().find_map(|word| word.strip_prefix("ostree=")) else { return Ok(None) };
    Ok(root.walk(Path::new(place)).end.ok().map(|(_, real)| real))
}

/// What is in a directory, by path.
fn names(root: &Root, folder: &Path) -> Result<Vec<PathBuf>, Refused> {
    let handle = match root.open_at(folder, HANDLE | OFlag::O_DIRECTORY) {
        Ok(handle) => handle,
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(Refused { operation: "open a directory of", errno }),
    };
    let readable = reopen_directory(handle, OFlag::O_RDONLY)
        .map_err(|errno| Refused { operation: "open a directory of", errno })?;
    Ok(list_names(readable)?.into_iter().map(|name| folder.join(name)).collect())
}

fn read(root: &Root, path: &Path) -> Result<String, Refused> {
    let refused = |errno| Refused { operation: "read what tells of", errno };
    let file = root.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).map_err(refused)?;
    let bytes = bounded::read_open(file, LIMIT).map_err(|error| refused(error.errno()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
