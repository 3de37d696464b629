//! The protections of watches: what deny rules mean for the directories above a protected thing.
//!
//! In: things with the numbers of their rules. Out: for each watch, one number for the rules of all things at it, below it, or
//! behind a link that leads through it. For a directory also its protected names: only actors that these rules allow may create,
//! remove or replace a name there. A missing name is protected too. No I/O.

use super::protection_state::WatchProtection;
use super::{Watch, WatchRegistry};
use crate::agent::rule_numbers::RuleNumbers;
use sensor_common::map::InodeKey;
use sensor_model::protocol::ThingId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

impl WatchRegistry {
    /// Sets the deny rule of a thing. It protects the thing's inode, and a closed directory's names.
    /// [`WatchRegistry::update_protections`] computes the protections that follow.
    pub fn set_rule(&mut self, thing: ThingId, rule: u32) {
        self.deny.insert(thing, rule);
    }

    /// Sets the numbers of rules, and of rules that apply together.
    pub fn set_rule_numbers(&mut self, numbers: &RuleNumbers) {
        self.protections.numbers = numbers.clone();
    }

    /// Sets the directory and the missing name at which a thing's route ends; `None` if the route is complete.
    pub fn set_missing_name(&mut self, thing: ThingId, missing: Option<(PathBuf, OsString)>) {
        if !self.deny.contains_key(&thing) || self.protections.missing.get(&thing) == missing.as_ref() {
            return;
        }
        let now = missing.as_ref().map(|(directory, _)| directory.clone());
        let before = match missing {
            Some(missing) => self.protections.missing.insert(thing, missing),
            None => self.protections.missing.remove(&thing),
        };
        self.protections.moved.extend(now.into_iter().chain(before.map(|(directory, _)| directory)));
    }

