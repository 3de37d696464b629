//! From any config to any other and back: every byte and every attribute is as before.

use crate::world::{Snapshot, World};
use proptest::prelude::*;
use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
};

/// A declaration of one path. The host has files of its own at some of these paths.
#[derive(Debug, Clone)]
enum PathDeclaration {
    Nothing,
    File { content: u8, mode: u32, owner: u32 },
    Link { target: u8 },
    Directory { mode: u32 },
}

#[derive(Debug, Clone)]
enum UnitDeclaration {
    Nothing,
    Masked,
    /// The host's own file.
    Bare {
        enabled: bool,
    },
    Content {
        text: u8,
        enabled: Option<bool>,
        dropin: bool,
    },
}

#[derive(Debug, Clone)]
struct GeneratedConfig {
    paths: Vec<PathDeclaration>,
    below: Option<u8>,
    /// A file in each path that is declared as a directory.
    inside: bool,
    units: Vec<UnitDeclaration>,
    keys: Vec<bool>,
}

const PATHS: [&str; 7] = [
    "/etc/original",
    "/etc/p/a",
    "/etc/p/b",
    "/etc/q/deep/c",
    "/usr/local/bin/tool",
    "/etc/same/file",
    "/etc/same/link",
];
/// The host has files of all except the first two. The template's file is also its instance's.
const UNITS: [&str; 7] = [
    "one.service",
    "masked.service",
    "off.service",
    "named.service",
    "named.socket",
    "many@.service",
    "many@x.service",
];
const KEYS: [&str; 2] = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb first",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb second",
];

fn said() -> impl Strategy<Value = PathDeclaration> {
    let mode = || prop_oneof![Just(0o644_u32), Just(0o600), Just(0o755)];
    prop_oneof![
        2 => Just(PathDeclaration::Nothing),
        4 => (0_u8..3, mode(), prop_oneof![Just(0_u32), Just(1000)])
            .prop_map(|(content, mode, owner)| PathDeclaration::File { content, mode, owner }),
        1 => (0_u8..2).prop_map(|target| PathDeclaration::Link { target }),
        1 => prop_oneof![Just(0o755_u32), Just(0o700)].prop_map(|mode| PathDeclaration::Directory { mode }),
    ]
}

/// The possible declarations of this unit. Only a unit that has a file can be enabled. A masked template, or one whose
/// file is removed, has no instance to enable.
fn unit(number: usize) -> BoxedStrategy<UnitDeclaration> {
    let content = || {
        (0_u8..3, proptest::option::of(any::<bool>()), any::<bool>())
            .prop_map(|(text, enabled, dropin)| UnitDeclaration::Content { text, enabled, dropin })
    };
    let bare = || any::<bool>().prop_map(|enabled| UnitDeclaration::Bare { enabled });
    match UNITS[number] {
        "one.service" | "masked.service" => {
            prop_oneof![Just(UnitDeclaration::Nothing), Just(UnitDeclaration::Masked), content()].boxed()
        }
        "many@.service" => prop_oneof![Just(UnitDeclaration::Nothing), bare(), content()].boxed(),
        "many@x.service" => prop_oneof![Just(UnitDeclaration::Nothing), bare()].boxed(),
        _ => prop_oneof![Just(UnitDeclaration::Nothing), Just(UnitDeclaration::Masked), bare(), content()]
            .boxed(),
    }
}

/// The install section of a unit's file.
fn install(unit: &str, text: u8) -> String {
    match (unit.contains('@'), text) {
        (false, 0) => "WantedBy=b.target".to_owned(),
        (false, 1) => format!("WantedBy=b.target c.target\\nAlias=also-{unit}"),
        (false, _) => "RequiredBy=b.target\\nAlso=named.socket".to_owned(),
        (true, 0) => "WantedBy=b.target\\nDefaultInstance=first".to_owned(),
        (true, 1) => format!("WantedBy=b.target c.target\\nDefaultInstance=second\\nAlias=also-{unit}"),
        (true, _) => "RequiredBy=b.target\\nDefaultInstance=first\\nAlso=named.service".to_owned(),
    }
}

fn config() -> impl Strategy<Value = GeneratedConfig> {
    let paths = proptest::collection::vec(said(), PATHS.len());
    let units = (0..UNITS.len()).map(unit).collect::<Vec<_>>();
    let keys = proptest::collection::vec(any::<bool>(), KEYS.len());
    let below = (proptest::option::of(0_u8..2), any::<bool>());
    (paths, below, units, keys).prop_map(|(paths, (below, inside), units, keys)| GeneratedConfig {
        paths,
        below,
        inside,
        units,
        keys,
    })
}

