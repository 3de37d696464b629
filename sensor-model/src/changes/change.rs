//! One change between two rendered configs.

use crate::expectation::Source;
use serde::{Deserialize, Serialize};

/// What kind of thing changes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A file; the change is named by its path.
    File,
    /// A directory; by its path.
    Directory,
    /// A link; by its path.
    Link,
    /// A systemd unit with its drop-ins, enablement and mask; by its name.
    Unit,
    /// A user's ssh key; by the user and the key's fingerprint.
    SshKey,
    /// A user's password hash; by the user.
    PasswordHash,
    /// An argument of the kernel; by the argument.
    KernelArgument,
    /// The kind of kernel; by its new word.
    KernelType,
    /// An extension of the OS; by its name.
    Extension,
    /// FIPS mode.
    Fips,
    /// The OS image; by its new URL.
    OsImage,
}

impl Kind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "link",
            Self::Unit => "unit",
            Self::SshKey => "ssh-key",
            Self::PasswordHash => "password-hash",
            Self::KernelArgument => "kernel-argument",
            Self::KernelType => "kernel-type",
            Self::Extension => "extension",
            Self::Fips => "fips",
            Self::OsImage => "os-image",
        }
    }
}

/// What is done to the thing.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Only the new config declares it.
    Add,
    /// Both declare it, differently.
    Change,
    /// Only the old config declares it.
    Remove,
}

impl Operation {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Change => "change",
            Self::Remove => "remove",
        }
    }

    /// From whether the old and the new config declare a thing that differs.
    pub(super) fn of(old: bool, new: bool) -> Self {
        match (old, new) {
            (false, _) => Self::Add,
            (true, true) => Self::Change,
            (true, false) => Self::Remove,
        }
    }
}

/// One thing that has to become another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// What kind of thing.
    pub kind: Kind,
    /// Which; see [`Kind`].
    pub name: String,
    /// What is done to it.
    pub operation: Operation,
    /// In what it differs, for people: `content`, `mode 0644 -> 0600`, `enabled: false -> true`.
    pub details: Vec<String>,
    /// The MachineConfig that says so: the new one, for a removal the old one.
    pub source: Source,
    /// Others that say parts of the difference, or of a file, directory or link that differs.
    pub others: Vec<Source>,
}

/// `old -> new`, of what may be left out.
pub(super) fn arrow(
    what: &str,
    old: Option<impl std::fmt::Display>,
    new: Option<impl std::fmt::Display>,
) -> String {
    let word = |value: Option<String>| value.unwrap_or_else(|| "unset".to_owned());
    format!("{what}: {} -> {}", word(old.map(|old| old.to_string())), word(new.map(|new| new.to_string())))
}
