//! Lines of `file_contexts`.
//!
//! In: a line. Out: the fixed beginning of every matching path, the label, and whether a path matches, which may be unknown.

use regex::bytes::{Regex, RegexBuilder};
use std::cell::OnceCell;

/// Longest expression that is compiled, in bytes; a policy's longest ones have a few hundred.
const LONGEST: usize = 4096;

/// Most memory of a compiled expression, in bytes.
const COMPILED: usize = 1 << 20;

/// Possessive repetitions of the policy's syntax (PCRE), which the `regex` crate reads as a repetition of a repetition.
const POSSESSIVE: [&str; 4] = ["*+", "++", "?+", "}+"];

/// The kind of object that a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Link,
    /// Device, FIFO or socket, which Holdfast never creates.
    Other,
}

/// Whether a line matches a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    Yes,
    No,
    /// The line cannot be used, and it might match.
    Unknown,
}

/// A line with an expression.
#[derive(Debug)]
pub(super) struct Line {
    expression: String,
    /// The fixed beginning of every match.
    pub(super) stem: String,
    /// The expression is a plain name.
    exact: bool,
    kind: Option<ObjectKind>,
    label: LineLabel,
}

/// The label of a line.
#[derive(Debug)]
enum LineLabel {
    Label(String),
    /// `<<none>>`.
    Nothing,
    /// The text after the expression is invalid.
    Unreadable,
}

impl Line {
    /// `None` for a line that can match no absolute path.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let expression = words.next()?;
        let (stem, exact) = stem(expression);
        if expression.starts_with(|first: char| first != '/' && (exact || first.is_alphanumeric())) {
            return None;
        }
        let rest: Vec<&str> = words.collect();
        let read = match rest[..] {
            [label] => parse_label(label).map(|label| (None, label)),
            [kind, label] => {
                parse_kind(kind).and_then(|kind| parse_label(label).map(|label| (Some(kind), label)))
            }
            _ => None,
        };
        let (kind, label) = read.unwrap_or((None, LineLabel::Unreadable));
        Some(Self { expression: expression.to_owned(), stem, exact, kind, label })
    }

    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    pub(super) fn is_unusable(&self) -> bool {
        matches!(self.label, LineLabel::Unreadable) || (self.expression.len() > LONGEST && !self.exact)
    }

    pub(super) fn is_about(&self, kind: ObjectKind) -> bool {
        self.kind.is_none_or(|of| of == kind)
    }

    pub(super) fn label(&self) -> Option<&str> {
        match &self.label {
            LineLabel::Label(label) => Some(label),
            LineLabel::Nothing | LineLabel::Unreadable => None,
        }
    }

    /// Whether a path that begins with the stem matches. `compiled` keeps the expression for the next path.
    pub(super) fn matches(&self, path: &str, compiled: &OnceCell<Option<Regex>>) -> Match {
        if self.exact {
            return if self.stem == path { Match::Yes } else { Match::No };
        }
        match compiled.get_or_init(|| compile(&self.expression)) {
            Some(expression) if expression.is_match(path.as_bytes()) => Match::Yes,
            Some(_) => Match::No,
            None => Match::Unknown,
        }
    }
}

/// Compiles the expression for a whole path, as bytes. Like libselinux it adds `^` and `$` without a group around the expression.
/// `None` for an expression that the `regex` crate does not have, or reads in another way.
pub(super) fn compile(expression: &str) -> Option<Regex> {
    if expression.len() > LONGEST || POSSESSIVE.iter().any(|repetition| expression.contains(repetition)) {
        return None;
    }
    let whole = format!("^{expression}$");
    RegexBuilder::new(&whole).unicode(false).dot_matches_new_line(true).size_limit(COMPILED).build().ok()
}

pub(super) fn meaningful(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn parse_label(word: &str) -> Option<LineLabel> {
    match word {
        "<<none>>" => Some(LineLabel::Nothing),
        label if label.split(':').count() >= 3 && label.is_ascii() => {
            Some(LineLabel::Label(label.to_owned()))
        }
        _ => None,
    }
}

fn parse_kind(word: &str) -> Option<ObjectKind> {
    Some(match word {
        "--" => ObjectKind::File,
        "-d" => ObjectKind::Directory,
        "-l" => ObjectKind::Link,
        "-b" | "-c" | "-p" | "-s" => ObjectKind::Other,
        _ => return None,
    })
}

/// The fixed beginning of every match of an expression, and whether the expression is a plain name.
pub(super) fn stem(expression: &str) -> (String, bool) {
    let mut stem = String::new();
    let mut characters = expression.chars();
    if has_branches(expression) {
        return (stem, false);
    }
    while let Some(character) = characters.next() {
        match character {
            '.' | '^' | '$' | '[' | '(' | '|' | ')' => {
                return (stem, false);
            }
            // The character before it may be absent.
            '?' | '*' | '+' | '{' => {
                stem.pop();
                return (stem, false);
            }
            '\\' => match characters.next() {
                // `\d`, `\w` and others are classes.
                Some(escaped) if !escaped.is_alphanumeric() => stem.push(escaped),
                _ => return (stem, false),
            },
            other => stem.push(other),
        }
    }
    (stem, true)
}

/// Whether an expression has `|` outside of groups: then no beginning is fixed.
fn has_branches(expression: &str) -> bool {
    let mut depth = 0_usize;
    let mut characters = expression.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            '[' => skip_class(&mut characters),
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// Skips a class of characters, in which other special characters have no meaning.
fn skip_class(characters: &mut std::str::Chars<'_>) {
    let mut is_first = true;
    while let Some(character) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            ']' if !is_first => return,
            _ => {}
        }
        is_first &= character == '^';
    }
}
