//! An index, opened.
//!
//! In: an index file. Out: the entry of a path, or all entries in their order. The digest of the file is verified once, when it is
//! opened. After that only the table of slots is in memory, and a look-up reads one record of the file. Every offset and length
//! is checked at each read, since root may change the file meanwhile.

use super::{deployment::booted_commit, error::ImageError, merged_extensions};
use crate::{observation::Observer, packages, sys::CallError};
use nix::{fcntl::OFlag, sys::stat::Mode};
use sensor_model::{
    image::{
        ImageEntry, ImageMeta, ImageSource, IndexError, MAGIC, PathHasher, RECORD_LIMIT, SlotTable, TRAILER,
        Trailer, decode_record, path_hash,
    },
    os::PristineEtc,
};
use sha2::{Digest as _, Sha256};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _},
    path::{Path, PathBuf},
};

/// Bytes of the first read of a record. Most records are shorter.
const FIRST: usize = 512;

/// The index of an image.
#[derive(Debug)]
pub struct ImageIndex {
    path: PathBuf,
    file: File,
    /// Where the records end.
    records: u64,
    slots: SlotTable,
    hasher: PathHasher,
    meta: ImageMeta,
    sha256: [u8; 32],
    /// The host does not keep the pristine `/etc` where the index has it once more.
    hides_shipped_etc: bool,
}

