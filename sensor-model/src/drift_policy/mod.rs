//! The decision about drift of a path.
//!
//! In: `DriftPolicy` files ([`DriftPolicyFile::parse`]), merged into one [`DriftPolicy`]; then a path and the actor who changed
//! it. Out: a [`DriftDecision`]. A file with a fault is refused as a whole; the error names file, rule, field and reason. Nothing
//! is read from the disk or run here.
//!
//! Which rule applies to a path:
//! 1. The rule for exactly this path.
//! 2. The rule with the longest fixed beginning that matches. For a directory (`/etc/cni/`) that is its path, for a glob
//!    (`/etc/*/tls.key`) the part before its first wildcard. Between equals the glob applies, and of two globs the longer one.
//! 3. The default: degrade, and the content is secret.
//!
//! Of two files with a rule for the same path, the one with the higher `precedence` applies. Two different rules for one path
//! at the same precedence are refused.
//!
//! A rule with `closed` decides about undeclared names in a directory, a rule with `absent` about an undeclared object at its path, and a rule
//! with `image` about what the host's image has and no config declares. The other rules decide about declared things. A path may have one rule
//! of each kind.

mod contradictions;
mod error;
mod limits;
mod matching;
mod parse;
mod path_rules;
mod rule_kind;
#[cfg(test)]
mod tests;

pub use error::{DriftPolicyError, DriftPolicyFault};
pub use limits::{ActionLimits, LimitedPolicy};
pub use matching::ActorPatterns;
pub use parse::LIST_KIND;
pub use rule_kind::RuleKind;

use crate::{
    expectation::{Expectation, ExpectationSource},
    link_exceptions::LinkExceptions,
    name_patterns::NamePatterns,
    record::Actor,
};
use path_rules::PathRules;
pub use path_rules::names_top_directories;
use sensor_protocol::names;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

names! {
    /// The action about drift, the mildest first.
    pub enum DriftAction {
        /// Nothing: no record, no metric.
        Ignore = "ignore",
        /// A record and a metric.
        Observe = "observe",
        /// Also: the node is degraded while the drift is open.
        Degrade = "degrade",
        /// Also: Holdfast restores the declared state.
        Revert = "revert",
        /// The kernel programs refuse the change. Drift that they cannot refuse degrades the node.
        Deny = "deny",
    }
}

names! {
    /// Whether labels are compared with the SELinux policy's.
    #[derive(Default)]
    pub enum LabelComparison {
        /// A label of another type is drift.
        #[default]
        Compare = "compare",
        /// They are not compared.
        Ignore = "ignore",
    }
}

/// The actors whose changes of a path only make a record. One matching entry is enough.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowedActors {
    /// systemd units by name or glob: `chronyd.service`, `crio-*.scope`.
    pub units: Vec<String>,
    /// Executables by path or glob; compared are the files that these resolve to on the host.
    pub exes: Vec<String>,
    /// Pods by uid or by `namespace/name`, the name or both as a glob.
    pub pods: Vec<String>,
    /// Login users by name, also behind `sudo`, if the process runs in the scope of their session.
    pub users: Vec<String>,
}

/// The action about drift of the paths that a pattern matches.
#[expect(clippy::struct_excessive_bools, reason = "one for each key of a rule")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// A path, a directory ending in `/`, or a glob.
    pub path: String,
    /// The action.
    pub action: DriftAction,
    /// The actors that may change it.
    pub allowed_actors: AllowedActors,
    /// Whether the content is hidden from records and outputs, diffs included.
    pub secret: bool,
    /// Whether labels are compared.
    #[serde(default)]
    pub labels: LabelComparison,
    /// The path is a directory, or a glob of directories, that may hold only declared names. The action is for the undeclared names in
    /// it. Another rule decides about declared things.
    #[serde(default)]
    pub closed: bool,
    /// Nothing may be at the path, unless something declares it. The action is for an object that is there. Another rule decides about
    /// a declared thing.
    #[serde(default)]
    pub absent: bool,
    /// What the host's image, its packages or its baseline have at the paths is expected there and watched, unless a config declares it.
    /// The action is for these things.
    #[serde(default)]
    pub image: bool,
    /// With `image`: Holdfast compares the paths one after the other at a slow pace, and watches only those that differ.
    #[serde(default)]
    pub scan: bool,
    /// The names that may be in a closed directory besides, at any depth.
    #[serde(default)]
    pub except: NamePatterns,
    /// The symbolic links that may be in a closed directory besides, at any depth.
    #[serde(default)]
    pub except_links: LinkExceptions,
    /// Why the rule is there, for people.
    pub reason: Option<String>,
}

