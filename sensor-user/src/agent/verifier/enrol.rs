//! Enrols inodes: the map entries of watched paths and protected names.
//!
//! In: watches, and the inode of each path. Out: entries in the kernel's maps. It owns the list of the names in the map.

use super::{MapsError, Verifier, registry};
use crate::agent::registry::Inode;
use sensor_common::map::InodeKey;
use sensor_common::op::ROLE_NAMES;
use sensor_model::observation::FileType;
use sensor_model::protocol::ThingId;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

impl Verifier {
    /// Enrols every watched path. Removes the entries of an earlier run that are not enrolled now.
    pub fn enrol_all(&mut self) -> Result<(), MapsError> {
        for watch_id in 0..self.registry.len() {
            self.enrol(watch_id)?;
        }
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        let stale: Vec<InodeKey> = kernel
            .maps
            .entries()
            .filter(|(key, entry)| self.registry.is_stale(*key, entry.id))
            .map(|(key, _)| key)
            .collect();
        for key in stale {
            kernel.maps.remove(key)?;
        }
        let (written, names) = (&self.names.0, kernel.maps.names());
        let is_protected =
            |at: &InodeKey, name: &OsString| written.get(at).is_some_and(|names| names.contains_key(name));
        let stale: Vec<_> = names.filter(|(at, name)| !is_protected(at, name)).collect();
        for (directory, name) in stale {
            kernel.maps.forget_name(directory, &name)?;
        }
        Ok(())
    }

    /// Sets the deny rules of things, by the rules' numbers. The caller enrols the things afterwards.
    pub fn protect(&mut self, rules: impl IntoIterator<Item = (ThingId, u32)>) -> Result<(), MapsError> {
        for (thing, rule) in rules {
            self.registry.set_rule(thing, rule);
            if let Some(path) = self.registry.path_of(thing) {
                self.registry.set_missing_name(thing, self.observer.route(&path).missing);
            }
        }
        self.write_protections()
    }

    /// See [`registry::WatchRegistry::set_image_differs`]. Gives whether a map entry was written, which is dirty since.
    pub fn set_image_differs(&mut self, path: &Path, differs: bool) -> Result<bool, MapsError> {
        let key = self.registry.set_image_differs(path, differs);
        let Some(key) = key.filter(|_| self.kernel.is_some()) else { return Ok(false) };
        self.write_entry(key, self.registry.enrolment(key))?;
        Ok(true)
    }

    /// Writes the map entries of watches whose protection changed.
    pub(super) fn write_protections(&mut self) -> Result<(), MapsError> {
        for watch_id in self.registry.update_protections() {
            if let Some(key) = self.registry.get(watch_id).and_then(registry::Watch::key) {
                self.write_enrolment(key, self.registry.enrolment(key))?;
            }
        }
        Ok(())
    }

    /// Opens a watched path and enrols the inode that it leads to.
    pub fn enrol(&mut self, watch_id: u32) -> Result<(), MapsError> {
        let Some(watch) = self.registry.get(watch_id) else { return Ok(()) };
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        let is_link = self.links.contains(&watch.path);
        if is_link {
            kernel.expect_link();
        }
        self.observer.take_left_to_worker();
        let opened = self.observer.open(&watch.path);
        if self.observer.take_left_to_worker().is_some() {
            // The worker process that observes the thing names the inode.
            return Ok(());
        }
        let identified = match opened.map(|opened| opened.file_type) {
            Ok(FileType::Symlink) if is_link => kernel.identify_link(),
            Ok(FileType::Symlink) | Err(_) => None,
            Ok(_) => kernel.identify(),
        };
        self.set_inode(watch_id, identified.map(|(inode, _)| inode))
    }

    /// Removes the entry of an inode that is not enrolled: the rename hook created it, and the rename failed.
    pub fn remove_unused(&mut self, key: InodeKey) -> Result<(), MapsError> {
        match &mut self.kernel {
            Some(kernel) if key.ino != 0 && !self.registry.is_enrolled(key) => kernel.maps.remove(key),
            _ => Ok(()),
        }
    }

