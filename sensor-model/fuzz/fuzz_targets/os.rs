//! See `sensor_model::fuzzing::os`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::os(data));
