//! See `sensor_model::fuzzing::node_disruption`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sensor_model::fuzzing::node_disruption(data));
