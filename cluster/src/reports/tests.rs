use super::*;
use crate::api::{Drift, DriftReportStatus, DriftState};
use jiff::Timestamp;
use sensor_model::{
    difference::{Difference, DifferenceKind},
    expectation::SourceKind,
    record::{Actor, ThingKind},
    socket::LogCheckpoint,
    status::{DriftedThing, LeftOut, NodeStatus, OpenGap, SCHEMA},
    strength::Strength,
    verdict::VerdictKind,
};

fn status(verdict: VerdictKind, drifted: Vec<DriftedThing>) -> NodeStatus {
    NodeStatus {
        schema: SCHEMA.to_owned(),
        verdict,
        degraded: true,
        backend: "lsm".to_owned(),
        capabilities: Vec::new(),
        time: "2026-01-02T03:04:05.5Z".to_owned(),
        pid: 7,
        boot_id: String::new(),
        beat_seconds: 5,
        sources: Vec::new(),
        config: None,
        config_refused: None,
        booted_image: None,
        drifted,
        gaps: Vec::new(),
        node: None,
        waiting: Vec::new(),
        counters: std::collections::BTreeMap::new(),
        left_out: LeftOut::default(),
    }
}

fn thing(path: &str, since: &str, actor: Option<Actor>) -> DriftedThing {
    let difference = |kind| Difference {
        kind,
        expected: "password=secret".to_owned(),
        found: "password=other".to_owned(),
        text: "mode mismatch, password=secret".to_owned(),
    };
    DriftedThing {
        path: path.to_owned(),
        thing: Some(ThingKind::File),
        differences: vec![
            difference(DifferenceKind::Mode),
            difference(DifferenceKind::Content),
            difference(DifferenceKind::Content),
        ],
        since: since.to_owned(),
        actor,
        source: "99-worker".to_owned(),
        source_kind: None,
        strength: None,
        action: None,
        allowed: false,
    }
}

fn vi() -> Actor {
    Actor {
        pid: 7,
        exe: Some("/usr/bin/vi".to_owned()),
        login_uid: Some(1000),
        login_user: Some("alice".to_owned()),
        argv: vec!["vi".to_owned(), "password=secret".to_owned()],
        ..Actor::default()
    }
}

fn finding(status: &NodeStatus) -> NodeFinding {
    NodeFinding {
        status: status_of(status, None),
        sensor: SensorState::Answers { refuses_config: false },
        text: None,
        config: None,
    }
}

#[test]
fn an_edit_of_a_login_is_a_drift_of_that_login() {
    let status = status(
        VerdictKind::Drifted,
        vec![
            thing("/etc/old", "2026-01-01T00:00:00.5Z", None),
            thing("/etc/new", "2026-01-01T00:00:01Z", Some(vi())),
            thing("/etc/older", "2026-01-01T00:00:00Z", None),
        ],
    );
    let finding = finding(&status);
    let report = &finding.status;
    let newest = report.newest.as_ref().unwrap();
    assert_eq!((report.state, report.count, report.more), (DriftState::Drifted, 3, 0));
    assert_eq!((newest.path.as_str(), newest.by.as_str()), ("/etc/new", "root login alice via vi"));
    let paths: Vec<&str> = report.drifts.iter().map(|drift| drift.path.as_str()).collect();
    assert_eq!(paths, ["/etc/new", "/etc/old", "/etc/older"], "the newest is the first");
    assert_eq!(report.drifts[0].differences, ["content", "mode"]);
    let [drift, ready] = conditions(&finding);
    assert_eq!((drift.kind, drift.status, drift.reason), (CONFIG_DRIFT, ConditionStatus::True, "Drifted"));
    assert_eq!(
        drift.message,
        "3 managed things drifted: /etc/new (content, mode) by root login alice via vi (source 99-worker); \
         /etc/old (content, mode) by an unknown actor (source 99-worker); \
         /etc/older (content, mode) by an unknown actor (source 99-worker)"
    );
    assert_eq!((ready.status, ready.message.as_str()), (ConditionStatus::True, "backend lsm"));
}

