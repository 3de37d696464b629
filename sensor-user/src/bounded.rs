//! Whole files, read up to a limit.
//!
//! In: a path or an open file, and a limit in bytes. Out: all bytes, or why not. It compares the size with the limit before it
//! reads a byte. Root reads files that other users can write, such as a sparse file of a terabyte or a link to `/dev/zero`. It
//! never opens a device.

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::{FileStat, Mode, fstat, stat},
};
use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

/// A manifest, a policy or an Ignition config. A cluster's objects are below 2 MiB; an Ignition config may hold more.
pub const CONFIG: u64 = 64 << 20;
/// A file of Holdfast's own: a journal, a history, a status.
pub const OWN: u64 = sensor_model::journal::codec::MAXIMUM_BYTES as u64;
/// The content of a file that an apply replaces and keeps, so that it can be restored.
pub const CONTENT: u64 = 256 << 20;
/// A database of accounts: `/etc/passwd`, `/etc/group`, `/etc/shadow`.
pub const ACCOUNTS: u64 = 16 << 20;
/// A user's ssh keys.
pub const KEYS: u64 = 4 << 20;
/// A unit or a drop-in.
pub const UNIT: u64 = 1 << 20;
/// A table of the kernel, such as the table of mounts, whose size `fs.mount-max` and the length of names bound.
pub const TABLE: u64 = 64 << 20;

/// An object that is not a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A device.
    Device,
    /// A pipe.
    Pipe,
    /// A socket, or something newer.
    Other,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Self::Directory => "a directory",
            Self::Device => "a device",
            Self::Pipe => "a pipe",
            Self::Other => "a socket or something like it",
        }
    }
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The kernel refused.
    #[error("{}", .0.desc())]
    Refused(Errno),
    /// The object is not a regular file.
    #[error("it is {}, not a file", .0.words())]
    Kind(Kind),
    /// The file is too large.
    #[error("it has {size} bytes, and {limit} bytes are the limit")]
    TooLarge {
        /// The file's size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The file shows no size, or grew, and has more bytes than the limit.
    #[error("it has more than {limit} bytes, which are the limit")]
    Endless {
        /// The limit.
        limit: u64,
    },
}

impl Unreadable {
    /// The error number with the same meaning.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(errno) => *errno,
            Self::Kind(Kind::Directory) => Errno::EISDIR,
            Self::Kind(_) => Errno::EINVAL,
            Self::TooLarge { .. } | Self::Endless { .. } => Errno::EFBIG,
        }
    }
}

impl From<Errno> for Unreadable {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl From<Unreadable> for io::Error {
    fn from(error: Unreadable) -> Self {
        match error {
            Unreadable::Refused(errno) => errno.into(),
            Unreadable::Kind(_) => Self::new(io::ErrorKind::InvalidInput, error),
            Unreadable::TooLarge { .. } | Unreadable::Endless { .. } => {
                Self::new(io::ErrorKind::FileTooLarge, error)
            }
        }
    }
}

/// Reads a file or a pipe that the command line names.
///
/// # Errors
/// The file is missing, unreadable, of another type, or larger than the limit.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // The type is checked before the open: open(2) of a device can have side effects.
    let seen = stat(path)?;
    if !is_pipe(&seen) {
        check(&seen, limit)?;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = nix::fcntl::open(path, flags, Mode::empty())?;
    if !is_pipe(&fstat(&file)?) {
        return Ok(read_open(file, limit)?);
    }
    // `O_NONBLOCK` opens a pipe that has no writer yet.
    let ready = &mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    while let Err(Errno::EINTR) = poll(ready, PollTimeout::NONE) {}
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(to_end(file, 0, limit)?)
}

/// The same as text.
///
/// # Errors
/// The same as for [`read`], and a file that is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read(path, limit)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a regular file that is open.
///
/// # Errors
/// The file is of another type or larger than the limit, or the kernel refuses the read.
pub fn read_open(file: OwnedFd, limit: u64) -> Result<Vec<u8>, Unreadable> {
    let size = check(&fstat(&file)?, limit)?;
    to_end(file, size, limit)
}

/// The size of a regular file that may be read.
fn check(stat: &FileStat, limit: u64) -> Result<u64, Unreadable> {
    let kind = match stat.st_mode & nix::libc::S_IFMT {
        nix::libc::S_IFREG => None,
        nix::libc::S_IFDIR => Some(Kind::Directory),
        nix::libc::S_IFCHR | nix::libc::S_IFBLK => Some(Kind::Device),
        nix::libc::S_IFIFO => Some(Kind::Pipe),
        _ => Some(Kind::Other),
    };
    if let Some(kind) = kind {
        return Err(Unreadable::Kind(kind));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > limit { Err(Unreadable::TooLarge { size, limit }) } else { Ok(size) }
}

fn is_pipe(stat: &FileStat) -> bool {
    stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFIFO
}

/// Reads to the end. Files of procfs show no size, and other files may grow during the read.
fn to_end(file: OwnedFd, size: u64, limit: u64) -> Result<Vec<u8>, Unreadable> {
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    let read = File::from(file).take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    if bytes.len() as u64 > limit { Err(Unreadable::Endless { limit }) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write as _, os::unix::fs::symlink};

    fn text(result: io::Result<Vec<u8>>) -> String {
        result.map_or_else(|error| error.to_string(), |bytes| format!("{} bytes", bytes.len()))
    }

    #[test]
    fn a_file_is_read_up_to_its_limit_and_refused_by_its_size_before_a_byte_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(text(read(&path, 5)), "5 bytes");
        assert_eq!(text(read(&path, 4)), "it has 5 bytes, and 4 bytes are the limit");
        // The file is larger than the memory.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(text(read(&path, CONFIG)), "it has 1099511627776 bytes, and 67108864 bytes are the limit");
        let file = File::open(&path).unwrap();
        assert!(matches!(read_open(file.into(), CONTENT), Err(Unreadable::TooLarge { .. })));
    }

    #[test]
    fn a_file_that_shows_no_size_is_read_up_to_the_limit() {
        let cmdline = Path::new("/proc/self/cmdline");
        let whole = read(cmdline, 1 << 20).unwrap();
        assert!(!whole.is_empty());
        let limit = whole.len() as u64 - 1;
        assert_eq!(
            text(read(cmdline, limit)),
            format!("it has more than {limit} bytes, which are the limit")
        );
    }

    #[test]
    fn devices_and_directories_are_refused_also_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        symlink("/dev/zero", &link).unwrap();
        for path in [Path::new("/dev/zero"), &link] {
            assert_eq!(text(read(path, 5)), "it is a device, not a file");
        }
        assert_eq!(text(read(directory.path(), 5)), "it is a directory, not a file");
        let missing = read(&directory.path().join("none"), 5).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_named_pipe_is_read_to_its_end_also_if_the_reader_opens_it_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let reader = std::thread::spawn({
            let path = path.clone();
            move || text(read(&path, 100))
        });
        File::options().write(true).open(&path).unwrap().write_all(&[0; 100]).unwrap();
        assert_eq!(reader.join().unwrap(), "100 bytes");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert!(matches!(read_open(file.into(), 100), Err(Unreadable::Kind(Kind::Pipe))));
    }
}
