//! The entries of a layer, read in one pass.
//!
//! In: the bytes of an uncompressed layer, in pieces of any size. Out: the entries, added to the tree, with the digests of their
//! contents. It keeps one header in memory, and no content. What two readers of tar could read in two ways is an error:
//! `chain` and `pax` look for that, before the parser resolves a header.

mod chain;
mod header;
mod pax;
mod sparse;

use super::{
    error::{EntryFault, LayerError},
    tree::{AttributesObject, EntryKind, ImageTree, InodeNumber, LayerEntry},
};
use crate::{observation::FileType, selinux, xattr};
use chain::{Chain, Step};
use header::{BLOCK, HEADER_LIMIT, METADATA_LIMIT, SPARSE_LIMIT};
use sha2::{Digest as _, Sha256};
use sparse::Holes;
use tar_core::{
    EntryType, SparseEntry,
    parse::{Limits, ParseEvent, ParsedEntry, Parser},
};

/// Reads one layer.
#[derive(Debug)]
pub struct LayerReader {
    state: State,
    /// The header that is being collected.
    buffer: Vec<u8>,
    chain: Chain,
    /// Bytes that were read.
    read: u64,
    /// Bytes of holes that the size of the compressed layer allows.
    free_holes: u64,
}

#[derive(Debug)]
enum State {
    /// Collects a header until the buffer has this many bytes.
    Header(usize),
    Content(Box<Content>),
    /// Bytes up to the next block.
    Padding(u64),
    /// After the two blocks of zeros.
    End,
}

#[derive(Debug)]
struct Content {
    inode: InodeNumber,
    /// Bytes in the archive that are left.
    left: u64,
    /// Bytes in the archive.
    size: u64,
    digest: Sha256,
    holes: Option<Holes>,
    /// The content, if it is that of an object with extended attributes.
    attributes: Option<AttributesObject>,
}

impl LayerReader {
    /// Begins the next layer of a tree.
    pub fn begin(tree: &mut ImageTree) -> Self {
        tree.begin_layer();
        let (state, chain) = (State::Header(BLOCK), Chain::default());
        Self { state, buffer: Vec::new(), chain, read: 0, free_holes: 0 }
    }

    /// Begins the next layer, which has so many compressed bytes. They allow its sparse files more holes.
    pub fn begin_compressed(tree: &mut ImageTree, bytes: u64) -> Self {
        let free_holes = bytes.saturating_mul(tree.limits().ratio);
        Self { free_holes, ..Self::begin(tree) }
    }

    /// Reads the next bytes of the layer.
    ///
    /// # Errors
    /// A layer that is not valid, is ambiguous, or exceeds a limit.
    pub fn push(&mut self, bytes: &[u8], tree: &mut ImageTree) -> Result<(), LayerError> {
        tree.count_bytes(bytes.len() as u64)?;
        let mut left = bytes;
        while !left.is_empty() {
            let taken = match &mut self.state {
                State::Header(need) => {
                    let taken = left.len().min(need.saturating_sub(self.buffer.len()));
                    self.buffer.extend_from_slice(&left[..taken]);
                    taken
                }
                State::Content(content) => content.take(left),
                State::Padding(padding) => {
                    let taken = left.len().min(usize::try_from(*padding).unwrap_or(usize::MAX));
                    *padding -= taken as u64;
                    taken
                }
                State::End => {
                    if left.iter().any(|byte| *byte != 0) {
                        return Err(self.ambiguous("data follows the end of the archive"));
                    }
                    left.len()
                }
            };
            self.read += taken as u64;
            left = &left[taken..];
            self.advance(tree)?;
        }
        Ok(())
    }

    /// Ends the layer.
    ///
    /// # Errors
    /// An archive that is cut off.
    pub fn finish(self) -> Result<(), LayerError> {
        let within = match self.state {
            State::End => return Ok(()),
            // Archives without the blocks of zeros are common.
            State::Header(_) if self.buffer.iter().all(|byte| *byte == 0) && self.buffer.len() <= BLOCK => {
                return Ok(());
            }
            State::Header(_) => "a header",
            State::Content(_) => "the content of a file",
            State::Padding(_) => "the bytes after the content of a file",
        };
        Err(LayerError::Truncated { at: self.read, within })
    }

    /// Leaves every state that is complete.
    fn advance(&mut self, tree: &mut ImageTree) -> Result<(), LayerError> {
        loop {
            match &mut self.state {
                State::Header(need) if self.buffer.len() >= *need => self.header(tree)?,
                State::Content(content) if content.left == 0 => {
                    let padding = content.size.next_multiple_of(BLOCK as u64) - content.size;
                    let (size, sha256) = content.finish();
                    tree.set_content(content.inode, size, sha256);
                    if let Some(object) = content.attributes.take() {
                        tree.keep_attributes(content.inode, object);
                    }
                    self.state = State::Padding(padding);
                }
                State::Padding(0) => self.state = State::Header(BLOCK),
                _ => return Ok(()),
            }
        }
    }

