use super::*;
use crate::changes::{compare, tests::config};
use crate::expectations::expectations;
use crate::machine_config::API_VERSION;
use crate::reconcile::Overrides;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGhhbGxv me";

fn base() -> Value {
    json!({
        "kernelArguments": ["quiet", "nosmt"], "kernelType": "realtime", "extensions": ["usbguard", "ipsec"],
        "fips": true, "osImageURL": "registry/os@sha256:1", "baseOSExtensionsContainerImage": "registry/x@sha256:2",
        "config": {
            "ignition": { "version": "3.5.0" },
            "storage": {
                "files": [
                    { "path": "/etc/a", "mode": 0o600, "contents": { "source": "data:,a%20b%0A" } },
                    { "path": "/etc/b", "contents": { "source": "data:," } },
                ],
                "directories": [{ "path": "/etc/d" }],
                "links": [{ "path": "/etc/l", "target": "a" }, { "path": "/etc/h", "target": "/etc/a", "hard": true }],
                "filesystems": [{ "device": "/dev/a", "format": "xfs" }, { "device": "/dev/b", "format": "xfs" }],
            },
            "systemd": { "units": [
                { "name": "a.service", "contents": "[Service]\n", "enabled": true,
                  "dropins": [{ "name": "10.conf", "contents": "[Unit]\n" }, { "name": "20.conf" }] },
                { "name": "b.service", "mask": true },
            ] },
            "passwd": { "users": [
                { "name": "core", "sshAuthorizedKeys": [KEY], "passwordHash": "$6$secret" },
                { "name": "none", "sshAuthorizedKeys": [] },
            ] },
        },
    })
}

/// The base with another value at a place of its spec.
fn with(pointer: &str, value: Value) -> Value {
    let mut spec = base();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match spec.pointer_mut(parent).unwrap() {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
        parent => parent[key] = value,
    }
    spec
}

/// The base in other words.
fn same() -> Vec<Value> {
    let files = "/config/storage/files";
    let mut reversed = base();
    for list in ["storage/files", "storage/links", "storage/filesystems", "systemd/units", "passwd/users"] {
        reversed.pointer_mut(&format!("/config/{list}")).unwrap().as_array_mut().unwrap().reverse();
    }
    let source = |source: &str| with(&format!("{files}/0/contents/source"), source.into());
    vec![
        reversed,
        source("data:;base64,YSBiCg=="),
        source("data:text/plain;charset=utf-8;base64,YSBiCg=="),
        source("data:,%61%20b%0a"),
        // The same content, compressed by gzip.
        with(
            &format!("{files}/0/contents"),
            json!({ "source": crate::data_url::encode(&gzip(b"a b\n")), "compression": "gzip" }),
        ),
        with(&format!("{files}/0/contents/compression"), "".into()),
        with(&format!("{files}/0/overwrite"), true.into()),
        with(&format!("{files}/1/contents"), json!({})),
        with(&format!("{files}/1/mode"), 0o644.into()),
        with(&format!("{files}/1/user"), json!({ "id": 0 })),
        with(&format!("{files}/1/append"), json!([])),
        with("/config/storage/directories/0/mode", 0o755.into()),
        with("/config/storage/links/0/hard", false.into()),
        with("/config/storage/raid", json!([])),
        with("/config/systemd/units/0/dropins/1/contents", "".into()),
        with("/config/systemd/units/-", json!({ "name": "nothing.service" })),
        with("/config/passwd/users/0/gecos", "".into()),
        with("/config/passwd/groups", json!([])),
        with("/config/ignition/timeouts", json!({})),
        with("/extensions", json!(["ipsec", "usbguard", "ipsec"])),
        with("/kernelArguments", json!(["quiet nosmt"])),
    ]
}

