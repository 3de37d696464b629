//! Finds the rule for a path, and decides whether a rule allows an actor.
//!
//! In: patterns that `parse` has checked. A pattern that cannot be compiled matches nothing.

use super::{AllowedActors, DriftPolicy, PolicyActor, Rule};
use globset::{Glob, GlobBuilder, GlobSetBuilder};
use std::{os::unix::ffi::OsStrExt as _, path::Path};

/// The characters that make a pattern a glob.
const WILDCARDS: [char; 5] = ['*', '?', '[', '{', '\\'];

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

/// A glob in which `*` matches within one name and `**` across names.
pub(super) fn glob(pattern: &str) -> Result<Glob, globset::ErrorKind> {
    GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|error| error.kind().clone())
}

impl DriftPolicy {
    pub(super) fn index(rules: Vec<(Rule, String)>) -> Self {
        let mut policy = Self { rules, ..Self::default() };
        let mut globs = GlobSetBuilder::new();
        for (number, (rule, _)) in policy.rules.iter().enumerate() {
            if rule.closed {
                policy.closed.insert(rule.path.clone(), number);
                continue;
            }
            match Pattern::of(&rule.path) {
                Pattern::Exact => {
                    policy.exact.insert(rule.path.clone(), number);
                }
                Pattern::Directory => policy.directories.push(number),
                Pattern::Glob(_) => {
                    if let Ok(glob) = glob(&rule.path) {
                        globs.add(glob);
                        policy.glob_rules.push(number);
                    }
                }
            }
        }
        policy.directories.sort_by_key(|number| std::cmp::Reverse(policy.rules[*number].0.path.len()));
        policy.globs = globs.build().unwrap_or_default();
        policy
    }

    /// Number of the rule that applies, by the order in the documentation of `drift_policy`.
    pub(super) fn rule_for(&self, path: &Path) -> Option<usize> {
        if let Some(number) = path.to_str().and_then(|path| self.exact.get(path)) {
            return Some(*number);
        }
        let bytes = path.as_os_str().as_bytes();
        let directory = self
            .directories
            .iter()
            .copied()
            .find(|number| {
                let prefix = self.rules[*number].0.path.as_bytes();
                // The rule also applies to the directory itself.
                bytes.starts_with(prefix) || bytes == &prefix[..prefix.len() - 1]
            })
            .map(|number| ((self.rules[number].0.path.len(), false, 0), number));
        let glob = self.globs.matches(path).into_iter().filter_map(|at| {
            let number = *self.glob_rules.get(at)?;
            let pattern = &self.rules[number].0.path;
            let Pattern::Glob(fixed) = Pattern::of(pattern) else { return None };
            Some(((fixed, true, pattern.len()), number))
        });
        // Among equal globs the order of their texts decides.
        glob.chain(directory)
            .max_by_key(|(rank, number)| (*rank, std::cmp::Reverse(*number)))
            .map(|(_, number)| number)
    }
}

impl Rule {
    /// The directory that the path names; `None` for a glob, and for a path without `/` at its end.
    pub fn directory(&self) -> Option<&Path> {
        (Pattern::of(&self.path) == Pattern::Directory)
            .then(|| Path::new(self.path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or("/")))
    }
}

impl AllowedActors {
    /// Whether any entry matches the actor. Holdfast itself is always allowed.
    pub fn allow(&self, subject: &PolicyActor<'_>) -> bool {
        subject.holdfast
            || any(&self.units, subject.unit)
            || any(&self.exes, subject.exe)
            || any(&self.pods, subject.pod)
            || any(&self.pods, subject.pod_uid)
            || subject.user.is_some_and(|user| self.users.iter().any(|allowed| allowed == user))
    }
}

fn any(patterns: &[String], value: Option<&str>) -> bool {
    let Some(value) = value else { return false };
    patterns.iter().any(|pattern| {
        pattern == value
            || (pattern.contains(WILDCARDS)
                && glob(pattern).is_ok_and(|glob| glob.compile_matcher().is_match(value)))
    })
}
