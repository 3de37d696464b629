//! Drains and cordons.

use super::*;

#[test]
fn a_drain_is_requested_after_the_plan_is_published_and_the_order_waits_for_it() {
    let mut node = Played::new("b");
    node.plan("b", true);
    assert_eq!(node.settle(), (vec![], Then::LookAtCordon));
    assert!(node.published.is_some() && !node.annotations.contains_key(DESIRED_DRAIN));
    node.is_cordoned = Some(false);
    assert_eq!(node.settle(), (vec!["Cordon", "Drain"], Then::Wait));
    assert!(node.has(DESIRED_DRAIN, "drain-b"));
    node.set(LAST_APPLIED_DRAIN, "drain-a");
    assert_eq!(node.settle(), (vec![], Then::Wait), "another drain is not this one");
    node.set(LAST_APPLIED_DRAIN, "drain-b");
    assert_eq!(node.settle(), (vec![], apply("b")));
    node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
    assert_eq!(node.settle(), (vec!["NodeDone", "Uncordon"], Then::Wait));
    assert!(node.has(DESIRED_DRAIN, "uncordon-b") && node.has(STATE, "Done"));
}

#[test]
fn a_drain_that_takes_too_long_degrades_the_node_and_a_late_one_goes_on() {
    let mut node = Played::asked_to_drain("b", false);
    node.is_drain_overdue = true;
    assert_eq!(node.settle(), (vec!["FailedToDrain"], Then::Wait));
    assert!(node.has(STATE, "Degraded") && node.annotations[REASON].starts_with("failed to drain node: n1 "));
    assert!(node.has(DESIRED_DRAIN, "drain-b"), "the request stays");
    node.set(LAST_APPLIED_DRAIN, "drain-b");
    assert_eq!(node.settle(), (vec![], apply("b")));
}

#[test]
fn a_cordon_of_before_the_drain_is_left_alone() {
    let mut node = Played::asked_to_drain("b", true);
    assert!(node.has(DESIRED_DRAIN, "drain-b") && node.has(CORDONED_BEFORE, "true"));
    node.set(LAST_APPLIED_DRAIN, "drain-b");
    node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
    node.settle();
    assert!(node.has(STATE, "Done") && node.has(DESIRED_DRAIN, "drain-b"));
    // The next drain asks anew.
    node.set(DESIRED_CONFIG, "c");
    node.plan("c", true);
    node.is_cordoned = Some(false);
    node.settle();
    assert!(node.has(DESIRED_DRAIN, "drain-c") && !node.annotations.contains_key(CORDONED_BEFORE));
}

#[test]
fn a_drain_that_was_given_up_before_it_was_done_is_withdrawn_and_a_cordon_of_before_stays() {
    for back in ["a", "c"] {
        let mut node = Played::asked_to_drain("b", true);
        // A disruption budget holds the drain back, and the pool gets another config, which needs no drain.
        node.set(LAST_APPLIED_DRAIN, "uncordon-a");
        node.set(DESIRED_CONFIG, back);
        node.plan(back, false);
        node.settle();
        node.progress = Some(progress(ApplyPhase::Done, Some(back), back));
        let (events, then) = node.settle();
        assert!(!events.contains(&"Uncordon") && then == Then::Wait, "{events:?} {then:?}");
        assert!(!node.annotations.contains_key(DESIRED_DRAIN), "{:?}", node.annotations);
        assert!(!node.annotations.contains_key(CORDONED_BEFORE), "{:?}", node.annotations);
        // The next drain asks for the cordon anew.
        node.set(DESIRED_CONFIG, "d");
        node.plan("d", true);
        node.is_cordoned = None;
        assert_eq!(node.settle(), (vec![], Then::LookAtCordon));
    }
}

