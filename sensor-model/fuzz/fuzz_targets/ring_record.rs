//! A ring record. A process that may write to the maps can put any bytes into it.
#![no_main]

use sensor_common::{
    decode::{DecodeError, decode},
    limits::NAME_BYTES,
    record::ChangeRecord,
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check(data);
    // The fuzzer need not find the size, too.
    let mut whole = data.to_vec();
    whole.resize(size_of::<ChangeRecord>(), 0);
    check(&whole);
});

fn check(bytes: &[u8]) {
    let fits = bytes.len() == size_of::<ChangeRecord>();
    match decode(bytes) {
        Ok((record, operation)) => {
            assert!(fits && usize::from(record.name_length) <= NAME_BYTES);
            assert_eq!(operation as u16, record.operation);
        }
        Err(DecodeError::Length(length)) => assert!(!fits && length == bytes.len()),
        Err(DecodeError::Operation(_) | DecodeError::Name(_)) => assert!(fits),
    }
}
