//! Finds the pattern that decides for a path or a name.
//!
//! In: patterns that `parse` has checked, each with the number of its entry. Out: the number of the entry that decides.

use super::error::PatternError;
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use std::collections::HashMap;

/// The characters that make a pattern a glob. The backslash is not one of them, since unit names contain it.
const WILDCARDS: [char; 4] = ['*', '?', '[', '{'];

/// Whether a pattern is a glob.
pub(super) fn is_glob(pattern: &str) -> bool {
    pattern.contains(WILDCARDS)
}

/// A glob in which `*` matches within one name and `**` across names.
pub(super) fn glob(pattern: &str) -> Result<Glob, PatternError> {
    GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(false)
        .build()
        .map_err(|error| PatternError::Glob(error.kind().clone()))
}

/// Whether a pattern (a name or a glob) fits a text.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    pattern == text
        || (is_glob(pattern) && glob(pattern).is_ok_and(|glob| glob.compile_matcher().is_match(text)))
}

/// Patterns of one subject.
#[derive(Debug, Clone, Default)]
pub(super) struct Patterns {
    exact: HashMap<String, usize>,
    globs: GlobSet,
    /// Fixed beginning, whole length and number of each glob.
    glob_numbers: Vec<(usize, usize, usize)>,
}

impl Patterns {
    pub(super) fn new<'a>(patterns: impl Iterator<Item = (&'a str, usize)>) -> Self {
        let mut found = Self::default();
        let mut globs = GlobSetBuilder::new();
        for (pattern, number) in patterns {
            match pattern.find(WILDCARDS) {
                None => {
                    found.exact.insert(pattern.to_owned(), number);
                }
                Some(fixed) => {
                    if let Ok(glob) = glob(pattern) {
                        globs.add(glob);
                        found.glob_numbers.push((fixed, pattern.len(), number));
                    }
                }
            }
        }
        found.globs = globs.build().unwrap_or_default();
        found
    }

    /// The entry for a path: itself, a directory above it, or a glob.
    pub(super) fn path(&self, path: &str) -> Option<usize> {
        if let Some(number) = self.exact.get(path) {
            return Some(*number);
        }
        let above = path.rmatch_indices('/').map(|(end, _)| &path[..end]);
        let directory = above.filter(|above| !above.is_empty()).find_map(|above| {
            // With the separator, since every path below begins with it.
            self.exact.get(above).map(|number| ((above.len() + 1, 0, 0), *number))
        });
        let root = || self.exact.get("/").map(|number| ((1, 0, 0), *number));
        best(directory.or_else(root).into_iter().chain(self.glob(path)))
    }

    /// The entry for a name.
    pub(super) fn name(&self, name: &str) -> Option<usize> {
        self.exact.get(name).copied().or_else(|| best(self.glob(name)))
    }

    fn glob(&self, text: &str) -> impl Iterator<Item = ((usize, usize, usize), usize)> {
        // Matching against an empty set would copy and normalise the path.
        let matches = if self.globs.is_empty() { Vec::new() } else { self.globs.matches(text) };
        matches
            .into_iter()
            .filter_map(|at| self.glob_numbers.get(at))
            .map(|(fixed, length, number)| ((*fixed, 1, *length), *number))
    }
}

/// The entry of the highest rank; among equals the one with the lowest number.
fn best(ranked: impl Iterator<Item = ((usize, usize, usize), usize)>) -> Option<usize> {
    ranked.max_by_key(|(rank, number)| (*rank, std::cmp::Reverse(*number))).map(|(_, number)| number)
}
