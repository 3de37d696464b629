use super::*;
use crate::desired::facts::LabelVersion;
use crate::desired::{self, StateSource};
use crate::observation::Observer;
use sensor_model::expectation::{Expected, Thing};
use sensor_model::waiting::WaitingArgument;
use serde_json::json;
use std::fs;
use std::sync::Arc;

/// A desired state with every kind of thing.
fn desired() -> Desired {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &serde_json::Value| {
        let path = directory.path().join(name);
        fs::write(&path, value.to_string()).unwrap();
        path
    };
    for name in ["etc", "run", "proc"] {
        fs::create_dir_all(directory.path().join("root").join(name)).unwrap();
    }
    fs::write(
        directory.path().join("root/etc/passwd"),
        "root:x:0:0::/:/bin/sh\ncore:x:7:7::/home/core:/bin/sh\n",
    )
    .unwrap();
    fs::write(directory.path().join("root/etc/group"), "root:x:0:\ncore:x:7:\n").unwrap();
    fs::write(directory.path().join("root/proc/cmdline"), "rw\n").unwrap();
    // A host with SELinux, so that there is a policy whose files can change.
    fs::create_dir_all(directory.path().join("root/sys/fs/selinux")).unwrap();
    fs::write(directory.path().join("root/sys/fs/selinux/enforce"), "0").unwrap();
    let config = |name: &str, spec: &serde_json::Value| {
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "spec": spec,
            "metadata": { "name": name, "labels": { "machineconfiguration.openshift.io/role": "worker" } },
        })
    };
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f somebody";
    let first = config(
        "00-first",
        &json!({ "kernelArguments": ["a=1"], "config": {
            "ignition": { "version": "3.4.0" },
            "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": [key] }] },
            "storage": {
                "files": [
                    { "path": "/etc/a", "mode": 0o644, "contents": { "source": "data:,a" }, "user": { "name": "core" } },
                    { "path": "/etc/b", "mode": 0o600, "overwrite": false },
                ],
                "directories": [{ "path": "/etc/d", "mode": 0o755 }],
                "links": [{ "path": "/etc/l", "target": "a" }],
            },
        } }),
    );
    let second = config(
        "50-second",
        &json!({ "config": { "ignition": { "version": "3.4.0" }, "systemd": { "units": [
            { "name": "a.service", "enabled": true, "contents": "[Service]\n[Install]\nWantedBy=multi-user.target\n",
              "dropins": [{ "name": "x.conf", "contents": "[Service]\n" }] },
            { "name": "b.service", "mask": true },
        ] } } }),
    );
    let policy = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "p" },
        "spec": { "rules": [
            { "path": "/etc/a", "action": "deny", "secret": false, "reason": "so",
              "allowedActors": { "units": ["u*"], "exes": ["/e"], "pods": ["n/p"], "users": ["alice"] } },
            { "path": "/etc/*/x", "action": "revert" },
            { "path": "/etc/d/", "action": "observe" },
        ] },
    });
    let configs = [write("1.json", &first), write("2.json", &second)];
    let policies = [write("p.json", &policy)];
    let observer = Observer::new(&directory.path().join("root")).unwrap();
    let inputs = desired::Inputs {
        with_cluster_policies: false,
        root: directory.path().join("root"),
        state: directory.path().to_owned(),
        source: StateSource::named(configs.to_vec()),
        policies: policies.to_vec(),
        allow_unknown: false,
        allow_empty: false,
        own_process: false,
        keep: None,
        waits: |_| Vec::new(),
        root_image: None,
        device_tables: None,
        replaced: None,
    };
    desired::load(&inputs, &observer).unwrap()
}

fn given(desired: Result<Desired, RefusedConfigs>) -> Vec<u8> {
    let mut bytes = Vec::new();
    give(desired, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_daemon_receives_exactly_what_the_process_read() {
    let mut read = desired();
    let link = |thing: &Thing| matches!(thing, Thing::Link { .. });
    assert!(read.expectations.iter().any(|expectation| link(&expectation.thing)));
    let kinds: HashSet<_> =
        read.expectations.iter().map(|expectation| std::mem::discriminant(&expectation.expected)).collect();
    let image = |expectation: &Expectation| matches!(expectation.expected, Expected::OsImage(_));
    assert!(kinds.len() >= 6 && !read.expectations.iter().any(image), "{:#?}", read.expectations);
    assert!(!read.ids.users.is_empty() && read.sources.len() == 2);
    read.waiting = vec![WaitingArgument {
        argument: "a=1".to_owned(),
        operation: sensor_model::changes::ChangeOperation::Add,
        policy: "p".to_owned(),
    }];
    assert_ne!(read.labels, LabelVersion::default());
    for expectation in &mut read.expectations {
        expectation.label = Some("system_u:object_r:etc_t:s0".into());
    }
    let bytes = given(Ok(Desired {
        expectations: read.expectations.clone(),
        ids: read.ids.clone(),
        policy: read.policy.clone(),
        sources: read.sources.clone(),
        digest: read.digest.clone(),
        built_from: Some("rendered-1".to_owned()),
        waiting: read.waiting.clone(),
        labels: read.labels.clone(),
        directories: read.directories.clone(),
        nothing: true,
    }));
    let got = received(&*bytes).unwrap();
    assert_eq!((got.digest, got.built_from.as_deref()), (read.digest, Some("rendered-1")));
    assert!(got.nothing && !read.nothing);
    assert_eq!(got.expectations, read.expectations);
    let rest = (got.ids, got.policy, got.sources, got.waiting);
    assert_eq!(rest, (read.ids, read.policy, read.sources, read.waiting));
    assert_eq!(got.labels, read.labels);
    assert_eq!(got.directories, read.directories);
    let shared = |pair: &[Expectation]| match (&pair[0].label, &pair[1].label) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    };
    assert!(got.expectations.windows(2).all(shared), "one text for all that have the same label");
}

#[test]
fn expectations_of_one_manifest_share_the_text_of_its_name() {
    let received = received(&*given(Ok(desired()))).unwrap();
    let of = |name: &str| {
        let named = |expectation: &&Expectation| expectation.source.name() == name;
        received.expectations.iter().filter(named).map(|expectation| &expectation.source).collect::<Vec<_>>()
    };
    for name in ["00-first", "50-second"] {
        let all = of(name);
        assert!(
            all.len() > 1 && all.windows(2).all(|two| std::ptr::eq(two[0].origin(), two[1].origin())),
            "{name}"
        );
    }
}

#[test]
fn a_refusal_arrives_with_its_reason_and_whether_the_input_is_wrong() {
    for is_input in [false, true] {
        let refused = RefusedConfigs { reason: "a.yaml: spec.x: is wrong".to_owned(), is_input };
        let error = received(&*given(Err(refused.clone()))).unwrap_err();
        let DesiredError::Refused(received) = error else { panic!("{error}") };
        assert_eq!(received, refused);
    }
}

#[test]
fn an_output_that_was_cut_off_is_an_error() {
    let all = given(Ok(desired()));
    let ends = (0..all.len()).filter(|end| *end < 64 || all[end - 1] == b'\n' || end % 97 == 0);
    for end in ends {
        assert!(received(&all[..end]).is_err(), "the first {end} bytes of {}", all.len());
    }
}
