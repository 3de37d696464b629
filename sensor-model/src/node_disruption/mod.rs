//! The actions that a change needs: `NodeDisruptionPolicy` in the Machine Config Operator's form, and more.
//!
//! In: policy files ([`DisruptionPolicyFile::parse`]), merged over the shipped defaults ([`DisruptionPolicy::merge`]), and a
//! change. Out: a [`DisruptionDecision`]. A file with a fault is refused as a whole. A change that no entry matches reboots the
//! node. Nothing is read from the disk or run here.
//!
//! Which entry decides:
//! 1. The entry for exactly this path.
//! 2. The entry with the longest fixed beginning that matches. For a directory that is its path, for a glob the part before the
//!    first wildcard. Between equals the glob decides.
//! 3. The declaration of the MachineConfig's owner, if an entry of `declarations` allows it.
//!
//! Of two entries for the same path or name the later one replaces the earlier one. The order is: shipped defaults, the
//! cluster's `MachineConfiguration`, `DisruptionPolicy` files for every pool, those for the node's pool.

mod declaration;
mod error;
mod forms;
mod matching;
mod merge;
mod parse;
#[cfg(test)]
mod tests;

pub use declaration::Allowance;
pub use error::{
    DeclarationError, DisruptionPolicyError, NotAlone, PatternError, PolicyFault, UnitNameError,
};
pub use merge::DisruptionPolicy;

use crate::{
    action::{Action, Fallback},
    reconcile::Overrides,
};

/// Version of Holdfast's own kind.
pub const API_VERSION: &str = "holdfast.dev/v1alpha1";
/// Holdfast's own kind.
pub const KIND: &str = "DisruptionPolicy";
/// Version of the Machine Config Operator's kind.
pub const MCO_API_VERSION: &str = "operator.openshift.io/v1";
/// The Machine Config Operator's kind.
pub const MCO_KIND: &str = "MachineConfiguration";

/// The request of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyRequest {
    /// An action.
    Act {
        /// The action.
        action: Action,
        /// The unit, with its suffix; `None` for an action without a unit.
        unit: Option<String>,
    },
    /// The actions depend on the content of the file, by rules of its own. Only shipped defaults request it.
    Special,
    /// A type that this version does not know, from a policy that the Machine Config Operator checked: a reboot.
    Unknown(String),
}

/// One action of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryAction {
    /// The action.
    pub request: PolicyRequest,
    /// How many seconds it may take, if the policy has a limit.
    pub timeout_seconds: Option<u64>,
    /// The fallback if it fails or takes longer, if the policy has one.
    pub fallback: Option<Fallback>,
}

impl EntryAction {
    /// An action without a unit, a limit and a fallback.
    pub fn plain(action: Action) -> Self {
        Self { request: PolicyRequest::Act { action, unit: None }, timeout_seconds: None, fallback: None }
    }

    /// An action on a unit, without a limit and a fallback.
    pub fn of_unit(action: Action, unit: String) -> Self {
        Self {
            request: PolicyRequest::Act { action, unit: Some(unit) },
            timeout_seconds: None,
            fallback: None,
        }
    }

    fn is(&self, wanted: Action) -> bool {
        matches!(self.request, PolicyRequest::Act { action, .. } if action == wanted)
    }
}

/// The things that an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntrySubject {
    /// Files by path, directory or glob. They also decide for directories and links without an entry of their own.
    Files,
    /// Directories, the same way.
    Directories,
    /// Links, the same way.
    Links,
    /// Units by name or glob.
    Units,
    /// ssh keys and password hashes.
    SshKey,
    /// Arguments of the kernel, by name or glob.
    KernelArguments,
}

impl EntrySubject {
    /// The key under which a file has its entries.
    pub fn key(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Directories => "directories",
            Self::Links => "links",
            Self::Units => "units",
            Self::SshKey => "sshkey",
            Self::KernelArguments => "kernelArguments",
        }
    }
}

/// The actions that changes of some things need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyEntry {
    /// The things that it is about.
    pub subject: EntrySubject,
    /// Path, name or glob; empty for ssh keys.
    pub pattern: String,
    /// The actions, never empty.
    pub actions: Vec<EntryAction>,
    /// The file it is from, for messages.
    pub origin: String,
}

impl PolicyEntry {
    /// How a plan names it: `shipped default: files /etc/containers/policy.json`.
    pub fn label(&self) -> String {
        let space = if self.pattern.is_empty() { "" } else { " " };
        format!("{}: {}{space}{}", self.origin, self.subject.key(), self.pattern)
    }
}

/// The nodes that a file applies to, and its rank among the files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyScope {
    /// Shipped with the program.
    Shipped,
    /// The cluster's `MachineConfiguration`.
    Cluster,
    /// A `DisruptionPolicy` for every pool.
    Everywhere,
    /// A `DisruptionPolicy` for these pools.
    Pools(Vec<String>),
}

/// One object of a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisruptionPolicyFile {
    /// The file it was read from, for messages.
    pub origin: String,
    /// The nodes that it applies to.
    pub scope: PolicyScope,
    /// Its entries, in order.
    pub entries: Vec<PolicyEntry>,
    /// The declarations that it allows.
    pub allowances: Vec<Allowance>,
    /// The irreconcilable changes that it overrides.
    pub overrides: Overrides,
}

/// The actions that a change needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisruptionDecision {
    /// The actions, never empty.
    pub actions: Vec<EntryAction>,
    /// The entry that decided, for people.
    pub policy: String,
}

impl DisruptionDecision {
    fn reboot(policy: impl Into<String>) -> Self {
        Self { actions: vec![EntryAction::plain(Action::Reboot)], policy: policy.into() }
    }
}
