use super::*;
use sensor_model::expectation::{
    AuthorizedKeysExpectation, Content, FileExpectation, Source, Thing, UnitExpectation,
};

fn file(may_be_missing: bool) -> Expectation {
    Expectation {
        thing: Thing::file("/etc/a"),
        expected: Expected::File(FileExpectation {
            content: Some(Content { size: 3, sha256: [1; 32] }),
            keys: Box::default(),
            layout_free: false,
            mode: 0o644,
            user: Owner::Id(0),
            group: Owner::Name("adm".to_owned()),
            may_be_missing,
            xattrs: None,
        }),
        ssh_keys: false,
        label: None,
        source: Source::new("a", "a").into(),
    }
}

#[test]
fn the_state_of_a_compliant_thing_is_what_its_declaration_determines() {
    let wanted = json!({
        "from": "declaration", "seen": "object", "file_type": "regular", "mode": 0o644, "uid": 0, "group": "adm",
        "size": 3, "sha256": "01".repeat(32),
    });
    assert_eq!(declared(&file(false)), Some(wanted));
    assert_eq!(declared(&file(true)), None, "the file may have been missing");
    let unit = UnitExpectation { enabled: Some(true), masked: None, install_directories: Vec::new() };
    let unit = Expectation {
        thing: Thing::Unit { name: "a.service".to_owned() },
        expected: Expected::Unit(unit),
        ..file(false)
    };
    assert_eq!(declared(&unit), Some(json!({ "from": "declaration", "seen": "unit", "enabled": true })));
    let keys = AuthorizedKeysExpectation { user: "core".to_owned(), keys: Vec::new() };
    assert_eq!(declared(&Expectation { expected: Expected::AuthorizedKeys(keys), ..file(false) }), None);
}

#[test]
fn a_record_shows_keys_and_names_up_to_a_limit() {
    let line = format!(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f {}\n",
        "c".repeat(200)
    );
    let keys = sensor_model::authorized_keys::parse(line.repeat(4096).as_bytes());
    let mut object = sensor_model::observation::ObjectObservation::new(FileType::Regular, 0o600, 7, 7);
    object.ssh_keys = Some(keys.clone());
    object.sha256 = Some([1; 32]);
    let file = shown(&Observation::Object(Box::new(object))).unwrap();
    assert_eq!(file["sha256"], "01".repeat(32));
    let names: Vec<String> = (0..1024).map(|n| format!("{n:0250}")).collect();
    let ssh_keys = [(names[0].clone(), keys)].into();
    let directory = shown(&Observation::Names { names, more: 5, ssh_keys }).unwrap();
    assert_eq!((directory["names"].as_array().map(Vec::len), &directory["more"]), (Some(64), &json!(965)));
    for value in [file, directory] {
        assert!(value.to_string().len() < 32 << 10, "{value}");
    }
}

#[test]
fn a_diff_is_unified_and_cut_at_the_end_of_a_line_when_it_is_long() {
    let diff = bounded("a\nb\nc\n", "a\nx\nc\n");
    assert_eq!(diff, "--- declared\n+++ found\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n");
    let long: Vec<String> = (0..10_000).map(|n| format!("line {n} é\n")).collect();
    let long = long.concat();
    let diff = bounded("", &long);
    assert!(diff.len() <= MOST_DIFF + 64, "{}", diff.len());
    let last = diff.lines().last().unwrap();
    let shown = diff.lines().filter(|line| line.starts_with("+line")).count();
    assert_eq!(last, format!("\\ and {} lines more", 10_000 - shown));
}

#[test]
fn only_text_is_shown() {
    assert_eq!(as_text(b"a\0b"), Err(NoDiff::NotText));
    assert_eq!(as_text(b"\xff"), Err(NoDiff::NotText));
    assert_eq!(as_text("é\n".as_bytes()), Ok("é\n"));
}
