//! See `sensor_model::fuzzing::mountinfo`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::mountinfo(data));
