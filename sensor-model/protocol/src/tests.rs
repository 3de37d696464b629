//! The protocol over time, which the checker leaves out.

use crate::{
    Detector, Evidence, Finding, Gap, GapReason, Scope, ThingChange, ThingId, Timing, Transition,
    Verification, verdict::VerdictKind,
};

const MS: u64 = 1_000_000;
const THEIRS: ThingChange = ThingChange { own: false, outside_evidence: false };
const OURS: ThingChange = ThingChange { own: true, outside_evidence: false };
const SETTLED: Evidence = Evidence { observed_counter: 3, counter: 3, writers: false, locked: false };
const WRITERS: Evidence = Evidence { writers: true, ..SETTLED };
const MOVED: Evidence = Evidence { counter: 4, ..SETTLED };

fn good(evidence: Evidence) -> Verification {
    Verification { finding: Finding::Compliant { untouched: false }, evidence: Some(evidence) }
}

fn bad(fingerprint: u64, evidence: Evidence) -> Verification {
    Verification { finding: Finding::Differs { fingerprint, transient: false }, evidence: Some(evidence) }
}

fn missing() -> Verification {
    Verification { finding: Finding::Differs { fingerprint: 1, transient: true }, evidence: Some(SETTLED) }
}

/// A detector with things 0..count, all compliant since time 0, without a pause between verifications.
fn compliant(count: u32) -> Detector {
    detector(count, Timing { change_spacing_ns: 0, ..Timing::default() })
}

fn detector(count: u32, config: Timing) -> Detector {
    let mut detector = Detector::new(config);
    for thing in (0..count).map(ThingId) {
        detector.add(thing, 0);
    }
    for thing in detector.due(0, usize::MAX) {
        assert_eq!(detector.verified(thing, 0, &good(SETTLED)), []);
    }
    assert_eq!(detector.node_verdict(), VerdictKind::Compliant);
    assert_eq!(detector.next_deadline(), None);
    detector
}

/// Waits for the next deadline and verifies. Returns the time and the transitions.
fn verify(detector: &mut Detector, outcome: &Verification) -> (u64, Vec<Transition>) {
    let now = detector.next_deadline().expect("a verification is due");
    let things = detector.due(now, 1);
    (now, detector.verified(things[0], now, outcome))
}

fn verdict(detector: &Detector, thing: ThingId) -> VerdictKind {
    detector.thing_verdict(thing).expect("managed").verdict
}

#[test]
fn a_thing_is_unknown_until_a_settled_verification() {
    let mut detector = Detector::new(Timing::default());
    detector.add(ThingId(1), 0);
    assert_eq!(verdict(&detector, ThingId(1)), VerdictKind::Unknown);
    assert_eq!(verify(&mut detector, &good(MOVED)), (0, vec![]));
    assert_eq!(verdict(&detector, ThingId(1)), VerdictKind::Unknown);
    let first = u64::from(Timing::default().backoff_first_ns);
    assert_eq!(verify(&mut detector, &good(SETTLED)), (first, vec![]));
    assert_eq!(verdict(&detector, ThingId(1)), VerdictKind::Compliant);
}

#[test]
fn a_settled_difference_is_reported_at_once_and_its_end_too() {
    let mut detector = compliant(1);
    detector.changed(ThingId(0), 5 * MS, THEIRS);
    let drift = Transition::Drifted { thing: ThingId(0), since: 5 * MS, again: false };
    assert_eq!(verify(&mut detector, &bad(9, SETTLED)), (5 * MS, vec![drift]));
    detector.recheck(Scope::All, 6 * MS);
    assert_eq!(verify(&mut detector, &bad(9, SETTLED)), (6 * MS, vec![]), "the same drift is reported once");
    detector.recheck(Scope::All, 7 * MS);
    let other = Transition::Drifted { thing: ThingId(0), since: 5 * MS, again: true };
    assert_eq!(verify(&mut detector, &bad(10, SETTLED)), (7 * MS, vec![other]));
    detector.changed(ThingId(0), 9 * MS, OURS);
    assert_eq!(
        verify(&mut detector, &good(SETTLED)),
        (9 * MS, vec![Transition::Recovered { thing: ThingId(0) }])
    );
    assert_eq!(detector.next_deadline(), None);
}

