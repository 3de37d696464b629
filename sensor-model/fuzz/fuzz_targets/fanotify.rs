//! See `sensor_model::fuzzing::fanotify`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::fanotify(data));
