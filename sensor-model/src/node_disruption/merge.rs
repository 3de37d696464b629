//! Merges policy files into one policy, and decides which actions a change needs.
//!
//! In: policy files; then a change. Out: the policy of a node; then the actions and the entry that decided.

use super::{
    Allowance, DisruptionDecision, DisruptionPolicyFile, EntryAction, EntrySubject, PolicyEntry, PolicyScope,
    declaration,
    error::{DisruptionPolicyError, PolicyFault, PolicyFieldError},
    matching::Patterns,
};
use crate::{
    action::Action,
    changes::{Change, ChangeKind},
    expectation::SYSTEMD_DIRECTORY,
    expectations::IGNORED_FILES,
    merge::Rendered,
    os::arguments,
    reconcile::Overrides,
};
use std::collections::BTreeMap;

/// The shipped defaults.
const SHIPPED: &str = include_str!("../../../policies/node-disruption/default.yaml");

/// The merged policy of a node.
#[derive(Debug, Clone, Default)]
pub struct DisruptionPolicy {
    entries: Vec<PolicyEntry>,
    patterns: BTreeMap<EntrySubject, Patterns>,
    allowances: Vec<Allowance>,
    overrides: Overrides,
}

impl DisruptionPolicy {
    /// The shipped defaults alone.
    ///
    /// # Errors
    /// The shipped file has a fault; a test reads it.
    pub fn shipped() -> Result<Self, DisruptionPolicyError> {
        Self::merge(&[], None)
    }

    /// Merges files over the shipped defaults, for the nodes of a pool. An entry replaces the whole earlier entry for the same
    /// path or name.
    ///
    /// # Errors
    /// Two files of the same scope with different entries for the same path or name.
    pub fn merge(files: &[DisruptionPolicyFile], pool: Option<&str>) -> Result<Self, DisruptionPolicyError> {
        let shipped = DisruptionPolicyFile::parse_shipped("shipped default", SHIPPED.as_bytes())?;
        let mut files: Vec<&DisruptionPolicyFile> = shipped
            .iter()
            .chain(files)
            .filter(|file| match &file.scope {
                PolicyScope::Pools(pools) => pool.is_some_and(|pool| pools.iter().any(|other| other == pool)),
                _ => true,
            })
            .collect();
        files.sort_by_key(|file| rank(&file.scope));
        let mut policy = Self::default();
        let mut ranks: Vec<u8> = Vec::new();
        let mut known: BTreeMap<(EntrySubject, &str), usize> = BTreeMap::new();
        for file in &files {
            let rank = rank(&file.scope);
            for entry in &file.entries {
                match known.get(&(entry.subject, entry.pattern.as_str())) {
                    Some(at) if ranks[*at] == rank && policy.entries[*at].actions != entry.actions => {
                        let field = format!("{} {}", entry.subject.key(), entry.pattern);
                        let reason = PolicyFault::Contradiction(policy.entries[*at].origin.clone());
                        let error = PolicyFieldError::new(field, reason);
                        return Err(error.of(&file.origin, "policy".to_owned()));
                    }
                    Some(at) => {
                        policy.entries[*at] = entry.clone();
                        ranks[*at] = rank;
                    }
                    None => {
                        known.insert((entry.subject, &entry.pattern), policy.entries.len());
                        policy.entries.push(entry.clone());
                        ranks.push(rank);
                    }
                }
            }
            policy.allowances.extend(file.allowances.iter().cloned());
            policy.overrides.disks |= file.overrides.disks;
            policy.overrides.filesystems |= file.overrides.filesystems;
            policy.overrides.raid |= file.overrides.raid;
        }
        for subject in [
            EntrySubject::Files,
            EntrySubject::Directories,
            EntrySubject::Links,
            EntrySubject::Units,
            EntrySubject::SshKey,
            EntrySubject::KernelArguments,
        ] {
            let entries = policy.entries.iter().enumerate();
            let of_subject = entries.filter(|(_, entry)| entry.subject == subject);
            let patterns = Patterns::new(of_subject.map(|(number, entry)| (entry.pattern.as_str(), number)));
            policy.patterns.insert(subject, patterns);
        }
        Ok(policy)
    }

    /// The irreconcilable changes that the policy overrides.
    pub fn overrides(&self) -> Overrides {
        self.overrides
    }

    /// Every entry, in the order of the files.
    pub fn entries(&self) -> &[PolicyEntry] {
        &self.entries
    }

