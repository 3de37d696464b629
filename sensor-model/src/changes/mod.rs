//! What differs between two rendered configs.
//!
//! Two merges come in; out comes one change per thing that has to become another, sorted by kind and name,
//! and every reason for which a running node cannot be brought from one to the other
//! ([`crate::reconcile`]). Contents are compared decoded. What to do about a change is not said here, and no
//! change holds a content, a key or a password hash.

mod contents;
mod objects;
mod system;
mod units;
mod users;

#[cfg(test)]
pub(crate) mod tests;

use crate::{
    expectation::Source,
    expectations::ExpectationError,
    merge::Rendered,
    reconcile::{self, Overrides},
};
use serde::{Deserialize, Serialize};

/// What kind of thing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    fn of(old: bool, new: bool) -> Self {
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

/// The outcome of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Every change, sorted by kind and name, no thing twice.
    pub changes: Vec<Change>,
    /// Why a running node cannot be brought to the new config, each reason; empty when it can.
    pub reasons: Vec<String>,
    /// Reasons that an administrator has overridden: what they name stays as it is on running nodes.
    pub overridden: Vec<String>,
}

impl Comparison {
    /// Whether a running node can be brought to the new config.
    pub fn reconcilable(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// Compares two rendered configs. A config that is missing is one that declares nothing: `None` and
/// [`Rendered::default`] are the same.
///
/// # Errors
/// A file whose merged contents cannot be decoded.
pub fn compare(
    old: Option<&Rendered>,
    new: Option<&Rendered>,
    overrides: Overrides,
) -> Result<Comparison, ExpectationError> {
    let nothing = Rendered::default();
    let (old, new) = (old.unwrap_or(&nothing), new.unwrap_or(&nothing));
    let mut changes = Vec::new();
    objects::files(old, new, &mut changes)?;
    objects::directories(old, new, &mut changes);
    objects::links(old, new, &mut changes);
    units::compare(old, new, &mut changes);
    users::compare(old, new, &mut changes);
    system::compare(old, new, &mut changes);
    changes.sort();
    let (reasons, overridden) = reconcile::reasons(old, new, overrides);
    Ok(Comparison { changes, reasons, overridden })
}

/// Every key of two maps with what each has under it, where either has it, in order.
fn pairs<'a, T>(
    old: &'a std::collections::BTreeMap<String, T>,
    new: &'a std::collections::BTreeMap<String, T>,
) -> impl Iterator<Item = (&'a str, Option<&'a T>, Option<&'a T>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let order = match (old.peek(), new.peek()) {
            (Some((a, _)), Some((b, _))) => a.cmp(b),
            (Some(_), None) => Less,
            (None, _) => Greater,
        };
        let left = if order == Greater { None } else { old.next() };
        let right = if order == Less { None } else { new.next() };
        let key = left.or(right)?.0;
        debug_assert!(order != Equal || left.is_some() && right.is_some(), "equal keys go together");
        Some((key.as_str(), left.map(|(_, value)| value), right.map(|(_, value)| value)))
    })
}

/// `old -> new`, of what may be left out.
fn arrow(what: &str, old: Option<impl std::fmt::Display>, new: Option<impl std::fmt::Display>) -> String {
    let word = |value: Option<String>| value.unwrap_or_else(|| "unset".to_owned());
    format!("{what}: {} -> {}", word(old.map(|old| old.to_string())), word(new.map(|new| new.to_string())))
}