/// One `DriftPolicy` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftPolicyFile {
    /// The file it was read from, for messages.
    pub origin: String,
    /// `metadata.name`.
    pub name: String,
    /// Of two files with a rule for the same path the one with the higher precedence applies.
    pub precedence: i64,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// The parts of an actor that policies match on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicyActor<'a> {
    /// Whether Holdfast made the change.
    pub holdfast: bool,
    /// systemd unit.
    pub unit: Option<&'a str>,
    /// Executable.
    pub exe: Option<&'a str>,
    /// Login user, if the process runs in the scope of its session.
    pub user: Option<&'a str>,
    /// Uid of the pod.
    pub pod_uid: Option<&'a str>,
    /// `namespace/name` of the pod, if the cluster answered.
    pub pod: Option<&'a str>,
}

impl<'a> From<&'a Actor> for PolicyActor<'a> {
    fn from(actor: &'a Actor) -> Self {
        Self {
            holdfast: actor.holdfast,
            unit: actor.unit.as_deref(),
            exe: actor.exe.as_deref(),
            user: actor.login_user.as_deref().filter(|_| actor.is_in_its_session()),
            pod_uid: actor.pod_uid.as_deref(),
            pod: None,
        }
    }
}

/// The decision about one drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriftDecision<'a> {
    /// The rule's action, or at most [`DriftAction::Observe`] for an allowed actor.
    pub action: DriftAction,
    /// Whether the rule allows the actor.
    pub allowed: bool,
    /// Whether the content is hidden.
    pub secret: bool,
    /// Whether labels are compared.
    pub labels: LabelComparison,
    /// The rule and its file; `None` for the default.
    pub rule: Option<(&'a Rule, &'a str)>,
}

/// All rules of a node. It is serialised as a list of rules, each with its file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<(Rule, String)>", into = "Vec<(Rule, String)>")]
pub struct DriftPolicy {
    rules: Vec<(Rule, String)>,
    /// Rules of declared things.
    declared: PathRules,
    /// Rules of closed directories, and of paths where nothing may be.
    undeclared: BTreeMap<String, usize>,
    /// Rules of what the host's image has.
    image: PathRules,
}

impl From<Vec<(Rule, String)>> for DriftPolicy {
    fn from(rules: Vec<(Rule, String)>) -> Self {
        Self::index(rules)
    }
}

impl From<DriftPolicy> for Vec<(Rule, String)> {
    fn from(policy: DriftPolicy) -> Self {
        policy.rules
    }
}

/// The other fields are made from the rules.
impl PartialEq for DriftPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

impl DriftPolicy {
    /// Merges files.
    ///
    /// # Errors
    /// Two files of the same precedence with different rules for one path.
    pub fn merge(files: &[DriftPolicyFile]) -> Result<Self, DriftPolicyError> {
        let mut chosen: BTreeMap<(&str, RuleKind), (&Rule, &DriftPolicyFile)> = BTreeMap::new();
        for file in files {
            for (number, rule) in file.rules.iter().enumerate() {
                match chosen.get(&(rule.path.as_str(), rule.kind())) {
                    Some((other, by)) if by.precedence == file.precedence && *other != rule => {
                        return Err(file.contradicts(number, by));
                    }
                    Some((_, by)) if by.precedence >= file.precedence => {}
                    _ => {
                        chosen.insert((&rule.path, rule.kind()), (rule, file));
                    }
                }
            }
        }
        Ok(Self::index(
            chosen.into_values().map(|(rule, file)| (rule.clone(), file.origin.clone())).collect(),
        ))
    }

