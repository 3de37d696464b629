//! Long texts of actors, and moves whose directory or original is away when they go on.

use super::*;

#[test]
fn an_item_whose_actors_have_the_longest_texts_can_be_listed_restored_and_removed() {
    let text = "\u{1}".repeat(4095);
    let one = Actor { pid: 7, exe: Some(text.clone()), argv: vec![text; 16], ..Actor::default() };
    let actor = Actor { ancestors: vec![one.clone(); 8], ..one };
    let case = Case::new(true);
    fs::write(case.closed("x"), "content").unwrap();
    let session = case.quarantine.begin_moves(&case.observer).unwrap();
    let actors = vec![actor; 16];
    let moved = case.take_of(session, "x", &OwnFiles::default(), &actors).unwrap().unwrap();
    let items = case.items();
    assert_eq!(items[0].actors, moved.actors);
    assert!((1..16).contains(&moved.actors.len()), "{}", moved.actors.len());
    assert_eq!(moved.actors[0].exe, actors[0].exe, "the maker is named");
    case.quarantine.restore(&case.observer, &moved.id).unwrap();
    assert_eq!(fs::read(case.closed("x")).unwrap(), b"content");
}

#[test]
fn a_copy_that_was_interrupted_stays_while_its_directory_is_missing_and_goes_on_when_it_is_back() {
    let case = Case::new(false);
    fs::write(case.closed("x"), "content").unwrap();
    // As a kill leaves it after the original was moved beside its path.
    {
        let locked = case.quarantine.lock().unwrap();
        let place = Place::find(case.observer.root(), Path::new("/etc/closed/x")).unwrap().unwrap();
        let rule = rule();
        let survey =
            survey::Survey::of(&place.directory, &place.name, survey::Contents::Skip, &place.path).unwrap();
        let why = Cause { time: TIME, actors: &[], rule: &rule };
        let mut item = locked.begin("20261125", |id| Manifest::new(id, &place.path, &survey, why)).unwrap();
        let private = take::make_private(&place, &mut item, false).unwrap();
        fs::rename(case.closed("x"), case.closed(&private.name).join("object")).unwrap();
        fs::write(item.path.join("object"), "con").unwrap();
    }
    let away = case.root.join("away");
    fs::rename(case.closed(""), &away).unwrap();
    case.quarantine.recover(&case.observer).unwrap();
    assert_eq!(case.items(), []);
    fs::rename(&away, case.closed("")).unwrap();
    case.quarantine.recover(&case.observer).unwrap();
    let items = case.items();
    assert_eq!(items.len(), 1);
    assert_eq!(fs::read(case.object(&items[0])).unwrap(), b"content");
    assert_eq!(case.names(), [""; 0]);
}

#[test]
fn what_was_copied_is_kept_if_another_process_takes_the_original_away_meanwhile() {
    let case = Case::new(false);
    fs::write(case.closed("x"), "content").unwrap();
    let moved = case.take("x").unwrap().unwrap();
    // As a kill leaves it while the copy is made, and then the temporary directory was renamed.
    let directory = case.root.join("state/quarantine");
    let unfinished = directory.join(format!("{}.new", moved.id));
    fs::rename(directory.join(&moved.id), &unfinished).unwrap();
    let manifest = unfinished.join("manifest.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    json["temporary"] = serde_json::json!({"name": ".holdfast-1-0.new", "is_restore": false});
    fs::write(&manifest, json.to_string()).unwrap();
    case.quarantine.recover(&case.observer).unwrap();
    let items = case.items();
    assert_eq!(items.len(), 1);
    assert!(items[0].not_kept.iter().any(|text| text.contains("interrupted")), "{:?}", items[0]);
    assert_eq!(
        (&items[0].temporary, fs::read(case.object(&items[0])).unwrap()),
        (&None, b"content".to_vec())
    );
}

#[test]
fn a_link_to_a_file_of_holdfast_stays_as_the_file_does() {
    let case = Case::new(true);
    fs::create_dir(case.closed("wants")).unwrap();
    fs::write(case.root.join("unit"), "").unwrap();
    let link = case.closed("wants/unit");
    symlink(case.root.join("unit"), &link).unwrap();
    let own = OwnFiles::of([link.as_path()]);
    for name in ["wants/unit", "wants"] {
        let error = case.take_beside(name, &own).unwrap_err().to_string();
        assert!(error.contains("Holdfast's own files"), "{error}");
    }
    assert!(link.is_symlink());
}
