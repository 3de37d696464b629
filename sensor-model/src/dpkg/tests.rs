//! Texts as dpkg 1.22 writes them, and damaged ones.

use super::*;
use crate::image::Package;

const SUM: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn packages_have_their_versions_and_the_configuration_files_that_they_still_have() {
    let status = format!(
        "Package: a\nStatus: install ok installed\nArchitecture: amd64\nMulti-Arch: same\nVersion: 1:2-3\nConffiles:\n \
         /etc/a {SUM}\n /etc/with space {SUM}\n /etc/old {SUM} obsolete\n /etc/new newconffile\nDescription: text\n /etc/no \
         {SUM}\n\nPackage: left\nStatus: deinstall ok config-files\nVersion: 1\nConffiles:\n /etc/left {SUM}\n\nPackage: \
         b\nStatus: install ok half-configured\nArchitecture: all\nVersion: 0"
    );
    let found = packages(status.as_bytes());
    let named = |name: &str, version: &str, architecture: &str| Package {
        name: name.into(),
        version: version.into(),
        architecture: architecture.into(),
    };
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].package, named("a", "1:2-3", "amd64"));
    assert_eq!(found[0].lists, ["a:amd64", "a"]);
    let sum = md5(SUM.as_bytes()).unwrap();
    assert_eq!(found[0].conffiles, [(b"/etc/a".to_vec(), sum), (b"/etc/with space".to_vec(), sum)]);
    assert_eq!((found[1].package.clone(), found[1].conffiles.len()), (named("b", "0", "all"), 0));
}

#[test]
fn a_line_of_sums_is_a_path_from_the_root_or_nothing() {
    let text = format!("{SUM}  usr/bin/a b\n{SUM}  ./x\n{SUM} usr/one-space\nshort\n{SUM}  \n{SUM}  /abs\n");
    let paths: Vec<Vec<u8>> = sums(text.as_bytes()).map(|(path, _)| path).collect();
    assert_eq!(paths, [&b"/usr/bin/a b"[..], b"/x", b"/abs"]);
}

#[test]
fn a_diversion_moves_the_files_of_all_packages_but_one() {
    let diversions = Diversions::of(b"/bin/sh\n/bin/sh.distrib\ndash\n/a\n/b\n:\n/cut\n");
    assert_eq!(diversions.place(b"/bin/sh", "bash"), b"/bin/sh.distrib");
    assert_eq!(diversions.place(b"/bin/sh", "dash"), b"/bin/sh");
    assert_eq!(diversions.place(b"/a", "any"), b"/b");
    assert_eq!(diversions.place(b"/cut", "any"), b"/cut");
}
