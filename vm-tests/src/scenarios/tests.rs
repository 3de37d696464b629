//! Tests of the table: names, and which kernels each scenario runs on.

use super::*;

/// The kernels of the matrix, which `xtask` can fetch.
const ALL: [&str; 5] = ["5.10", "6.1", "6.12", "6.18", "7.x"];

/// Kernels on which a scenario runs before each merge.
fn by_default(guest: Guest, name: &str) -> Vec<&'static str> {
    let scenario = find(guest.name(), name).expect(name);
    ALL.into_iter().filter(|series| scenario.runs_on(series, false)).collect()
}

#[test]
fn each_scenario_is_found_by_its_guest_and_name_and_no_two_share_them() {
    for scenario in SCENARIOS {
        let found = find(scenario.guest.name(), scenario.name).expect("in the table");
        assert!(std::ptr::eq(found, scenario), "{} is there twice", scenario.name);
    }
}

#[test]
fn before_a_merge_each_kernel_takes_and_uses_the_programs_and_the_oldest_and_newest_do_more() {
    for name in ["doctor", "thread"] {
        assert_eq!(by_default(Guest::Bare, name), ALL, "{name}");
    }
    assert_eq!(by_default(Guest::Bare, "vectors"), ["7.x"]);
    assert_eq!(by_default(Guest::Bare, "vectors-fentry"), ["5.10"]);
    assert_eq!(by_default(Guest::Bare, "deny"), ["5.10", "7.x"]);
}

#[test]
fn every_other_scenario_runs_on_one_kernel_before_a_merge_and_on_all_it_can_with_full() {
    for scenario in SCENARIOS {
        let everywhere = ALL.iter().filter(|series| scenario.runs_on(series, true)).count();
        assert!(everywhere >= 1 && (scenario.kernels.is_empty() == (everywhere == ALL.len())));
        let others = [
            "doctor",
            "thread",
            "deny",
            "power-cut",
            "burst-million",
            "daemonset-people",
            "manage",
            "units",
            "soft-reboot-pod",
            "vectors-host-root",
            "ostree-failures",
            "demo-image",
        ];
        if !others.contains(&scenario.name) {
            assert_eq!(by_default(scenario.guest, scenario.name).len(), 1, "{}", scenario.name);
        }
    }
}
