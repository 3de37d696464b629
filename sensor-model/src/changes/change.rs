//! One change between two rendered configs.
//!
//! In: nothing. Out: the kinds of changes with their names, and the form of a change.

use crate::expectation::Source;
use sensor_protocol::names;

names! {
    /// The kind of the changed thing. The comment of each kind says what names the change.
    pub enum ChangeKind {
        /// A file, named by its path.
        File = "file",
        /// A directory, named by its path.
        Directory = "directory",
        /// A link, named by its path.
        Link = "link",
        /// A systemd unit with its drop-ins, enablement and mask, named by its name.
        Unit = "unit",
        /// A user's ssh key, named by the user and the key's fingerprint.
        SshKey = "ssh-key",
        /// A user's password hash, named by the user.
        PasswordHash = "password-hash",
        /// A kernel argument, named by itself.
        KernelArgument = "kernel-argument",
        /// The kernel type, named by the new one.
        KernelType = "kernel-type",
        /// An extension of the OS, named by its name.
        Extension = "extension",
        /// FIPS mode.
        Fips = "fips",
        /// The OS image, named by the new URL.
        OsImage = "os-image",
    }
}

names! {
    /// Whether the thing is added, changed or removed.
    pub enum ChangeOperation {
        /// Only the new config declares it.
        Add = "add",
        /// Both declare it, differently.
        Change = "change",
        /// Only the old config declares it.
        Remove = "remove",
    }
}

impl ChangeKind {
    /// Whether the thing belongs to the OS. An action of the plan changes it, and no written file does.
    pub fn is_of_os(self) -> bool {
        matches!(self, Self::KernelArgument | Self::KernelType | Self::Extension | Self::OsImage)
    }
}

impl ChangeOperation {
    /// The operation for a thing that differs: `old` and `new` say which of the configs declare it.
    pub(super) fn of(old: bool, new: bool) -> Self {
        match (old, new) {
            (false, _) => Self::Add,
            (true, true) => Self::Change,
            (true, false) => Self::Remove,
        }
    }
}

/// One thing that differs between two configs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// The kind of the thing.
    pub kind: ChangeKind,
    /// The name of the thing; see [`ChangeKind`].
    pub name: String,
    /// Whether it is added, changed or removed.
    pub operation: ChangeOperation,
    /// The differences, for people: `content`, `mode 0644 -> 0600`, `enabled: false -> true`.
    pub details: Vec<String>,
    /// The MachineConfig that declares it in the new config, for a removal in the old one.
    pub source: Source,
    /// Other MachineConfigs that declare parts of the difference, or of a file, directory or link that differs.
    pub others: Vec<Source>,
}

/// `what: old -> new`; `unset` for a value that is not declared.
pub(super) fn arrow(
    what: &str,
    old: Option<impl std::fmt::Display>,
    new: Option<impl std::fmt::Display>,
) -> String {
    let word = |value: Option<String>| value.unwrap_or_else(|| "unset".to_owned());
    format!("{what}: {} -> {}", word(old.map(|old| old.to_string())), word(new.map(|new| new.to_string())))
}