    /// The decision about a change of `path` (absolute) by `subject`, if that is known.
    pub fn decide(&self, path: &Path, subject: Option<&PolicyActor<'_>>) -> DriftDecision<'_> {
        match self.declared.rule_for(path) {
            Some(number) => self.decide_by(number, subject),
            None => Self::by_default(subject),
        }
    }

    /// The decision without a rule.
    fn by_default<'a>(subject: Option<&PolicyActor<'_>>) -> DriftDecision<'a> {
        let allowed = subject.is_some_and(|subject| subject.holdfast);
        let action = if allowed { DriftAction::Observe } else { DriftAction::Degrade };
        DriftDecision { action, allowed, secret: true, labels: LabelComparison::Compare, rule: None }
    }

    /// The decision about a drift of a thing: by the rule that closes its directory, that expects nothing at its path, or that expects what
    /// the image has, if that is what declares the thing. Else by its path.
    pub fn decide_about(
        &self,
        expectation: &Expectation,
        subject: Option<&PolicyActor<'_>>,
    ) -> DriftDecision<'_> {
        let path = expectation.thing.path();
        let number = match &expectation.source {
            ExpectationSource::MachineConfig(_) => None,
            ExpectationSource::ClosedBy(closed) => self.undeclared.get(&*closed.rule).copied(),
            ExpectationSource::ImageLayer(_) => match self.image.rule_for(&path) {
                // Rules about declared things do not apply to what only the image has.
                None => {
                    return DriftDecision { action: DriftAction::Observe, ..Self::by_default(subject) };
                }
                number => number,
            },
        };
        match number {
            Some(number) => self.decide_by(number, subject),
            None => self.decide(&path, subject),
        }
    }

    fn decide_by(&self, number: usize, subject: Option<&PolicyActor<'_>>) -> DriftDecision<'_> {
        let (rule, origin) = &self.rules[number];
        let allowed = subject.is_some_and(|subject| rule.allowed_actors.allow(subject));
        DriftDecision {
            action: if allowed { rule.action.min(DriftAction::Observe) } else { rule.action },
            allowed,
            secret: rule.secret,
            labels: rule.labels,
            rule: Some((rule, origin)),
        }
    }

    /// The rules of closed directories, each with its file, by path. A rule with the action `ignore` closes no directory.
    pub fn closed(&self) -> impl Iterator<Item = (&Rule, &str)> {
        self.undeclared().filter(|(rule, _)| rule.closed)
    }

    /// The same with those whose action is `ignore`. Such a rule leaves a directory in a closed one open.
    pub fn closed_or_left_open(&self) -> impl Iterator<Item = (&Rule, &str)> {
        self.about_undeclared().filter(|(rule, _)| rule.closed)
    }

    fn about_undeclared(&self) -> impl Iterator<Item = (&Rule, &str)> {
        self.undeclared
            .values()
            .map(|number| &self.rules[*number])
            .map(|(rule, origin)| (rule, origin.as_str()))
    }

    /// The rules of paths where nothing may be, each with its file, by path. A rule with the action `ignore` is none of them.
    pub fn absent(&self) -> impl Iterator<Item = (&Rule, &str)> {
        self.undeclared().filter(|(rule, _)| rule.absent)
    }

    /// The rules about what nothing declares, each with its file, by path, without those with the action `ignore`.
    pub fn undeclared(&self) -> impl Iterator<Item = (&Rule, &str)> {
        self.about_undeclared().filter(|(rule, _)| rule.action != DriftAction::Ignore)
    }

    /// Whether a rule expects what the image has.
    pub fn expects_image(&self) -> bool {
        self.rules.iter().any(|(rule, _)| rule.image && rule.action != DriftAction::Ignore)
    }

    /// The paths that the rules about the image name: of a directory itself, of a glob the directory before its first wildcard.
    pub fn image_paths(&self) -> BTreeSet<PathBuf> {
        let rules = self.rules.iter().map(|(rule, _)| rule);
        rules.filter(|rule| rule.image && rule.action != DriftAction::Ignore).map(Rule::fixed_path).collect()
    }

    /// The paths of all rules that have what the image has watched.
    pub fn image_rules(&self) -> impl Iterator<Item = &str> {
        let rules = self.rules.iter().map(|(rule, _)| rule);
        let watching = rules.filter(|rule| rule.image && !rule.scan && rule.action != DriftAction::Ignore);
        watching.map(|rule| rule.path.as_str())
    }

    /// The rule by which what the image has at a path is expected there; `None` if it is not.
    pub fn expects_of_image(&self, path: &Path) -> Option<&Rule> {
        let (rule, _) = &self.rules[self.image.rule_for(path)?];
        (rule.action != DriftAction::Ignore).then_some(rule)
    }

    /// Whether a rule has everything watched that the image has in a directory: one that names the directory, and not only some names in
    /// it.
    pub fn watches_names_of_image(&self, directory: &Path) -> bool {
        // No image has a name like this one, so only a rule about all names applies.
        let any = directory.join("\u{1}");
        self.expects_of_image(&any).is_some_and(|rule| !rule.scan)
    }

    /// Whether a rule has paths of the image compared at a slow pace.
    pub fn scans_image(&self) -> bool {
        self.all_image_rules().any(|rule| rule.scan && rule.action != DriftAction::Ignore)
    }

    /// All rules about what the image has, those with the action `ignore` too.
    pub fn all_image_rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule).filter(|rule| rule.image)
    }

    /// Every rule with its file, by path.
    pub fn rules(&self) -> impl Iterator<Item = (&Rule, &str)> {
        self.rules.iter().map(|(rule, origin)| (rule, origin.as_str()))
    }
}
