//! Finds the rule for a path.
//!
//! In: paths of rules that `parse` has checked, by their numbers. Out: the number of the rule that applies to a path. A pattern that cannot be
//! compiled matches nothing.

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use std::{cmp::Reverse, collections::BTreeMap, os::unix::ffi::OsStrExt as _, path::Path};

/// The characters that make a pattern a glob.
pub(super) const WILDCARDS: [char; 5] = ['*', '?', '[', '{', '\\'];

/// Kind of a rule's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    Exact,
    Directory,
    /// With the length of the part before its first wildcard.
    Glob(usize),
}

impl Pattern {
    pub(super) fn of(path: &str) -> Self {
        match path.find(WILDCARDS) {
            Some(fixed) => Self::Glob(fixed),
            None if path.ends_with('/') => Self::Directory,
            None => Self::Exact,
        }
    }
}

/// How precisely the path of a rule names a path: the length of the part before its first wildcard, then whether it is a glob, then the length of
/// the glob. The larger one applies.
pub(super) fn precision(path: &str) -> (usize, bool, usize) {
    match Pattern::of(path) {
        Pattern::Exact | Pattern::Directory => (path.len(), false, 0),
        Pattern::Glob(fixed) => (fixed, true, path.len()),
    }
}

/// Whether the path of a rule names directories of the root directory, or all directories in one of them. `/etc/` is half of `/etc/cron.d/`, and a
/// person may forget the other half.
pub fn names_top_directories(path: &str) -> bool {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    match names[..] {
        [_, below] => below.chars().all(|character| matches!(character, '*' | '?')),
        _ => names.len() < 2,
    }
}

/// A glob in which `*` matches within one name and `**` across names.
pub(super) fn glob(pattern: &str) -> Result<Glob, globset::ErrorKind> {
    GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|error| error.kind().clone())
}

/// The rules of one kind, found by a path.
#[derive(Debug, Clone, Default)]
pub(super) struct PathRules {
    exact: BTreeMap<String, usize>,
    /// Paths of directory rules, the longest first.
    directories: Vec<(String, usize)>,
    globs: GlobSet,
    /// The rule of each glob in `globs`.
    glob_rules: Vec<(String, usize)>,
}

impl PathRules {
    /// `rules`: the path and the number of each.
    pub(super) fn of<'a>(rules: impl Iterator<Item = (&'a str, usize)>) -> Self {
        let mut found = Self::default();
        let mut globs = GlobSetBuilder::new();
        for (path, number) in rules {
            match Pattern::of(path) {
                Pattern::Exact => {
                    found.exact.insert(path.to_owned(), number);
                }
                Pattern::Directory => found.directories.push((path.to_owned(), number)),
                Pattern::Glob(_) => {
                    if let Ok(glob) = glob(path) {
                        globs.add(glob);
                        found.glob_rules.push((path.to_owned(), number));
                    }
                }
            }
        }
        found.directories.sort_by_key(|(path, _)| Reverse(path.len()));
        found.globs = globs.build().unwrap_or_default();
        found
    }

    /// Number of the rule that applies, by the order in the documentation of `drift_policy`.
    pub(super) fn rule_for(&self, path: &Path) -> Option<usize> {
        if let Some(number) = path.to_str().and_then(|path| self.exact.get(path)) {
            return Some(*number);
        }
        let bytes = path.as_os_str().as_bytes();
        let contains = |directory: &str| {
            let prefix = directory.as_bytes();
            // The rule also applies to the directory itself.
            bytes.starts_with(prefix) || bytes == &prefix[..prefix.len() - 1]
        };
        let directory = self.directories.iter().find(|(directory, _)| contains(directory));
        let globs = self.globs.matches(path).into_iter().filter_map(|at| self.glob_rules.get(at));
        // Among equal globs the order of their texts decides.
        let best = globs.chain(directory).max_by_key(|(path, number)| (precision(path), Reverse(*number)));
        best.map(|(_, number)| *number)
    }
}
