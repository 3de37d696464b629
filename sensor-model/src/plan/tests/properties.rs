//! What holds of every plan: the same input gives the same plan in whatever order its parts stand, and one
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
    - {type: Restart, restart: {serviceName: z.service}}
    - {type: Restart, restart: {serviceName: crio.service}}
  units:
  - {name: 'x*.service', actions: [{type: DaemonReload}]}
  kernelArguments:
  - {name: quiet, actions: [{type: None}]}
";

#[derive(Debug, Clone)]
struct Parts {
    files: Vec<(usize, u8)>,
    units: Vec<(usize, bool)>,
    arguments: Vec<usize>,
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        proptest::collection::btree_map(0..PATHS.len(), 0_u8..3, 0..6),
        proptest::collection::btree_map(0_usize..3, any::<bool>(), 0..3),
        proptest::collection::vec(0..ARGUMENTS.len(), 0..5),
    )
        .prop_map(|(files, units, arguments)| Parts {
            files: files.into_iter().collect(),
            units: units.into_iter().collect(),
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
    let names = ["iri-registry.service", "x1.service", "other.service"];
    let units: Vec<Value> =
        parts.units.iter().map(|(unit, on)| json!({ "name": names[*unit], "enabled": on })).collect();
    let arguments: Vec<&str> = parts.arguments.iter().map(|argument| ARGUMENTS[*argument]).collect();
    let mut spec = ignition(&json!({ "storage": { "files": files }, "systemd": { "units": units } }));
    spec["kernelArguments"] = json!(arguments);
    spec
}

/// Every step as action and unit.
fn done(plan: &Plan) -> Vec<(StepAction, Option<String>)> {
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
        prop_assert!(steps.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{:?}", steps);
        let names: Vec<&str> = plan.changes.iter().map(|change| change.name.as_str()).collect();
        for step in &plan.steps {
            prop_assert!(!step.because.is_empty() && !step.policies.is_empty() || step.action == StepAction::Write);
            prop_assert!(step.because.iter().all(|name| names.contains(&name.as_str())));
            let units = matches!(step.action, StepAction::Reload | StepAction::Restart);
            prop_assert_eq!(step.target.is_some(), units);
        }
        prop_assert_eq!(plan.drain, steps.iter().any(|(action, _)| *action == StepAction::Drain));
        prop_assert_eq!(plan.reboot, steps.iter().any(|(action, _)| *action == StepAction::Reboot));
        prop_assert!(!plan.reboot || plan.drain);
    }

    #[test]
    fn one_more_change_never_lessens_the_disruption(old in parts(), new in parts(), more in 0..PATHS.len()) {
        let policy = policy(OWN);
        let less = planned_by(&spec(&old), &spec(&new), &policy);
        // A path that neither side has yet, or one that is the same in both, changes too.
        let mut grown = new.clone();
        let before = old.files.iter().find(|(path, _)| *path == more).map(|(_, text)| *text);
        let at = grown.files.iter().position(|(path, _)| *path == more);
        match (before, at) {
            (None, None) => grown.files.push((more, 0)),
            (Some(text), Some(at)) if grown.files[at].1 == text => grown.files[at].1 = text + 1,
            _ => return Ok(()),
        }
        let plan = planned_by(&spec(&old), &spec(&grown), &policy);
        prop_assert_eq!(plan.changes.len(), less.changes.len() + 1);
        prop_assert!(plan.drain >= less.drain && plan.reboot >= less.reboot);
        if !plan.reboot {
            let steps = done(&plan);
            prop_assert!(done(&less).iter().all(|step| steps.contains(step)), "{:?} {:?}", less, plan);
        }
        // What is said of a change may be another thing: with a reboot no argument waits for the next boot.
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
            parts.arguments.iter().flat_map(|argument| ARGUMENTS[*argument].split(' ')).collect()
        };
        let [old, new] =
            [old, new].map(|parts| Parts { files: Vec::new(), units: Vec::new(), arguments: parts.arguments });
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
