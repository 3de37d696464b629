//! Properties of every plan: the same input gives the same plan in any order of its parts, and one
//! more change never disturbs less.

use super::*;
use proptest::prelude::*;

/// Paths with and without entries, of all sorts of actions.
const PATHS: [&str; 9] = [
    "/etc/unknown",
    "/etc/containers/policy.json",
    "/etc/containers/registries.d/x",
    "/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt",
    "/etc/nmstate/openshift/x",
    "/etc/kubernetes/credential-providers/x",
    "/etc/systemd/system/kubelet.service.d/40-kubelet-crio-image-credential-provider.conf",
    "/etc/own/drain",
    "/etc/own/two",
];

/// Entries of kernel arguments, of which the policy keeps some from the reboot; one entry may hold several words.
const ARGUMENTS: [&str; 6] = ["quiet", "quiet=1", "nosmt", "console=a", "console=b", "quiet nosmt"];

/// One more argument, of all sorts of actions.
const MORE_ARGUMENTS: [&str; 4] = ["quiet=2", "nosmt=force", "console=c", "quiet"];

const UNITS: [&str; 3] = ["iri-registry.service", "x1.service", "other.service"];

const LINKS: [&str; 4] = ["/etc/own/drain-link", "/etc/own/link", "/etc/nmstate/openshift/link", "/etc/link"];

const KEYS: [&str; 3] = ["k0", "k1", "k2"];

const OWN: &str = "
apiVersion: holdfast.dev/v1alpha1
kind: DisruptionPolicy
metadata: {name: own}
spec:
  files:
  - path: /etc/own/d*
    actions: [{type: Drain}, {type: Reload, reload: {serviceName: a.service}}]
  - path: /etc/own
    actions:
    - {type: ReloadOrRestart, reloadOrRestart: {serviceName: m.service}}
    - {type: Restart, restart: {serviceName: z.service}}
    - {type: Restart, restart: {serviceName: crio.service}}
  units:
  - {name: 'x*.service', actions: [{type: DaemonReload}]}
  sshkey: {actions: [{type: Reload, reload: {serviceName: sshd.service}}]}
  kernelArguments:
  - {name: quiet, actions: [{type: None}]}
";

#[derive(Debug, Clone, Default)]
struct Parts {
    files: Vec<(usize, u8)>,
    units: Vec<(usize, bool)>,
    links: Vec<(usize, u8)>,
    keys: Vec<usize>,
    arguments: Vec<&'static str>,
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        proptest::collection::btree_map(0..PATHS.len(), 0_u8..3, 0..6),
        proptest::collection::btree_map(0..UNITS.len(), any::<bool>(), 0..3),
        proptest::collection::btree_map(0..LINKS.len(), 0_u8..3, 0..3),
        proptest::collection::btree_set(0..KEYS.len(), 0..3),
        proptest::collection::vec(proptest::sample::select(&ARGUMENTS[..]), 0..5),
    )
        .prop_map(|(files, units, links, keys, arguments)| Parts {
            files: files.into_iter().collect(),
            units: units.into_iter().collect(),
            links: links.into_iter().collect(),
            keys: keys.into_iter().collect(),
            arguments,
        })
}

fn spec(parts: &Parts) -> Value {
    let files: Vec<Value> = parts
        .files
        .iter()
        .map(
            |(path, text)| json!({ "path": PATHS[*path], "contents": { "source": format!("data:,{text}") } }),
        )
        .collect();
    let links: Vec<Value> = parts
        .links
        .iter()
        .map(|(link, to)| json!({ "path": LINKS[*link], "target": format!("{to}") }))
        .collect();
    let units: Vec<Value> =
        parts.units.iter().map(|(unit, on)| json!({ "name": UNITS[*unit], "enabled": on })).collect();
    let mut config = json!({ "storage": { "files": files, "links": links }, "systemd": { "units": units } });
    if !parts.keys.is_empty() {
        let keys: Vec<&str> = parts.keys.iter().map(|key| KEYS[*key]).collect();
        config["passwd"] = json!({ "users": [{ "name": "core", "sshAuthorizedKeys": keys }] });
    }
    let mut spec = ignition(&config);
    spec["kernelArguments"] = json!(parts.arguments);
    spec
}

