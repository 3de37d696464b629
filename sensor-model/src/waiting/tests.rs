use super::{Waiting, WaitingArgument, after, wanted};
use crate::{
    changes::{ChangeKind, ChangeOperation, tests::config},
    node_disruption::{DisruptionPolicy, DisruptionPolicyFile},
    os::arguments,
    plan::{Plan, plan},
};
use serde_json::json;

/// A plan under a policy that keeps every argument but `nosmt` from the reboot.
fn planned(old: &[&str], new: &[&str]) -> Plan {
    let policy = "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: a}\n\
                  spec: {kernelArguments: [{name: '*', actions: [{type: None}]}, {name: nosmt, actions: [{type: Reboot}]}]}\n";
    let policy =
        DisruptionPolicy::merge(&DisruptionPolicyFile::parse("site.yaml", policy.as_bytes()).unwrap(), None)
            .unwrap();
    let side = |arguments: &[&str]| config(&json!({ "kernelArguments": arguments }));
    plan(Some(&side(old)), Some(&side(new)), &policy).unwrap()
}

fn own(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The arguments that wait after an apply from one list of arguments to another, in a boot with these; as `+a -b`.
fn waits(before: &[WaitingArgument], old: &[&str], new: &[&str], found: &[&str]) -> Vec<WaitingArgument> {
    let plan = planned(old, new);
    let changes = if plan.reboot { &[][..] } else { &plan.changes };
    after(before, changes, &arguments::words(new.iter().copied()), &own(found))
}

fn signs(waiting: &[WaitingArgument]) -> String {
    let sign = |operation| match operation {
        ChangeOperation::Add => '+',
        ChangeOperation::Remove => '-',
        ChangeOperation::Change => '~',
    };
    let all = waiting.iter().map(|waits| format!("{}{}", sign(waits.operation), waits.argument));
    all.collect::<Vec<_>>().join(" ")
}

#[test]
fn an_argument_waits_if_its_change_does_not_reboot_and_the_kernel_differs() {
    let found = &["rw", "quiet"];
    assert_eq!(signs(&waits(&[], &[], &["a=1 b"], found)), "+a=1 +b", "each of a line by itself");
    assert_eq!(signs(&waits(&[], &["quiet"], &[], found)), "-quiet");
    assert_eq!(signs(&waits(&[], &[], &["rw"], found)), "", "it is there already");
    assert_eq!(signs(&waits(&[], &["gone"], &[], found)), "", "it never was");
    assert_eq!(signs(&waits(&[], &[], &["a", "nosmt"], found)), "", "with a reboot nothing waits");
    assert_eq!(signs(&waits(&[], &["rw", "quiet"], &["quiet", "rw"], found)), "~quiet rw");
    assert_eq!(signs(&waits(&[], &["a b"], &["a", "b"], &["a", "b"])), "", "only the lines are others");
}

#[test]
fn an_argument_waits_until_no_config_wants_it() {
    let found = &["rw", "quiet"];
    let first = waits(&[], &["quiet"], &["a"], found);
    assert_eq!(signs(&first), "+a -quiet");
    assert_eq!(waits(&first, &["a"], &["a"], found), first, "an apply of other things");
    assert_eq!(signs(&waits(&first, &["a"], &["a", "b"], found)), "+a -quiet +b");
    assert_eq!(signs(&waits(&first, &["a"], &["a", "nosmt"], found)), "+a -quiet", "until the reboot");
    assert_eq!(signs(&waits(&first, &["a"], &["quiet"], found)), "", "and back again");
}

#[test]
fn an_order_waits_until_the_kernel_has_it_or_no_config_wants_it() {
    let found = &["rw", "m=auto", "host", "m=off"];
    let declared = &["m=off", "m=auto", "s=1"];
    let first = waits(&[], &["m=auto", "m=off"], declared, found);
    assert_eq!(signs(&first), "+s=1 ~m=off m=auto", "beside one that comes");
    let order = waits(&first, declared, &["m=off", "m=auto"], found);
    assert_eq!(signs(&order), "~m=off m=auto", "and when that goes again");
    assert_eq!(
        waits(&order, &["m=off", "m=auto"], &["m=off", "m=auto"], found),
        order,
        "an apply of other things"
    );
    assert_eq!(
        signs(&waits(&order, &["m=off", "m=auto"], &["m=off", "m=auto", "a"], found)),
        "+a ~m=off m=auto"
    );
    let reboots = &["m=off", "m=auto", "nosmt"];
    assert_eq!(
        signs(&waits(&order, &["m=off", "m=auto"], reboots, found)),
        "~m=off m=auto",
        "until the reboot"
    );
    assert_eq!(
        signs(&waits(&order, &["m=off", "m=auto"], &["m=auto", "m=off"], found)),
        "",
        "and back again"
    );
    assert_eq!(signs(&waits(&order, &["m=off", "m=auto"], &["m=auto"], found)), "-m=off", "one has no order");
    let booted = &["m=off", "host", "rw", "m=auto"];
    assert_eq!(
        signs(&waits(&[], &["m=auto", "m=off"], &["m=off", "m=auto"], booted)),
        "",
        "it runs so already"
    );
    // One that went and comes again, before any boot, comes last.
    let gone = waits(&[], &["m=auto", "m=off"], &["m=off"], found);
    assert_eq!(signs(&waits(&gone, &["m=off"], &["m=off", "m=auto"], found)), "~m=off m=auto");
    let of = |declared: &[&str]| signs(&wanted(&first, &own(declared)));
    assert_eq!(of(declared), signs(&first), "the config that wants it");
    assert_eq!((of(&["m=auto", "m=off", "s=1"]).as_str(), of(&["m=auto"]).as_str()), ("+s=1", ""));
}

#[test]
fn waiting_arguments_apply_in_one_boot_and_with_a_config_that_wants_them() {
    let arguments = waits(&[], &["quiet"], &["a"], &["quiet"]);
    let waiting = Waiting { boot_id: "1".to_owned(), config: String::new(), arguments };
    assert_eq!((waiting.in_boot("1").len(), waiting.in_boot("2").len()), (2, 0));
    let wanted = |declared: &[&str]| signs(&wanted(&waiting.arguments, &own(declared)));
    assert_eq!((wanted(&["a"]).as_str(), wanted(&["quiet"]).as_str()), ("+a -quiet", ""));
    let text = waiting.arguments[0].text();
    assert_eq!(
        text,
        "kernel argument a: set for the next boot, the running kernel does not have it; policy site.yaml: kernelArguments *"
    );
}

#[test]
fn a_plan_without_a_reboot_lists_the_arguments_that_wait() {
    let explanation = |plan: &Plan| {
        let of_arguments = plan.changes.iter().filter(|change| change.kind == ChangeKind::KernelArgument);
        of_arguments.flat_map(|change| change.explanation.clone()).collect::<Vec<_>>().join("; ")
    };
    let plan = planned(&[], &["a"]);
    assert!(!plan.reboot && explanation(&plan).starts_with("written for the next boot"), "{plan:?}");
    let plan = planned(&[], &["a", "nosmt"]);
    assert!(plan.reboot && explanation(&plan).is_empty(), "{plan:?}");
    assert!(planned(&["a"], &["a"]).is_empty());
}
