use super::*;
use crate::expectation::Source;
use serde_json::Value;

const CHRONY: &str = r#"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker-chrony
  labels: {machineconfiguration.openshift.io/role: worker}
  annotations: {note: kept}
spec:
  kernelArguments: [nosmt, "a=b c"]
  kernelType: realtime
  extensions: [usbguard]
  fips: true
  osImageURL: quay.io/x@sha256:00
  baseOSExtensionsContainerImage: quay.io/y
  config:
    ignition: {version: 3.2.0}
    storage:
      files:
      - path: /etc/chrony.conf
        mode: 0644
        overwrite: true
        contents: {source: "data:,server%20a"}
      - path: /etc/decimal
        mode: 420
      - path: /etc/octal
        mode: 0o600
"#;

fn error(text: &str) -> String {
    parse("conf/99.yaml", text.as_bytes()).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

#[test]
fn a_manifest_is_read_in_full() {
    let manifest = parse("conf/99.yaml", CHRONY.as_bytes()).unwrap();
    let [config] = &manifest.machine_configs[..] else { panic!("one config: {manifest:?}") };
    assert_eq!(config.source, Source::new("99-worker-chrony", "conf/99.yaml"));
    assert_eq!(config.role(), Some("worker"));
    assert_eq!(config.annotations["note"], "kept");
    assert_eq!(config.kernel_arguments, ["nosmt", "a=b c"]);
    assert_eq!(config.kernel_type.as_deref(), Some("realtime"));
    assert_eq!(config.extensions, ["usbguard"]);
    assert!(config.fips);
    assert_eq!(config.os_image_url.as_deref(), Some("quay.io/x@sha256:00"));
    assert_eq!(config.base_os_extensions_container_image.as_deref(), Some("quay.io/y"));
    assert_eq!(config.warnings, Vec::<String>::new());
    let files = config.config.as_ref().unwrap().storage.as_ref().unwrap().files.as_ref().unwrap();
    let modes: Vec<Option<i64>> = files.iter().map(|file| file.mode).collect();
    assert_eq!(
        modes,
        [Some(0o644), Some(0o644), Some(0o600)],
        "as a cluster reads the three ways to write a mode"
    );
}

#[test]
fn json_and_yaml_of_one_manifest_are_the_same() {
    let yaml = parse("x", CHRONY.as_bytes()).unwrap();
    let value: Value = serde_saphyr::from_str(&CHRONY.replace("0644", "420")).unwrap();
    let json = serde_json::to_vec_pretty(&value).unwrap();
    assert_eq!(parse("x", &json).unwrap(), yaml);
}

#[test]
fn documents_lists_and_other_kinds_are_distinguished() {
    let text = r"
---
# nothing in this one
---
apiVersion: v1
kind: List
items:
- apiVersion: machineconfiguration.openshift.io/v1
  kind: MachineConfig
  metadata: {name: a}
- apiVersion: machineconfiguration.openshift.io/v1
  kind: MachineConfigPool
  metadata: {name: worker}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigList
items:
- metadata: {name: b}
  spec: {config: {}}
---
apiVersion: other.example/v7
kind: MachineConfig
metadata: {name: not-ours}
";
    let manifest = parse("all.yaml", text.as_bytes()).unwrap();
    let names: Vec<&str> =
        manifest.machine_configs.iter().map(|config| &*config.source.machine_config).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(manifest.machine_configs.iter().all(|config| config.config.is_none()), "no config is none");
    let others: Vec<(&str, &str)> =
        manifest.others.iter().map(|other| (other.kind.as_str(), other.name.as_str())).collect();
    assert_eq!(others, [("MachineConfigPool", "worker"), ("MachineConfig", "not-ours")]);
}

#[test]
fn a_plain_ignition_config_is_named_by_its_file() {
    let text = r#"{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,a"}}]}}"#;
    let manifest = parse("/srv/node/host.ign", text.as_bytes()).unwrap();
    let config = &manifest.machine_configs[0];
    assert_eq!(&*config.source.machine_config, "host.ign");
    assert_eq!(&*config.source.origin, "/srv/node/host.ign");
    assert_eq!(config.dialect, ignition::Dialect::Plain);
    assert_eq!(config.role(), None);
}

#[test]
fn a_machine_config_as_the_operators_daemon_stores_it_needs_neither_kind_nor_version() {
    let stored =
        r#"{"metadata":{"name":"rendered-worker-1"},"spec":{"config":{"ignition":{"version":"3.4.0"}}}}"#;
    let manifest = parse("currentconfig", stored.as_bytes()).unwrap();
    assert_eq!(&*manifest.machine_configs[0].source.machine_config, "rendered-worker-1");
    // Any other object without a kind is a mistake.
    for other in [stored.replace("config\"", "confg\""), stored.replace("{\"metadata", "{\"x\":1,\"metadata")]
    {
        assert!(parse("x", other.as_bytes()).is_err(), "{other}");
    }
}

#[test]
fn bad_input_is_refused_with_file_object_field_and_reason() {
    let spec = |spec: &str| {
        format!("apiVersion: {API_VERSION}\nkind: MachineConfig\nmetadata: {{name: 99-a}}\nspec: {spec}\n")
    };
    let cases = [
        ("empty", String::new()),
        ("only a comment", "# nothing\n".to_owned()),
        ("a scalar", "hello".to_owned()),
        ("a list", "- a\n- b".to_owned()),
        ("no kind", "apiVersion: v1".to_owned()),
        ("kind of another type", "kind: 3".to_owned()),
        ("not YAML", "a: [b".to_owned()),
        ("duplicate key", "kind: A\nkind: B".to_owned()),
        ("no name", format!("apiVersion: {API_VERSION}\nkind: MachineConfig")),
        ("other version", spec("{}").replace("/v1", "/v2")),
        ("spec is a list", spec("[]")),
        ("config is a text", spec("{config: x}")),
        ("config without version", spec("{config: {storage: {}}}")),
        ("old Ignition", spec("{config: {ignition: {version: 2.2.0}}}")),
        (
            "inside of the config",
            spec("{config: {ignition: {version: 3.2.0}, storage: {files: [{path: a}]}}}"),
        ),
        ("arguments", spec("{kernelArguments: nosmt}")),
        ("an argument", spec("{kernelArguments: [nosmt, 3]}")),
        ("kernel type", spec("{kernelType: fast}")),
        ("extension", spec("{extensions: [ipsec, games]}")),
        ("fips", spec("{fips: maybe}")),
        ("image", spec("{osImageURL: 3}")),
        ("labels", spec("{}").replace("name: 99-a", "name: 99-a, labels: {a: 1}")),
        ("item of a list", "kind: List\nitems: [{kind: A}, 3]".to_owned()),
        ("items", "kind: List\nitems: 3".to_owned()),
        (
            "lists in lists",
            format!("{}{}", "{kind: List, items: [".repeat(9), "]}".repeat(9)).replacen('{', "---\n{", 1),
        ),
        ("a bomb of aliases", {
            let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
            for level in 1..20 {
                let alias = format!("*a{}", level - 1);
                let aliases = vec![alias; 10].join(",");
                text +=
                    &["a", &level.to_string(), ": &a", &level.to_string(), " [", &aliases, "]\n"].concat();
            }
            text
        }),
    ];
    let lines: Vec<String> = cases.iter().map(|(why, text)| format!("{why}: {}", error(text))).collect();
    assert!(!lines.iter().any(|line| line.ends_with("accepted")), "{lines:#?}");
    insta::assert_snapshot!(lines.join("\n"));
    assert!(parse("x", b"\xff\xfe").unwrap_err().to_string().starts_with("x: file: content: not UTF-8"));
}

/// The report of every unknown field of a file.
fn unknown(text: &str) -> Vec<String> {
    parse("x", text.as_bytes()).unwrap().unknown.iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_fields_are_reported_with_the_nearest_known_one_and_refused_on_request() {
    let object = |rest: &str| format!("apiVersion: {API_VERSION}\nkind: MachineConfig\n{rest}\n");
    let cases = [
        (
            object("metadata: {name: a}\nspec: {confg: {ignition: {version: 3.2.0}}}"),
            "x: MachineConfig \"a\": spec.confg: unknown field; did you mean config?",
        ),
        (
            object("metadata: {name: a}\nspce: {}"),
            "x: MachineConfig \"a\": spce: unknown field; did you mean spec?",
        ),
        (
            object("metadata: {name: a, lables: {machineconfiguration.openshift.io/role: worker}}"),
            "x: MachineConfig \"a\": metadata.lables: unknown field; did you mean labels?",
        ),
        (
            object(
                "metadata: {name: a}\nspec: {config: {ignition: {version: 3.2.0}, \
                 storage: {files: [{path: /a, contnets: {}}]}}}",
            ),
            "x: MachineConfig \"a\": spec.config.storage.files[0].contnets: unknown field; did you mean contents?",
        ),
        (
            r#"{"ignition":{"version":"3.2.0"},"storge":{}}"#.to_owned(),
            "x: Ignition config \"x\": storge: unknown field; did you mean storage?",
        ),
        (
            format!("apiVersion: {API_VERSION}\nkind: MachineConfg\nmetadata: {{name: a}}"),
            "x: document 1: kind: unknown kind; did you mean MachineConfig?",
        ),
        (
            object(
                "metadata: {name: a}\nspec: {config: {ignition: {version: 3.2.0}, storage: {files: [{path: /a}, {path: /b, user: {nmae: x}}]}}}",
            ),
            "x: MachineConfig \"a\": spec.config.storage.files[1].user.nmae: unknown field; did you mean name?",
        ),
        (
            "apiVersion: machineconfiguraton.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: a}"
                .to_owned(),
            "x: document 1: apiVersion: unknown API; did you mean machineconfiguration.openshift.io/v1?",
        ),
        (
            "apiVersion: v1\nkind: MachineConfig\nmetadata: {name: a}".to_owned(),
            "x: document 1: apiVersion: unknown API; did you mean machineconfiguration.openshift.io/v1?",
        ),
        (
            format!(
                "{}---\napiVersion: v1\nkind: List\nitems:\n- {{apiVersion: {API_VERSION}, kind: machineconfig}}",
                object("metadata: {name: a}")
            ),
            "x: document 2, items[0]: kind: unknown kind; did you mean MachineConfig?",
        ),
        (
            format!("apiVersion: {API_VERSION}\nkind: MachineConfigPol"),
            "x: document 1: kind: unknown kind; did you mean MachineConfigPool?",
        ),
        (
            "apiVersion: v1\nkind: List\nitmes: []".to_owned(),
            "x: document 1: itmes: unknown field; did you mean items?",
        ),
    ];
    for (text, report) in cases {
        assert_eq!(unknown(&text), [report], "{text}");
        let refused = parse("x", text.as_bytes()).unwrap().refuse_unknown().unwrap_err();
        assert_eq!(refused.to_string(), report);
    }
}

#[test]
fn a_misspelt_kind_or_api_version_is_reported_as_such() {
    for (text, report) in [
        ("Kind: MachineConfig\nspec: {}", "Kind: unknown field; did you mean kind?"),
        ("{igntion: {version: 3.4.0}}", "igntion: unknown field; did you mean ignition?"),
        ("kind: MachineConfig\napiversion: x/v1", "apiversion: unknown field; did you mean apiVersion?"),
        (
            "kind: MachineConfig\napiVersion: machineconfiguration.openshift.io/v1\nmetdata: {name: a}",
            "metdata: unknown field; did you mean metadata?",
        ),
    ] {
        let error = error(text);
        assert!(error.ends_with(report), "{error}");
    }
}

#[test]
fn fields_that_an_api_server_adds_are_known() {
    let text = r#"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker-a
  generateName: 99-
  namespace: ""
  uid: 2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10
  resourceVersion: "4711"
  generation: 2
  selfLink: /apis/x
  creationTimestamp: "2026-01-01T00:00:00Z"
  deletionTimestamp: null
  deletionGracePeriodSeconds: 0
  finalizers: [a.example/b]
  labels: {any/label: x}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
  ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: b, controller: true, blockOwnerDeletion: true}]
  managedFields:
  - {manager: kubectl, operation: Apply, apiVersion: a/v1, time: null, fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}}
