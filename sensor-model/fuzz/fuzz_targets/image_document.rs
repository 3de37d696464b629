//! See `sensor_model::fuzzing::image_document`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::image_document(data));