#[test]
fn an_undone_change_is_reported_once_unless_holdfast_made_it_or_nothing_was_written() {
    let mut detector = compliant(1);
    detector.changed(ThingId(0), MS, THEIRS);
    detector.changed(ThingId(0), MS, OURS);
    assert_eq!(verify(&mut detector, &good(SETTLED)).1, [Transition::Touched { thing: ThingId(0) }]);
    detector.changed(ThingId(0), 2 * MS, OURS);
    assert_eq!(verify(&mut detector, &good(SETTLED)).1, []);
    detector.changed(ThingId(0), 3 * MS, THEIRS);
    let untouched = Verification { finding: Finding::Compliant { untouched: true }, evidence: Some(SETTLED) };
    assert_eq!(verify(&mut detector, &untouched).1, []);
}

#[test]
fn a_save_by_rename_is_no_drift_and_a_removal_is_one_after_the_settle_time() {
    let mut detector = compliant(1);
    detector.changed(ThingId(0), 10 * MS, THEIRS);
    assert_eq!(verify(&mut detector, &missing()), (10 * MS, vec![]));
    assert_eq!(verdict(&detector, ThingId(0)), VerdictKind::Compliant);
    detector.changed(ThingId(0), 12 * MS, THEIRS);
    assert_eq!(
        verify(&mut detector, &good(SETTLED)),
        (12 * MS, vec![Transition::Touched { thing: ThingId(0) }])
    );

    detector.changed(ThingId(0), 20 * MS, THEIRS);
    assert_eq!(verify(&mut detector, &missing()), (20 * MS, vec![]));
    let drift = Transition::Drifted { thing: ThingId(0), since: 20 * MS, again: false };
    assert_eq!(verify(&mut detector, &missing()), (520 * MS, vec![drift]));
}

#[test]
fn a_difference_under_a_writer_is_held_no_longer_than_the_settle_time() {
    let mut detector = compliant(1);
    detector.changed(ThingId(0), 0, THEIRS);
    let mut verifications = 0;
    let (reported_at, report) = loop {
        let (now, reports) = verify(&mut detector, &bad(2, WRITERS));
        verifications += 1;
        assert!(detector.needs_rw_hook());
        if let Some(report) = reports.first() {
            break (now, report.clone());
        }
    };
    assert_eq!(report, Transition::Drifted { thing: ThingId(0), since: 0, again: false });
    assert_eq!(reported_at, 500 * MS);
    assert!(verifications < 15, "the pause grows: {verifications} verifications");
    assert!(
        detector.next_deadline().is_some(),
        "verifications continue while a process has it open for writing"
    );
    detector.changed(ThingId(0), 600 * MS, THEIRS);
    assert_eq!(verify(&mut detector, &good(SETTLED)).1, [Transition::Recovered { thing: ThingId(0) }]);
    assert!(!detector.needs_rw_hook());
}

#[test]
fn a_file_held_open_for_writing_becomes_compliant_and_is_verified_further() {
    let mut detector = Detector::new(Timing::default());
    detector.add(ThingId(0), 0);
    while verdict(&detector, ThingId(0)) == VerdictKind::Unknown {
        let (now, reports) = verify(&mut detector, &good(WRITERS));
        assert!(now <= 500 * MS && reports.is_empty());
    }
    let (first, _) = verify(&mut detector, &good(WRITERS));
    let (second, _) = verify(&mut detector, &good(WRITERS));
    assert!(second > first && second - first <= 1000 * MS);
    assert!(detector.needs_rw_hook());
}

#[test]
fn verifications_never_take_more_than_half_of_the_time() {
    let mut detector = compliant(1);
    detector.changed(ThingId(0), 0, THEIRS);
    assert_eq!(detector.due(0, 1), [ThingId(0)]);
    detector.changed(ThingId(0), 50 * MS, THEIRS);
    detector.verified(ThingId(0), 100 * MS, &good(SETTLED));
    assert_eq!(
        detector.next_deadline(),
        Some(200 * MS),
        "a pause of 100 ms follows a verification of 100 ms"
    );
}

