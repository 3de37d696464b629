//! The form of an index file.
//!
//! In: entries, or bytes of a file that may be damaged. Out: bytes, or entries. The file has four parts: the records in the order
//! of their paths, a table of slots, a description in JSON, and a trailer with the length of each part and one digest of all of
//! it. A look-up reads one slot in memory and one record of the file. A slot holds a part of the path's hash, and the offset of the
//! record. The hash begins with the image's digest, so that nobody can make an image whose paths share one slot.

use super::entry::{ImageEntry, Known};
use crate::observation::FileType;
use sha2::{Digest as _, Sha256};

/// The beginning of an index file.
pub const MAGIC: &[u8; 16] = b"holdfast-index\n\0";
/// The version of the form that is written.
const VERSION: u32 = 4;
/// The oldest version that is read. It has no checksums of ostree, and no path that may be missing.
const OLDEST: u32 = 2;
/// Bytes of the trailer.
pub const TRAILER: usize = 80;
/// Most bytes of one record.
pub const RECORD_LIMIT: usize = 128 << 10;
/// Most bytes of the description.
pub const META_LIMIT: u64 = 16 << 20;
/// Most slots.
const SLOT_LIMIT: u64 = 1 << 23;
/// The bits of a slot that hold the offset of a record. The others hold a part of the hash.
const OFFSET_BITS: u32 = 40;

/// What is wrong with an index file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It is another file.
    #[error("it is not an index of an image")]
    Magic,
    /// Another version of Holdfast wrote it.
    #[error("it has version {0} of the format, and this Holdfast reads versions {OLDEST} to {VERSION}")]
    Version(u32),
    /// It was changed, or written in part.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// The hash of paths in one index.
#[derive(Debug, Clone)]
pub struct PathHasher(Sha256);

/// The hash of paths in the index of an image.
pub fn path_hash(image: &str) -> PathHasher {
    let mut state = Sha256::new();
    // One block of the hash function, so that a short path needs one more.
    let digits = image.split_once(':').map_or(image, |(_, digits)| digits);
    state.update(digits.as_bytes());
    PathHasher(state)
}

impl PathHasher {
    /// The hash of a path.
    pub fn hash(&self, path: &[u8]) -> u64 {
        let mut state = self.0.clone();
        state.update(path);
        let digest = state.finalize();
        digest.iter().take(8).fold(0, |hash, byte| (hash << 8) | u64::from(*byte))
    }
}

/// The slots of an index.
#[derive(Debug)]
pub struct SlotTable {
    slots: Vec<u64>,
}

impl SlotTable {
    /// Room for so many entries.
    pub fn with_room(entries: u64) -> Self {
        let slots = (entries + entries / 3 + 1).next_power_of_two().clamp(8, SLOT_LIMIT);
        Self { slots: vec![0; usize::try_from(slots).unwrap_or(8)] }
    }

    /// Slots as the file has them.
    ///
    /// # Errors
    /// Their number is not one that [`SlotTable::with_room`] makes.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, IndexError> {
        let (chunks, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() || !chunks.len().is_power_of_two() {
            return Err(IndexError::Damaged("the number of slots"));
        }
        Ok(Self { slots: chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect() })
    }

    /// The bytes for the file.
    pub fn bytes(&self) -> impl Iterator<Item = u8> {
        self.slots.iter().flat_map(|slot| slot.to_le_bytes())
    }

    /// How many slots there are.
    pub fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Adds the record of a path; `false` if there is no room, or the offset is too large.
    pub fn insert(&mut self, hash: u64, offset: u64) -> bool {
        if offset == 0 || offset >> OFFSET_BITS != 0 {
            return false;
        }
        let slot = ((hash >> OFFSET_BITS) << OFFSET_BITS) | offset;
        let mask = self.slots.len() - 1;
        let home = home(hash, mask);
        for step in 0..=mask {
            let place = (home + step) & mask;
            if self.slots[place] == 0 {
                self.slots[place] = slot;
                return true;
            }
        }
        false
    }

