//! Reads the entries of a policy file.
//!
//! In: YAML or JSON, one document or many. Out: the policies in it, checked, or the first fault with its object and field. The
//! texts are those of the API server and the Machine Config Operator where they have one. An unknown key is a fault: a misspelt
//! `actions` would otherwise reboot nodes without a word.

use super::{
    API_VERSION, Allowance, DisruptionPolicyFile, EntryAction, EntrySubject, KIND, MCO_API_VERSION, MCO_KIND,
    PolicyEntry, PolicyRequest, PolicyScope,
    forms::{argument_pattern, path_pattern, standalone, timeout, unit},
    matching::{glob, is_glob},
};
use crate::{
    action::{Action, Fallback},
    fields::{Parsed, fault, list, mapping, names, required, text, unsupported},
    machine_config::{self, ManifestError, OtherObject},
    reconcile::Overrides,
    text::quote,
    unknown,
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Most entries of a list in a `MachineConfiguration`.
const MAXIMUM_ENTRIES: usize = 50;
/// Most entries of a list in the status of a `MachineConfiguration`, which also holds the defaults.
const MAXIMUM_STATUS_ENTRIES: usize = 100;
/// Most entries of a list in a `DisruptionPolicy`.
const MAXIMUM_OWN_ENTRIES: usize = 1_000;
/// Most actions of an entry.
const MAXIMUM_ACTIONS: usize = 10;
/// What only shipped defaults and a cluster's status may ask for.
const SPECIAL: &str = "Special";

/// Fields of a `MachineConfiguration`'s `spec` that are about something else.
const OTHER_SPEC_FIELDS: [&str; 10] = [
    "bootImageSkewEnforcement",
    "failedRevisionLimit",
    "forceRedeploymentReason",
    "logLevel",
    "managedBootImages",
    "managementState",
    "observedConfig",
    "operatorLogLevel",
    "succeededRevisionLimit",
    "unsupportedConfigOverrides",
];

/// Who wrote the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// A person: every word must be a known one.
    File,
    /// The release: the shipped defaults.
    Shipped,
    /// The Machine Config Operator, which checked them. It may be newer than this program.
    Status,
}

impl DisruptionPolicyFile {
    /// Reads the policies of one file; `origin` is its name for messages. MachineConfigs and other objects in
    /// it are ignored.
    ///
    /// # Errors
    /// The first fault, and a file without any policy.
    pub fn parse(origin: &str, bytes: &[u8]) -> Result<Vec<Self>, ManifestError> {
        Self::parse_as(origin, bytes, Trust::File)
    }

    /// Reads the shipped defaults, which may ask for `Special`.
    pub(super) fn parse_shipped(origin: &str, bytes: &[u8]) -> Result<Vec<Self>, ManifestError> {
        Self::parse_as(origin, bytes, Trust::Shipped)
    }

    /// Reads the policy that the Machine Config Operator merged for a cluster: `nodeDisruptionPolicyStatus` of its
    /// `MachineConfiguration`. An unknown action becomes [`PolicyRequest::Unknown`].
    ///
    /// # Errors
    /// The first fault, with its field.
    pub fn from_status(origin: &str, object: &Value) -> Result<Self, ManifestError> {
        let at = "status.nodeDisruptionPolicyStatus.clusterPolicies";
        let reader = EntryReader { origin, own: false, trust: Trust::Status };
        let none = Value::Object(Map::new());
        let body = object.pointer("/status/nodeDisruptionPolicyStatus/clusterPolicies").unwrap_or(&none);
        let entries = reader.entries(body, at).map_err(|(field, reason)| ManifestError {
            origin: origin.to_owned(),
            object: format!("{MCO_KIND} \"cluster\""),
            field,
            reason,
        })?;
        Ok(Self {
            origin: origin.to_owned(),
            scope: PolicyScope::Cluster,
            entries,
            allowances: Vec::new(),
            overrides: Overrides::default(),
        })
    }

