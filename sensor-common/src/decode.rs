//! Ring records.
//!
//! In: bytes. Out: a checked record, or an error. Only the daemon uses it. Its fuzz target is `ring_record`.

use crate::limits::NAME_BYTES;
use crate::op::Operation;
use crate::record::ChangeRecord;
use core::fmt;
use zerocopy::FromBytes;

/// Why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The length is not that of a record.
    Length(usize),
    /// The operation's code is unknown.
    Operation(u16),
    /// The name is longer than its field.
    Name(u16),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => {
                write!(f, "ring record has {bytes} bytes, not {}", size_of::<ChangeRecord>())
            }
            Self::Operation(code) => write!(f, "ring record: operation {code} is unknown"),
            Self::Name(length) => write!(f, "ring record: name_length {length} exceeds {NAME_BYTES}"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// Decodes one ring record, with its operation.
pub fn decode(bytes: &[u8]) -> Result<(ChangeRecord, Operation), DecodeError> {
    let record = ChangeRecord::read_from_bytes(bytes).map_err(|_| DecodeError::Length(bytes.len()))?;
    let operation = Operation::from_code(record.operation).ok_or(DecodeError::Operation(record.operation))?;
    if usize::from(record.name_length) > NAME_BYTES {
        return Err(DecodeError::Name(record.name_length));
    }
    Ok((record, operation))
}