    /// The offsets of records that may be that of a path.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = u64> {
        let mask = self.slots.len() - 1;
        let home = home(hash, mask);
        (0..=mask)
            .map(move |step| self.slots[(home + step) & mask])
            .take_while(|slot| *slot != 0)
            .filter(move |slot| slot >> OFFSET_BITS == hash >> OFFSET_BITS)
            .map(|slot| slot & ((1 << OFFSET_BITS) - 1))
    }
}

fn home(hash: u64, mask: usize) -> usize {
    usize::try_from(hash & u64::from(u32::MAX)).unwrap_or(0) & mask
}

/// The end of an index file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trailer {
    /// Bytes of the records.
    pub records: u64,
    /// How many slots there are.
    pub slots: u64,
    /// Bytes of the description.
    pub meta: u64,
    /// How many paths there are.
    pub entries: u64,
    /// SHA-256 of everything before the digest.
    pub sha256: [u8; 32],
}

impl Trailer {
    /// The bytes before the digest.
    pub fn head(&self) -> [u8; TRAILER - 32] {
        let mut bytes = [0; TRAILER - 32];
        bytes[..8].copy_from_slice(&MAGIC[..8]);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        for (place, number) in [self.records, self.slots, self.meta, self.entries].iter().enumerate() {
            bytes[16 + place * 8..24 + place * 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads the trailer of a file of `length` bytes.
    ///
    /// # Errors
    /// Another version, and parts that do not make the length.
    pub fn decode(bytes: &[u8; TRAILER], length: u64) -> Result<Self, IndexError> {
        if bytes[..8] != MAGIC[..8] {
            return Err(IndexError::Damaged("its end is missing"));
        }
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(IndexError::Version(version));
        }
        let (numbers, sha256) = (&bytes[16..48], &bytes[48..]);
        let number = |place: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&numbers[place * 8..place * 8 + 8]);
            u64::from_le_bytes(bytes)
        };
        let mut trailer = Self {
            records: number(0),
            slots: number(1),
            meta: number(2),
            entries: number(3),
            sha256: [0; 32],
        };
        trailer.sha256.copy_from_slice(sha256);
        if trailer.slots > SLOT_LIMIT || trailer.meta > META_LIMIT || trailer.entries >= trailer.slots.max(1)
        {
            return Err(IndexError::Damaged("the sizes of its parts"));
        }
        let parts = [MAGIC.len() as u64, trailer.slots * 8, trailer.meta, TRAILER as u64];
        let sum = parts.iter().try_fold(trailer.records, |sum, part| sum.checked_add(*part));
        if sum != Some(length) {
            return Err(IndexError::Damaged("its length"));
        }
        Ok(trailer)
    }
}

const IS_CONFIG: u8 = 1;
const HAS_DIGEST: u8 = 2;
const HAS_TARGET: u8 = 4;
const HAS_DEVICE: u8 = 8;
const HAS_LINKS: u8 = 16;
const HAS_MD5: u8 = 32;
/// Two bits: the place in [`Known::ALL`].
const KNOWN: u32 = 6;
/// Bits of the type's byte.
const HAS_OSTREE: u8 = 128;
const MAY_BE_MISSING: u8 = 64;

