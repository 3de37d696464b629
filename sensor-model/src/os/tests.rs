use super::{Deployment, DeploymentStatus, arguments, of_origin, reference};

const COMMIT: &str = "f5c2c58b683884ffee9dca0580863651e5397194a54d34cfbfe3902c42601cb8";
const OTHER: &str = "40948b845a13349cb0d57400eebdcfdf72bb8521636a1f067fb22d92b0b73b41";
const IMAGE: &str = "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:90780b08939d913d9cfc5565eecdd12055dd57301b2109985e149830a92ed6b1";
const DIGEST: &str = "sha256:90780b08939d913d9cfc5565eecdd12055dd57301b2109985e149830a92ed6b1";

#[test]
fn arguments_are_split_as_the_kernel_does_it_and_keep_their_quotes() {
    assert_eq!(arguments::split("  a b=c\td=\"e f\" \"g=h i\"\n"), ["a", "b=c", "d=\"e f\"", "\"g=h i\""]);
    assert_eq!(arguments::words(["nosmt mitigations=off", "quiet"]), ["nosmt", "mitigations=off", "quiet"]);
    assert!(arguments::split("").is_empty());
}

#[test]
fn a_declared_argument_is_missing_unless_the_same_word_is_set_in_any_quotes() {
    let found = arguments::split("root=/dev/vda rw d=\"e f\" console=ttyS0 console=tty0");
    let missing = |declared: &str| {
        let words = arguments::split(declared);
        arguments::missing(&words, &found).join(",")
    };
    assert_eq!(missing("rw \"d=e f\" console=tty0"), "");
    assert_eq!(missing("r root=/dev/vd console rw"), "r,root=/dev/vd,console");
    assert_eq!(missing("nosmt nosmt"), "nosmt");
}

#[test]
fn declared_arguments_are_in_order_with_any_others_in_between() {
    let ordered = |declared: &str, found: &str| {
        let (declared, found) = (arguments::split(declared), arguments::split(found));
        (arguments::in_order(&declared, &found), arguments::are_set(&declared, &found))
    };
    for (declared, found, is_ordered, is_set) in [
        ("m=off m=auto", "m=off host m=auto rw", true, true),
        ("m=off m=auto", "m=auto host m=off rw", false, false),
        ("m=off d=\"e f\"", "\"d=e f\" m=off", false, false),
        ("m=off d=\"e f\"", "m=off \"d=e f\"", true, true),
        // A missing word has no place in the order.
        ("m=off gone m=auto", "m=off m=auto", true, true),
        ("", "rw", true, true),
        // Of several the last one is used, even if the host adds one more.
        ("a b", "b a b", true, true),
        ("a b", "a b a", false, false),
        ("a b a", "a b", false, false),
        ("a a", "a", true, false),
    ] {
        assert_eq!(ordered(declared, found), (is_ordered, is_set), "{declared:?} in {found:?}");
    }
}

#[test]
fn an_image_matches_by_name_digest_or_commit_with_any_transport() {
    assert_eq!(reference(&format!("ostree-unverified-registry:{IMAGE}")), IMAGE);
    assert_eq!(reference("ostree-image-signed:docker://quay.io/a/b:1"), "quay.io/a/b:1");
    assert_eq!(reference("ostree-remote-image:fedora:docker://quay.io/a/b:1"), "quay.io/a/b:1");
    assert_eq!(reference("registry.example:5000/a"), "registry.example:5000/a");
    let deployment = Deployment {
        image: Some("mirror.example/os:latest".to_owned()),
        digest: Some(DIGEST.to_owned()),
        checksum: Some(COMMIT.to_owned()),
        ..Deployment::default()
    };
    assert!(deployment.is(IMAGE), "the same digest");
    assert!(deployment.is(COMMIT));
    assert!(deployment.is("mirror.example/os:latest"));
    assert!(!deployment.is("mirror.example/os:next"));
    assert!(!deployment.is("mirror.example/os@sha256:0"));
    assert!(!Deployment::default().is("mirror.example/os:latest"));
}

#[test]
fn an_origin_file_names_the_image_and_other_sections_are_ignored() {
    let origin = format!(
        "[other]\nrefspec=no\n[origin]\nrefspec=os/v1\ncontainer-image-reference=ostree-unverified-registry:{IMAGE}\n"
    );
    let deployment = of_origin(&origin, Some(COMMIT));
    assert_eq!((deployment.name(), deployment.digest.as_deref()), (IMAGE, Some(DIGEST)));
    assert_eq!(of_origin("[origin]\nrefspec=os/v1\n", Some(COMMIT)).name(), "os/v1");
    assert_eq!(of_origin("", Some(COMMIT)).name(), COMMIT);
}

#[test]
fn an_origin_file_of_bootc_without_ostree_has_the_digest_of_the_manifest() {
    let origin = format!(
        "[origin]\ncontainer-image-reference=ostree-unverified-image:docker://quay.io/a/b:1\n[boot]\ndigest=no\n[image]\nmanifest_digest={DIGEST}\n"
    );
    let deployment = of_origin(&origin, None);
    assert_eq!((deployment.name(), deployment.digest.as_deref()), ("quay.io/a/b:1", Some(DIGEST)));
    assert_eq!(deployment.checksum, None);
    assert!(deployment.is(&format!("quay.io/a/b@{DIGEST}")));
}

