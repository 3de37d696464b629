use super::*;
use crate::{
    compare::{Ids, compare},
    expectation::{FileExpectation, Source, UnitExpectation},
    expectations::expectations,
    machine_config, merge,
};
use proptest::prelude::*;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBSxrLseeRZ1nyihTrvLH8oiYA5MU1MD7uJvFd8OmDBQ a";

fn regular(bytes: &[u8], mode: u32, uid: u32) -> Observation {
    let mut object = ObjectObservation::new(FileType::Regular, mode, uid, 0);
    object.size = bytes.len() as u64;
    object.sha256 = Some(Sha256::digest(bytes).into());
    Observation::Object(Box::new(object))
}

fn adoption<'a>(path: &'a str, observation: &'a Observation, bytes: Option<&'a [u8]>) -> Adoption<'a> {
    Adoption { path: Path::new(path), expectation: None, observation, bytes }
}

fn expectation(thing: Thing, expected: Expected) -> Expectation {
    let source = Source::new("99-chrony", "a.yaml").into();
    Expectation { thing, expected, ssh_keys: false, label: None, source }
}

#[test]
fn the_fragment_makes_the_present_state_the_declared_one() {
    let odd: &[u8] = b"- yes: 'no'\n\t# \"\0\xff\n";
    let link = {
        let mut object = ObjectObservation::new(FileType::Symlink, 0o777, 0, 0);
        object.target = Some("/usr/share/zoneinfo/UTC".into());
        Observation::Object(Box::new(object))
    };
    let directory = Observation::Object(Box::new(ObjectObservation::new(FileType::Directory, 0o700, 5, 6)));
    let file = regular(odd, 0o600, 1000);
    let dropin = regular(b"[Service]\nEnvironment=\"A=yes\"\n", 0o644, 0);
    let odd_dropin = regular(b"x", 0o600, 0);
    let adoptions = [
        adoption("/etc/odd", &file, Some(odd)),
        adoption("/etc/localtime", &link, None),
        adoption("/etc/dir", &directory, None),
        adoption(
            "/etc/systemd/system/a.service.d/x.conf",
            &dropin,
            Some(b"[Service]\nEnvironment=\"A=yes\"\n"),
        ),
        adoption("/etc/systemd/system/a.service.d/y.conf", &odd_dropin, Some(b"x")),
    ];
    let fragment = adopt("zz-adopted", "worker", &adoptions).unwrap();
    assert_eq!(fragment.left_out, []);
    insta::assert_snapshot!(fragment.yaml);

    let mut turned = adoptions;
    turned.reverse();
    assert_eq!(
        adopt("zz-adopted", "worker", &turned).unwrap(),
        fragment,
        "the order of the input does not matter"
    );

    // The fragment is read again, and every thing matches it.
    let manifest = machine_config::parse("adopted.yaml", fragment.yaml.as_bytes()).unwrap();
    assert_eq!(manifest.machine_configs[0].role(), Some("worker"));
    let found = expectations(&merge::merge(manifest.machine_configs).unwrap()).unwrap();
    for adoption in adoptions {
        let expectation = found
            .iter()
            .find(|expectation| {
                &*expectation.thing.path() == adoption.path
                    && !matches!(expectation.thing, Thing::ClosedDirectory { .. })
            })
            .unwrap_or_else(|| panic!("{} is not declared", adoption.path.display()));
        assert_eq!(
            compare(expectation, adoption.observation, &Ids::default()),
            [],
            "{}",
            adoption.path.display()
        );
    }
}

#[test]
fn units_are_adopted_by_their_state() {
    let unit = |state: Option<&str>, masked| {
        Observation::Unit(UnitObservation {
            file_state: state.map(str::to_owned),
            masked,
            resolved: None,
            overridden_by: None,
        })
    };
    let declared = |name: &str| {
        expectation(
            Thing::Unit { name: name.to_owned() },
            Expected::Unit(UnitExpectation {
                enabled: Some(true),
                masked: None,
                install_directories: Vec::new(),
            }),
        )
    };
    let things = [
        (declared("a.service"), unit(Some("disabled"), false)),
        (declared("b.service"), unit(Some("masked"), true)),
        (declared("c.service"), unit(Some("static"), false)),
        (declared("d.service"), unit(Some("enabled"), false)),
        (declared("e.service"), unit(None, false)),
    ];
    let paths: Vec<PathBuf> =
        things.iter().map(|(expectation, _)| expectation.thing.path().to_path_buf()).collect();
    let adoptions: Vec<Adoption<'_>> = things
        .iter()
        .zip(&paths)
        .map(|((expectation, observation), path)| Adoption {
            path,
            expectation: Some(expectation),
            observation,
            bytes: None,
        })
        .collect();
    let fragment = adopt("zz", "worker", &adoptions).unwrap();
    let units = machine_config::parse("x", fragment.yaml.as_bytes())
        .unwrap()
        .machine_configs
        .remove(0)
        .config
        .unwrap();
    let said: Vec<(String, Option<bool>, Option<bool>)> = units
        .systemd
        .unwrap()
        .units
        .unwrap()
        .into_iter()
        .map(|unit| (unit.name, unit.enabled, unit.mask))
        .collect();
    let said: Vec<(&str, Option<bool>, Option<bool>)> =
        said.iter().map(|(name, enabled, mask)| (name.as_str(), *enabled, *mask)).collect();
    assert_eq!(
        said,
        [
            ("a.service", Some(false), Some(false)),
            ("b.service", None, Some(true)),
            ("c.service", None, Some(false)),
            ("d.service", Some(true), Some(false)),
            ("e.service", None, Some(false)),
        ]
    );
    let reasons: Vec<String> = fragment.left_out.iter().map(|left| left.reason.to_string()).collect();
    assert_eq!(
        reasons,
        [
            "a MachineConfig cannot declare a unit as static",
            "a MachineConfig cannot declare a unit as not-found"
        ]
    );
}

