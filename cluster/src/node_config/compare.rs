//! The comparison of the sensor's config with those of the cluster.
//!
//! In: the subject, and what is known of MachineConfigs by their names. Out: the part of the report, with a sentence. Nothing is read
//! here.

use crate::api::{ConfigState, ReportedConfig};
use crate::text::fit;
use sensor_model::config_digest::is_same_content;
use sensor_model::status::{ConfigOrigin, ExpectedConfig};
use std::collections::{BTreeMap, BTreeSet};

/// The states of a Node in which its daemon does nothing.
const IDLE: [&str; 3] = ["Done", "Degraded", "Unreconcilable"];
/// Longest name of a MachineConfig.
const NAME_BYTES: usize = 253;
/// Longest sentence.
const SENTENCE_BYTES: usize = 800;

/// What the sensor expects, and what the annotations of the Node say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The sensor's config.
    pub expected: ExpectedConfig,
    /// The annotation `currentConfig`.
    pub current: String,
    /// The annotation `desiredConfig`.
    pub desired: Option<String>,
    /// The annotation `state`.
    pub state: Option<String>,
}

impl Subject {
    /// The MachineConfigs that the comparison needs.
    pub fn names(&self) -> BTreeSet<String> {
        self.expected.name.iter().chain([&self.current]).cloned().collect()
    }

    /// What the objects are compared with. Another one needs another read.
    pub fn key(&self) -> (&ExpectedConfig, &str) {
        (&self.expected, &self.current)
    }

    /// Whether an update is under way. The operator's daemon stores the new config before it sets the annotation, which may be after a
    /// reboot.
    fn is_updating(&self) -> bool {
        let is_idle = self.state.as_deref().is_none_or(|state| IDLE.contains(&state));
        !is_idle || self.desired.as_ref().is_some_and(|desired| *desired != self.current)
    }
}

/// What is known of a MachineConfig of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// The digest of what it declares.
    Digest(String),
    /// The cluster has no such object.
    Absent,
    /// The reporter may not read it.
    Forbidden,
    /// Holdfast cannot read what it declares.
    Unusable(String),
}

/// MachineConfigs by their names. One that is missing could not be read.
pub type Known = BTreeMap<String, Object>;

/// Compares the sensor's config with the MachineConfigs of the cluster.
pub fn compared(subject: &Subject, known: &Known) -> ReportedConfig {
    let Subject { expected, current, .. } = subject;
    let (state, sentence) = verdict(subject, known);
    ReportedConfig {
        expected: expected.name.as_deref().map(|name| fit(name, NAME_BYTES)),
        origin: expected.origin.as_str().to_owned(),
        current: fit(current, NAME_BYTES),
        state,
        message: sentence.map(|sentence| fit(&sentence, SENTENCE_BYTES)),
    }
}

fn verdict(subject: &Subject, known: &Known) -> (ConfigState, Option<String>) {
    let Subject { expected, current, .. } = subject;
    let same = |name: &str| match known.get(name) {
        Some(Object::Digest(digest)) => is_same_content(digest, &expected.digest),
        _ => None,
    };
    let place = place(expected.origin);
    if same(current) == Some(true) {
        return (ConfigState::Same, None);
    }
    // The file of the node has its name from the object of which it is a copy, also while the annotation names another one.
    if let Some(name) = &expected.name
        && same(name) == Some(false)
    {
        let sentence =
            format!("MachineConfig {} of the cluster and the copy of it in {place} differ", short(name));
        return (ConfigState::Differs, Some(sentence));
    }
    if expected.name.as_ref() == Some(current) {
        return (ConfigState::Unknown, Some(unknown(current, known.get(current))));
    }
    if subject.is_updating() {
        return (ConfigState::Updating, None);
    }
    if !known.contains_key(current) {
        return (ConfigState::Unknown, Some(unknown(current, None)));
    }
    let what = match &expected.name {
        Some(name) if known.get(name) == Some(&Object::Absent) => {
            format!("MachineConfig {}, which the cluster does not have", short(name))
        }
        Some(name) => format!("MachineConfig {}", short(name)),
        None => "not one MachineConfig alone".to_owned(),
    };
    let sentence = format!(
        "the sensor expects what is in {place}: {what}; the annotation currentConfig of the Node names {}",
        short(current)
    );
    (ConfigState::Other, Some(sentence))
}

/// Why a MachineConfig is not compared.
fn unknown(name: &str, object: Option<&Object>) -> String {
    let name = short(name);
    match object {
        Some(Object::Absent) => format!("the cluster has no MachineConfig {name}"),
        Some(Object::Forbidden) => format!("the reporter may not read MachineConfig {name}"),
        Some(Object::Unusable(reason)) => format!("MachineConfig {name} cannot be compared: {reason}"),
        Some(Object::Digest(_)) => {
            format!(
                "another version of Holdfast runs in the sensor, so MachineConfig {name} cannot be compared"
            )
        }
        None => format!("MachineConfig {name} could not be read yet"),
    }
}

/// Where a config was read on the node.
fn place(origin: ConfigOrigin) -> &'static str {
    match origin {
        ConfigOrigin::Operator => "/etc/machine-config-daemon/currentconfig on the node",
        ConfigOrigin::Applied => "/var/lib/holdfast on the node",
        ConfigOrigin::Service => "/etc/holdfast/machine-configs on the node",
        ConfigOrigin::Named => "the files that the sensor's command line names",
        ConfigOrigin::LastUsable => "/var/lib/holdfast on the node, the last usable config",
    }
}

fn short(name: &str) -> String {
    fit(name, NAME_BYTES)
}
