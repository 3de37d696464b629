//! Mounts: the path of a managed object leads to another object, and the managed object itself does not change.
//!
//! In: a managed file at `<place>/d/file`. Out: something mounted over it or over its directory, or unmounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use super::raw::{RawProgram, Value};
use super::vector::{Does, ExpectedActor, ExpectedReport, StartState, Vector, elsewhere};
use crate::guest::wait;

const OVER: ExpectedReport = ExpectedReport::Drift("mount-over");
const MISSING: ExpectedReport = ExpectedReport::Drift("missing");
/// The open truncates the file, and a write follows.
const REWRITE: &[&str] = &["file_open", "inode_setattr", "file_permission"];

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file("V57a", "bind mount over the file", &["sb_mount"], Does::Call(bind_over)).expecting(OVER),
    Vector::file("V57b", "bind mount over its directory", &["sb_mount"], Does::Call(bind_directory))
        .expecting(MISSING),
    Vector::file("V57c", "tmpfs mounted over its directory", &["sb_mount"], Does::Call(tmpfs_over))
        .expecting(MISSING),
    Vector::file("V57d", "bind mount over an ancestor", &["sb_mount"], Does::Call(bind_ancestor))
        .expecting(MISSING),
    Vector::file("V59", "open_tree(2) and move_mount(2) over it", &["move_mount"], Does::Call(move_over))
        .expecting(OVER),
    Vector::file("V60", "mount_setattr(2) of the mount that holds it", &[], Does::Call(set_mount_attributes))
        .on(StartState::FileInMount)
        .expecting(ExpectedReport::Nothing)
        .by(ExpectedActor::NoActor),
    Vector::file(
        "V60b",
        "its directory mounted again with other owners (idmap)",
        &["move_mount"],
        Does::Call(mount_with_other_owners),
    )
    .expecting(ExpectedReport::Drift("owner"))
    .by(ExpectedActor::Child),
    Vector::file("V60c", "other owners (idmap) for the mount that holds it", &[], Does::Call(other_owners))
        .on(StartState::FileInMount)
        .expecting(ExpectedReport::Drift("owner"))
        .by(ExpectedActor::NoActor),
    Vector::file("V61", "remounted read-only", &["sb_mount"], Does::Call(remount))
        .on(StartState::FileInMount)
        .expecting(ExpectedReport::Nothing),
    Vector::file("V62a", "umount of the over-mount", &["sb_umount"], Does::Call(unmount_file))
        .on(StartState::FileMountedOver)
        .expecting(ExpectedReport::Recovered),
    Vector::file(
        "V62b",
        "umount of the file system that holds it",
        &["sb_umount"],
        Does::Call(unmount_directory),
    )
    .on(StartState::FileInMount)
    .expecting(MISSING),
    Vector::file(
        "V64",
        "mounted over in a private mount namespace",
        &["sb_mount"],
        Does::Shell("unshare -m sh -c 'mount --bind /proc/version \"$F\"'"),
    )
    .expecting(ExpectedReport::Nothing),
    Vector::file(
        "V64b",
        "pivot_root(2) in a private mount namespace",
        &["sb_pivotroot"],
        // The initial root cannot be pivoted, so the shell creates another one.
        Does::Shell(
            "R=/run/pivot-$$; mkdir $R && unshare -m sh -c \"mount --bind / $R && chroot $R sh -c 'mount -t tmpfs x \
             /mnt && mkdir /mnt/old && pivot_root /mnt /mnt/old'\"",
        ),
    )
    .expecting(ExpectedReport::Nothing),
    Vector::file("V67", "edited through a bind mount of its directory", REWRITE, Does::Call(alias)),
    Vector::file(
        "V67b",
        "edited in a private mount namespace",
        &["file_open", "file_permission"],
        Does::Shell("unshare -m sh -c 'echo drift >> \"$F\"'"),
    ),
];

/// Binds one object over another.
pub(crate) fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("bind {} over {}", source.display(), target.display()))
}

fn another_file(path: &Path) -> Result<PathBuf> {
    let new = elsewhere(path)?;
    fs::write(&new, "another file\n")?;
    Ok(new)
}

fn bind_over(path: &Path) -> Result<()> {
    bind(&another_file(path)?, path)
}

fn directory(path: &Path) -> Result<&Path> {
    path.parent().context("a path with a directory")
}

fn empty_directory(path: &Path) -> Result<PathBuf> {
    let empty = directory(path)?.with_extension("empty");
    fs::create_dir(&empty)?;
    Ok(empty)
}

fn bind_directory(path: &Path) -> Result<()> {
    bind(&empty_directory(path)?, directory(path)?)
}

fn bind_ancestor(path: &Path) -> Result<()> {
    bind(&empty_directory(path)?, directory(directory(path)?)?)
}

fn tmpfs_over(path: &Path) -> Result<()> {
    Ok(mount(Some("tmpfs"), directory(path)?, Some("tmpfs"), MsFlags::empty(), None::<&str>)?)
}