    fn parse_as(origin: &str, bytes: &[u8], trust: Trust) -> Result<Vec<Self>, ManifestError> {
        let objects = machine_config::parse(origin, bytes)?.others;
        let policies: Result<Vec<Self>, ManifestError> = objects
            .iter()
            .filter(|object| is_policy(object))
            .map(|object| {
                policy(object, trust).map_err(|(field, reason)| ManifestError {
                    origin: origin.to_owned(),
                    object: format!("{} {}", object.kind, quote(&object.name)),
                    field,
                    reason,
                })
            })
            .collect();
        let policies = policies?;
        if let Some(fault) = objects.iter().find_map(meant_as_policy) {
            return Err(fault);
        }
        if policies.is_empty() {
            return Err(ManifestError {
                origin: origin.to_owned(),
                object: "file".to_owned(),
                field: "kind".to_owned(),
                reason: format!("no {MCO_KIND} of {MCO_API_VERSION} and no {KIND} of {API_VERSION} in it"),
            });
        }
        Ok(policies)
    }
}

/// By kind alone, so that another version is refused and not ignored.
fn is_policy(object: &OtherObject) -> bool {
    object.kind == MCO_KIND || object.kind == KIND
}

/// The fault of an object whose kind is a misspelt policy. If it were ignored, its changes would reboot nodes.
fn meant_as_policy(object: &OtherObject) -> Option<ManifestError> {
    let near = unknown::nearest(&object.kind, &[MCO_KIND, KIND]).filter(|near| *near != object.kind)?;
    Some(ManifestError {
        origin: object.origin.clone(),
        object: format!("{} {}", object.kind, quote(&object.name)),
        field: "kind".to_owned(),
        reason: format!("unknown kind; did you mean {near}?"),
    })
}

fn policy(object: &OtherObject, trust: Trust) -> Parsed<DisruptionPolicyFile> {
    let own = object.kind == KIND;
    let version = if own { API_VERSION } else { MCO_API_VERSION };
    if object.api_version != version {
        return Err((
            "apiVersion".to_owned(),
            format!("{} is not supported: {version} is", quote(&object.api_version)),
        ));
    }
    let top = mapping(&object.value, "", &["apiVersion", "kind", "metadata", "spec", "status"])?;
    if !own && object.name != "cluster" {
        return Err((
            "metadata.name".to_owned(),
            format!("must be \"cluster\", not {}: there is only one", quote(&object.name)),
        ));
    }
    if object.name.is_empty() {
        return Err(("metadata.name".to_owned(), "Required value".to_owned()));
    }
    let nothing = Value::Object(Map::new());
    let spec = top.get("spec").filter(|spec| !spec.is_null()).unwrap_or(&nothing);
    let mut policy = DisruptionPolicyFile {
        origin: object.origin.clone(),
        scope: if trust == Trust::Shipped { PolicyScope::Shipped } else { PolicyScope::Cluster },
        entries: Vec::new(),
        allowances: Vec::new(),
        overrides: Overrides::default(),
    };
    let mut known = vec!["irreconcilableValidationOverrides"];
    let at = if own {
        policy.scope = PolicyScope::Everywhere;
        known.extend(["pools", "declarations"]);
        known.extend(BODY);
        let spec = mapping(spec, "spec", &known)?;
        if let Some(pools) = spec.get("pools") {
            policy.scope = PolicyScope::Pools(names(pools, "spec.pools", |_| Ok(()))?);
        }
        if let Some(allowed) = spec.get("declarations") {
            policy.allowances = allowances(allowed, "spec.declarations", &policy.origin)?;
        }
        "spec"
    } else {
        known.push("nodeDisruptionPolicy");
        known.extend(OTHER_SPEC_FIELDS);
        mapping(spec, "spec", &known)?;
        "spec.nodeDisruptionPolicy"
    };
    if let Some(value) = spec.get("irreconcilableValidationOverrides") {
        policy.overrides = overrides(value, "spec.irreconcilableValidationOverrides")?;
    }
    let body = if own { Some(spec) } else { spec.get("nodeDisruptionPolicy") };
    if let Some(body) = body.filter(|body| !body.is_null()) {
        if !own {
            mapping(body, at, &BODY)?;
        }
        let reader = EntryReader { origin: &policy.origin, own, trust };
        policy.entries = reader.entries(body, at)?;
    }
    Ok(policy)
}