/// Configs that differ from the base and from each other.
fn others() -> Vec<Value> {
    let units = "/config/systemd/units";
    vec![
        json!({}),
        with("/config/storage/files/0/path", "/etc/other".into()),
        with("/config/storage/files/0/contents/source", "data:,a".into()),
        with("/config/storage/files/0/mode", 0o644.into()),
        with("/config/storage/files/0/user", json!({ "name": "core" })),
        with("/config/storage/files/0/group", json!({ "id": 5 })),
        with("/config/storage/files/0/append", json!([{ "source": "data:,x" }])),
        with("/config/storage/files/-", json!({ "path": "/etc/c", "contents": { "source": "data:," } })),
        with("/config/storage/directories/0/mode", 0o700.into()),
        with("/config/storage/directories/0/user", json!({ "id": 1 })),
        with("/config/storage/links/0/target", "b".into()),
        with("/config/storage/links/0/hard", true.into()),
        with("/config/storage/filesystems/0/format", "ext4".into()),
        with(&format!("{units}/0/contents"), "[Service]\n#\n".into()),
        with(&format!("{units}/0/enabled"), false.into()),
        with(&format!("{units}/0/enabled"), Value::Null),
        with(&format!("{units}/0/mask"), true.into()),
        with(&format!("{units}/0/dropins/0/contents"), "[Unit]\n#\n".into()),
        with(&format!("{units}/0/dropins/0/name"), "30.conf".into()),
        with(&format!("{units}/1/mask"), false.into()),
        with("/config/passwd/users/0/sshAuthorizedKeys", json!([])),
        with("/config/passwd/users/1/sshAuthorizedKeys", Value::Null),
        with("/config/passwd/users/0/passwordHash", "$6$other".into()),
        with("/config/passwd/users/0/homeDir", "/srv".into()),
        with("/config/ignition/timeouts", json!({ "httpTotal": 5 })),
        with("/kernelArguments", json!(["nosmt", "quiet"])),
        with("/kernelType", "default".into()),
        with("/extensions", json!(["usbguard"])),
        with("/fips", false.into()),
        with("/osImageURL", "registry/os@sha256:9".into()),
        with("/baseOSExtensionsContainerImage", "".into()),
    ]
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn digest(spec: &Value) -> String {
    config_digest(&config(spec))
}

#[test]
fn the_digest_is_the_same_with_the_contents_of_the_expectations() {
    for spec in [base()].iter().chain(&same()).chain(&others()) {
        let config = config(spec);
        assert_eq!(
            config_digest_with(&config, &expectations(&config).unwrap()),
            config_digest(&config),
            "{spec}"
        );
    }
}

#[test]
fn a_content_of_the_expectations_counts_as_that_of_the_config() {
    let (one, other) =
        (config(&base()), config(&with("/config/storage/files/0/contents/source", "data:,x".into())));
    assert_eq!(config_digest_with(&one, &expectations(&other).unwrap()), config_digest(&other));
}

#[test]
fn the_form_of_a_declaration_does_not_count() {
    let wanted = digest(&base());
    for (number, spec) in same().iter().enumerate() {
        assert_eq!(digest(spec), wanted, "number {number}");
    }
}

#[test]
fn every_part_of_a_declaration_counts() {
    let mut known = vec![(usize::MAX, digest(&base()))];
    for (number, spec) in others().iter().enumerate() {
        let digest = digest(spec);
        let equal = known.iter().find(|(_, other)| *other == digest);
        assert_eq!(equal, None, "{number} has the digest of another one");
        known.push((number, digest));
    }
}

/// What a config expects, without its sources.
fn expected(config: &Rendered) -> Vec<String> {
    let all = expectations(config).unwrap();
    all.into_iter()
        .map(|one| format!("{:?} {:?} {:?} {}", one.thing, one.expected, one.label, one.ssh_keys))
        .collect()
}

#[test]
fn configs_with_one_digest_expect_the_same_and_have_no_changes() {
    let all: Vec<Rendered> = [base()].iter().chain(&same()).chain(&others()).map(config).collect();
    for one in &all {
        for other in &all {
            if config_digest(one) == config_digest(other) {
                assert_eq!(expected(one), expected(other));
                let found = compare(Some(one), Some(other), Overrides::default()).unwrap();
                assert!(found.changes.is_empty(), "{found:?}");
            }
        }
    }
}

#[test]
fn the_file_of_the_operators_daemon_has_the_digest_of_the_object_of_the_cluster() {
    let object = json!({
        "apiVersion": API_VERSION, "kind": "MachineConfig",
        "metadata": {
            "name": "rendered-worker-1", "uid": "u", "resourceVersion": "17", "generation": 2,
            "labels": { "x": "y" },
            "annotations": { "machineconfiguration.openshift.io/generated-by-controller-version": "abc" },
        },
        "spec": base(),
    });
    // As Go writes its type: without kind and version, and with empty fields.
    let mut spec = base();
    spec["kernelType"] = "realtime".into();
    let stored =
        json!({ "metadata": { "name": "rendered-worker-1", "creationTimestamp": null }, "spec": spec });
    let of = |object: &Value| digest_of_object("test", object.to_string().as_bytes()).unwrap();
    assert_eq!(of(&object), of(&stored));
    assert_eq!(of(&object), digest(&base()), "as the sensor makes it");
    let mut hidden = stored.clone();
    hidden["spec"]["config"]["storage"]["files"].as_array_mut().unwrap().remove(0);
    assert_ne!(of(&hidden), of(&object), "a file is gone");
}

#[test]
fn what_is_not_one_machine_config_has_no_digest() {
    let pool =
        json!({ "apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": { "name": "worker" } });
    assert!(matches!(digest_of_object("test", pool.to_string().as_bytes()), Err(DigestError::NotOne)));
    assert!(matches!(digest_of_object("test", b"{"), Err(DigestError::Object(_))));
}

#[test]
fn digests_of_other_forms_are_not_compared() {
    assert_eq!(is_same_content("v1:a", "v1:a"), Some(true));
    assert_eq!(is_same_content("v1:a", "v1:b"), Some(false));
    for (one, other) in [("v1:a", "v2:a"), ("v1:a", "a"), ("a", "a"), ("", "")] {
        assert_eq!(is_same_content(one, other), None, "{one} {other}");
    }
}

/// A sensor and a reporter of two versions compare their digests. A change of the hashed content needs another [`FORM`].
#[test]
fn the_digest_of_a_config_is_the_same_in_each_version() {
    assert_eq!(digest(&base()), "v1:3d2de171218ed62b6c3b71ee954364190c1623ff722982c5d4da184e87850fc4");
}
