//! Paths where nothing may be.

use super::*;

fn absent() -> Expectation {
    expect(Thing::file("/etc/rc.local"), Expected::Absent)
}

#[test]
fn nothing_at_the_path_is_as_expected_and_any_object_is_one_unexpected_difference() {
    assert_eq!(compare(&absent(), &Observation::Missing, &Ids::default()), []);
    let mut lines = Vec::new();
    for file_type in FileType::ALL {
        let mut object = ObjectObservation::new(*file_type, 0o666, 0, 1000);
        // What else is wrong with it does not matter.
        object.mounted_over = true;
        object.attributes.push("immutable".to_owned());
        let observation = Observation::Object(Box::new(object));
        let differences = compare(&absent(), &observation, &Ids::default());
        let [difference] = &differences[..] else { panic!("{differences:?}") };
        assert_eq!((difference.kind, &*difference.expected), (DifferenceKind::Unexpected, "not present"));
        lines.push(difference.text.clone());
    }
    assert_eq!(
        lines,
        [
            "unexpected regular file \"/etc/rc.local\"",
            "unexpected directory \"/etc/rc.local\"",
            "unexpected symbolic link \"/etc/rc.local\"",
            "unexpected character device \"/etc/rc.local\"",
            "unexpected block device \"/etc/rc.local\"",
            "unexpected named pipe \"/etc/rc.local\"",
            "unexpected socket \"/etc/rc.local\"",
        ]
    );
}

#[test]
fn another_content_of_the_unexpected_file_is_another_difference_with_its_digest() {
    let found = |digest: u8| {
        let mut object = ObjectObservation::new(FileType::Regular, 0o755, 0, 0);
        object.sha256 = Some([digest; 32]);
        let observation = Observation::Object(Box::new(object));
        compare(&absent(), &observation, &Ids::default()).remove(0).found
    };
    assert!(found(1).contains(&"01".repeat(32)), "{}", found(1));
    assert_ne!(found(1), found(2));
}

#[test]
fn a_path_that_cannot_be_read_is_not_as_expected() {
    let unreadable = Observation::Unreadable { error: "open: permission denied".to_owned() };
    let differences = compare(&absent(), &unreadable, &Ids::default());
    assert_eq!(differences[0].kind, DifferenceKind::Unreadable);
}
