//! Enablement and masks.

use super::*;
use std::path::PathBuf;

#[test]
fn unit_states_are_judged_by_the_operators_sets() {
    for (declared, state, fine) in [
        (Some(true), Some("enabled"), true),
        (Some(true), Some("enabled-runtime"), true),
        (Some(true), Some("static"), true),
        (Some(true), Some("indirect"), true),
        (Some(true), Some("disabled"), false),
        (Some(true), Some("masked"), false),
        (Some(true), Some("masked-runtime"), false),
        (Some(true), Some("not-found"), false),
        (Some(true), Some(""), false),
        (Some(true), None, false),
        (Some(false), Some("disabled"), true),
        (Some(false), Some("masked"), true),
        (Some(false), Some("static"), true),
        (Some(false), None, true),
        (Some(false), Some("enabled"), false),
        (Some(false), Some("enabled-runtime"), false),
        (None, Some("enabled"), true),
        (None, None, true),
    ] {
        let seen = UnitObservation {
            file_state: state.map(str::to_owned),
            masked: false,
            resolved: None,
            overridden_by: None,
        };
        let found = compare(&unit(declared, None), &Observation::Unit(seen), &Ids::default());
        let shown = state.filter(|state| !state.is_empty()).unwrap_or("not-found");
        let expected: Vec<String> = if fine {
            Vec::new()
        } else {
            let enabled = declared.unwrap();
            vec![format!("unit \"a.service\" expected enabled={enabled}, but systemd reports \"{shown}\"")]
        };
        let texts: Vec<String> = found.into_iter().map(|difference| difference.text).collect();
        assert_eq!(texts, expected, "{declared:?} {state:?}");
    }
}

#[test]
fn a_mask_is_a_link_to_dev_null() {
    let seen = |state: &str, masked, resolved: Option<&str>| {
        Observation::Unit(UnitObservation {
            file_state: Some(state.to_owned()),
            masked,
            resolved: resolved.map(PathBuf::from),
            overridden_by: None,
        })
    };
    let path = "/etc/systemd/system/a.service";
    for (declared, enabled, observation, expected, why) in [
        (Some(true), None, seen("masked", true, Some("/dev/null")), vec![], "masked"),
        (
            Some(true),
            Some(true),
            seen("masked", true, Some("/dev/null")),
            vec![],
            "a masked unit is not enabled",
        ),
        (
            Some(true),
            Some(true),
            seen("enabled", false, Some(path)),
            vec![
                "state validation: invalid unit masked setting. path: \"/etc/systemd/system/a.service\"; expected: /dev/null; received: /etc/systemd/system/a.service",
            ],
            "a file in its place",
        ),
        (
            Some(true),
            None,
            seen("disabled", false, None),
            vec![
                "state validation: error while evaluation symlink for path \"/etc/systemd/system/a.service\": lstat /etc/systemd/system/a.service: no such file or directory",
            ],
            "nothing there",
        ),
        (
            Some(false),
            None,
            seen("masked", true, Some("/dev/null")),
            vec![
                "state validation: invalid unit masked setting. path: \"/etc/systemd/system/a.service\"; expected: unmasked; received: /dev/null",
            ],
            "masked by hand",
        ),
        (
            Some(false),
            Some(true),
            seen("masked-runtime", false, Some(path)),
            vec![
                "state validation: invalid unit masked setting. path: \"/etc/systemd/system/a.service\"; expected: unmasked; received: masked-runtime",
                "unit \"a.service\" expected enabled=true, but systemd reports \"masked-runtime\"",
            ],
            "masked until the next boot",
        ),
        (Some(false), None, seen("disabled", false, Some(path)), vec![], "not masked"),
        (None, None, seen("masked", true, Some("/dev/null")), vec![], "nothing declared"),
    ] {
        let found = compare(&unit(enabled, declared), &observation, &Ids::default());
        let texts: Vec<String> = found.into_iter().map(|difference| difference.text).collect();
        assert_eq!(texts, expected, "{why}");
    }
}

#[test]
fn a_unit_that_a_file_of_higher_precedence_replaces_differs_also_if_its_mask_is_in_place() {
    let path = "/run/systemd/system.control/a.service";
    let seen = Observation::Unit(UnitObservation {
        file_state: Some("static".to_owned()),
        masked: true,
        resolved: Some("/dev/null".into()),
        overridden_by: Some(path.into()),
    });
    for declared in [unit(None, Some(true)), unit(Some(true), None), unit(None, None)] {
        let found = compare(&declared, &seen, &Ids::default());
        let kinds: Vec<DifferenceKind> = found.iter().map(|difference| difference.kind).collect();
        assert_eq!(kinds, [DifferenceKind::Unexpected]);
        assert!(found[0].text.contains(path), "{}", found[0].text);
    }
}
