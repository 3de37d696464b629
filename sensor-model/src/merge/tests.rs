use super::*;
use crate::{expectations::expected_bytes, ignition::spec, machine_config};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

fn config(name: &str, role: &str, spec: &Value) -> MachineConfig {
    let manifest = json!({
        "apiVersion": machine_config::API_VERSION,
        "kind": "MachineConfig",
        "metadata": { "name": name, "labels": { machine_config::ROLE_LABEL: role } },
        "spec": spec,
    });
    let parsed = machine_config::parse(&format!("{name}.yaml"), &serde_json::to_vec(&manifest).unwrap());
    parsed.unwrap_or_else(|error| panic!("{error}")).machine_configs.remove(0)
}

fn ignition(name: &str, rest: &Value) -> MachineConfig {
    let mut config_json = json!({ "ignition": { "version": "3.5.0" } });
    config_json.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    config(name, "worker", &json!({ "config": config_json }))
}

fn files(name: &str, files: &Value) -> MachineConfig {
    ignition(name, &json!({ "storage": { "files": files } }))
}

fn bytes(rendered: &Rendered, path: &str) -> Option<String> {
    expected_bytes(rendered, Path::new(path)).map(|bytes| String::from_utf8(bytes).unwrap())
}

fn values<T: Clone>(parts: &[Sourced<T>]) -> Vec<T> {
    parts.iter().map(|part| part.value.clone()).collect()
}

#[test]
fn a_pools_own_configs_override_the_workers_whatever_their_names() {
    let file = |text: &str| {
        json!({ "config": { "ignition": { "version": "3.2.0" }, "storage": { "files": [
        { "path": "/a", "contents": { "source": format!("data:,{text}") } } ] } } })
    };
    let rendered = merge(vec![
        config("00-infra", "infra", &file("infra")),
        config("99-worker", "worker", &file("worker")),
        config("50-worker", "worker", &file("fifty")),
    ])
    .unwrap();
    let order: Vec<&str> = rendered.sources.iter().map(|source| &*source.machine_config).collect();
    assert_eq!(order, ["50-worker", "99-worker", "00-infra"]);
    assert_eq!(bytes(&rendered, "/a").as_deref(), Some("infra"));
    assert_eq!(&*rendered.files["/a"].source.machine_config, "00-infra");
    assert_eq!(&*rendered.files["/a"].source.origin, "00-infra.yaml");
}

#[test]
fn fields_that_a_later_config_leaves_out_keep_their_value() {
    let rendered = merge(vec![
        files("1", &json!([{ "path": "/a", "mode": 384, "user": { "name": "core" }, "contents": { "source": "data:,one" } }])),
        files("2", &json!([{ "path": "/a", "group": { "id": 7 }, "contents": { "source": "data:,two" } }])),
        files("3", &json!([{ "path": "/a", "user": { "id": 5 } }])),
    ])
    .unwrap();
    let file = &rendered.files["/a"].value.file;
    assert_eq!(file.mode, Some(384), "only the first config declares it");
    assert_eq!(file.user, Some(spec::NodeUser { id: Some(5), name: None }), "an id in place of a name");
    assert_eq!(file.group, Some(spec::NodeGroup { id: Some(7), name: None }));
    assert_eq!(bytes(&rendered, "/a").as_deref(), Some("two"));
    assert_eq!(&*rendered.files["/a"].source.machine_config, "3", "the last one that said anything");
}

#[test]
fn compression_left_out_means_none_in_a_machine_config() {
    let gzipped = "data:;base64,H4sIAAAAAAACA8vIBACsKpPYAgAAAA==";
    let packed = || json!([{ "path": "/a", "contents": { "source": gzipped, "compression": "gzip" } }]);
    let rendered = merge(vec![
        files("1", &packed()),
        files("2", &json!([{ "path": "/a", "contents": { "source": "data:,plain" } }])),
    ])
    .unwrap();
    assert_eq!(bytes(&rendered, "/a").as_deref(), Some("plain"), "a plain source over a packed one");

    let rendered =
        merge(vec![files("1", &packed()), files("2", &json!([{ "path": "/a", "mode": 384 }]))]).unwrap();
    let raw = expected_bytes(&rendered, Path::new("/a")).unwrap();
    assert_eq!(raw[..2], [0x1f, 0x8b], "still compressed, as with the Machine Config Operator");
}

