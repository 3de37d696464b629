//! Links of units: the links that enabling creates, and that none of them stays after the declaration ends.

use crate::world::World;
use std::{fs, os::unix::fs::symlink};

const SYSTEM: &str = "/etc/systemd/system";
const VENDOR: &str = "/usr/lib/systemd/system";

/// A host with the files of a few units.
fn host(units: &[(&str, &str)]) -> World {
    let world = World::new();
    for (unit, install) in units {
        world.write(&format!("{VENDOR}/{unit}"), &format!("[Install]\n{install}\n"));
    }
    world
}

/// Applies a config of these units, given as lines of a manifest.
fn apply(world: &World, units: &[&str]) {
    let list: Vec<String> = units.iter().map(|unit| format!("      - {unit}\n")).collect();
    let head = if units.is_empty() { "" } else { "    systemd:\n      units:\n" };
    let config = format!("{head}{}", list.concat());
    world.config("units", &config);
    let said = world.apply(&["units"], "");
    assert_eq!(said.code, Some(0), "{units:?}: {}{}", said.out, said.err);
}

/// Every link below the directory of units with its target, except for those of every test host.
fn links(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    for (path, what) in world.snapshot() {
        let name = path.strip_prefix(SYSTEM).map(|name| name.display().to_string());
        if let (Ok(name), Some((_, target))) = (name, what.split_once("-> "))
            && !name.ends_with("/off.service")
            && !name.ends_with("/masked.service")
        {
            found.push(format!("{name} -> {target}"));
        }
    }
    found
}

fn unit(name: &str, enabled: bool, install: &str) -> String {
    format!("{{name: {name}, enabled: {enabled}, contents: \"[Install]\\n{install}\\n\"}}")
}

#[test]
fn the_alias_of_a_hosts_unit_exists_exactly_while_the_unit_is_enabled() {
    let enabled = "{name: a.service, enabled: true}";
    for then in [&["{name: a.service, enabled: false}"][..], &["{name: a.service, mask: false}"], &[]] {
        let world = host(&[("a.service", "WantedBy=x.target\nAlias=b.service")]);
        apply(&world, &[enabled]);
        let target = format!("{VENDOR}/a.service");
        assert_eq!(
            links(&world),
            [format!("b.service -> {target}"), format!("x.target.wants/a.service -> {target}")]
        );
        apply(&world, then);
        assert_eq!(links(&world), [""; 0], "{then:?}");
    }
}

#[test]
fn an_alias_of_the_hosts_own_is_restored_after_it_was_disabled() {
    let world = host(&[("a.service", "Alias=b.service")]);
    symlink(format!("{VENDOR}/a.service"), world.at(&format!("{SYSTEM}/b.service"))).unwrap();
    let before = links(&world);
    apply(&world, &["{name: a.service, enabled: false}"]);
    assert_eq!(links(&world), [""; 0]);
    apply(&world, &[]);
    assert_eq!(links(&world), before);
}

#[test]
fn a_template_is_enabled_by_its_default_instance_and_disabled_with_every_instance_but_declared_ones() {
    let world = host(&[("t@.service", "WantedBy=x.target\nDefaultInstance=d")]);
    let target = format!("{VENDOR}/t@.service");
    apply(&world, &["{name: t@.service, enabled: true}", "{name: t@i.service, enabled: true}"]);
    let instance = |name: &str| format!("x.target.wants/t@{name}.service -> {target}");
    assert_eq!(links(&world), [instance("d"), instance("i")]);
    symlink(&target, world.at(&format!("{SYSTEM}/x.target.wants/t@hand.service"))).unwrap();
    apply(&world, &["{name: t@.service, enabled: false}", "{name: t@i.service, enabled: true}"]);
    assert_eq!(links(&world), [instance("i")]);
    apply(&world, &[]);
    assert_eq!(links(&world), [instance("hand")], "what the host had besides comes back");
}

