//! See `sensor_model::fuzzing::authorized_keys`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::authorized_keys(data));