impl ImageIndex {
    /// Opens an index and verifies its digest.
    ///
    /// # Errors
    /// A file that cannot be read, is of another version, or is damaged.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let failed = |operation, cause: io::Error| ImageError::Call(CallError::new(path, operation, cause));
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = nix::fcntl::open(path, flags, Mode::empty());
        let file = File::from(opened.map_err(|errno| failed("open", errno.into()))?);
        let metadata = file.metadata().map_err(|error| failed("read", error))?;
        let damaged = |reason| ImageError::Index { path: path.to_owned(), reason };
        if !metadata.is_file() {
            return Err(damaged(IndexError::Magic));
        }
        Self::read(path, file, metadata.len()).map_err(|error| match error {
            ReadError::Io(error) => failed("read", error),
            ReadError::Index(reason) => damaged(reason),
        })
    }

    fn read(path: &Path, file: File, length: u64) -> Result<Self, ReadError> {
        let mut magic = [0; MAGIC.len()];
        let end = length.checked_sub(TRAILER as u64).ok_or(IndexError::Magic)?;
        file.read_exact_at(&mut magic, 0)?;
        if magic != *MAGIC {
            return Err(IndexError::Magic.into());
        }
        let mut bytes = [0; TRAILER];
        file.read_exact_at(&mut bytes, end)?;
        let trailer = Trailer::decode(&bytes, length)?;
        let mut whole = Hashing { file: BufReader::with_capacity(FILE_BUFFER, file), digest: Sha256::new() };
        whole.file.seek(SeekFrom::Start(0))?;
        let records = MAGIC.len() as u64 + trailer.records;
        whole.skip(records)?;
        let slots = SlotTable::of_bytes(&whole.take(trailer.slots * 8)?)?;
        let meta = whole.take(trailer.meta)?;
        whole.skip((TRAILER - 32) as u64)?;
        let Hashing { file, digest } = whole;
        if <[u8; 32]>::from(digest.finalize()) != trailer.sha256 {
            return Err(IndexError::Damaged("its digest").into());
        }
        let meta: ImageMeta =
            serde_json::from_slice(&meta).map_err(|_| IndexError::Damaged("the description of the image"))?;
        let hasher = path_hash(&meta.digest);
        Ok(Self {
            path: path.to_owned(),
            file: file.into_inner(),
            records,
            slots,
            hasher,
            meta: meta.with_kind_of_digest(),
            sha256: trailer.sha256,
            hides_shipped_etc: false,
        })
    }

    /// The digest of the file.
    pub(super) fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    /// What the index says about its image.
    pub fn meta(&self) -> &ImageMeta {
        &self.meta
    }

    /// The index without the paths that this host does not have: `/usr/etc` is only on an ostree host.
    pub(super) fn on(mut self, observer: &Observer) -> Self {
        self.hides_shipped_etc = self.meta.shipped_etc && booted_commit(observer).is_none();
        self
    }

    /// Whether a path is one that the host does not have.
    fn hides(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        self.hides_shipped_etc && path.starts_with(PristineEtc::Ostree.directory())
    }

    /// Refuses the index of a host's packages if they changed since it was made, that of another commit than the booted one, and that of
    /// other extensions than those that are merged now. Leaves out the paths that this host does not have.
    ///
    /// # Errors
    /// [`ImageError::Old`], [`ImageError::OtherCommit`] and [`ImageError::OtherExtensions`], with the root of the observer.
    pub fn refuse_old(self, observer: &Observer) -> Result<Self, ImageError> {
        let index = self.on(observer);
        let root = || observer.root_path().to_owned();
        match (&index.meta.state, index.meta.source) {
            (None, _) => Ok(index),
            (state, ImageSource::Ostree) if *state != booted_commit(observer) => {
                Err(ImageError::OtherCommit(root()))
            }
            (Some(state), ImageSource::Packages) if !is_state_of_packages(state, observer) => {
                Err(ImageError::Old(root()))
            }
            (Some(state), ImageSource::Extensions) if *state != merged_extensions::state(observer) => {
                Err(ImageError::OtherExtensions(root()))
            }
            (Some(_), _) => Ok(index),
        }
    }

    /// The entry of a path; `None` if the image has nothing there. Links are not followed.
    ///
    /// # Errors
    /// The file cannot be read, or was changed since it was opened.
    pub fn find(&self, path: &[u8]) -> Result<Option<ImageEntry>, ImageError> {
        if self.hides(path) {
            return Ok(None);
        }
        let mut short = [0; FIRST];
        let mut long = Vec::new();
        for offset in self.slots.candidates(self.hasher.hash(path)) {
            let record = self.record(offset, &mut short, &mut long)?;
            let (found, entry) = decode_record(record).ok_or_else(|| self.damaged("a record"))?;
            if found == path {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// The record at an offset, without its length.
    fn record<'a>(
        &self,
        offset: u64,
        short: &'a mut [u8; FIRST],
        long: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ImageError> {
        let room = self.records.checked_sub(offset).filter(|_| offset >= MAGIC.len() as u64);
        let room = usize::try_from(room.unwrap_or(0)).unwrap_or(usize::MAX);
        let first = room.min(FIRST);
        self.read_at(&mut short[..first], offset)?;
        let length =
            short.first_chunk::<4>().filter(|_| first > 4).ok_or_else(|| self.damaged("an offset"))?;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > RECORD_LIMIT || length > room - 4 {
            return Err(self.damaged("the length of a record"));
        }
        if length + 4 <= first {
            return Ok(&short[4..length + 4]);
        }
        long.resize(length, 0);
        self.read_at(long, offset + 4)?;
        Ok(long)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), ImageError> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|error| CallError::new(&self.path, "read", error).into())
    }

    fn damaged(&self, what: &'static str) -> ImageError {
        ImageError::Index { path: self.path.clone(), reason: IndexError::Damaged(what) }
    }

    /// Calls `take` for every path in the order of the index: a directory before what is in it.
    ///
    /// # Errors
    /// The file cannot be read, or was changed since it was opened; and those of `take`, which end the walk.
    pub fn each<E: From<ImageError>>(
        &self,
        mut take: impl FnMut(&[u8], ImageEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        self.each_from(0, |_, path, entry| take(path, entry))
    }

    /// The same from an offset on that an earlier walk gave, or from 0. `take` also gets the offset of the next path.
    ///
    /// # Errors
    /// As [`ImageIndex::each`].
    pub(super) fn each_from<E: From<ImageError>>(
        &self,
        offset: u64,
        mut take: impl FnMut(u64, &[u8], ImageEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut offset = offset.max(MAGIC.len() as u64);
        let mut buffer = vec![0; FILE_BUFFER];
        let mut filled = 0..0;
        while offset < self.records {
            let next = |filled: &std::ops::Range<usize>, buffer: &[u8]| {
                let bytes = &buffer[filled.clone()];
                let (length, rest) = bytes.split_first_chunk::<4>()?;
                let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
                (length <= rest.len()).then_some(length)
            };
            let length = if let Some(length) = next(&filled, &buffer) {
                length
            } else {
                let room = usize::try_from(self.records - offset).unwrap_or(usize::MAX);
                filled = 0..room.min(buffer.len());
                self.read_at(&mut buffer[filled.clone()], offset)?;
                next(&filled, &buffer)
                    .filter(|length| *length <= RECORD_LIMIT)
                    .ok_or_else(|| self.damaged("the length of a record"))?
            };
            let start = filled.start + 4;
            let (path, entry) =
                decode_record(&buffer[start..start + length]).ok_or_else(|| self.damaged("a record"))?;
            filled.start = start + length;
            offset += 4 + length as u64;
            if !self.hides(path) {
                take(offset, path, entry)?;
            }
        }
        Ok(())
    }
}

/// Bytes that are read at once. More than the longest record.
const FILE_BUFFER: usize = 2 * RECORD_LIMIT;

enum ReadError {
    Io(io::Error),
    Index(IndexError),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<IndexError> for ReadError {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

/// A file that is read once from its beginning.
struct Hashing {
    file: BufReader<File>,
    digest: Sha256,
}

impl Hashing {
    fn skip(&mut self, mut length: u64) -> Result<(), ReadError> {
        while length > 0 {
            let bytes = self.file.fill_buf()?;
            let taken = bytes.len().min(usize::try_from(length).unwrap_or(usize::MAX));
            if taken == 0 {
                return Err(IndexError::Damaged("its length").into());
            }
            self.digest.update(&bytes[..taken]);
            self.file.consume(taken);
            length -= taken as u64;
        }
        Ok(())
    }

    /// Bytes of a part that the trailer's limits bound.
    fn take(&mut self, length: u64) -> Result<Vec<u8>, ReadError> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.file.read_exact(&mut bytes)?;
        self.digest.update(&bytes);
        Ok(bytes)
    }
}

/// Whether an index notes the present packages. An earlier version of Holdfast noted the versions of the databases' files.
fn is_state_of_packages(noted: &str, observer: &Observer) -> bool {
    noted == packages::state(observer) || noted == packages::versions(observer)
}
