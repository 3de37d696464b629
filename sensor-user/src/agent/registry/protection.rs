//! What deny rules mean for the ways to what they protect.
//!
//! In: things with the numbers of their rules. Out: for each watch the rules of all that lies at it, below it, or behind a
//! link that leads through it, as one number; for a directory, the names that only those may make, take or replace whom these
//! rules allow, whether anything is there or not. No I/O.

use super::protection_state::Guard;
use super::{Registry, Watch};
use crate::agent::rule_numbers::Numbers;
use sensor_common::map::InodeKey;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

impl Registry {
    /// Protects a thing's inode, and a closed directory's names, by a deny rule; [`Registry::guard`] does the rest.
    pub fn protect(&mut self, thing: u32, rule: u32) {
        self.deny.insert(thing, rule);
    }

    /// Where the numbers of rules come from that count together.
    pub fn number_by(&mut self, numbers: &Numbers) {
        self.guards.numbers = numbers.clone();
    }

    /// The way to a thing ends early, at a name that is not there; or it does not any more.
    pub fn ends_at(&mut self, thing: u32, missing: Option<(PathBuf, OsString)>) {
        if !self.deny.contains_key(&thing) || self.guards.missing.get(&thing) == missing.as_ref() {
            return;
        }
        let now = missing.as_ref().map(|(directory, _)| directory.clone());
        let before = match missing {
            Some(missing) => self.guards.missing.insert(thing, missing),
            None => self.guards.missing.remove(&thing),
        };
        self.guards.moved.extend(now.into_iter().chain(before.map(|(directory, _)| directory)));
    }

