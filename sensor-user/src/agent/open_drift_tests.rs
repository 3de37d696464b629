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

fn open(differences: Vec<Difference>) -> Open {
    Open {
        differences,
        since: "2026-01-02T03:04:05Z".to_owned(),
        actor: Some(Actor { pid: 7, ..Actor::default() }),
        actors: Vec::new(),
        more: false,
        allowed: false,
        source: "50-a".to_owned(),
        action: Some(Action::Observe),
        found: None,
        seen: true,
    }
}

fn carried(differences: Vec<Difference>) -> Drifts {
    let mut drifts = Drifts::default();
    drifts.set(name(ThingKind::File), open(differences));
    drifts.carry()
}

#[test]
fn what_was_told_before_is_found_once_as_it_was_and_is_news_when_it_differs() {
    let file = name(ThingKind::File);
    let mut drifts = carried(vec![content("a", "b")]);
    assert!(drifts.is_unseen(&file));
    assert_eq!(drifts.resume(&file, &[content("a", "c")]), None);
    let resumed = drifts.resume(&file, &[content("a", "b")]).unwrap();
    assert_eq!(resumed.actor.as_ref().map(|actor| actor.pid), Some(7));
    assert!(!drifts.is_unseen(&file));
    assert_eq!(drifts.resume(&file, &[content("a", "b")]), None, "the detector tells only news from here on");
}

#[test]
fn a_sentence_that_another_version_has_for_it_is_no_news() {
    let mut before = content("a", "b");
    before.text = "as it was said once".to_owned();
    assert!(carried(vec![before]).resume(&name(ThingKind::File), &[content("a", "b")]).is_some());
}

#[test]
fn things_at_one_path_are_told_apart() {
    let mut drifts = carried(vec![content("a", "b")]);
    let unit = name(ThingKind::Unit);
    assert!(!drifts.is_unseen(&unit) && drifts.get(&unit).is_none());
    assert_eq!(drifts.close(&unit), None);
    assert!(drifts.get(&name(ThingKind::File)).is_some());
}

#[test]
fn whoever_made_all_of_what_is_found_made_it_also_for_another_expectation() {
    let file = name(ThingKind::File);
    let drifts = carried(vec![content("a", "b"), difference(DifferenceKind::Mode, "0644", "0600")]);
    assert!(drifts.maker(&file, &[content("z", "b")]).is_some());
    assert!(drifts.maker(&file, &[content("a", "c")]).is_none(), "somebody else may have");
    let owner = difference(DifferenceKind::Owner, "root", "alice");
    assert!(drifts.maker(&file, &[content("z", "b"), owner]).is_none());
    assert!(drifts.maker(&name(ThingKind::Unit), &[content("z", "b")]).is_none());
}

#[test]
fn what_nothing_declares_any_more_is_let_go() {
    let mut drifts = carried(vec![content("a", "b")]);
    assert_eq!(drifts.release(&HashSet::from([name(ThingKind::File)])), []);
    let released = drifts.release(&HashSet::from([name(ThingKind::Unit)]));
    assert_eq!(released[0].0, name(ThingKind::File));
    assert!(drifts.is_empty());
}
