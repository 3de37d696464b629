//! The table, and the drawing of it.

use super::*;

#[test]
fn no_state_has_two_transitions_for_one_milestone_and_every_state_can_be_left() {
    for (at, (from, milestone, _)) in TRANSITIONS.iter().enumerate() {
        assert!(
            !TRANSITIONS[at + 1..].iter().any(|(other, on, _)| (other, on) == (from, milestone)),
            "{from:?} {milestone:?}"
        );
    }
    for &state in NodeState::ALL {
        assert!(TRANSITIONS.iter().any(|(from, _, to)| *from == state && *to != state), "{state:?}");
        assert!(TRANSITIONS.iter().any(|(_, _, to)| *to == state), "{state:?}");
    }
    for milestone in Milestone::ALL {
        assert!(TRANSITIONS.iter().any(|(_, on, _)| *on == milestone), "{milestone:?}");
    }
}

#[test]
fn from_every_state_the_node_can_become_done_again() {
    for &state in NodeState::ALL {
        let mut reached = vec![state];
        let mut at = 0;
        while at < reached.len() {
            for (from, _, to) in TRANSITIONS {
                if *from == reached[at] && !reached.contains(to) {
                    reached.push(*to);
                }
            }
            at += 1;
        }
        assert!(reached.contains(&NodeState::Done), "{state:?}");
    }
}

#[test]
fn only_a_verification_of_everything_leads_to_done() {
    for (_, milestone, to) in TRANSITIONS {
        assert!(*to != NodeState::Done || *milestone == Milestone::Verified);
    }
    assert!(next(NodeState::Rebooting, Milestone::Verified).is_err());
}

#[test]
fn a_boot_that_the_apply_did_not_request_is_a_valid_milestone() {
    assert_eq!(next(NodeState::Working, Milestone::Booted), Ok(NodeState::Working));
}

#[test]
fn the_end_of_an_apply_is_a_valid_milestone_even_if_its_begin_was_not_recorded() {
    for before in [NodeState::Done, NodeState::Degraded, NodeState::Unreconcilable] {
        for milestone in [Milestone::RolledBack, Milestone::Stuck] {
            assert_eq!(next(before, milestone), Ok(NodeState::Degraded), "{before:?} {milestone:?}");
        }
    }
}

#[test]
fn a_reboot_may_be_requested_again() {
    for before in [NodeState::Working, NodeState::Rebooting, NodeState::Degraded] {
        assert_eq!(next(before, Milestone::RebootRequested), Ok(NodeState::Rebooting), "{before:?}");
    }
}

#[test]
fn the_drawing_in_the_documentation_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/apply.md");
    let page = std::fs::read_to_string(path).unwrap();
    let drawing = format!("```mermaid\n{}```\n", mermaid());
    assert!(page.contains(&drawing), "docs/apply.md needs this drawing:\n{drawing}");
}
