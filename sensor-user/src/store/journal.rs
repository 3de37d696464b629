//! The journal's file: records that are appended durably.
//!
//! In: records of `sensor_model::journal`. Out: a file that gets its name when its first record is whole and durable, and that ends
//! with a whole record after each append.

use super::{error::StoreError, files::Store};
use crate::{
    bounded,
    sys::{self, CallError},
};
use nix::errno::Errno;
use sensor_model::journal::{
    JournalRecord,
    codec::{self, ParsedJournal},
};
use std::{ffi::OsStr, fs, io, os::fd::OwnedFd, path::PathBuf};

const JOURNAL: &str = "journal";
/// The journal while its first record is being written.
const NEW_JOURNAL: &str = ".journal.new";

/// Space that is reserved for the short records after the first, so that a full disk cannot refuse them.
pub(crate) const RESERVE: i64 = 64 << 10;

impl Store {
    /// The journal of an apply that has not ended; `None` if all have ended.
    ///
    /// # Errors
    /// The journal was changed, or cannot be read.
    pub fn open_journal(&self) -> Result<Option<ParsedJournal>, StoreError> {
        let path = self.path.join(JOURNAL);
        let bytes = match bounded::read(&path, bounded::OWN) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CallError::new(&path, "read", error).into()),
        };
        codec::parse(&bytes).map(Some).map_err(StoreError::Journal)
    }

    /// Begins a journal. The file gets its name after its first record is whole and durable.
    pub(crate) fn begin_journal(&self, record: &JournalRecord) -> Result<JournalFile, StoreError> {
        let path = self.path.join(JOURNAL);
        let failed = |operation| move |errno| CallError::new(&self.path.join(JOURNAL), operation, errno);
        self.forget_new_journal()?;
        let directory = sys::directory(&self.path).map_err(failed("open"))?;
        let (new, name) = (OsStr::new(NEW_JOURNAL), OsStr::new(JOURNAL));
        let file = sys::create(&directory, new).map_err(failed("make"))?;
        let mut journal = JournalFile { path, file, digest: String::new(), length: 0 };
        let begun = journal
            .append(record)
            .map_err(AppendError::into_inner)
            // The space is behind the first record, which has any length.
            .and_then(|()| {
                journal.reserve().map_err(failed("reserve space"))?;
                // The journal names contents and the config, so they are durable first.
                sys::sync_all(&directory).map_err(failed("sync the file system"))?;
                sys::rename_free(&directory, new, name).map_err(failed("rename"))?;
                Ok(sys::sync(&directory).map_err(failed("sync the directory"))?)
            });
        if let Err(error) = begun {
            self.forget_new_journal()?;
            self.remove_journal()?;
            return Err(error);
        }
        Ok(journal)
    }

    /// Removes the file of a process that was killed before its journal had its name.
    pub(crate) fn forget_new_journal(&self) -> Result<(), StoreError> {
        let failed = |operation| move |errno| CallError::new(&self.path.join(NEW_JOURNAL), operation, errno);
        let directory = sys::directory(&self.path).map_err(failed("open"))?;
        match sys::remove(&directory, OsStr::new(NEW_JOURNAL), false) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(failed("remove")(errno).into()),
        }
    }

    /// Opens a journal to append to it, and cuts an unfinished record off its end.
    pub(crate) fn continue_journal(&self, parsed: &ParsedJournal) -> Result<JournalFile, StoreError> {
        let path = self.path.join(JOURNAL);
        let file = fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(|error| CallError::new(&path, "open", error))?;
        let mut journal =
            JournalFile { path, file: file.into(), digest: parsed.digest.clone(), length: parsed.sound };
        if parsed.torn > 0 {
            journal.cut().map_err(|errno| CallError::new(&journal.path, "cut", errno))?;
        }
        Ok(journal)
    }

    /// Removes the journal.
    pub(crate) fn remove_journal(&self) -> Result<(), StoreError> {
        let failed = |operation| move |errno| CallError::new(&self.path.join(JOURNAL), operation, errno);
        let directory = sys::directory(&self.path).map_err(failed("open"))?;
        match sys::remove(&directory, OsStr::new(JOURNAL), false) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed("remove")(errno).into()),
        }
        Ok(sys::sync(&directory).map_err(failed("sync"))?)
    }
}

/// A journal that is being written.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    file: OwnedFd,
    digest: String,
    /// Bytes of whole records.
    length: usize,
}

/// Why a record was not written.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// Nothing of the record is in the file.
    Clean(StoreError),
    /// The end of the journal is unknown.
    Broken(StoreError),
}

impl AppendError {
    fn into_inner(self) -> StoreError {
        match self {
            Self::Clean(error) | Self::Broken(error) => error,
        }
    }
}

impl JournalFile {
    /// Adds a record, durably.
    pub(crate) fn append(&mut self, record: &JournalRecord) -> Result<(), AppendError> {
        let (line, digest) = codec::line(&self.digest, record)
            .map_err(|error| AppendError::Clean(StoreError::Journal(error)))?;
        let written = sys::write(&self.file, line.as_bytes()).and_then(|()| sys::sync(&self.file));
        if let Err(errno) = written {
            let error = CallError::new(&self.path, "write a record", errno).into();
            // A file system that became read-only refuses the cut as well, but then the append wrote nothing.
            let clean = self.is_as_it_was() || self.cut().is_ok();
            return Err(if clean { AppendError::Clean(error) } else { AppendError::Broken(error) });
        }
        self.digest = digest;
        self.length += line.len();
        Ok(())
    }

    /// Whether the file ends with the last whole record.
    fn is_as_it_was(&self) -> bool {
        let size = nix::sys::stat::fstat(&self.file).map(|stat| usize::try_from(stat.st_size));
        size == Ok(Ok(self.length))
    }

    fn cut(&mut self) -> Result<(), Errno> {
        let length = i64::try_from(self.length).map_err(|_| Errno::EFBIG)?;
        sys::truncate(&self.file, length)?;
        nix::unistd::lseek(&self.file, length, nix::unistd::Whence::SeekSet)?;
        sys::sync(&self.file)?;
        // The cut also frees the reserved space. If the space cannot be reserved again, records may still fit.
        let _ = self.reserve();
        Ok(())
    }

    /// Reserves space for the records that follow.
    fn reserve(&self) -> Result<(), Errno> {
        let length = i64::try_from(self.length).map_err(|_| Errno::EFBIG)?;
        sys::reserve(&self.file, length, RESERVE)
    }
}
