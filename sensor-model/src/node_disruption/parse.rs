//! Reads the entries of a policy file.
//!
//! In: YAML or JSON, one document or many. Out: the policies in it, checked, or the first fault with its object and field. The
//! texts are those of the API server and the Machine Config Operator where they have one. An unknown key is a fault: a misspelt
//! `actions` would otherwise reboot nodes without a word.

use super::{
    API_VERSION, Allowance, DisruptionPolicyFile, EntryAction, EntrySubject, KIND, MCO_API_VERSION, MCO_KIND,
    PolicyEntry, PolicyRequest, PolicyScope,
    error::{DisruptionPolicyError, PolicyFault, PolicyFieldError},
    forms::{argument_pattern, path_pattern, standalone, timeout, unit},
    matching::{glob, is_glob},
};
use crate::{
    action::{Action, Fallback},
    fields::{FieldFault, list, mapping, names, required, text, wrong_type},
    machine_config::{self, OtherObject},
    reconcile::Overrides,
    text::quote,
    unknown,
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

type Parsed<T> = Result<T, PolicyFieldError>;

/// Most entries of a list in a `MachineConfiguration`.
const MAXIMUM_ENTRIES: usize = 50;
/// Most entries of a list in the status of a `MachineConfiguration`, which also holds the defaults.
const MAXIMUM_STATUS_ENTRIES: usize = 100;
/// Most entries of a list in a `DisruptionPolicy`.
const MAXIMUM_OWN_ENTRIES: usize = 1_000;
/// Most actions of an entry.
const MAXIMUM_ACTIONS: usize = 10;
/// The type that only shipped defaults and a cluster's status may have.
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
    pub fn parse(origin: &str, bytes: &[u8]) -> Result<Vec<Self>, DisruptionPolicyError> {
        Self::parse_as(origin, bytes, Trust::File)
    }

    /// Reads the shipped defaults, which may ask for `Special`.
    pub(super) fn parse_shipped(origin: &str, bytes: &[u8]) -> Result<Vec<Self>, DisruptionPolicyError> {
        Self::parse_as(origin, bytes, Trust::Shipped)
    }

    /// Reads the policy that the Machine Config Operator merged for a cluster: `nodeDisruptionPolicyStatus` of its
    /// `MachineConfiguration`. An unknown action becomes [`PolicyRequest::Unknown`].
    ///
    /// # Errors
    /// The first fault, with its field.
    pub fn from_status(origin: &str, object: &Value) -> Result<Self, DisruptionPolicyError> {
        let at = "status.nodeDisruptionPolicyStatus.clusterPolicies";
        let reader = EntryReader { origin, own: false, trust: Trust::Status };
        let none = Value::Object(Map::new());
        let body = object.pointer("/status/nodeDisruptionPolicyStatus/clusterPolicies").unwrap_or(&none);
        let entries =
            reader.entries(body, at).map_err(|error| error.of(origin, format!("{MCO_KIND} \"cluster\"")))?;
        Ok(Self {
            origin: origin.to_owned(),
            scope: PolicyScope::Cluster,
            entries,
            allowances: Vec::new(),
            overrides: Overrides::default(),
        })
    }

    fn parse_as(origin: &str, bytes: &[u8], trust: Trust) -> Result<Vec<Self>, DisruptionPolicyError> {
        let objects = machine_config::parse(origin, bytes)?.others;
        let policies: Result<Vec<Self>, DisruptionPolicyError> = objects
            .iter()
            .filter(|object| is_policy(object))
            .map(|object| policy(object, trust).map_err(|error| error.of(origin, name(object))))
            .collect();
        let policies = policies?;
        if let Some(error) = objects.iter().find_map(meant_as_policy) {
            return Err(error);
        }
        if policies.is_empty() {
            return Err(PolicyFieldError::new("kind", PolicyFault::NoPolicy).of(origin, "file".to_owned()));
        }
        Ok(policies)
    }
}

/// The object as errors name it.
fn name(object: &OtherObject) -> String {
    format!("{} {}", object.kind, quote(&object.name))
}

