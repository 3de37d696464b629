//! Which SELinux label the policy gives a path.
//!
//! In: the policy's `file_contexts` with its companions, as text. Out: the label of a path and kind of object, by the rules of
//! `selabel_file(5)`: exact names before expressions, and of several the last one. Lines that cannot be used are counted and
//! left out: one odd line must not leave a host without labels. It reads no disk.

#[cfg(test)]
mod tests;

use regex::{Regex, RegexBuilder};
use std::{
    borrow::Cow,
    path::{Component, Path},
};

/// Longest expression that is compiled, in bytes; a policy's longest ones have a few hundred.
const LONGEST: usize = 4096;

/// Memory that one expression may take when it is compiled, in bytes.
const COMPILED: usize = 1 << 20;

/// What kind of object a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Link,
    /// Device, FIFO or socket: Holdfast makes none.
    Other,
}

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

#[derive(Debug)]
struct Line {
    expression: String,
    /// What every match begins with.
    stem: String,
    /// The expression is a name as it stands.
    exact: bool,
    kind: Option<Kind>,
    /// `None` for `<<none>>`: no label is given.
    label: Option<String>,
}

impl FileContexts {
    /// Reads a policy.
    pub fn parse(texts: &Texts<'_>) -> Self {
        let mut contexts = Self::default();
        for text in [texts.policy, texts.homes, texts.local] {
            for line in meaningful(text) {
                match parse_line(line) {
                    Some(line) => contexts.lines.push(line),
                    None => contexts.unusable += 1,
                }
            }
        }
        contexts.lines.sort_by_key(|line| line.exact);
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

    /// The label of an absolute path without `.` and `..`; `None` where the policy gives none.
    pub fn label(&self, path: &Path, kind: Kind) -> Option<&str> {
        if path.components().any(|part| matches!(part, Component::CurDir | Component::ParentDir)) {
            return None;
        }
        let path = path.to_str().filter(|path| path.starts_with('/'))?;
        let path = substitute(&self.substitutions, path);
        let path = substitute(&self.substitutions_of_policy, &path);
        let fits = |line: &&Line| {
            line.kind.is_none_or(|of| of == kind) && path.starts_with(&line.stem) && line.matches(&path)
        };
        self.lines.iter().rev().find(fits)?.label.as_deref()
    }
}

impl Line {
    fn matches(&self, path: &str) -> bool {
        if self.exact {
            return self.stem == path;
        }
        compile(&self.expression).is_some_and(|expression| expression.is_match(path))
    }
}

/// The expression, for a whole path. `None` for one that this syntax does not have; the line then fits nothing.
fn compile(expression: &str) -> Option<Regex> {
    let whole = format!("^(?:{expression})$");
    RegexBuilder::new(&whole).dot_matches_new_line(true).size_limit(COMPILED).build().ok()
}

fn meaningful(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn parse_line(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (expression, kind, label) = match words[..] {
        [expression, label] => (expression, None, label),
        [expression, kind, label] => (expression, Some(parse_kind(kind)?), label),
        _ => return None,
    };
    if expression.len() > LONGEST || !expression.starts_with('/') {
        return None;
    }
    let (stem, exact) = stem(expression);
    let label = match label {
        "<<none>>" => None,
        label if label.split(':').count() >= 3 && label.is_ascii() => Some(label.to_owned()),
        _ => return None,
    };
    Some(Line { expression: expression.to_owned(), stem, exact, kind, label })
}

fn parse_kind(word: &str) -> Option<Kind> {
    Some(match word {
        "--" => Kind::File,
        "-d" => Kind::Directory,
        "-l" => Kind::Link,
        "-b" | "-c" | "-p" | "-s" => Kind::Other,
        _ => return None,
    })
}

/// What every match of an expression begins with, and whether that is all of it.
fn stem(expression: &str) -> (String, bool) {
    let mut stem = String::new();
    let mut characters = expression.chars();
    // In one branch or another nothing has to be as it stands.
    let branches = expression.contains('|') && !expression.contains('(');
    while let Some(character) = characters.next() {
        match character {
            '.' | '^' | '$' | '[' | '(' | '|' | ')' => {
                return (if branches { String::new() } else { stem }, false);
            }
            // What comes before may be there any number of times, none included.
            '?' | '*' | '+' | '{' => {
                stem.pop();
                return (if branches { String::new() } else { stem }, false);
            }
            '\\' => match characters.next() {
                // `\d`, `\w` and their like are no names.
                Some(escaped) if !escaped.is_alphanumeric() => stem.push(escaped),
                _ => return (if branches { String::new() } else { stem }, false),
            },
            other => stem.push(other),
        }
    }
    (stem, true)
}

/// Replaces the first of the beginnings that fits.
fn substitute<'a>(pairs: &[(String, String)], path: &'a str) -> Cow<'a, str> {
    for (from, to) in pairs {
        if let Some(rest) = path.strip_prefix(from.as_str())
            && (rest.is_empty() || rest.starts_with('/'))
        {
            return Cow::Owned(format!("{to}{rest}"));
        }
    }
    Cow::Borrowed(path)
}
