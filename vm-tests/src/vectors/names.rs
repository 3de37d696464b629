//! Names: links, renames, removals, creations, of a managed thing, of its directories, and in closed directories.
//!
//! In: a managed thing at `<place>/d/file`, or a closed directory. Out: another object at its name, or none.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, RenameFlags};

use super::vector::{Does, ExpectedActor, ExpectedReport, StartState, Vector, elsewhere};

const RENAME: &[&str] = &["inode_rename"];
const UNLINK: &[&str] = &["inode_unlink"];
/// The open truncates the file, and a write follows.
const REWRITE: &[&str] = &["file_open", "inode_setattr", "file_permission"];
/// A new file. The daemon may verify it before all of its content is written.
const RECREATE: &[&str] = &["inode_create", "inode_unlink", "file_permission"];
const MISSING: ExpectedReport = ExpectedReport::Drift("missing");
const TYPE: ExpectedReport = ExpectedReport::Drift("type");
const UNEXPECTED: ExpectedReport = ExpectedReport::Drift("unexpected");

/// A vector in a closed directory.
const fn closed(id: &'static str, name: &'static str, hooks: &'static [&'static str], does: Does) -> Vector {
    Vector::file(id, name, hooks, does).on(StartState::ClosedDirectory).expecting(UNEXPECTED)
}

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file("V31a", "hard link elsewhere, written through it", REWRITE, Does::Call(link_and_write)),
    Vector::file(
        "V31b",
        "hard link made before the start, written through it",
        REWRITE,
        Does::Early(write_by_old_link),
    ),
    Vector::file("V33a", "rename over it", RENAME, Does::Call(rename_over)),
    Vector::file(
        "V33b",
        "mv over it, by a shell",
        RENAME,
        Does::Shell("echo x > \"$D/new\" && mv \"$D/new\" \"$F\"; true"),
    )
    .by(ExpectedActor::Child),
    Vector::file("V33c", "rename it away", RENAME, Does::Call(rename_away)).expecting(MISSING),
    Vector::file("V33d", "rename over it, the same content", RENAME, Does::Call(rename_same))
        .expecting(ExpectedReport::Touched),
    Vector::file(
        "V33e",
        "rename over it, then write to the new one",
        &["inode_rename", "file_open", "inode_setattr", "file_permission"],
        Does::Call(rename_same_then_write),
    ),
    Vector::file("V34", "RENAME_EXCHANGE", RENAME, Does::Call(exchange)),
    Vector::file("V36a", "rename of its directory", RENAME, Does::Call(rename_parent)).expecting(MISSING),
    Vector::file("V36b", "rename of an ancestor", RENAME, Does::Call(rename_grandparent)).expecting(MISSING),
    Vector::file("V36c", "its directory exchanged with another", RENAME, Does::Call(exchange_parent)),
    Vector::file(
        "V36d",
        "its directory replaced, then written",
        &["inode_rename", "file_open", "inode_setattr", "file_permission"],
        Does::Call(replace_parent_then_write),
    ),
    Vector::file("V37a", "unlink", UNLINK, Does::Call(|path| Ok(fs::remove_file(path)?))).expecting(MISSING),
    Vector::file("V37b", "unlink, then other content", RECREATE, Does::Call(recreate)),
    Vector::file("V37c", "unlink, then the same content", RECREATE, Does::Call(recreate_same))
        .expecting(ExpectedReport::Touched),
    Vector::file(
        "V37d",
        "the directory removed with it",
        &["inode_unlink", "inode_rmdir"],
        Does::Call(remove_directory),
    )
    .expecting(MISSING),
    Vector::file(
        "V37e",
        "a managed directory removed",
        &["inode_rmdir"],
        Does::Call(|path| Ok(fs::remove_dir(path)?)),
    )
    .on(StartState::Directory)
    .expecting(MISSING),
    Vector::file(
        "V38h",
        "replaced by a symbolic link",
        &["inode_symlink", "inode_unlink"],
        Does::Call(become_link),
    )
    .expecting(TYPE),
    Vector::file(
        "V38i",
        "replaced by a directory",
        &["inode_mkdir", "inode_unlink"],
        Does::Call(become_directory),
    )
    .expecting(TYPE),
    Vector::file(
        "V38j",
        "target of a managed link changed",
        &["inode_symlink", "inode_rename"],
        Does::Call(relink),
    )
    .on(StartState::Link)
    .expecting(ExpectedReport::Drift("link-target")),
    Vector::file(
        "V38k",
        "missing file created",
        &["inode_create", "file_permission"],
        Does::Call(create_declared),
    )
    .on(StartState::AbsentFile)
    .expecting(ExpectedReport::Recovered),
    Vector::file(
        "V38l",
        "missing directory and file created",
        &["inode_mkdir", "inode_create", "file_permission"],
        Does::Call(create_directory),
    )
    .on(StartState::AbsentDirectory)
    .expecting(ExpectedReport::Recovered),
    closed(
        "V38a",
        "file created in a closed directory",
        &["inode_create"],
        Does::Call(|dir| {
            File::create(dir.join("20-x.conf"))?;
            Ok(())
        }),
    ),
    closed(
        "V38b",
        "fifo made in a closed directory",
        &["inode_mknod"],
        Does::Call(|dir| Ok(rustix::fs::mknodat(CWD, dir.join("20-x.conf"), FileType::Fifo, Mode::RUSR, 0)?)),
    ),
    closed(
        "V38c",
        "symbolic link in a closed directory",
        &["inode_symlink"],
        Does::Call(|dir| Ok(symlink("/dev/null", dir.join("20-x.conf"))?)),
    ),
    closed(
        "V38d",
        "directory made in a closed directory",
        &["inode_mkdir"],
        Does::Call(|dir| Ok(fs::create_dir(dir.join("20-x.conf"))?)),
    ),
    closed(
        "V38e",
        "hard link into a closed directory",
        &["inode_link"],
        Does::Call(|dir| Ok(fs::hard_link(dir.join("10-declared.conf"), dir.join("20-x.conf"))?)),
    ),
    closed(
        "V38f",
        "rename into a closed directory",
        &["inode_rename", "inode_create"],
        Does::Call(|dir| {
            let new = dir.join("20-x.conf.tmp");
            fs::write(&new, "x")?;
            Ok(fs::rename(&new, dir.join("20-x.conf"))?)
        }),
    ),
    closed(
        "V90a",
        "a name with a line break that is not UTF-8, in a closed directory",
        &["inode_create"],
        Does::Call(|dir| Ok(File::create(dir.join(OsStr::from_bytes(b"20-\n\xff.conf"))).map(drop)?)),
    ),
    closed(
        "V90b",
        "a name of the maximum length in a closed directory",
        &["inode_create"],
        Does::Call(|dir| Ok(File::create(dir.join(format!("{:x>250}.conf", 20))).map(drop)?)),
    ),
    closed("V38g", "O_TMPFILE, then linked into a closed directory", &["inode_link"], Does::Call(temporary)),
];

