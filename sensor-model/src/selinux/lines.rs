//! Lines of `file_contexts`.
//!
//! In: a line. Out: what every path that it fits begins with, the label, and whether it fits a path; or that this cannot be
//! told.

use regex::bytes::{Regex, RegexBuilder};
use std::cell::OnceCell;

/// Longest expression that is compiled, in bytes; a policy's longest ones have a few hundred.
const LONGEST: usize = 4096;

/// Memory that one expression may take when it is compiled, in bytes.
const COMPILED: usize = 1 << 20;

/// What the policy's own syntax means by a repetition that gives nothing back, and ours by a repetition of a repetition.
const POSSESSIVE: [&str; 4] = ["*+", "++", "?+", "}+"];

/// What kind of object a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// Whether a line is about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    Yes,
    No,
    /// The line cannot be used, and could have been about it.
    Unknown,
}

/// A line with an expression.
#[derive(Debug)]
pub(super) struct Line {
    expression: String,
    /// What every match begins with.
    pub(super) stem: String,
    /// The expression is a name as it stands.
    exact: bool,
    kind: Option<Kind>,
    gives: Gives,
}

/// What a line gives.
#[derive(Debug)]
enum Gives {
    Label(String),
    /// `<<none>>`.
    Nothing,
    /// It has an expression, and what comes after that is not what it should be.
    Unreadable,
}

impl Line {
    /// `None` for a line that can be about no absolute path.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let expression = words.next()?;
        let (stem, exact) = stem(expression);
        if expression.starts_with(|first: char| first != '/' && (exact || first.is_alphanumeric())) {
            return None;
        }
        let rest: Vec<&str> = words.collect();
        let read = match rest[..] {
            [label] => parse_label(label).map(|gives| (None, gives)),
            [kind, label] => {
                parse_kind(kind).and_then(|kind| parse_label(label).map(|gives| (Some(kind), gives)))
            }
            _ => None,
        };
        let (kind, gives) = read.unwrap_or((None, Gives::Unreadable));
        Some(Self { expression: expression.to_owned(), stem, exact, kind, gives })
    }

    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    pub(super) fn is_unusable(&self) -> bool {
        matches!(self.gives, Gives::Unreadable) || (self.expression.len() > LONGEST && !self.exact)
    }

    pub(super) fn is_about(&self, kind: Kind) -> bool {
        self.kind.is_none_or(|of| of == kind)
    }

    pub(super) fn label(&self) -> Option<&str> {
        match &self.gives {
            Gives::Label(label) => Some(label),
            Gives::Nothing | Gives::Unreadable => None,
        }
    }

    /// Whether a path that begins with the stem fits. The expression is kept in `compiled` for the next path.
    pub(super) fn fit(&self, path: &str, compiled: &OnceCell<Option<Regex>>) -> Fit {
        if self.exact {
            return if self.stem == path { Fit::Yes } else { Fit::No };
        }
        match compiled.get_or_init(|| compile(&self.expression)) {
            Some(expression) if expression.is_match(path.as_bytes()) => Fit::Yes,
            Some(_) => Fit::No,
            None => Fit::Unknown,
        }
    }
}

/// The expression, for a whole path, as bytes: that is how the policy's own library reads it, which puts no group around it
/// either. `None` for one that this syntax does not have, or means otherwise.
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

fn parse_label(word: &str) -> Option<Gives> {
    match word {
        "<<none>>" => Some(Gives::Nothing),
        label if label.split(':').count() >= 3 && label.is_ascii() => Some(Gives::Label(label.to_owned())),
        _ => None,
    }
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
            // What comes before may be there any number of times, none included.
            '?' | '*' | '+' | '{' => {
                stem.pop();
                return (stem, false);
            }
            '\\' => match characters.next() {
                // `\d`, `\w` and their like are no names.
                Some(escaped) if !escaped.is_alphanumeric() => stem.push(escaped),
                _ => return (stem, false),
            },
            other => stem.push(other),
        }
    }
    (stem, true)
}

/// Whether an expression has branches that nothing encloses: in one or another of them nothing has to be as it stands.
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

/// Skips a class of characters, in which nothing else has a meaning.
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