    /// The actions that a change from `old` to `new` needs.
    pub fn decide(&self, change: &Change, old: &Rendered, new: &Rendered) -> DisruptionDecision {
        let name = change.name.as_str();
        let entry = match change.kind {
            // A controller writes it, so it is neither written from a config nor compared with one.
            ChangeKind::File if IGNORED_FILES.contains(&name) => {
                return DisruptionDecision {
                    actions: vec![EntryAction::plain(Action::None)],
                    policy: "built in: the cluster's certificate writer writes it, and no config".to_owned(),
                };
            }
            ChangeKind::File => self.path(EntrySubject::Files, name),
            ChangeKind::Directory => {
                self.path(EntrySubject::Directories, name).or_else(|| self.path(EntrySubject::Files, name))
            }
            ChangeKind::Link => {
                self.path(EntrySubject::Links, name).or_else(|| self.path(EntrySubject::Files, name))
            }
            ChangeKind::Unit => self.name(EntrySubject::Units, name),
            ChangeKind::SshKey | ChangeKind::PasswordHash => self.name(EntrySubject::SshKey, ""),
            ChangeKind::KernelArgument => self.kernel_argument(name),
            // The image that extensions come from, on a node without extensions.
            ChangeKind::Extension if new.extensions.is_empty() && old.extensions.is_empty() => {
                return DisruptionDecision {
                    actions: vec![EntryAction::plain(Action::None)],
                    policy: "built in: no extensions are installed".to_owned(),
                };
            }
            ChangeKind::KernelType | ChangeKind::Extension | ChangeKind::Fips | ChangeKind::OsImage => {
                return DisruptionDecision::reboot(format!(
                    "built in: {} needs a reboot",
                    change.kind.as_str()
                ));
            }
        };
        match entry {
            Some(entry) => DisruptionDecision { actions: entry.actions.clone(), policy: entry.label() },
            None if change.kind == ChangeKind::KernelArgument => {
                DisruptionDecision::reboot("built in: kernel-argument needs a reboot")
            }
            None => self.declared(change, old, new),
        }
    }

    fn path(&self, subject: EntrySubject, path: &str) -> Option<&PolicyEntry> {
        self.entries.get(self.patterns.get(&subject)?.path(path)?)
    }

    fn name(&self, subject: EntrySubject, name: &str) -> Option<&PolicyEntry> {
        self.entries.get(self.patterns.get(&subject)?.name(name)?)
    }

    /// The entry for the whole argument, or else for its name before the `=`. A change of order names several arguments; then
    /// every one needs an entry with the same actions.
    fn kernel_argument(&self, arguments: &str) -> Option<&PolicyEntry> {
        let words = arguments::split(arguments);
        let mut entries = words.iter().map(|word| {
            let name = word.split('=').next().unwrap_or(word);
            self.name(EntrySubject::KernelArguments, word)
                .or_else(|| self.name(EntrySubject::KernelArguments, name))
        });
        let first = entries.next()??;
        entries.all(|entry| entry.is_some_and(|entry| entry.actions == first.actions)).then_some(first)
    }

    /// The actions that the owner of the MachineConfig declares, if a policy allows them; otherwise a reboot.
    fn declared(&self, change: &Change, old: &Rendered, new: &Rendered) -> DisruptionDecision {
        const NO_ENTRY: &str = "no entry matches: reboot";
        let name = &*change.source.machine_config;
        if !change.others.is_empty() {
            return DisruptionDecision::reboot(format!(
                "{NO_ENTRY}; several MachineConfigs declare parts of it"
            ));
        }
        // Only the old config has the declaration of something that is removed.
        let Some(declared) = new.declarations.get(name).or_else(|| old.declarations.get(name)) else {
            return DisruptionDecision::reboot(NO_ENTRY);
        };
        let said = format!("annotation holdfast.dev/disruption of MachineConfig {name}");
        let path = match change.kind {
            ChangeKind::Unit => format!("{SYSTEMD_DIRECTORY}/{}", change.name),
            _ => change.name.clone(),
        };
        let actions = match declaration::actions(&declared.text) {
            Ok(actions) => actions,
            Err(reason) => return DisruptionDecision::reboot(format!("{NO_ENTRY}; {said}: {reason}")),
        };
        let covers =
            |allowance: &&Allowance| allowance.covers(name, declared, &path) && allowance.allows(&actions);
        match self.allowances.iter().find(covers) {
            Some(allowance) => {
                let policy = format!("{said}, allowed by {}", allowance.label);
                DisruptionDecision { actions, policy }
            }
            None => DisruptionDecision::reboot(format!("{NO_ENTRY}; {said} is not allowed by any policy")),
        }
    }
}

fn rank(scope: &PolicyScope) -> u8 {
    match scope {
        PolicyScope::Shipped => 0,
        PolicyScope::Cluster => 1,
        PolicyScope::Everywhere => 2,
        PolicyScope::Pools(_) => 3,
    }
}