    /// Sets the inode that the watch's path leads to, and writes the map entries that change.
    pub(super) fn set_inode(&mut self, watch_id: u32, inode: Option<Inode>) -> Result<(), MapsError> {
        let before = self.registry.get(watch_id).and_then(registry::Watch::key);
        let now = inode.map(|inode| inode.key);
        for (key, enrolment) in self.registry.set_inode(watch_id, inode) {
            // The protected names of its directory did not change.
            if before != now && [before, now].contains(&Some(key)) {
                self.write_enrolment(key, enrolment)?;
            } else {
                self.write_entry(key, enrolment)?;
            }
        }
        Ok(())
    }

    fn write_entry(&mut self, key: InodeKey, enrolment: Option<(u32, u32)>) -> Result<(), MapsError> {
        match (&mut self.kernel, enrolment) {
            (Some(kernel), Some((number, roles))) => kernel.maps.enrol(key, number, roles),
            (Some(kernel), None) => kernel.maps.remove(key),
            (None, _) => Ok(()),
        }
    }

    /// Writes an inode's entry and protected names. The names are in the map whenever the entry has the role that makes the
    /// programs look for names.
    fn write_enrolment(&mut self, key: InodeKey, enrolment: Option<(u32, u32)>) -> Result<(), MapsError> {
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        let has_names = enrolment.is_some_and(|(_, roles)| roles & ROLE_NAMES != 0);
        let names = if has_names { self.registry.names_in(key) } else { BTreeMap::new() };
        let written = self.names.0.get(&key);
        let new =
            names.iter().filter(|(name, rules)| written.and_then(|names| names.get(*name)) != Some(*rules));
        for (name, rules) in new {
            // The map has room for a limited number of names. An existing object is protected by its own entry.
            if let Err(error) = kernel.maps.protect_name(key, name, *rules) {
                let name = name.display().to_string();
                tracing::error!(name, %error, "Cannot protect a name in the map: while the object is missing, any process can create it.");
            }
        }
        match enrolment {
            Some((number, roles)) => kernel.maps.enrol(key, number, roles)?,
            None => kernel.maps.remove(key)?,
        }
        let gone = written.into_iter().flatten().filter(|(name, _)| !names.contains_key(*name));
        for (name, _) in gone {
            kernel.maps.forget_name(key, name)?;
        }
        if names.is_empty() {
            self.names.0.remove(&key);
        } else {
            self.names.0.insert(key, names);
        }
        Ok(())
    }

    /// Checks the map entries of the next `count` watches, and restores entries that are missing or changed. Gives the watches of
    /// these: their changes may have no record.
    pub fn check_entries(&mut self, count: u32) -> Result<Vec<u32>, MapsError> {
        let mut missing = Vec::new();
        let Some(kernel) = &mut self.kernel else { return Ok(missing) };
        let all = self.registry.len();
        for _ in 0..count.min(all) {
            let watch_id = self.next_check % all;
            self.next_check = watch_id + 1;
            let Some(key) = self.registry.get(watch_id).and_then(registry::Watch::key) else { continue };
            let Some((number, roles)) = self.registry.enrolment(key) else { continue };
            let mut is_intact = kernel.maps.is_enrolled(key, number, roles)?;
            if !is_intact {
                kernel.maps.remove(key)?;
                kernel.maps.enrol(key, number, roles)?;
            }
            for (name, rules) in self.names.0.get(&key).into_iter().flatten() {
                if kernel.maps.rules_of_name(key, name)? != Some(*rules) {
                    kernel.maps.protect_name(key, name, *rules)?;
                    is_intact = false;
                }
            }
            if !is_intact {
                missing.push(watch_id);
            }
        }
        Ok(missing)
    }
}
