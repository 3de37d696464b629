use super::pairs::pairs;
use super::*;
use crate::{ignition::Purpose, machine_config, merge};
use serde_json::{Value, json};

/// A rendered config from a MachineConfig's `spec`.
pub(crate) fn config(spec: &Value) -> Rendered {
    named("rendered-worker-1", spec)
}

pub(crate) fn named(name: &str, spec: &Value) -> Rendered {
    let manifest = json!({
        "apiVersion": machine_config::API_VERSION, "kind": "MachineConfig",
        "metadata": { "name": name }, "spec": spec,
    });
    let bytes = serde_json::to_vec(&manifest).unwrap();
    let mut parsed = machine_config::parse_for("test", &bytes, Purpose::Compare).unwrap().machine_configs;
    merge::rendered(parsed.remove(0)).unwrap()
}

/// A spec with this Ignition config.
pub(crate) fn ignition(config: &Value) -> Value {
    let mut config = config.clone();
    config["ignition"] = json!({ "version": "3.5.0" });
    json!({ "config": config })
}

pub(crate) fn files(files: &Value) -> Value {
    ignition(&json!({ "storage": { "files": files } }))
}

fn found(old: &Value, new: &Value) -> Vec<String> {
    let compared = compare(Some(&config(old)), Some(&config(new)), Overrides::default()).unwrap();
    compared
        .changes
        .iter()
        .map(|change| {
            let details = change.details.join("; ");
            format!("{} {} {} [{details}]", change.operation.as_str(), change.kind.as_str(), change.name)
        })
        .collect()
}

fn everything() -> Value {
    json!({
        "kernelArguments": ["quiet", "nosmt"], "kernelType": "realtime", "extensions": ["usbguard"],
        "fips": true, "osImageURL": "registry/os@sha256:1",
        "config": {
            "ignition": { "version": "3.5.0" },
            "storage": {
                "files": [{ "path": "/etc/a", "contents": { "source": "data:,a" } }],
                "directories": [{ "path": "/etc/d" }],
                "links": [{ "path": "/etc/l", "target": "a" }],
            },
            "systemd": { "units": [{ "name": "a.service", "contents": "[Service]\n", "enabled": true }] },
            "passwd": { "users": [{
                "name": "core", "sshAuthorizedKeys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGhhbGxv me"],
                "passwordHash": "$6$secret",
            }] },
        },
    })
}

#[test]
fn identical_configs_have_no_changes_and_a_missing_one_declares_nothing() {
    let all = config(&everything());
    assert_eq!(compare(Some(&all), Some(&all), Overrides::default()), Ok(Comparison::default()));
    assert_eq!(compare(None, None, Overrides::default()), Ok(Comparison::default()));
    let empty = config(&json!({}));
    for (old, new) in [(None, Some(&all)), (Some(&all), None)] {
        let missing = compare(old, new, Overrides::default());
        assert_eq!(missing, compare(old.or(Some(&empty)), new.or(Some(&empty)), Overrides::default()));
        // Everything except FIPS, which is also a reason, is added or removed.
        assert_eq!(missing.unwrap().changes.len(), 12);
    }
}

#[test]
fn every_part_of_a_config_is_compared() {
    insta::assert_snapshot!(found(&json!({}), &everything()).join("\n"));
    insta::assert_snapshot!(found(&everything(), &json!({})).join("\n"));
}

