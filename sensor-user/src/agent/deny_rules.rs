//! Deny rules in the kernel: the things that they protect, and the actors that they allow.
//!
//! In: the drift policy, control groups, executables and users of the host, and the rules that an earlier daemon left in the maps.
//! Out: a number for each rule, and the allowed actors as the kernel identifies them: inodes of executables, cgroups of units and
//! pods, login uids. It owns the rules, and the list of allowed actors in the map. Only the LSM backend refuses changes; on other
//! backends they are drift that degrades.

use super::canary::DEVICES_ID;
use super::earlier_rules::{Allowances, EarlierRules};
use super::kernel_programs::KernelPrograms;
use super::registry::Inode;
use super::rule_numbers::RuleNumbers;
use crate::attribution::cgroup;
use crate::kernel::groups;
use crate::kernel::maps::MapsError;
use crate::observation::Observer;
use sensor_common::map::{
    ALLOWED_ALL, ALLOWED_CGROUP, ALLOWED_EXE, ALLOWED_LOGIN, ALLOWED_PROCESS, Allowed, GROUPS_KEY, InodeKey,
};
use sensor_common::op::ROLE_MOUNTS;
use sensor_model::cgroup::Placement;
use sensor_model::drift_policy::{DriftAction, DriftPolicy, PolicyActor, Rule};
use sensor_model::expectation::{Expectation, Expected};
use sensor_model::protocol::ThingId;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Cgroups of a node are at most this deep: slices, pod, container, and a system inside it.
const DEPTH: usize = 8;

/// The number of the map entry for all control groups.
pub(super) const GROUPS_ID: u32 = DEVICES_ID - 1;

/// The deny rules of a policy.
#[derive(Debug, Default)]
pub(super) struct DenyRules {
    numbers: RuleNumbers,
    /// The number of the rule that protects each thing.
    things: HashMap<ThingId, u32>,
    /// The allowed actors in the map.
    written: Allowances,
    /// The map holds no actors other than those in `written`.
    knows_map: bool,
    transition: Transition,
}

/// The actors that are allowed while inodes may still have the numbers of earlier rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Transition {
    /// No inode has such a number.
    #[default]
    Over,
    /// Those of earlier rules, too: no new rule has the number of an earlier one.
    WithEarlier,
    /// Only Holdfast's own processes: the number of an earlier rule may be that of a new one.
    OnlyHoldfast,
}

/// An allowed actor that a number identifies.
const fn entry(rule: u32, kind: u32, value: u64) -> Allowed {
    Allowed { rule, kind, value, dev: 0, generation: 0, volume: 0, padding: 0 }
}

impl DenyRules {
    /// Takes over what an earlier daemon left in the maps, at the first run and when the numbers are assigned again.
    pub(super) fn taken_over(self, kernel: Option<&mut KernelPrograms>) -> Result<Self, MapsError> {
        let deny = if self.numbers.are_many() { Self::default() } else { self };
        match kernel.filter(|_| !deny.knows_map) {
            Some(kernel) => Ok(Self::after(EarlierRules::take_over(kernel.maps())?)),
            None => Ok(deny),
        }
    }

    /// Begins after the rules in the maps. Their numbers protect inodes until the daemon enrols these again, so no new rule gets one.
    fn after(earlier: EarlierRules) -> Self {
        let numbers = RuleNumbers::other_than(earlier.numbers);
        let transition = if numbers.is_some() { Transition::WithEarlier } else { Transition::OnlyHoldfast };
        let numbers = numbers.unwrap_or_default();
        Self { numbers, written: earlier.actors, knows_map: true, transition, things: HashMap::new() }
    }

    /// Finds the rules, with numbers, and the things that they protect. Rules of the last run keep their numbers, because they
    /// protect inodes in the map until the daemon enrols these again.
    pub(super) fn renewed(mut self, policy: &DriftPolicy, expectations: &[Expectation]) -> Self {
        self.things.clear();
        self.extend(policy, 0, expectations);
        self
    }

    /// Keeps the actors of earlier rules allowed while the daemon enrols the things of a run. Removes those of an earlier daemon on
    /// a backend that refuses nothing.
    pub(super) fn keep_earlier(&mut self, kernel: Option<&mut KernelPrograms>) -> Result<(), MapsError> {
        if let Some(kernel) = kernel.filter(|_| !self.knows_map) {
            kernel.maps().disallow_all()?;
            kernel.maps().remove(GROUPS_KEY)?;
        }
        self.knows_map = true;
        if self.transition == Transition::Over {
            self.transition = Transition::WithEarlier;
        }
        Ok(())
    }

    /// Drops the actors of earlier rules; the caller has enrolled all things.
    pub(super) fn drop_earlier(&mut self) {
        self.transition = Transition::Over;
    }

