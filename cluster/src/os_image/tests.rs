use super::objects;
use super::*;
use kube::api::DynamicObject;
use serde_json::{Value, json};

const A: &str = "quay.io/os@sha256:aa";
const B: &str = "quay.io/os@sha256:bb";
const C: &str = "quay.io/os@sha256:cc";

/// A node that booted an image, and is to have this one.
fn node(booted: &str, desired: Option<&str>) -> Subject {
    let config = Some("rendered-2".to_owned());
    let image = desired.map(str::to_owned);
    Subject {
        node: "worker-1".to_owned(),
        booted: Some(booted.to_owned()),
        current_config: config.clone(),
        desired_config: config,
        current_image: image.clone(),
        desired_image: image,
        state: Some("Done".to_owned()),
        ..Subject::default()
    }
}

fn build(name: &str, config: &str, image: Option<&str>) -> Build {
    Build { name: name.to_owned(), config: config.to_owned(), image: image.map(str::to_owned) }
}

fn builds(builds: Vec<Build>) -> Opinions {
    Opinions { builds, ..Opinions::default() }
}

fn bootc(desired: &str) -> BootcNode {
    BootcNode { desired: desired.to_owned(), is_settled: true, ..BootcNode::default() }
}

fn wanting(desired: &str) -> Opinions {
    Opinions { bootc_node: Some(bootc(desired)), ..Opinions::default() }
}

fn sentence(subject: &Subject, opinions: &Opinions) -> String {
    match verdict(subject, opinions) {
        Verdict::OutOfStep(sentence) => sentence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn opinions_that_agree_are_in_step() {
    let all = Opinions { builds: vec![build("b", "rendered-2", Some(A))], ..wanting(A) };
    assert_eq!(verdict(&node(A, Some(A)), &all), Verdict::InStep);
    assert_eq!(verdict(&node(A, None), &Opinions::default()), Verdict::InStep);
    assert_eq!(verdict(&Subject::default(), &Opinions::default()), Verdict::InStep);
    let mirrored = "registry.example.com/mirror/os@sha256:aa";
    assert_eq!(verdict(&node(A, Some(mirrored)), &all), Verdict::InStep, "one digest is one image");
}

#[test]
fn another_booted_image_is_out_of_step_with_the_annotation() {
    assert_eq!(
        sentence(&node(A, Some(B)), &Opinions::default()),
        "the node booted quay.io/os@sha256:aa; the annotation desiredImage names quay.io/os@sha256:bb"
    );
}

#[test]
fn of_three_opinions_the_one_that_is_alone_is_named_first() {
    for (booted, desired, wanted, text) in [
        (
            A,
            B,
            B,
            format!("the node booted {A}; the annotation desiredImage and BootcNode worker-1 name {B}"),
        ),
        (
            A,
            B,
            A,
            format!(
                "the annotation desiredImage names {B}; the node booted {A}, and BootcNode worker-1 wants the same image"
            ),
        ),
        (
            A,
            A,
            B,
            format!(
                "BootcNode worker-1 wants {B}; the node booted {A}, and its annotation desiredImage names the same image"
            ),
        ),
        (
            A,
            B,
            C,
            format!(
                "the node booted {A}; the annotation desiredImage names {B}, and BootcNode worker-1 wants {C}"
            ),
        ),
    ] {
        assert_eq!(sentence(&node(booted, Some(desired)), &wanting(wanted)), text);
    }
    let without = node(A, None);
    assert_eq!(sentence(&without, &wanting(B)), format!("the node booted {A}; BootcNode worker-1 wants {B}"));
}

#[test]
fn a_bootc_node_and_the_annotation_are_compared_also_if_the_booted_image_has_only_a_tag() {
    let tagged = node("quay.io/os:latest", Some(A));
    assert_eq!(
        sentence(&tagged, &wanting(B)),
        format!("BootcNode worker-1 wants {B}; the node's annotation desiredImage names {A}")
    );
    assert_eq!(verdict(&tagged, &wanting(A)), Verdict::InStep);
}

#[test]
fn a_tag_and_a_digest_are_never_different() {
    for (booted, desired) in [("quay.io/os:latest", A), (A, "quay.io/os:latest"), ("a:1", "b:2"), ("os@x", A)]
    {
        let subject = node(booted, Some(desired));
        assert_eq!(verdict(&subject, &Opinions::default()), Verdict::InStep, "{booted} {desired}");
        assert_eq!(verdict(&node(booted, None), &wanting(desired)), Verdict::InStep, "{booted} {desired}");
    }
    // The commit of an image with a tag has the digest of a platform, and the annotation that of an index.
    let tagged =
        Subject { booted_digest: Some("sha256:bb".to_owned()), ..node("quay.io/os:latest", Some(A)) };
    assert_eq!(verdict(&tagged, &Opinions::default()), Verdict::InStep);
}

#[test]
fn the_digest_of_a_platform_and_that_of_the_index_are_one_image_if_bootc_says_so() {
    // The operator's daemon names both: that of the index in the name, and that of the platform.
    let reported =
        BootcNode { booted: Some(A.to_owned()), booted_digest: Some("sha256:bb".to_owned()), ..bootc(B) };
    let opinions = Opinions { bootc_node: Some(reported), ..Opinions::default() };
    assert_eq!(verdict(&node(A, None), &opinions), Verdict::InStep);
    assert_eq!(verdict(&node(A, Some(B)), &opinions), Verdict::InStep);
    assert_eq!(
        verdict(&node(A, None), &wanting(B)),
        Verdict::OutOfStep(format!("the node booted {A}; BootcNode worker-1 wants {B}"))
    );
}

#[test]
fn a_bootc_node_that_reports_another_booted_image_is_out_of_step() {
    let reported = BootcNode { booted: Some(B.to_owned()), ..bootc(A) };
    let opinions = Opinions { bootc_node: Some(reported), ..Opinions::default() };
    assert_eq!(
        sentence(&node(A, Some(A)), &opinions),
        format!("BootcNode worker-1 reports {B} as booted; the node booted {A}")
    );
}

#[test]
fn while_an_update_is_under_way_nothing_is_out_of_step() {
    let done = node(A, Some(B));
    for updating in [
        Subject { state: Some("Working".to_owned()), ..done.clone() },
        Subject { state: Some("Rebooting".to_owned()), ..done.clone() },
        Subject { desired_config: Some("rendered-3".to_owned()), ..done.clone() },
        Subject { current_image: Some(A.to_owned()), ..done.clone() },
        Subject { current_image: None, ..done.clone() },
        Subject { desired_image: None, ..done.clone() },
    ] {
        assert_eq!(verdict(&updating, &wanting(C)), Verdict::Updating, "{updating:?}");
    }
    let unsettled = BootcNode { is_settled: false, ..bootc(C) };
    let opinions = Opinions { bootc_node: Some(unsettled), ..Opinions::default() };
    assert_eq!(verdict(&done, &opinions), Verdict::Updating);
}

#[test]
fn a_degraded_node_that_is_to_stay_as_it_is_is_compared() {
    // The operator's own daemon finds such a mismatch too, and degrades the node for it.
    let degraded = Subject { state: Some("Degraded".to_owned()), ..node(A, Some(B)) };
    assert!(matches!(verdict(&degraded, &Opinions::default()), Verdict::OutOfStep(_)));
    let waits = Subject { desired_config: Some("rendered-3".to_owned()), ..degraded };
    assert_eq!(verdict(&waits, &Opinions::default()), Verdict::Updating);
}

fn fields(kernel_type: &str) -> OsFields {
    OsFields { kernel_type: kernel_type.to_owned(), ..OsFields::default() }
}

#[test]
fn a_build_of_another_config_is_out_of_step_only_if_that_config_needs_another_image() {
    let subject = node(A, Some(A));
    let mut opinions = builds(vec![build("old", "rendered-1", Some(A))]);
    let wanted = ["rendered-1".to_owned(), "rendered-2".to_owned()];
    assert_eq!(opinions.configs_wanted(&subject), wanted.into());
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep, "the configs cannot be read");
    opinions.configs = [("rendered-1".to_owned(), fields("")), ("rendered-2".to_owned(), fields(""))].into();
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep, "only files differ");
    opinions.configs.insert("rendered-2".to_owned(), fields("realtime"));
    assert_eq!(
        sentence(&subject, &opinions),
        format!(
            "MachineOSBuild old built the booted {A} from rendered-1; the node's config is rendered-2, which differs in kernelType"
        )
    );
    // The operator makes a build for each config, also if it uses the image of another one.
    opinions.builds.push(build("new", "rendered-2", Some(A)));
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep);
    assert!(opinions.configs_wanted(&subject).is_empty());
}

