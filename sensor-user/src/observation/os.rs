//! The booted system: the kernel's arguments, and the deployment of a host that boots images.
//!
//! In: the host's root. Out: the words of the kernel's command line, and the deployment that is the root, from the files of ostree or
//! bootc. It runs no tool. It gives a reason if a host has neither.

use super::{
    commit::commit,
    host_mounts::{host_mounts, is_running, of_proc},
    names::list_names,
    object::{FailedOperation, device, stat_handle},
    resolve::{HANDLE, Root, reopen_directory},
};
use crate::bounded;
use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::statfs::{OVERLAYFS_SUPER_MAGIC, fstatfs},
};
use rustix::fs::StatxFlags;
use sensor_model::{
    expectation::{KERNEL_ARGUMENTS, OSTREE_BOOTED, Thing},
    observation::Observation,
    os::{
        COMPOSEFS_DEPLOYMENTS, DEPLOYMENTS, Deployment, SealedRoot, arguments, deployment_of_etc, of_origin,
        origin_of_root, reference, sealed_root,
    },
    ostree::backing_root,
};
use std::{
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

/// The file in which the Machine Config Operator keeps the name of the image that the cluster built for this node, before the node reboots into it.
const CLUSTER_IMAGE: &str = "/etc/machine-config-daemon/currentimage";

/// The file by which ostree finishes a staged deployment when the host shuts down. It has the names of that deployment and of the one whose
/// `/etc` it takes over.
const STAGED: &str = "/run/ostree/staged-deployment";

/// The same file of bootc on a composefs root without ostree (`composefs_consts.rs`).
const COMPOSEFS_STAGED: &str = "/run/composefs/staged-deployment";

/// Most bytes of a command line or an origin file.
const LIMIT: u64 = 64 << 10;

/// Flags of a handle of a deployment's directory.
const DIRECTORY: OFlag = HANDLE.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW);

