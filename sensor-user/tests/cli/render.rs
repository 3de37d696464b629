//! `render`: a pool's MachineConfig, and the choice of the pool.

use crate::world::World;
use insta::assert_snapshot;
use serde_json::Value;

const POOLS: &str = r"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec: {machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: infra}
spec: {machineConfigSelector: {matchExpressions: [{key: machineconfiguration.openshift.io/role, operator: In, values: [worker, infra]}]}}
";

const INFRA: &str = r#"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 00-infra-app, labels: {machineconfiguration.openshift.io/role: infra}, annotations: {holdfast.dev/disruption: None}}
spec:
  kernelArguments: [nosmt]
  config:
    ignition: {version: 3.2.0}
    storage: {files: [{path: /etc/app/app.conf, mode: 0600, contents: {source: "data:,infra"}}]}
"#;

fn world() -> World {
    let world = World::new();
    world.write("config/00-pools.yaml", POOLS);
    world.write("config/infra.yaml", INFRA);
    world
}

#[test]
fn a_pools_config_is_printed_as_yaml_under_the_name_of_its_content() {
    let world = world();
    let path = world.at("config").display().to_string();
    assert_snapshot!(world.run(&["render", "--pool", "infra", &path]).golden());
}

#[test]
fn json_is_the_same_object() {
    let world = world();
    let path = world.at("config").display().to_string();
    let yaml = world.run(&["render", "--pool", "infra", &path]);
    let json = world.run(&["render", "--pool", "infra", &path, "-o", "json"]);
    assert_eq!((yaml.code, json.code), (0, 0), "{}{}", yaml.err, json.err);
    let value: Value = serde_json::from_str(&json.out).unwrap();
    let name = value["metadata"]["name"].as_str().unwrap();
    assert!(yaml.out.contains(&format!("name: {name}\n")), "{}", yaml.out);
    world.write("infra.yaml", &yaml.out);
    world.write("infra.json", &json.out);
    let at = |name: &str| world.at(name).display().to_string();
    assert_eq!(world.run(&["plan", &at("infra.yaml"), &at("infra.json")]).code, 0);
}

#[test]
fn the_error_lists_the_pools_if_there_are_several() {
    let world = world();
    let path = world.at("config").display().to_string();
    world.write("none/a.yaml", INFRA);
    let none = world.at("none").display().to_string();
    let results = [
        world.run(&["render", &path]),
        world.run(&["render", &path, "--pool", "gpu"]),
        world.run(&["render", &none]),
        world.run(&["render", &world.at("missing").display().to_string()]),
    ];
    assert_snapshot!(results.map(|result| result.golden()).join("\n"));
}