#[test]
fn a_thing_that_changes_often_is_not_verified_for_each_change_even_if_it_is_settled() {
    let mut detector = detector(1, Timing::default());
    let spacing = u64::from(Timing::default().change_spacing_ns);
    detector.changed(ThingId(0), 50 * MS, THEIRS);
    assert_eq!(verify(&mut detector, &good(SETTLED)).0, 50 * MS, "a single change is verified at once");
    detector.changed(ThingId(0), 51 * MS, THEIRS);
    detector.changed(ThingId(0), 52 * MS, THEIRS);
    assert_eq!(
        verify(&mut detector, &good(SETTLED)),
        (50 * MS + spacing, vec![Transition::Touched { thing: ThingId(0) }])
    );
    assert_eq!(detector.next_deadline(), None);
}

#[test]
fn without_evidence_only_a_verification_after_the_settle_time_decides() {
    let mut detector = compliant(1);
    let blind = |finding| Verification { finding, evidence: None };
    let compliant = Finding::Compliant { untouched: false };
    detector.changed(ThingId(0), 10 * MS, THEIRS);
    assert_eq!(verify(&mut detector, &blind(compliant)), (10 * MS, vec![]));
    assert_eq!(
        verify(&mut detector, &blind(compliant)),
        (510 * MS, vec![Transition::Touched { thing: ThingId(0) }])
    );
    assert_eq!(detector.next_deadline(), None);
}

#[test]
fn a_change_without_covering_evidence_needs_a_second_verification() {
    let mut detector = compliant(1);
    detector.changed(ThingId(0), 10 * MS, ThingChange { own: false, outside_evidence: true });
    assert_eq!(verify(&mut detector, &good(SETTLED)), (10 * MS, vec![]));
    let drift = Transition::Drifted { thing: ThingId(0), since: 10 * MS, again: false };
    assert_eq!(verify(&mut detector, &bad(3, SETTLED)), (510 * MS, vec![drift]));
}

#[test]
fn a_gap_makes_things_unknown_until_all_are_verified_since() {
    let mut detector = compliant(3);
    detector.changed(ThingId(1), MS, THEIRS);
    assert_eq!(verify(&mut detector, &bad(4, SETTLED)).1.len(), 1);
    detector.recheck(Scope::Thing(ThingId(2)), 2 * MS);
    assert_eq!(detector.due(2 * MS, 9), [ThingId(2)]);

    let opened = detector.open_gap(Scope::All, GapReason::CanaryNotSeen, 3 * MS);
    let gap =
        Gap { number: 1, reason: GapReason::CanaryNotSeen, scope: Scope::All, since: 3 * MS, until: None };
    assert_eq!(opened, [Transition::GapOpened(gap.clone())]);
    assert_eq!(verdict(&detector, ThingId(0)), VerdictKind::Unknown);
    assert_eq!(detector.thing_verdict(ThingId(0)).expect("managed").reason, Some(GapReason::CanaryNotSeen));
    assert_eq!(verdict(&detector, ThingId(1)), VerdictKind::Drifted, "a drifted thing stays drifted");

    assert_eq!(
        detector.verified(ThingId(2), 4 * MS, &good(SETTLED)),
        [],
        "this verification began before the gap"
    );
    assert_eq!(verdict(&detector, ThingId(2)), VerdictKind::Unknown);
    let mut reports = Vec::new();
    while detector.next_deadline().is_some() {
        let due = detector.due(10 * MS, 1)[0];
        assert_eq!(detector.gaps().count(), 1);
        let outcome = if due == ThingId(1) { bad(4, SETTLED) } else { good(SETTLED) };
        reports = detector.verified(due, 10 * MS, &outcome);
    }
    assert_eq!(reports, [Transition::GapClosed(Gap { until: Some(10 * MS), ..gap })]);
    assert_eq!(detector.count(VerdictKind::Compliant), 2);
}