#[test]
fn a_hash_is_dropped_with_its_content() {
    let hash = "sha256-7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    let rendered = merge(vec![
        files(
            "1",
            &json!([{ "path": "/a", "contents": { "source": "data:,one", "verification": { "hash": hash } } }]),
        ),
        files("2", &json!([{ "path": "/a", "contents": { "source": "data:,two" } }])),
    ]);
    assert_eq!(bytes(&rendered.unwrap(), "/a").as_deref(), Some("two"));
}

#[test]
fn a_file_a_directory_and_a_link_of_one_path_replace_each_other() {
    let node = |name: &str, list: &str, node: Value| ignition(name, &json!({ "storage": { list: [node] } }));
    let all = [
        node("1", "files", json!({ "path": "/a" })),
        node("2", "directories", json!({ "path": "/a" })),
        node("3", "links", json!({ "path": "/a", "target": "/b" })),
        node("4", "files", json!({ "path": "/a", "mode": 1 })),
    ];
    for (count, expected) in [(1, [1, 0, 0]), (2, [0, 1, 0]), (3, [0, 0, 1]), (4, [1, 0, 0])] {
        let rendered = merge(all[..count].to_vec()).unwrap();
        assert_eq!(
            [rendered.files.len(), rendered.directories.len(), rendered.links.len()],
            expected,
            "{count}"
        );
    }
}

#[test]
fn units_merge_by_field_and_dropins_by_name_each_with_its_source() {
    let units = |name: &str, units: Value| ignition(name, &json!({ "systemd": { "units": units } }));
    let rendered = merge(vec![
        units("1", json!([{ "name": "a.service", "contents": "one", "enabled": true, "dropins": [
            { "name": "10.conf", "contents": "ten" }, { "name": "20.conf", "contents": "twenty" } ] }])),
        units("2", json!([{ "name": "a.service", "enabled": false, "dropins": [{ "name": "20.conf", "contents": "" }] }])),
        units("3", json!([{ "name": "a.service", "mask": true }])),
    ])
    .unwrap();
    let unit = &rendered.units["a.service"];
    let said = |part: &Sourced<bool>| (part.value, part.source.machine_config.clone());
    assert_eq!(unit.contents.as_ref().map(|contents| contents.value.as_str()), Some("one"));
    assert_eq!(said(unit.enabled.as_ref().unwrap()), (false, "2".into()));
    assert_eq!(said(unit.mask.as_ref().unwrap()), (true, "3".into()));
    let dropins: Vec<(&str, Option<&str>, &str)> = unit
        .dropins
        .iter()
        .map(|(name, part)| (name.as_str(), part.value.as_deref(), &*part.source.machine_config))
        .collect();
    assert_eq!(dropins, [("10.conf", Some("ten"), "1"), ("20.conf", Some(""), "2")]);
}

