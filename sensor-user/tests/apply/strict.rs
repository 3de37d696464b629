//! Configs that declare less than their author meant: a typing error in a field's name, and a config that declares
//! nothing.

use crate::world::{OLD, World};
use std::fs;

/// The present config with a typing error in the field that holds all of it.
fn typo(world: &World) -> String {
    world.config("typo", OLD);
    let path = world.config_file("typo");
    let text = fs::read_to_string(&path).unwrap().replacen("\n  config:", "\n  confg:", 1);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn an_unknown_field_is_an_error_that_names_it_and_the_nearest_known_one_and_nothing_is_written() {
    let world = World::old();
    let (before, typo) = (world.snapshot(), typo(&world));
    let reason = "MachineConfig \"99-test\": spec.confg: unknown field; did you mean config?";
    for arguments in [
        &["apply", &typo, "--no-acts"][..],
        &["apply", &typo, "--no-acts", "--force", "--allow-empty"],
        &["apply", &typo, "--dry-run"],
        &["apply", &typo, "--current", &typo, "--no-acts"],
        &["check", "--config", &typo],
        &["explain", "/etc/app", "--config", &typo],
        &["repair", "--all", "--yes", "--config", &typo],
        &["adopt", "/etc/app", "--config", &typo],
    ] {
        let said = world.run(arguments, "");
        assert_eq!(said.code, Some(2), "{arguments:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(reason) && said.err.contains(&typo), "{arguments:?}: {}", said.err);
    }
    assert_eq!(world.snapshot(), before);
}

#[test]
fn an_allowed_unknown_field_causes_a_warning_and_needs_no_second_permission() {
    let world = World::old();
    let typo = typo(&world);
    let before = world.snapshot();
    let said = world.run(&["apply", &typo, "--no-acts", "--allow-unknown"], "");
    assert_eq!(said.code, Some(2), "what is left declares nothing: {}{}", said.out, said.err);
    assert!(said.err.contains("spec.confg") && said.err.contains("`--allow-empty`"), "{}", said.err);
    assert_eq!(world.snapshot(), before);
    // With another section it declares something.
    let text = fs::read_to_string(&typo).unwrap() + "  extensions: [usbguard]\n";
    fs::write(&typo, text).unwrap();
    let said = world.run(&["apply", &typo, "--no-acts", "--allow-unknown"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_eq!(world.apply(&["old"], "").code, Some(0));
    let said = world.run(&["rollback", "--no-acts"], "");
    assert_eq!(said.code, Some(0), "it was accepted when it was applied: {}{}", said.out, said.err);
    let said = world.run(&["check"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
}

#[test]
fn a_config_that_declares_nothing_is_refused_where_the_present_one_declares_something() {
    let world = World::old();
    let before = world.snapshot();
    let nothing = world.config_file("nothing").display().to_string();
    let apply = ["apply", &*nothing, "--no-acts"];
    for more in [&[][..], &["--force"]] {
        let said = world.run(&[&apply, more].concat(), "");
        assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
        assert!(
            said.err.contains("NEW declares nothing") && said.err.contains("`--allow-empty`"),
            "{}",
            said.err
        );
        assert_eq!(world.snapshot(), before);
    }
    // Printing the plan is allowed.
    let said = world.run(&["apply", &nothing, "--dry-run"], "");
    assert!(said.code == Some(1) && said.err.contains("`--allow-empty`"), "{}{}", said.out, said.err);
    assert_eq!(world.run(&[&apply[..], &["--allow-empty"]].concat(), "").code, Some(0));
    let again = world.run(&apply, "");
    assert_eq!(again.code, Some(0), "nothing after nothing: {}{}", again.out, again.err);
}