#[test]
fn another_form_of_the_same_value_is_no_change() {
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write as _;
    let gzipped = |level| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(b"a b\n").unwrap();
        crate::data_url::encode(&encoder.finish().unwrap())
    };
    let file = |contents: &Value| {
        files(&json!([
            { "path": "/etc/x", "contents": contents },
            { "path": "/etc/y", "mode": 420 },
        ]))
    };
    let forms = [
        file(&json!({ "source": "data:,a%20b%0A" })),
        file(&json!({ "source": "data:text/plain,a%20b%0a" })),
        file(&json!({ "source": "data:;base64,YSBiCg==" })),
        file(&json!({ "source": "data:text/plain;charset=utf-8;base64,YSBiCg==", "compression": "" })),
        file(&json!({ "source": gzipped(1), "compression": "gzip" })),
        file(&json!({ "source": gzipped(9), "compression": "gzip" })),
        // Defaults with and without a declaration, another order, another version, another spelling of root.
        json!({ "config": { "ignition": { "version": "3.2.0" }, "storage": { "files": [
            { "path": "/etc/y", "contents": { "source": "" }, "user": { "id": 0 }, "group": {} },
            { "path": "/etc/x", "mode": 420, "overwrite": true, "contents": { "source": "data:,a%20b%0A" } },
        ] }, "systemd": { "units": [] }, "passwd": {} }, "kernelType": "default", "extensions": [] }),
    ];
    for old in &forms {
        for new in &forms {
            assert_eq!(found(old, new), Vec::<String>::new(), "{old} -> {new}");
        }
    }
    let renamed = compare(
        Some(&named("rendered-worker-1", &everything())),
        Some(&named("rendered-worker-2", &everything())),
        Overrides::default(),
    );
    assert_eq!(renamed, Ok(Comparison::default()));
}

#[test]
fn each_attribute_is_a_detail_of_one_change() {
    let old = ignition(&json!({
        "storage": {
            "files": [
                { "path": "/etc/content", "contents": { "source": "data:;base64,YWFhYQ==" } },
                { "path": "/etc/longer", "contents": { "source": "data:;base64,YWFhYQ==" } },
                { "path": "/etc/last", "contents": { "source": "data:;base64,YWFhYQ==" } },
                { "path": "/etc/mode" }, { "path": "/etc/owner" }, { "path": "/etc/becomes" },
            ],
            "directories": [{ "path": "/etc/d", "mode": 493 }],
            "links": [{ "path": "/etc/l", "target": "a" }, { "path": "/etc/h", "target": "/etc/mode" }],
        },
        "systemd": { "units": [
            { "name": "a.service", "contents": "[Service]\n", "dropins": [
                { "name": "gone.conf", "contents": "x" }, { "name": "other.conf", "contents": "x" },
            ] },
            { "name": "b.service", "enabled": false },
            { "name": "nothing.service", "dropins": [] },
        ] },
    }));
    let new = ignition(&json!({
        "storage": {
            "files": [
                { "path": "/etc/content", "contents": { "source": "data:;base64,YmFhYQ==" } },
                { "path": "/etc/longer", "contents": { "source": "data:;base64,YWFhYWFhYWE=" } },
                { "path": "/etc/last", "contents": { "source": "data:;base64,YWFhYg==" } },
                { "path": "/etc/mode", "mode": 384 },
                { "path": "/etc/owner", "user": { "name": "core" }, "group": { "id": 1000 } },
            ],
            "directories": [{ "path": "/etc/d", "mode": 448, "user": { "id": 1000 } }],
            "links": [
                { "path": "/etc/becomes", "target": "/etc/mode" },
                { "path": "/etc/l", "target": "b" }, { "path": "/etc/h", "target": "/etc/mode", "hard": true },
            ],
        },
        "systemd": { "units": [
            { "name": "a.service", "contents": "[Service]\nX=1\n", "enabled": true, "dropins": [
                { "name": "new.conf", "contents": "x" }, { "name": "other.conf", "contents": "y" },
            ] },
            { "name": "b.service", "mask": true },
        ] },
    }));
    insta::assert_snapshot!(found(&old, &new).join("\n"));
}

#[test]
fn keys_are_named_by_fingerprint_and_hashes_not_at_all() {
    let user = |keys: &Value, hash: &Value| {
        ignition(&json!({ "passwd": { "users": [
            { "name": "core", "sshAuthorizedKeys": keys, "passwordHash": hash },
        ] } }))
    };
    let (one, two) =
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGhhbGxv one", "ssh-rsa AAAAB3NzaC1yc2EAAAADAQAB two");
    let old = user(&json!([one, "nonsense"]), &json!("$6$old"));
    let new = user(&json!([two]), &json!("$6$new"));
    let all = found(&old, &new).join("\n");
    assert!(!all.contains("AAAA") && !all.contains("$6$") && !all.contains("nonsense"), "{all}");
    insta::assert_snapshot!(all);
    let swapped = found(&user(&json!([one, two]), &Value::Null), &user(&json!([two, one]), &Value::Null));
    assert_eq!(swapped, ["change ssh-key core [order]"]);
}