#[test]
fn keys_append_by_value_and_an_empty_list_is_a_list() {
    let users = |name: &str, user: Value| ignition(name, &json!({ "passwd": { "users": [user] } }));
    let rendered = merge(vec![
        users("1", json!({ "name": "core", "homeDir": "/home/core", "groups": ["a"], "sshAuthorizedKeys": ["k1", "k2"] })),
        users("2", json!({ "name": "core", "passwordHash": "x", "groups": ["b", "a"] })),
        users("3", json!({ "name": "core", "sshAuthorizedKeys": ["k2", "k3"] })),
        users("4", json!({ "name": "other", "sshAuthorizedKeys": [] })),
        users("5", json!({ "name": "third" })),
    ])
    .unwrap();
    let core = &rendered.users["core"];
    let keys: Vec<(&str, &str)> =
        core.keys.iter().flatten().map(|key| (key.value.as_str(), &*key.source.machine_config)).collect();
    assert_eq!(keys, [("k1", "1"), ("k2", "3"), ("k3", "3")]);
    assert_eq!(core.user.home_dir.as_deref(), Some("/home/core"));
    assert_eq!(core.user.groups.as_deref(), Some(&["a".to_owned(), "b".to_owned()][..]));
    assert_eq!(rendered.users["other"].keys, Some(Vec::new()), "no key gives this user access");
    assert_eq!(rendered.users["third"].keys, None, "no keys are declared");
}

#[test]
fn everything_beside_ignition_follows_the_operators_rules() {
    let rendered = merge(vec![
        config(
            "1",
            "worker",
            &json!({ "kernelArguments": ["a", "b"], "extensions": ["ipsec"], "fips": true,
            "kernelType": "realtime", "osImageURL": "quay.io/1" }),
        ),
        config(
            "2",
            "worker",
            &json!({ "kernelArguments": ["a"], "extensions": ["ipsec"], "fips": false,
            "kernelType": "default", "osImageURL": "quay.io/2" }),
        ),
        config("3", "worker", &json!({ "baseOSExtensionsContainerImage": "quay.io/e" })),
    ])
    .unwrap();
    assert_eq!(values(&rendered.kernel_arguments), ["a", "b", "a"], "in order, duplicates kept");
    assert_eq!(values(&rendered.extensions), ["ipsec", "ipsec"]);
    assert_eq!(rendered.fips.as_ref().map(|source| &*source.machine_config), Some("1"), "once true, always");
    assert_eq!(
        rendered.kernel_type.as_ref().map(|kind| kind.value.as_str()),
        Some("realtime"),
        "default takes nothing back"
    );
    assert_eq!(rendered.os_image_url.as_ref().map(|url| url.value.as_str()), Some("quay.io/2"));
    assert_eq!(&*rendered.base_os_extensions_container_image.unwrap().source.machine_config, "3");
}

#[test]
fn a_generated_config_does_not_override_the_image() {
    let mut generated = config("99-generated", "worker", &json!({ "osImageURL": "quay.io/old" }));
    generated.annotations.insert(machine_config::GENERATED_BY_ANNOTATION.to_owned(), "abc".to_owned());
    let own = config("50-own", "worker", &json!({ "osImageURL": "quay.io/own" }));
    let rendered = merge(vec![generated, own]).unwrap();
    assert_eq!(rendered.os_image_url.unwrap().value, "quay.io/own");
}

#[test]
fn conflicting_parts_are_refused_with_both_names() {
    let unit = ignition(
        "2",
        &json!({ "systemd": { "units": [{ "name": "a.service", "contents": "x",
        "dropins": [{ "name": "a.conf", "contents": "x" }] }] } }),
    );
    let at = |path: &str| files("1", &json!([{ "path": path }]));
    let cases = [
        vec![config("1", "worker", &json!({})), config("1", "infra", &json!({}))],
        vec![
            config("1", "worker", &json!({ "extensions": ["kernel-devel"] })),
            config("2", "worker", &json!({ "kernelType": "64k-pages" })),
        ],
        vec![at("/etc/systemd/system/a.service"), unit.clone()],
        vec![at("/etc/systemd/system/a.service.d/a.conf"), unit.clone()],
    ];
    let texts: Vec<String> =
        cases.into_iter().map(|configs| merge(configs).unwrap_err().to_string()).collect();
    assert_eq!(
        texts,
        [
            "MachineConfig \"1\": metadata.name: it is in 1.yaml and in 1.yaml",
            "MachineConfig \"1\": spec.extensions: installing kernel-devel extension is not supported with kernelType: 64k-pages",
            "1 and 2: file \"/etc/systemd/system/a.service\" conflicts with the systemd unit or drop-in of the same path",
            "1 and 2: file \"/etc/systemd/system/a.service.d/a.conf\" conflicts with the systemd unit or drop-in of the same path",
        ]
    );
    assert!(merge(vec![at("/etc/systemd/system/b.service"), unit]).is_ok(), "another unit's path is free");
}

