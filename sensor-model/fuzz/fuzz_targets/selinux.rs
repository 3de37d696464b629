//! See `sensor_model::fuzzing::selinux`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::selinux(data));