impl GeneratedConfig {
    /// The part of a manifest below `config`.
    fn manifest(&self) -> String {
        let (mut files, mut links, mut directories) = (String::new(), String::new(), String::new());
        let paths = self.paths.iter().zip(PATHS);
        for (said, path) in paths {
            match said {
                PathDeclaration::Nothing => {}
                PathDeclaration::File { content, mode, owner } => writeln!(
                    files,
                    "      - {{path: {path}, mode: {mode}, overwrite: true, user: {{id: {owner}}}, \
                     contents: {{source: 'data:,content-{content}'}}}}"
                )
                .unwrap(),
                PathDeclaration::Link { target } => {
                    writeln!(links, "      - {{path: {path}, target: to-{target}, overwrite: true}}")
                        .unwrap();
                }
                PathDeclaration::Directory { mode } => {
                    writeln!(directories, "      - {{path: {path}, mode: {mode}, overwrite: true}}").unwrap();
                    if self.inside {
                        writeln!(files, "      - {{path: {path}/in, contents: {{source: 'data:,in'}}}}")
                            .unwrap();
                    }
                }
            }
        }
        if let Some(content) = self.below {
            writeln!(files, "      - {{path: /etc/r/s/t/u, contents: {{source: 'data:,{content}'}}}}")
                .unwrap();
        }
        let mut text = String::new();
        let keys: Vec<String> = self
            .keys
            .iter()
            .zip(KEYS)
            .filter(|(said, _)| **said)
            .map(|(_, key)| format!("'{key}'"))
            .collect();
        if !keys.is_empty() {
            let keys = keys.join(", ");
            writeln!(text, "    passwd: {{users: [{{name: core, sshAuthorizedKeys: [{keys}]}}]}}").unwrap();
        }
        let sections = [("files", files), ("links", links), ("directories", directories)];
        if sections.iter().any(|(_, section)| !section.is_empty()) {
            text.push_str("    storage:\n");
        }
        for (name, section) in sections.iter().filter(|(_, section)| !section.is_empty()) {
            write!(text, "      {name}:\n{section}").unwrap();
        }
        if self.units.iter().any(|unit| !matches!(unit, UnitDeclaration::Nothing)) {
            text.push_str("    systemd:\n      units:\n");
        }
        for (unit, name) in self.units.iter().zip(UNITS) {
            match unit {
                UnitDeclaration::Nothing => {}
                UnitDeclaration::Masked => writeln!(text, "      - {{name: {name}, mask: true}}").unwrap(),
                UnitDeclaration::Bare { enabled } => {
                    writeln!(text, "      - {{name: {name}, enabled: {enabled}}}").unwrap();
                }
                UnitDeclaration::Content { text: number, enabled, dropin } => {
                    writeln!(text, "      - name: {name}").unwrap();
                    if let Some(enabled) = enabled {
                        writeln!(text, "        enabled: {enabled}").unwrap();
                    }
                    if *dropin {
                        text.push_str("        dropins: [{name: 10-more.conf, contents: '[Unit]'}]\n");
                    }
                    let install = install(name, *number);
                    writeln!(
                        text,
                        "        contents: \"[Unit]\\nDescription={number}\\n[Install]\\n{install}\\n\""
                    )
                    .unwrap();
                }
            }
        }
        text
    }
}

/// Sets an attribute that only some file systems support; every file system supports `trusted.`.
fn attribute(world: &World, path: &str, name: &str, value: &[u8]) {
    let set = rustix::fs::lsetxattr(world.at(path), name, value, rustix::fs::XattrFlags::empty());
    assert!(
        set.is_ok() || (!name.starts_with("trusted.") && set == Err(rustix::io::Errno::OPNOTSUPP)),
        "{set:?}"
    );
}