    /// Adds things, with the numbers from `first`. Known rules keep their numbers.
    pub(super) fn extend(&mut self, policy: &DriftPolicy, first: u32, expectations: &[Expectation]) {
        for (thing, expectation) in (first..).map(ThingId).zip(expectations) {
            let decision = policy.decide_about(expectation, None);
            let (DriftAction::Deny, Some((rule, _))) = (decision.action, decision.rule) else { continue };
            if matches!(
                expectation.expected,
                Expected::Unindexed | Expected::Hierarchy(_) | Expected::Tree(_)
            ) {
                // A rule protects what the image has. Nothing says what that is, or it is no object.
                continue;
            }
            self.things.insert(thing, self.numbers.of_rule(rule));
        }
    }

    /// The numbers of rules, and of rules that apply together.
    pub(super) fn numbers(&self) -> &RuleNumbers {
        &self.numbers
    }

    /// The number of the rule that protects a thing.
    pub(super) fn rule_of(&self, thing: ThingId) -> Option<u32> {
        self.things.get(&thing).copied()
    }

    /// Allows the processes of a new control group at once, if a rule does. [`DenyRules::refresh`] would find it later.
    pub(super) fn allow_new_cgroup(&mut self, kernel: &mut KernelPrograms, path: &str, id: u64) {
        let sets: BTreeSet<u32> = self.numbers.sets().into_iter().map(|(number, _)| number).collect();
        let mut wanted: Allowances =
            self.written.iter().filter(|(e, _)| !sets.contains(&e.rule)).map(|(e, b)| (*e, *b)).collect();
        wanted.extend(
            self.allowing(path).into_iter().map(|number| (entry(number, ALLOWED_CGROUP, id), ALLOWED_ALL)),
        );
        self.add_sets(&mut wanted);
        self.allow(kernel, wanted);
    }

    /// Rules in use with their numbers.
    fn used(&self) -> Vec<(u32, Rule)> {
        let used: BTreeSet<u32> = self.things.values().copied().collect();
        let mut rules = self.numbers.rules();
        rules.retain(|(number, _)| used.contains(number));
        rules
    }

    /// Adds, for each set of rules that apply together, every actor that one of them allows, with the bits of the rules that do.
    fn add_sets(&self, wanted: &mut Allowances) {
        let used: BTreeSet<u32> = self.things.values().copied().collect();
        let mut of_sets = Allowances::new();
        for (number, members) in self.numbers.sets() {
            // There are no more bits: a larger set allows only Holdfast.
            if members.len() > ALLOWED_ALL.count_ones() as usize
                || !members.iter().all(|rule| used.contains(rule))
            {
                continue;
            }
            let unused =
                ALLOWED_ALL.checked_shl(u32::try_from(members.len()).unwrap_or(u32::MAX)).unwrap_or(0);
            for (bit, rule) in members.iter().enumerate() {
                for (actor, _) in wanted.range(entry(*rule, 0, 0)..entry(*rule + 1, 0, 0)) {
                    *of_sets.entry(Allowed { rule: number, ..*actor }).or_insert(unused) |= 1 << bit;
                }
            }
        }
        wanted.extend(of_sets);
    }

    /// Whether a group below this one may be that of an allowed unit or pod. Below a unit or a container that no rule allows there is none, and a
    /// user may make any number of groups there.
    fn may_be_allowed_below(&self, path: &str) -> bool {
        let placement = Placement::of_path(path);
        let is_innermost = placement.unit.is_some() || placement.container_id.is_some();
        !is_innermost || !self.allowing(path).is_empty()
    }

    /// The rules in use that allow the processes in the control group of this path.
    fn allowing(&self, path: &str) -> Vec<u32> {
        let placement = Placement::of_path(path);
        let subject = PolicyActor {
            unit: placement.unit.as_deref(),
            pod_uid: placement.pod_uid.as_deref(),
            ..PolicyActor::default()
        };
        let used = self.used().into_iter();
        let allowing = used.filter(|(_, rule)| rule.allowed_actors.allow(&subject));
        allowing.map(|(number, _)| number).collect()
    }

    /// Whether a rule names units or pods, so that the daemon needs a record of each new control group.
    fn names_groups(&self) -> bool {
        let names =
            |rule: &Rule| !rule.allowed_actors.units.is_empty() || !rule.allowed_actors.pods.is_empty();
        self.used().iter().any(|(_, rule)| names(rule))
    }