/// By kind alone, so that another version is refused and not ignored.
fn is_policy(object: &OtherObject) -> bool {
    object.kind == MCO_KIND || object.kind == KIND
}

/// The error of an object whose kind is a misspelt policy. If it were ignored, its changes would reboot nodes.
fn meant_as_policy(object: &OtherObject) -> Option<DisruptionPolicyError> {
    let near = unknown::nearest(&object.kind, &[MCO_KIND, KIND]).filter(|near| *near != object.kind)?;
    Some(PolicyFieldError::new("kind", PolicyFault::Kind(near)).of(&object.origin, name(object)))
}

fn policy(object: &OtherObject, trust: Trust) -> Parsed<DisruptionPolicyFile> {
    let own = object.kind == KIND;
    let supported = if own { API_VERSION } else { MCO_API_VERSION };
    if object.api_version != supported {
        let reason = PolicyFault::ApiVersion { found: object.api_version.clone(), supported };
        return Err(PolicyFieldError::new("apiVersion", reason));
    }
    let top = mapping(&object.value, "", &["apiVersion", "kind", "metadata", "spec", "status"])?;
    if !own && object.name != "cluster" {
        return Err(PolicyFieldError::new("metadata.name", PolicyFault::NotCluster(object.name.clone())));
    }
    if object.name.is_empty() {
        return Err(PolicyFieldError::new("metadata.name", FieldFault::Required));
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
            policy.scope = PolicyScope::Pools(names(pools, "spec.pools", |_, _| Parsed::Ok(()))?);
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
                let reason = unsupported(other, ["Disks", "FileSystems", "Raid"]);
                return Err(PolicyFieldError::new(format!("{at}[{number}]"), reason));
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
            Some(value) => names(value, &format!("{at}.{key}"), |name, at| {
                let checked = if is_glob(name) { glob(name).map(drop) } else { Ok(()) };
                checked.map_err(|reason| PolicyFieldError::new(at, reason))
            }),
            None => Ok(Vec::new()),
        };
        let mut match_labels = BTreeMap::new();
        if let Some(labels) = map.get("matchLabels") {
            let at = format!("{at}.matchLabels");
            let labels = labels.as_object().ok_or_else(|| wrong_type(&at, labels, "a mapping"))?;
            for (key, value) in labels {
                let value =
                    value.as_str().ok_or_else(|| wrong_type(&format!("{at}.{key}"), value, "a text"))?;
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
            return Err(PolicyFieldError::new(at, PolicyFault::NoOwner));
        }
        let acts = allowance.actions.iter().any(|action| action.needs_unit());
        if acts && allowance.units.is_empty() {
            return Err(PolicyFieldError::new(format!("{at}.units"), PolicyFault::NoUnits));
        }
        found.push(allowance);
    }
    Ok(found)
}

fn unsupported(word: &str, known: impl IntoIterator<Item = &'static str>) -> FieldFault {
    FieldFault::Unsupported { word: word.to_owned(), known: known.into_iter().collect() }
}

/// The values of `type` that a policy may have.
fn types(own: bool) -> Vec<&'static str> {
    Action::in_policies(own).map(Action::policy_type).collect()
}

fn allowed_actions(value: &Value, at: &str) -> Parsed<Vec<Action>> {
    let known = |word: &str| Action::of_policy_type(word, true);
    let words = names(value, at, |word, at| match known(word) {
        Some(_) => Ok(()),
        None => Err(PolicyFieldError::new(at, unsupported(word, types(true)))),
    })?;
    Ok(words.iter().filter_map(|word| known(word)).collect())
}