/// Why this host cannot observe a thing; `None` if it can.
pub(super) fn unchecked(root: &Root, thing: &Thing) -> Option<String> {
    let exists = |path: &str| root.open_at(Path::new(path), HANDLE).is_ok();
    match thing {
        Thing::Hierarchy { .. } if !is_running(root) => {
            Some("no host runs in this root (no mount table in /proc/1)".to_owned())
        }
        Thing::KernelArguments if !exists(KERNEL_ARGUMENTS) => {
            Some(format!("no kernel runs in this root (no {KERNEL_ARGUMENTS})"))
        }
        Thing::OsImage if !boots_images(root) => {
            Some(format!("the host did not boot an image (no {OSTREE_BOOTED}, and no deployment of bootc)"))
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
    let is_ostree = root.open_at(Path::new(OSTREE_BOOTED), HANDLE).is_ok();
    let composefs = if is_ostree { None } else { composefs_origin(root)? };
    let cluster_image = cluster_image(root)?;
    let (origin, staged, checksum) = if let Some(origin) = composefs {
        (origin, COMPOSEFS_STAGED, None)
    } else {
        let deployment = ostree_deployment(root)?;
        (origin_beside(&deployment), STAGED, checksum_of(&deployment))
    };
    let cluster_image_is_staged = match &cluster_image {
        Some(image) => is_staged(root, image, staged, &origin)?,
        None => false,
    };
    let mut deployment = of_origin(&read(root, &origin)?, checksum.as_deref());
    // The origin of a host that booted an image by a tag has no digest. The commit has that of the image behind the tag.
    if let (None, Some(checksum)) = (&deployment.digest, &checksum) {
        deployment.digest =
            commit(root, checksum).and_then(|commit| commit.image_digest().map(str::to_owned));
    }
    Ok(Observation::Os(Deployment { cluster_image, cluster_image_is_staged, ..deployment }))
}

/// The directory of the booted deployment of ostree: the one whose tree is mounted.
///
/// The root may be a composefs image, which no deployment's directory is. The kernel's argument comes last: a soft reboot keeps that of the
/// deployment before, and a rollback or a clean-up removes the link that it names.
pub(super) fn ostree_deployment(root: &Root) -> Result<PathBuf, FailedOperation> {
    for find in [deployment_of_root, deployment_of_mount, deployment_of_note, deployment_of_argument] {
        if let Some(found) = find(root)? {
            return Ok(found);
        }
    }
    Err(FailedOperation { operation: "find the deployment of", errno: Errno::ENOENT })
}

/// The commit in the name of a deployment of ostree.
fn checksum_of(deployment: &Path) -> Option<String> {
    deployment.file_name()?.to_string_lossy().split('.').next().map(str::to_owned)
}

/// The origin file of a deployment of ostree: beside its directory.
fn origin_beside(deployment: &Path) -> PathBuf {
    let name = deployment.file_name().unwrap_or_default().to_string_lossy();
    deployment.with_file_name(format!("{name}.origin"))
}

/// Whether a deployment of this image is staged, so that the next boot is into it. The file `staged` has its name, and `booted` is the origin
/// file of the booted deployment.
fn is_staged(root: &Root, image: &str, staged: &str, booted: &Path) -> Result<bool, FailedOperation> {
    let staged = match read(root, Path::new(staged)) {
        Ok(text) => text,
        Err(FailedOperation { errno: Errno::ENOENT, .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    // bootc on composefs keeps each origin in a directory with the deployment's name.
    let composefs = names(root, Path::new(COMPOSEFS_DEPLOYMENTS))?.into_iter().filter_map(|directory| {
        let name = directory.file_name()?.to_string_lossy().into_owned();
        Some(directory.join(format!("{name}.origin")))
    });
    let origins = deployments(root).into_iter().map(|deployment| origin_beside(&deployment)).chain(composefs);
    let named = origins.filter(|origin| {
        let is_named = origin.file_stem().is_some_and(|name| staged.contains(&*name.to_string_lossy()));
        is_named && origin.file_name() != booted.file_name()
    });
    let read = named.filter_map(|origin| read(root, &origin).ok());
    Ok(read.map(|origin| of_origin(&origin, None)).any(|deployment| deployment.is(image)))
}

/// The deployments of ostree with a commit in their name and an origin file that can be read, and whether each of them is staged for the next
/// boot. Empty on a host without any.
pub(super) fn ostree_deployments(root: &Root) -> Vec<(Deployment, bool)> {
    let staged = read(root, Path::new(STAGED)).unwrap_or_default();
    let booted = ostree_deployment(root).ok();
    let found =
        deployments(root).into_iter().filter(|path| path.extension().is_none_or(|end| end != "origin"));
    let read = found.filter_map(|path| {
        let origin = read(root, &origin_beside(&path)).ok()?;
        // The file has the name of the booted deployment, too.
        let name = path.file_name()?.to_string_lossy();
        let is_staged = staged.contains(&*name)
            && booted.as_ref().is_none_or(|booted| booted.file_name() != path.file_name());
        Some((of_origin(&origin, Some(&checksum_of(&path)?)), is_staged))
    });
    read.collect()
}

/// Whether the host booted a deployment of an image, also if its files do not say which one.
pub(super) fn boots_images(root: &Root) -> bool {
    root.open_at(Path::new(OSTREE_BOOTED), HANDLE).is_ok() || !matches!(composefs_origin(root), Ok(None))
}

/// The root mount, if the kernel proves each of its files and `root` is in it. The handle of the root keeps the mount, so no other mount gets
/// its number. The root of a disk that is only mounted here is no overlay, whatever its files say.
pub(super) fn sealed(root: &Root) -> Option<SealedRoot> {
    let is_overlay =
        fstatfs(root.directory()).is_ok_and(|found| found.filesystem_type() == OVERLAYFS_SUPER_MAGIC);
    if !is_overlay {
        return None;
    }
    let table = host_mounts(root).ok()?;
    let arguments = of_proc(root, Path::new(KERNEL_ARGUMENTS)).ok()?;
    let sealed = sealed_root(&table, &String::from_utf8_lossy(&arguments))?;
    let found = stat_handle(root.directory().as_fd(), StatxFlags::MNT_ID).ok()?;
    (found.stx_mnt_id == sealed.mount).then_some(sealed)
}

/// The origin file of a host whose root is a composefs image that bootc made without ostree.
/// An error leaves it open whether it is such a host.
fn composefs_origin(root: &Root) -> Result<Option<PathBuf>, FailedOperation> {
    Ok(table(root)?.and_then(|table| origin_of_root(&table)))
}

/// The host's mount table; `None` without one, and if only root may read it.
fn table(root: &Root) -> Result<Option<Vec<u8>>, FailedOperation> {
    match host_mounts(root) {
        Ok(table) => Ok(Some(table)),
        Err(FailedOperation {
            errno: Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::EPERM, ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The image that the cluster built for this node; `None` if the node runs the config's image.
fn cluster_image(root: &Root) -> Result<Option<String>, FailedOperation> {
    match read(root, Path::new(CLUSTER_IMAGE)) {
        Ok(text) => Ok(Some(reference(text.trim()).to_owned()).filter(|image| !image.is_empty())),
        Err(FailedOperation { errno: Errno::ENOENT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The paths in the directories of all deployments; empty on a host without any.
pub(super) fn deployments(root: &Root) -> Vec<PathBuf> {
    let systems = names(root, Path::new(DEPLOYMENTS)).unwrap_or_default();
    systems.into_iter().flat_map(|os| names(root, &os.join("deploy")).unwrap_or_default()).collect()
}

/// The deployment whose directory is the root directory.
fn deployment_of_root(root: &Root) -> Result<Option<PathBuf>, FailedOperation> {
    deployment_with(root, identity(root.directory())?)
}

/// The deployment whose `etc` is mounted at `/etc`.
fn deployment_of_mount(root: &Root) -> Result<Option<PathBuf>, FailedOperation> {
    let found = table(root)?.and_then(|table| deployment_of_etc(&table));
    Ok(found.filter(|deployment| root.open_at(deployment, DIRECTORY).is_ok()))
}

/// The deployment that ostree noted. After a soft reboot it is the one before until `ostree-boot-complete.service` has run.
fn deployment_of_note(root: &Root) -> Result<Option<PathBuf>, FailedOperation> {
    let note = match read_bytes(root, Path::new(OSTREE_BOOTED)) {
        Err(FailedOperation { errno: Errno::ENOENT | Errno::EACCES | Errno::EPERM, .. }) => return Ok(None),
        read => read?,
    };
    backing_root(&note).map_or(Ok(None), |wanted| deployment_with(root, wanted))
}

/// The device and the inode number of an open directory.
fn identity(handle: BorrowedFd<'_>) -> Result<(u64, u64), FailedOperation> {
    stat_handle(handle, StatxFlags::INO).map(|stat| (device(&stat), stat.stx_ino))
}

/// The deployment whose directory has this device and this inode number.
fn deployment_with(root: &Root, wanted: (u64, u64)) -> Result<Option<PathBuf>, FailedOperation> {
    for os in names(root, Path::new(DEPLOYMENTS))? {
        let folder = os.join("deploy");
        for deployment in names(root, &folder)? {
            let Ok(handle) = root.open_at(&deployment, DIRECTORY) else { continue };
            if identity(handle.as_fd())? == wanted {
                return Ok(Some(deployment));
            }
        }
    }
    Ok(None)
}

/// The deployment to which the kernel's argument leads.
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
    read_bytes(root, path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn read_bytes(root: &Root, path: &Path) -> Result<Vec<u8>, FailedOperation> {
    let failed = |errno| FailedOperation { operation: "read the boot facts of", errno };
    let file = root.open_at(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).map_err(failed)?;
    bounded::read_open(file, LIMIT).map_err(|error| failed(error.errno()))
}
