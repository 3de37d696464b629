//! See `sensor_model::fuzzing::dpkg`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::dpkg(data));