#[test]
fn the_links_of_a_declared_template_are_removed_with_it() {
    let world = World::new();
    apply(&world, &[&unit("t@.service", true, "WantedBy=x.target\\nDefaultInstance=d\\nAlias=u@.service")]);
    let target = format!("{SYSTEM}/t@.service");
    let wants = format!("x.target.wants/t@d.service -> {target}");
    assert_eq!(links(&world), [format!("u@.service -> {target}"), wants]);
    apply(&world, &[]);
    assert_eq!(links(&world), [""; 0]);
    assert!(!world.at(&format!("{SYSTEM}/x.target.wants")).exists());
}

#[test]
fn an_instance_follows_its_templates_install_section() {
    let world = host(&[("t@.service", "WantedBy=vendor.target")]);
    let instance = "{name: t@i.service, enabled: true}";
    for target in ["x.target", "y.target"] {
        let template = format!(
            "{{name: t@.service, contents: \"[Install]\\nWantedBy={target}\\nAlias=u@.service\\n\"}}"
        );
        apply(&world, &[&template, instance]);
        let file = format!("{SYSTEM}/t@.service");
        let alias = format!("u@i.service -> {file}");
        assert_eq!(links(&world), [alias, format!("{target}.wants/t@i.service -> {file}")]);
    }
    apply(&world, &[instance]);
    let file = format!("{VENDOR}/t@.service");
    assert_eq!(links(&world), [format!("vendor.target.wants/t@i.service -> {file}")]);
}

#[test]
fn units_in_also_are_enabled_and_disabled_with_a_unit_unless_the_config_declares_them() {
    let files = [
        ("a.service", "WantedBy=x.target\nAlso=a.socket missing.service"),
        ("a.socket", "WantedBy=s.target\nAlso=a.service more.service"),
        ("more.service", "WantedBy=m.target"),
    ];
    let link = |link: &str| {
        let name = link.rsplit('/').next().unwrap_or_default();
        format!("{link} -> {VENDOR}/{name}")
    };
    let all =
        ["m.target.wants/more.service", "s.target.wants/a.socket", "x.target.wants/a.service"].map(link);
    let enabled = "{name: a.service, enabled: true}";
    for then in [&["{name: a.service, enabled: false}"][..], &["{name: a.service, mask: false}"], &[]] {
        let world = host(&files);
        apply(&world, &[enabled]);
        assert_eq!(links(&world), all);
        apply(&world, then);
        assert_eq!(links(&world), [""; 0], "{then:?}");
        apply(&world, &[enabled, "{name: a.socket, enabled: false}"]);
        assert_eq!(links(&world), [all[2].clone()]);
        apply(&world, &["{name: a.service, enabled: false}", "{name: a.socket, enabled: true}"]);
        assert_eq!(links(&world), all[..2]);
    }
}

#[test]
fn an_also_that_is_removed_from_the_file_removes_its_link_but_not_one_of_the_hosts() {
    let world = host(&[("hosts.socket", "WantedBy=s.target"), ("ours.socket", "WantedBy=s.target")]);
    let wants = world.at(&format!("{SYSTEM}/s.target.wants"));
    fs::create_dir_all(&wants).unwrap();
    symlink(format!("{VENDOR}/hosts.socket"), wants.join("hosts.socket")).unwrap();
    let own = format!("x.target.wants/a.service -> {SYSTEM}/a.service");
    let socket = |name: &str| format!("s.target.wants/{name}.socket -> {VENDOR}/{name}.socket");
    apply(&world, &[&unit("a.service", true, "WantedBy=x.target\\nAlso=hosts.socket ours.socket")]);
    assert_eq!(links(&world), [socket("hosts"), socket("ours"), own.clone()]);
    apply(&world, &[&unit("a.service", true, "WantedBy=x.target")]);
    assert_eq!(links(&world), [socket("hosts"), own]);
}

#[test]
fn a_unit_whose_declared_file_is_removed_is_enabled_by_the_hosts_file() {
    let world = host(&[("a.service", "WantedBy=vendor.target")]);
    apply(&world, &[&unit("a.service", true, "WantedBy=x.target")]);
    assert_eq!(links(&world), [format!("x.target.wants/a.service -> {SYSTEM}/a.service")]);
    apply(&world, &["{name: a.service, enabled: true}"]);
    assert_eq!(links(&world), [format!("vendor.target.wants/a.service -> {VENDOR}/a.service")]);
}
