//! See `sensor_model::fuzzing::image_layer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::image_layer(data));