    /// Computes the protections of all watches. The caller calls this after the rules of all things are set, and after each change
    /// of a route. Gives the watches whose map entries change.
    pub fn update_protections(&mut self) -> Vec<u32> {
        if self.deny.is_empty() && self.protections.by_watch.is_empty() {
            return Vec::new();
        }
        // Ordered, so that sets of rules get their numbers in the same order after each start.
        let mut rules: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (thing, rule) in &self.deny {
            let path = self.things.get(thing.index()).filter(|_| !self.unwatched.contains(thing));
            let ancestors = path.into_iter().flat_map(|path| path.ancestors());
            for watch_id in ancestors.filter_map(|path| self.find(path)) {
                rules.entry(watch_id).or_default().insert(*rule);
            }
        }
        for (watch_id, watch) in (0..).zip(&self.watches) {
            for rule in watch.through().iter().filter_map(|thing| self.deny.get(thing)) {
                rules.entry(watch_id).or_default().insert(*rule);
            }
        }
        let parents = rules.keys().filter_map(|watch_id| self.watches[*watch_id as usize].path.parent());
        let ends = self.protections.missing.values().map(|(directory, _)| directory.as_path());
        let with_names: HashSet<u32> = parents.chain(ends).filter_map(|path| self.find(path)).collect();
        let protections: HashMap<u32, WatchProtection> = rules
            .keys()
            .chain(&with_names)
            .map(|watch_id| {
                let all = rules.get(watch_id).and_then(|rules| self.protections.numbers.of_all(rules));
                (*watch_id, WatchProtection { rules: all, has_names: with_names.contains(watch_id) })
            })
            .collect();
        let before = std::mem::replace(&mut self.protections.by_watch, protections);
        let both = before.keys().chain(self.protections.by_watch.keys());
        let mut changed: Vec<u32> = both
            .filter(|watch_id| before.get(*watch_id) != self.protections.by_watch.get(*watch_id))
            .copied()
            .collect();
        // Other names may be protected, even if there are as many as before.
        let moved = std::mem::take(&mut self.protections.moved);
        changed.extend(moved.iter().filter_map(|directory| self.find(directory)));
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// The protection of all watches that lead to one inode.
    pub(super) fn protection_of(&self, watches: &[u32]) -> WatchProtection {
        let protections = || watches.iter().filter_map(|watch_id| self.protections.by_watch.get(watch_id));
        WatchProtection {
            rules: self.protections.numbers.of_union(protections().filter_map(|protection| protection.rules)),
            has_names: protections().any(|protection| protection.has_names),
        }
    }

    /// The protected names in a directory. Each has the number of the rules that must all allow an actor.
    pub fn names_in(&self, key: InodeKey) -> BTreeMap<OsString, u32> {
        let mut names: BTreeMap<OsString, u32> = BTreeMap::new();
        for watch_id in self.leading_to(key) {
            if !self.protections.by_watch.get(watch_id).is_some_and(|protection| protection.has_names) {
                continue;
            }
            let directory = &self.watches[*watch_id as usize];
            let children = self.children(directory).filter_map(|child| {
                let rules = self.protections.by_watch.get(&self.find(&child.path)?)?.rules?;
                Some((child.path.file_name()?, rules))
            });
            let missing = self.protections.missing.iter().filter_map(|(thing, (at, name))| {
                let rule = self.deny.get(thing)?;
                (*at == *directory.path).then_some((name.as_os_str(), *rule))
            });
            for (name, rules) in children.chain(missing) {
                let both = names.get(name).copied().into_iter().chain([rules]);
                if let Some(rules) = self.protections.numbers.of_union(both) {
                    names.insert(name.to_owned(), rules);
                }
            }
        }
        names
    }

    /// The first protected thing because of which the programs refused a change of these watches, and the path of the attempt.
    /// `name`: the name in the directory that the change was about.
    pub fn protected_thing(&self, watches: &[u32], name: Option<&OsStr>) -> Option<(ThingId, PathBuf)> {
        watches.iter().find_map(|watch_id| {
            let watch = &self.watches[*watch_id as usize];
            let Some(name) = name else {
                return Some((self.first_at(watch)?, watch.path.to_path_buf()));
            };
            let missing = || {
                let at = (watch.path.to_path_buf(), name.to_owned());
                let things = self.protections.missing.iter().filter(|(_, missing)| **missing == at);
                things.map(|(thing, _)| *thing).min()
            };
            let everything =
                || watch.everything().iter().find(|thing| self.deny.contains_key(*thing)).copied();
            let child = self.child(watch, name).and_then(|child| self.first_at(child));
            Some((child.or_else(missing).or_else(everything)?, watch.path.join(name)))
        })
    }

    /// The first protected thing at a watch, else below it, else behind a link that leads through it.
    fn first_at(&self, watch: &Watch) -> Option<ThingId> {
        let is_protected = |thing: &ThingId| self.deny.contains_key(thing);
        let own = watch.objects().filter(|thing| self.is_own(watch, *thing));
        let below = || {
            let path: &Path = &watch.path;
            let things = self.deny.keys().copied();
            things.filter(|thing| self.things[thing.index()].starts_with(path)).min()
        };
        own.chain(watch.everything().iter().copied())
            .find(is_protected)
            .or_else(below)
            .or_else(|| watch.through().iter().copied().find(is_protected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::registry::Inode;
    use crate::observation::Route;
    use sensor_common::op::{GUARD_SHIFT, ROLE_DENY, ROLE_GUARD, ROLE_NAMES, RULE_MASK, RULE_SHIFT};
    use sensor_model::expectation::{DirectoryExpectation, Expectation, Expected, Owner, Source, Thing};

    fn thing(path: &str) -> Expectation {
        let (user, group) = (Owner::Id(0), Owner::Id(0));
        Expectation {
            thing: Thing::file(path),
            expected: Expected::Directory(DirectoryExpectation { mode: 0o755, user, group }),
            ssh_keys: false,
            label: None,
            source: Source::new("test", "test.yaml").into(),
        }
    }

    fn key(ino: u64) -> InodeKey {
        InodeKey { ino, dev: 1, volume: 0 }
    }

    fn lead(registry: &mut WatchRegistry, path: &str, ino: u64) {
        let watch_id = registry.find(Path::new(path)).unwrap();
        registry.set_inode(watch_id, Some(Inode { key: key(ino), generation: 1 }));
    }

    /// Below `/etc`: a missing thing of the first rule, a thing of the second rule, and a thing without a rule.
    fn registry() -> WatchRegistry {
        let things = [thing("/etc/a/one"), thing("/etc/b/two"), thing("/etc/c/free")];
        let mut registry = WatchRegistry::new(&things, |_| Route::default(), |_| Vec::new());
        for (path, ino) in [("/", 2), ("/etc", 3), ("/etc/a", 4), ("/etc/b", 5), ("/etc/b/two", 6)] {
            lead(&mut registry, path, ino);
        }
        registry.set_rule_numbers(&RuleNumbers::after(2));
        registry.set_rule(ThingId(0), 1);
        registry.set_rule(ThingId(1), 2);
        registry.update_protections();
        registry
    }

    fn roles(registry: &WatchRegistry, ino: u64) -> u32 {
        registry.enrolment(key(ino)).unwrap().1
    }

    fn names(registry: &WatchRegistry, ino: u64) -> Vec<(String, u32)> {
        let names = registry.names_in(key(ino)).into_iter();
        names.map(|(name, rules)| (name.into_string().unwrap(), rules)).collect()
    }

    #[test]
    fn a_protected_name_is_protected_in_its_directory_even_while_it_is_missing() {
        let registry = registry();
        assert_eq!(names(&registry, 4), [("one".to_owned(), 1)]);
        assert_eq!(names(&registry, 5), [("two".to_owned(), 2)]);
        assert_ne!(roles(&registry, 4) & ROLE_NAMES, 0);
        assert_eq!(roles(&registry, 6) & (ROLE_NAMES | ROLE_GUARD), 0, "the file has its own rule");
        assert_eq!(roles(&registry, 6) >> RULE_SHIFT & RULE_MASK, 2);
    }

    #[test]
    fn a_directory_above_several_rules_has_a_number_that_none_of_them_has() {
        let registry = registry();
        let guard = |ino| roles(&registry, ino) >> GUARD_SHIFT;
        assert_eq!((guard(4), guard(5)), (1, 2), "one rule alone has its own number");
        assert_eq!(guard(2), guard(3), "the same rules have the same number");
        assert!(guard(3) != 1 && guard(3) != 2 && guard(3) != 0);
        assert_eq!(roles(&registry, 3) & ROLE_DENY, 0, "its attributes and other names are not protected");
        let both = [("a".to_owned(), 1), ("b".to_owned(), 2)];
        assert_eq!(names(&registry, 3), both, "a directory's name has the rules of the things below it");
    }

    #[test]
    fn the_directory_that_replaces_another_has_its_protected_names() {
        let mut registry = registry();
        lead(&mut registry, "/etc/a", 40);
        assert_eq!(names(&registry, 40), [("one".to_owned(), 1)]);
        assert_eq!((names(&registry, 4), registry.enrolment(key(4))), (Vec::new(), None));
    }

    #[test]
    fn a_missing_name_at_the_end_of_a_route_behind_a_link_is_protected() {
        let real = || Route { directories: vec!["/".into(), "/var".into()], ..Route::default() };
        let mut registry = WatchRegistry::new(&[thing("/root/.ssh/keys")], |_| real(), |_| Vec::new());
        lead(&mut registry, "/", 2);
        lead(&mut registry, "/var", 3);
        registry.set_rule(ThingId(0), 1);
        registry.set_missing_name(ThingId(0), Some(("/var".into(), ".ssh".into())));
        registry.update_protections();
        assert_eq!(names(&registry, 3), [(".ssh".to_owned(), 1)]);
        assert_eq!(
            names(&registry, 2),
            [("root".to_owned(), 1), ("var".to_owned(), 1)],
            "the link itself, too"
        );
        let var = registry.find(Path::new("/var")).unwrap();
        let at = registry.protected_thing(&[var], Some(OsStr::new(".ssh")));
        assert_eq!(at, Some((ThingId(0), "/var/.ssh".into())));
        registry.set_missing_name(ThingId(0), Some(("/var".into(), ".ssh".into())));
        assert!(registry.update_protections().is_empty(), "nothing changed");
        registry.set_missing_name(ThingId(0), Some(("/var".into(), "keys.d".into())));
        assert_eq!(registry.update_protections(), [var], "another name in the same directory");
        assert_eq!(names(&registry, 3), [("keys.d".to_owned(), 1)]);
        registry.set_missing_name(ThingId(0), None);
        assert!(registry.update_protections().contains(&var));
        assert_eq!(names(&registry, 3), []);
    }

    #[test]
    fn a_denial_names_the_protected_thing_and_no_other() {
        let registry = registry();
        let watch_id = |path: &str| registry.find(Path::new(path)).unwrap();
        let refused = |path: &str, name: Option<&str>| {
            registry.protected_thing(&[watch_id(path)], name.map(OsStr::new))
        };
        assert_eq!(refused("/etc", None), Some((ThingId(0), "/etc".into())));
        assert_eq!(refused("/etc", Some("b")), Some((ThingId(1), "/etc/b".into())));
        assert_eq!(refused("/etc/b/two", None), Some((ThingId(1), "/etc/b/two".into())));
        assert_eq!(refused("/etc/c", None), None);
    }

    #[test]
    fn without_a_deny_rule_no_watch_has_a_protection() {
        let mut registry = WatchRegistry::new(&[thing("/etc/a/one")], |_| Route::default(), |_| Vec::new());
        lead(&mut registry, "/etc/a", 4);
        assert!(registry.update_protections().is_empty() && names(&registry, 4).is_empty());
        assert_eq!(roles(&registry, 4) & (ROLE_NAMES | ROLE_GUARD | ROLE_DENY), 0);
    }
}