#[test]
fn report_condition_and_event_name_the_layer_of_a_drift_and_the_report_its_strength() {
    let layer = "layer 3 of 67, sha256:77aa00000000…, `RUN dnf install -y kubelet`";
    let of_layer = |path: &str| DriftedThing {
        source: layer.to_owned(),
        source_kind: Some(SourceKind::Image),
        strength: Some(Strength::Layer),
        ..thing(path, "2026-01-01T00:00:00Z", Some(vi()))
    };
    // A path of any length leaves the source in the texts.
    for path in ["/usr/bin/kubelet".to_owned(), format!("/usr/{}", "a".repeat(4000))] {
        let finding = finding(&status(VerdictKind::Drifted, vec![of_layer(&path)]));
        let report = &finding.status;
        let drift = &report.drifts[0];
        assert_eq!((drift.source.as_str(), drift.strength.as_deref()), (layer, Some("sha256 of a layer")));
        let [condition, _] = conditions(&finding);
        let note = event(None, report).unwrap().note;
        for text in [&condition.message, &note] {
            assert!(text.ends_with(" (source layer 3 of 67, sha256:77aa00000000…)"), "{text}");
        }
    }
    let config = finding(&status(VerdictKind::Drifted, vec![thing("/etc/a", "", None)]));
    assert_eq!(config.status.drifts[0].strength, None);
}

#[test]
fn neither_report_nor_condition_nor_event_has_a_content_or_an_argument() {
    let mut status = status(VerdictKind::Drifted, vec![thing("/etc/a", "", Some(vi()))]);
    status.config_refused = Some("field x: password=secret is no number".to_owned());
    let mut finding = finding(&status);
    finding.sensor = SensorState::Answers { refuses_config: true };
    let texts = [
        serde_json::to_string(&finding.status).unwrap(),
        format!("{:?}", conditions(&finding)),
        format!("{:?}", event(None, &finding.status)),
    ];
    assert!(texts.iter().all(|text| !text.contains("secret") && !text.contains("password")), "{texts:?}");
}

#[test]
fn every_text_of_the_report_is_bounded_whatever_the_sensor_sends() {
    for character in ["a", "\"", "\u{1b}", "\u{fffd}"] {
        let long = character.repeat(4096);
        let actor = Actor {
            exe: Some(long.clone()),
            login_user: Some(long.clone()),
            unit: Some(long.clone()),
            pod_uid: Some(long.clone()),
            container_id: Some(long.clone()),
            ..vi()
        };
        let drifted: Vec<DriftedThing> = (0..1000)
            .map(|number| DriftedThing {
                path: format!("/{number}{long}"),
                source: long.clone(),
                differences: DifferenceKind::ALL
                    .iter()
                    .map(|kind| Difference {
                        kind: *kind,
                        expected: String::new(),
                        found: String::new(),
                        text: String::new(),
                    })
                    .collect(),
                ..thing("", "2026-01-01T00:00:00Z", Some(actor.clone()))
            })
            .collect();
        let gap =
            OpenGap { since: String::new(), until: None, reason: long.clone(), path: Some(long.clone()) };
        let mut status = status(VerdictKind::Drifted, drifted);
        status.gaps = vec![gap; 1000];
        status.backend.clone_from(&long);
        let checkpoint = LogCheckpoint {
            schema: String::new(),
            sequence: u64::MAX,
            hash: long.clone(),
            time: long.clone(),
        };
        let mut report = status_of(&status, Some(&checkpoint));
        let pod = || PodName { namespace: "n".repeat(63), name: "p".repeat(253) };
        let unnamed = unnamed_pods(&report);
        let names = PodNames {
            pods: unnamed.iter().map(|uid| (uid.clone(), pod())).collect(),
            containers: unnamed.iter().map(|id| (id.clone(), "c".repeat(63))).collect(),
        };
        name_pods(&mut report, &names);
        let bytes = serde_json::to_vec(&report).unwrap().len();
        assert!(bytes < 256 << 10, "{bytes} bytes with {character:?}");
        assert_eq!(report.count, 1000);
        assert_eq!(report.more, 1000 - i64::try_from(report.drifts.len()).unwrap());
        assert_eq!((report.gaps.len(), report.more_gaps), (20, 980));
        assert!(report.drifts.len() > 20);
        let finding = NodeFinding {
            status: report,
            sensor: SensorState::Answers { refuses_config: false },
            text: None,
            config: None,
        };
        for condition in conditions(&finding) {
            assert!(condition.message.len() <= 1024, "{}", condition.message);
        }
        assert!(event(None, &finding.status).unwrap().note.len() <= 1024);
    }
}

