//! Deny rules in the kernel: the things that they protect, and the actors that they allow.
//!
//! In: the drift policy, control groups, executables and users of the host. Out: a number for each rule, and the allowed actors
//! as the kernel identifies them: inodes of executables, cgroups of units and pods, login uids. It owns the rules, and the list of
//! allowed actors in the map. Only the LSM backend refuses changes; on other backends they are drift that degrades.

use super::canary::DEVICES_ID;
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
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// The map holds no actors of an earlier daemon.
    cleared: bool,
    /// Rules of an earlier run may still protect inodes, so their actors stay allowed.
    keeps_earlier: bool,
}

/// Allowed actors, each with one bit for each rule of a set that allows it.
type Allowances = BTreeMap<Allowed, u64>;

/// An allowed actor that a number identifies.
const fn entry(rule: u32, kind: u32, value: u64) -> Allowed {
    Allowed { rule, kind, value, dev: 0, generation: 0, volume: 0, padding: 0 }
}

impl DenyRules {
    /// Finds the rules, with numbers from 1, and the things that they protect. Rules of the last run keep their numbers, because
    /// they protect inodes in the map until the daemon enrols these again.
    pub(super) fn renewed(self, policy: &DriftPolicy, expectations: &[Expectation]) -> Self {
        let mut deny = if self.numbers.are_many() { Self::default() } else { self };
        deny.things.clear();
        deny.extend(policy, 0, expectations);
        deny
    }

    /// Keeps the actors of earlier rules allowed while the daemon enrols the things of a run. Removes the actors of an earlier
    /// daemon, whose rules had other numbers.
    pub(super) fn keep_earlier(&mut self, kernel: Option<&mut KernelPrograms>) -> Result<(), MapsError> {
        if let Some(kernel) = kernel.filter(|_| !self.cleared) {
            kernel.maps().disallow_all()?;
            kernel.maps().remove(GROUPS_KEY)?;
        }
        self.cleared = true;
        self.keeps_earlier = true;
        Ok(())
    }

    /// Drops the actors of earlier rules; the caller has enrolled all things.
    pub(super) fn drop_earlier(&mut self) {
        self.keeps_earlier = false;
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
        for (actor, bits) in wanted {
            if self.written.insert(actor, bits) != Some(bits) {
                allow(kernel, actor, bits);
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
            for (path, id) in mount.iter().flat_map(|mount| cgroups(mount)) {
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
        let wanted = self.with_earlier(wanted);
        for actor in self.written.keys().filter(|actor| !wanted.contains_key(*actor)) {
            if let Err(error) = kernel.maps().disallow(*actor) {
                tracing::warn!(%error, "Cannot remove an allowed actor.");
            }
        }
        for (actor, bits) in &wanted {
            if self.written.get(actor) != Some(bits) {
                allow(kernel, *actor, *bits);
            }
        }
        self.written = wanted;
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

    /// Adds the actors of earlier rules, as long as those may protect inodes.
    fn with_earlier(&self, mut wanted: Allowances) -> Allowances {
        if self.keeps_earlier {
            for (entry, bits) in &self.written {
                *wanted.entry(*entry).or_default() |= bits;
            }
        }
        wanted
    }
}

fn allow(kernel: &mut KernelPrograms, actor: Allowed, bits: u64) {
    if let Err(error) = kernel.maps().allow(actor, bits) {
        tracing::warn!(%error, "Cannot add an allowed actor.");
    }
}

/// Every cgroup below a mounted hierarchy: its path there, and its id, which is its inode number.
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
    use crate::observation::worker::tests::directory;
    use sensor_model::drift_policy::DriftPolicyFile;

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

    #[test]
    fn a_rule_keeps_its_number_over_a_reload_and_no_other_gets_it() {
        let things = [directory("/a"), directory("/b")];
        let before = DenyRules::default().renewed(&policy(&[("/a", "root"), ("/b", "alice")]), &things);
        assert_eq!([before.rule_of(ThingId(0)), before.rule_of(ThingId(1))], [Some(1), Some(2)]);
        // The first rule is gone, and the things have another order.
        let things = [directory("/b"), directory("/a")];
        let after = before.renewed(&policy(&[("/a", "bob"), ("/b", "alice")]), &things);
        assert_eq!([after.rule_of(ThingId(0)), after.rule_of(ThingId(1))], [Some(2), Some(3)]);
    }

    #[test]
    fn actors_of_earlier_rules_stay_allowed_until_all_things_are_enrolled() {
        let written = Allowances::from([(entry(1, ALLOWED_LOGIN, 1000), ALLOWED_ALL)]);
        let mut deny = DenyRules { written: written.clone(), ..DenyRules::default() };
        deny.keep_earlier(None).unwrap();
        let wanted = Allowances::from([(entry(2, ALLOWED_LOGIN, 0), ALLOWED_ALL)]);
        let both = deny.with_earlier(wanted.clone());
        assert!(written.iter().all(|(entry, bits)| both.get(entry) == Some(bits)), "{both:?}");
        deny.drop_earlier();
        assert_eq!(deny.with_earlier(wanted.clone()), wanted);
    }

    #[test]
    fn an_actor_has_all_bits_of_two_rules_only_if_both_allow_it() {
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
        // One rule may allow a process by its program, and the other by its login.
        assert_eq!(wanted[&of(set, by_first)] | wanted[&of(set, by_second)], ALLOWED_ALL);
        let before = wanted.clone();
        deny.add_sets(&mut wanted);
        assert_eq!(wanted, before, "a second call changes nothing");
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
