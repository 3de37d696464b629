use super::*;
use serde_json::json;

fn file(fields: &Value) -> Value {
    json!({ "ignition": { "version": "3.5.0" }, "storage": { "files": [fields] } })
}

fn refused(json: &Value, dialect: Dialect) -> String {
    parse(json, dialect).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

#[test]
fn every_spec_from_3_0_to_3_6_is_read_and_no_other() {
    for minor in 0..=6 {
        let config = json!({
            "ignition": { "version": format!("3.{minor}.0") },
            "storage": {
                "files": [{ "path": "/etc/a", "mode": 420, "contents": { "source": "data:,a" } }],
                "directories": [{ "path": "/etc/d", "user": { "name": "core" } }],
                "links": [{ "path": "/etc/l", "target": "a", "hard": false }],
            },
            "systemd": { "units": [{ "name": "a.service", "enabled": true, "dropins": [{ "name": "a.conf" }] }] },
            "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": [] }] },
        });
        let parsed = parse(&config, Dialect::Plain).unwrap_or_else(|error| panic!("3.{minor}.0: {error}"));
        assert_eq!(parsed.warnings, Vec::<String>::new(), "3.{minor}.0");
        let storage = parsed.config.storage.unwrap();
        assert_eq!(storage.files.unwrap()[0].mode, Some(420));
        assert_eq!(storage.links.unwrap()[0].target.as_deref(), Some("a"));
        assert_eq!(parsed.config.systemd.unwrap().units.unwrap()[0].enabled, Some(true));
    }
    for version in
        ["2.2.0", "2.3.0", "3.7.0", "3.7.0-experimental", "3.5.0-experimental", "4.0.0", "3.5", "", "x"]
    {
        let found = refused(&json!({ "ignition": { "version": version } }), Dialect::Plain);
        assert_eq!(
            found,
            format!("ignition.version: {version:?} is not supported: Ignition 3.0.0 to 3.6.0 are"),
            "{version}"
        );
    }
    for none in [json!({}), json!({ "ignition": {} }), json!({ "ignition": { "version": 3.5 } }), json!([])] {
        assert_eq!(refused(&none, Dialect::Plain), "ignition.version: missing, or not a string");
    }
}