#[test]
fn while_blind_nothing_becomes_compliant_but_drift_is_found() {
    let mut detector = compliant(2);
    let gap = detector.open_blindness(Scope::All, GapReason::FtraceDisabled, 0);
    let drift = Transition::Drifted { thing: ThingId(0), since: 0, again: false };
    assert_eq!(verify(&mut detector, &bad(4, SETTLED)).1, [drift]);
    assert_eq!(verify(&mut detector, &good(SETTLED)).1, []);
    detector.recheck(Scope::All, MS);
    assert_eq!(verify(&mut detector, &good(SETTLED)).1, [Transition::Recovered { thing: ThingId(0) }]);
    assert_eq!(verify(&mut detector, &good(SETTLED)).1, []);
    assert_eq!(
        (verdict(&detector, ThingId(0)), verdict(&detector, ThingId(1))),
        (VerdictKind::Unknown, VerdictKind::Unknown)
    );

    assert_eq!(detector.end_blindness(gap.number, 5 * MS), []);
    assert_eq!(verify(&mut detector, &good(SETTLED)).1, []);
    let closed = Gap { until: Some(5 * MS), ..gap };
    assert_eq!(verify(&mut detector, &good(SETTLED)).1, [Transition::GapClosed(closed)]);
    assert_eq!(detector.node_verdict(), VerdictKind::Compliant);
}

#[test]
fn removing_the_last_thing_a_gap_waits_for_closes_it() {
    let mut detector = compliant(1);
    detector.open_gap(Scope::Thing(ThingId(0)), GapReason::EntryRemoved, MS);
    assert!(matches!(detector.remove(ThingId(0), 2 * MS).as_slice(), [Transition::GapClosed(_)]));
    assert!(matches!(
        detector.open_gap(Scope::All, GapReason::SensorStart, MS).as_slice(),
        [_, Transition::GapClosed(_)]
    ));
    assert_eq!(detector.next_deadline(), None);
}

#[test]
fn due_returns_the_oldest_first_up_to_its_limit_and_no_thing_twice() {
    let mut detector = compliant(5);
    for (thing, at) in [(ThingId(3), 1), (ThingId(0), 2), (ThingId(4), 2)] {
        detector.changed(thing, at, THEIRS);
    }
    assert_eq!(detector.due(9, 2), [ThingId(3), ThingId(0)]);
    assert_eq!(detector.due(9, 2), [ThingId(4)]);
    assert_eq!(detector.due(9, 2), [] as [ThingId; 0]);
    detector.changed(ThingId(77), 10, THEIRS);
    assert_eq!(detector.verified(ThingId(77), 10, &good(SETTLED)), []);
}

#[test]
fn ten_thousand_things_take_less_than_two_megabytes() {
    assert!(size_of::<crate::thing::ThingState>() <= 160);
}

#[test]
fn the_counts_equal_the_verdicts_of_the_things_after_every_event() {
    let check = |detector: &Detector, writers: bool| {
        for kind in [VerdictKind::Compliant, VerdictKind::Unknown, VerdictKind::Drifted] {
            let things = detector.managed().filter(|thing| verdict(detector, *thing) == kind).count();
            assert_eq!(detector.count(kind), things, "{kind:?}");
        }
        assert_eq!(detector.needs_rw_hook(), writers);
    };
    let mut detector = compliant(3);
    detector.changed(ThingId(0), MS, THEIRS);
    verify(&mut detector, &bad(9, SETTLED));
    check(&detector, false);
    detector.changed(ThingId(1), 2 * MS, THEIRS);
    verify(&mut detector, &good(WRITERS));
    check(&detector, true);
    assert_eq!(detector.open_gap(Scope::All, GapReason::SensorStart, 3 * MS).len(), 1);
    check(&detector, true);
    detector.add(ThingId(0), 4 * MS);
    check(&detector, true);
    detector.remove(ThingId(1), 5 * MS);
    check(&detector, false);
    detector.remove(ThingId(0), 6 * MS);
    detector.remove(ThingId(2), 7 * MS);
    check(&detector, false);
    assert_eq!(detector.node_verdict(), VerdictKind::Compliant);
}