#[test]
fn a_hundred_thousand_drifts_are_a_small_report_with_their_number() {
    let drifted: Vec<DriftedThing> = (0..100_000)
        .map(|number| thing(&format!("/etc/{number:4096}"), "2026-01-01T00:00:00Z", Some(vi())))
        .collect();
    let finding = finding(&status(VerdictKind::Drifted, drifted));
    assert!(serde_json::to_vec(&finding.status).unwrap().len() < 256 << 10);
    assert_eq!(finding.status.count, 100_000);
    assert!(finding.status.drifts.len() >= 90);
    let [drift, _] = conditions(&finding);
    assert!(drift.message.starts_with("100000 managed things drifted: /etc/"), "{}", drift.message);
    assert!(drift.message.ends_with(" more"), "{}", drift.message);
}

#[test]
fn what_a_node_says_now_is_an_update_only_while_the_report_says_so() {
    let by = Actor { pod_uid: Some("u-1".to_owned()), ..vi() };
    let now = status(VerdictKind::Drifted, vec![thing("/etc/a", "2026-01-01T00:00:00Z", Some(by))]);
    let mut report = status_of(&now, None);
    let pod = PodName {
        namespace: "openshift-machine-config-operator".to_owned(),
        name: "machine-config-daemon-x".to_owned(),
    };
    name_pods(&mut report, &PodNames { pods: [("u-1".to_owned(), pod)].into(), ..PodNames::default() });
    assert_eq!(current(&report, &now).state, DriftState::Drifted);
    report.state = DriftState::Updating;
    let of_update = current(&report, &now);
    assert_eq!(of_update.state, DriftState::Updating);
    let another = status(VerdictKind::Drifted, vec![thing("/etc/a", "2026-01-01T00:00:00Z", Some(vi()))]);
    assert_eq!(current(&report, &another).state, DriftState::Drifted);
}

#[test]
fn an_actor_in_words() {
    let words = |actor: Actor| super::by(Some(&super::actor::changed_by(&actor)));
    assert_eq!(words(vi()), "root login alice via vi");
    assert_eq!(words(Actor { login_user: None, uid: 5, ..vi() }), "uid 5 login uid 1000 via vi");
    let unit = Actor { unit: Some("chronyd.service".to_owned()), ..Actor::default() };
    assert_eq!(words(unit.clone()), "chronyd.service");
    assert_eq!(words(Actor { holdfast: true, ..unit.clone() }), "Holdfast");
    let container = Actor { container_id: Some("0123456789abcdef".repeat(4)), ..vi() };
    assert_eq!(words(container.clone()), "container 0123456789ab via vi", "not the login of the runtime");
    assert_eq!(words(Actor { pod_uid: Some("u-1".to_owned()), ..container }), "pod u-1 via vi");
    assert_eq!(words(Actor::default()), "root");
    assert_eq!(super::by(None), "an unknown actor");
}

#[test]
fn a_pod_gets_its_name_also_in_the_text_of_the_newest_drift() {
    let actor = Actor { pod_uid: Some("u-1".to_owned()), ..vi() };
    let other = Actor { pod_uid: Some("u-2".to_owned()), ..vi() };
    let drifted = vec![
        thing("/etc/a", "2026-01-01T00:00:01Z", Some(actor)),
        thing("/etc/b", "2026-01-01T00:00:00Z", Some(other)),
    ];
    let mut report = status_of(&status(VerdictKind::Drifted, drifted), None);
    assert_eq!(unnamed_pods(&report).len(), 2);
    let pod = PodName { namespace: "default".to_owned(), name: "debugger".to_owned() };
    let names = PodNames { pods: [("u-1".to_owned(), pod)].into(), ..PodNames::default() };
    name_pods(&mut report, &names);
    assert_eq!(report.newest.as_ref().unwrap().by, "pod default/debugger via vi");
    assert_eq!(unnamed_pods(&report).into_iter().collect::<Vec<_>>(), ["u-2"]);
    assert_eq!(names_in(&report), names);
}