#[test]
fn kernel_arguments_are_a_list_in_which_order_and_number_matter() {
    let arguments = |arguments: &[&str]| json!({ "kernelArguments": arguments });
    for (old, new, expected) in [
        (&["a", "b"][..], &["b", "a"][..], &["change kernel-argument b a [order]"][..]),
        (&["a"], &["a", "a"], &["add kernel-argument a []"]),
        (&["a=1", "b"], &["a=2", "b"], &["remove kernel-argument a=1 []", "add kernel-argument a=2 []"]),
        // Added and removed arguments do not hide a change of order.
        (
            &["m=auto", "m=off"],
            &["m=off", "m=auto", "s=1"],
            &["add kernel-argument s=1 []", "change kernel-argument m=off m=auto [order]"],
        ),
        (
            &["a", "b", "a"],
            &["a", "b"],
            &["remove kernel-argument a []", "change kernel-argument a b [order]"],
        ),
        (&["a", "b", "a"], &["b", "a"], &["remove kernel-argument a []"]),
        // Words count, and not how they are written down.
        (&["s=1 nosmt"], &[], &["remove kernel-argument s=1 []", "remove kernel-argument nosmt []"]),
        (&["a b"], &["a", "b"], &[]),
        (&["a \"b c\""], &["a"], &["remove kernel-argument \"b c\" []"]),
        (&[], &[], &[]),
    ] {
        let mut expected: Vec<String> = expected.iter().map(|&text| text.to_owned()).collect();
        let mut got = found(&arguments(old), &arguments(new));
        expected.sort();
        got.sort();
        assert_eq!(got, expected, "{old:?} -> {new:?}");
    }
}

#[test]
fn extensions_are_a_set_and_a_kernel_without_a_type_is_the_default_one() {
    let spec = |extensions: &[&str]| json!({ "extensions": extensions });
    assert_eq!(
        found(&spec(&["usbguard", "ipsec"]), &spec(&["ipsec", "usbguard", "ipsec"])),
        Vec::<String>::new()
    );
    assert_eq!(found(&json!({ "kernelType": "default" }), &json!({})), Vec::<String>::new());
    assert_eq!(
        found(&json!({ "kernelType": "realtime" }), &json!({})),
        ["change kernel-type default [kernel type: realtime -> default]"]
    );
}

#[test]
fn merged_contents_that_cannot_be_decoded_name_their_file() {
    let mut broken = config(&files(&json!([{ "path": "/etc/x", "contents": { "source": "data:,a" } }])));
    let file = &mut broken.files.get_mut("/etc/x").unwrap().value.file;
    file.contents.as_mut().unwrap().compression = Some("gzip".to_owned());
    let old = config(&files(&json!([{ "path": "/etc/x", "contents": { "source": "data:,b" } }])));
    let error = compare(Some(&old), Some(&broken), Overrides::default()).unwrap_err();
    assert!(error.to_string().contains("\"/etc/x\""), "{error}");
}

proptest::proptest! {
    #[test]
    fn pairs_meet_each_key_once_and_in_order(
        old: std::collections::BTreeMap<String, u8>,
        new: std::collections::BTreeMap<String, u8>,
    ) {
        let mut keys: Vec<&str> = old.keys().chain(new.keys()).map(String::as_str).collect();
        keys.sort_unstable();
        keys.dedup();
        let met: Vec<_> = pairs(&old, &new).collect();
        proptest::prop_assert_eq!(met.iter().map(|(key, ..)| *key).collect::<Vec<_>>(), keys);
        for (key, left, right) in met {
            proptest::prop_assert_eq!((left, right), (old.get(key), new.get(key)));
        }
    }
}
