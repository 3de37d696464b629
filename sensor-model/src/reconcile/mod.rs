//! Why a running node cannot be brought to a config.
//!
//! In: two rendered configs, or a config and facts of a live node. Out: every reason, in the Machine Config Operator's texts,
//! since people and tools search for these. An administrator can override some reasons; running nodes then keep the old state of
//! these sections.

#[cfg(test)]
mod tests;

use crate::{
    ignition::{FORCE_FILE, spec},
    merge::{Rendered, RenderedUser, Section},
};

/// The only user that MachineConfigs manage.
const CORE: &str = "core";

/// `spec.irreconcilableValidationOverrides.storage` of the cluster's `MachineConfiguration`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `Disks`.
    pub disks: bool,
    /// `FileSystems`.
    pub filesystems: bool,
    /// `Raid`.
    pub raid: bool,
}

impl Overrides {
    fn cover(self, section: Section) -> bool {
        match section {
            Section::Disks => self.disks,
            Section::Filesystems => self.filesystems,
            Section::Raid => self.raid,
            _ => false,
        }
    }
}

/// Facts of a live node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// `/proc/sys/crypto/fips_enabled`; `None` if there is no such file.
    pub fips: Option<bool>,
    /// The machine as `uname` names it: `x86_64`, `aarch64`.
    pub architecture: String,
}

/// Why a running node cannot be brought to a config.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Irreconcilable {
    /// A change of users or groups.
    #[error("invalid passwd change(s): {0}")]
    Passwd(PasswdChange),
    /// A section of the Ignition config differs.
    #[error("ignition {0} section contains changes")]
    Section(&'static str),
    /// A file has content to append.
    #[error("ignition file {0} includes append")]
    Append(String),
    /// The file switches off the checks of the Machine Config Daemon.
    #[error("cannot create {0} via Ignition")]
    ForceFile(String),
    /// FIPS mode changes, or is not that of the node.
    #[error("detected change to FIPS flag; refusing to modify FIPS on a running cluster")]
    Fips,
    /// The kernel type needs another architecture.
    #[error(
        "MachineConfig {machine_config}: spec.kernelType: {kernel_type} needs a node of architecture aarch64, \
         this one is {architecture}"
    )]
    Architecture {
        /// The MachineConfig that declares the kernel type.
        machine_config: String,
        /// The kernel type.
        kernel_type: String,
        /// The node's architecture.
        architecture: String,
    },
}

/// A change of users or groups that a running node cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PasswdChange {
    /// The section of groups differs.
    #[error("ignition Passwd Groups section contains changes")]
    Groups,
    /// Another user than `core` differs.
    #[error("ignition passwd user section contains unsupported changes: non-core user")]
    OtherUser,
    /// `core` has neither a key nor a password hash.
    #[error(
        "ignition passwd user section contains unsupported changes: user must be core and have 1 or more sshKeys"
    )]
    NoKeys,
    /// `core` has other fields than keys and password hash.
    #[error("SSH keys and password hash are not reconcilable")]
    OtherFields,
}

/// Every reason why a node cannot be brought from one config to the other, and the overridden reasons.
pub fn reasons(
    old: &Rendered,
    new: &Rendered,
    overrides: Overrides,
) -> (Vec<Irreconcilable>, Vec<Irreconcilable>) {
    let sections = old.fixed.differences(&new.fixed);
    let has = |section: Section| sections.contains(&section);
    let (mut reasons, mut overridden) = (Vec::new(), Vec::new());
    let mut passwd = Vec::new();
    if has(Section::Groups) {
        passwd.push(PasswdChange::Groups);
    }
    users(old, new, &mut passwd);
    reasons.extend(passwd.into_iter().map(Irreconcilable::Passwd));
    for (section, name) in [
        (Section::KernelArguments, "kargs"),
        (Section::Disks, "disks"),
        (Section::Filesystems, "filesystems"),
        (Section::Raid, "raid"),
        (Section::Luks, "luks"),
        (Section::Proxy, "proxy"),
        (Section::Security, "security"),
        (Section::Timeouts, "timeouts"),
    ] {
        if has(section) {
            let list = if overrides.cover(section) { &mut overridden } else { &mut reasons };
            list.push(Irreconcilable::Section(name));
        }
    }
    for (path, file) in &new.files {
        if file.value.file.append.as_ref().is_some_and(|append| !append.is_empty()) {
            reasons.push(Irreconcilable::Append(path.clone()));
        }
        if path == FORCE_FILE {
            reasons.push(Irreconcilable::ForceFile(path.clone()));
        }
    }
    if old.fips.is_some() != new.fips.is_some() {
        reasons.push(Irreconcilable::Fips);
    }
    (reasons, overridden)
}

/// Every reason why a live node cannot be brought to a config, whatever its config was before.
pub fn against_node(node: &NodeFacts, new: &Rendered) -> Vec<Irreconcilable> {
    let mut reasons = Vec::new();
    // A kernel without the file has no FIPS mode.
    if node.fips.unwrap_or(false) != new.fips.is_some() {
        reasons.push(Irreconcilable::Fips);
    }
    let arm = matches!(node.architecture.as_str(), "aarch64" | "arm64");
    if let Some(kind) = new.kernel_type.as_ref().filter(|kind| kind.value == "64k-pages" && !arm) {
        reasons.push(Irreconcilable::Architecture {
            machine_config: kind.source.machine_config.to_string(),
            kernel_type: kind.value.clone(),
            architecture: node.architecture.clone(),
        });
    }
    reasons
}

/// Only `core` may differ, and only in keys and password hash.
fn users(old: &Rendered, new: &Rendered, reasons: &mut Vec<PasswdChange>) {
    // Removing all users only removes the keys and hashes that earlier configs declared.
    if new.users.is_empty() {
        return;
    }
    let mut add = |reason| {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    };
    for (name, user) in &new.users {
        if old.users.get(name).is_some_and(|old| same(old, user)) {
            continue;
        }
        if name != CORE {
            add(PasswdChange::OtherUser);
            continue;
        }
        let has_keys = user.keys.as_ref().is_some_and(|keys| !keys.is_empty());
        if !has_keys && user.user.password_hash.is_none() {
            add(PasswdChange::NoKeys);
        }
        if has_other_fields(&user.user) {
            add(PasswdChange::OtherFields);
        }
    }
    if old.users.keys().any(|name| name != CORE && !new.users.contains_key(name)) {
        add(PasswdChange::OtherUser);
    }
}

/// Compares users without the MachineConfigs that declare them.
fn same(old: &RenderedUser, new: &RenderedUser) -> bool {
    let keys = |user: &RenderedUser| -> Vec<String> {
        user.keys.iter().flatten().map(|key| key.value.clone()).collect()
    };
    old.user == new.user && keys(old) == keys(new)
}

fn has_other_fields(user: &spec::User) -> bool {
    let mut bare = spec::User::new(user.name.clone());
    bare.password_hash.clone_from(&user.password_hash);
    bare.ssh_authorized_keys.clone_from(&user.ssh_authorized_keys);
    bare != *user
}
