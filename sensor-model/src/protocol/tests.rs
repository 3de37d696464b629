//! What the protocol does in time: the checker leaves that out.

use super::{Config, Detector, Event, Evidence, Finding, Gap, Outcome, Report, Scope, is_transient};
use crate::{
    difference::{Difference, DifferenceKind},
    verdict::VerdictKind,
};

const MS: u64 = 1_000_000;
const THEIRS: Event = Event { own: false, beyond: false };
const OURS: Event = Event { own: true, beyond: false };
const QUIET: Evidence = Evidence { observed_counter: 3, counter: 3, writers: false, locked: false };
const WRITERS: Evidence = Evidence { writers: true, ..QUIET };
const MOVED: Evidence = Evidence { counter: 4, ..QUIET };

fn good(evidence: Evidence) -> Outcome {
    Outcome { finding: Finding::Compliant { untouched: false }, evidence: Some(evidence) }
}

fn bad(fingerprint: u64, evidence: Evidence) -> Outcome {
    Outcome { finding: Finding::Differs { fingerprint, transient: false }, evidence: Some(evidence) }
}

fn missing() -> Outcome {
    Outcome { finding: Finding::Differs { fingerprint: 1, transient: true }, evidence: Some(QUIET) }
}

/// A detector with things 0..count, all compliant since time 0, which looks after each event at once.
fn compliant(count: u32) -> Detector {
    standing(count, Config { event_spacing_ns: 0, ..Config::default() })
}

fn standing(count: u32, config: Config) -> Detector {
    let mut detector = Detector::new(config);
    for id in 0..count {
        detector.add(id, 0);
    }
    for id in detector.due(0, usize::MAX) {
        assert_eq!(detector.verified(id, 0, &good(QUIET)), []);
    }
    assert_eq!(detector.node_verdict(), VerdictKind::Compliant);
    assert_eq!(detector.next_deadline(), None);
    detector
}

/// Sleeps to the next deadline, looks, and gives the time of the look and what was reported.
fn look(detector: &mut Detector, outcome: &Outcome) -> (u64, Vec<Report>) {
    let now = detector.next_deadline().expect("a look is due");
    let ids = detector.due(now, 1);
    (now, detector.verified(ids[0], now, outcome))
}

fn verdict(detector: &Detector, id: u32) -> VerdictKind {
    detector.standing(id).expect("managed").verdict
}

#[test]
fn a_thing_is_unknown_until_a_quiet_look() {
    let mut detector = Detector::new(Config::default());
    detector.add(1, 0);
    assert_eq!(verdict(&detector, 1), VerdictKind::Unknown);
    assert_eq!(look(&mut detector, &good(MOVED)), (0, vec![]));
    assert_eq!(verdict(&detector, 1), VerdictKind::Unknown);
    let first = u64::from(Config::default().backoff_first_ns);
    assert_eq!(look(&mut detector, &good(QUIET)), (first, vec![]));
    assert_eq!(verdict(&detector, 1), VerdictKind::Compliant);
}

#[test]
fn a_quiet_difference_is_reported_at_once_and_its_end_too() {
    let mut detector = compliant(1);
    detector.event(0, 5 * MS, THEIRS);
    let drift = Report::Drifted { id: 0, since: 5 * MS, again: false };
    assert_eq!(look(&mut detector, &bad(9, QUIET)), (5 * MS, vec![drift]));
    detector.recheck(Scope::All, 6 * MS);
    assert_eq!(look(&mut detector, &bad(9, QUIET)), (6 * MS, vec![]), "the same drift is told once");
    detector.recheck(Scope::All, 7 * MS);
    let other = Report::Drifted { id: 0, since: 5 * MS, again: true };
    assert_eq!(look(&mut detector, &bad(10, QUIET)), (7 * MS, vec![other]));
    detector.event(0, 9 * MS, OURS);
    assert_eq!(look(&mut detector, &good(QUIET)), (9 * MS, vec![Report::Recovered { id: 0 }]));
    assert_eq!(detector.next_deadline(), None);
}

#[test]
fn a_change_that_came_back_is_told_once_unless_it_was_ours_or_none() {
    let mut detector = compliant(1);
    detector.event(0, MS, THEIRS);
    detector.event(0, MS, OURS);
    assert_eq!(look(&mut detector, &good(QUIET)).1, [Report::Touched { id: 0 }]);
    detector.event(0, 2 * MS, OURS);
    assert_eq!(look(&mut detector, &good(QUIET)).1, []);
    detector.event(0, 3 * MS, THEIRS);
    let untouched = Outcome { finding: Finding::Compliant { untouched: true }, evidence: Some(QUIET) };
    assert_eq!(look(&mut detector, &untouched).1, []);
}

