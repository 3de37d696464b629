//! The row of the table, or of the benches, for a guest and a name.
//!
//! In: the words of the kernel parameters or of a command line. Out: the scenario.

use super::{SCENARIOS, Scenario};
use crate::bench;

/// Finds a scenario.
pub fn find(guest: &str, name: &str) -> Option<&'static Scenario> {
    let benches = [
        &bench::SCENARIO,
        &bench::many::SCENARIO,
        &bench::live::SCENARIO,
        &bench::cluster::SCENARIO,
        &bench::sealed::SCENARIO,
    ];
    let all = SCENARIOS.iter().chain(benches);
    all.into_iter().find(|scenario| scenario.name == name && scenario.guest.name() == guest)
}
