//! Names in closed directories.

use super::*;
use sensor_model::{
    compare::{Ids, compare},
    link_exceptions::LinkException,
};

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
