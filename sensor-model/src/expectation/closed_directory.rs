//! What may be in a closed directory.
//!
//! In: the declared names and the exceptions. Out: whether a name must not be there.

use crate::link_exceptions::{LinkException, LinkExceptions};
use crate::name_patterns::NamePatterns;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, path::Path};

/// Names that may exist in a closed directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClosedDirectoryExpectation {
    /// Declared names (file names, no paths), sorted.
    pub names: Vec<String>,
    /// Only names with this ending are compared (`.conf` in a drop-in directory); null means all are.
    pub suffix: Option<Cow<'static, str>>,
    /// Only names that one of these globs matches are compared; empty means all are.
    #[serde(default, skip_serializing_if = "NamePatterns::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub only: NamePatterns,
    /// Whether an undeclared name is reported as an undeclared ssh key rather than a file.
    pub ssh_keys: bool,
    /// Names that may be there besides, as globs.
    #[serde(default, skip_serializing_if = "NamePatterns::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub except: NamePatterns,
    /// Symbolic links that may be there besides, by name and target.
    #[serde(default, skip_serializing_if = "LinkExceptions::is_empty")]
    #[schemars(with = "Vec<LinkException>")]
    pub except_links: LinkExceptions,
}

impl ClosedDirectoryExpectation {
    /// Whether a name must not be in the directory, if it is not one of the [excepted links](Self::is_excepted_link). It is strict for a
    /// caller that does not know what is at the name.
    pub fn is_unexpected(&self, name: &str) -> bool {
        let is_compared = self.suffix.as_deref().is_none_or(|suffix| name.ends_with(suffix))
            && (self.only.is_empty() || self.only.matches(name));
        is_compared
            && self.names.binary_search_by(|declared| declared.as_str().cmp(name)).is_err()
            && !self.except.matches(name)
    }

    /// Whether a symbolic link with this name may be in the directory because of its target. `target` reads the target, and gives `None`
    /// if another object is at the name. It is called only if an exception is about the name.
    pub fn is_excepted_link<T: AsRef<Path>>(&self, name: &str, target: impl FnOnce() -> Option<T>) -> bool {
        self.except_links.has_name(name)
            && target().is_some_and(|target| self.except_links.matches(name, target.as_ref()))
    }
}
