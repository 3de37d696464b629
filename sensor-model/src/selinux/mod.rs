//! The SELinux label that the policy gives a path, and whether a found label is acceptable.
//!
//! In: the texts of the policy's `file_contexts` files. Out: the labels of many paths and kinds of object at once. The rules are
//! those of `selabel_file(5)`: exact names before expressions, and of several the last one. If a line cannot be used, only the
//! paths that it may match have no label: nothing is guessed. It reads no disk.

#[cfg(test)]
mod tests;

mod lines;

pub use lines::ObjectKind;

use lines::{Line, Match, meaningful};
use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::BTreeSet,
    path::{Component, Path},
};

/// The attribute that holds a label.
pub const ATTRIBUTE: &str = "security.selinux";

/// The texts of a policy; empty for a file that the host does not have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Texts<'a> {
    /// `file_contexts`.
    pub policy: &'a str,
    /// `file_contexts.homedirs`.
    pub homes: &'a str,
    /// `file_contexts.local`.
    pub local: &'a str,
    /// `file_contexts.subs_dist`.
    pub substitutions_of_policy: &'a str,
    /// `file_contexts.subs`.
    pub substitutions: &'a str,
}

/// The labels of a policy.
#[derive(Debug, Default)]
pub struct FileContexts {
    /// Expressions, then exact names; a later line has priority.
    lines: Vec<Line>,
    substitutions: Vec<(String, String)>,
    substitutions_of_policy: Vec<(String, String)>,
    unusable: usize,
}

/// A path whose label is wanted.
#[derive(Debug)]
struct Query<'a> {
    path: Cow<'a, str>,
    kind: ObjectKind,
    /// Its index in the result.
    index: usize,
    decided: bool,
}

impl FileContexts {
    /// Reads a policy.
    pub fn parse(texts: &Texts<'_>) -> Self {
        let mut contexts = Self::default();
        for text in [texts.policy, texts.homes, texts.local] {
            for line in meaningful(text).map(Line::parse) {
                contexts.unusable += usize::from(line.is_none_or(|line| {
                    let is_unusable = line.is_unusable();
                    contexts.lines.push(line);
                    is_unusable
                }));
            }
        }
        contexts.lines.sort_by_key(Line::is_exact);
        contexts.substitutions = contexts.pairs(texts.substitutions);
        contexts.substitutions_of_policy = contexts.pairs(texts.substitutions_of_policy);
        contexts
    }

    fn pairs(&mut self, text: &str) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for line in meaningful(text) {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(from), Some(to), None) if from.starts_with('/') && to.starts_with('/') => {
                    pairs.push((from.trim_end_matches('/').to_owned(), to.trim_end_matches('/').to_owned()));
                }
                _ => self.unusable += 1,
            }
        }
        pairs
    }

    /// The number of lines that could not be read. Expressions that do not compile are not included, since they are compiled only
    /// when needed.
    pub fn unusable(&self) -> usize {
        self.unusable
    }

    /// The labels of absolute paths without `.` and `..`, in their order. `None` if the policy gives none, or if an unusable line
    /// might give one.
    ///
    /// Each expression is compiled at most once and dropped before the next one. So thousands of paths need little more time than
    /// one, and no lasting memory.
    pub fn labels(&self, of: &[(&Path, ObjectKind)]) -> Vec<Option<&str>> {
        let mut labels = vec![None; of.len()];
        let mut queries: Vec<Query<'_>> =
            (0..).zip(of).filter_map(|(index, (path, kind))| self.query(path, *kind, index)).collect();
        queries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        let mut open = queries.len();
        for line in self.lines.iter().rev() {
            if open == 0 {
                break;
            }
            // All paths that a line can match begin with its stem, so they are adjacent.
            let first = queries.partition_point(|query| *query.path < *line.stem);
            let compiled = OnceCell::new();
            for query in &mut queries[first..] {
                if !query.path.starts_with(&line.stem) {
                    break;
                }
                if query.decided || !line.is_about(query.kind) {
                    continue;
                }
                let label = match line.matches(&query.path, &compiled) {
                    Match::No => continue,
                    Match::Yes => line.label(),
                    Match::Unknown => None,
                };
                labels[query.index] = label;
                query.decided = true;
                open -= 1;
            }
        }
        labels
    }

    fn query<'a>(&self, path: &'a Path, kind: ObjectKind, index: usize) -> Option<Query<'a>> {
        if path.components().any(|part| matches!(part, Component::CurDir | Component::ParentDir)) {
            return None;
        }
        let path = path.to_str().filter(|path| path.starts_with('/'))?;
        let path = substitute(&self.substitutions, Cow::Borrowed(path));
        let path = substitute(&self.substitutions_of_policy, path);
        Some(Query { path, kind, index, decided: false })
    }
}

/// The types in a policy's `customizable_types`. Administrators may give them to files, and `restorecon` keeps them.
pub fn customizable(text: &str) -> BTreeSet<String> {
    meaningful(text).map(str::to_owned).collect()
}

/// The type of a label, its third part.
fn type_of(label: &str) -> Option<&str> {
    label.split(':').nth(2)
}

/// Whether a found label is acceptable: it has the type of the policy's label, or a customizable type. User, role and range are
/// not compared, since they depend on the process that created the object.
pub fn is_as_good(policy_label: &str, found: Option<&str>, customizable: &BTreeSet<String>) -> bool {
    let Some(found) = found.and_then(type_of) else { return false };
    type_of(policy_label) == Some(found) || customizable.contains(found)
}

/// The label to set on an object with the label `found`. An acceptable `found` stays; another one gets the policy's type. If
/// `found` is none or invalid, it is the policy's label.
pub fn given(policy_label: &str, found: Option<&str>, customizable: &BTreeSet<String>) -> String {
    let Some(found) = found else { return policy_label.to_owned() };
    if is_as_good(policy_label, Some(found), customizable) {
        return found.to_owned();
    }
    let mut parts = found.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), type_of(policy_label)) {
        (Some(user), Some(role), Some(_), Some(type_)) => {
            let range = parts.next().map_or_else(String::new, |range| format!(":{range}"));
            format!("{user}:{role}:{type_}{range}")
        }
        _ => policy_label.to_owned(),
    }
}

/// Replaces the beginning of a path by the first matching substitution.
fn substitute<'a>(pairs: &[(String, String)], path: Cow<'a, str>) -> Cow<'a, str> {
    for (from, to) in pairs {
        if let Some(rest) = path.strip_prefix(from.as_str())
            && (rest.is_empty() || rest.starts_with('/'))
        {
            return Cow::Owned(format!("{to}{rest}"));
        }
    }
    path
}
