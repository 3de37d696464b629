//! What a running node cannot be brought to.
//!
//! Two rendered configs come in, or a config and what is known of a live node; out comes every reason at
//! once, in the Machine Config Operator's texts, since people and tools look for those. An administrator's
//! overrides set some reasons aside; what they name is then left as it is on running nodes.

#[cfg(test)]
mod tests;

use crate::{
    ignition::{FORCE_FILE, spec},
    merge::{Rendered, RenderedUser, Section},
};

/// The text for a change of FIPS mode, also against what a node runs with.
const FIPS: &str = "detected change to FIPS flag; refusing to modify FIPS on a running cluster";

/// Only this user is managed.
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

/// What has to be known of a live node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// What `/proc/sys/crypto/fips_enabled` says; `None` where there is no such file.
    pub fips: Option<bool>,
    /// The machine as `uname` names it: `x86_64`, `aarch64`.
    pub architecture: String,
}

/// Every reason against bringing a node from one config to the other, and those that are overridden.
pub fn reasons(old: &Rendered, new: &Rendered, overrides: Overrides) -> (Vec<String>, Vec<String>) {
    let sections = old.fixed.differences(&new.fixed);
    let has = |section: Section| sections.contains(&section);
    let (mut reasons, mut overridden) = (Vec::new(), Vec::new());
    let mut passwd = Vec::new();
    if has(Section::Groups) {
        passwd.push("ignition Passwd Groups section contains changes");
    }
    users(old, new, &mut passwd);
    reasons.extend(passwd.iter().map(|reason| format!("invalid passwd change(s): {reason}")));
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
            list.push(format!("ignition {name} section contains changes"));
        }
    }
    for (path, file) in &new.files {
        if file.value.file.append.as_ref().is_some_and(|append| !append.is_empty()) {
            reasons.push(format!("ignition file {path} includes append"));
        }
        if path == FORCE_FILE {
            reasons.push(format!("cannot create {path} via Ignition"));
        }
    }
    if old.fips.is_some() != new.fips.is_some() {
        reasons.push(FIPS.to_owned());
    }
    (reasons, overridden)
}

/// Every reason against bringing a live node to a config, whatever it had before.
pub fn against_node(node: &NodeFacts, new: &Rendered) -> Vec<String> {
    let mut reasons = Vec::new();
    // A kernel without the switch is one without FIPS mode.
    if node.fips.unwrap_or(false) != new.fips.is_some() {
        reasons.push(FIPS.to_owned());
    }
    let arm = matches!(node.architecture.as_str(), "aarch64" | "arm64");
    if let Some(kind) = new.kernel_type.as_ref().filter(|kind| kind.value == "64k-pages" && !arm) {
        reasons.push(format!(
            "MachineConfig {}: spec.kernelType: {} needs a node of architecture aarch64, this one is {}",
            kind.source.machine_config, kind.value, node.architecture
        ));
    }
    reasons
}

/// Users that differ must be `core`, and have nothing but keys and a password hash.
fn users(old: &Rendered, new: &Rendered, reasons: &mut Vec<&'static str>) {
    // Taking every user away takes nothing from a node but the keys and hashes that it was given.
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
            add("ignition passwd user section contains unsupported changes: non-core user");
            continue;
        }
        let has_keys = user.keys.as_ref().is_some_and(|keys| !keys.is_empty());
        if !has_keys && user.user.password_hash.is_none() {
            add(
                "ignition passwd user section contains unsupported changes: user must be core and have 1 or more sshKeys",
            );
        }
        if has_other_fields(&user.user) {
            add("SSH keys and password hash are not reconcilable");
        }
    }
    if old.users.keys().any(|name| name != CORE && !new.users.contains_key(name)) {
        add("ignition passwd user section contains unsupported changes: non-core user");
    }
}

/// Whoever said it is of no matter.
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
