use super::*;
use crate::api::{ConfigState, ReportedConfig};
use sensor_model::status::{ConfigOrigin, ExpectedConfig};

const A: &str = "rendered-worker-a";
const B: &str = "rendered-worker-b";

fn expecting(name: Option<&str>, digest: &str) -> Subject {
    Subject {
        expected: ExpectedConfig {
            origin: ConfigOrigin::Operator,
            name: name.map(str::to_owned),
            digest: format!("v1:{digest}"),
        },
        current: A.to_owned(),
        desired: Some(A.to_owned()),
        state: Some("Done".to_owned()),
    }
}

fn known(objects: &[(&str, Object)]) -> Known {
    objects.iter().map(|(name, object)| ((*name).to_owned(), object.clone())).collect()
}

fn digest(digest: &str) -> Object {
    Object::Digest(format!("v1:{digest}"))
}

fn state(subject: &Subject, objects: &[(&str, Object)]) -> ConfigState {
    compared(subject, &known(objects)).state
}

#[test]
fn a_copy_that_declares_what_the_object_declares_is_the_same_and_another_differs() {
    let all = [(A, digest("1"))];
    let same = ReportedConfig {
        expected: Some(A.to_owned()),
        origin: "operator".to_owned(),
        current: A.to_owned(),
        state: ConfigState::Same,
        message: None,
    };
    assert_eq!(compared(&expecting(Some(A), "1"), &known(&all)), same);
    let other = compared(&expecting(Some(A), "2"), &known(&all));
    assert_eq!(other.state, ConfigState::Differs);
    assert_eq!(
        other.message.unwrap(),
        "MachineConfig rendered-worker-a of the cluster and the copy of it in \
         /etc/machine-config-daemon/currentconfig on the node differ"
    );
}

#[test]
fn nothing_is_claimed_of_an_object_that_cannot_be_read() {
    for object in
        [None, Some(Object::Absent), Some(Object::Forbidden), Some(Object::Unusable("x".to_owned()))]
    {
        let all: Vec<_> = object.map(|object| (A, object)).into_iter().collect();
        let found = compared(&expecting(Some(A), "1"), &known(&all));
        assert_eq!(found.state, ConfigState::Unknown, "{all:?}");
        assert!(found.message.unwrap().contains(A));
    }
    // The digest of another version.
    let later = [(A, Object::Digest("v2:1".to_owned()))];
    assert_eq!(state(&expecting(Some(A), "1"), &later), ConfigState::Unknown);
    // Other names, of which the one of the annotation may have the same content.
    assert_eq!(state(&expecting(Some(B), "1"), &[(B, digest("1"))]), ConfigState::Unknown);
}

#[test]
fn a_config_of_another_name_is_shown_as_it_is_unless_an_update_is_under_way() {
    let all = [(A, digest("1")), (B, digest("2"))];
    let idle = expecting(Some(B), "2");
    let found = compared(&idle, &known(&all));
    assert_eq!(found.state, ConfigState::Other);
    assert_eq!(
        found.message.unwrap(),
        "the sensor expects what is in /etc/machine-config-daemon/currentconfig on the node: MachineConfig \
         rendered-worker-b; the annotation currentConfig of the Node names rendered-worker-a"
    );
    for updating in [
        Subject { state: Some("Working".to_owned()), ..idle.clone() },
        Subject { state: Some("Rebooting".to_owned()), ..idle.clone() },
        Subject { desired: Some(B.to_owned()), ..idle.clone() },
    ] {
        assert_eq!(state(&updating, &all), ConfigState::Updating, "{updating:?}");
        // An update hides no changed copy.
        let changed = Subject { expected: expecting(Some(B), "3").expected, ..updating };
        assert_eq!(state(&changed, &all), ConfigState::Differs);
    }
    // A name that the cluster does not have hides nothing.
    let found =
        compared(&expecting(Some("made-up"), "3"), &known(&[(A, digest("1")), ("made-up", Object::Absent)]));
    assert_eq!(found.state, ConfigState::Other);
    assert!(found.message.unwrap().contains("made-up, which the cluster does not have"));
    assert_eq!(state(&expecting(Some(B), "1"), &all), ConfigState::Same, "it declares what A declares");
}

#[test]
fn several_configs_of_the_host_are_compared_by_what_they_declare() {
    let service = |digest: &str| {
        let mut subject = expecting(None, digest);
        subject.expected.origin = ConfigOrigin::Service;
        subject
    };
    let all = [(A, digest("1"))];
    assert_eq!(state(&service("1"), &all), ConfigState::Same);
    let found = compared(&service("2"), &known(&all));
    assert_eq!((found.state, found.expected), (ConfigState::Other, None));
    assert!(
        found
            .message
            .unwrap()
            .contains("/etc/holdfast/machine-configs on the node: not one MachineConfig alone")
    );
}

#[test]
fn long_names_leave_a_sentence_short() {
    let long = "n".repeat(1 << 20);
    let found = compared(&Subject { current: long.clone(), ..expecting(Some(&long), "1") }, &Known::new());
    assert!(found.message.unwrap().len() < 1000 && found.current.len() < 300);
}