#[test]
fn a_save_by_rename_is_no_drift_and_a_removal_is_one_after_the_settle_time() {
    let mut detector = compliant(1);
    detector.event(0, 10 * MS, THEIRS);
    assert_eq!(look(&mut detector, &missing()), (10 * MS, vec![]));
    assert_eq!(verdict(&detector, 0), VerdictKind::Compliant);
    detector.event(0, 12 * MS, THEIRS);
    assert_eq!(look(&mut detector, &good(QUIET)), (12 * MS, vec![Report::Touched { id: 0 }]));

    detector.event(0, 20 * MS, THEIRS);
    assert_eq!(look(&mut detector, &missing()), (20 * MS, vec![]));
    let drift = Report::Drifted { id: 0, since: 20 * MS, again: false };
    assert_eq!(look(&mut detector, &missing()), (520 * MS, vec![drift]));
}

#[test]
fn a_difference_under_a_writer_is_held_no_longer_than_the_settle_time() {
    let mut detector = compliant(1);
    detector.event(0, 0, THEIRS);
    let mut looks = 0;
    let (told_at, report) = loop {
        let (now, reports) = look(&mut detector, &bad(2, WRITERS));
        looks += 1;
        assert!(detector.wants_rw_hook());
        if let Some(report) = reports.first() {
            break (now, report.clone());
        }
    };
    assert_eq!(report, Report::Drifted { id: 0, since: 0, again: false });
    assert_eq!(told_at, 500 * MS);
    assert!(looks < 15, "the pause between looks grows: {looks} looks");
    assert!(detector.next_deadline().is_some(), "looks go on while the writer is there");
    detector.event(0, 600 * MS, THEIRS);
    assert_eq!(look(&mut detector, &good(QUIET)).1, [Report::Recovered { id: 0 }]);
    assert!(!detector.wants_rw_hook());
}

#[test]
fn a_file_held_open_for_writing_becomes_compliant_and_goes_on_being_looked_at() {
    let mut detector = Detector::new(Config::default());
    detector.add(0, 0);
    while verdict(&detector, 0) == VerdictKind::Unknown {
        let (now, reports) = look(&mut detector, &good(WRITERS));
        assert!(now <= 500 * MS && reports.is_empty());
    }
    let (first, _) = look(&mut detector, &good(WRITERS));
    let (second, _) = look(&mut detector, &good(WRITERS));
    assert!(second > first && second - first <= 1000 * MS);
    assert!(detector.wants_rw_hook());
}

#[test]
fn a_look_never_takes_more_than_half_of_the_time() {
    let mut detector = compliant(1);
    detector.event(0, 0, THEIRS);
    assert_eq!(detector.due(0, 1), [0]);
    detector.event(0, 50 * MS, THEIRS);
    detector.verified(0, 100 * MS, &good(QUIET));
    assert_eq!(detector.next_deadline(), Some(200 * MS), "a look of 100 ms is followed by a pause of 100 ms");
}

#[test]
fn what_changes_again_and_again_is_not_looked_at_for_each_change_though_it_is_found_at_rest() {
    let mut detector = standing(1, Config::default());
    let spacing = u64::from(Config::default().event_spacing_ns);
    detector.event(0, 50 * MS, THEIRS);
    assert_eq!(look(&mut detector, &good(QUIET)).0, 50 * MS, "a change by itself is looked at at once");
    detector.event(0, 51 * MS, THEIRS);
    detector.event(0, 52 * MS, THEIRS);
    assert_eq!(look(&mut detector, &good(QUIET)), (50 * MS + spacing, vec![Report::Touched { id: 0 }]));
    assert_eq!(detector.next_deadline(), None);
}

#[test]
fn without_evidence_only_a_look_after_the_settle_time_counts() {
    let mut detector = compliant(1);
    let blind = |finding| Outcome { finding, evidence: None };
    let compliant = Finding::Compliant { untouched: false };
    detector.event(0, 10 * MS, THEIRS);
    assert_eq!(look(&mut detector, &blind(compliant)), (10 * MS, vec![]));
    assert_eq!(look(&mut detector, &blind(compliant)), (510 * MS, vec![Report::Touched { id: 0 }]));
    assert_eq!(detector.next_deadline(), None);
}