/// Another file in the same file system, with the same or with other content.
fn other(path: &Path, same: bool) -> Result<std::path::PathBuf> {
    let new = elsewhere(path)?;
    if same {
        fs::copy(path, &new).map(drop)?;
    } else {
        fs::write(&new, "another file\n")?;
    }
    Ok(new)
}

fn link_and_write(path: &Path) -> Result<()> {
    let link = elsewhere(path)?;
    fs::hard_link(path, &link)?;
    Ok(fs::write(link, "through the link\n")?)
}

fn write_by_old_link(path: &Path, daemon_started: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let link = elsewhere(path)?;
    fs::hard_link(path, &link)?;
    daemon_started()?;
    Ok(fs::write(link, "through the link\n")?)
}

fn rename_over(path: &Path) -> Result<()> {
    Ok(fs::rename(other(path, false)?, path)?)
}

fn rename_away(path: &Path) -> Result<()> {
    Ok(fs::rename(path, elsewhere(path)?)?)
}

fn rename_same(path: &Path) -> Result<()> {
    Ok(fs::rename(other(path, true)?, path)?)
}

fn rename_same_then_write(path: &Path) -> Result<()> {
    rename_same(path)?;
    Ok(fs::write(path, "the new inode\n")?)
}

fn exchange(path: &Path) -> Result<()> {
    Ok(rustix::fs::renameat_with(CWD, other(path, false)?, CWD, path, RenameFlags::EXCHANGE)?)
}

fn parent(path: &Path) -> Result<&Path> {
    path.parent().context("a path with a directory")
}

fn rename_parent(path: &Path) -> Result<()> {
    let directory = parent(path)?;
    Ok(fs::rename(directory, directory.with_extension("away"))?)
}

fn rename_grandparent(path: &Path) -> Result<()> {
    let directory = parent(parent(path)?)?;
    Ok(fs::rename(directory, directory.with_extension("away"))?)
}

/// A directory beside the file's directory, with a file of the same name.
fn twin(path: &Path, content: &[u8]) -> Result<std::path::PathBuf> {
    let twin = parent(path)?.with_extension("twin");
    fs::create_dir(&twin)?;
    fs::write(twin.join(path.file_name().context("a path with a name")?), content)?;
    Ok(twin)
}

fn exchange_parent(path: &Path) -> Result<()> {
    let twin = twin(path, b"the twin\n")?;
    Ok(rustix::fs::renameat_with(CWD, twin, CWD, parent(path)?, RenameFlags::EXCHANGE)?)
}

/// The daemon must enrol the new directory and its file to see the write.
fn replace_parent_then_write(path: &Path) -> Result<()> {
    let twin = twin(path, &fs::read(path)?)?;
    rename_parent(path)?;
    fs::rename(twin, parent(path)?)?;
    Ok(fs::write(path, "in the new directory\n")?)
}

fn recreate(path: &Path) -> Result<()> {
    fs::remove_file(path)?;
    Ok(fs::write(path, "another file\n")?)
}

fn recreate_same(path: &Path) -> Result<()> {
    let content = fs::read(path)?;
    fs::remove_file(path)?;
    Ok(fs::write(path, content)?)
}

fn remove_directory(path: &Path) -> Result<()> {
    Ok(fs::remove_dir_all(parent(path)?)?)
}

fn become_link(path: &Path) -> Result<()> {
    let copy = other(path, true)?;
    fs::remove_file(path)?;
    Ok(symlink(copy, path)?)
}

fn become_directory(path: &Path) -> Result<()> {
    fs::remove_file(path)?;
    Ok(fs::create_dir(path)?)
}

fn relink(path: &Path) -> Result<()> {
    let new = elsewhere(path)?;
    symlink("/etc/elsewhere", &new)?;
    Ok(fs::rename(new, path)?)
}

fn create_declared(path: &Path) -> Result<()> {
    Ok(fs::write(path, super::vector::declared_content(path))?)
}

fn create_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(parent(path)?)?;
    create_declared(path)
}

fn temporary(dir: &Path) -> Result<()> {
    use rustix::fs::{AtFlags, OFlags};
    use std::os::fd::AsRawFd;
    let file = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR)?;
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, source, CWD, dir.join("20-x.conf"), AtFlags::SYMLINK_FOLLOW)?)
}
