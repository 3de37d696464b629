//! Content by descriptor and by path: everything that the kernel handles as a write or a change of size.
//!
//! In: a managed file that holds at least 100 bytes. Out: the same file with other content.

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

use super::raw::{RawProgram, Value};
use super::vector::{Does, ExpectedActor, StartState, Vector, elsewhere};
use crate::guest::page;
use crate::guest::wait::pause;

/// Argument of the process that receives a descriptor over a socket.
pub(crate) const RECEIVER: &str = "receiver";

/// Long enough for the daemon to receive the open and to verify the file before the next operation.
pub(super) const HANDLED_SECONDS: u64 = 2;

const OPEN: &[&str] = &["file_open", "file_permission"];
const SIZE: &[&str] = &["inode_setattr"];

/// The vectors of this family.
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
    Vector::file("V05c", "fallocate, collapse a range", OPEN, Does::Call(collapse)).on(StartState::Blocks),
    Vector::file("V05d", "fallocate, insert a range", OPEN, Does::Call(insert)).on(StartState::Blocks),
    Vector::file("V08", "sendfile(2) into the file", OPEN, Does::Call(sendfile)),
    Vector::file("V09", "splice(2) from a pipe", OPEN, Does::Call(splice)),
    Vector::file("V10a", "copy_file_range(2)", OPEN, Does::Call(copy_range)),
    Vector::file("V13", "aio, io_submit(2)", OPEN, Does::Call(aio)).by(ExpectedActor::Child),
    Vector::file("V14", "io_uring write", OPEN, Does::Call(uring)),
    Vector::file("V17", "io_uring, SQPOLL thread writes", OPEN, Does::Call(uring_thread)),
    Vector::file(
        "V22",
        "descriptor opened before the start",
        &["file_permission"],
        Does::Early(opened_before),
    ),
    Vector::file("V23", "descriptor passed by SCM_RIGHTS", &["file_permission"], Does::Call(pass))
        .by(ExpectedActor::Child),
    Vector::file("V30", "open_by_handle_at(2)", OPEN, Does::Call(by_handle)).by(ExpectedActor::Child),
];

/// Waits until the daemon has handled the earlier operations, so that the next one has a record of its own.
pub(super) fn wait_until_handled() {
    pause(Duration::from_secs(HANDLED_SECONDS));
}

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
    wait_until_handled();
    page::wait_for_hook("file_permission")?;
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

/// A multiple of the block size of every file system here.
const BLOCKS: u64 = 4096;

fn collapse(path: &Path) -> Result<()> {
    Ok(rustix::fs::fallocate(writable(path)?, FallocateFlags::COLLAPSE_RANGE, 0, BLOCKS)?)
}

fn insert(path: &Path) -> Result<()> {
    Ok(rustix::fs::fallocate(writable(path)?, FallocateFlags::INSERT_RANGE, 0, BLOCKS)?)
}

/// A file of other content in the same file system.
pub(super) fn source(path: &Path) -> Result<File> {
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

/// A kernel thread takes the request from shared memory, in the name of this process.
fn uring_thread(path: &Path) -> Result<()> {
    const IDLE_MS: u32 = 100;
    let file = writable(path)?;
    let mut rings = tokio_uring::uring_builder();
    rings.setup_sqpoll(IDLE_MS);
    tokio_uring::builder().uring_builder(&rings).start(async move {
        let file = tokio_uring::fs::File::from_std(file);
        let (result, _) = file.write_all_at(b"drift".to_vec(), 0).await;
        match result {
            // The first kernels with such threads accepted only registered files.
            Err(error) if error.raw_os_error() == Some(nix::Error::EBADF as i32) => {
                Err(nix::Error::EOPNOTSUPP).context("a file that is not registered")
            }
            other => Ok(other?),
        }
    })
}

const OPEN_CALL: u32 = 2;
const WRITE_ONLY: u64 = 1;

fn aio(path: &Path) -> Result<()> {
    const IO_SETUP: u32 = 206;
    const IO_GETEVENTS: u32 = 208;
    const IO_SUBMIT: u32 = 209;
    /// `IOCB_CMD_PWRITE`, in the low half of the word whose high half is the descriptor.
    const PWRITE: u64 = 1;
    let mut program = RawProgram::default();
    let (path, text) = (program.path(path), program.data(b"drift"));
    let aio_context = program.words(&[0]);
    // struct iocb (linux/aio_abi.h): data, key, opcode and descriptor, buffer, length, offset, reserved, flags
    let request = program.words(&[0, 0, PWRITE, text, 5, 0, 0, 0]);
    let list = program.words(&[request]);
    let events = program.words(&[0; 4]);
    let opened = program.call(OPEN_CALL, &[path.into(), WRITE_ONLY.into()]);
    program.put(opened, request + 20, 4);
    let _: Value = program.call(IO_SETUP, &[1.into(), aio_context.into()]);
    let aio_context = Value::At(aio_context);
    let _: Value = program.call(IO_SUBMIT, &[aio_context, 1.into(), list.into()]);
    let _: Value = program.call(IO_GETEVENTS, &[aio_context, 1.into(), 1.into(), events.into(), 0.into()]);
    program.run()
}

fn by_handle(path: &Path) -> Result<()> {
    const WRITE: u32 = 1;
    const NAME_TO_HANDLE_AT: u32 = 303;
    const OPEN_BY_HANDLE_AT: u32 = 304;
    const HERE: u64 = (-100i64).cast_unsigned();
    const HANDLE_BYTES: u32 = 128;
    let mut program = RawProgram::default();
    let directory = program.path(path.parent().context("a path with a directory")?);
    let (path, text, mount) = (program.path(path), program.data(b"drift"), program.words(&[0]));
    let handle = program.words(&[HANDLE_BYTES.into()]);
    let _: u64 = program.data(&[0; 128]);
    let arguments = [HERE.into(), path.into(), handle.into(), mount.into(), 0.into()];
    let _: Value = program.call(NAME_TO_HANDLE_AT, &arguments);
    let directory = program.call(OPEN_CALL, &[directory.into(), 0.into()]);
    let opened = program.call(OPEN_BY_HANDLE_AT, &[directory, handle.into(), WRITE_ONLY.into()]);
    let _: Value = program.call(WRITE, &[opened, text.into(), 5.into()]);
    program.run()
}

fn opened_before(path: &Path, daemon_started: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let mut file = writable(path)?;
    daemon_started()?;
    Ok(file.write_all(b"drift")?)
}

/// Opens the file and lets a child write. Holdfast must name the child, not the process that opened.
fn pass(path: &Path) -> Result<()> {
    let file = writable(path)?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut child = Command::new("/proc/self/exe")
        .args(["act", RECEIVER])
        .arg(path)
        .stdin(Stdio::from(theirs))
        .spawn()
        .context("start the receiver")?;
    // Only with this hook can Holdfast distinguish the writer from the process that opened.
    page::wait_for_hook("file_permission")?;
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

/// The receiving side; standard input is the socket.
pub(crate) fn receive(_: &Path) -> Result<()> {
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
