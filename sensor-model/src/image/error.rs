//! Why a layer cannot be read.

/// What is wrong with one entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    /// The path is longer than a kernel accepts.
    #[error("the path has {length} bytes, and {limit} bytes are the limit")]
    PathTooLong {
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A name is longer than a file system keeps.
    #[error("a name in the path has {length} bytes, and {limit} bytes are the limit")]
    NameTooLong {
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The path or a target contains a zero byte.
    #[error("a zero byte is in {0}")]
    Zero(&'static str),
    /// Something that is no directory is on the way.
    #[error("{0:?} on the way is not a directory")]
    NotADirectory(String),
    /// More symbolic links on the way than the kernel follows.
    #[error("more than {0} symbolic links are on the way")]
    TooManyLinks(usize),
    /// The entry replaces the root directory.
    #[error("it is the root directory, and only a directory can be that")]
    Root,
    /// A whiteout names nothing that can be removed.
    #[error("the whiteout names no file")]
    Whiteout,
    /// A link without a target.
    #[error("the link has no target")]
    NoTarget,
    /// A hard link to a name that does not exist.
    #[error("the hard link's target {0:?} is neither in this layer nor in one below it")]
    MissingTarget(String),
    /// A hard link to a directory.
    #[error("the hard link's target {0:?} is a directory")]
    LinkToDirectory(String),
    /// A type of entry that no layer may have.
    #[error("entries of the type {0:?} are not supported")]
    Type(char),
    /// An entry that has no content declares a size.
    #[error("the type of the entry has no content, but the entry has {0} bytes")]
    SizeWithoutContent(u64),
    /// A file whose name ends like that of a directory.
    #[error("it is a file, and its name ends with a slash")]
    FileWithSlash,
    /// A number that the kernel does not have.
    #[error("its {field} {value} is too large")]
    Number {
        /// The number's name.
        field: &'static str,
        /// The number.
        value: u64,
    },
    /// The extended attributes are too large.
    #[error("its extended attributes have more than {0} bytes")]
    Xattrs(usize),
    /// The map of a sparse file contradicts itself or the size.
    #[error("the map of the sparse file is wrong: {0}")]
    Sparse(&'static str),
}

/// Why a layer cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayerError {
    /// The archive ends too early.
    #[error("the archive is cut off: it ends at byte {at}, within {within}")]
    Truncated {
        /// How many bytes it has.
        at: u64,
        /// What is incomplete.
        within: &'static str,
    },
    /// A header that is none.
    #[error("the tar header before byte {at} is not valid: {reason}")]
    Header {
        /// The end of the header.
        at: u64,
        /// The parser's words.
        reason: String,
    },
    /// Readers of tar disagree about the archive.
    #[error("readers of tar disagree about the header before byte {at}: {what}")]
    Ambiguous {
        /// The end of the header.
        at: u64,
        /// What they read in two ways.
        what: String,
    },
    /// One entry is wrong.
    #[error("entry {path:?}: {fault}")]
    Entry {
        /// The path as the archive has it.
        path: String,
        /// What is wrong.
        fault: EntryFault,
    },
    /// The sparse files have too many bytes that no archive stores.
    #[error(
        "entry {path:?}: the holes of the image's sparse files have more than {limit} bytes beside {ratio} for each compressed byte of their \
         layer: it may be a decompression bomb"
    )]
    Holes {
        /// The path as the archive has it.
        path: String,
        /// How many bytes they may have.
        limit: u64,
        /// How many more they may have for each compressed byte.
        ratio: u64,
    },
    /// The image has too much of something.
    #[error("the image has more {what} than {limit}, which is the limit")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many it may have.
        limit: u64,
    },
}

impl LayerError {
    pub(super) fn entry(path: &[u8], fault: EntryFault) -> Self {
        Self::Entry { path: lossy(path), fault }
    }
}

/// A path for a message.
pub(super) fn lossy(path: &[u8]) -> String {
    const SHOWN: usize = 200;
    let mut text = String::from_utf8_lossy(&path[..path.len().min(SHOWN)]).into_owned();
    if path.len() > SHOWN {
        text.push('…');
    }
    text
}
