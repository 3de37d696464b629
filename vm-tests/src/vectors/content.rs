//! Content by descriptor and by path: everything that the kernel sees as a write or a change of size.
//!
//! Comes in: a managed file that holds at least 100 bytes. Goes out: the same file with other content.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::FallocateFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::{Does, Vector, Who, elsewhere};
use crate::guest::disks::FileSystem;
use crate::guest::wait::pause;

/// What the process that gets a descriptor over a socket is called with.
pub(super) const RECEIVER: &str = "receiver";

/// Longer than the daemon waits before it attaches the hooks on reads and writes to a file that stays open.
const HELD_OPEN: Duration = Duration::from_secs(3);

const OPEN: &[&str] = &["file_open", "file_permission"];
const SIZE: &[&str] = &["inode_setattr"];

/// The family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file("V01a", "open and write(2)", OPEN, Does::Call(write)),
    Vector::file("V01b", "pwrite(2)", OPEN, Does::Call(pwrite)),
    Vector::file("V01c", "writev(2)", OPEN, Does::Call(writev)),
    Vector::file("V01d", "append by a shell", OPEN, Does::Shell("echo drift >> \"$F\"")),
    Vector::file(
        "V01e",
        "write long after the open",
        &["file_permission", "file_open"],
        Does::Call(write_late),
    ),
    Vector::file("V02", "open with O_TRUNC", &["file_open", "inode_setattr"], Does::Call(truncate_by_open)),
    Vector::file("V03", "truncate(2)", SIZE, Does::Call(truncate)),
    Vector::file("V04", "ftruncate(2)", &["inode_setattr", "file_open"], Does::Call(ftruncate)),
    Vector::file("V05a", "fallocate, punch a hole", OPEN, Does::Call(punch)),
    Vector::file("V05b", "fallocate, zero a range", OPEN, Does::Call(zero)),
    Vector::file("V08", "sendfile(2) into the file", OPEN, Does::Call(sendfile)),
    Vector::file("V09", "splice(2) from a pipe", OPEN, Does::Call(splice)),
    Vector::file("V10a", "copy_file_range(2)", OPEN, Does::Call(copy_range)),
    Vector::file("V10b", "reflink (FICLONE)", &["file_open", "file_ioctl"], Does::Call(clone))
        .only(&[FileSystem::Xfs, FileSystem::Btrfs]),
    Vector::not_performed("V13", "aio, io_submit(2)", OPEN, "no safe wrapper of the system call"),
    Vector::file("V14", "io_uring write", OPEN, Does::Call(uring)),
    Vector::not_performed("V17", "io_uring, SQPOLL thread writes", OPEN, "no safe wrapper offers it"),
    Vector::file(
        "V22",
        "descriptor opened before the start",
        &["file_permission"],
        Does::Early(opened_before),
    ),
    Vector::file("V23", "descriptor passed by SCM_RIGHTS", &["file_permission"], Does::Call(pass))
        .by(Who::Child),
    Vector::not_performed(
        "V30",
        "open_by_handle_at(2)",
        &["file_open"],
        "no safe wrapper of the system call",
    ),
];

fn writable(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).open(path).with_context(|| format!("open {}", path.display()))
}

fn write(path: &Path) -> Result<()> {
    Ok(writable(path)?.write_all(b"drift")?)
}

fn pwrite(path: &Path) -> Result<()> {
    Ok(writable(path)?.write_all_at(b"drift", 40)?)
}

fn writev(path: &Path) -> Result<()> {
    let n = writable(path)?.write_vectored(&[IoSlice::new(b"dri"), IoSlice::new(b"ft")])?;
    ensure!(n == 5, "a short write");
    Ok(())
}

fn write_late(path: &Path) -> Result<()> {
    let mut file = writable(path)?;
    pause(HELD_OPEN);
    Ok(file.write_all(b"drift")?)
}

fn truncate_by_open(path: &Path) -> Result<()> {
    File::create(path)?;
    Ok(())
}

fn truncate(path: &Path) -> Result<()> {
    Ok(nix::unistd::truncate(path, 3)?)
}

fn ftruncate(path: &Path) -> Result<()> {
    Ok(writable(path)?.set_len(7)?)
}

fn punch(path: &Path) -> Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(writable(path)?, flags, 10, 50)?)
}

fn zero(path: &Path) -> Result<()> {
    Ok(rustix::fs::fallocate(writable(path)?, FallocateFlags::ZERO_RANGE, 10, 50)?)
}

/// A file of other content in the same file system.
fn source(path: &Path) -> Result<File> {
    let other = elsewhere(path)?;
    std::fs::write(&other, "drift ".repeat(1000))?;
    Ok(File::open(other)?)
}

fn sendfile(path: &Path) -> Result<()> {
    let sent = rustix::fs::sendfile(writable(path)?, source(path)?, None, 30)?;
    ensure!(sent == 30, "sent {sent} bytes");
    Ok(())
}

fn splice(path: &Path) -> Result<()> {
    let (read, write) = rustix::pipe::pipe()?;
    rustix::io::write(&write, b"drift")?;
    let flags = rustix::pipe::SpliceFlags::empty();
    let moved = rustix::pipe::splice(read, None, writable(path)?, None, 5, flags)?;
    ensure!(moved == 5, "moved {moved} bytes");
    Ok(())
}

fn copy_range(path: &Path) -> Result<()> {
    let copied = rustix::fs::copy_file_range(source(path)?, None, writable(path)?, None, 30)?;
    ensure!(copied == 30, "copied {copied} bytes");
    Ok(())
}

fn clone(path: &Path) -> Result<()> {
    let source = source(path)?;
    source.sync_all()?;
    Ok(rustix::fs::ioctl_ficlone(writable(path)?, source)?)
}

fn uring(path: &Path) -> Result<()> {
    let file = writable(path)?;
    tokio_uring::start(async move {
        let file = tokio_uring::fs::File::from_std(file);
        let (result, _) = file.write_all_at(b"drift".to_vec(), 0).await;
        result?;
        file.close().await?;
        Ok(())
    })
}

fn opened_before(path: &Path, daemon_started: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let mut file = writable(path)?;
    daemon_started()?;
    Ok(file.write_all(b"drift")?)
}

/// Opens, and lets a child write: the one who wrote is to be named, not the one who opened.
fn pass(path: &Path) -> Result<()> {
    let file = writable(path)?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut child = Command::new("/proc/self/exe")
        .args(["act", RECEIVER])
        .arg(path)
        .stdin(Stdio::from(theirs))
        .spawn()
        .context("start the receiver")?;
    pause(HELD_OPEN);
    let descriptors = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = SendAncillaryBuffer::new(&mut space);
    ensure!(buffer.push(SendAncillaryMessage::ScmRights(&descriptors)), "no room for a descriptor");
    sendmsg(&ours, &[IoSlice::new(b"x")], &mut buffer, SendFlags::empty())?;
    drop(file);
    let status = child.wait()?;
    ensure!(status.success(), "the receiver ended with {status}");
    Ok(())
}

/// The receiving side: the socket is standard input.
pub(super) fn receive(_: &Path) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut buffer = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(rustix::stdio::stdin(), &mut [IoSliceMut::new(&mut byte)], &mut buffer, RecvFlags::empty())?;
    let descriptor = buffer.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let mut file = File::from(descriptor.context("no descriptor came")?);
    Ok(file.write_all(b"drift")?)
}