/// A config that declares some parts of a few files, units and keys.
fn any_config() -> impl Strategy<Value = Value> {
    let optional = |name: &'static str, values: Vec<Value>| {
        proptest::option::of(proptest::sample::select(values)).prop_map(move |value| (name, value))
    };
    let node = (
        proptest::sample::select(vec!["/a", "/b", "/c/d"]),
        optional("mode", vec![json!(384), json!(420)]),
        optional("user", vec![json!({ "id": 1 }), json!({ "name": "core" })]),
        optional(
            "contents",
            vec![json!({ "source": "data:,1" }), json!({ "source": "data:,2", "compression": "" })],
        ),
    );
    let unit = (
        proptest::sample::select(vec!["a.service", "b.timer"]),
        optional("enabled", vec![json!(true), json!(false)]),
        optional("mask", vec![json!(true), json!(false)]),
        optional(
            "dropins",
            vec![json!([{ "name": "a.conf", "contents": "1" }]), json!([{ "name": "b.conf" }])],
        ),
    );
    let keys = proptest::collection::btree_set(proptest::sample::select(vec!["k1", "k2", "k3"]), 0..3);
    let object = |key: &'static str, name: &str, fields: [(&'static str, Option<Value>); 3]| {
        let mut object = json!({ key: name });
        for (field, value) in fields {
            if let Some(value) = value {
                object[field] = value;
            }
        }
        object
    };
    (
        proptest::collection::vec(
            node.prop_map(move |(path, a, b, c)| object("path", path, [a, b, c])),
            0..4,
        ),
        proptest::collection::vec(
            unit.prop_map(move |(name, a, b, c)| object("name", name, [a, b, c])),
            0..3,
        ),
        keys,
    )
        .prop_map(|(mut files, mut units, keys)| {
            let unique = |list: &mut Vec<Value>, key: &str| {
                let mut seen = std::collections::BTreeSet::new();
                list.retain(|item| seen.insert(item[key].to_string()));
            };
            unique(&mut files, "path");
            unique(&mut units, "name");
            json!({
                "storage": { "files": files },
                "systemd": { "units": units },
                "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": keys }] },
            })
        })
}

/// The rendered config without its sources.
fn said(rendered: &Rendered) -> String {
    let files: Vec<_> = rendered.files.values().map(|file| &file.value.file).collect();
    let units: Vec<_> = rendered
        .units
        .iter()
        .map(|(name, unit)| {
            let dropins: Vec<_> = unit.dropins.iter().map(|(name, part)| (name, &part.value)).collect();
            (
                name,
                unit.enabled.as_ref().map(|part| part.value),
                unit.mask.as_ref().map(|part| part.value),
                dropins,
            )
        })
        .collect();
    let users: Vec<_> = rendered.users.values().map(|user| user.keys.as_deref().map(values)).collect();
    format!("{files:#?} {units:#?} {users:#?}")
}

