//! Indexes the rules of a policy, and decides whether a rule allows an actor.
//!
//! In: rules that `parse` has checked. Out: the rules by what they decide about.

use super::{
    AllowedActors, DriftPolicy, PolicyActor, Rule, RuleKind,
    path_rules::{PathRules, Pattern, WILDCARDS, glob},
};
use std::path::{Path, PathBuf};

impl DriftPolicy {
    pub(super) fn index(rules: Vec<(Rule, String)>) -> Self {
        let of_kind = |kind: RuleKind| {
            let numbered = rules.iter().enumerate().filter(move |(_, (rule, _))| rule.kind() == kind);
            numbered.map(|(number, (rule, _))| (rule.path.as_str(), number))
        };
        // No path has a rule of both kinds: one has `/` at its end or a wildcard, and the other does not.
        let undeclared = of_kind(RuleKind::Closed).chain(of_kind(RuleKind::Absent));
        let undeclared = undeclared.map(|(path, number)| (path.to_owned(), number)).collect();
        let declared = PathRules::of(of_kind(RuleKind::Declared));
        let image = PathRules::of(of_kind(RuleKind::Image));
        Self { rules, declared, undeclared, image }
    }
}

impl Rule {
    /// What it decides about. `parse` refuses a rule of two kinds.
    pub fn kind(&self) -> RuleKind {
        match self {
            Self { closed: true, .. } => RuleKind::Closed,
            Self { absent: true, .. } => RuleKind::Absent,
            Self { image: true, .. } => RuleKind::Image,
            _ => RuleKind::Declared,
        }
    }
}

impl Rule {
    /// The directory that the path names; `None` for a glob, and for a path without `/` at its end.
    pub fn directory(&self) -> Option<&Path> {
        (Pattern::of(&self.path) == Pattern::Directory)
            .then(|| Path::new(self.path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or("/")))
    }
}

impl Rule {
    /// How precisely it names a directory. Of two rules for one directory the more precise one applies: the one with the longer part before its
    /// first wildcard, and between equals the glob.
    pub(crate) fn precision(&self) -> (usize, bool, usize) {
        match Pattern::of(&self.path) {
            Pattern::Exact | Pattern::Directory => (self.path.len(), false, 0),
            Pattern::Glob(fixed) => (fixed, true, self.path.len()),
        }
    }

    /// The path that it names; of a glob the directory before its first wildcard.
    pub(super) fn fixed_path(&self) -> PathBuf {
        let fixed = match Pattern::of(&self.path) {
            Pattern::Exact | Pattern::Directory => self.path.as_str(),
            Pattern::Glob(length) => {
                self.path[..length].rsplit_once('/').map_or("/", |(directory, _)| directory)
            }
        };
        let fixed = fixed.strip_suffix('/').unwrap_or(fixed);
        PathBuf::from(if fixed.is_empty() { "/" } else { fixed })
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
