use super::*;
use crate::{
    changes,
    machine_config::{self, Manifest, pool_of_rendered},
    merge,
    reconcile::{Irreconcilable, Overrides},
};
use serde_json::json;

fn parse(objects: &Value) -> Manifest {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    machine_config::parse_for(
        "all.json",
        &serde_json::to_vec(&list).unwrap(),
        crate::ignition::Purpose::Compare,
    )
    .unwrap()
}

fn config(name: &str, role: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "MachineConfig", "spec": spec,
        "metadata": { "name": name, "labels": { (ROLE_LABEL): role } },
    })
}

fn pool(name: &str, selector: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "MachineConfigPool", "metadata": { "name": name },
        "spec": { "machineConfigSelector": selector },
    })
}

fn worker() -> Value {
    pool("worker", &json!({ "matchLabels": { (ROLE_LABEL): "worker" } }))
}

fn infra() -> Value {
    let both = json!({ "key": ROLE_LABEL, "operator": "In", "values": ["worker", "infra"] });
    pool("infra", &json!({ "matchExpressions": [both] }))
}

fn rendered(objects: &Value, name: &str) -> Result<RenderedMachineConfig, RenderError> {
    let manifest = parse(objects);
    let pools = pools(&manifest.others).unwrap();
    let pool = pools.iter().find(|pool| pool.name == name).unwrap();
    render(pool, &manifest.machine_configs, &cluster_images(&manifest.others), "holdfast-test")
}

fn file(text: &str) -> Value {
    json!({ "config": { "ignition": { "version": "3.2.0" }, "storage": { "files": [
        { "path": "/etc/x", "contents": { "source": format!("data:,{text}") } },
    ] } } })
}