proptest! {
    #[test]
    fn the_order_of_the_input_does_not_matter(configs in proptest::collection::vec(any_config(), 1..5), turn: usize) {
        let parsed: Vec<_> =
            configs.iter().enumerate().map(|(index, config)| ignition(&format!("{index}"), config)).collect();
        let mut turned = parsed.clone();
        turned.rotate_left(turn % parsed.len());
        turned.reverse();
        prop_assert_eq!(merge(parsed).unwrap(), merge(turned).unwrap());
    }

    #[test]
    fn declaring_everything_twice_changes_nothing(configs in proptest::collection::vec(any_config(), 1..4)) {
        let once: Vec<_> =
            configs.iter().enumerate().map(|(index, config)| ignition(&format!("{index}"), config)).collect();
        let mut twice = once.clone();
        twice.push(ignition("9", configs.last().unwrap()));
        prop_assert_eq!(said(&merge(once).unwrap()), said(&merge(twice).unwrap()));
    }

    #[test]
    fn the_declaration_of_the_last_config_wins(configs in proptest::collection::vec(any_config(), 1..4)) {
        let rendered = merge(
            configs.iter().enumerate().map(|(index, config)| ignition(&format!("{index}"), config)).collect(),
        )
        .unwrap();
        let last = configs.last().unwrap();
        for file in last["storage"]["files"].as_array().unwrap() {
            let merged = &rendered.files[file["path"].as_str().unwrap()].value.file;
            if let Some(mode) = file.get("mode") {
                prop_assert_eq!(merged.mode, mode.as_i64());
            }
            if let Some(contents) = file.get("contents") {
                prop_assert_eq!(merged.contents.as_ref().unwrap().source.as_deref(), contents["source"].as_str());
            }
        }
        for unit in last["systemd"]["units"].as_array().unwrap() {
            let merged = &rendered.units[unit["name"].as_str().unwrap()];
            if let Some(enabled) = unit.get("enabled") {
                prop_assert_eq!(merged.enabled.as_ref().map(|part| part.value), enabled.as_bool());
            }
        }
    }

    /// Associative as far as the inputs allow: many configs with one part each are one config with all.
    #[test]
    fn how_parts_are_grouped_into_configs_does_not_matter(config in any_config()) {
        let whole = merge(vec![ignition("0", &config)]).unwrap();
        let mut parts = Vec::new();
        for file in config["storage"]["files"].as_array().unwrap() {
            parts.push(json!({ "storage": { "files": [file] } }));
        }
        for unit in config["systemd"]["units"].as_array().unwrap() {
            parts.push(json!({ "systemd": { "units": [unit] } }));
        }
        parts.push(json!({ "passwd": config["passwd"] }));
        let apart = merge(
            parts.iter().enumerate().map(|(index, part)| ignition(&format!("{index}"), part)).collect(),
        )
        .unwrap();
        prop_assert_eq!(said(&whole), said(&apart));
    }
}

#[test]
fn a_path_below_a_link_of_another_config_and_a_hard_link_to_anothers_directory_are_refused() {
    let link = json!({ "links": [{ "path": "/etc/l", "target": "/var/l" }] });
    let below = [
        json!({ "files": [{ "path": "/etc/l/x" }] }),
        json!({ "directories": [{ "path": "/etc/l/deep/er" }] }),
        json!({ "links": [{ "path": "/etc/l/x", "target": "/y" }] }),
    ];
    for below in below {
        let configs = vec![
            ignition("50-link", &json!({ "storage": link })),
            ignition("60-below", &json!({ "storage": below })),
        ];
        let error = merge(configs).unwrap_err();
        assert!(matches!(error, MergeError::BelowLink { .. }), "{error}");
        let error = error.to_string();
        for word in ["50-link", "60-below", "\"/etc/l\""] {
            assert!(error.contains(word), "{error}");
        }
    }
    let error = merge(vec![
        ignition("50-d", &json!({ "storage": { "directories": [{ "path": "/etc/d" }] } })),
        ignition(
            "60-h",
            &json!({ "storage": { "links": [{ "path": "/etc/h", "target": "/etc/d", "hard": true }] } }),
        ),
    ]);
    assert!(matches!(error, Err(MergeError::HardLink { .. })), "{error:?}");
    // A name that only begins with the link's name is no path below it.
    let beside = vec![
        ignition("50-link", &json!({ "storage": link })),
        ignition("60-beside", &json!({ "storage": { "files": [{ "path": "/etc/l-x" }] } })),
    ];
    assert!(merge(beside).is_ok());
}
