//! Files of keys that the owner of a home may fill, from the disk to the differences.

use super::*;
use sensor_model::{
    authorized_keys,
    compare::{Ids, MAXIMUM_DIFFERENCES, compare},
    difference::Difference,
    expectation::{AuthorizedKeysExpectation, Content},
};
use sha2::{Digest as _, Sha256};
use std::os::unix::ffi::OsStrExt as _;

const DECLARED: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me\n";
const EVIL: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP/+/fz7+vn49/b19PPy8fDv7u3s6+rp6Ofm5eTj4uHg evil\n";
const OWN: &str = "/home/core/.ssh/authorized_keys";
const DIRECTORY: &str = "/home/core/.ssh/authorized_keys.d";

impl Host {
    fn differences(&self, expectation: &Expectation) -> Vec<Difference> {
        compare(expectation, &self.observer.observe(expectation).observation, &Ids::default())
    }
}

fn keys() -> Vec<authorized_keys::SshKey> {
    authorized_keys::parse(DECLARED.as_bytes()).keys
}

fn own_file() -> Expectation {
    let declared = AuthorizedKeysExpectation { user: "core".to_owned(), keys: keys() };
    let thing = Thing::file(OWN);
    Expectation { ssh_keys: true, ..expectation(thing, Expected::AuthorizedKeys(declared)) }
}

fn declared_file() -> Expectation {
    let mut declared = owned_file(&format!("{DIRECTORY}/ignition"), Owner::Undeclared);
    let Expected::File(file) = &mut declared.expected else { unreachable!() };
    let content = Content { size: DECLARED.len() as u64, sha256: Sha256::digest(DECLARED).into() };
    (file.content, file.keys, file.layout_free) = (Some(content), keys().into(), true);
    file.group = Owner::Undeclared;
    Expectation { ssh_keys: true, ..declared }
}

#[test]
fn a_file_of_keys_longer_than_the_limit_differs_even_if_the_keys_before_the_limit_match() {
    let host = Host::new();
    let comments = "#\n".repeat(KEYS_BYTES * 5 / 16);
    host.file(OWN, &format!("{DECLARED}{comments}"));
    host.file(&format!("{DIRECTORY}/ignition"), &format!("{DECLARED}{comments}"));
    for expectation in [own_file(), declared_file()] {
        let found = host.differences(&expectation);
        assert_eq!(found, [], "{} bytes of comments are no difference", comments.len());
    }
    let behind = format!("{DECLARED}{comments}{comments}{EVIL}");
    host.file(OWN, &behind);
    host.file(&format!("{DIRECTORY}/ignition"), &behind);
    for expectation in [own_file(), declared_file()] {
        let found = host.differences(&expectation);
        assert!(!found.is_empty(), "{:?} lets in an undeclared key", expectation.thing);
    }
}

#[test]
fn a_file_of_keys_is_read_up_to_the_limit_whatever_its_length() {
    let host = Host::new();
    host.file(OWN, DECLARED);
    fs::OpenOptions::new().write(true).open(host.at(OWN)).unwrap().set_len(1 << 40).unwrap();
    let object = host.object(&own_file());
    assert_eq!((object.size, object.sha256), (1 << 40, None));
    assert!(!host.differences(&own_file()).is_empty());

    // The same holds for a file of which only mode and owner are declared.
    fs::File::create(host.at("/plain")).unwrap().set_len(1 << 40).unwrap();
    let object = host.object(&file("/plain"));
    assert_eq!((object.size, object.sha256), (1 << 40, None));

    host.file(&format!("{DIRECTORY}/a"), EVIL);
    for name in ["b", "c"] {
        fs::File::create(host.at(&format!("{DIRECTORY}/{name}"))).unwrap().set_len(1 << 40).unwrap();
    }
    let texts: Vec<_> =
        host.differences(&closed_directory(DIRECTORY, true)).into_iter().map(|found| found.text).collect();
    assert_eq!(
        texts.iter().filter(|text| text.starts_with("unexpected ssh key file")).count(),
        3,
        "{texts:?}"
    );
    assert!(texts.iter().any(|text| text.contains("evil")), "{texts:?}");
}

#[test]
fn a_hundred_thousand_files_of_keys_give_a_few_differences_and_a_count() {
    let host = Host::new();
    host.directory(DIRECTORY);
    for number in 0..100_000 {
        fs::File::create(host.at(&format!("{DIRECTORY}/{number:06}"))).unwrap();
    }
    let mut expectation = closed_directory(DIRECTORY, true);
    let Expected::ClosedDirectory(closed) = &mut expectation.expected else { unreachable!() };
    closed.names = vec!["099999".to_owned()];
    let observed = host.observer.observe(&expectation);
    let Observation::Names { names, more, .. } = &observed.observation else { panic!("no directory") };
    assert_eq!(names.len() as u64 + more, 100_000, "every name is counted");
    assert!(names.contains(&"099999".to_owned()), "a declared name is not displaced");
    assert!(observed.opened.len() < 1000, "{} opens", observed.opened.len());

    let found = host.differences(&expectation);
    assert_eq!(found.len(), MAXIMUM_DIFFERENCES + 1);
    assert!(found[MAXIMUM_DIFFERENCES].text.starts_with("and "), "{:?}", found[MAXIMUM_DIFFERENCES]);
    assert_eq!(found, host.differences(&expectation), "the same directory gives the same differences");
}

#[test]
fn ignored_names_in_a_closed_directory_never_displace_undeclared_ones() {
    let host = Host::new();
    host.directory("/etc/x.d");
    for number in 0..5_000 {
        fs::File::create(host.at(&format!("/etc/x.d/{number:06}.note"))).unwrap();
    }
    let mut expectation = closed_directory("/etc/x.d", false);
    let Expected::ClosedDirectory(closed) = &mut expectation.expected else { unreachable!() };
    closed.suffix = Some(".conf".into());
    assert_eq!(host.differences(&expectation), []);
    host.file("/etc/x.d/zz.conf", "");
    assert_eq!(host.differences(&expectation).len(), 1);
}

#[test]
fn no_file_of_keys_hides_another_one_by_a_name_with_the_same_text() {
    let host = Host::new();
    host.directory(DIRECTORY);
    let (evil, other) = (EVIL, EVIL.replace("evil", "worse"));
    for (name, keys) in [(&b"a\xfe"[..], evil), (b"a\xff", &*other)] {
        fs::write(host.at(DIRECTORY).join(OsStr::from_bytes(name)), keys).unwrap();
    }
    let texts: Vec<_> =
        host.differences(&closed_directory(DIRECTORY, true)).into_iter().map(|found| found.text).collect();
    for comment in ["evil", "worse"] {
        assert_eq!(texts.iter().filter(|text| text.contains(comment)).count(), 1, "{texts:?}");
    }
}