#[test]
fn what_evidence_does_not_cover_needs_a_second_look() {
    let mut detector = compliant(1);
    detector.event(0, 10 * MS, Event { own: false, beyond: true });
    assert_eq!(look(&mut detector, &good(QUIET)), (10 * MS, vec![]));
    let drift = Report::Drifted { id: 0, since: 10 * MS, again: false };
    assert_eq!(look(&mut detector, &bad(3, QUIET)), (510 * MS, vec![drift]));
}

#[test]
fn a_gap_makes_unknown_until_everything_was_looked_at_since() {
    let mut detector = compliant(3);
    detector.event(1, MS, THEIRS);
    assert_eq!(look(&mut detector, &bad(4, QUIET)).1.len(), 1);
    detector.recheck(Scope::Thing(2), 2 * MS);
    assert_eq!(detector.due(2 * MS, 9), [2]);

    let opened = detector.open_gap(Scope::All, "canary missed", 3 * MS);
    let gap =
        Gap { number: 1, reason: "canary missed".into(), scope: Scope::All, since: 3 * MS, until: None };
    assert_eq!(opened, [Report::GapOpened(gap.clone())]);
    assert_eq!(verdict(&detector, 0), VerdictKind::Unknown);
    assert_eq!(detector.standing(0).expect("managed").reason, Some("canary missed"));
    assert_eq!(verdict(&detector, 1), VerdictKind::Drifted, "a drift stays known");

    assert_eq!(detector.verified(2, 4 * MS, &good(QUIET)), [], "this look began before the gap");
    assert_eq!(verdict(&detector, 2), VerdictKind::Unknown);
    let mut reports = Vec::new();
    while detector.next_deadline().is_some() {
        let due = detector.due(10 * MS, 1)[0];
        assert_eq!(detector.gaps().count(), 1);
        let outcome = if due == 1 { bad(4, QUIET) } else { good(QUIET) };
        reports = detector.verified(due, 10 * MS, &outcome);
    }
    assert_eq!(reports, [Report::GapClosed(Gap { until: Some(10 * MS), ..gap })]);
    assert_eq!(detector.count(VerdictKind::Compliant), 2);
}

#[test]
fn while_blind_nothing_becomes_compliant_but_drift_is_found() {
    let mut detector = compliant(2);
    let gap = detector.open_blindness(Scope::All, "ftrace_enabled is 0", 0);
    let drift = Report::Drifted { id: 0, since: 0, again: false };
    assert_eq!(look(&mut detector, &bad(4, QUIET)).1, [drift]);
    assert_eq!(look(&mut detector, &good(QUIET)).1, []);
    detector.recheck(Scope::All, MS);
    assert_eq!(look(&mut detector, &good(QUIET)).1, [Report::Recovered { id: 0 }]);
    assert_eq!(look(&mut detector, &good(QUIET)).1, []);
    assert_eq!((verdict(&detector, 0), verdict(&detector, 1)), (VerdictKind::Unknown, VerdictKind::Unknown));

    assert_eq!(detector.end_blindness(gap.number, 5 * MS), []);
    assert_eq!(look(&mut detector, &good(QUIET)).1, []);
    let closed = Gap { until: Some(5 * MS), ..gap };
    assert_eq!(look(&mut detector, &good(QUIET)).1, [Report::GapClosed(closed)]);
    assert_eq!(detector.node_verdict(), VerdictKind::Compliant);
}

#[test]
fn removing_the_last_thing_a_gap_waits_for_closes_it() {
    let mut detector = compliant(1);
    detector.open_gap(Scope::Thing(0), "record malformed", MS);
    assert!(matches!(detector.remove(0, 2 * MS).as_slice(), [Report::GapClosed(_)]));
    assert!(matches!(detector.open_gap(Scope::All, "nothing", MS).as_slice(), [_, Report::GapClosed(_)]));
    assert_eq!(detector.next_deadline(), None);
}

#[test]
fn due_is_bounded_and_oldest_first_and_gives_nothing_twice() {
    let mut detector = compliant(5);
    for (id, at) in [(3, 1), (0, 2), (4, 2)] {
        detector.event(id, at, THEIRS);
    }
    assert_eq!(detector.due(9, 2), [3, 0]);
    assert_eq!(detector.due(9, 2), [4]);
    assert_eq!(detector.due(9, 2), [] as [u32; 0]);
    detector.event(77, 10, THEIRS);
    assert_eq!(detector.verified(77, 10, &good(QUIET)), []);
}