    /// Reads the header in the buffer, or finds that it has more bytes.
    fn header(&mut self, tree: &mut ImageTree) -> Result<(), LayerError> {
        let step = self.chain.step(&self.buffer);
        match step.map_err(|fault| fault.at(self.read))? {
            Step::Need(bytes) if bytes > HEADER_LIMIT => {
                return Err(LayerError::Limit { what: "bytes in one header", limit: HEADER_LIMIT as u64 });
            }
            Step::Need(bytes) => {
                self.state = State::Header(bytes);
                return Ok(());
            }
            Step::End => {
                self.buffer.clear();
                self.state = State::End;
                return Ok(());
            }
            Step::Global => {
                self.buffer.clear();
                self.chain = Chain::default();
                self.state = State::Header(BLOCK);
                return Ok(());
            }
            Step::Ready => {}
        }
        let buffer = std::mem::take(&mut self.buffer);
        self.chain = Chain::default();
        let mut parser = Parser::new(Limits {
            max_metadata_size: METADATA_LIMIT,
            max_path_len: None,
            max_pending_entries: 4,
            max_sparse_entries: SPARSE_LIMIT,
        });
        // `pax` has checked every number that is used.
        parser.set_ignore_pax_errors(true);
        let event = parser.parse(&buffer);
        let event = event.map_err(|error| LayerError::Header { at: self.read, reason: error.to_string() })?;
        self.state = match event {
            ParseEvent::Entry { consumed, entry } if consumed == buffer.len() => {
                Self::entry(&entry, None, &mut self.free_holes, tree)?
            }
            ParseEvent::SparseEntry { consumed, entry, sparse_map, real_size }
                if consumed == buffer.len() =>
            {
                Self::entry(&entry, Some((sparse_map, real_size)), &mut self.free_holes, tree)?
            }
            _ => return Err(self.ambiguous("its length")),
        };
        Ok(())
    }

    /// Adds an entry to the tree; gives what follows its header.
    fn entry(
        entry: &ParsedEntry<'_>,
        sparse: Option<(Vec<SparseEntry>, u64)>,
        free_holes: &mut u64,
        tree: &mut ImageTree,
    ) -> Result<State, LayerError> {
        let fault = |fault| LayerError::entry(&entry.path, fault);
        let target = || match &entry.link_target {
            Some(target) if target.contains(&0) => Err(EntryFault::Zero("the target")),
            Some(target) if target.len() > tree.limits().path => {
                Err(EntryFault::PathTooLong { length: target.len(), limit: tree.limits().path })
            }
            Some(target) => Ok(target.to_vec()),
            None => Err(EntryFault::NoTarget),
        };
        let device = |file_type| {
            EntryKind::Device(file_type, entry.dev_major.unwrap_or(0), entry.dev_minor.unwrap_or(0))
        };
        if entry.path.contains(&0) {
            return Err(fault(EntryFault::Zero("the path")));
        }
        let kind = match entry.entry_type {
            EntryType::Regular | EntryType::Continuous | EntryType::GnuSparse => {
                if entry.path.ends_with(b"/") {
                    return Err(fault(EntryFault::FileWithSlash));
                }
                EntryKind::File
            }
            EntryType::Directory => EntryKind::Directory,
            EntryType::Symlink => EntryKind::Symlink(target().map_err(fault)?),
            EntryType::Link => EntryKind::HardLink(target().map_err(fault)?),
            EntryType::Char => device(FileType::CharacterDevice),
            EntryType::Block => device(FileType::BlockDevice),
            EntryType::Fifo => EntryKind::Fifo,
            other => return Err(fault(EntryFault::Type(char::from(other.to_byte())))),
        };
        if kind != EntryKind::File && (entry.size != 0 || sparse.is_some()) {
            return Err(fault(EntryFault::SizeWithoutContent(entry.size)));
        }
        let number =
            |field, value: u64| u32::try_from(value).map_err(|_| fault(EntryFault::Number { field, value }));
        let holes = sparse.map(|(map, size)| Holes::new(map, size, entry.size)).transpose();
        let holes = holes.map_err(|reason| fault(EntryFault::Sparse(reason)))?;
        let added = LayerEntry {
            path: entry.path.to_vec(),
            kind,
            mode: entry.mode & 0o7777,
            uid: number("uid", entry.uid)?,
            gid: number("gid", entry.gid)?,
            xattrs: attributes(entry),
        };
        if let Some(holes) = &holes {
            tree.count_holes(holes.bytes(), free_holes, &entry.path)?;
        }
        let inode = tree.add(&added)?;
        Ok(match inode {
            Some(inode) => State::Content(Box::new(Content {
                inode,
                left: entry.size,
                size: entry.size,
                digest: Sha256::new(),
                attributes: AttributesObject::of(&entry.path).filter(|_| holes.is_none()),
                holes,
            })),
            // A whiteout is a file, and may have bytes.
            None => State::Padding(entry.size.next_multiple_of(BLOCK as u64)),
        })
    }

    fn ambiguous(&self, what: &str) -> LayerError {
        LayerError::Ambiguous { at: self.read, what: what.to_owned() }
    }
}

impl Content {
    fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        match &mut self.holes {
            Some(holes) => holes.data(&bytes[..taken], &mut self.digest),
            None => self.digest.update(&bytes[..taken]),
        }
        if let Some(object) = &mut self.attributes {
            object.add(&bytes[..taken]);
        }
        self.left -= taken as u64;
        taken
    }

    fn finish(&mut self) -> (u64, [u8; 32]) {
        let size = match &mut self.holes {
            Some(holes) => holes.finish(&mut self.digest),
            None => self.size,
        };
        (size, std::mem::take(&mut self.digest).finalize().into())
    }
}

/// The extended attributes of an entry, sorted. The last value of a name counts, and an empty value is none, as in other readers.
fn attributes(entry: &ParsedEntry<'_>) -> Vec<(String, String)> {
    let mut found = std::collections::BTreeMap::new();
    for (name, value) in entry.xattrs.iter().filter(|(_, value)| !value.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let value: &[u8] = value;
        let description = if name == selinux::ATTRIBUTE {
            String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned()
        } else {
            xattr::describe(&name, value)
        };
        found.insert(name, description);
    }
    found.into_iter().collect()
}