#[test]
fn the_drain_of_an_earlier_update_is_none_for_the_same_config_that_is_asked_for_again() {
    for is_given_up in [false, true] {
        let mut node = Played::new("b");
        node.plan("b", true);
        // An admin has cordoned the node, so the request for the drain stays after the update.
        node.is_cordoned = Some(true);
        node.settle();
        node.set(LAST_APPLIED_DRAIN, "drain-b");
        assert_eq!(node.settle(), (vec![], apply("b")));
        if !is_given_up {
            node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
            node.settle();
        }
        node.set(DESIRED_CONFIG, "a");
        node.progress = Some(progress(ApplyPhase::Done, Some("a"), "a"));
        node.settle();
        for round in 0..3 {
            // The admin has ended the cordon, and the node has workloads again.
            node.is_cordoned = Some(round == 1);
            node.set(DESIRED_CONFIG, "b");
            node.progress = Some(progress(ApplyPhase::Done, Some("a"), "a"));
            node.plan("b", true);
            assert_eq!(node.settle().1, Then::Wait, "{:?}", node.annotations);
            assert_eq!(node.annotations.contains_key(CORDONED_BEFORE), round == 1);
            let request = node.annotations[DESIRED_DRAIN].clone();
            assert_ne!(request, node.annotations[LAST_APPLIED_DRAIN], "the controller has something to do");
            assert!(request.starts_with("drain-b"), "{request}");
            // The controller carries it out.
            node.set(LAST_APPLIED_DRAIN, &request);
            assert_eq!(node.settle(), (vec![], apply("b")));
            node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
            node.settle();
            let ended = node.annotations[DESIRED_DRAIN].clone();
            assert_eq!(ended.starts_with("uncordon-"), round != 1, "a cordon of an admin is left alone");
            node.set(LAST_APPLIED_DRAIN, &ended);
            node.set(DESIRED_CONFIG, "a");
            node.progress = Some(progress(ApplyPhase::Done, Some("a"), "a"));
            node.settle();
        }
    }
}

#[test]
fn a_drain_during_the_end_of_our_last_cordon_is_a_new_one_and_the_cordon_stays_ours() {
    let mut node = Played::asked_to_drain("b", false);
    node.set(LAST_APPLIED_DRAIN, "drain-b");
    node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
    node.settle();
    assert!(node.has(DESIRED_DRAIN, "uncordon-b"));
    // The controller has not ended the cordon yet.
    node.set(DESIRED_CONFIG, "a");
    node.progress = Some(progress(ApplyPhase::Done, Some("a"), "a"));
    node.settle();
    node.set(DESIRED_CONFIG, "b");
    node.plan("b", true);
    node.is_cordoned = Some(true);
    assert_eq!(node.settle(), (vec!["Cordon", "Drain"], Then::Wait));
    assert!(!node.annotations.contains_key(CORDONED_BEFORE), "the cordon is that of our last drain");
    assert_ne!(node.annotations[DESIRED_DRAIN], "drain-b", "the controller has carried that one out before");
}

#[test]
fn a_config_that_is_given_up_during_its_drain_ends_our_cordon() {
    let mut node = Played::asked_to_drain("b", false);
    node.set(DESIRED_CONFIG, "a");
    assert_eq!(node.settle(), (vec!["Uncordon"], Then::Wait));
    assert!(node.has(DESIRED_DRAIN, "uncordon-a") && node.has(STATE, "Done"));
}

#[test]
fn a_drain_for_another_config_than_the_desired_one_ends_also_if_that_one_cannot_be_applied() {
    let refused = || PlannedOutcome::Refused("machineconfig \"c\" not found".to_owned());
    let unreconcilable = || PlannedOutcome::Unreconcilable("detected change to FIPS flag".to_owned());
    for is_cordoned in [false, true] {
        for is_done in [false, true] {
            for (case, outcome) in [Some(refused()), Some(unreconcilable()), None].into_iter().enumerate() {
                let mut node = Played::asked_to_drain("b", is_cordoned);
                if is_done {
                    node.set(LAST_APPLIED_DRAIN, "drain-b");
                }
                node.set(DESIRED_CONFIG, "c");
                if let Some(outcome) = outcome {
                    node.planned_as("c", outcome);
                } else {
                    // The node drifts, so it is not drained for the new config either.
                    node.plan("c", true);
                    node.drift = NodeDrift::Drifted(TEXT.to_owned());
                }
                let (events, _) = node.settle();
                assert_eq!(events.contains(&"Uncordon"), !is_cordoned, "{case} {events:?}");
                let requested = node.annotations.get(DESIRED_DRAIN).map(String::as_str);
                let expected = match (is_cordoned, is_done) {
                    (false, _) => Some("uncordon-c"),
                    (true, false) => None,
                    (true, true) => Some("drain-b"),
                };
                assert_eq!(requested, expected, "{case} {:?}", node.annotations);
                assert_eq!(node.has(CORDONED_BEFORE, "over"), is_cordoned && is_done, "{case}");
                assert!(!node.has(STATE, "Done"), "{case}");
            }
        }
    }
}

