//! See `sensor_model::fuzzing::data_url`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::data_url(data));
