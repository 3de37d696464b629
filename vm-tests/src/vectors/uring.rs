//! Operations of `io_uring` that the guest's library does not offer, one at a time.
//!
//! In: a managed thing. Out: the same change by a request in shared memory. A worker handles most of them: a thread of
//! the requesting process, or before 5.12 a kernel thread.

use std::path::Path;

use anyhow::{Context, Result};

use super::raw::{RawProgram, Value};
use super::vector::{Does, ExpectedActor, ExpectedReport, StartState, Vector, elsewhere};

const UNEXPECTED: ExpectedReport = ExpectedReport::Drift("unexpected");

/// A vector in a closed directory.
const fn closed(id: &'static str, name: &'static str, hooks: &'static [&'static str], does: Does) -> Vector {
    Vector::file(id, name, hooks, does)
        .on(StartState::ClosedDirectory)
        .expecting(UNEXPECTED)
        .by(ExpectedActor::Worker)
}

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file(
        "V14b",
        "io_uring write by a worker (IOSQE_ASYNC)",
        &["file_permission", "file_open"],
        Does::Call(write_async),
    )
    .by(ExpectedActor::Worker),
    Vector::file(
        "V15a",
        "io_uring open with O_TRUNC",
        &["file_open", "inode_setattr"],
        Does::Call(|path| {
            request(path, |request| Request { operation: OPEN, length: 0, flags: TRUNCATE, ..request })
        }),
    )
    .by(ExpectedActor::Worker),
    Vector::file("V15b", "io_uring rename over it", &["inode_rename"], Does::Call(rename_over))
        .by(ExpectedActor::Worker),
    Vector::file(
        "V15c",
        "io_uring unlink",
        &["inode_unlink"],
        Does::Call(|path| request(path, |request| Request { operation: UNLINK, length: 0, ..request })),
    )
    .expecting(ExpectedReport::Drift("missing"))
    .by(ExpectedActor::Worker),
    closed(
        "V15d",
        "io_uring link into a closed directory",
        &["inode_link"],
        Does::Call(|dir| two_paths(LINK, &dir.join("10-declared.conf"), &dir.join("20-x.conf"))),
    ),
    closed(
        "V15e",
        "io_uring symbolic link in a closed directory",
        &["inode_symlink"],
        Does::Call(|dir| two_paths(SYMLINK, Path::new("/dev/null"), &dir.join("20-x.conf"))),
    ),
    closed(
        "V15f",
        "io_uring directory in a closed directory",
        &["inode_mkdir"],
        Does::Call(|dir| {
            request(&dir.join("20-x.conf"), |request| Request { operation: MKDIR, length: 0o755, ..request })
        }),
    ),
];

/// Operations (`linux/io_uring.h`).
const OPEN: u8 = 18;
const WRITE: u8 = 23;
const RENAME: u8 = 35;
const UNLINK: u8 = 36;
const MKDIR: u8 = 37;
const SYMLINK: u8 = 38;
const LINK: u8 = 39;
/// `O_WRONLY | O_TRUNC`.
const TRUNCATE: u32 = 0o1001;
/// `AT_FDCWD`.
const HERE: u32 = (-100i32).cast_unsigned();

/// The fields of a `struct io_uring_sqe` that the vectors use.
#[derive(Debug, Clone, Copy)]
struct Request {
    operation: u8,
    /// A worker handles the request, even if the kernel could handle it at once.
    is_async: bool,
    descriptor: u32,
    /// An offset, or the second path.
    other: u64,
    address: u64,
    length: u32,
    flags: u32,
}

impl Request {
    /// A request on a path.
    fn on(path: u64) -> Self {
        Self { operation: 0, is_async: false, descriptor: HERE, other: 0, address: path, length: 0, flags: 0 }
    }

    fn words(self) -> [u64; 8] {
        const ASYNC: u64 = 1 << 4;
        let flags = if self.is_async { ASYNC } else { 0 };
        let first = u64::from(self.operation) | flags << 8 | u64::from(self.descriptor) << 32;
        let fourth = u64::from(self.length) | u64::from(self.flags) << 32;
        [first, self.other, self.address, fourth, 0, 0, 0, 0]
    }
}

/// Creates the rings, submits the request and waits for its end. `descriptor` is the result of an earlier call.
fn submit(program: &mut RawProgram, request: Request, descriptor: Option<Value>) {
    const MMAP: u32 = 9;
    const SETUP: u32 = 425;
    const ENTER: u32 = 426;
    const READ_WRITE: u64 = 3;
    /// `MAP_SHARED | MAP_POPULATE`.
    const SHARED: u64 = 0x8001;
    const OF_REQUESTS: u64 = 0x1000_0000;
    const GET_EVENTS: u64 = 1;
    // struct io_uring_params: `sq_off.tail` is at 44, `cq_off.cqes` at 100.
    let parameters = program.words(&[0; 15]);
    let words = program.words(&request.words());
    if let Some(descriptor) = descriptor {
        program.put(descriptor, words + 4, 4);
    }
    let rings = program.call(SETUP, &[1.into(), parameters.into()]);
    let [shared, requests] = [0, OF_REQUESTS].map(|what| {
        let arguments = [0.into(), 4096.into(), READ_WRITE.into(), SHARED.into(), rings, what.into()];
        program.call(MMAP, &arguments)
    });
    program.copy(words, 8, requests);
    program.store_beyond(shared, parameters + 44, 1u32.to_le_bytes());
    let arguments = [rings, 1.into(), 1.into(), GET_EVENTS.into(), 0.into(), 0.into()];
    let _: Value = program.call(ENTER, &arguments);
    // The first completion. Its result follows its user data.
    program.check_beyond(shared, parameters + 100, 8);
}

/// A kernel that does not know an operation returns EINVAL.
fn offered(done: Result<()>) -> Result<()> {
    done.or_else(|error| match error.downcast_ref::<nix::Error>() {
        Some(nix::Error::EINVAL) => Err(nix::Error::EOPNOTSUPP).context("io_uring has no such operation"),
        _ => Err(error),
    })
}

fn request(path: &Path, of: impl FnOnce(Request) -> Request) -> Result<()> {
    let mut program = RawProgram::default();
    let path = program.path(path);
    submit(&mut program, of(Request::on(path)), None);
    offered(program.run())
}

fn two_paths(operation: u8, one: &Path, other: &Path) -> Result<()> {
    let mut program = RawProgram::default();
    let (one, other) = (program.path(one), program.path(other));
    // The field that holds a length in other requests holds the second path's directory.
    let request = Request { operation, other, length: HERE, ..Request::on(one) };
    // `IORING_OP_SYMLINKAT` looks up only one of its paths.
    let length = if operation == SYMLINK { 0 } else { request.length };
    submit(&mut program, Request { length, ..request }, None);
    offered(program.run())
}

fn rename_over(path: &Path) -> Result<()> {
    let new = elsewhere(path)?;
    std::fs::write(&new, "another file\n")?;
    two_paths(RENAME, &new, path)
}

/// Writes long after the open, so that the write has a record of its own.
fn write_async(path: &Path) -> Result<()> {
    const OPEN_CALL: u32 = 2;
    const WRITE_ONLY: u64 = 1;
    let mut program = RawProgram::default();
    let (path, text) = (program.path(path), program.data(b"drift"));
    let opened = program.call(OPEN_CALL, &[path.into(), WRITE_ONLY.into()]);
    program.pause(2);
    let request = Request { operation: WRITE, is_async: true, length: 5, ..Request::on(text) };
    submit(&mut program, request, Some(opened));
    offered(program.run())
}