    /// Works out what lies on the ways to what is protected, once all things are protected and after each change of their
    /// ways. Gives the watches whose entries are others now.
    pub fn guard(&mut self) -> Vec<u32> {
        if self.deny.is_empty() && self.guards.by_watch.is_empty() {
            return Vec::new();
        }
        let mut rules: HashMap<u32, BTreeSet<u32>> = HashMap::new();
        for (thing, rule) in &self.deny {
            let path = self.things.get(*thing as usize).filter(|_| !self.unwatched.contains(thing));
            let on_the_way = path.into_iter().flat_map(|path| path.ancestors());
            for id in on_the_way.filter_map(|path| self.find(path)) {
                rules.entry(id).or_default().insert(*rule);
            }
        }
        for (id, watch) in (0..).zip(&self.watches) {
            for rule in watch.through().iter().filter_map(|thing| self.deny.get(thing)) {
                rules.entry(id).or_default().insert(*rule);
            }
        }
        let parents = rules.keys().filter_map(|id| self.watches[*id as usize].path.parent());
        let ends = self.guards.missing.values().map(|(directory, _)| directory.as_path());
        let with_names: HashSet<u32> = parents.chain(ends).filter_map(|path| self.find(path)).collect();
        let guards: HashMap<u32, Guard> = rules
            .keys()
            .chain(&with_names)
            .map(|id| {
                let all = rules.get(id).and_then(|rules| self.guards.numbers.of_all(rules));
                (*id, Guard { rules: all, has_names: with_names.contains(id) })
            })
            .collect();
        let before = std::mem::replace(&mut self.guards.by_watch, guards);
        let both = before.keys().chain(self.guards.by_watch.keys());
        let mut changed: Vec<u32> =
            both.filter(|id| before.get(*id) != self.guards.by_watch.get(*id)).copied().collect();
        // As many names as before may be others.
        let moved = std::mem::take(&mut self.guards.moved);
        changed.extend(moved.iter().filter_map(|directory| self.find(directory)));
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// What the watches that lead to one inode come to.
    pub(super) fn guard_of(&self, watches: &[u32]) -> Guard {
        let guards = || watches.iter().filter_map(|id| self.guards.by_watch.get(id));
        Guard {
            rules: self.guards.numbers.of_union(guards().filter_map(|guard| guard.rules)),
            has_names: guards().any(|guard| guard.has_names),
        }
    }

    /// The protected names in a directory, each with the number of the rules that have to let whoever uses it through.
    pub fn names_in(&self, key: InodeKey) -> BTreeMap<OsString, u32> {
        let mut names: BTreeMap<OsString, u32> = BTreeMap::new();
        for id in self.leading_to(key) {
            if !self.guards.by_watch.get(id).is_some_and(|guard| guard.has_names) {
                continue;
            }
            let directory = &self.watches[*id as usize];
            let children = self.children(directory).filter_map(|child| {
                let rules = self.guards.by_watch.get(&self.find(&child.path)?)?.rules?;
                Some((child.path.file_name()?, rules))
            });
            let missing = self.guards.missing.iter().filter_map(|(thing, (at, name))| {
                let rule = self.deny.get(thing)?;
                (*at == *directory.path).then_some((name.as_os_str(), *rule))
            });
            for (name, rules) in children.chain(missing) {
                let both = names.get(name).copied().into_iter().chain([rules]);
                if let Some(rules) = self.guards.numbers.of_union(both) {
                    names.insert(name.to_owned(), rules);
                }
            }
        }
        names
    }

    /// The first protected thing on account of which something about these watches was refused, and the path that it was
    /// tried on. `name`: the entry, where it was about a name in the directory.
    pub fn refused(&self, watches: &[u32], name: Option<&OsStr>) -> Option<(u32, PathBuf)> {
        watches.iter().find_map(|id| {
            let watch = &self.watches[*id as usize];
            let Some(name) = name else {
                return Some((self.first_at(watch)?, watch.path.to_path_buf()));
            };
            let missing = || {
                let at = (watch.path.to_path_buf(), name.to_owned());
                let things = self.guards.missing.iter().filter(|(_, missing)| **missing == at);
                things.map(|(thing, _)| *thing).min()
            };
            let everything =
                || watch.everything().iter().find(|thing| self.deny.contains_key(*thing)).copied();
            let child = self.child(watch, name).and_then(|child| self.first_at(child));
            Some((child.or_else(missing).or_else(everything)?, watch.path.join(name)))
        })
    }

    /// The first protected thing at a watch, else below it, else behind a link that leads through it.
    fn first_at(&self, watch: &Watch) -> Option<u32> {
        let is_protected = |thing: &u32| self.deny.contains_key(thing);
        let own = watch.objects().filter(|thing| self.is_own(watch, *thing));
        let below = || {
            let path: &Path = &watch.path;
            let things = self.deny.keys().copied();
            things.filter(|thing| self.things[*thing as usize].starts_with(path)).min()
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
    use crate::observation::Way;
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

    fn lead(registry: &mut Registry, path: &str, ino: u64) {
        let id = registry.find(Path::new(path)).unwrap();
        registry.resolved(id, Some(Inode { key: key(ino), generation: 1 }));
    }

    /// Things of two rules and of none below `/etc`; of the first, nothing is there yet.
    fn registry() -> Registry {
        let things = [thing("/etc/a/one"), thing("/etc/b/two"), thing("/etc/c/free")];
        let mut registry = Registry::new(&things, |_| Way::default(), |_| Vec::new());
        for (path, ino) in [("/", 2), ("/etc", 3), ("/etc/a", 4), ("/etc/b", 5), ("/etc/b/two", 6)] {
            lead(&mut registry, path, ino);
        }
        registry.number_by(&Numbers::after(2));
        registry.protect(0, 1);
        registry.protect(1, 2);
        registry.guard();
        registry
    }

    fn roles(registry: &Registry, ino: u64) -> u32 {
        registry.enrolment(key(ino)).unwrap().1
    }

    fn names(registry: &Registry, ino: u64) -> Vec<(String, u32)> {
        let names = registry.names_in(key(ino)).into_iter();
        names.map(|(name, rules)| (name.into_string().unwrap(), rules)).collect()
    }

    #[test]
    fn a_protected_name_is_protected_in_its_directory_whether_anything_is_there_or_not() {
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
        assert_eq!((guard(4), guard(5)), (1, 2), "one rule alone counts by its own number");
        assert_eq!(guard(2), guard(3), "the same rules have the same number");
        assert!(guard(3) != 1 && guard(3) != 2 && guard(3) != 0);
        assert_eq!(roles(&registry, 3) & ROLE_DENY, 0, "its attributes and other names are free");
        let both = [("a".to_owned(), 1), ("b".to_owned(), 2)];
        assert_eq!(names(&registry, 3), both, "a name on the way counts for what lies behind it");
    }

    #[test]
    fn a_replaced_directory_takes_over_the_names_and_the_old_one_has_none() {
        let mut registry = registry();
        lead(&mut registry, "/etc/a", 40);
        assert_eq!(names(&registry, 40), [("one".to_owned(), 1)]);
        assert_eq!((names(&registry, 4), registry.enrolment(key(4))), (Vec::new(), None));
    }

    #[test]
    fn what_ends_at_a_name_behind_a_link_is_protected_there() {
        let real = || Way { directories: vec!["/".into(), "/var".into()], ..Way::default() };
        let mut registry = Registry::new(&[thing("/root/.ssh/keys")], |_| real(), |_| Vec::new());
        lead(&mut registry, "/", 2);
        lead(&mut registry, "/var", 3);
        registry.protect(0, 1);
        registry.ends_at(0, Some(("/var".into(), ".ssh".into())));
        registry.guard();
        assert_eq!(names(&registry, 3), [(".ssh".to_owned(), 1)]);
        assert_eq!(
            names(&registry, 2),
            [("root".to_owned(), 1), ("var".to_owned(), 1)],
            "the link itself, too"
        );
        let var = registry.find(Path::new("/var")).unwrap();
        let at = registry.refused(&[var], Some(OsStr::new(".ssh")));
        assert_eq!(at, Some((0, "/var/.ssh".into())));
        registry.ends_at(0, Some(("/var".into(), ".ssh".into())));
        assert!(registry.guard().is_empty(), "nothing is new");
        registry.ends_at(0, Some(("/var".into(), "keys.d".into())));
        assert_eq!(registry.guard(), [var], "another name in the same directory");
        assert_eq!(names(&registry, 3), [("keys.d".to_owned(), 1)]);
        registry.ends_at(0, None);
        assert!(registry.guard().contains(&var));
        assert_eq!(names(&registry, 3), []);
    }

    #[test]
    fn what_was_refused_is_told_of_the_protected_thing_and_of_no_other() {
        let registry = registry();
        let id = |path: &str| registry.find(Path::new(path)).unwrap();
        let refused = |path: &str, name: Option<&str>| registry.refused(&[id(path)], name.map(OsStr::new));
        assert_eq!(refused("/etc", None), Some((0, "/etc".into())));
        assert_eq!(refused("/etc", Some("b")), Some((1, "/etc/b".into())));
        assert_eq!(refused("/etc/b/two", None), Some((1, "/etc/b/two".into())));
        assert_eq!(refused("/etc/c", None), None);
    }

    #[test]
    fn without_a_deny_rule_nothing_is_told_to_the_programs() {
        let mut registry = Registry::new(&[thing("/etc/a/one")], |_| Way::default(), |_| Vec::new());
        lead(&mut registry, "/etc/a", 4);
        assert!(registry.guard().is_empty() && names(&registry, 4).is_empty());
        assert_eq!(roles(&registry, 4) & (ROLE_NAMES | ROLE_GUARD | ROLE_DENY), 0);
    }
}