/// The lists of entries in a policy; the first three are the Machine Config Operator's.
const BODY: [&str; 6] = ["files", "units", "sshkey", "directories", "links", "kernelArguments"];

fn overrides(value: &Value, at: &str) -> Parsed<Overrides> {
    let mut overrides = Overrides::default();
    let Some(storage) = mapping(value, at, &["storage"])?.get("storage") else { return Ok(overrides) };
    let at = format!("{at}.storage");
    for (number, value) in list(storage, &at)?.iter().enumerate() {
        match text(value, &format!("{at}[{number}]"))? {
            "Disks" => overrides.disks = true,
            "FileSystems" => overrides.filesystems = true,
            "Raid" => overrides.raid = true,
            other => {
                return Err((
                    format!("{at}[{number}]"),
                    unsupported(other, &["Disks", "FileSystems", "Raid"]),
                ));
            }
        }
    }
    Ok(overrides)
}

fn allowances(value: &Value, at: &str, origin: &str) -> Parsed<Vec<Allowance>> {
    let mut found = Vec::new();
    for (number, value) in list(value, at)?.iter().enumerate() {
        let at = format!("{at}[{number}]");
        let map = mapping(value, &at, &["machineConfigs", "matchLabels", "paths", "actions", "units"])?;
        let patterns = |key: &str| match map.get(key) {
            Some(value) => names(value, &format!("{at}.{key}"), |name| {
                if is_glob(name) { glob(name).map(drop) } else { Ok(()) }
            }),
            None => Ok(Vec::new()),
        };
        let mut match_labels = BTreeMap::new();
        if let Some(labels) = map.get("matchLabels") {
            let at = format!("{at}.matchLabels");
            let labels = labels.as_object().ok_or_else(|| fault(&at, labels, "a mapping"))?;
            for (key, value) in labels {
                let value = value.as_str().ok_or_else(|| fault(&format!("{at}.{key}"), value, "a text"))?;
                match_labels.insert(key.clone(), value.to_owned());
            }
        }
        let allowance = Allowance {
            machine_configs: patterns("machineConfigs")?,
            match_labels,
            paths: match map.get("paths") {
                Some(value) => paths(value, &format!("{at}.paths"))?,
                None => Vec::new(),
            },
            actions: allowed_actions(required(map, "actions", &at)?, &format!("{at}.actions"))?,
            units: patterns("units")?,
            label: format!("{origin}: declarations[{number}]"),
        };
        if allowance.machine_configs.is_empty() && allowance.match_labels.is_empty() {
            return Err((at, "machineConfigs or matchLabels must say whose declarations count".to_owned()));
        }
        let acts = allowance.actions.iter().any(|action| action.needs_unit());
        if acts && allowance.units.is_empty() {
            return Err((
                format!("{at}.units"),
                "Required value: which units may be reloaded and restarted".to_owned(),
            ));
        }
        found.push(allowance);
    }
    Ok(found)
}

/// The values of `type` that a policy may have.
fn types(own: bool) -> Vec<&'static str> {
    Action::in_policies(own).map(Action::policy_type).collect()
}

fn allowed_actions(value: &Value, at: &str) -> Parsed<Vec<Action>> {
    let known = |word: &str| Action::of_policy_type(word, true);
    let words = names(value, at, |word| match known(word) {
        Some(_) => Ok(()),
        None => Err(unsupported(word, &types(true))),
    })?;
    Ok(words.iter().filter_map(|word| known(word)).collect())
}