spec:
  config: {ignition: {version: 3.2.0, config: {}, proxy: {}, security: {tls: {}}, timeouts: {}}, passwd: {}, storage: {}, systemd: {}}
  baseOSExtensionsContainerImage: ""
  extensions: []
  fips: false
  kernelArguments: []
  kernelType: ""
  osImageURL: ""
status:
  conditions: [{type: Ready, status: "True"}]
  anything: {else: 1}
"#;
    assert_eq!(unknown(text), Vec::<String>::new());
    let list = format!(
        "apiVersion: v1\nkind: List\nmetadata: {{resourceVersion: ''}}\nitems:\n- {}",
        text.trim().replace('\n', "\n  ")
    );
    assert_eq!(unknown(&list), Vec::<String>::new());
    let others = ["MachineConfigPool", "MachineConfigNode", "MachineOSConfig", "KubeletConfig", "Later"];
    let others = others.map(|kind| (API_VERSION, kind));
    let strangers = [("v1", "ConfigMap"), ("v1", "Pod"), ("talos.example/v1", "MachineConfig")];
    for (api_version, kind) in others.into_iter().chain(strangers) {
        let other =
            format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{any: 1}}");
        assert_eq!(unknown(&other), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn a_machine_config_without_an_api_version_is_refused_and_not_ignored() {
    let refused = parse("a.yaml", b"kind: MachineConfig\nmetadata: {name: 99-worker-x}").unwrap_err();
    assert_eq!(refused.field, "apiVersion");
}
