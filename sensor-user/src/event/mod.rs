//! Ring records: bytes in, checked values out.
//!
//! Pure, and a fuzz target: whatever the bytes are, the answer is a record or an error.

use sensor_common::limits::NAME_BYTES;
use sensor_common::op::{Operation, RECORD_IN_DIRECTORY, RECORD_NAME_CUT};
use sensor_common::record::ChangeRecord;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use thiserror::Error;
use zerocopy::FromBytes;

/// Why bytes are no record.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Not the size of a record.
    #[error("ring record has {0} bytes, not {size}", size = size_of::<ChangeRecord>())]
    Length(usize),
    /// No such operation.
    #[error("ring record: operation {0} is unknown")]
    Operation(u16),
    /// The name is longer than its field.
    #[error("ring record: name_length {0} is over {NAME_BYTES}")]
    Name(u16),
}

/// A checked record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// As it came.
    pub record: ChangeRecord,
    /// Its operation.
    pub operation: Operation,
}

impl Change {
    /// The directory entry's name, for a record about a name in a directory.
    pub fn name(&self) -> Option<&OsStr> {
        let length = usize::from(self.record.name_length);
        (self.record.flags & RECORD_IN_DIRECTORY != 0)
            .then(|| OsStr::from_bytes(self.record.name.get(..length).unwrap_or_default()))
    }

    /// Whether the name was longer than its field.
    pub fn name_cut(&self) -> bool {
        self.record.flags & RECORD_NAME_CUT != 0
    }

    /// Whether the object itself lost, changed or got its place.
    pub fn moves(&self) -> bool {
        matches!(
            self.operation,
            Operation::Rename | Operation::RenameOver | Operation::Unlink | Operation::RemoveDirectory
        )
    }
}

/// Decodes one ring record.
pub fn decode(bytes: &[u8]) -> Result<Change, DecodeError> {
    let record = ChangeRecord::read_from_bytes(bytes).map_err(|_| DecodeError::Length(bytes.len()))?;
    let operation = Operation::from_code(record.operation).ok_or(DecodeError::Operation(record.operation))?;
    if usize::from(record.name_length) > NAME_BYTES {
        return Err(DecodeError::Name(record.name_length));
    }
    Ok(Change { record, operation })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            match decode(&bytes) {
                Ok(change) => {
                    prop_assert_eq!(bytes.len(), size_of::<ChangeRecord>());
                    prop_assert!(change.name().is_none_or(|name| name.len() <= NAME_BYTES));
                }
                Err(DecodeError::Length(length)) => {
                    prop_assert_eq!(length, bytes.len());
                    prop_assert_ne!(length, size_of::<ChangeRecord>());
                }
                Err(_) => prop_assert_eq!(bytes.len(), size_of::<ChangeRecord>()),
            }
        }

        #[test]
        fn every_record_of_the_right_size_with_a_known_operation_decodes(
            mut bytes in proptest::collection::vec(any::<u8>(), size_of::<ChangeRecord>()),
            operation in 1u16..=28,
            length in 0u16..=128,
        ) {
            bytes[96..98].copy_from_slice(&operation.to_le_bytes());
            bytes[100..102].copy_from_slice(&length.to_le_bytes());
            prop_assert!(decode(&bytes).is_ok());
        }
    }
}
