//! The limits of a header, and what is wrong with one.

use crate::image::error::LayerError;

/// The size of a block.
pub(super) const BLOCK: usize = 512;
/// Most bytes of the header of one entry, with everything that belongs to it.
pub(super) const HEADER_LIMIT: usize = 2 << 20;
/// Most bytes of long names and PAX records of one entry.
pub(super) const METADATA_LIMIT: u32 = 1 << 20;
/// Most pieces of a sparse file.
pub(super) const SPARSE_LIMIT: usize = 10_000;

/// What is wrong with a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    Invalid(String),
    Ambiguous(String),
    Large,
}

impl HeaderFault {
    pub(super) fn ambiguous(what: impl Into<String>) -> Self {
        Self::Ambiguous(what.into())
    }

    pub(super) fn at(self, at: u64) -> LayerError {
        match self {
            Self::Invalid(reason) => LayerError::Header { at, reason },
            Self::Ambiguous(what) => LayerError::Ambiguous { at, what },
            Self::Large => {
                LayerError::Limit { what: "bytes of metadata in one entry", limit: METADATA_LIMIT.into() }
            }
        }
    }
}