#[test]
fn one_of_several_builds_of_an_image_whose_config_is_the_same_is_enough() {
    let subject = node(A, Some(A));
    let mut opinions = builds(vec![build("0", "rendered-0", Some(A)), build("1", "rendered-1", Some(A))]);
    opinions.configs = [("rendered-0", "realtime"), ("rendered-1", ""), ("rendered-2", "")]
        .map(|(name, kernel)| (name.to_owned(), fields(kernel)))
        .into();
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep);
    opinions.configs.remove("rendered-1");
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep, "one that is not known may be the same");
}

#[test]
fn without_the_configs_a_build_of_another_image_for_the_nodes_config_is_the_proof() {
    let subject = node(A, Some(A));
    let mut opinions = builds(vec![build("new", "rendered-2", Some(B)), build("old", "rendered-1", Some(A))]);
    assert_eq!(
        sentence(&subject, &opinions),
        format!(
            "MachineOSBuild old built the booted {A} from rendered-1; the node's config is rendered-2, from which \
             MachineOSBuild new built {B}"
        )
    );
    opinions.builds[0].image = None;
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep, "the build is under way");
    opinions.builds = vec![build("new", "rendered-2", Some(B))];
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep, "the booted image is none of the cluster's");
}

#[test]
fn the_label_of_the_booted_image_counts_like_a_build_unless_a_build_names_the_nodes_config() {
    let built_from = |config: &str| Subject { built_from: Some(config.to_owned()), ..node(A, Some(A)) };
    let subject = built_from("rendered-1");
    let mut opinions = Opinions::default();
    assert_eq!(opinions.configs_wanted(&subject), ["rendered-1".to_owned(), "rendered-2".to_owned()].into());
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep, "the configs cannot be read");
    let label = format!(
        "the label of the booted {A} says that it was built from rendered-1; the node's config is rendered-2"
    );
    opinions.builds = vec![build("new", "rendered-2", Some(B))];
    assert_eq!(sentence(&subject, &opinions), format!("{label}, from which MachineOSBuild new built {B}"));
    opinions.configs = [("rendered-1", ""), ("rendered-2", "realtime")]
        .map(|(name, kernel)| (name.to_owned(), fields(kernel)))
        .into();
    assert_eq!(sentence(&subject, &opinions), format!("{label}, which differs in kernelType"));
    assert_eq!(verdict(&built_from("rendered-2"), &opinions), Verdict::InStep);
    assert!(opinions.configs_wanted(&built_from("rendered-2")).is_empty());
    // The operator uses the image of another config also for this one.
    opinions.builds = vec![build("new", "rendered-2", Some(A))];
    assert_eq!(verdict(&subject, &opinions), Verdict::InStep);
}

