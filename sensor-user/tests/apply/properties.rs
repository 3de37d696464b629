//! From any config to any other and back: every byte and every attribute is as before.

use crate::world::{Snapshot, World};
use proptest::prelude::*;
use std::fmt::Write as _;

/// What a config may say about one path; the host has files of its own at some of them.
#[derive(Debug, Clone)]
enum Said {
    Nothing,
    File { content: u8, mode: u32, owner: u32 },
    Link { target: u8 },
    Directory { mode: u32 },
}

#[derive(Debug, Clone)]
enum Unit {
    Nothing,
    Masked,
    Content { text: u8, enabled: Option<bool>, dropin: bool },
}

#[derive(Debug, Clone)]
struct Config {
    paths: Vec<Said>,
    below: Option<u8>,
    units: Vec<Unit>,
    keys: Vec<bool>,
}

const PATHS: [&str; 5] = ["/etc/original", "/etc/p/a", "/etc/p/b", "/etc/q/deep/c", "/usr/local/bin/tool"];
const UNITS: [&str; 3] = ["one.service", "off.service", "masked.service"];
const KEYS: [&str; 2] = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb first",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb second",
];

fn said() -> impl Strategy<Value = Said> {
    let mode = || prop_oneof![Just(0o644_u32), Just(0o600), Just(0o755)];
    prop_oneof![
        2 => Just(Said::Nothing),
        4 => (0_u8..3, mode(), prop_oneof![Just(0_u32), Just(1000)])
            .prop_map(|(content, mode, owner)| Said::File { content, mode, owner }),
        1 => (0_u8..2).prop_map(|target| Said::Link { target }),
        1 => prop_oneof![Just(0o755_u32), Just(0o700)].prop_map(|mode| Said::Directory { mode }),
    ]
}

fn unit() -> impl Strategy<Value = Unit> {
    prop_oneof![
        Just(Unit::Nothing),
        Just(Unit::Masked),
        (0_u8..2, proptest::option::of(any::<bool>()), any::<bool>())
            .prop_map(|(text, enabled, dropin)| Unit::Content { text, enabled, dropin }),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let paths = proptest::collection::vec(said(), PATHS.len());
    let units = proptest::collection::vec(unit(), UNITS.len());
    let keys = proptest::collection::vec(any::<bool>(), KEYS.len());
    (paths, proptest::option::of(0_u8..2), units, keys).prop_map(|(paths, below, units, keys)| Config {
        paths,
        below,
        units,
        keys,
    })
}

impl Config {
    /// The part of a manifest below `config`.
    fn manifest(&self) -> String {
        let (mut files, mut links, mut directories) = (String::new(), String::new(), String::new());
        let paths = self.paths.iter().zip(PATHS);
        for (said, path) in paths {
            match said {
                Said::Nothing => {}
                Said::File { content, mode, owner } => writeln!(
                    files,
                    "      - {{path: {path}, mode: {mode}, overwrite: true, user: {{id: {owner}}}, \
                     contents: {{source: 'data:,content-{content}'}}}}"
                )
                .unwrap(),
                Said::Link { target } => {
                    writeln!(links, "      - {{path: {path}, target: to-{target}, overwrite: true}}")
                        .unwrap();
                }
                Said::Directory { mode } => {
                    writeln!(directories, "      - {{path: {path}, mode: {mode}, overwrite: true}}").unwrap();
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
        if self.units.iter().any(|unit| !matches!(unit, Unit::Nothing)) {
            text.push_str("    systemd:\n      units:\n");
        }
        for (unit, name) in self.units.iter().zip(UNITS) {
            match unit {
                Unit::Nothing => {}
                Unit::Masked => writeln!(text, "      - {{name: {name}, mask: true}}").unwrap(),
                Unit::Content { text: number, enabled, dropin } => {
                    writeln!(text, "      - name: {name}").unwrap();
                    if let Some(enabled) = enabled {
                        writeln!(text, "        enabled: {enabled}").unwrap();
                    }
                    if *dropin {
                        text.push_str("        dropins: [{name: 10-more.conf, contents: '[Unit]'}]\n");
                    }
                    writeln!(
                        text,
                        "        contents: \"[Unit]\\nDescription={number}\\n[Install]\\nWantedBy=b.target\\n\""
                    )
                    .unwrap();
                }
            }
        }
        text
    }
}

/// Without the line of a password that no config declares: its day is today's.
fn without_shadow(mut snapshot: Snapshot) -> Snapshot {
    snapshot.retain(|path, _| !path.ends_with("shadow"));
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn there_and_back_restores_every_byte_and_attribute(first in config(), second in config()) {
        let world = World::new();
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
        prop_assert_eq!(without_shadow(world.snapshot()), before);
    }
}
