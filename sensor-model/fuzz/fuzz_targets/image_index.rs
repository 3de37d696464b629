//! See `sensor_model::fuzzing::image_index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::image_index(data));