#[test]
fn an_update_without_a_drain_ends_that_of_the_update_before() {
    let mut node = Played::asked_to_drain("b", false);
    node.set(DESIRED_CONFIG, "c");
    node.plan("c", false);
    assert_eq!(node.settle(), (vec!["Uncordon"], apply("c")));
    assert!(node.has(DESIRED_DRAIN, "uncordon-c"));
}

#[test]
fn a_node_that_ended_its_update_during_a_change_to_an_unusable_config_gets_workloads_again() {
    let mut node = Played::asked_to_drain("b", false);
    node.set(LAST_APPLIED_DRAIN, "drain-b");
    node.progress = Some(progress(ApplyPhase::Running, Some("b"), "a"));
    node.set(DESIRED_CONFIG, "c");
    assert_eq!(node.settle(), (vec![], Then::Wait));
    assert!(node.has(DESIRED_DRAIN, "drain-b"), "the node stays drained while the config is applied");
    node.progress = Some(progress(ApplyPhase::Done, Some("b"), "b"));
    assert_eq!(node.settle(), (vec![], Then::Plan));
    node.planned_as("c", PlannedOutcome::Refused("machineconfig \"c\" not found".to_owned()));
    assert_eq!(node.settle(), (vec!["Uncordon"], Then::Wait));
    assert!(node.has(DESIRED_DRAIN, "uncordon-c") && node.has(STATE, "Degraded"));
}

#[test]
fn the_end_of_a_cordon_is_asked_for_anew_after_one_for_the_same_config_that_was_carried_out() {
    let mut node = Played::asked_to_drain("b", false);
    // An earlier drain for b was given up, too.
    node.set(LAST_APPLIED_DRAIN, "uncordon-a");
    node.set(DESIRED_CONFIG, "a");
    assert_eq!(node.settle(), (vec!["Uncordon"], Then::Wait));
    let request = &node.annotations[DESIRED_DRAIN];
    assert!(request.starts_with("uncordon-a") && request != "uncordon-a", "{request}");
    assert_eq!(node.settle(), (vec![], Then::Wait));
}

#[test]
fn another_config_during_our_drain_keeps_the_cordon_ours() {
    let mut node = Played::asked_to_drain("b", false);
    node.set(DESIRED_CONFIG, "c");
    node.plan("c", true);
    // The cordon is that of our own drain.
    node.is_cordoned = Some(true);
    node.settle();
    assert!(node.has(DESIRED_DRAIN, "drain-c") && !node.annotations.contains_key(CORDONED_BEFORE));
}

#[test]
fn a_cluster_of_one_node_is_never_drained() {
    let mut node = Played::new("b");
    node.set("machineconfiguration.openshift.io/controlPlaneTopology", "SingleReplica");
    node.plan("b", true);
    assert_eq!(node.settle(), (vec![], apply("b")));
    assert!(!node.annotations.contains_key(DESIRED_DRAIN));
}

#[test]
fn a_drifted_node_is_not_drained_for_nothing_unless_the_force_file_asks() {
    let mut node = Played::new("b");
    node.plan("b", true);
    node.is_cordoned = Some(false);
    node.drift = NodeDrift::Drifted(TEXT.to_owned());
    assert_eq!(node.settle(), (vec!["PreflightConfigDriftCheckFailed"], Then::Plan));
    assert!(node.has(STATE, "Degraded") && !node.annotations.contains_key(DESIRED_DRAIN));
    // Each further plan is after a pause.
    node.may_attempt = false;
    assert_eq!(node.settle(), (vec![], Then::Wait));
    let plan = ReportedPlan { config: "b".to_owned(), drain: true, ..ReportedPlan::default() };
    node.planned_as("b", PlannedOutcome::Plan { id: "id-b".to_owned(), plan, is_forced: true });
    node.settle();
    assert!(node.has(DESIRED_DRAIN, "drain-b"));
}