#[test]
fn ten_thousand_things_take_less_than_two_megabytes() {
    assert!(size_of::<super::thing::ThingState>() <= 160);
}

#[test]
fn only_the_marks_of_a_save_are_transient() {
    let difference =
        |kind| Difference { kind, expected: String::new(), found: String::new(), text: String::new() };
    let is = |kinds: &[DifferenceKind], new| {
        is_transient(&kinds.iter().map(|kind| difference(*kind)).collect::<Vec<_>>(), new)
    };
    assert!(is(&[DifferenceKind::Missing], false));
    assert!(is(&[DifferenceKind::Mode, DifferenceKind::Owner], true));
    assert!(!is(&[DifferenceKind::Mode], false));
    assert!(!is(&[DifferenceKind::Mode, DifferenceKind::Content], true));
}

#[test]
fn the_sums_agree_with_the_things_whatever_happens_to_them() {
    let check = |detector: &Detector, writers: bool| {
        for kind in [VerdictKind::Compliant, VerdictKind::Unknown, VerdictKind::Drifted] {
            let standing = detector.managed().filter(|id| verdict(detector, *id) == kind).count();
            assert_eq!(detector.count(kind), standing, "{kind:?}");
        }
        assert_eq!(detector.wants_rw_hook(), writers);
    };
    let mut detector = compliant(3);
    detector.event(0, MS, THEIRS);
    look(&mut detector, &bad(9, QUIET));
    check(&detector, false);
    detector.event(1, 2 * MS, THEIRS);
    look(&mut detector, &good(WRITERS));
    check(&detector, true);
    assert_eq!(detector.open_gap(Scope::All, "test", 3 * MS).len(), 1);
    check(&detector, true);
    detector.add(0, 4 * MS);
    check(&detector, true);
    detector.remove(1, 5 * MS);
    check(&detector, false);
    detector.remove(0, 6 * MS);
    detector.remove(2, 7 * MS);
    check(&detector, false);
    assert_eq!(detector.node_verdict(), VerdictKind::Compliant);
}

#[test]
fn only_a_look_that_counts_decides() {
    let mut detector = compliant(1);
    detector.event(0, MS, THEIRS);
    assert_eq!(detector.due(MS, 1), [0]);
    assert!(!detector.conclude(0, MS, &good(WRITERS)).decided, "somebody has it open for writing");
    let at = detector.next_deadline().expect("looks go on");
    assert_eq!(detector.due(at, 1), [0]);
    let conclusion = detector.conclude(0, at, &good(QUIET));
    assert!(conclusion.decided);
    assert_eq!(conclusion.reports, [Report::Touched { id: 0 }]);
}

/// What a look gives of which the kernel tells nothing.
fn unseen(finding: Finding) -> Outcome {
    Outcome { finding, evidence: None }
}

#[test]
fn what_others_can_change_is_never_compliant_and_does_not_flap() {
    let compliant_look = unseen(Finding::Compliant { untouched: true });
    let mut detector = Detector::new(Config::default());
    for id in 0..3 {
        detector.add(id, 0);
    }
    let mut told = Vec::new();
    let settle = |detector: &mut Detector, told: &mut Vec<Report>, outcome: &Outcome| {
        while let Some(now) = detector.next_deadline() {
            for id in detector.due(now, usize::MAX) {
                told.extend(detector.vouch(id, (id > 0).then_some("foreign"), now));
                let outcome = if id == 1 { *outcome } else { unseen(Finding::Compliant { untouched: true }) };
                told.extend(detector.conclude(id, now, &outcome).reports);
            }
        }
    };
    settle(&mut detector, &mut told, &compliant_look);
    assert_eq!(told.len(), 1, "one gap for both, and it stays open: {told:?}");
    assert!(
        matches!(&told[0], Report::GapOpened(gap) if gap.reason == "foreign" && gap.scope == Scope::Some)
    );
    assert_eq!(
        (verdict(&detector, 0), verdict(&detector, 1)),
        (VerdictKind::Compliant, VerdictKind::Unknown)
    );
    assert_eq!(detector.standing(1).unwrap().reason, Some("foreign"));
    assert_eq!(detector.node_verdict(), VerdictKind::Unknown);
    let since = detector.standing(1).unwrap().since;

    // A full verification finds it as it was, and tells nothing.
    told.clear();
    detector.recheck(Scope::All, 3_600_000 * MS);
    settle(&mut detector, &mut told, &compliant_look);
    assert_eq!((told.as_slice(), detector.standing(1).unwrap().since), (&[][..], since));

    // Another one finds it changed by another machine, and then restored.
    detector.recheck(Scope::All, 7_200_000 * MS);
    settle(&mut detector, &mut told, &unseen(Finding::Differs { fingerprint: 1, transient: false }));
    assert!(matches!(told[..], [Report::Drifted { id: 1, .. }]), "{told:?}");
    assert_eq!(verdict(&detector, 1), VerdictKind::Drifted);
    told.clear();
    detector.recheck(Scope::All, 9_000_000 * MS);
    settle(&mut detector, &mut told, &compliant_look);
    assert_eq!(told, [Report::Recovered { id: 1 }]);
    assert_eq!(verdict(&detector, 1), VerdictKind::Unknown);
}

