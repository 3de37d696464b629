//! Names in closed directories.

use super::*;
use sensor_model::{
    closed::{HostDirectories, PackagedPath, closed_directories},
    compare::{Ids, compare},
    drift_policy::{DriftPolicy, DriftPolicyFile},
    link_exceptions::LinkException,
};
use std::os::unix::ffi::OsStrExt as _;

fn excepting(name: &str, target: &str) -> Expectation {
    let mut expectation = closed_directory("/etc/units", false);
    if let Expected::ClosedDirectory(closed) = &mut expectation.expected {
        let link = LinkException { name: name.to_owned(), target: target.to_owned() };
        closed.except_links = LinkExceptions::new(vec![link]).unwrap();
    }
    expectation
}

/// The undeclared names in the directory.
fn undeclared(host: &Host, expectation: &Expectation) -> Vec<String> {
    let observation = host.observer.observe(expectation).observation;
    compare(expectation, &observation, &Ids::default()).into_iter().map(|one| one.found).collect()
}

#[test]
fn a_link_is_excepted_by_its_name_and_target_and_an_object_of_another_type_is_not() {
    let expectation = excepting("sshd.service", "/usr/lib/systemd/system/*.service");
    let unit = "/usr/lib/systemd/system/ssh.service";
    let (path, found) = ("/etc/units/sshd.service", "/etc/units/sshd.service".to_owned());
    let host = Host::new();
    host.link(unit, path);
    assert_eq!(undeclared(&host, &expectation), [""; 0]);
    host.link(unit, "/etc/units/other.service");
    assert_eq!(undeclared(&host, &expectation), ["/etc/units/other.service"], "another name");

    let host = Host::new();
    host.link("/tmp/ssh.service", path);
    assert_eq!(undeclared(&host, &expectation), [found.as_str()], "another target");

    let host = Host::new();
    host.file(path, "[Service]");
    assert_eq!(undeclared(&host, &expectation), [found.as_str()], "a file");

    let host = Host::new();
    host.directory(path);
    assert_eq!(undeclared(&host, &expectation), [found], "a directory");
}

#[test]
fn a_name_that_is_not_utf_8_is_declared_by_its_bytes_and_no_other_name_has_its_text() {
    let name = |bytes: &[u8]| Path::new("/etc/units").join(OsStr::from_bytes(bytes));
    let of_image = PackagedPath { path: name(b"a\xff"), is_directory: false };
    let host = HostDirectories { packaged: vec![of_image], ..HostDirectories::default() };
    let rules = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: test}\nspec: {rules: [{path: /etc/units/, closed: true, action: observe}]}";
    let policy = DriftPolicyFile::parse("test.yaml", rules.as_bytes()).unwrap();
    let closed = closed_directories(&[], &DriftPolicy::merge(&[policy]).unwrap(), &host);
    let host = Host::new();
    host.directory("/etc/units");
    fs::write(host.at("/etc").join("units").join(OsStr::from_bytes(b"a\xff")), "").unwrap();
    assert_eq!(undeclared(&host, &closed[0]), [""; 0], "the image has it");
    for other in [&b"a\xfe"[..], "a\u{fffd}".as_bytes()] {
        fs::write(host.at("/etc").join("units").join(OsStr::from_bytes(other)), "").unwrap();
    }
    let found = undeclared(&host, &closed[0]);
    assert_eq!(found, ["/etc/units/a\u{fffd}ef\u{fffd}bf\u{fffd}bd", "/etc/units/a\u{fffd}fe"]);
}
