//! A FUSE file system of one file, whose server is a thread of this process. So the file changes without an operation in the kernel.
//!
//! In: a folder, and the first content. Out: the mounted file system. [`Foreign::set`] changes the file. The server can keep a request
//! without an answer, and end. It implements the operations of the FUSE protocol (fuse(4), include/uapi/linux/fuse.h) that reading and
//! writing the file needs, and refuses all others.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::files::load_module;

/// Bytes of a request's header.
const HEADER: usize = 40;
/// Bytes of the buffer for a request: the kernel requires at least so many.
const REQUEST: usize = 8192 + 4096;
/// The file's name and its node; node 1 is the directory.
const NAME: &str = "file";
const FILE: u64 = 2;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const BATCH_FORGET: u32 = 42;

/// Reads by-pass the page cache, which does not learn of changes on the server.
const DIRECT_IO: u32 = 1;

/// The file system. It exists as long as the process.
#[derive(Debug)]
pub struct Foreign {
    shared: Arc<Shared>,
}

/// The server's state.
#[derive(Debug, Default)]
struct Shared {
    content: Mutex<Vec<u8>>,
    mood: Mutex<Mood>,
    changed: Condvar,
}

impl Shared {
    /// Appends the written bytes, as the shell's `>>` requires.
    fn write(&self, request: &[u8]) -> Result<()> {
        let from = usize::try_from(number(request, HEADER + 8)?)?;
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        content.resize(from, 0);
        content.extend(request.get(HEADER + 40..).unwrap_or_default());
        Ok(())
    }
}

/// How the server treats requests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Mood {
    #[default]
    Answers,
    /// It reads a request and does not answer.
    Hangs,
    /// It has ended, and waiting requests fail.
    Ended,
}

impl Foreign {
    /// Creates a folder and mounts the file system on it. The file is `<place>/file`, belongs to root, and has the mode 0644.
    pub fn mount(place: &Path, content: &str) -> Result<Self> {
        Self::with(place, content, Mood::Answers)
    }

    fn with(place: &Path, content: &str, mood: Mood) -> Result<Self> {
        load_module("fuse")?;
        fs::create_dir_all(place)?;
        let device = File::options().read(true).write(true).open("/dev/fuse").context("open /dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        mount(Some("foreign"), place, Some("fuse"), MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("mount FUSE on {}", place.display()))?;
        let shared =
            Shared { content: Mutex::new(content.into()), mood: Mutex::new(mood), ..Shared::default() };
        let shared = Arc::new(shared);
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            if let Err(error) = serve(device, &served) {
                eprintln!("the foreign file system ended: {error:#}");
            }
        });
        Ok(Self { shared })
    }

    /// Mounts a file system that answers no request, on an existing folder.
    pub fn mount_hanging(place: &Path) -> Result<Self> {
        Self::with(place, "", Mood::Hangs)
    }

    /// Answers no request from now on.
    pub fn hang(&self) {
        self.feel(Mood::Hangs);
    }

    /// Answers waiting and new requests again.
    pub fn answer(&self) {
        self.feel(Mood::Answers);
    }

    /// Ends like a killed server: waiting requests fail.
    pub fn end(&self) {
        self.feel(Mood::Ended);
    }

    fn feel(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
        self.shared.changed.notify_all();
    }

    /// Changes the content, as another machine would.
    pub fn set(&self, content: &str) {
        *self.shared.content.lock().unwrap_or_else(PoisonError::into_inner) = content.as_bytes().to_vec();
    }
}

fn serve(mut device: File, shared: &Shared) -> Result<()> {
    let mut request = vec![0; REQUEST];
    loop {
        let length = match device.read(&mut request) {
            // The kernel has withdrawn the request.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => continue,
            other => other.context("read a request")?,
        };
        let request = &request[..length];
        let unique = number(request, 8)?;
        let operation = u32::try_from(number(request, 4)? & u64::from(u32::MAX))?;
        if matches!(operation, FORGET | BATCH_FORGET) {
            continue;
        }
        if operation != INIT {
            let mut mood = shared.mood.lock().unwrap_or_else(PoisonError::into_inner);
            while *mood == Mood::Hangs {
                mood = shared.changed.wait(mood).unwrap_or_else(PoisonError::into_inner);
            }
            if *mood == Mood::Ended {
                return Ok(());
            }
        }
        if operation == WRITE {
            shared.write(request)?;
        }
        let content = shared.content.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = answer(operation, number(request, 16)?, request, &content)?;
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-(errno as i32), Vec::new()),
        };
        let mut reply = u32::try_from(16 + body.len())?.to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(unique.to_ne_bytes());
        reply.extend(body);
        match device.write_all(&reply) {
            // The process that made the request has ended.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {}
            other => other.context("answer a request")?,
        }
    }
}

/// The body of an answer, or its error.
fn answer(operation: u32, node: u64, request: &[u8], content: &[u8]) -> Result<Result<Vec<u8>, Errno>> {
    Ok(match operation {
        INIT => {
            // Version 7.31, no read-ahead, no flags, writes of one page. All other fields are zero.
            let mut body: Vec<u8> = [7_u32, 31, 0, 0, 0, 4096].iter().flat_map(|n| n.to_ne_bytes()).collect();
            body.resize(64, 0);
            Ok(body)
        }
        LOOKUP => {
            let name = request.get(HEADER..).unwrap_or_default().split(|byte| *byte == 0).next();
            if node == 1 && name == Some(NAME.as_bytes()) {
                // Node, generation, and no caching.
                let mut body: Vec<u8> = [FILE, 0, 0, 0, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
                body.extend(attributes(FILE, content.len()));
                Ok(body)
            } else {
                Err(Errno::ENOENT)
            }
        }
        GETATTR => {
            let mut body = vec![0; 16];
            body.extend(attributes(node, content.len()));
            Ok(body)
        }
        OPEN | OPENDIR => {
            let mut body = vec![0; 8];
            body.extend(DIRECT_IO.to_ne_bytes());
            body.extend([0; 4]);
            Ok(body)
        }
        READ => {
            let from = usize::try_from(number(request, HEADER + 8)?)?.min(content.len());
            let size = usize::try_from(number(request, HEADER + 16)? & u64::from(u32::MAX))?;
            Ok(content[from..content.len().min(from.saturating_add(size))].to_vec())
        }
        WRITE => Ok((number(request, HEADER + 16)? & u64::from(u32::MAX)).to_le_bytes().to_vec()),
        READDIR | RELEASE | RELEASEDIR => Ok(Vec::new()),
        _ => Err(Errno::ENOSYS),
    })
}

/// `fuse_attr`: inode, size, blocks, three times with their nanoseconds, mode, links, owner, device, block size.
fn attributes(node: u64, length: usize) -> Vec<u8> {
    let (mode, size) = if node == FILE { (0o100_644_u32, length as u64) } else { (0o40_755, 0) };
    let mut body: Vec<u8> = [node, size, 1, 1, 1, 1].iter().flat_map(|n| n.to_ne_bytes()).collect();
    body.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].iter().flat_map(|n: &u32| n.to_ne_bytes()));
    body
}

/// Eight bytes of a request at an offset.
fn number(request: &[u8], at: usize) -> Result<u64> {
    let eight = request.get(at..at + 8).context("a request that is cut short")?;
    Ok(u64::from_ne_bytes(eight.try_into()?))
}