#[test]
fn a_config_that_cannot_be_verified_or_is_invalid_is_refused_with_field_and_reason() {
    let v = json!({ "version": "3.5.0" });
    let storage = |storage: Value| json!({ "ignition": v, "storage": storage });
    let units = |units: Value| json!({ "ignition": v, "systemd": { "units": units } });
    let cases = vec![
        ("relative", file(&json!({ "path": "etc/a" }))),
        ("dirty", file(&json!({ "path": "/etc/../a" }))),
        ("no path", file(&json!({ "mode": 420 }))),
        ("type of a field", file(&json!({ "path": "/a", "mode": "0644" }))),
        (
            "a value of the wrong type is not repeated",
            file(&json!({ "path": "/a", "contents": "data:,secret" })),
        ),
        ("mode too large", file(&json!({ "path": "/a", "mode": 4096 }))),
        ("negative mode", file(&json!({ "path": "/a", "mode": -1 }))),
        ("id and name", file(&json!({ "path": "/a", "user": { "id": 1, "name": "core" } }))),
        ("id out of range", file(&json!({ "path": "/a", "group": { "id": 4_294_967_295_i64 } }))),
        ("remote", file(&json!({ "path": "/a", "contents": { "source": "https://example.com/a" } }))),
        ("not base64", file(&json!({ "path": "/a", "contents": { "source": "data:;base64,a" } }))),
        (
            "compression",
            file(&json!({ "path": "/a", "contents": { "source": "data:,a", "compression": "xz" } })),
        ),
        ("compression without source", file(&json!({ "path": "/a", "contents": { "compression": "xz" } }))),
        (
            "not gzip",
            file(&json!({ "path": "/a", "contents": { "source": "data:,a", "compression": "gzip" } })),
        ),
        (
            "hash of other content",
            file(
                &json!({ "path": "/a", "contents": { "source": "data:,a", "verification": { "hash": format!("sha256-{:064}", 0) } } }),
            ),
        ),
        (
            "hash form",
            file(
                &json!({ "path": "/a", "contents": { "source": "data:,a", "verification": { "hash": "md5-00" } } }),
            ),
        ),
        (
            "hash of nothing",
            file(&json!({ "path": "/a", "contents": { "verification": { "hash": "sha256-00" } } })),
        ),
        (
            "headers",
            file(
                &json!({ "path": "/a", "contents": { "source": "data:,a", "httpHeaders": [{ "name": "a", "value": "b" }] } }),
            ),
        ),
        ("append", file(&json!({ "path": "/a", "append": [{ "source": "data:,a" }] }))),
        ("overwrite with nothing", file(&json!({ "path": "/a", "overwrite": true }))),
        ("force file", file(&json!({ "path": "/run/machine-config-daemon-force" }))),
        ("twice in one list", storage(json!({ "files": [{ "path": "/a" }, { "path": "/a" }] }))),
        (
            "twice in two lists",
            storage(json!({ "files": [{ "path": "/a" }], "links": [{ "path": "/a", "target": "b" }] })),
        ),
        (
            "below a link",
            storage(
                json!({ "files": [{ "path": "/a/b/c" }], "links": [{ "path": "/a/b", "target": "/d" }] }),
            ),
        ),
        ("link to nowhere", storage(json!({ "links": [{ "path": "/a" }] }))),
        (
            "hard link to a directory",
            storage(
                json!({ "directories": [{ "path": "/d" }], "links": [{ "path": "/a", "target": "/d", "hard": true }] }),
            ),
        ),
        ("unit suffix", units(json!([{ "name": "a.conf" }]))),
        ("unit without suffix", units(json!([{ "name": "a" }]))),
        ("unit that is only a suffix", units(json!([{ "name": ".service" }]))),
        ("unit with a path", units(json!([{ "name": "../a.service" }]))),
        ("unit twice", units(json!([{ "name": "a.service" }, { "name": "a.service" }]))),
        ("drop-in suffix", units(json!([{ "name": "a.service", "dropins": [{ "name": "a" }] }]))),
        (
            "drop-in twice",
            units(json!([{ "name": "a.service", "dropins": [{ "name": "a.conf" }, { "name": "a.conf" }] }])),
        ),
        (
            "file at a unit's path",
            json!({
                "ignition": v,
                "storage": { "files": [{ "path": "/etc/systemd/system/a.service" }] },
                "systemd": { "units": [{ "name": "a.service", "contents": "[Unit]" }] },
            }),
        ),
        (
            "user twice",
            json!({ "ignition": v, "passwd": { "users": [{ "name": "core" }, { "name": "core" }] } }),
        ),
        (
            "password hash with a colon",
            json!({ "ignition": v, "passwd": { "users": [{ "name": "a", "passwordHash": "$6$a:0:0" }] } }),
        ),
        (
            "password hash with a line end",
            json!({ "ignition": v, "passwd": { "users": [{ "name": "a", "passwordHash": "$6$a\nb" }] } }),
        ),
        ("user with a path", json!({ "ignition": v, "passwd": { "users": [{ "name": "a/b" }] } })),
        (
            "relative home",
            json!({ "ignition": v, "passwd": { "users": [{ "name": "a", "homeDir": "home" }] } }),
        ),
        (
            "takes in another",
            json!({ "ignition": { "version": "3.5.0", "config": { "merge": [{ "source": "https://x" }] } } }),
        ),
        (
            "is another",
            json!({ "ignition": { "version": "3.5.0", "config": { "replace": { "source": "https://x" } } } }),
        ),
    ];
    let lines: Vec<String> =
        cases.iter().map(|(why, config)| format!("{why}: {}", refused(config, Dialect::Plain))).collect();
    assert!(!lines.iter().any(|line| line.ends_with("accepted")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("secret") && !line.starts_with("a value")), "{lines:#?}");
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_machine_config_has_rules_of_its_own() {
    let special = file(&json!({ "path": "/a", "mode": 0o4755 }));
    assert_eq!(
        refused(&special, Dialect::MachineConfig),
        "storage.files[0].mode: invalid mode 04755 for /a, cannot exceed 0777",
        "the Machine Config Operator's text"
    );
    let mut newest = special.clone();
    newest["ignition"]["version"] = "3.6.0".into();
    let parsed = parse(&newest, Dialect::Plain).unwrap();
    assert_eq!(parsed.config.storage.unwrap().files.unwrap()[0].mode, Some(0o4755), "3.6 has special bits");
    let parsed = parse(&special, Dialect::Plain).unwrap();
    assert_eq!(parsed.config.storage.unwrap().files.unwrap()[0].mode, Some(0o755), "3.5 has none");
    assert_eq!(parsed.warnings, ["/a: setuid, setgid and sticky bits need spec 3.6.0 and are left out"]);

    let overwrite = file(&json!({ "path": "/a", "overwrite": true }));
    assert_eq!(
        refused(&overwrite, Dialect::MachineConfig),
        "accepted",
        "a rendered config has it everywhere"
    );
}

#[test]
fn an_unusual_value_is_only_a_warning() {
    let config = json!({
        "ignition": { "version": "3.0.0" },
        "storage": {
            "files": [{ "path": "/a", "colour": "red" }],
            "links": [{ "path": "/l", "target": "/a", "hard": true, "user": { "id": 1 } }],
        },
        "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": ["rubbish"] }] },
    });
    assert_eq!(
        parse(&config, Dialect::Plain).unwrap().warnings,
        [
            "/l: user and group are ignored for a hard link",
            "passwd.users[0].sshAuthorizedKeys[0]: line 1: not a key type followed by a key",
        ]
    );
}
