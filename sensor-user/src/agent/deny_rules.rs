//! Deny rules in the kernel: which inodes they protect, and whom they allow.
//!
//! In: the drift policy. Out: a number for each rule, and the allowed actors as the kernel can tell
//! them: inodes of executables, cgroups of units and pods, login uids. Only the LSM backend refuses;
//! on the others what a deny rule names is drift that degrades.

use super::canary::DEVICES_ID;
use super::registry::Inode;
use super::rule_numbers::Numbers;
use super::verifier::Witness;
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
use sensor_model::expectation::Expectation;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Cgroups nest this deep on a node at most: slices, pod, container, and a system inside it.
const DEPTH: usize = 8;

/// The number of the tree of control groups.
pub(super) const GROUPS_ID: u32 = DEVICES_ID - 1;

/// The deny rules of a policy.
#[derive(Debug, Default)]
pub(super) struct DenyRules {
    numbers: Numbers,
    /// By thing, the rule that protects it.
    things: HashMap<u32, u32>,
    /// What was written to the map.
    written: Allowances,
    /// The kernel knows nothing else.
    cleared: bool,
    /// Inodes may still be protected by rules of before, whose actors stay allowed.
    keeps_earlier: bool,
}

/// Allowed actors with their bits, as the kernel has them.
type Allowances = BTreeMap<Allowed, u64>;

/// An actor who is known by a number.
const fn entry(rule: u32, kind: u32, value: u64) -> Allowed {
    Allowed { rule, kind, value, dev: 0, generation: 0, volume: 0, padding: 0 }
}

impl DenyRules {
    /// Finds the rules, numbered from 1, and the things that they protect. Rules of the last run keep their numbers: the
    /// inodes that they protect go on being protected by them until they are enrolled anew.
    pub(super) fn renewed(self, policy: &DriftPolicy, expectations: &[Expectation]) -> Self {
        let mut deny = if self.numbers.are_many() { Self::default() } else { self };
        deny.things.clear();
        deny.extend(policy, 0, expectations);
        deny
    }

    /// Before the things of a run are enrolled: no actor that was allowed is refused meanwhile. What an earlier daemon
    /// allowed, whose rules had other numbers, is taken away.
    pub(super) fn begin(&mut self, witness: Option<&mut Witness>) -> Result<(), MapsError> {
        if let Some(witness) = witness.filter(|_| !self.cleared) {
            witness.maps().disallow_all()?;
            witness.maps().remove(GROUPS_KEY)?;
        }
        self.cleared = true;
        self.keeps_earlier = true;
        Ok(())
    }

    /// All things are enrolled: only today's rules count.
    pub(super) fn begun(&mut self) {
        self.keeps_earlier = false;
    }

    /// Adds things, numbered on from `first`. Rules that are known keep their numbers.
    pub(super) fn extend(&mut self, policy: &DriftPolicy, first: u32, expectations: &[Expectation]) {
        for (thing, expectation) in (first..).zip(expectations) {
            let decision = policy.decide(&expectation.thing.path(), None);
            let (DriftAction::Deny, Some((rule, _))) = (decision.action, decision.rule) else { continue };
            self.things.insert(thing, self.numbers.of_rule(rule));
        }
    }

    /// Where numbers of rules, and of rules together, come from.
    pub(super) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// The rule that protects a thing; things are numbered as their expectations.
    pub(super) fn protects(&self, thing: u32) -> Option<u32> {
        self.things.get(&thing).copied()
    }

    /// A control group was made: an actor that it allows need not wait for the next [`DenyRules::refresh`].
    pub(super) fn group_made(&mut self, witness: &mut Witness, path: &str, id: u64) {
        let sets: BTreeSet<u32> = self.numbers.sets().into_iter().map(|(number, _)| number).collect();
        let mut wanted: Allowances =
            self.written.iter().filter(|(e, _)| !sets.contains(&e.rule)).map(|(e, b)| (*e, *b)).collect();
        wanted.extend(
            self.allowing(path).into_iter().map(|number| (entry(number, ALLOWED_CGROUP, id), ALLOWED_ALL)),
        );
        self.add_sets(&mut wanted);
        for (actor, bits) in wanted {
            if self.written.insert(actor, bits) != Some(bits) {
                allow(witness, actor, bits);
            }
        }
    }

    /// Rules in use with their numbers.
    fn used(&self) -> Vec<(u32, Rule)> {
        let used: BTreeSet<u32> = self.things.values().copied().collect();
        let mut rules = self.numbers.rules();
        rules.retain(|(number, _)| used.contains(number));
        rules
    }

