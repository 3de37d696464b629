//! Indexes the rules of a policy, and decides whether a rule allows an actor.
//!
//! In: rules that `parse` has checked. Out: the rules by what they decide about.

use super::{
    AllowedActors, DriftPolicy, PolicyActor, Rule, RuleKind,
    path_rules::{PathRules, Pattern, WILDCARDS, glob, precision},
};
use globset::GlobMatcher;
use std::cell::OnceCell;
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
        precision(&self.path)
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
    patterns.iter().any(|pattern| ActorPattern::of(pattern).matches(value))
}

/// Names and globs of actors of one kind, for comparisons with many values.
#[derive(Debug)]
pub struct ActorPatterns<'a>(Vec<ActorPattern<'a>>);

impl<'a> ActorPatterns<'a> {
    /// These patterns. Nothing is compiled yet.
    pub fn of(patterns: &'a [String]) -> Self {
        Self(patterns.iter().map(|pattern| ActorPattern::of(pattern)).collect())
    }

    /// Whether one of them matches.
    pub fn matches(&self, value: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(value))
    }
}

/// A name, or a glob that is compiled once, for the first value that has its fixed beginning: to compile it takes longer than most comparisons.
#[derive(Debug)]
struct ActorPattern<'a> {
    text: &'a str,
    /// The part before the first wildcard; `None` if there is none.
    fixed: Option<&'a str>,
    compiled: OnceCell<Option<GlobMatcher>>,
}

impl<'a> ActorPattern<'a> {
    fn of(text: &'a str) -> Self {
        let fixed = text.find(WILDCARDS).map(|length| &text[..length]);
        Self { text, fixed, compiled: OnceCell::new() }
    }

    fn matches(&self, value: &str) -> bool {
        let compiled = || glob(self.text).ok().map(|glob| glob.compile_matcher());
        self.text == value
            || self.fixed.is_some_and(|fixed| value.starts_with(fixed))
                && self.compiled.get_or_init(compiled).as_ref().is_some_and(|glob| glob.is_match(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_is_compiled_once_and_only_for_values_with_its_fixed_beginning() {
        let texts = ["team/agent-*", "team/web", "other/x-[ab]", "{kube,my}-system/*", "*/agent-x", "a/\\*"];
        let texts = texts.map(str::to_owned);
        let patterns = ActorPatterns::of(&texts);
        let compiled = || {
            patterns
                .0
                .iter()
                .filter(|one| one.compiled.get().is_some())
                .map(|one| one.text)
                .collect::<Vec<_>>()
        };
        assert!(patterns.matches("team/web"));
        assert_eq!(compiled(), Vec::<&str>::new(), "a name needs no glob");
        for (value, is_allowed) in [
            ("team/agent-1", true),
            ("team/agent", false),
            ("team/agent-1/x", false),
            ("others/x-a", false),
            ("kube-system/etcd", true),
            ("us-system/etcd", false),
            ("b/agent-x", true),
            ("a/*", true),
            ("a/b", false),
            ("team/agent-*", true),
            ("", false),
        ] {
            assert_eq!(patterns.matches(value), is_allowed, "{value}");
            let named = AllowedActors { pods: texts.to_vec(), ..AllowedActors::default() };
            let subject = PolicyActor { pod: Some(value), ..PolicyActor::default() };
            assert_eq!(named.allow(&subject), is_allowed, "{value}");
        }
        assert!(!compiled().contains(&"other/x-[ab]"), "{:?}", compiled());
        assert!(patterns.matches("other/x-b") && !patterns.matches("other/x-c"));
        assert_eq!(compiled().len(), 5);
    }
}