#[test]
fn keys_become_a_users_keys() {
    let bytes = format!("# mine\n{KEY}\nrubbish\n{KEY}\n");
    let observation = regular(bytes.as_bytes(), 0o600, 1000);
    let declared = expectation(
        Thing::file("/home/core/.ssh/authorized_keys"),
        Expected::AuthorizedKeys(crate::expectation::AuthorizedKeysExpectation {
            user: "core".to_owned(),
            keys: Vec::new(),
        }),
    );
    let path = declared.thing.path();
    let fragment = adopt(
        "zz",
        "worker",
        &[Adoption {
            path: &path,
            expectation: Some(&declared),
            observation: &observation,
            bytes: Some(bytes.as_bytes()),
        }],
    )
    .unwrap();
    let config = machine_config::parse("x", fragment.yaml.as_bytes())
        .unwrap()
        .machine_configs
        .remove(0)
        .config
        .unwrap();
    let user = &config.passwd.unwrap().users.unwrap()[0];
    assert_eq!(
        (user.name.as_str(), user.ssh_authorized_keys.as_deref()),
        ("core", Some(&[KEY.to_owned()][..]))
    );
    assert_eq!(fragment.left_out.len(), 1, "the fragment names the thing that it cannot declare");
}

#[test]
fn an_observation_that_cannot_be_declared_is_reported_as_left_out() {
    let declared = expectation(
        Thing::file("/etc/gone"),
        Expected::File(FileExpectation {
            content: None,
            keys: Box::default(),
            layout_free: false,
            mode: 0o644,
            user: crate::expectation::Owner::Id(0),
            group: crate::expectation::Owner::Id(0),
            may_be_missing: false,
            xattrs: None,
        }),
    );
    let secret = regular(b"secret", 0o600, 0);
    let setuid = regular(b"x", 0o4755, 0);
    let fifo = Observation::Object(Box::new(ObjectObservation::new(FileType::Fifo, 0o600, 0, 0)));
    let unreadable = Observation::Unreadable { error: "EIO".to_owned() };
    let marked = {
        let mut object = ObjectObservation::new(FileType::Regular, 0o644, 0, 0);
        object.xattrs =
            vec![("user.x".into(), "sha256:0".into()), ("security.ima".into(), "sha256:0".into())];
        object.attributes = vec!["immutable".into()];
        object.mounted_over = true;
        Observation::Object(Box::new(object))
    };
    let fragment = adopt(
        "zz",
        "worker",
        &[
            Adoption {
                path: Path::new("/etc/gone"),
                expectation: Some(&declared),
                observation: &Observation::Missing,
                bytes: None,
            },
            adoption("/etc/secret", &secret, None),
            adoption("/etc/setuid", &setuid, Some(b"x")),
            adoption("/etc/fifo", &fifo, None),
            adoption("/etc/broken", &unreadable, None),
            adoption("/etc/marked", &marked, Some(b"x")),
        ],
    )
    .unwrap();
    assert!(!fragment.yaml.contains("secret") && fragment.yaml.contains("/etc/marked"), "{}", fragment.yaml);
    let lines: Vec<String> =
        fragment.left_out.iter().map(|left| format!("{}: {}", left.path.display(), left.reason)).collect();
    assert_eq!(
        lines,
        [
            "/etc/gone: it is missing: a MachineConfig cannot declare that, remove it from 99-chrony",
            "/etc/secret: its content may be secret and was not given",
            "/etc/setuid: its mode has special bits, which a MachineConfig cannot declare",
            "/etc/fifo: it is neither a file, a directory nor a link",
            "/etc/broken: it could not be read: EIO",
            "/etc/marked: a MachineConfig cannot declare its extended attribute user.x",
            "/etc/marked: a MachineConfig cannot declare its immutable attribute",
            "/etc/marked: a MachineConfig cannot declare its mount",
        ]
    );
}

#[test]
fn a_file_that_changed_while_it_was_read_is_not_adopted() {
    let observation = regular(b"before", 0o644, 0);
    let error = adopt("zz", "worker", &[adoption("/etc/a", &observation, Some(b"after"))]).unwrap_err();
    assert_eq!(error.to_string(), "/etc/a: content: it changed while it was read");
}

proptest! {
    /// YAML that is written and read has the same text, for any content of a unit.
    #[test]
    fn any_contents_survive_the_yaml(contents in "[ -~\n\t\r#:'\"|>%@`\u{80}-\u{2fff}]{1,60}", name in "[a-z#:'&*!|>%@`{}-]{1,9}") {
        let path = format!("/etc/systemd/system/{name}.service.d/x.conf");
        let observation = regular(contents.as_bytes(), 0o644, 0);
        let fragment = adopt("zz", "worker", &[adoption(&path, &observation, Some(contents.as_bytes()))]).unwrap();
        let read = machine_config::parse("x", fragment.yaml.as_bytes());
        prop_assert!(read.is_ok(), "{:?}\n{}", read, fragment.yaml);
        let rendered = merge::merge(read.unwrap().machine_configs).unwrap();
        let bytes = crate::expectations::expected_bytes(&rendered, Path::new(&path));
        prop_assert_eq!(bytes.map(|bytes| String::from_utf8(bytes).unwrap()), Some(contents), "{}", fragment.yaml);
    }
}