    /// Adds, for each set of rules that count together, everybody whom one of them allows, with the bits of those that do.
    fn add_sets(&self, wanted: &mut Allowances) {
        let used: BTreeSet<u32> = self.things.values().copied().collect();
        let mut of_sets = Allowances::new();
        for (number, members) in self.numbers.sets() {
            // There is no room for more bits: past them only Holdfast itself is let through.
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

    /// Brings the kernel's list of allowed actors up to date. Units get new cgroups when they start: those are reported,
    /// and found here where that was lost. `ours`: processes of Holdfast's that write now, by number and start; no rule
    /// applies to them.
    pub(super) fn refresh(
        &mut self,
        root: &Path,
        observer: &Observer,
        witness: &mut Witness,
        ours: impl Iterator<Item = (u32, u64)>,
    ) {
        if self.things.is_empty() && self.written.is_empty() {
            return;
        }
        let mut wanted: Allowances = ours
            .map(|(tgid, start)| (Allowed { dev: tgid, ..entry(0, ALLOWED_PROCESS, start) }, ALLOWED_ALL))
            .collect();
        self.watch_groups(witness);
        if self.names_groups() {
            let mount = cgroup::mount(groups::hierarchy(), root, Path::new("/proc"));
            for (path, id) in mount.iter().flat_map(|mount| cgroups(mount)) {
                let allowing = self.allowing(&path).into_iter();
                wanted.extend(allowing.map(|number| (entry(number, ALLOWED_CGROUP, id), ALLOWED_ALL)));
            }
        }
        for (number, rule) in self.used() {
            for exe in &rule.allowed_actors.exes {
                // A glob has no inode: such actors are known only after the change.
                if let Some(Inode { key, generation }) = witness.executable(observer, Path::new(exe)) {
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
        let wanted = self.keeping_earlier(wanted);
        for actor in self.written.keys().filter(|actor| !wanted.contains_key(*actor)) {
            if let Err(error) = witness.maps().disallow(*actor) {
                tracing::warn!(%error, "Cannot remove an allowed actor.");
            }
        }
        for (actor, bits) in &wanted {
            if self.written.get(actor) != Some(bits) {
                allow(witness, *actor, *bits);
            }
        }
        self.written = wanted;
    }

    /// Has the programs tell of control groups only while a rule asks for it: on a busy node many are made.
    fn watch_groups(&self, witness: &mut Witness) {
        let maps = witness.maps();
        let done = if self.names_groups() {
            maps.enrol(GROUPS_KEY, GROUPS_ID, ROLE_MOUNTS)
        } else {
            maps.remove(GROUPS_KEY)
        };
        if let Err(error) = done {
            tracing::warn!(%error, "New control groups are found late.");
        }
    }

    fn keeping_earlier(&self, mut wanted: Allowances) -> Allowances {
        if self.keeps_earlier {
            for (entry, bits) in &self.written {
                *wanted.entry(*entry).or_default() |= bits;
            }
        }
        wanted
    }
}

fn allow(witness: &mut Witness, actor: Allowed, bits: u64) {
    if let Err(error) = witness.maps().allow(actor, bits) {
        tracing::warn!(%error, "Cannot add an allowed actor.");
    }
}

/// Every cgroup below a mounted hierarchy: its path there and its id, which is its inode number.
fn cgroups(top: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut waiting: Vec<(PathBuf, usize)> = vec![(top.to_owned(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let (Ok(metadata), path) = (entry.metadata(), entry.path()) else { continue };
            if !metadata.is_dir() {
                continue;
            }
            if let Ok(inside) = path.strip_prefix(top) {
                found.push((format!("/{}", inside.display()), metadata.ino()));
            }
            if depth + 1 < DEPTH {
                waiting.push((path, depth + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_model::drift_policy::DriftPolicyFile;
    use sensor_model::expectation::{DirectoryExpectation, Expected, Owner, Source, Thing};

    fn policy(rules: &[(&str, &str)]) -> DriftPolicy {
        let rules: Vec<_> = rules
            .iter()
            .map(|(path, user)| {
                serde_json::json!({ "path": path, "action": "deny", "allowedActors": { "users": [user] } })
            })
            .collect();
        policy_of(&rules)
    }

    fn policy_of(rules: &[serde_json::Value]) -> DriftPolicy {
        let file = serde_json::json!({
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "DriftPolicy",
            "metadata": { "name": "test" },
            "spec": { "rules": rules },
        });
        let file = DriftPolicyFile::parse("test", file.to_string().as_bytes()).unwrap();
        DriftPolicy::merge(&[file]).unwrap()
    }

    fn directory(path: &'static str) -> Expectation {
        let (user, group) = (Owner::Id(0), Owner::Id(0));
        Expectation {
            thing: Thing::directory(path),
            expected: Expected::Directory(DirectoryExpectation { mode: 0o755, user, group }),
            ssh_keys: false,
            label: None,
            source: Source::new("a", "a").into(),
        }
    }

    #[test]
    fn a_rule_keeps_its_number_over_a_reload_and_no_other_gets_it() {
        let things = [directory("/a"), directory("/b")];
        let before = DenyRules::default().renewed(&policy(&[("/a", "root"), ("/b", "alice")]), &things);
        assert_eq!([before.protects(0), before.protects(1)], [Some(1), Some(2)]);
        // The first rule is gone, and the order of the things is another.
        let things = [directory("/b"), directory("/a")];
        let after = before.renewed(&policy(&[("/a", "bob"), ("/b", "alice")]), &things);
        assert_eq!([after.protects(0), after.protects(1)], [Some(2), Some(3)]);
    }

    #[test]
    fn nobody_who_was_allowed_is_refused_while_things_are_enrolled_anew() {
        let written = Allowances::from([(entry(1, ALLOWED_LOGIN, 1000), ALLOWED_ALL)]);
        let mut deny = DenyRules { written: written.clone(), ..DenyRules::default() };
        deny.begin(None).unwrap();
        let wanted = Allowances::from([(entry(2, ALLOWED_LOGIN, 0), ALLOWED_ALL)]);
        let both = deny.keeping_earlier(wanted.clone());
        assert!(written.iter().all(|(entry, bits)| both.get(entry) == Some(bits)), "{both:?}");
        deny.begun();
        assert_eq!(deny.keeping_earlier(wanted.clone()), wanted);
    }

    #[test]
    fn above_two_rules_only_whoever_both_allow_has_all_bits_by_whatever_each_names_them() {
        let things = [directory("/a"), directory("/b")];
        let deny = DenyRules::default().renewed(&policy(&[("/a", "root"), ("/b", "alice")]), &things);
        let set = deny.numbers().of_all(&BTreeSet::from([1, 2])).unwrap();
        let (by_both, by_second) = (entry(0, ALLOWED_LOGIN, 0), entry(0, ALLOWED_LOGIN, 5));
        let by_first = Allowed { dev: 1, generation: 3, ..entry(0, ALLOWED_EXE, 7) };
        let of = |rule, actor: Allowed| Allowed { rule, ..actor };
        let mut wanted: Allowances = [of(1, by_both), of(1, by_first), of(2, by_both), of(2, by_second)]
            .map(|e| (e, ALLOWED_ALL))
            .into();
        deny.add_sets(&mut wanted);
        assert_eq!(wanted[&of(set, by_both)], ALLOWED_ALL);
        for one in [by_first, by_second] {
            assert_ne!(wanted[&of(set, one)], ALLOWED_ALL, "{one:?}");
        }
        // One process may be known by its program to one rule and by its login to the other.
        assert_eq!(wanted[&of(set, by_first)] | wanted[&of(set, by_second)], ALLOWED_ALL);
        let before = wanted.clone();
        deny.add_sets(&mut wanted);
        assert_eq!(wanted, before, "what was written already comes to the same");
    }

    #[test]
    fn a_group_that_a_user_made_below_their_own_is_no_allowed_unit_or_pod() {
        const POD: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
        let rule = serde_json::json!({
            "path": "/a", "action": "deny", "allowedActors": { "units": ["allowed.service"], "pods": [POD] },
        });
        let deny = DenyRules::default().renewed(&policy_of(&[rule]), &[directory("/a")]);
        let pod = format!("kubepods.slice/kubepods-pod{}.slice", POD.replace('-', "_"));
        for allowed in ["/system.slice/allowed.service", &format!("/{pod}/crio-conmon-x.scope")] {
            assert_eq!(deny.allowing(allowed), [1], "{allowed}");
        }
        for top in
            ["/user.slice/user-1000.slice/user@1000.service", "/system.slice/web.service", "/user/alice/0"]
        {
            for made in ["app.slice/allowed.service", "allowed.service", &pod, &format!("kubepods/pod{POD}")]
            {
                assert!(deny.allowing(&format!("{top}/{made}")).is_empty(), "{top}/{made}");
            }
        }
    }

    #[test]
    fn a_set_of_rules_keeps_its_number_over_a_reload() {
        let things = [directory("/a"), directory("/b")];
        let policy = policy(&[("/a", "root"), ("/b", "alice")]);
        let before = DenyRules::default().renewed(&policy, &things);
        let both = before.numbers().of_all(&BTreeSet::from([1, 2]));
        let after = before.renewed(&policy, &things);
        assert_eq!(after.numbers().of_all(&BTreeSet::from([1, 2])), both);
    }
}