    /// Updates the kernel's list of allowed actors. A unit has a new cgroup after each start: a record reports it, and this finds
    /// it if the record was lost. `ours`: processes of Holdfast that write now, by number and start; no rule refuses them.
    pub(super) fn refresh(
        &mut self,
        root: &Path,
        observer: &Observer,
        kernel: &mut KernelPrograms,
        ours: impl Iterator<Item = (u32, u64)>,
    ) {
        if self.things.is_empty() && self.written.is_empty() {
            return;
        }
        let mut wanted: Allowances = ours
            .map(|(tgid, start)| (Allowed { dev: tgid, ..entry(0, ALLOWED_PROCESS, start) }, ALLOWED_ALL))
            .collect();
        self.watch_groups(kernel);
        if self.names_groups() {
            let mount = cgroup::mount(groups::hierarchy(), root, Path::new("/proc"));
            for (path, id) in
                mount.iter().flat_map(|mount| cgroups(mount, |path| self.may_be_allowed_below(path)))
            {
                let allowing = self.allowing(&path).into_iter();
                wanted.extend(allowing.map(|number| (entry(number, ALLOWED_CGROUP, id), ALLOWED_ALL)));
            }
        }
        for (number, rule) in self.used() {
            for exe in &rule.allowed_actors.exes {
                // A glob has no inode: the policy decides about such actors only after the change.
                if let Some(Inode { key, generation }) = kernel.executable(observer, Path::new(exe)) {
                    let InodeKey { ino, dev, volume } = key;
                    let actor = Allowed { dev, generation, volume, ..entry(number, ALLOWED_EXE, ino) };
                    wanted.insert(actor, ALLOWED_ALL);
                }
            }
            for user in &rule.allowed_actors.users {
                if let Some(uid) = observer.uid(user) {
                    wanted.insert(entry(number, ALLOWED_LOGIN, u64::from(uid)), ALLOWED_ALL);
                }
            }
        }
        self.add_sets(&mut wanted);
        let wanted = self.in_transition(wanted);
        let gone: Vec<Allowed> =
            self.written.keys().filter(|actor| !wanted.contains_key(*actor)).copied().collect();
        for actor in gone {
            if let Err(error) = kernel.maps().disallow(actor) {
                tracing::warn!(%error, "Cannot remove an allowed actor; the daemon tries again.");
                continue;
            }
            self.written.remove(&actor);
        }
        self.allow(kernel, wanted);
    }

    /// Adds actors to the map that are not there with these bits. What fails is tried again at the next refresh.
    fn allow(&mut self, kernel: &mut KernelPrograms, wanted: Allowances) {
        let mut failed = None;
        for (actor, bits) in wanted {
            if self.written.get(&actor) == Some(&bits) {
                continue;
            }
            match kernel.maps().allow(actor, bits) {
                Ok(()) => {
                    self.written.insert(actor, bits);
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            tracing::warn!(%error, "Cannot add all allowed actors; the daemon tries again.");
        }
    }

    /// Has the programs report new control groups only while a rule names units or pods: a busy node creates many.
    fn watch_groups(&self, kernel: &mut KernelPrograms) {
        let maps = kernel.maps();
        let done = if self.names_groups() {
            maps.enrol(GROUPS_KEY, GROUPS_ID, ROLE_MOUNTS)
        } else {
            maps.remove(GROUPS_KEY)
        };
        if let Err(error) = done {
            tracing::warn!(%error, "Cannot have new control groups reported: an allowed unit or pod is refused until the next canary write.");
        }
    }

    /// The actors to allow now, of those that the rules allow: while inodes may have numbers of earlier rules, also their actors, or
    /// only Holdfast's own processes. Those are known by number and start, and not by a rule's number.
    fn in_transition(&self, mut wanted: Allowances) -> Allowances {
        match self.transition {
            Transition::Over => {}
            Transition::WithEarlier => {
                for (actor, bits) in self.written.iter().filter(|(actor, _)| !is_holdfast(actor)) {
                    *wanted.entry(*actor).or_default() |= bits;
                }
            }
            Transition::OnlyHoldfast => wanted.retain(|actor, _| is_holdfast(actor)),
        }
        wanted
    }
}

/// Whether the entry is a process of Holdfast, which all rules allow.
fn is_holdfast(actor: &Allowed) -> bool {
    actor.kind == ALLOWED_PROCESS
}

/// The cgroups below a mounted hierarchy: the path of each there, and its id, which is its inode number. `is_entered` says of a path whether the
/// groups below it are wanted, too.
fn cgroups(top: &Path, is_entered: impl Fn(&str) -> bool) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut waiting: Vec<(PathBuf, usize)> = vec![(top.to_owned(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let (Ok(metadata), path) = (entry.metadata(), entry.path()) else { continue };
            if !metadata.is_dir() {
                continue;
            }
            let Ok(inside) = path.strip_prefix(top) else { continue };
            let inside = format!("/{}", inside.display());
            if depth + 1 < DEPTH && is_entered(&inside) {
                waiting.push((path, depth + 1));
            }
            found.push((inside, metadata.ino()));
        }
    }
    found
}

#[cfg(test)]
#[path = "deny_rules_tests.rs"]
mod tests;
