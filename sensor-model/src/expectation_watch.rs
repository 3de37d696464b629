//! The paths that the daemon watches for an expectation.
//!
//! In: an expectation. Out: the objects and directories whose changes can make it true or false. The daemon enrols those that
//! exist.

use crate::expectation::{Expectation, Expected, SYSTEMD_DIRECTORY, Thing};
use std::path::{Path, PathBuf};

/// Which changes of a path matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchRole {
    /// Content, metadata and identity of the object.
    Object,
    /// Names that are created, renamed or removed in the directory.
    Directory,
    /// A rename, a removal, or a mount over the directory.
    Ancestor,
}

/// One path to watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchedPath {
    /// Absolute path.
    pub path: PathBuf,
    /// Which of its changes matter.
    pub role: WatchRole,
}

/// Directories besides `/etc/systemd/system` in which a unit can be masked, enabled or overridden.
const UNIT_DIRECTORIES: [&str; 3] =
    ["/etc/systemd/system.control", "/run/systemd/system", "/run/systemd/system.control"];

/// The directories of units that packages and images ship. A file that appears, changes or disappears there changes the unit.
const UNIT_FILES: [&str; 2] = ["/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];

/// The paths of an expectation, sorted, each with the widest role that it needs.
///
/// `install_directories`: for a unit whose content no MachineConfig declares, the directories below `/etc/systemd/system` that
/// the `[Install]` section of its own file names.
pub fn watches(expectation: &Expectation, install_directories: &[String]) -> Vec<WatchedPath> {
    let mut found = Vec::new();
    let path = expectation.thing.path();
    match (&expectation.thing, &expectation.expected) {
        (Thing::Unit { name }, Expected::Unit(unit)) => {
            let system = Path::new(SYSTEMD_DIRECTORY);
            object(&path, &mut found);
            for directory in unit.install_directories.iter().chain(install_directories) {
                directory_watch(&system.join(directory), &mut found);
            }
            for directory in UNIT_DIRECTORIES {
                directory_watch(Path::new(directory), &mut found);
            }
            for directory in UNIT_FILES {
                object(&Path::new(directory).join(name), &mut found);
            }
        }
        // Only mounts change a hierarchy and a tree that the kernel proves, and the daemon compares the mount table. Of another tree nothing is
        // known, so no change matters.
        (Thing::Tree { .. } | Thing::Hierarchy { .. }, _) => {}
        (Thing::ClosedDirectory { .. }, _) => directory_watch(&path, &mut found),
        (thing, _) if thing.changes_with_a_boot() => {}
        // For a directory its own metadata matters, and so the object; the names in it do not.
        _ => object(&path, &mut found),
    }
    widest(found)
}

fn object(path: &Path, found: &mut Vec<WatchedPath>) {
    found.push(WatchedPath { path: path.to_owned(), role: WatchRole::Object });
    parent(path, found);
}

fn directory_watch(path: &Path, found: &mut Vec<WatchedPath>) {
    found.push(WatchedPath { path: path.to_owned(), role: WatchRole::Directory });
    parent(path, found);
}

/// The names in the parent decide whether the path exists. The directories above decide where it is.
fn parent(path: &Path, found: &mut Vec<WatchedPath>) {
    for (distance, ancestor) in path.ancestors().skip(1).enumerate() {
        let role = if distance == 0 { WatchRole::Directory } else { WatchRole::Ancestor };
        found.push(WatchedPath { path: ancestor.to_owned(), role });
    }
}

/// The widest role of each path: an object, then a directory, then an ancestor.
fn widest(mut found: Vec<WatchedPath>) -> Vec<WatchedPath> {
    found.sort();
    found.dedup_by(|later, earlier| later.path == earlier.path);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectation::{
        AuthorizedKeysExpectation, ClosedDirectoryExpectation, Source, UnitExpectation,
    };
    use crate::link_exceptions::LinkExceptions;
    use crate::name_patterns::NamePatterns;

    fn expectation(thing: Thing, expected: Expected) -> Expectation {
        let source = Source::new("99-a", "a.yaml").into();
        Expectation { thing, expected, ssh_keys: false, label: None, source }
    }

    fn lines(watches: &[WatchedPath]) -> Vec<String> {
        watches.iter().map(|watch| format!("{:?} {}", watch.role, watch.path.display())).collect()
    }

    #[test]
    fn a_file_is_watched_with_the_directory_that_names_it_and_all_above() {
        let file = expectation(
            Thing::file("/etc/a/b"),
            Expected::AuthorizedKeys(AuthorizedKeysExpectation { user: "core".to_owned(), keys: Vec::new() }),
        );
        assert_eq!(
            lines(&watches(&file, &[])),
            ["Ancestor /", "Ancestor /etc", "Directory /etc/a", "Object /etc/a/b"]
        );
    }

    #[test]
    fn a_closed_directory_is_watched_for_its_names() {
        let closed = expectation(
            Thing::closed_directory("/etc/a.d"),
            Expected::ClosedDirectory(ClosedDirectoryExpectation {
                names: Vec::new(),
                suffix: None,
                ssh_keys: false,
                except: NamePatterns::default(),
                except_links: LinkExceptions::default(),
            }),
        );
        assert_eq!(lines(&watches(&closed, &[])), ["Ancestor /", "Directory /etc", "Directory /etc/a.d"]);
    }

    #[test]
    fn a_unit_is_watched_wherever_it_can_be_enabled_masked_or_overridden() {
        let unit = expectation(
            Thing::Unit { name: "a.service".to_owned() },
            Expected::Unit(UnitExpectation {
                enabled: Some(true),
                masked: None,
                install_directories: vec!["multi-user.target.wants".to_owned()],
            }),
        );
        assert_eq!(
            lines(&watches(&unit, &["kubelet.service.requires".to_owned()])),
            [
                "Ancestor /",
                "Ancestor /etc",
                "Directory /etc/systemd",
                "Directory /etc/systemd/system",
                "Object /etc/systemd/system/a.service",
                "Directory /etc/systemd/system/kubelet.service.requires",
                "Directory /etc/systemd/system/multi-user.target.wants",
                "Directory /etc/systemd/system.control",
                "Ancestor /run",
                "Directory /run/systemd",
                "Directory /run/systemd/system",
                "Directory /run/systemd/system.control",
                "Ancestor /usr",
                "Ancestor /usr/lib",
                "Ancestor /usr/lib/systemd",
                "Directory /usr/lib/systemd/system",
                "Object /usr/lib/systemd/system/a.service",
                "Ancestor /usr/local",
                "Ancestor /usr/local/lib",
                "Ancestor /usr/local/lib/systemd",
                "Directory /usr/local/lib/systemd/system",
                "Object /usr/local/lib/systemd/system/a.service",
            ]
        );
    }
}
