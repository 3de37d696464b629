//! Which SELinux label the policy gives a path, and whether a label that is found is as good.
//!
//! In: the policy's `file_contexts` with its companions, as text. Out: the labels of many paths and kinds of object at once, by
//! the rules of `selabel_file(5)`: exact names before expressions, and of several the last one. A line that cannot be used
//! costs the paths that it may be about their label, and no others: nothing is guessed. It reads no disk.

#[cfg(test)]
mod tests;

mod lines;

pub use lines::Kind;

use lines::{Fit, Line, meaningful};
use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::BTreeSet,
    path::{Component, Path},
};

/// The attribute that holds a label.
pub const ATTRIBUTE: &str = "security.selinux";

/// The texts that a policy consists of; what a host does not have is empty.
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

/// A policy's labels.
#[derive(Debug, Default)]
pub struct FileContexts {
    /// Expressions, then exact names; later ones count more.
    lines: Vec<Line>,
    substitutions: Vec<(String, String)>,
    substitutions_of_policy: Vec<(String, String)>,
    unusable: usize,
}

/// A path that is asked for.
#[derive(Debug)]
struct Asked<'a> {
    path: Cow<'a, str>,
    kind: Kind,
    /// Its place among the answers.
    place: usize,
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

    /// Lines that could not be read. Expressions are compiled only when a path may fit them.
    pub fn unusable(&self) -> usize {
        self.unusable
    }

    /// The labels of absolute paths without `.` and `..`, in their order; `None` where the policy gives none, or where a line
    /// that cannot be used might have given one.
    ///
    /// Each expression is compiled once at most and dropped before the next one, so that thousands of paths cost little
    /// more than one, and no memory that stays.
    pub fn labels(&self, of: &[(&Path, Kind)]) -> Vec<Option<&str>> {
        let mut labels = vec![None; of.len()];
        let mut asked: Vec<Asked<'_>> =
            (0..).zip(of).filter_map(|(place, (path, kind))| self.ask(path, *kind, place)).collect();
        asked.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        let mut open = asked.len();
        for line in self.lines.iter().rev() {
            if open == 0 {
                break;
            }
            // All that a line can fit begins alike, and so stands together.
            let first = asked.partition_point(|asked| *asked.path < *line.stem);
            let compiled = OnceCell::new();
            for asked in &mut asked[first..] {
                if !asked.path.starts_with(&line.stem) {
                    break;
                }
                if asked.decided || !line.is_about(asked.kind) {
                    continue;
                }
                let label = match line.fit(&asked.path, &compiled) {
                    Fit::No => continue,
                    Fit::Yes => line.label(),
                    Fit::Unknown => None,
                };
                labels[asked.place] = label;
                asked.decided = true;
                open -= 1;
            }
        }
        labels
    }

    fn ask<'a>(&self, path: &'a Path, kind: Kind, place: usize) -> Option<Asked<'a>> {
        if path.components().any(|part| matches!(part, Component::CurDir | Component::ParentDir)) {
            return None;
        }
        let path = path.to_str().filter(|path| path.starts_with('/'))?;
        let path = substitute(&self.substitutions, Cow::Borrowed(path));
        let path = substitute(&self.substitutions_of_policy, path);
        Some(Asked { path, kind, place, decided: false })
    }
}

/// The types in a policy's `customizable_types`: whoever gives a file one of them means it, and `restorecon` leaves it.
pub fn customizable(text: &str) -> BTreeSet<String> {
    meaningful(text).map(str::to_owned).collect()
}

/// The type of a label, its third part.
fn type_of(label: &str) -> Option<&str> {
    label.split(':').nth(2)
}

/// Whether a label that is found is as good as the policy's: it has its type, or one that the policy lets anybody choose.
/// User, role and range are nobody's to compare: they come from whoever made the object.
pub fn is_as_good(policys: &str, found: Option<&str>, customizable: &BTreeSet<String>) -> bool {
    let Some(found) = found.and_then(type_of) else { return false };
    type_of(policys) == Some(found) || customizable.contains(found)
}

/// The label that an object gets that has `found`: its own where that is as good, else with the policy's type in it, else the
/// policy's.
pub fn given(policys: &str, found: Option<&str>, customizable: &BTreeSet<String>) -> String {
    let Some(found) = found else { return policys.to_owned() };
    if is_as_good(policys, Some(found), customizable) {
        return found.to_owned();
    }
    let mut parts = found.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), type_of(policys)) {
        (Some(user), Some(role), Some(_), Some(type_)) => {
            let range = parts.next().map_or_else(String::new, |range| format!(":{range}"));
            format!("{user}:{role}:{type_}{range}")
        }
        _ => policys.to_owned(),
    }
}

/// Replaces the first of the beginnings that fits.
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