#[test]
fn what_is_no_longer_foreign_is_verified_and_closes_its_gap_with_the_last() {
    let mut detector = compliant(2);
    for id in 0..2 {
        detector.event(id, MS, THEIRS);
        detector.due(MS, 1);
        detector.vouch(id, Some("foreign"), MS);
        detector.conclude(id, MS, &good(QUIET));
        assert_eq!(verdict(&detector, id), VerdictKind::Unknown, "nothing vouches for it");
        assert_eq!((detector.count(VerdictKind::Unknown), detector.undecided()), (id as usize + 1, 0));
    }
    detector.event(0, 50 * MS, THEIRS);
    assert_eq!(detector.undecided(), 1, "it is looked at once more");
    for (id, is_last) in [(0, false), (1, true)] {
        detector.event(id, 100 * MS, THEIRS);
        let mut told = Vec::new();
        while let Some(now) = detector.next_deadline() {
            detector.due(now, 1);
            told.extend(detector.vouch(id, None, now));
            told.extend(detector.conclude(id, now, &good(QUIET)).reports);
        }
        assert_eq!(verdict(&detector, id), VerdictKind::Compliant);
        assert_eq!(told.iter().any(|report| matches!(report, Report::GapClosed(_))), is_last, "{told:?}");
    }
    assert_eq!(detector.node_verdict(), VerdictKind::Compliant);
    detector.vouch(0, Some("foreign"), 200 * MS);
    assert!(matches!(detector.remove(0, 201 * MS)[..], [Report::GapClosed(_)]), "nothing is left under it");
}

#[test]
fn a_look_that_could_not_be_made_decides_nothing_and_leaves_compliance_unknown() {
    let mut detector = compliant(2);
    detector.event(0, 5 * MS, THEIRS);
    look(&mut detector, &bad(9, QUIET));
    detector.recheck(Scope::All, 6 * MS);
    assert_eq!(detector.due(6 * MS, 2).len(), 2);
    let other = detector.open_gap(Scope::Thing(1), "other", 7 * MS);
    assert_eq!(other.len(), 1);
    let mut told = Vec::new();
    for id in 0..2 {
        detector.open_blindness(Scope::Thing(id), "hangs", 7 * MS);
        told.extend(detector.unanswered(id, 7 * MS, 90 * MS));
    }
    let closed: Vec<_> = told
        .iter()
        .filter_map(
            |report| if let Report::GapClosed(gap) = report { Some(gap.reason.as_str()) } else { None },
        )
        .collect();
    assert_eq!(closed, ["other"], "another gap waits for nothing that has its own");
    assert!(detector.gaps().all(|gap| gap.reason == "hangs"));
    assert_eq!((verdict(&detector, 0), verdict(&detector, 1)), (VerdictKind::Drifted, VerdictKind::Unknown));
    assert_eq!(detector.undecided(), 0, "nobody waits for it");
    assert_eq!(detector.next_deadline(), Some(90 * MS));
    // Nor is it waited for what hangs under one gap with others.
    detector.add(2, 8 * MS);
    assert_eq!(detector.due(8 * MS, 1), [2]);
    assert_eq!(detector.undecided(), 1);
    detector.vouch(2, Some("hangs"), 8 * MS);
    detector.unanswered(2, 8 * MS, 90 * MS);
    assert_eq!(detector.undecided(), 0);
    // A change is looked at before that.
    detector.event(1, 10 * MS, THEIRS);
    assert_eq!(detector.next_deadline(), Some(10 * MS));
    look(&mut detector, &bad(9, QUIET));
    assert_eq!(verdict(&detector, 1), VerdictKind::Drifted);
}
