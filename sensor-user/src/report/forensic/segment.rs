//! One file of the log, open for appending.
//!
//! In: lines. Out: bytes that are on the disk when `append` returns. Opening cuts off the remains of a power loss or a failed
//! append after the last whole entry. The file is written at its end only and never rewritten, and no link is followed.

use crate::bounded;
use nix::{
    errno::Errno,
    fcntl::{AtFlags, Flock, FlockArg, OFlag, open, openat},
    sys::stat::{Mode, fstat, fstatat},
};
use sensor_model::chain::{ChainPlace, sound_tail};
use sha2::{Digest as _, Sha256};
use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

/// Name of the file that is written.
pub(super) const CURRENT: &str = "forensic.jsonl";

/// Bytes at the end of a file in which a torn tail is searched for. A power loss tears at most one group of records, which is
/// far smaller.
const TAIL: u64 = 4 << 20;

/// The file that is written.
#[derive(Debug)]
pub(super) struct Segment {
    file: Flock<File>,
    length: u64,
}

/// What was found on opening a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tail {
    /// The end of its chain; `None` for an empty file.
    pub(super) place: Option<ChainPlace>,
    /// Bytes cut off, and their digest.
    pub(super) cut: Option<(u64, String)>,
    /// An entry before the last good one was changed; it stays as it is.
    pub(super) broken: Option<String>,
}

/// Opens the directory of the log. Makes it if it is missing, but not its parents.
pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    match nix::unistd::mkdir(path, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        // On a read-only file system `mkdir` fails, although the directory may exist.
        Err(errno) if !path.is_dir() => return Err(errno),
        Err(_) => {}
    }
    open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
}

impl Segment {
    /// Opens the current file and repairs its tail. Makes the file if it is missing. Fails with `EWOULDBLOCK` if another process
    /// writes it.
    ///
    /// `in_doubt` is the length before a failed append of this daemon. Bytes after it are removed, since that group will be
    /// written again.
    pub(super) fn open(directory: &OwnedFd, in_doubt: Option<u64>) -> io::Result<(Self, Tail)> {
        let flags = OFlag::O_RDWR
            | OFlag::O_APPEND
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_CLOEXEC;
        #[cfg(test)]
        tests::refuse_to_open_as_asked()?;
        let file = openat(directory, CURRENT, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        if fstat(&file)?.st_mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the log is not a regular file"));
        }
        let file =
            Flock::lock(File::from(file), FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        let mut segment = Self { length: file.metadata()?.len(), file };
        if let Some(length) = in_doubt.filter(|length| *length < segment.length) {
            segment.file.set_len(length)?;
            segment.length = length;
        }
        let tail = segment.repair()?;
        nix::unistd::fsync(directory)?;
        Ok((segment, tail))
    }

    /// Bytes in the file.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Appends bytes and waits until the disk has them. After a failure part of them may be in the file, which has to be opened
    /// again.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        tests::fail_as_asked(&mut self.file, bytes)?;
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// How another process changed the file since the last append, if one did.
    pub(super) fn interference(&self, directory: &OwnedFd) -> io::Result<Option<String>> {
        let here = fstat(self.file.as_fd())?;
        match fstatat(directory, CURRENT, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(Some("the file was removed or renamed".to_owned())),
            Err(errno) => return Err(errno.into()),
            Ok(there) if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) => {
                return Ok(Some("another file was put in its place".to_owned()));
            }
            Ok(_) => {}
        }
        let length = u64::try_from(here.st_size).unwrap_or_default();
        Ok((length != self.length).then(|| format!("the file had {} bytes and has {length}", self.length)))
    }

    /// Cuts off the remains of a power loss after the last whole entry.
    fn repair(&mut self) -> io::Result<Tail> {
        let mut window = TAIL;
        loop {
            let from = self.length.saturating_sub(window);
            self.file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            (&*self.file).take(self.length - from).read_to_end(&mut bytes)?;
            // In the middle of the file the first line may be incomplete.
            let begin = match from {
                0 => 0,
                _ => bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1),
            };
            let found = sound_tail(&bytes[begin..]);
            if found.place.is_none() && from > 0 {
                if window >= bounded::OWN {
                    let reason = "no entry is at the end of the log: move it away, or cut off what is behind the last entry";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
                }
                window = window.saturating_mul(4);
                continue;
            }
            let keep = from + (begin + found.sound) as u64;
            let torn = &bytes[begin + found.sound..];
            let mut tail =
                Tail { place: found.place, cut: None, broken: found.broken.map(|fault| fault.to_string()) };
            if !torn.is_empty() {
                tail.cut = Some((self.length - keep, hex::encode(Sha256::digest(torn))));
                self.file.set_len(keep)?;
                self.file.sync_all()?;
                self.length = keep;
            }
            return Ok(tail);
        }
    }
}

/// Fault injection: only root could make a real disk refuse a write.
#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// The next appends of this thread write half of their bytes and fail with this error.
        pub(in crate::report::forensic) static FAIL: Cell<Option<Errno>> = const { Cell::new(None) };
        /// The next opens of this thread fail with this error.
        pub(in crate::report::forensic) static REFUSE: Cell<Option<Errno>> = const { Cell::new(None) };
    }

    pub(super) fn refuse_to_open_as_asked() -> io::Result<()> {
        REFUSE.get().map_or(Ok(()), |errno| Err(errno.into()))
    }

    pub(super) fn fail_as_asked(file: &mut File, bytes: &[u8]) -> io::Result<()> {
        match FAIL.get() {
            None => Ok(()),
            Some(errno) => {
                file.write_all(&bytes[..bytes.len() / 2])?;
                Err(errno.into())
            }
        }
    }
}