#[test]
fn a_container_of_a_pod_gets_its_name_in_report_condition_and_event_and_one_of_no_pod_is_not_asked_for() {
    let inside = |uid: Option<&str>, container: &str| Actor {
        pod_uid: uid.map(str::to_owned),
        container_id: Some(container.to_owned()),
        ..vi()
    };
    let drifted = vec![
        thing("/etc/a", "2026-01-01T00:00:02Z", Some(inside(Some("u-1"), "c-1"))),
        thing("/etc/b", "2026-01-01T00:00:01Z", Some(inside(Some("u-1"), "c-2"))),
        thing("/etc/c", "2026-01-01T00:00:00Z", Some(inside(None, "c-3"))),
    ];
    let mut finding = finding(&status(VerdictKind::Drifted, drifted));
    let unnamed = |report: &DriftReportStatus| unnamed_pods(report).into_iter().collect::<Vec<_>>();
    assert_eq!(unnamed(&finding.status), ["c-1", "c-2", "u-1"]);
    let pod = PodName { namespace: "shop".to_owned(), name: "web-0".to_owned() };
    let names = PodNames {
        pods: [("u-1".to_owned(), pod)].into(),
        containers: ["c-1", "c-3"].map(|id| (id.to_owned(), "debugger-x7k2p".to_owned())).into(),
    };
    name_pods(&mut finding.status, &names);
    assert_eq!(unnamed(&finding.status), ["c-2"], "an unknown id gives no name");
    let actors: Vec<_> = finding.status.drifts.iter().map(|drift| drift.by.as_ref().unwrap()).collect();
    let containers: Vec<_> = actors.iter().map(|by| by.container_name.as_deref()).collect();
    assert_eq!(containers, [Some("debugger-x7k2p"), None, None]);
    let words = "pod shop/web-0 container debugger-x7k2p via vi";
    assert_eq!(finding.status.newest.as_ref().unwrap().by, words);
    let [condition, _] = conditions(&finding);
    let note = event(None, &finding.status).unwrap().note;
    assert!(condition.message.contains(words) && note.contains(words), "{} {note}", condition.message);
    assert_eq!(actor_text(&inside(Some("u-1"), "c-1"), &names_in(&finding.status)), words);
    assert_eq!(actor_text(&inside(Some("u-2"), "c-1"), &names_in(&finding.status)), "pod u-2 via vi");
}

#[test]
fn a_node_in_sync_has_no_drift_and_one_without_evidence_is_unknown() {
    let [drift, _] = conditions(&finding(&status(VerdictKind::Compliant, Vec::new())));
    assert_eq!((drift.status, drift.reason), (ConditionStatus::False, "InSync"));
    let mut lost = status(VerdictKind::Unknown, Vec::new());
    let [drift, _] = conditions(&finding(&lost));
    assert_eq!((drift.status, drift.reason), (ConditionStatus::Unknown, "NotVerified"));
    let open = OpenGap { since: String::new(), until: None, reason: "ring-lost".to_owned(), path: None };
    lost.gaps = vec![open.clone(), OpenGap { until: Some("2026-01-01T00:00:00Z".to_owned()), ..open }];
    let finding = finding(&lost);
    assert_eq!(finding.status.gaps.len(), 1, "a gap that ended is history");
    let [drift, _] = conditions(&finding);
    assert_eq!((drift.status, drift.reason), (ConditionStatus::Unknown, "EvidenceLost"));
    assert!(drift.message.contains("ring-lost"));
}

#[test]
fn a_lost_evidence_does_not_hide_what_drifted() {
    let drifted = vec![thing("/etc/a", "2026-01-01T00:00:00Z", None)];
    for verdict in [VerdictKind::Unknown, VerdictKind::Compliant] {
        let report = status_of(&status(verdict, drifted.clone()), None);
        assert_eq!(report.state, DriftState::Drifted);
    }
}

#[test]
fn a_sensor_that_does_not_answer_proves_nothing_and_the_last_drifts_are_named() {
    let drifted = vec![thing("/etc/a", "2026-01-01T00:00:00Z", Some(vi()))];
    let mut finding = finding(&status(VerdictKind::Drifted, drifted));
    finding.status.state = DriftState::Unknown;
    for sensor in [
        SensorState::Silent { since: "2026-01-01T00:00:09Z".to_owned() },
        SensorState::Unusable { since: "2026-01-01T00:00:09Z".to_owned() },
        SensorState::NotReady { since: "2026-01-01T00:00:09Z".to_owned() },
    ] {
        finding.sensor = sensor;
        let [drift, ready] = conditions(&finding);
        assert_eq!((drift.status, ready.status), (ConditionStatus::Unknown, ConditionStatus::False));
        assert!(drift.message.contains("/etc/a (content, mode) by root login alice via vi"));
        assert_eq!(event(None, &finding.status), None, "an Event needs a present verdict");
    }
}

