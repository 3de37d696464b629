//! See `sensor_model::fuzzing::process_stat`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::process_stat(data));
