//! See `sensor_model::fuzzing::forensic_log`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::forensic_log(data));
