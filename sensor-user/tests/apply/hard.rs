//! Files with several names: if an apply separates them, a rollback joins them again, or reports that it cannot.

use crate::world::World;
use std::{fs, os::unix::fs::MetadataExt as _};

const DECLARED: &str = "
    storage:
      files:
      - {path: /etc/one, mode: 420, overwrite: true, contents: {source: 'data:,declared'}}
      - {path: /etc/other/two, mode: 420, overwrite: true, contents: {source: 'data:,declared-too'}}
";

/// A host with a file of these names.
fn host(names: &[&str]) -> World {
    let world = World::new();
    world.config("declared", DECLARED);
    world.write(names[0], "the host's");
    for name in &names[1..] {
        fs::create_dir_all(world.at(name).parent().unwrap()).unwrap();
        fs::hard_link(world.at(names[0]), world.at(name)).unwrap();
    }
    world
}

#[test]
fn hard_links_of_the_host_are_restored_when_no_config_declares_them() {
    for names in [&["/etc/one", "/etc/other/two"][..], &["/etc/one", "/etc/beside"]] {
        let world = host(names);
        let before = world.snapshot();
        let said = world.apply(&["declared"], "");
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        let said = world.apply(&["nothing"], "");
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        assert!(!said.out.contains("were separated"), "{}", said.out);
        let mut after = world.snapshot();
        after.retain(|path, _| before.contains_key(path));
        assert_eq!(after, before, "{names:?}");
    }
}

#[test]
fn an_unknown_other_name_is_reported_when_the_file_is_restored_without_it() {
    let world = host(&["/etc/one", "/srv/elsewhere"]);
    assert_eq!(world.apply(&["declared"], "").code, Some(0));
    let said = world.apply(&["nothing"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let reported =
        "/etc/one: its hard links were separated: it was one of 2 names of a file, and that file has 1 now";
    assert!(said.out.contains(reported), "{}", said.out);
    assert_eq!(world.read("/etc/one"), "the host's");
    assert_eq!(world.read("/srv/elsewhere"), "the host's");
}

#[test]
fn a_hard_link_that_has_other_content_now_is_left_and_reported() {
    let world = host(&["/etc/one", "/etc/beside"]);
    assert_eq!(world.apply(&["declared"], "").code, Some(0));
    world.write("/etc/beside", "changed since");
    let said = world.apply(&["nothing"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.out.contains("/etc/one: its hard links were separated"), "{}", said.out);
    assert_eq!(
        (world.read("/etc/one"), world.read("/etc/beside")),
        ("the host's".into(), "changed since".into())
    );
    assert_eq!(fs::metadata(world.at("/etc/one")).unwrap().nlink(), 1);
}

#[cfg(feature = "fault-injection")]
#[test]
fn the_host_is_reported_to_match_the_old_config_only_if_the_comparison_found_no_difference() {
    for tampered in [false, true] {
        let world = World::old();
        let said = world.apply(&["new"], "kill:162");
        assert!(said.err.contains("fault: ") && world.has_journal(), "{}{}", said.out, said.err);
        if tampered {
            world.write("/etc/app/stays", "tampered");
        }
        let said = world.resume("");
        assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
        let claims = said.out.contains("the host matches the old config");
        assert_eq!(claims, !tampered, "{}", said.out);
        let differs = said.out.contains("differs from the old config")
            && said.out.contains("content mismatch for file \"/etc/app/stays\"");
        assert_eq!(differs, tampered, "{}", said.out);
        let history = world.run(&["history"], "").out;
        assert_eq!(history.contains("content mismatch"), tampered, "{history}");
        assert_eq!(
            world.run(&["check", "--config", world.config_file("old").to_str().unwrap()], "").code,
            Some(i32::from(tampered))
        );
    }
}