fn refused(objects: &Value) -> String {
    pools(&parse(objects).others).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

#[test]
fn a_pools_own_config_overrides_the_workers_whatever_their_names() {
    let objects = json!([
        worker(),
        infra(),
        config("99-w", "worker", &file("w")),
        config("00-i", "infra", &file("i")),
        config("00-m", "master", &file("m")),
    ]);
    let of = |name| {
        let made = rendered(&objects, name).unwrap();
        (made.object["spec"]["config"]["storage"]["files"][0]["contents"]["source"].clone(), made.sources)
    };
    assert_eq!(of("worker"), (json!("data:,w"), vec!["99-w".to_owned()]));
    assert_eq!(of("infra"), (json!("data:,i"), vec!["99-w".to_owned(), "00-i".to_owned()]));
}

#[test]
fn the_name_is_of_pool_and_content_alone() {
    let one = json!([
        worker(),
        config("a", "worker", &file("x")),
        config("b", "worker", &json!({ "kernelArguments": ["q"] }))
    ]);
    let other = json!([
        config("b", "worker", &json!({ "kernelArguments": ["q"] })),
        worker(),
        config("a", "worker", &file("x"))
    ]);
    let changed = json!([
        worker(),
        config("a", "worker", &file("y")),
        config("b", "worker", &json!({ "kernelArguments": ["q"] }))
    ]);
    let name = |objects| rendered(objects, "worker").unwrap().name;
    assert_eq!(name(&one), name(&other));
    assert_ne!(name(&one), name(&changed));
    assert_eq!(pool_of_rendered(&name(&one)), Some("worker"), "{}", name(&one));
    // A name that nodes know must not change with the program.
    insta::assert_snapshot!(name(&one));
}

#[test]
fn the_name_of_a_rendered_config_has_its_pool() {
    for (name, pool) in [
        ("rendered-gpu-a-0123456789abcdef0123456789abcdef", Some("gpu-a")),
        ("rendered-worker-1", None),
        ("rendered--0123456789abcdef0123456789abcdef", None),
        ("worker-0123456789abcdef0123456789abcdef", None),
    ] {
        assert_eq!(pool_of_rendered(name), pool);
    }
}

#[test]
fn no_declaration_of_a_config_is_lost() {
    let all = json!({
        "kernelArguments": ["b", "a", "a"], "kernelType": "64k-pages", "extensions": ["usbguard"], "fips": true,
        "osImageURL": "os", "baseOSExtensionsContainerImage": "extensions",
        "config": {
            "ignition": { "version": "3.5.0", "timeouts": { "httpTotal": 3 } },
            "kernelArguments": { "shouldExist": ["k"] },
            "passwd": {
                "groups": [{ "name": "g", "gid": 7 }],
                "users": [{ "name": "core", "passwordHash": "$6$x", "sshAuthorizedKeys": ["k2", "k1"] }],
            },
            "storage": {
                "disks": [{ "device": "/dev/a", "partitions": [{ "number": 1, "label": "l" }] }],
                "filesystems": [{ "device": "/dev/b", "format": "xfs" }],
                "raid": [{ "name": "r", "level": "linear", "devices": ["/dev/c"] }],
                "luks": [{ "name": "l", "device": "/dev/d" }],
                "files": [
                    { "path": "/etc/empty" },
                    { "path": "/etc/append", "append": [{ "source": "data:,a" }] },
                    { "path": "/etc/gz", "mode": 384, "user": { "name": "core" }, "contents": {
                        "source": "data:;base64,H4sIAAAAAAACA0tM4gIAPphKAQMAAAA=", "compression": "gzip",
                    } },
                ],
                "directories": [{ "path": "/etc/d", "mode": 448 }],
                "links": [{ "path": "/etc/l", "target": "a", "hard": false }],
            },
            "systemd": { "units": [
                { "name": "yes.service", "enabled": true, "mask": false, "contents": "[Install]\n# on: yes\n\tx \n" },
                { "name": "empty.service", "dropins": [{ "name": "a.conf" }, { "name": "b.conf", "contents": "0644" }] },
            ] },
        },
    });
    let objects = json!([worker(), config("a", "worker", &all)]);
    let made = rendered(&objects, "worker").unwrap();
    let source = merge::merge(parse(&objects).machine_configs).unwrap();
    for text in [made.to_yaml().unwrap(), made.object.to_string()] {
        let read =
            machine_config::parse_for("r", text.as_bytes(), crate::ignition::Purpose::Compare).unwrap();
        let again = merge::rendered(read.machine_configs[0].clone()).unwrap();
        let compared = changes::compare(Some(&source), Some(&again), Overrides::default()).unwrap();
        assert_eq!(compared.changes, []);
        // A FIPS flag or a section that were lost would be among these; append is refused wherever it is.
        assert_eq!(compared.reasons, [Irreconcilable::Append("/etc/append".to_owned())]);
    }
    let mut object = made.object;
    object["spec"]["config"].sort_all_objects();
    insta::assert_json_snapshot!(object);
}

#[test]
fn only_people_override_the_clusters_images() {
    let cluster = json!({
        "apiVersion": API_VERSION, "kind": "ControllerConfig", "metadata": { "name": "machine-config-controller" },
        "spec": { "baseOSContainerImage": "cluster-os", "baseOSExtensionsContainerImage": "cluster-extensions" },
    });
    let mut generated = config("98-generated", "worker", &json!({ "osImageURL": "generated-os" }));
    generated["metadata"]["annotations"] =
        json!({ "machineconfiguration.openshift.io/generated-by-controller-version": "abc" });
    let without = rendered(&json!([worker(), cluster, generated]), "worker").unwrap().object;
    assert_eq!(without["spec"]["osImageURL"], "cluster-os");
    assert_eq!(without["spec"]["baseOSExtensionsContainerImage"], "cluster-extensions");
    let ours = config("50-ours", "worker", &json!({ "osImageURL": "our-os" }));
    let with = rendered(&json!([worker(), cluster, generated, ours]), "worker").unwrap().object;
    assert_eq!(with["spec"]["osImageURL"], "our-os");
    let annotations = &with["metadata"]["annotations"];
    assert_eq!(annotations["machineconfiguration.openshift.io/os-image-url-overridden"], "true");
    assert_eq!(annotations["machineconfiguration.openshift.io/original-osimageurl"], "cluster-os");
}

#[test]
fn a_pool_in_a_cluster_owns_its_config() {
    let mut owner = worker();
    owner["metadata"]["uid"] = json!("0-1");
    let made = rendered(&json!([owner, config("a", "worker", &json!({}))]), "worker").unwrap();
    let owner = &made.object["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("0-1"), &json!(true)));
}

#[test]
fn a_pool_that_cannot_be_rendered_is_refused_with_the_operators_texts() {
    let nothing = rendered(&json!([infra(), config("a", "master", &json!({}))]), "infra").unwrap_err();
    assert_eq!(
        nothing.to_string(),
        "MachineConfigPool \"infra\": spec.machineConfigSelector: no MachineConfigs found matching selector \
         machineconfiguration.openshift.io/role in (infra,worker)"
    );
    let mut bare = config("bare", "worker", &json!({}));
    bare["metadata"]["labels"] = json!({ "a": "b" });
    let label = rendered(&json!([pool("worker", &json!({})), bare]), "worker").unwrap_err();
    assert_eq!(label.to_string(), "all.json: cannot find label in MachineConfig bare");
    let missing = json!([pool("worker", &Value::Null), config("a", "worker", &json!({}))]);
    assert!(matches!(rendered(&missing, "worker"), Err(RenderError::NothingSelected { .. })));
    let kernel = json!({ "kernelType": "realtime", "extensions": ["kernel-devel"] });
    let conflict = rendered(&json!([worker(), config("a", "worker", &kernel)]), "worker").unwrap_err();
    assert!(conflict.to_string().contains("not supported with kernelType: realtime"), "{conflict}");
}

#[test]
fn bad_pools_are_refused_by_field() {
    let expression =
        |expression: Value| json!([pool("worker", &json!({ "matchExpressions": [expression] }))]);
    let mut other = worker();
    other["apiVersion"] = json!("machineconfiguration.openshift.io/v2");
    let faults = [
        refused(&json!([pool("infra", &json!({ "matchLabels": { (ROLE_LABEL): "infra" } }))])),
        refused(&json!([worker(), worker()])),
        refused(&json!([pool("Worker", &json!({}))])),
        refused(&json!([other])),
        refused(&json!([pool("worker", &json!([]))])),
        refused(&json!([pool("worker", &json!({ "labels": {} }))])),
        refused(&json!([pool("worker", &json!({ "matchLabels": { "a": 1 } }))])),
        refused(&expression(json!({ "operator": "Exists" }))),
        refused(&expression(json!({ "key": "a", "operator": "Is" }))),
        refused(&expression(json!({ "key": "a", "operator": "In" }))),
        refused(&expression(json!({ "key": "a", "operator": "Exists", "values": ["b"] }))),
    ];
    insta::assert_snapshot!(faults.join("\n"));
}

#[test]
fn selectors_match_as_in_kubernetes() {
    let selector =
        |expressions: Value| Selector::read(Some(&json!({ "matchExpressions": expressions }))).unwrap();
    let labels: std::collections::BTreeMap<String, String> = [("a".to_owned(), "1".to_owned())].into();
    for (key, operator, values, fits) in [
        ("a", "In", json!(["1", "2"]), true),
        ("a", "In", json!(["2"]), false),
        ("b", "In", json!(["1"]), false),
        ("a", "NotIn", json!(["2"]), true),
        ("a", "NotIn", json!(["1"]), false),
        ("b", "NotIn", json!(["1"]), true),
        ("a", "Exists", json!([]), true),
        ("b", "Exists", json!([]), false),
        ("a", "DoesNotExist", json!([]), false),
        ("b", "DoesNotExist", json!([]), true),
    ] {
        let selector = selector(json!([{ "key": key, "operator": operator, "values": values }]));
        assert_eq!(selector.matches(&labels), fits, "{selector}");
    }
    let all = Selector::read(Some(&json!({
        "matchLabels": { "z": "1" },
        "matchExpressions": [
            { "key": "a", "operator": "NotIn", "values": ["2", "1"] }, { "key": "b", "operator": "Exists" },
            { "key": "c", "operator": "DoesNotExist" },
        ],
    })));
    assert_eq!(all.unwrap().to_string(), "a notin (1,2),b,!c,z=1");
}
