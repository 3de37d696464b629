//! Which executions the kernel programs report, and what is expected at the name of an executed file.
//!
//! In: the expectations, the drift policy, and the registry of watches. Out: the roles of directories and files for executions, and what is
//! expected at a name. It owns the answers of the indexes about paths. No I/O.

use super::registry::WatchRegistry;
use crate::desired::Desired;
use sensor_model::escape::name_text;
use sensor_model::expectation::{Expectation, ExpectationSource, Expected};
use sensor_model::protocol::ThingId;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Most paths that are kept. The others are looked up again, in indexes that stay open.
const MOST: usize = 256;

/// Whether the indexes have paths. A new index begins a new run of the loop, and so a new one of these.
#[derive(Debug, Default)]
pub(super) struct LookedUpPaths(HashMap<PathBuf, bool>);

impl LookedUpPaths {
    /// Whether an index has a path. `look_up` asks the indexes, and gives `None` if they do not know. That answer is not kept.
    pub(super) fn has(&mut self, path: &Path, look_up: impl FnOnce() -> Option<bool>) -> Option<bool> {
        if let Some(has) = self.0.get(path) {
            return Some(*has);
        }
        let has = look_up()?;
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(path.to_owned(), has);
        Some(has)
    }
}

/// Has the kernel programs report executions in the directories of which the expectations are complete: those that a policy closes, and
/// those in which a rule has everything watched that the image has. Executions of what the image has are reported only after a change.
pub(super) fn set_reported(registry: &mut WatchRegistry, desired: &Desired) {
    let mut directories: BTreeSet<PathBuf> = BTreeSet::new();
    // With an index that is missing or old, a file of the image may look like one that nothing expects.
    let is_indexed = desired.expectations.iter().all(|one| one.expected != Expected::Unindexed);
    for one in &desired.expectations {
        let path = one.thing.path();
        match &one.source {
            // Without a database of packages or the index of the booted image their files look undeclared.
            ExpectationSource::ClosedBy(rule)
                if one.expected != Expected::Absent && !rule.packages_unread && !rule.image_unindexed =>
            {
                directories.insert(path.to_path_buf());
            }
            ExpectationSource::ImageLayer(_) if is_indexed && one.thing.is_object() => {
                if is_of_image(one) {
                    registry.set_image_differs(&path, false);
                }
                // A directory of the image may be empty.
                let own = matches!(one.expected, Expected::Directory(_)).then_some(&*path);
                for directory in own.into_iter().chain(path.parent()) {
                    if !directories.contains(directory) && desired.policy.watches_names_of_image(directory) {
                        directories.insert(directory.to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    for directory in &directories {
        registry.report_executions_in(directory);
    }
}

/// Whether the thing is a file that only the image has.
pub(super) fn is_of_image(expectation: &Expectation) -> bool {
    matches!(
        (&expectation.source, &expectation.expected),
        (ExpectationSource::ImageLayer(_), Expected::File(_) | Expected::OstreeObject(_))
    )
}

/// What is expected at a name in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// These things are at the name.
    Of(Vec<ThingId>),
    /// A policy closes the directory, and nothing declares the name.
    Undeclared,
    /// A policy closes the directory, and something declares the name, or the policy excepts it. An executed file is no excepted link.
    Declared,
    /// Nothing is at the name. The indexes may have it.
    NoThing,
}

impl Name {
    /// `things`: those that a record about the name concerns.
    pub(super) fn of<'a>(
        path: &Path,
        name: &OsStr,
        things: &[ThingId],
        expectation: impl Fn(ThingId) -> &'a Expectation,
    ) -> Self {
        let all: Vec<(ThingId, &Expectation)> = things.iter().map(|one| (*one, expectation(*one))).collect();
        // Where nothing may be, nothing declares an executed file.
        let at = |one: &&(ThingId, &Expectation)| {
            one.1.thing.is_object() && one.1.expected != Expected::Absent && *one.1.thing.path() == *path
        };
        let own: Vec<ThingId> = all.iter().filter(at).map(|(thing, _)| *thing).collect();
        if !own.is_empty() {
            return Self::Of(own);
        }
        let closed = all.iter().filter_map(|(_, one)| match (&one.source, &one.expected) {
            (ExpectationSource::ClosedBy(_), Expected::ClosedDirectory(closed)) => Some(closed),
            _ => None,
        });
        let name = name_text(name);
        match closed.map(|closed| closed.is_unexpected(&name)).reduce(|one, other| one || other) {
            Some(true) => Self::Undeclared,
            Some(false) => Self::Declared,
            None => Self::NoThing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::registry::Inode;
    use crate::observation::Route;
    use sensor_common::map::InodeKey;
    use sensor_common::op::{ROLE_EXECUTIONS, ROLE_EXECUTIONS_AFTER_CHANGE, ROLE_FILE};
    use sensor_model::expectation::{Source, Thing};

    const OF_IMAGE: &str = "/usr/bin/program";
    const DECLARED: &str = "/usr/local/bin/program";

    /// The roles of an inode to which both paths lead.
    fn roles(registry: &mut WatchRegistry) -> u32 {
        let inode = Inode { key: InodeKey { ino: 7, dev: 1, volume: 0 }, generation: 1 };
        for path in [OF_IMAGE, DECLARED] {
            if let Some(watch) = registry.find(path.as_ref()) {
                registry.set_inode(watch, Some(inode));
            }
        }
        registry.enrolment(inode.key).unwrap().1
    }

    fn registry(paths: &[&str]) -> WatchRegistry {
        let thing = |path: &&str| Expectation {
            thing: Thing::file(path),
            expected: Expected::Unindexed,
            ssh_keys: false,
            label: None,
            source: Source::new("99-a", "a.yaml").into(),
        };
        let expectations: Vec<Expectation> = paths.iter().map(thing).collect();
        WatchRegistry::new(&expectations, |_| Route::default(), |_| Vec::new())
    }

    #[test]
    fn each_execution_is_reported_if_another_path_of_the_inode_is_not_of_the_image() {
        for (paths, is_limited) in [(&[OF_IMAGE][..], true), (&[OF_IMAGE, DECLARED], false)] {
            let mut registry = registry(paths);
            registry.set_image_differs(OF_IMAGE.as_ref(), false);
            let roles = roles(&mut registry);
            assert!(roles & ROLE_FILE != 0);
            assert_eq!(roles & ROLE_EXECUTIONS_AFTER_CHANGE != 0, is_limited, "{paths:?}");
        }
    }

    #[test]
    fn each_execution_of_a_file_of_the_image_is_reported_while_it_differs() {
        let mut registry = registry(&[OF_IMAGE]);
        registry.set_image_differs(OF_IMAGE.as_ref(), false);
        let before = roles(&mut registry);
        assert_eq!(registry.set_image_differs(OF_IMAGE.as_ref(), false), None, "nothing changes");
        let key = registry.set_image_differs(OF_IMAGE.as_ref(), true).unwrap();
        let roles = registry.enrolment(key).unwrap().1;
        assert_eq!(roles & (ROLE_EXECUTIONS | ROLE_EXECUTIONS_AFTER_CHANGE), ROLE_EXECUTIONS);
        assert_eq!(registry.set_image_differs(OF_IMAGE.as_ref(), true), None, "nothing changes");
        assert_eq!(registry.set_image_differs(OF_IMAGE.as_ref(), false), Some(key));
        assert_eq!(registry.enrolment(key).unwrap().1, before);
    }

    #[test]
    fn an_index_is_asked_once_for_a_path_while_it_is_kept() {
        let mut paths = LookedUpPaths::default();
        let mut asked = 0;
        for _ in 0..3 {
            let has = paths.has("/usr/bin/a".as_ref(), || {
                asked += 1;
                Some(true)
            });
            assert_eq!(has, Some(true));
        }
        assert_eq!(asked, 1);
        assert_eq!(paths.has("/usr/bin/b".as_ref(), || None), None);
        assert_eq!(paths.has("/usr/bin/b".as_ref(), || Some(false)), Some(false), "the indexes know now");
        for number in 0..2 * MOST {
            paths.has(&PathBuf::from(number.to_string()), || Some(false));
            assert!(paths.0.len() <= MOST);
        }
    }
}