fn paths(value: &Value, at: &str) -> Parsed<Vec<String>> {
    let mut paths = names(value, at, |path| path_pattern(path).map(drop))?;
    for path in &mut paths {
        *path = path_pattern(path).map_err(|reason| (at.to_owned(), reason))?;
    }
    Ok(paths)
}

/// Reads the entries of one policy.
struct EntryReader<'a> {
    origin: &'a str,
    own: bool,
    trust: Trust,
}

impl EntryReader<'_> {
    fn entries(&self, body: &Value, at: &str) -> Parsed<Vec<PolicyEntry>> {
        let mut entries = Vec::new();
        for (subject, key) in [
            (EntrySubject::Files, "path"),
            (EntrySubject::Directories, "path"),
            (EntrySubject::Links, "path"),
            (EntrySubject::Units, "name"),
            (EntrySubject::KernelArguments, "name"),
        ] {
            let at = format!("{at}.{}", subject.key());
            let Some(value) = body.get(subject.key()).filter(|value| !value.is_null()) else { continue };
            let items = list(value, &at)?;
            let most = match (self.own, self.trust) {
                (true, _) => MAXIMUM_OWN_ENTRIES,
                (false, Trust::Status) => MAXIMUM_STATUS_ENTRIES,
                (false, _) => MAXIMUM_ENTRIES,
            };
            if items.len() > most {
                return Err((at, format!("Too many: {}: must have at most {most} items", items.len())));
            }
            let mut seen = BTreeSet::new();
            for (number, item) in items.iter().enumerate() {
                let at = format!("{at}[{number}]");
                let map = mapping(item, &at, &[key, "actions"])?;
                let field = format!("{at}.{key}");
                let written = text(required(map, key, &at)?, &field)?;
                let pattern = match subject {
                    EntrySubject::Units => self.unit_pattern(written),
                    EntrySubject::KernelArguments => argument_pattern(written),
                    _ => path_pattern(written),
                }
                .map_err(|reason| (field, reason))?;
                if !seen.insert(pattern.clone()) {
                    return Err((at, format!("Duplicate value: {{{}:{}}}", quote(key), quote(written))));
                }
                let actions = self.actions(map, &at)?;
                entries.push(PolicyEntry { subject, pattern, actions, origin: self.origin.to_owned() });
            }
        }
        let at = format!("{at}.sshkey");
        if let Some(value) = body.get("sshkey").filter(|value| !value.is_null()) {
            let map = mapping(value, &at, &["actions"])?;
            // An empty mapping counts as absent, so the default stays.
            if !map.is_empty() {
                let actions = self.actions(map, &at)?;
                let origin = self.origin.to_owned();
                entries.push(PolicyEntry {
                    subject: EntrySubject::SshKey,
                    pattern: String::new(),
                    actions,
                    origin,
                });
            }
        }
        Ok(entries)
    }

    fn actions(&self, map: &Map<String, Value>, at: &str) -> Parsed<Vec<EntryAction>> {
        let listed = required(map, "actions", at)?;
        let at = format!("{at}.actions");
        let listed = list(listed, &at)?;
        if listed.is_empty() {
            return Err((at, "Invalid value: 0: must have at least 1 item".to_owned()));
        }
        if listed.len() > MAXIMUM_ACTIONS {
            let reason = format!("Too many: {}: must have at most {MAXIMUM_ACTIONS} items", listed.len());
            return Err((at, reason));
        }
        let actions = listed
            .iter()
            .enumerate()
            .map(|(number, value)| self.action(value, &format!("{at}[{number}]")))
            .collect::<Parsed<Vec<EntryAction>>>()?;
        standalone(&actions).map_err(|reason| (at, format!("Invalid value: {reason}")))?;
        Ok(actions)
    }

    fn action(&self, value: &Value, at: &str) -> Parsed<EntryAction> {
        let unit_fields = Action::in_policies(false).filter_map(Action::unit_field);
        let mut keys: Vec<&str> =
            ["type"].into_iter().chain(unit_fields).chain(["timeout", "fallback"]).collect();
        if self.own {
            let own = Action::in_policies(true).filter_map(Action::unit_field);
            let own: Vec<&str> = own.filter(|field| !keys.contains(field)).collect();
            keys.extend(own);
        }
        let map = mapping(value, at, &keys)?;
        let field = format!("{at}.type");
        let word = text(required(map, "type", at)?, &field)?;
        let unit = self.unit(map, word, &keys, at)?;
        let request = match Action::of_policy_type(word, self.own) {
            Some(action) => PolicyRequest::Act { action, unit },
            None if word == SPECIAL && self.trust != Trust::File => PolicyRequest::Special,
            // A newer operator may know more actions. A reboot covers each of them.
            None if self.trust == Trust::Status => PolicyRequest::Unknown(word.to_owned()),
            None => return Err((field, unsupported(word, &types(self.own)))),
        };
        let timeout_seconds = match map.get("timeout") {
            None => None,
            Some(value) => Some(timeout(value).ok_or_else(|| {
                let reason = "must be a time from 1s to 24h: 30s, 5m, 1h, or a number of seconds";
                (format!("{at}.timeout"), reason.to_owned())
            })?),
        };
        let fallback = match map.get("fallback") {
            None => None,
            Some(value) => {
                let word = text(value, &format!("{at}.fallback"))?;
                let known = Fallback::ALL.iter().copied().find(|fallback| fallback.as_str() == word);
                let fault = || {
                    (
                        format!("{at}.fallback"),
                        unsupported(
                            word,
                            &Fallback::ALL.iter().map(|fallback| fallback.as_str()).collect::<Vec<_>>(),
                        ),
                    )
                };
                Some(known.ok_or_else(fault)?)
            }
        };
        Ok(EntryAction { request, timeout_seconds, fallback })
    }

    /// The unit of an action: in the field that its type asks for, and in no other.
    fn unit(&self, map: &Map<String, Value>, word: &str, keys: &[&str], at: &str) -> Parsed<Option<String>> {
        let mut named = None;
        // In the order of the keys, which decides which of two faults is reported.
        for key in keys {
            let Some(action) = Action::in_policies(true).find(|action| action.unit_field() == Some(key))
            else {
                continue;
            };
            let only = action.policy_type();
            let field = format!("{at}.{key}");
            let service = match map.get(*key).filter(|value| !value.is_null()) {
                Some(value) if word == only => mapping(value, &field, &["serviceName"])?,
                None if word != only => continue,
                _ => {
                    let reason = format!("{key} is required when type is {only}, and forbidden otherwise");
                    return Err((at.to_owned(), format!("Invalid value: {reason}")));
                }
            };
            let name = text(required(service, "serviceName", &field)?, &format!("{field}.serviceName"))?;
            let name = unit(name, !self.own)
                .map_err(|reason| (format!("{field}.serviceName"), format!("Invalid value: {reason}")))?;
            named = Some(name);
        }
        Ok(named)
    }

    fn unit_pattern(&self, name: &str) -> Result<String, String> {
        if !is_glob(name) {
            return unit(name, !self.own);
        }
        glob(name)?;
        Ok(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_with_a_typing_error_is_refused_beside_a_policy_that_has_none() {
        let good = format!("apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: a}}\nspec: {{}}\n");
        for (kind, meant) in [("DisruptionPolcy", KIND), ("machineconfiguration", MCO_KIND)] {
            let text = format!("{good}---\nkind: {kind}\nmetadata: {{name: b}}\n");
            let error = DisruptionPolicyFile::parse("x", text.as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("x: {kind} \"b\": kind: unknown kind; did you mean {meant}?"));
        }
        for kind in ["MachineConfigPool", "MachineConfigNode", "DriftPolicy", "ConfigMap"] {
            let text = format!("{good}---\nkind: {kind}\nmetadata: {{name: b}}\n");
            assert_eq!(
                DisruptionPolicyFile::parse("x", text.as_bytes()).map(|policies| policies.len()),
                Ok(1),
                "{kind}"
            );
        }
    }
}
