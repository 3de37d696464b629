//! Patterns of single names.
//!
//! In: globs, in which `*` matches any part of a name. Out: whether a name matches one of the globs. The patterns are serialised as a
//! list of texts.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};

/// Patterns of names.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct NamePatterns {
    patterns: Vec<String>,
    globs: GlobSet,
}

/// Why a text is no pattern of a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamePatternFault {
    /// No name is empty, `.` or `..`, and none has a slash.
    #[error("{0:?} is not a name: a name is not empty, not . or .., and has no /")]
    NotAName(String),
    /// A link without a target does not exist.
    #[error("the target of a link is not empty; `**` matches every target")]
    EmptyTarget,
    /// The glob cannot be read.
    #[error("{0}")]
    Glob(globset::ErrorKind),
}

impl NamePatterns {
    /// These patterns.
    ///
    /// # Errors
    /// The number of the first pattern that is none, and why.
    pub fn new(patterns: Vec<String>) -> Result<Self, (usize, NamePatternFault)> {
        let mut globs = GlobSetBuilder::new();
        for (number, pattern) in patterns.iter().enumerate() {
            check_name(pattern).map_err(|fault| (number, fault))?;
            let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
            globs.add(glob.map_err(|error| (number, NamePatternFault::Glob(error.kind().clone())))?);
        }
        let last = patterns.len();
        let globs = globs.build().map_err(|error| (last, NamePatternFault::Glob(error.kind().clone())))?;
        Ok(Self { patterns, globs })
    }

    /// Whether a name matches one of them.
    pub fn matches(&self, name: &str) -> bool {
        !self.patterns.is_empty() && self.globs.is_match(name)
    }

    /// The patterns, in their order.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }
}

/// A glob of names must be one that a name can match.
pub(crate) fn check_name(pattern: &str) -> Result<(), NamePatternFault> {
    if matches!(pattern, "" | "." | "..") || pattern.contains('/') {
        return Err(NamePatternFault::NotAName(pattern.to_owned()));
    }
    Ok(())
}

/// Patterns that cannot be read match nothing: the policy's own check refused them.
impl From<Vec<String>> for NamePatterns {
    fn from(patterns: Vec<String>) -> Self {
        Self::new(patterns).unwrap_or_default()
    }
}

impl From<NamePatterns> for Vec<String> {
    fn from(patterns: NamePatterns) -> Self {
        patterns.patterns
    }
}

impl PartialEq for NamePatterns {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for NamePatterns {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names() {
        let patterns = NamePatterns::new(vec!["README".to_owned(), "*.rpm{save,new}".to_owned()]).unwrap();
        for (name, matches) in [("README", true), ("a.rpmsave", true), ("READMES", false), ("a.rpm", false)] {
            assert_eq!(patterns.matches(name), matches, "{name}");
        }
        assert!(!NamePatterns::default().matches(""));
    }

    #[test]
    fn what_can_be_no_name_is_refused_with_its_number() {
        for pattern in ["", ".", "..", "a/b", "/", "[a"] {
            let (number, _) = NamePatterns::new(vec!["a".to_owned(), pattern.to_owned()]).unwrap_err();
            assert_eq!(number, 1, "{pattern}");
        }
    }
}