fn paths(value: &Value, at: &str) -> Parsed<Vec<String>> {
    let checked =
        |path: &str, at: &str| path_pattern(path).map_err(|reason| PolicyFieldError::new(at, reason));
    let mut paths = names(value, at, |path, at| checked(path, at).map(drop))?;
    for path in &mut paths {
        *path = checked(path, at)?;
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
                let reason = PolicyFault::TooMany { count: items.len(), limit: most };
                return Err(PolicyFieldError::new(at, reason));
            }
            let mut seen = BTreeSet::new();
            for (number, item) in items.iter().enumerate() {
                let at = format!("{at}[{number}]");
                let map = mapping(item, &at, &[key, "actions"])?;
                let field = format!("{at}.{key}");
                let written = text(required(map, key, &at)?, &field)?;
                let pattern = match subject {
                    EntrySubject::Units => self.unit_pattern(written),
                    EntrySubject::KernelArguments => argument_pattern(written).map_err(PolicyFault::from),
                    _ => path_pattern(written).map_err(PolicyFault::from),
                }
                .map_err(|reason| PolicyFieldError::new(field, reason))?;
                if !seen.insert(pattern.clone()) {
                    let reason = PolicyFault::Duplicate { key, value: written.to_owned() };
                    return Err(PolicyFieldError::new(at, reason));
                }
                let actions = self.actions(map, &at)?;
                entries.push(PolicyEntry { subject, pattern, actions, origin: self.origin.to_owned() });
            }
        }
        let at = format!("{at}.sshkey");
        if let Some(value) = body.get("sshkey").filter(|value| !value.is_null()) {
            let map = mapping(value, &at, &["actions"])?;
            // An empty mapping is the same as none, so the default stays.
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
            return Err(PolicyFieldError::new(at, PolicyFault::NoActions));
        }
        if listed.len() > MAXIMUM_ACTIONS {
            let reason = PolicyFault::TooMany { count: listed.len(), limit: MAXIMUM_ACTIONS };
            return Err(PolicyFieldError::new(at, reason));
        }
        let actions = listed
            .iter()
            .enumerate()
            .map(|(number, value)| self.action(value, &format!("{at}[{number}]")))
            .collect::<Parsed<Vec<EntryAction>>>()?;
        standalone(&actions).map_err(|reason| PolicyFieldError::new(at, reason))?;
        Ok(actions)
    }

    fn action(&self, value: &Value, at: &str) -> Parsed<EntryAction> {
        let unit_fields = Action::in_policies(false).filter_map(Action::unit_field);
        let mut keys: Vec<&'static str> =
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
            None => return Err(PolicyFieldError::new(field, unsupported(word, types(self.own)))),
        };
        let timeout_seconds = match map.get("timeout") {
            None => None,
            Some(value) => Some(
                timeout(value)
                    .ok_or_else(|| PolicyFieldError::new(format!("{at}.timeout"), PolicyFault::Timeout))?,
            ),
        };
        let fallback = match map.get("fallback") {
            None => None,
            Some(value) => {
                let word = text(value, &format!("{at}.fallback"))?;
                let known = Fallback::ALL.iter().copied().find(|fallback| fallback.as_str() == word);
                let error = || {
                    let known = Fallback::ALL.iter().map(|fallback| fallback.as_str());
                    PolicyFieldError::new(format!("{at}.fallback"), unsupported(word, known))
                };
                Some(known.ok_or_else(error)?)
            }
        };
        Ok(EntryAction { request, timeout_seconds, fallback })
    }

    /// The unit of an action: in the field that its type asks for, and in no other.
    fn unit(
        &self,
        map: &Map<String, Value>,
        word: &str,
        keys: &[&'static str],
        at: &str,
    ) -> Parsed<Option<String>> {
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
                    let reason = PolicyFault::UnitField { field: key, action: only };
                    return Err(PolicyFieldError::new(at, reason));
                }
            };
            let name = text(required(service, "serviceName", &field)?, &format!("{field}.serviceName"))?;
            let name = unit(name, !self.own).map_err(|reason| {
                PolicyFieldError::new(format!("{field}.serviceName"), PolicyFault::ServiceName(reason))
            })?;
            named = Some(name);
        }
        Ok(named)
    }

    fn unit_pattern(&self, name: &str) -> Result<String, PolicyFault> {
        if !is_glob(name) {
            return Ok(unit(name, !self.own)?);
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