/// One more change.
#[derive(Debug, Clone, Copy)]
enum More {
    File(usize),
    Unit(usize),
    Link(usize),
    Key(usize),
    Argument(&'static str),
}

fn more() -> impl Strategy<Value = More> {
    prop_oneof![
        (0..PATHS.len()).prop_map(More::File),
        (0..UNITS.len()).prop_map(More::Unit),
        (0..LINKS.len()).prop_map(More::Link),
        (0..KEYS.len()).prop_map(More::Key),
        proptest::sample::select(&MORE_ARGUMENTS[..]).prop_map(More::Argument),
    ]
}

/// Makes a thing that neither side has yet, or that is the same in both, change; `false` where it changes already.
fn change<T: Clone + PartialEq>(
    old: &[(usize, T)],
    new: &mut Vec<(usize, T)>,
    which: usize,
    first: T,
    another: impl Fn(&T) -> T,
) -> bool {
    let before = old.iter().find(|(thing, _)| *thing == which).map(|(_, what)| what);
    let at = new.iter().position(|(thing, _)| *thing == which);
    match (before, at) {
        (None, None) => new.push((which, first)),
        (Some(what), Some(at)) if new[at].1 == *what => new[at].1 = another(what),
        _ => return false,
    }
    true
}

/// The new side with one more change.
fn grown(old: &Parts, new: &Parts, more: More) -> Option<Parts> {
    let mut grown = new.clone();
    let changed = match more {
        More::File(which) => change(&old.files, &mut grown.files, which, 0, |text| text + 1),
        More::Unit(which) => change(&old.units, &mut grown.units, which, true, |on| !on),
        More::Link(which) => change(&old.links, &mut grown.links, which, 0, |to| to + 1),
        More::Key(which) => {
            grown.keys.push(which);
            !old.keys.contains(&which) && !new.keys.contains(&which)
        }
        More::Argument(word) => {
            let has =
                |parts: &Parts| parts.arguments.iter().any(|entry| entry.split(' ').any(|had| had == word));
            grown.arguments.push(word);
            !has(old) && !has(new)
        }
    };
    changed.then_some(grown)
}

/// Every step as action and unit.
fn done(plan: &Plan) -> Vec<(Action, Option<String>)> {
    plan.steps.iter().map(|step| (step.action, step.target.clone())).collect()
}

proptest! {
    #[test]
    fn the_order_of_parts_is_of_no_matter(old in parts(), new in parts(), seed: u64) {
        let policy = policy(OWN);
        let first = planned_by(&spec(&old), &spec(&new), &policy);
        let shuffled = |mut parts: Parts| {
            let turn = usize::try_from(seed % 7).unwrap_or_default();
            let length = parts.files.len().max(1);
            parts.files.rotate_left(turn % length);
            parts.units.reverse();
            parts.links.reverse();
            parts
        };
        let second = planned_by(&spec(&shuffled(old)), &spec(&shuffled(new)), &policy);
        prop_assert_eq!(first, second);
    }

    #[test]
    fn steps_come_once_in_their_order_and_each_has_a_cause(old in parts(), new in parts()) {
        let plan = planned_by(&spec(&old), &spec(&new), &policy(OWN));
        let steps = done(&plan);
        let mut unique = steps.clone();
        unique.sort();
        unique.dedup();
        prop_assert_eq!(unique.len(), steps.len());
        prop_assert!(steps.windows(2).all(|pair| pair[0].0.place() <= pair[1].0.place()), "{:?}", steps);
        let names: Vec<&str> = plan.changes.iter().map(|change| change.name.as_str()).collect();
        for step in &plan.steps {
            prop_assert!(!step.because.is_empty() && !step.policies.is_empty() || step.action == Action::Write);
            prop_assert!(step.because.iter().all(|name| names.contains(&name.as_str())));
            let units =
                [Action::Reload, Action::ReloadOrRestart, Action::Restart].contains(&step.action);
            prop_assert_eq!(step.target.is_some(), units);
        }
        prop_assert_eq!(plan.drain, steps.iter().any(|(action, _)| *action == Action::Drain));
        prop_assert_eq!(plan.reboot, steps.iter().any(|(action, _)| *action == Action::Reboot));
        prop_assert!(!plan.reboot || plan.drain);
    }

    #[test]
    fn one_more_change_of_any_kind_never_lessens_the_disruption(old in parts(), new in parts(), more in more()) {
        let policy = policy(OWN);
        let less = planned_by(&spec(&old), &spec(&new), &policy);
        let Some(grown) = grown(&old, &new, more) else { return Ok(()) };
        let plan = planned_by(&spec(&old), &spec(&grown), &policy);
        prop_assert_eq!(plan.changes.len(), less.changes.len() + 1);
        prop_assert!(plan.drain >= less.drain && plan.reboot >= less.reboot);
        if !plan.reboot {
            let steps = done(&plan);
            prop_assert!(done(&less).iter().all(|step| steps.contains(step)), "{:?} {:?}", less, plan);
        }
        // The explanation of a change may differ: with a reboot no argument waits for the next boot.
        let unexplained = |plan: &Plan| -> Vec<PlannedChange> {
            plan.changes.iter().map(|change| PlannedChange { explanation: Vec::new(), ..change.clone() }).collect()
        };
        let (less, more) = (unexplained(&less), unexplained(&plan));
        prop_assert!(less.iter().all(|change| more.contains(change)), "{:?} {:?}", less, more);
    }

    #[test]
    fn without_a_reboot_no_argument_comes_goes_or_moves_but_those_that_the_policy_names(
        old in parts(),
        new in parts(),
    ) {
        let words = |parts: &Parts| -> Vec<&'static str> {
            parts.arguments.iter().flat_map(|argument| argument.split(' ')).collect()
        };
        let [old, new] =
            [old, new].map(|parts| Parts { arguments: parts.arguments, ..Parts::default() });
        let plan = planned_by(&spec(&old), &spec(&new), &policy(OWN));
        let others = |words: &[&'static str]| -> Vec<&str> {
            words.iter().copied().filter(|word| !word.starts_with("quiet")).collect()
        };
        let (before, after) = (words(&old), words(&new));
        prop_assert_eq!(plan.changes.is_empty(), before == after, "{:?} {:?}", before, after);
        prop_assert!(plan.reboot || others(&before) == others(&after), "{:?} {:?}", before, after);
        // And what is all of those is kept from it.
        let exempt = |words: &[&str]| words.iter().all(|word| word.starts_with("quiet"));
        prop_assert!(!plan.reboot || !exempt(&before) || !exempt(&after), "{:?} {:?}", before, after);
    }

    #[test]
    fn a_plan_written_as_json_is_read_back(old in parts(), new in parts()) {
        let plan = planned_by(&spec(&old), &spec(&new), &policy(OWN));
        let text = serde_json::to_string(&plan).unwrap();
        prop_assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
