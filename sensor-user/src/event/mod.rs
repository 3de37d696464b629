//! Ring records: bytes in, checked records out.
//!
//! `agent::receive` calls [`decode`] for each record of the rings, and `attribution` finds the actor of the result. The checks are in
//! `sensor_common::decode`, which is pure and a fuzz target (`ring_record`): it gives a record or an error for any bytes.

use sensor_common::op::{Operation, RECORD_IN_DIRECTORY, RECORD_NAME_CUT, RECORD_UNPERMITTED};
use sensor_common::record::ChangeRecord;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub use sensor_common::decode::DecodeError;

/// A ring record whose length, operation and name have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedRecord {
    /// The record.
    pub record: ChangeRecord,
    /// Its operation.
    pub operation: Operation,
}

impl CheckedRecord {
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

    /// Whether the kernel refuses the operation after the hook, because the actor is not the owner and lacks the capability.
    pub fn is_unpermitted(&self) -> bool {
        self.record.flags & RECORD_UNPERMITTED != 0
    }

    /// Whether the object itself lost, changed or got its name.
    pub fn moves(&self) -> bool {
        moves(self.operation)
    }
}

/// Whether by this operation an object loses, changes or gets its name.
pub fn moves(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Rename | Operation::RenameOver | Operation::Unlink | Operation::RemoveDirectory
    )
}

/// Decodes one ring record.
pub fn decode(bytes: &[u8]) -> Result<CheckedRecord, DecodeError> {
    let (record, operation) = sensor_common::decode::decode(bytes)?;
    Ok(CheckedRecord { record, operation })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sensor_common::limits::NAME_BYTES;

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
            length in 0u16..=124,
        ) {
            bytes[100..102].copy_from_slice(&operation.to_le_bytes());
            bytes[104..106].copy_from_slice(&length.to_le_bytes());
            prop_assert!(decode(&bytes).is_ok());
        }
    }
}
