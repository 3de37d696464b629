//! Kernel arguments in another order.

use super::*;

#[tokio::test]
async fn another_order_is_staged_although_no_argument_is_missing() {
    let world = waiting_host();
    let order = OsChange {
        remove_arguments: words(&["rw", "quiet"]),
        add_arguments: words(&["quiet", "rw"]),
        ..OsChange::default()
    };
    world.host.stage(&order, LIMIT).await.unwrap();
    assert!(deployed(&world).contains("--karg-append=quiet --karg-append=rw "), "{:?}", world.calls());
}

/// From one order of the same arguments to another, and what was booted when it began.
fn of_order(booted: &str) -> OsChange {
    OsChange {
        remove_arguments: words(&["m=auto", "m=off"]),
        add_arguments: words(&["m=off", "m=auto"]),
        booted: Some(OLD.to_owned()),
        booted_arguments: arguments::split(booted),
        ..OsChange::default()
    }
}

/// A host that booted these arguments; what is staged is its own version again.
fn ordered_host(arguments: &str) -> World {
    let again = format!("  debian {OLD}.1 (staged)\n    origin refspec: os/v1\n");
    ostree_host((OLD, "os/v1"), (OLD, "os/v1"), arguments).file("staged", &again)
}

#[tokio::test]
async fn another_order_is_rolled_back_after_its_boot_with_another_boot() {
    let change = of_order("m=auto host m=off");
    let world = ordered_host("host m=off m=auto");
    let problems = world.host.is_back(&change).unwrap().join("; ");
    assert_eq!(problems, "kernel arguments have to be in the order [m=auto m=off], and are [m=off m=auto]");
    assert!(world.host.unstage(&change, LIMIT).await.unwrap());
    let back = deployed(&world);
    assert!(back.contains("--karg-append=host --karg-append=m=auto --karg-append=m=off "), "{back}");
    let back = ordered_host("host m=auto rw m=off");
    assert_eq!(back.host.is_back(&change).unwrap(), [""; 0], "what the host has in between does not count");
    assert!(!back.host.unstage(&change, LIMIT).await.unwrap());
    assert_eq!(back.count("admin deploy"), 0);
}

#[tokio::test]
async fn another_order_is_rolled_back_before_its_boot_without_one_under_any_old_config() {
    for booted in ["m=auto host m=off", "m=off m=auto"] {
        let (world, change) = (ordered_host(booted), of_order(booted));
        assert!(!world.host.unstage(&change, LIMIT).await.unwrap(), "{booted}");
        assert_eq!(world.count("admin deploy"), 0, "{booted}");
    }
}

#[tokio::test]
async fn an_order_that_is_booted_already_is_not_staged() {
    let world = ordered_host("m=off host m=auto");
    world.host.stage(&of_order("m=off host m=auto"), LIMIT).await.unwrap();
    assert_eq!(world.count("admin deploy"), 0);
}

/// The order waits, and so does `s=1`, which is removed before any boot.
fn without_what_came(boot_id: &str) -> OsChange {
    let waits = |argument: &str, operation| WaitingArgument {
        argument: argument.to_owned(),
        operation,
        policy: String::new(),
    };
    let arguments = vec![waits("s=1", ChangeOperation::Add), waits("m=off m=auto", ChangeOperation::Change)];
    let waited = Waiting { boot_id: boot_id.to_owned(), config: String::new(), arguments };
    let (old, new) = (words(&["m=off", "m=auto", "s=1"]), words(&["m=off", "m=auto"]));
    of_order("rw m=auto m=off").beside(waited, old, new)
}

#[tokio::test]
async fn a_waiting_order_is_staged_again_by_each_change_and_each_rollback() {
    let world = ordered_host("rw m=auto m=off");
    let change = without_what_came(&this_boot());
    world.host.stage(&change, LIMIT).await.unwrap();
    let staged = deployed(&world);
    assert!(
        staged.contains("--karg-append=rw --karg-append=m=off --karg-append=m=auto --origin"),
        "{staged}"
    );
    assert!(!world.host.unstage(&change, LIMIT).await.unwrap(), "it needs no boot");
    let again = deployed(&world);
    assert!(
        again.contains("=rw --karg-append=m=off --karg-append=m=auto --karg-append=s=1 --origin"),
        "{again}"
    );
    // In the next boot the order has to be there.
    let other = ordered_host("rw m=auto m=off s=1");
    assert!(other.host.unstage(&without_what_came("another"), LIMIT).await.unwrap());
}

#[tokio::test]
async fn an_order_that_rpm_ostree_did_not_stage_is_reported() {
    let booted = format!(r#"{{"deployments":[{{"booted":true,"origin":"os/v1","checksum":"{OLD}"}}]}}"#);
    let script = r#"case "$*" in
        "status --json") cat status ;;
        "kargs --deploy-index=0") echo "host m=auto m=off" ;;
    esac"#;
    let world = World::new(OsTool::RpmOstree, OLD, "m=auto host m=off")
        .tool("rpm-ostree", script)
        .file("status", &booted);
    let error = world.host.stage(&of_order("m=auto host m=off"), LIMIT).await.unwrap_err().to_string();
    assert!(error.contains("in the order [m=off m=auto], and are [m=auto m=off]"), "{error}");
}

#[test]
fn an_os_booted_with_another_order_does_not_match_and_force_sets_all_arguments() {
    let source = || Source::new("a", "a");
    let kernel_arguments = vec![Sourced { value: "m=off m=auto".to_owned(), source: source() }];
    let declared = Rendered { kernel_arguments, ..Rendered::default() };
    for (booted, is_as_declared) in
        [("m=off rw m=auto", true), ("m=auto rw m=off", false), ("m=auto", false), ("m=off", false)]
    {
        let world = World::new(OsTool::Ostree, OLD, booted);
        let observer = Observer::new(world.folder.path()).unwrap();
        assert_eq!(is_there(&declared, &observer), is_as_declared, "{booted}");
        let change = restoring(&declared, &observer).map(|change| change.add_arguments);
        assert_eq!(change, (!is_as_declared).then(|| words(&["m=off", "m=auto"])), "{booted}");
    }
}
