//! One package of rpm's database: a header blob.
//!
//! In: the blob: two counts, an index of tags, a store of values, all big-endian (lib/header.c of rpm). Out: the paths of the package,
//! and the values of its tags.

/// Tag of paths in packages from before rpm 4 (`RPMTAG_OLDFILENAMES`).
const OLD_FILE_NAMES: u32 = 1027;
/// For each file the number of its directory (`RPMTAG_DIRINDEXES`).
const DIRECTORY_INDEXES: u32 = 1116;
/// The last part of each path (`RPMTAG_BASENAMES`).
const BASE_NAMES: u32 = 1117;
/// The directories, each with a slash at its end (`RPMTAG_DIRNAMES`).
const DIRECTORY_NAMES: u32 = 1118;

/// Types of values.
const INT16: u32 = 3;
const INT32: u32 = 4;
const INT64: u32 = 5;
const STRING: u32 = 6;
const STRING_ARRAY: u32 = 8;

/// Bytes of an entry of the index.
const ENTRY: usize = 16;
/// Most entries of an index, and most files of a package; rpm's limits are higher than what any package has.
const MOST_ENTRIES: usize = 1 << 16;
const MOST_FILES: usize = 1 << 20;
/// Most bytes of all paths. A header names a directory once, and its paths name it again and again.
const MOST_BYTES: usize = 64 << 20;

/// Why a blob is not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It ends early, or the index leads out of it.
    #[error("the header of a package ends early")]
    Short,
    /// It has more entries or files than any package.
    #[error("the header of a package has too many entries")]
    TooMany,
    /// A file has no directory.
    #[error("the header of a package has a file without a directory")]
    NoDirectory,
}

/// The header of a package.
pub(super) struct Blob<'a> {
    index: &'a [u8],
    store: &'a [u8],
}

/// The paths of a package, in its order. A path may be relative, as the header has it.
///
/// # Errors
/// See [`HeaderError`].
pub fn paths(blob: &[u8]) -> Result<Vec<Vec<u8>>, HeaderError> {
    let header = Blob::of(blob)?;
    let Some(names) = header.strings(BASE_NAMES)? else {
        let old = header.strings(OLD_FILE_NAMES)?.unwrap_or_default();
        return Ok(old.into_iter().map(<[u8]>::to_vec).collect());
    };
    let directories = header.strings(DIRECTORY_NAMES)?.unwrap_or_default();
    let numbers = header.numbers(DIRECTORY_INDEXES)?.unwrap_or_default();
    if numbers.len() < names.len() {
        return Err(HeaderError::NoDirectory);
    }
    let mut room = MOST_BYTES;
    let path = |(name, number): (&[u8], u32)| {
        let directory = usize::try_from(number).ok().and_then(|number| directories.get(number));
        let path = [directory.ok_or(HeaderError::NoDirectory)?, name].concat();
        room = room.checked_sub(path.len()).ok_or(HeaderError::TooMany)?;
        Ok(path)
    };
    names.into_iter().zip(numbers).map(path).collect()
}

fn number(bytes: &[u8], at: usize) -> Result<u32, HeaderError> {
    let end = at.checked_add(4).ok_or(HeaderError::Short)?;
    let bytes = bytes.get(at..end).and_then(|bytes| bytes.try_into().ok()).ok_or(HeaderError::Short)?;
    Ok(u32::from_be_bytes(bytes))
}

impl<'a> Blob<'a> {
    /// The parts of a blob.
    pub(super) fn of(blob: &'a [u8]) -> Result<Self, HeaderError> {
        let entries = usize::try_from(number(blob, 0)?).map_err(|_| HeaderError::TooMany)?;
        let bytes = usize::try_from(number(blob, 4)?).map_err(|_| HeaderError::Short)?;
        if entries > MOST_ENTRIES {
            return Err(HeaderError::TooMany);
        }
        let start = 8 + entries * ENTRY;
        let end = start.checked_add(bytes).ok_or(HeaderError::Short)?;
        let index = blob.get(8..start).ok_or(HeaderError::Short)?;
        Ok(Self { index, store: blob.get(start..end).ok_or(HeaderError::Short)? })
    }

    /// The values of a tag from its first byte on, and their number; `None` without the tag.
    fn values(&self, tag: u32, kind: u32) -> Result<Option<(&'a [u8], usize)>, HeaderError> {
        for entry in self.index.chunks_exact(ENTRY) {
            if number(entry, 0)? == tag && number(entry, 4)? == kind {
                let at = usize::try_from(number(entry, 8)?).map_err(|_| HeaderError::Short)?;
                let count = usize::try_from(number(entry, 12)?).map_err(|_| HeaderError::TooMany)?;
                if count > MOST_FILES {
                    return Err(HeaderError::TooMany);
                }
                return Ok(Some((self.store.get(at..).ok_or(HeaderError::Short)?, count)));
            }
        }
        Ok(None)
    }

    pub(super) fn strings(&self, tag: u32) -> Result<Option<Vec<&'a [u8]>>, HeaderError> {
        let Some((bytes, count)) = self.values(tag, STRING_ARRAY)? else { return Ok(None) };
        // Each string takes a byte at least, so this is bounded by the blob.
        let mut left = bytes;
        let mut found = Vec::new();
        for _ in 0..count {
            let end = left.iter().position(|byte| *byte == 0).ok_or(HeaderError::Short)?;
            found.push(&left[..end]);
            left = &left[end + 1..];
        }
        Ok(Some(found))
    }

    /// The value of a tag that is one string; empty without the tag.
    pub(super) fn string(&self, tag: u32) -> Result<&'a [u8], HeaderError> {
        let Some((bytes, _)) = self.values(tag, STRING)? else { return Ok(b"") };
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(HeaderError::Short)?;
        Ok(&bytes[..end])
    }

    pub(super) fn numbers(&self, tag: u32) -> Result<Option<Vec<u32>>, HeaderError> {
        Ok(self
            .chunks(tag, INT32)?
            .map(|chunks| chunks.iter().map(|chunk| u32::from_be_bytes(*chunk)).collect()))
    }

    pub(super) fn short_numbers(&self, tag: u32) -> Result<Option<Vec<u16>>, HeaderError> {
        Ok(self
            .chunks(tag, INT16)?
            .map(|chunks| chunks.iter().map(|chunk| u16::from_be_bytes(*chunk)).collect()))
    }

    pub(super) fn long_numbers(&self, tag: u32) -> Result<Option<Vec<u64>>, HeaderError> {
        Ok(self
            .chunks(tag, INT64)?
            .map(|chunks| chunks.iter().map(|chunk| u64::from_be_bytes(*chunk)).collect()))
    }

    /// Single bytes, of either type that rpm has for them (`RPM_CHAR_TYPE`, `RPM_INT8_TYPE`).
    pub(super) fn bytes(&self, tag: u32) -> Result<Option<&'a [u8]>, HeaderError> {
        for kind in [1, 2] {
            if let Some((bytes, count)) = self.values(tag, kind)? {
                return bytes.get(..count).ok_or(HeaderError::Short).map(Some);
            }
        }
        Ok(None)
    }

    fn chunks<const N: usize>(&self, tag: u32, kind: u32) -> Result<Option<&'a [[u8; N]]>, HeaderError> {
        let Some((bytes, count)) = self.values(tag, kind)? else { return Ok(None) };
        let bytes = bytes.get(..count * N).ok_or(HeaderError::Short)?;
        Ok(Some(bytes.as_chunks::<N>().0))
    }
}
