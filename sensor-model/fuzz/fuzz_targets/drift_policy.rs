//! See `sensor_model::fuzzing::drift_policy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::drift_policy(data));