fn move_over(path: &Path) -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, another_file(path)?, flags)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&tree, "", CWD, path, flags)?)
}

/// `AT_FDCWD`.
const HERE: u64 = (-100i64).cast_unsigned();
const MOUNT_SETATTR: u32 = 442;

fn set_mount_attributes(path: &Path) -> Result<()> {
    /// `MOUNT_ATTR_NOSUID`.
    const NO_SUID: u64 = 2;
    let mut program = RawProgram::default();
    let directory = program.path(directory(path)?);
    // struct mount_attr: set, clear, propagation, user namespace
    let attributes = program.words(&[NO_SUID, 0, 0, 0]);
    let arguments = [HERE.into(), directory.into(), 0.into(), attributes.into(), 32.into()];
    let _: Value = program.call(MOUNT_SETATTR, &arguments);
    program.run()
}

fn remount(path: &Path) -> Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    Ok(mount(None::<&str>, directory(path)?, None::<&str>, flags, None::<&str>)?)
}

/// A user namespace in which root has another number. It lives as long as its process, which ends when its input is
/// closed.
struct Owners {
    holder: Child,
}

impl Owners {
    fn new() -> Result<Self> {
        let holder = Command::new("unshare").args(["-U", "cat"]).stdin(Stdio::piped()).spawn()?;
        let owners = Self { holder };
        let own = fs::read_link("/proc/self/ns/user")?;
        wait::until("a user namespace", Duration::from_secs(20), || {
            Ok(fs::read_link(owners.namespace()).ok().filter(|other| *other != own))
        })?;
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{map}", owners.holder.id()), "0 100000 65536\n")?;
        }
        Ok(owners)
    }

    fn namespace(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/user", self.holder.id()))
    }

    /// Calls `mount_setattr` for the object of a descriptor, or for the mount at a path.
    fn call(&self, program: &mut RawProgram, mount: Value, path: &Path) {
        /// `MOUNT_ATTR_IDMAP`.
        const ID_MAP: u64 = 0x10_0000;
        const EMPTY_PATH: u64 = 0x1000;
        const OPEN: u32 = 2;
        let namespace = program.path(&self.namespace());
        let at = program.path(path);
        let attributes = program.words(&[ID_MAP, 0, 0, 0]);
        let opened = program.call(OPEN, &[namespace.into(), 0.into()]);
        program.put(opened, attributes + 24, 8);
        let arguments = [mount, at.into(), EMPTY_PATH.into(), attributes.into(), 32.into()];
        let _: Value = program.call(MOUNT_SETATTR, &arguments);
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        // `wait` first closes the input, which ends the process. A process that has already ended is fine.
        let _ = self.holder.wait();
    }
}

/// Old kernels and some file systems do not support such mounts, and return EINVAL.
fn offered(done: Result<()>) -> Result<()> {
    done.or_else(|error| match error.downcast_ref::<nix::Error>() {
        Some(nix::Error::EINVAL) => Err(nix::Error::EOPNOTSUPP).context("no other owners for this mount"),
        _ => Err(error),
    })
}

/// `mount_setattr` can map owners only before the mount is attached.
fn mount_with_other_owners(path: &Path) -> Result<()> {
    const OPEN_TREE: u32 = 428;
    const MOVE_MOUNT: u32 = 429;
    const CLONE: u64 = 1;
    const FROM_EMPTY_PATH: u64 = 4;
    let owners = Owners::new()?;
    let mut program = RawProgram::default();
    let (directory, empty) = (program.path(directory(path)?), program.data(&[0]));
    let tree = program.call(OPEN_TREE, &[HERE.into(), directory.into(), CLONE.into()]);
    owners.call(&mut program, tree, Path::new(""));
    let arguments = [tree, empty.into(), HERE.into(), directory.into(), FROM_EMPTY_PATH.into()];
    let _: Value = program.call(MOVE_MOUNT, &arguments);
    offered(program.run())
}

/// An attached mount cannot be mapped: the kernel would have to find its users.
fn other_owners(path: &Path) -> Result<()> {
    let owners = Owners::new()?;
    let mut program = RawProgram::default();
    owners.call(&mut program, HERE.into(), directory(path)?);
    offered(program.run())
}

fn unmount_file(path: &Path) -> Result<()> {
    Ok(umount2(path, MntFlags::empty())?)
}

fn unmount_directory(path: &Path) -> Result<()> {
    // A process that reads the file at this moment would make an ordinary umount fail.
    Ok(umount2(directory(path)?, MntFlags::MNT_DETACH)?)
}

/// Like a host whose /etc is also reachable below an image's deployment.
fn alias(path: &Path) -> Result<()> {
    let alias = empty_directory(path)?;
    bind(directory(path)?, &alias)?;
    Ok(fs::write(alias.join(path.file_name().context("a path with a name")?), "by the alias\n")?)
}