#[test]
fn only_a_verification_that_decides_is_reported_as_such() {
    let mut detector = compliant(1);
    detector.changed(ThingId(0), MS, THEIRS);
    assert_eq!(detector.due(MS, 1), [ThingId(0)]);
    assert!(!detector.conclude(ThingId(0), MS, &good(WRITERS)).decided, "a process has it open for writing");
    let at = detector.next_deadline().expect("verifications continue");
    assert_eq!(detector.due(at, 1), [ThingId(0)]);
    let conclusion = detector.conclude(ThingId(0), at, &good(SETTLED));
    assert!(conclusion.decided);
    assert_eq!(conclusion.transitions, [Transition::Touched { thing: ThingId(0) }]);
}

/// A verification without evidence.
fn unseen(finding: Finding) -> Verification {
    Verification { finding, evidence: None }
}

#[test]
fn a_thing_that_other_hosts_can_change_is_never_compliant_and_does_not_flap() {
    let compliant_finding = unseen(Finding::Compliant { untouched: true });
    let mut detector = Detector::new(Timing::default());
    for thing in (0..3).map(ThingId) {
        detector.add(thing, 0);
    }
    let mut transitions = Vec::new();
    let verify_all = |detector: &mut Detector, transitions: &mut Vec<Transition>, outcome: &Verification| {
        while let Some(now) = detector.next_deadline() {
            for thing in detector.due(now, usize::MAX) {
                transitions.extend(detector.set_unreported(
                    thing,
                    (thing.0 > 0).then_some(GapReason::ForeignFileSystem),
                    now,
                ));
                let outcome = if thing == ThingId(1) {
                    *outcome
                } else {
                    unseen(Finding::Compliant { untouched: true })
                };
                transitions.extend(detector.conclude(thing, now, &outcome).transitions);
            }
        }
    };
    verify_all(&mut detector, &mut transitions, &compliant_finding);
    assert_eq!(transitions.len(), 1, "one gap for both, and it stays open: {transitions:?}");
    assert!(
        matches!(&transitions[0], Transition::GapOpened(gap) if gap.reason == GapReason::ForeignFileSystem && gap.scope == Scope::Some)
    );
    assert_eq!(
        (verdict(&detector, ThingId(0)), verdict(&detector, ThingId(1))),
        (VerdictKind::Compliant, VerdictKind::Unknown)
    );
    assert_eq!(detector.thing_verdict(ThingId(1)).unwrap().reason, Some(GapReason::ForeignFileSystem));
    assert_eq!(detector.node_verdict(), VerdictKind::Unknown);
    let since = detector.thing_verdict(ThingId(1)).unwrap().since;

    // A full verification finds no change, and has no transition.
    transitions.clear();
    detector.recheck(Scope::All, 3_600_000 * MS);
    verify_all(&mut detector, &mut transitions, &compliant_finding);
    assert_eq!((transitions.as_slice(), detector.thing_verdict(ThingId(1)).unwrap().since), (&[][..], since));

    // Another one finds it changed by another machine, and then restored.
    detector.recheck(Scope::All, 7_200_000 * MS);
    verify_all(
        &mut detector,
        &mut transitions,
        &unseen(Finding::Differs { fingerprint: 1, transient: false }),
    );
    assert!(matches!(transitions[..], [Transition::Drifted { thing: ThingId(1), .. }]), "{transitions:?}");
    assert_eq!(verdict(&detector, ThingId(1)), VerdictKind::Drifted);
    transitions.clear();
    detector.recheck(Scope::All, 9_000_000 * MS);
    verify_all(&mut detector, &mut transitions, &compliant_finding);
    assert_eq!(transitions, [Transition::Recovered { thing: ThingId(1) }]);
    assert_eq!(verdict(&detector, ThingId(1)), VerdictKind::Unknown);
}

