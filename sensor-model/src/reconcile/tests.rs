use super::*;
use crate::changes::tests::{config, files, ignition};
use serde_json::{Value, json};

fn against(old: &Value, new: &Value) -> Vec<String> {
    texts(&reasons(&config(old), &config(new), Overrides::default()).0)
}

fn texts(reasons: &[Irreconcilable]) -> Vec<String> {
    reasons.iter().map(ToString::to_string).collect()
}

fn users(users: &Value) -> Value {
    ignition(&json!({ "passwd": { "users": users } }))
}

const FIPS: &str = "detected change to FIPS flag; refusing to modify FIPS on a running cluster";
const NON_CORE: &str =
    "invalid passwd change(s): ignition passwd user section contains unsupported changes: non-core user";
const NO_KEY: &str = "invalid passwd change(s): ignition passwd user section contains unsupported changes: user must be core and have 1 or more sshKeys";
const OTHER_FIELDS: &str = "invalid passwd change(s): SSH keys and password hash are not reconcilable";

#[test]
fn each_change_that_a_running_node_cannot_take_has_its_text() {
    let core = |key: &str| json!([{ "name": "core", "sshAuthorizedKeys": [key] }]);
    for (old, new, expected) in [
        (
            json!({}),
            ignition(&json!({ "passwd": { "groups": [{ "name": "wheel" }] } })),
            &["invalid passwd change(s): ignition Passwd Groups section contains changes"][..],
        ),
        (users(&json!([])), users(&json!([{ "name": "bob", "sshAuthorizedKeys": ["k"] }])), &[NON_CORE]),
        (
            users(&json!([{ "name": "bob" }, { "name": "core", "sshAuthorizedKeys": ["k"] }])),
            users(&core("k")),
            &[NON_CORE],
        ),
        (users(&core("k")), users(&json!([{ "name": "core" }])), &[NO_KEY]),
        (
            users(&core("k")),
            users(&json!([{ "name": "core", "sshAuthorizedKeys": ["k"], "homeDir": "/x" }])),
            &[OTHER_FIELDS],
        ),
        (users(&core("k")), users(&core("l")), &[]),
        (users(&core("k")), users(&json!([{ "name": "core", "passwordHash": "x" }])), &[]),
        (users(&json!([{ "name": "bob" }])), users(&json!([])), &[]),
        // A user without changes is no reason.
        (
            users(&json!([{ "name": "bob", "uid": 7 }])),
            users(&json!([{ "name": "bob", "uid": 7 }, { "name": "core", "sshAuthorizedKeys": ["k"] }])),
            &[],
        ),
        (
            json!({}),
            ignition(&json!({ "kernelArguments": { "shouldExist": ["a"] } })),
            &["ignition kargs section contains changes"],
        ),
        (
            ignition(&json!({ "storage": { "disks": [{ "device": "/dev/a", "wipeTable": false }] } })),
            ignition(&json!({ "storage": { "disks": [{ "device": "/dev/a", "wipeTable": true }] } })),
            &["ignition disks section contains changes"],
        ),
        (
            ignition(&json!({ "storage": { "filesystems": [{ "device": "/dev/a", "format": "xfs" }] } })),
            json!({}),
            &["ignition filesystems section contains changes"],
        ),
        (
            json!({}),
            ignition(
                &json!({ "storage": { "raid": [{ "name": "r", "level": "raid1", "devices": ["/dev/a"] }] } }),
            ),
            &["ignition raid section contains changes"],
        ),
        (
            json!({}),
            ignition(&json!({ "storage": { "luks": [{ "name": "l", "device": "/dev/a" }] } })),
            &["ignition luks section contains changes"],
        ),
        (
            json!({}),
            files(&json!([{ "path": "/etc/a", "append": [{ "source": "data:,a" }] }])),
            &["ignition file /etc/a includes append"],
        ),
        (
            json!({}),
            files(&json!([{ "path": "/run/machine-config-daemon-force" }])),
            &["cannot create /run/machine-config-daemon-force via Ignition"],
        ),
        (json!({}), json!({ "fips": true }), &[FIPS]),
        (json!({ "fips": true }), json!({ "fips": false }), &[FIPS]),
        // The Machine Config Operator refuses these, and Holdfast manages them.
        (
            json!({}),
            ignition(&json!({ "storage": {
                "directories": [{ "path": "/etc/d" }], "links": [{ "path": "/etc/l", "target": "a" }],
            } })),
            &[],
        ),
    ] {
        assert_eq!(against(&old, &new), expected, "{old} -> {new}");
    }
}