/// A host with objects of its own at the paths of the configs, with every attribute, and with units that several names
/// enable.
fn host() -> World {
    let world = World::new();
    for (path, value) in
        [("/etc/original", &b"kept\0\xff"[..]), ("/usr/local/bin/tool", b""), ("/etc/p/b", b"kept")]
    {
        match path {
            "/etc/p/b" => fs::create_dir_all(world.at(path)).unwrap(),
            _ => world.write(path, "the host's"),
        }
        chown(world.at(path), Some(1000), Some(7)).unwrap();
        fs::set_permissions(world.at(path), fs::Permissions::from_mode(0o2751)).unwrap();
        attribute(&world, path, "user.note", value);
        // No config declares attributes of these. A declared directory keeps them, unless something else replaces it.
        if path != "/etc/p/b" {
            attribute(&world, path, "trusted.note", value);
        }
    }
    // Another user may read it, too.
    let entries =
        [(1_u16, 6_u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        list.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    attribute(&world, "/etc/original", "system.posix_acl_access", &list);
    symlink("somewhere", world.at("/etc/p/a")).unwrap();
    std::os::unix::fs::lchown(world.at("/etc/p/a"), Some(1000), Some(7)).unwrap();

    // Objects that a config may declare exactly as they are.
    world.write("/etc/same/file", "content-0");
    symlink("to-0", world.at("/etc/same/link")).unwrap();
    symlink("/dev/null", world.at("/etc/systemd/system/masked.service")).unwrap();
    world.write("/etc/systemd/system/one.service.d/10-more.conf", "[Unit]");

    let vendor = "/usr/lib/systemd/system";
    for (unit, install) in [
        ("named.service", "WantedBy=a.target\nAlias=alias.service\nAlso=named.socket\n"),
        ("named.socket", "WantedBy=a.target\n"),
        ("many@.service", "WantedBy=a.target\nDefaultInstance=main\nAlias=alias@.service\n"),
    ] {
        world.write(&format!("{vendor}/{unit}"), &format!("[Install]\n{install}"));
    }
    let system = "/etc/systemd/system";
    for (link, unit) in [
        ("a.target.wants/named.socket", "named.socket"),
        ("old-name.service", "named.service"),
        ("a.target.wants/many@y.service", "many@.service"),
    ] {
        symlink(format!("{vendor}/{unit}"), world.at(&format!("{system}/{link}"))).unwrap();
    }
    world
}

/// Without the line of a password that no config declares: its day is today.
fn without_shadow(mut snapshot: Snapshot) -> Snapshot {
    snapshot.retain(|path, _| !path.ends_with("shadow"));
    snapshot
}

/// Applies the first config, then the second, rolls back, and removes all declarations.
fn there_and_back(first: &GeneratedConfig, second: &GeneratedConfig) -> Result<(), TestCaseError> {
    let world = host();
    let fresh = without_shadow(world.snapshot());
    world.config("first", &first.manifest());
    world.config("second", &second.manifest());
    let said = world.apply(&["first"], "");
    prop_assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let before = without_shadow(world.snapshot());

    let said = world.apply(&["second"], "");
    prop_assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let is_same = world.current().as_deref() == Some("generations/1/config");
    prop_assert!(!is_same || first.manifest() == second.manifest(), "a change was passed over");
    let said = world.apply(&["second"], "");
    prop_assert!(said.out.contains("nothing to do"), "applied twice: {}{}", said.out, said.err);

    if !is_same {
        let said = world.run(&["rollback", "--no-acts"], "");
        prop_assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    }
    prop_assert_eq!(without_shadow(world.snapshot()), before, "after the rollback");

    // When nothing is declared any more, the host has its first state again.
    for config in ["second", "nothing"] {
        let said = world.apply(&[config], "");
        prop_assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    }
    prop_assert_eq!(without_shadow(world.snapshot()), fresh, "without any config");
    Ok(())
}

#[test]
fn links_of_units_in_the_install_section_of_another_unit_are_restored() {
    let nothing = GeneratedConfig {
        paths: vec![PathDeclaration::Nothing; PATHS.len()],
        below: None,
        inside: false,
        units: vec![UnitDeclaration::Nothing; UNITS.len()],
        keys: vec![false; KEYS.len()],
    };
    let content = |text, enabled| UnitDeclaration::Content { text, enabled, dropin: false };
    let (mut first, mut second) = (nothing.clone(), nothing);
    first.units[3] = content(0, Some(false));
    first.units[4] = content(0, None);
    second.units[4] = content(0, None);
    second.units[5] = content(2, None);
    second.units[6] = UnitDeclaration::Bare { enabled: false };
    there_and_back(&first, &second).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn applying_another_config_and_back_restores_every_byte_and_attribute(first in config(), second in config()) {
        there_and_back(&first, &second)?;
    }
}
