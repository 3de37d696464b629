//! The generated MachineConfig and its YAML.
//!
//! In: files, directories, links, units and keys. Out: a manifest, the same for the same input.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Ignition version of the MachineConfig: the newest that the Machine Config Operator reads.
const IGNITION_VERSION: &str = "3.5.0";

/// An owner by id, since another node may give a name another id.
#[derive(Debug)]
pub(super) struct OwnerIds {
    pub(super) user: u32,
    pub(super) group: u32,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) mode: u32,
    pub(super) owner: OwnerIds,
    pub(super) source: String,
}

#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: String,
    pub(super) mode: u32,
    pub(super) owner: OwnerIds,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) path: String,
    pub(super) target: String,
    pub(super) owner: OwnerIds,
}

#[derive(Debug, Default)]
pub(super) struct UnitFragment {
    pub(super) contents: Option<String>,
    pub(super) enabled: Option<bool>,
    pub(super) mask: Option<bool>,
    pub(super) dropins: Vec<(String, String)>,
}

#[derive(Debug, Default)]
pub(super) struct Config {
    pub(super) files: Vec<File>,
    pub(super) directories: Vec<Directory>,
    pub(super) links: Vec<Link>,
    units: BTreeMap<String, UnitFragment>,
    keys: BTreeMap<String, Vec<String>>,
}

impl Config {
    pub(super) fn unit(&mut self, name: &str) -> &mut UnitFragment {
        self.units.entry(name.to_owned()).or_default()
    }

    pub(super) fn keys(&mut self, user: &str) -> &mut Vec<String> {
        self.keys.entry(user.to_owned()).or_default()
    }

    /// Sorts everything, so that the result does not depend on the order of the input.
    pub(super) fn sort(&mut self) {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.files.dedup_by(|later, earlier| later.path == earlier.path);
        self.directories.sort_by(|a, b| a.path.cmp(&b.path));
        self.directories.dedup_by(|later, earlier| later.path == earlier.path);
        self.links.sort_by(|a, b| a.path.cmp(&b.path));
        self.links.dedup_by(|later, earlier| later.path == earlier.path);
        for unit in self.units.values_mut() {
            unit.dropins.sort();
            unit.dropins.dedup_by(|later, earlier| later.0 == earlier.0);
        }
        for keys in self.keys.values_mut() {
            let mut seen = std::collections::BTreeSet::new();
            keys.retain(|key| seen.insert(key.clone()));
        }
    }

    pub(super) fn to_yaml(
        &self,
        api_version: &str,
        name: &str,
        role: &str,
    ) -> Result<String, serde_saphyr::SerializeError> {
        let mut config = Map::new();
        config.insert("ignition".to_owned(), json!({ "version": IGNITION_VERSION }));
        if !self.keys.is_empty() {
            let user =
                |(name, keys): (&String, &Vec<String>)| json!({ "name": name, "sshAuthorizedKeys": keys });
            config.insert("passwd".to_owned(), json!({ "users": list(self.keys.iter().map(user)) }));
        }
        let storage = self.storage();
        if !storage.is_empty() {
            config.insert("storage".to_owned(), Value::Object(storage));
        }
        if !self.units.is_empty() {
            config.insert("systemd".to_owned(), json!({ "units": list(self.units.iter().map(unit)) }));
        }
        let mut manifest = json!({
            "apiVersion": api_version,
            "kind": "MachineConfig",
            "metadata": { "name": name, "labels": { crate::machine_config::ROLE_LABEL: role } },
            "spec": { "config": config },
        });
        // Sorted by key, which is also the usual order in MachineConfigs.
        manifest.sort_all_objects();
        serde_saphyr::to_string(&manifest)
    }

    fn storage(&self) -> Map<String, Value> {
        let mut storage = Map::new();
        let mut add = |name: &str, values: Vec<Value>| {
            if !values.is_empty() {
                storage.insert(name.to_owned(), Value::Array(values));
            }
        };
        let directory = |directory: &Directory| {
            owned(&directory.owner, json!({ "path": directory.path, "mode": directory.mode }))
        };
        add("directories", self.directories.iter().map(directory).collect());
        let file = |file: &File| {
            let contents = json!({ "source": file.source });
            owned(
                &file.owner,
                json!({ "path": file.path, "mode": file.mode, "overwrite": true, "contents": contents }),
            )
        };
        add("files", self.files.iter().map(file).collect());
        let link = |link: &Link| {
            owned(&link.owner, json!({ "path": link.path, "target": link.target, "overwrite": true }))
        };
        add("links", self.links.iter().map(link).collect());
        storage
    }
}

/// Adds the owner; root is the default and is omitted.
fn owned(owner: &OwnerIds, mut node: Value) -> Value {
    for (what, id) in [("user", owner.user), ("group", owner.group)] {
        if id != 0 {
            node[what] = json!({ "id": id });
        }
    }
    node
}

fn unit((name, unit): (&String, &UnitFragment)) -> Value {
    let mut value = json!({ "name": name });
    if let Some(contents) = &unit.contents {
        value["contents"] = json!(contents);
    }
    if let Some(enabled) = unit.enabled {
        value["enabled"] = json!(enabled);
    }
    if let Some(mask) = unit.mask {
        value["mask"] = json!(mask);
    }
    if !unit.dropins.is_empty() {
        let dropin = |(name, contents): &(String, String)| json!({ "name": name, "contents": contents });
        value["dropins"] = list(unit.dropins.iter().map(dropin));
    }
    value
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    Value::Array(values.collect())
}