#[test]
fn a_thing_that_is_no_longer_foreign_is_verified_and_the_last_one_closes_the_gap() {
    let mut detector = compliant(2);
    for thing in (0..2).map(ThingId) {
        detector.changed(thing, MS, THEIRS);
        detector.due(MS, 1);
        detector.set_unreported(thing, Some(GapReason::ForeignFileSystem), MS);
        detector.conclude(thing, MS, &good(SETTLED));
        assert_eq!(verdict(&detector, thing), VerdictKind::Unknown, "events do not report its changes");
        assert_eq!((detector.count(VerdictKind::Unknown), detector.undecided()), (thing.index() + 1, 0));
    }
    detector.changed(ThingId(0), 50 * MS, THEIRS);
    assert_eq!(detector.undecided(), 1, "it is verified once more");
    for (thing, is_last) in [(ThingId(0), false), (ThingId(1), true)] {
        detector.changed(thing, 100 * MS, THEIRS);
        let mut transitions = Vec::new();
        while let Some(now) = detector.next_deadline() {
            detector.due(now, 1);
            transitions.extend(detector.set_unreported(thing, None, now));
            transitions.extend(detector.conclude(thing, now, &good(SETTLED)).transitions);
        }
        assert_eq!(verdict(&detector, thing), VerdictKind::Compliant);
        assert_eq!(
            transitions.iter().any(|report| matches!(report, Transition::GapClosed(_))),
            is_last,
            "{transitions:?}"
        );
    }
    assert_eq!(detector.node_verdict(), VerdictKind::Compliant);
    detector.set_unreported(ThingId(0), Some(GapReason::ForeignFileSystem), 200 * MS);
    assert!(
        matches!(detector.remove(ThingId(0), 201 * MS)[..], [Transition::GapClosed(_)]),
        "the gap holds no other thing"
    );
}

#[test]
fn a_failed_observation_decides_nothing_and_makes_a_compliant_thing_unknown() {
    let mut detector = compliant(2);
    detector.changed(ThingId(0), 5 * MS, THEIRS);
    verify(&mut detector, &bad(9, SETTLED));
    detector.recheck(Scope::All, 6 * MS);
    assert_eq!(detector.due(6 * MS, 2).len(), 2);
    let other = detector.open_gap(Scope::Thing(ThingId(1)), GapReason::EntryRemoved, 7 * MS);
    assert_eq!(other.len(), 1);
    let mut transitions = Vec::new();
    for thing in (0..2).map(ThingId) {
        detector.open_blindness(Scope::Thing(thing), GapReason::FileSystemHangs, 7 * MS);
        transitions.extend(detector.not_observed(thing, 7 * MS, 90 * MS));
    }
    let closed: Vec<_> = transitions
        .iter()
        .filter_map(|report| if let Transition::GapClosed(gap) = report { Some(gap.reason) } else { None })
        .collect();
    assert_eq!(
        closed,
        [GapReason::EntryRemoved],
        "a thing with a lasting gap of its own keeps no other gap open"
    );
    assert!(detector.gaps().all(|gap| gap.reason == GapReason::FileSystemHangs));
    assert_eq!(
        (verdict(&detector, ThingId(0)), verdict(&detector, ThingId(1))),
        (VerdictKind::Drifted, VerdictKind::Unknown)
    );
    assert_eq!(detector.undecided(), 0, "no verification can decide it");
    assert_eq!(detector.next_deadline(), Some(90 * MS));
    // A file system that does not answer keeps no other gap open.
    detector.add(ThingId(2), 8 * MS);
    assert_eq!(detector.due(8 * MS, 1), [ThingId(2)]);
    assert_eq!(detector.undecided(), 1);
    detector.set_unreported(ThingId(2), Some(GapReason::FileSystemHangs), 8 * MS);
    detector.not_observed(ThingId(2), 8 * MS, 90 * MS);
    assert_eq!(detector.undecided(), 0);
    // An event causes an earlier verification.
    detector.changed(ThingId(1), 10 * MS, THEIRS);
    assert_eq!(detector.next_deadline(), Some(10 * MS));
    verify(&mut detector, &bad(9, SETTLED));
    assert_eq!(verdict(&detector, ThingId(1)), VerdictKind::Drifted);
}