#[test]
fn an_event_is_about_what_the_last_one_did_not_name() {
    let at = |path, second: u8| thing(path, &format!("2026-01-01T00:00:{second:02}Z"), Some(vi()));
    let one = status_of(&status(VerdictKind::Drifted, vec![at("/etc/a", 1)]), None);
    let two = status_of(&status(VerdictKind::Drifted, vec![at("/etc/a", 1), at("/etc/b", 2)]), None);
    let none = status_of(&status(VerdictKind::Compliant, Vec::new()), None);
    let first = event(None, &one).unwrap();
    assert_eq!((first.reason, first.is_warning), ("ConfigDriftDetected", true));
    assert_eq!(
        first.note,
        "1 managed thing drifted: /etc/a (content, mode) by root login alice via vi (source 99-worker)"
    );
    assert_eq!(event(Some(&one), &one), None);
    let second = event(Some(&one), &two).unwrap();
    assert!(second.note.starts_with("1 managed thing drifted (2 in all): /etc/b"), "{}", second.note);
    assert_eq!(event(Some(&two), &one), None, "one of two recovered");
    let recovered = event(Some(&two), &none).unwrap();
    assert_eq!((recovered.reason, recovered.is_warning), ("ConfigDriftRecovered", false));
    assert_eq!(event(Some(&none), &none), None);
    assert_eq!(event(None, &none), None);
    let again = status_of(&status(VerdictKind::Drifted, vec![at("/etc/a", 9)]), None);
    assert!(event(Some(&one), &again).is_some(), "it drifted again after it had recovered");
}

#[test]
fn a_drift_that_comes_and_goes_among_more_than_the_report_lists_repeats_no_event_of_others() {
    let at = |number: u32| {
        let since = Timestamp::from_second(1_700_000_000 + i64::from(number)).unwrap();
        thing(&format!("/etc/{number}"), &since.to_string(), None)
    };
    let mut last = None;
    let mut notes = Vec::new();
    for round in 0..6 {
        let mut drifted: Vec<_> = (0..150).map(at).collect();
        if round % 2 == 0 {
            // It drifts anew, at a later time.
            drifted.push(at(1000 + round));
        }
        let report = status_of(&status(VerdictKind::Drifted, drifted), None);
        notes.extend(event(last.as_ref(), &report).map(|event| event.note));
        last = Some(report);
    }
    assert_eq!(notes.len(), 3, "{notes:?}");
    for (note, name) in notes.iter().skip(1).zip(["/etc/1002", "/etc/1004"]) {
        assert!(note.starts_with("1 managed thing drifted (151 in all): ") && note.contains(name), "{note}");
    }
}

#[test]
fn among_more_than_the_report_lists_a_drift_without_a_time_is_new_once() {
    let list = |drifts: &[(&str, Option<&str>)]| DriftReportStatus {
        state: DriftState::Drifted,
        count: 9,
        more: 5,
        drifts: drifts
            .iter()
            .map(|(path, since)| Drift {
                path: (*path).to_owned(),
                since: since.map(str::to_owned),
                ..Drift::default()
            })
            .collect(),
        ..DriftReportStatus::default()
    };
    let (early, late) = (Some("2026-01-02T03:04:05Z"), Some("2026-01-02T03:04:09Z"));
    let before = list(&[("/etc/a", late)]);
    let with_image = list(&[("/etc/a", late), ("/run/ostree-booted", None)]);
    assert!(event(Some(&before), &with_image).unwrap().note.contains("/run/ostree-booted"));
    assert_eq!(event(Some(&with_image), &with_image), None);
    // One that was counted is listed again, although the time of another one is not known.
    let listed = list(&[("/etc/a", late), ("/run/ostree-booted", None), ("/etc/b", early)]);
    assert_eq!(event(Some(&with_image), &listed), None);
}

#[test]
fn drifts_and_gaps_that_the_sensor_leaves_out_are_counted() {
    let mut status = status(VerdictKind::Drifted, vec![thing("/etc/a", "2026-01-01T00:00:00Z", None)]);
    status.left_out = LeftOut { drifted: 9, gaps: 2, ..LeftOut::default() };
    let report = status_of(&status, None);
    assert_eq!((report.count, report.more, report.more_gaps), (10, 9, 2));
    // Its list may be empty although there are drifts.
    status.drifted.clear();
    for verdict in [VerdictKind::Drifted, VerdictKind::Unknown, VerdictKind::Compliant] {
        status.verdict = verdict;
        let report = status_of(&status, None);
        assert_eq!((report.state, report.count), (DriftState::Drifted, 9));
    }
}