#[test]
fn every_reason_is_reported_at_once() {
    let new = json!({
        "fips": true,
        "config": {
            "ignition": {
                "version": "3.5.0", "timeouts": { "httpTotal": 3 }, "proxy": { "httpProxy": "http://x" },
                "security": { "tls": { "certificateAuthorities": [{ "source": "data:,x" }] } },
            },
            "kernelArguments": { "shouldNotExist": ["a"] },
            "passwd": { "groups": [{ "name": "g" }], "users": [
                { "name": "bob" }, { "name": "eve" }, { "name": "core", "shell": "/bin/sh" },
            ] },
            "storage": {
                "disks": [{ "device": "/dev/a" }],
                "filesystems": [{ "device": "/dev/b" }],
                "raid": [{ "name": "r", "level": "linear" }],
                "luks": [{ "name": "l" }],
                "files": [
                    { "path": "/etc/a", "append": [{ "source": "data:,a" }] },
                    { "path": "/etc/b", "append": [{ "source": "data:,a" }] },
                    { "path": "/run/machine-config-daemon-force" },
                ],
            },
        },
    });
    insta::assert_snapshot!(against(&json!({}), &new).join("\n"));
}

#[test]
fn the_order_of_named_things_and_what_is_left_out_are_no_changes() {
    let old = ignition(&json!({
        "storage": { "disks": [{ "device": "/dev/a" }, { "device": "/dev/b", "partitions": [] }] },
        "passwd": { "groups": [{ "name": "a", "gid": 1 }, { "name": "b" }] },
    }));
    let new = ignition(&json!({
        "storage": { "disks": [{ "device": "/dev/b" }, { "device": "/dev/a" }], "raid": [] },
        "passwd": { "groups": [{ "name": "b" }, { "name": "a", "gid": 1 }] },
    }));
    assert_eq!(against(&old, &new), Vec::<String>::new());
}

#[test]
fn an_administrator_overrides_only_the_named_sections() {
    let new = ignition(&json!({ "storage": {
        "disks": [{ "device": "/dev/a" }], "filesystems": [{ "device": "/dev/b" }],
        "raid": [{ "name": "r", "level": "linear" }], "luks": [{ "name": "l" }],
    } }));
    let overrides = Overrides { disks: true, filesystems: false, raid: true };
    let (reasons, overridden) = reasons(&config(&json!({})), &config(&new), overrides);
    assert_eq!(
        texts(&reasons),
        ["ignition filesystems section contains changes", "ignition luks section contains changes"]
    );
    assert_eq!(
        texts(&overridden),
        ["ignition disks section contains changes", "ignition raid section contains changes"]
    );
}

#[test]
fn a_node_cannot_take_another_fips_mode_or_another_architectures_kernel() {
    let plain = config(&json!({}));
    let fips = config(&json!({ "fips": true }));
    let large = config(&json!({ "kernelType": "64k-pages" }));
    let node = |fips, architecture: &str| NodeFacts { fips, architecture: architecture.to_owned() };
    assert_eq!(against_node(&node(None, "x86_64"), &plain), []);
    assert_eq!(against_node(&node(Some(false), "x86_64"), &fips), [Irreconcilable::Fips]);
    assert_eq!(against_node(&node(Some(true), "x86_64"), &plain), [Irreconcilable::Fips]);
    assert_eq!(against_node(&node(Some(true), "x86_64"), &fips), []);
    assert_eq!(against_node(&node(None, "aarch64"), &large), []);
    assert_eq!(
        texts(&against_node(&node(None, "x86_64"), &large)),
        [
            "MachineConfig rendered-worker-1: spec.kernelType: 64k-pages needs a node of architecture aarch64, this one is x86_64"
        ]
    );
}