#[test]
fn rpm_ostrees_first_deployment_is_next_unless_it_runs() {
    let entry = |image: &str, booted: bool, staged: bool, checksum: &str| {
        format!(
            r#"{{"id":"rhcos-{checksum}.0","osname":"rhcos","booted":{booted},"staged":{staged},"pinned":false,
                "container-image-reference":"ostree-unverified-registry:{image}",
                "container-image-reference-digest":"{DIGEST}","checksum":"{checksum}",
                "requested-packages":["usbguard"],"base-commit-meta":{{"ostree.manifest-digest":"{DIGEST}"}}}}"#
        )
    };
    let json = |entries: &[String]| {
        format!(r#"{{"deployments":[{}],"transaction":null,"cached-update":null}}"#, entries.join(","))
    };
    let one = DeploymentStatus::of_rpm_ostree(json(&[entry(IMAGE, true, false, COMMIT)]).as_bytes()).unwrap();
    let booted = one.booted.as_ref().unwrap();
    assert!(one.next.is_none() && booted.is(IMAGE) && booted.packages == ["usbguard"]);
    let entries = [
        entry("quay.io/os:next", false, true, OTHER),
        entry(IMAGE, true, false, COMMIT),
        entry("quay.io/os:old", false, false, OTHER),
    ];
    let three = DeploymentStatus::of_rpm_ostree(json(&entries).as_bytes()).unwrap();
    assert!(three.staged && three.next.unwrap().is("quay.io/os:next") && three.booted.unwrap().is(IMAGE));
    // A host that never saw a container: the origin is a branch.
    let branch = r#"{"deployments":[{"booted":true,"origin":"edge:rhel/8/x86_64/edge","base-checksum":"b","checksum":"c"}]}"#;
    let branch = DeploymentStatus::of_rpm_ostree(branch.as_bytes()).unwrap().booted.unwrap();
    assert_eq!((branch.name(), branch.checksum.as_deref()), ("edge:rhel/8/x86_64/edge", Some("b")));
}

#[test]
fn bootcs_staged_image_is_next_else_a_rollback_that_was_asked_for() {
    let entry = |image: &str| {
        format!(
            r#"{{"image":{{"image":{{"image":"{image}","transport":"registry"}},"version":"41.1","timestamp":null,
                "imageDigest":"{DIGEST}"}},"cachedUpdate":null,"incompatible":false,"pinned":false,"store":"ostreeContainer",
                "ostree":{{"checksum":"{COMMIT}","deploySerial":0,"stateroot":"default"}}}}"#
        )
    };
    let json = |staged: &str, rollback: &str, queued: bool| {
        format!(
            r#"{{"apiVersion":"org.containers.bootc/v1","kind":"BootcHost","metadata":{{"name":"host"}},
                "spec":{{"image":{{"image":"x","transport":"registry"}},"bootOrder":"default"}},
                "status":{{"staged":{staged},"booted":{},"rollback":{rollback},"rollbackQueued":{queued},"type":"bootcHost"}}}}"#,
            entry("quay.io/os:1")
        )
    };
    let status = |text: String| DeploymentStatus::of_bootc(text.as_bytes()).unwrap();
    let quiet = status(json("null", &entry("quay.io/os:0"), false));
    assert!(quiet.next.is_none() && quiet.booted.unwrap().is("quay.io/os:1"));
    let staged = status(json(&entry("quay.io/os:2"), &entry("quay.io/os:0"), false));
    assert!(staged.staged && staged.next.unwrap().is("quay.io/os:2"));
    let back = status(json("null", &entry("quay.io/os:0"), true));
    assert!(!back.staged && back.next.unwrap().is("quay.io/os:0"));
    assert!(DeploymentStatus::of_bootc(b"{\"status\":{\"booted\":null}}").unwrap().booted.is_none());
}

#[test]
fn the_lines_of_ostree_show_the_booted_and_the_next_deployment() {
    let text = format!(
        "  debian {OTHER}.0 (staged)\n    origin refspec: os/v2\n* debian {COMMIT}.1\n    Version: 1\n    origin refspec: os/v1\n  debian {OTHER}.0 (rollback)\n    origin refspec: os/v0\n"
    );
    let status = DeploymentStatus::of_ostree(&text).unwrap();
    assert_eq!(status.place, Some(("debian".to_owned(), format!("{COMMIT}.1"))));
    assert_eq!(status.next.unwrap().name(), "os/v2");
    let booted = status.booted.unwrap();
    assert!(status.staged && booted.is("os/v1") && booted.is(COMMIT));
    let quiet =
        DeploymentStatus::of_ostree(&format!("* debian {COMMIT}.0\n    origin refspec: os/v1\n")).unwrap();
    assert!(quiet.next.is_none() && !quiet.staged && quiet.booted.is_some());
    assert_eq!(DeploymentStatus::of_ostree("No deployments.\n").ok(), None);
}

#[test]
fn an_unexpected_answer_is_an_error_that_names_the_tool() {
    let error = DeploymentStatus::of_rpm_ostree(b"error: not root").unwrap_err();
    assert!(error.to_string().contains("rpm-ostree"), "{error}");
    assert!(DeploymentStatus::of_bootc(b"[]").is_err());
    assert!(DeploymentStatus::of_ostree("debian nonsense\n").is_err());
}