/// Adds the record of a path: its length, and then its fields.
pub fn encode_record(path: &[u8], entry: &ImageEntry, into: &mut Vec<u8>) {
    let start = into.len();
    into.extend_from_slice(&[0; 4]);
    text(path, into);
    let file_type = FileType::ALL.iter().position(|kind| *kind == entry.file_type).unwrap_or(0);
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    into.push(
        u8::try_from(file_type).unwrap_or(0)
            | flag(entry.ostree.is_some(), HAS_OSTREE)
            | flag(entry.may_be_missing, MAY_BE_MISSING),
    );
    let known = Known::ALL.iter().position(|known| *known == entry.known).unwrap_or(0);
    let known = u8::try_from(known).unwrap_or(0);
    into.push(
        flag(entry.config, IS_CONFIG)
            | flag(entry.sha256.is_some(), HAS_DIGEST)
            | flag(entry.target.is_some(), HAS_TARGET)
            | flag(entry.device.is_some(), HAS_DEVICE)
            | flag(entry.links != 0, HAS_LINKS)
            | flag(entry.md5.is_some(), HAS_MD5)
            | (known << KNOWN),
    );
    for number in [entry.mode, entry.uid, entry.gid] {
        into.extend_from_slice(&number.to_le_bytes());
    }
    into.extend_from_slice(&entry.layer.to_le_bytes());
    into.extend_from_slice(&entry.size.to_le_bytes());
    if let Some(sha256) = &entry.sha256 {
        into.extend_from_slice(sha256);
    }
    if let Some(md5) = &entry.md5 {
        into.extend_from_slice(md5);
    }
    if let Some(checksum) = &entry.ostree {
        into.extend_from_slice(checksum);
    }
    if let Some(target) = &entry.target {
        text(target, into);
    }
    if let Some((major, minor)) = entry.device {
        into.extend_from_slice(&major.to_le_bytes());
        into.extend_from_slice(&minor.to_le_bytes());
    }
    if entry.links != 0 {
        into.extend_from_slice(&entry.links.to_le_bytes());
    }
    for (name, value) in &entry.xattrs {
        text(name.as_bytes(), into);
        text(value.as_bytes(), into);
    }
    let length = u32::try_from(into.len() - start - 4).unwrap_or(u32::MAX);
    into[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// A text of at most 4 GiB with its length.
fn text(bytes: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    into.extend_from_slice(bytes);
}

/// Reads the fields of a record, without its length. `None` if it is damaged.
pub fn decode_record(bytes: &[u8]) -> Option<(&[u8], ImageEntry)> {
    let mut fields = Fields(bytes);
    let path = fields.text()?;
    let kind = fields.take(1)?[0];
    let file_type = *FileType::ALL.get(usize::from(kind & !(HAS_OSTREE | MAY_BE_MISSING)))?;
    let flags = fields.take(1)?[0];
    let has = |flag| flags & flag != 0;
    let (mode, uid, gid) = (fields.number()?, fields.number()?, fields.number()?);
    let layer = u16::from_le_bytes(fields.array()?);
    let size = u64::from_le_bytes(fields.array()?);
    let sha256 = if has(HAS_DIGEST) { Some(fields.array()?) } else { None };
    let md5 = if has(HAS_MD5) { Some(fields.array()?) } else { None };
    let ostree = if kind & HAS_OSTREE != 0 { Some(fields.array()?) } else { None };
    let target = if has(HAS_TARGET) { Some(fields.text()?.to_vec()) } else { None };
    let device = if has(HAS_DEVICE) { Some((fields.number()?, fields.number()?)) } else { None };
    let links = if has(HAS_LINKS) { fields.number()? } else { 0 };
    let mut xattrs = Vec::new();
    while !fields.0.is_empty() {
        let (name, value) = (fields.text()?, fields.text()?);
        xattrs
            .push((std::str::from_utf8(name).ok()?.to_owned(), std::str::from_utf8(value).ok()?.to_owned()));
    }
    let known = *Known::ALL.get(usize::from(flags >> KNOWN))?;
    let entry = ImageEntry {
        file_type,
        mode,
        uid,
        gid,
        size,
        sha256,
        md5,
        ostree,
        xattrs,
        target,
        device,
        layer,
        known,
        config: has(IS_CONFIG),
        may_be_missing: kind & MAY_BE_MISSING != 0,
        links,
    };
    Some((path, entry))
}

/// The rest of a record.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }
}