#[test]
fn an_image_is_compared_with_its_builds_also_by_the_digest_of_its_commit() {
    let subject = Subject { booted_digest: Some("sha256:aa".to_owned()), ..node("quay.io/os:latest", None) };
    let opinions = builds(vec![build("old", "rendered-1", Some(A))]);
    assert_eq!(opinions.builds_of(&subject).len(), 1);
    assert!(opinions.builds_of(&node("quay.io/os:latest", None)).is_empty());
}

#[test]
fn long_names_leave_a_sentence_short() {
    let long = |digest: &str| format!("{}@sha256:{digest}", "x/".repeat(4000));
    let name = "n".repeat(4000);
    let subject = Subject { node: name.clone(), ..node(&long("aa"), Some(&long("bb"))) };
    let opinions = wanting(&long("cc"));
    assert!(sentence(&subject, &opinions).len() < 1200);
    let built = builds(vec![build(&name, "rendered-1", Some(A)), build(&name, "rendered-2", Some(B))]);
    assert!(sentence(&node(A, None), &built).len() < 1200);
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

#[test]
fn objects_without_a_required_field_are_no_opinion_and_a_build_under_way_has_no_image() {
    let mut value = json!({"metadata": {"name": "b"}, "spec": {"machineConfig": {"name": "rendered-1"}}});
    assert_eq!(objects::build(&object(value.clone())), Some(build("b", "rendered-1", None)));
    value["status"] = json!({"digestedImagePushSpec": A});
    assert_eq!(objects::build(&object(value.clone())), Some(build("b", "rendered-1", Some(A))));
    value["spec"] = json!({"machineConfig": "x"});
    assert_eq!(objects::build(&object(value)), None);
    assert_eq!(objects::bootc_node(&object(json!({"metadata": {"name": "n"}, "spec": {}}))), None);
}

#[test]
fn a_bootc_node_is_settled_if_its_image_is_to_be_booted_and_its_daemon_has_nothing_to_do() {
    let value = json!({
        "metadata": {"name": "worker-1", "generation": 3},
        "spec": {"desiredImage": A, "desiredImageState": "Booted"},
        "status": {
            "observedGeneration": 3,
            "booted": {"image": B, "imageDigest": "sha256:bb"},
            "conditions": [{"type": "Degraded", "status": "False"}, {"type": "Idle", "status": "True"}],
        },
    });
    let booted = (Some(B.to_owned()), Some("sha256:bb".to_owned()));
    let settled = BootcNode { booted: booted.0, booted_digest: booted.1, ..bootc(A) };
    assert_eq!(objects::bootc_node(&object(value.clone())), Some(settled));
    for (pointer, other) in [
        ("/metadata/generation", json!(4)),
        ("/spec/desiredImageState", json!("Staged")),
        ("/status/conditions/1/status", json!("False")),
        ("/status", json!({})),
    ] {
        let mut value = value.clone();
        *value.pointer_mut(pointer).unwrap() = other;
        assert!(!objects::bootc_node(&object(value)).unwrap().is_settled, "{pointer}");
    }
}

#[test]
fn the_fields_of_a_config_are_compared_by_their_meaning() {
    let of = |spec: Value| objects::os_fields(&object(json!({"metadata": {"name": "c"}, "spec": spec})));
    let plain = of(json!({}));
    let same =
        of(json!({"kernelType": "default", "extensions": [], "osImageURL": "", "kernelArguments": null}));
    assert!(plain.differing(&same).is_empty());
    let one = of(json!({"extensions": ["usbguard", "kerberos"]}));
    assert!(one.differing(&of(json!({"extensions": ["kerberos", "usbguard"]}))).is_empty());
    let other =
        json!({"kernelType": "realtime", "extensions": ["x"], "osImageURL": A, "kernelArguments": ["quiet"]});
    let all = ["osImageURL", "kernelType", "extensions", "kernelArguments"];
    assert_eq!(plain.differing(&of(other)), all);
}
