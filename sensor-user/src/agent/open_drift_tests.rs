use super::*;
use sensor_model::difference::DifferenceKind;
use sensor_model::record::ThingKind;

fn name(kind: ThingKind) -> ThingName {
    ThingName { path: "/etc/systemd/system/a.service".to_owned(), kind }
}

fn difference(kind: DifferenceKind, expected: &str, found: &str) -> Difference {
    let text = format!("{kind:?}: {expected}, not {found}");
    Difference { kind, expected: expected.to_owned(), found: found.to_owned(), text }
}

fn content(expected: &str, found: &str) -> Difference {
    difference(DifferenceKind::Content, expected, found)
}

fn drift(differences: Vec<Difference>) -> OpenDrift {
    OpenDrift {
        differences,
        since: "2026-01-02T03:04:05Z".parse().unwrap(),
        actor: Some(Actor { pid: 7, ..Actor::default() }),
        actors: Vec::new(),
        more_actors: false,
        allowed: false,
        source: "50-a".to_owned(),
        source_kind: None,
        strength: None,
        action: Some(DriftAction::Observe),
        found: None,
        confirmed: true,
    }
}

/// The open drifts of an earlier run.
fn earlier(differences: Vec<Difference>) -> OpenDrifts {
    let mut drifts = OpenDrifts::default();
    drifts.insert(name(ThingKind::File), drift(differences));
    drifts.unconfirm();
    drifts
}

#[test]
fn a_confirmed_drift_has_the_action_and_the_permission_of_the_present_policy() {
    let file = name(ThingKind::File);
    let mut drifts = OpenDrifts::default();
    drifts.insert(file.clone(), OpenDrift { allowed: true, ..drift(Vec::new()) });
    drifts.unconfirm();
    drifts.confirm(&file, DriftAction::Degrade, false);
    let open = drifts.get(&file).unwrap();
    assert_eq!((open.action, open.allowed), (Some(DriftAction::Degrade), false));
}

#[test]
fn a_reported_drift_is_found_once_and_is_new_if_it_differs() {
    let file = name(ThingKind::File);
    let mut drifts = earlier(vec![content("a", "b")]);
    assert!(drifts.is_unconfirmed(&file));
    assert_eq!(drifts.reported(&file, &[content("a", "c")]), None);
    let known = drifts.reported(&file, &[content("a", "b")]).unwrap();
    assert_eq!(known.actor.as_ref().map(|actor| actor.pid), Some(7));
    drifts.confirm(&file, DriftAction::Revert, false);
    assert!(!drifts.is_unconfirmed(&file));
    assert_eq!(drifts.get(&file).unwrap().action, Some(DriftAction::Revert));
    assert_eq!(
        drifts.reported(&file, &[content("a", "b")]),
        None,
        "from here on the detector reports only new drift"
    );
}

#[test]
fn a_difference_that_another_version_worded_otherwise_is_not_new() {
    let mut before = content("a", "b");
    before.text = "as it was worded once".to_owned();
    assert!(earlier(vec![before]).reported(&name(ThingKind::File), &[content("a", "b")]).is_some());
}

#[test]
fn things_at_one_path_are_kept_apart() {
    let mut drifts = earlier(vec![content("a", "b")]);
    let unit = name(ThingKind::Unit);
    assert!(!drifts.is_unconfirmed(&unit) && drifts.get(&unit).is_none());
    assert_eq!(drifts.remove(&unit), None);
    assert!(drifts.get(&name(ThingKind::File)).is_some());
}

#[test]
fn the_actor_of_a_found_state_is_its_actor_for_another_expectation_too() {
    let file = name(ThingKind::File);
    let drifts = earlier(vec![content("a", "b"), difference(DifferenceKind::Mode, "0644", "0600")]);
    assert!(drifts.cause(&file, &[content("z", "b")]).is_some());
    assert!(drifts.cause(&file, &[content("a", "c")]).is_none(), "another actor may have made it");
    let owner = difference(DifferenceKind::Owner, "root", "alice");
    assert!(drifts.cause(&file, &[content("z", "b"), owner]).is_none());
    assert!(drifts.cause(&name(ThingKind::Unit), &[content("z", "b")]).is_none());
}
