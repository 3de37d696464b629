//! Mounts: another object appears by the path of a managed one, which itself is whole.
//!
//! Comes in: a managed file at `<place>/d/file`. Goes out: something mounted over it or its directory, or no longer.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use super::raw::{Program, Value};
use super::{Does, Expected, Target, Vector, Who, elsewhere};

const OVER: Expected = Expected::Drift("mount-over");
const MISSING: Expected = Expected::Drift("missing");

/// The family.
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
        .on(Target::FileInMount)
        .expecting(Expected::Nothing)
        .by(Who::Nobody),
    Vector::file("V62a", "umount of the over-mount", &["sb_umount"], Does::Call(unmount_file))
        .on(Target::FileMountedOver)
        .expecting(Expected::Recovered),
    Vector::file(
        "V62b",
        "umount of the file system that holds it",
        &["sb_umount"],
        Does::Call(unmount_directory),
    )
    .on(Target::FileInMount)
    .expecting(MISSING),
    Vector::file(
        "V64",
        "mounted over in a private mount namespace",
        &["sb_mount"],
        Does::Shell("unshare -m sh -c 'mount --bind /proc/version \"$F\"'"),
    )
    .expecting(Expected::Nothing),
    Vector::file("V67", "edited through a bind mount of its directory", &["file_open"], Does::Call(alias)),
    Vector::file(
        "V67b",
        "edited in a private mount namespace",
        &["file_open"],
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

fn set_mount_attributes(path: &Path) -> Result<()> {
    const MOUNT_SETATTR: u32 = 442;
    const HERE: u64 = (-100i64).cast_unsigned();
    /// `MOUNT_ATTR_NOSUID`.
    const NO_SUID: u64 = 2;
    let mut program = Program::default();
    let directory = program.path(directory(path)?);
    // struct mount_attr: set, clear, propagation, user namespace
    let attributes = program.words(&[NO_SUID, 0, 0, 0]);
    let arguments = [HERE.into(), directory.into(), 0.into(), attributes.into(), 32.into()];
    let _: Value = program.call(MOUNT_SETATTR, &arguments);
    program.run()
}

fn unmount_file(path: &Path) -> Result<()> {
    Ok(umount2(path, MntFlags::empty())?)
}

fn unmount_directory(path: &Path) -> Result<()> {
    // Whoever looks at the file just now would make an ordinary umount fail.
    Ok(umount2(directory(path)?, MntFlags::MNT_DETACH)?)
}

/// As where /etc is also reached below the deployment of an image.
fn alias(path: &Path) -> Result<()> {
    let alias = empty_directory(path)?;
    bind(directory(path)?, &alias)?;
    Ok(fs::write(alias.join(path.file_name().context("a path with a name")?), "by the alias\n")?)
}
