//! Enrolling: the map entries of watched paths and protected names.
//!
//! In: watches, and what each path leads to. Out: entries in the maps.

use super::{Looker, MapsError, registry};
use crate::agent::registry::Inode;
use sensor_common::map::InodeKey;
use sensor_common::op::ROLE_NAMES;
use sensor_model::observation::FileType;
use std::collections::BTreeMap;
use std::ffi::OsString;

impl Looker {
    /// Enrols every watched path. Removes entries of an earlier run that nothing leads to any more.
    pub fn enrol_all(&mut self) -> Result<(), MapsError> {
        for id in 0..self.registry.len() {
            self.enrol(id)?;
        }
        let Some(witness) = &mut self.witness else { return Ok(()) };
        let stale: Vec<InodeKey> = witness
            .maps
            .entries()
            .filter(|(key, entry)| {
                key.ino != 0
                    && entry.id < super::registry::FIRST_OWN
                    && self.registry.get(entry.id).is_none_or(|watch| watch.key() != Some(*key))
            })
            .map(|(key, _)| key)
            .collect();
        for key in stale {
            witness.maps.remove(key)?;
        }
        let (written, names) = (&self.names.0, witness.maps.names());
        let is_told =
            |at: &InodeKey, name: &OsString| written.get(at).is_some_and(|names| names.contains_key(name));
        let stale: Vec<_> = names.filter(|(at, name)| !is_told(at, name)).collect();
        for (directory, name) in stale {
            witness.maps.forget_name(directory, &name)?;
        }
        Ok(())
    }

    /// Protects things by the rules of these numbers, and everything on the way to them. Before they are enrolled.
    pub fn protect(&mut self, rules: impl IntoIterator<Item = (u32, u32)>) -> Result<(), MapsError> {
        for (thing, rule) in rules {
            self.registry.protect(thing, rule);
            if let Some(path) = self.registry.path_of(thing) {
                self.registry.ends_at(thing, self.observer.way(&path).missing);
            }
        }
        self.write_guards()
    }

    /// Writes what deny rules mean for the directories on the way to what they protect, after a change of any.
    pub(super) fn write_guards(&mut self) -> Result<(), MapsError> {
        for id in self.registry.guard() {
            if let Some(key) = self.registry.get(id).and_then(registry::Watch::key) {
                self.write_enrolment(key, self.registry.enrolment(key))?;
            }
        }
        Ok(())
    }

    /// Opens a watched path and enrols what it leads to.
    pub fn enrol(&mut self, id: u32) -> Result<(), MapsError> {
        let Some(watch) = self.registry.get(id) else { return Ok(()) };
        let Some(witness) = &mut self.witness else { return Ok(()) };
        let is_link = self.links.contains(&watch.path);
        if is_link {
            witness.expect_link();
        }
        self.observer.refused();
        let opened = self.observer.open(&watch.path);
        if self.observer.refused().is_some() {
            // The process that looks at it names the inode.
            return Ok(());
        }
        let identified = match opened.map(|opened| opened.file_type) {
            Ok(FileType::Symlink) if is_link => witness.identify_link(),
            Ok(FileType::Symlink) | Err(_) => None,
            Ok(_) => witness.identify(),
        };
        self.apply(id, identified.map(|(inode, _)| inode))
    }

    /// Removes the entry of an inode to which no watched path leads: of what a rename that failed would have moved.
    pub fn remove_unused(&mut self, key: InodeKey) -> Result<(), MapsError> {
        match &mut self.witness {
            Some(witness) if key.ino != 0 && !self.registry.is_led_to(key) => witness.maps.remove(key),
            _ => Ok(()),
        }
    }

    /// The watch's path leads to this inode now, or to none.
    pub(super) fn apply(&mut self, id: u32, inode: Option<Inode>) -> Result<(), MapsError> {
        let before = self.registry.get(id).and_then(registry::Watch::key);
        let now = inode.map(|inode| inode.key);
        for (key, enrolment) in self.registry.resolved(id, inode) {
            // Its directory's names are what they were.
            if before != now && [before, now].contains(&Some(key)) {
                self.write_enrolment(key, enrolment)?;
            } else {
                self.write_entry(key, enrolment)?;
            }
        }
        Ok(())
    }

    fn write_entry(&mut self, key: InodeKey, enrolment: Option<(u32, u32)>) -> Result<(), MapsError> {
        match (&mut self.witness, enrolment) {
            (Some(witness), Some((id, roles))) => witness.maps.enrol(key, id, roles),
            (Some(witness), None) => witness.maps.remove(key),
            (None, _) => Ok(()),
        }
    }

    /// Writes what the registry has of an inode: the names before the role that makes the programs look for names, and the
    /// other way round.
    fn write_enrolment(&mut self, key: InodeKey, enrolment: Option<(u32, u32)>) -> Result<(), MapsError> {
        let Some(witness) = &mut self.witness else { return Ok(()) };
        let has_names = enrolment.is_some_and(|(_, roles)| roles & ROLE_NAMES != 0);
        let names = if has_names { self.registry.names_in(key) } else { BTreeMap::new() };
        let written = self.names.0.get(&key);
        let new =
            names.iter().filter(|(name, rules)| written.and_then(|names| names.get(*name)) != Some(*rules));
        for (name, rules) in new {
            // There is room for so many; what is there already is protected all the same.
            if let Err(error) = witness.maps.protect_name(key, name, *rules) {
                let name = name.display().to_string();
                tracing::error!(name, %error, "This name is not protected while nothing is there.");
            }
        }
        match enrolment {
            Some((id, roles)) => witness.maps.enrol(key, id, roles)?,
            None => witness.maps.remove(key)?,
        }
        let gone = written.into_iter().flatten().filter(|(name, _)| !names.contains_key(*name));
        for (name, _) in gone {
            witness.maps.forget_name(key, name)?;
        }
        if names.is_empty() {
            self.names.0.remove(&key);
        } else {
            self.names.0.insert(key, names);
        }
        Ok(())
    }

    /// Goes on through the watches, `count` of them, and puts back what is not in the maps as it was put there.
    /// Gives the watches whose changes may have had no record for a while.
    pub fn check_entries(&mut self, count: u32) -> Result<Vec<u32>, MapsError> {
        let mut missing = Vec::new();
        let Some(witness) = &mut self.witness else { return Ok(missing) };
        let all = self.registry.len();
        for _ in 0..count.min(all) {
            let id = self.next_check % all;
            self.next_check = id + 1;
            let Some(key) = self.registry.get(id).and_then(registry::Watch::key) else { continue };
            let Some((number, roles)) = self.registry.enrolment(key) else { continue };
            let mut is_there = witness.maps.is_enrolled(key, number, roles)?;
            if !is_there {
                witness.maps.remove(key)?;
                witness.maps.enrol(key, number, roles)?;
            }
            for (name, rules) in self.names.0.get(&key).into_iter().flatten() {
                if witness.maps.rules_of_name(key, name)? != Some(*rules) {
                    witness.maps.protect_name(key, name, *rules)?;
                    is_there = false;
                }
            }
            if !is_there {
                missing.push(id);
            }
        }
        Ok(missing)
    }
}
