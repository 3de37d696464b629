//! Sections that only the first boot applies: disks, file systems, groups and others.
//!
//! In: sections of Ignition configs; a later one overrides an earlier one. Out: one value for each section. Its comparison
//! ignores omitted and empty fields, and the order of items that have names.

use crate::ignition::spec;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A section of an Ignition config that cannot be applied to a running node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// `passwd.groups`.
    Groups,
    /// `kernelArguments`, those of Ignition.
    KernelArguments,
    /// `storage.disks`.
    Disks,
    /// `storage.filesystems`.
    Filesystems,
    /// `storage.raid`.
    Raid,
    /// `storage.luks`.
    Luks,
    /// `ignition.proxy`.
    Proxy,
    /// `ignition.security`.
    Security,
    /// `ignition.timeouts`.
    Timeouts,
}

impl Section {
    /// The place of the section in an Ignition config: the parent's name and its own.
    pub fn pointer(self) -> [&'static str; 2] {
        match self {
            Self::Groups => ["passwd", "groups"],
            Self::KernelArguments => ["", "kernelArguments"],
            Self::Disks => ["storage", "disks"],
            Self::Filesystems => ["storage", "filesystems"],
            Self::Raid => ["storage", "raid"],
            Self::Luks => ["storage", "luks"],
            Self::Proxy => ["ignition", "proxy"],
            Self::Security => ["ignition", "security"],
            Self::Timeouts => ["ignition", "timeouts"],
        }
    }
}

/// The sections that are not empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fixed(BTreeMap<Section, Value>);

impl Fixed {
    /// Every section with its value; items of a list are in the order of their first declaration.
    pub fn sections(&self) -> impl Iterator<Item = (Section, &Value)> {
        self.0.iter().map(|(section, value)| (*section, value))
    }

    /// Every section with its value, the items that have names in the order of these.
    pub(crate) fn ordered(&self) -> impl Iterator<Item = (Section, Value)> {
        self.0.iter().map(|(section, value)| (*section, ordered(value)))
    }

    /// Sections in which two configs differ.
    pub fn differences(&self, other: &Self) -> Vec<Section> {
        let mut sections: Vec<Section> = self.0.keys().chain(other.0.keys()).copied().collect();
        sections.sort_unstable();
        sections.dedup();
        sections.retain(|section| {
            let ordered = |fixed: &Self| fixed.0.get(section).map(ordered);
            ordered(self) != ordered(other)
        });
        sections
    }

    /// Merges a config's sections over the earlier ones.
    pub(super) fn add(&mut self, config: &spec::Config) {
        let passwd = config.passwd.as_ref();
        let storage = config.storage.as_ref();
        self.put(Section::Groups, passwd.and_then(|passwd| passwd.groups.as_ref()));
        self.put(Section::KernelArguments, config.kernel_arguments.as_ref());
        self.put(Section::Disks, storage.and_then(|storage| storage.disks.as_ref()));
        self.put(Section::Filesystems, storage.and_then(|storage| storage.filesystems.as_ref()));
        self.put(Section::Raid, storage.and_then(|storage| storage.raid.as_ref()));
        self.put(Section::Luks, storage.and_then(|storage| storage.luks.as_ref()));
        self.put(Section::Proxy, config.ignition.proxy.as_ref());
        self.put(Section::Security, config.ignition.security.as_ref());
        self.put(Section::Timeouts, config.ignition.timeouts.as_ref());
    }

    fn put(&mut self, section: Section, declared: Option<&impl Serialize>) {
        // The value was parsed from JSON, so it can be written as JSON.
        let Some(Ok(value)) = declared.map(serde_json::to_value) else { return };
        let Some(value) = without_empty(value) else { return };
        match self.0.get_mut(&section) {
            Some(old) => over(old, value),
            None => {
                self.0.insert(section, value);
            }
        }
    }
}

/// The value without nulls and empty objects and lists.
fn without_empty(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(fields) => {
            let fields: Map<String, Value> =
                fields.into_iter().filter_map(|(key, value)| Some((key, without_empty(value)?))).collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        Value::Array(items) => {
            let items: Vec<Value> = items.into_iter().filter_map(without_empty).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        other => Some(other),
    }
}

/// Ignition's merge: fields replace each other, lists merge by key.
fn over(old: &mut Value, new: Value) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in new {
                match old.get_mut(&key) {
                    Some(old) => over(old, value),
                    None => {
                        old.insert(key, value);
                    }
                }
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            for item in new {
                match old.iter_mut().find(|old| key(old) == key(&item)) {
                    Some(old) => over(old, item),
                    None => old.push(item),
                }
            }
        }
        (old, new) => *old = new,
    }
}

/// The key of an item of a list.
fn key(item: &Value) -> String {
    let Value::Object(fields) = item else { return item.to_string() };
    let number = fields.get("number").filter(|number| number.as_i64() != Some(0));
    let named = ["name", "device", "url", "source"].iter().find_map(|name| fields.get(*name));
    named.or(number).or_else(|| fields.get("label")).unwrap_or(item).to_string()
}

/// The value with lists of objects sorted by key; other lists keep their order.
fn ordered(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), ordered(value))).collect())
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(ordered).collect();
            if items.iter().all(Value::is_object) {
                items.sort_by_cached_key(key);
            }
            Value::Array(items)
        }
        other => other.clone(),
    }
}
