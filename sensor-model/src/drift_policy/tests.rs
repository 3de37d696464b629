mod absent;

use super::*;
use crate::expectation::{DirectoryExpectation, Expected, ImageLayer, Owner, Source, Thing};

fn policy(rules: &str) -> DriftPolicyFile {
    let text = format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata:\n  name: test\nspec:\n  rules:\n{rules}"
    );
    DriftPolicyFile::parse("test.yaml", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn merged(rules: &str) -> DriftPolicy {
    DriftPolicy::merge(&[policy(rules)]).unwrap()
}

const SHIPPED: [(&str, &str); 5] = [
    ("default.yaml", include_str!("../../../policies/drift/default.yaml")),
    ("strict.yaml", include_str!("../../../policies/drift/strict.yaml")),
    ("closed.yaml", include_str!("../../../policies/drift/closed.yaml")),
    ("image.yaml", include_str!("../../../policies/drift/image.yaml")),
    ("openshift.yaml", include_str!("../../../policies/drift/openshift.yaml")),
];

fn schema() -> jsonschema::Validator {
    let schema = include_str!("../../../policies/schema/drift-policy.schema.json");
    jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap()
}

fn shipped(name: &str) -> DriftPolicyFile {
    let (_, text) = SHIPPED.iter().find(|(shipped, _)| *shipped == name).unwrap();
    DriftPolicyFile::parse(name, text.as_bytes()).unwrap()
}

#[test]
fn the_most_specific_rule_applies() {
    let policy = merged(
        "
    - {path: /, action: observe}
    - {path: /etc/, action: degrade}
    - {path: /etc/cni/, action: revert}
    - {path: /etc/cni/net.d/10-a.conf, action: deny}
    - {path: '/etc/cni/net.d/*.conf', action: ignore}
    - {path: '/etc/**/*.key', action: revert}
    - {path: '/etc/*', action: observe}
    - {path: '/opt/[ab]', action: ignore}
",
    );
    for (path, rule) in [
        ("/usr/bin/a", "/"),
        ("/etc", "/etc/"),
        ("/etc/foo/bar", "/etc/"),
        ("/etc/cni/conf", "/etc/cni/"),
        ("/etc/cnix", "/etc/*"),
        ("/etc/cni", "/etc/cni/"),
        ("/etc/cni/net.d/10-a.conf", "/etc/cni/net.d/10-a.conf"),
        ("/etc/cni/net.d/20.conf", "/etc/cni/net.d/*.conf"),
        ("/etc/cni/net.d/sub/20.conf", "/etc/cni/"),
        ("/etc/x/y/z.key", "/etc/**/*.key"),
        ("/etc/cni/z.key", "/etc/cni/"),
        ("/etc/passwd", "/etc/*"),
        ("/opt/a", "/opt/[ab]"),
        ("/opt/c", "/"),
    ] {
        let decision = policy.decide(Path::new(path), None);
        assert_eq!(decision.rule.map(|(rule, _)| rule.path.as_str()), Some(rule), "{path}");
    }
}

#[test]
fn without_a_rule_it_degrades_and_is_secret() {
    let policy = DriftPolicy::default();
    let decision = policy.decide(Path::new("/etc/foo"), None);
    assert_eq!((decision.action, decision.secret, decision.rule), (DriftAction::Degrade, true, None));
}

#[test]
fn labels_are_compared_unless_the_rule_that_applies_says_otherwise() {
    let policy = merged(
        "
    - {path: /etc/, action: degrade, labels: ignore}
    - {path: /etc/a, action: revert}
    - {path: /etc/b, action: revert, labels: compare}
",
    );
    for (path, labels) in [
        ("/etc/x", LabelComparison::Ignore),
        ("/etc/a", LabelComparison::Compare),
        ("/etc/b", LabelComparison::Compare),
        ("/usr/x", LabelComparison::Compare),
    ] {
        assert_eq!(policy.decide(Path::new(path), None).labels, labels, "{path}");
    }
}

#[test]
fn an_allowed_actor_is_observed_at_most() {
    let policy = merged(
        "
    - path: /etc/a
      action: deny
      allowedActors: {units: ['crio-*.scope', ntp.service], exes: [/usr/bin/x], pods: ['kube-system/dns-*', 5f1c], users: [ann]}
    - {path: /etc/b, action: ignore, allowedActors: {users: [ann]}}
",
    );
    let unknown = PolicyActor::default();
    for (subject, allowed) in [
        (PolicyActor { unit: Some("crio-12.scope"), ..unknown }, true),
        (PolicyActor { unit: Some("ntp.service"), ..unknown }, true),
        (PolicyActor { unit: Some("ntp.service.d"), ..unknown }, false),
        (PolicyActor { exe: Some("/usr/bin/x"), ..unknown }, true),
        (PolicyActor { exe: Some("/usr/bin/xy"), ..unknown }, false),
        (PolicyActor { pod: Some("kube-system/dns-7"), ..unknown }, true),
        (PolicyActor { pod: Some("other/dns-7"), ..unknown }, false),
        (PolicyActor { pod_uid: Some("5f1c"), ..unknown }, true),
        (PolicyActor { user: Some("ann"), ..unknown }, true),
        (PolicyActor { user: Some("bob"), ..unknown }, false),
        (PolicyActor { holdfast: true, ..unknown }, true),
        (unknown, false),
    ] {
        let decision = policy.decide(Path::new("/etc/a"), Some(&subject));
        assert_eq!(decision.allowed, allowed, "{subject:?}");
        assert_eq!(decision.action, if allowed { DriftAction::Observe } else { DriftAction::Deny });
    }
    assert_eq!(policy.decide(Path::new("/etc/a"), None).action, DriftAction::Deny);
    let ann = PolicyActor { user: Some("ann"), ..unknown };
    assert_eq!(
        policy.decide(Path::new("/etc/b"), Some(&ann)).action,
        DriftAction::Ignore,
        "never more than the rule"
    );
}

#[test]
fn a_login_without_its_own_session_matches_no_user() {
    let policy = merged("    - {path: /etc/a, action: deny, allowedActors: {users: [ann]}}\n");
    let text = |text: &str| Some(text.to_owned());
    let ann = Actor {
        login_uid: Some(1000),
        login_user: text("ann"),
        session: Some(3),
        unit: text("session-3.scope"),
        slice: text("user-1000.slice"),
        ..Actor::default()
    };
    let is_allowed = |actor: &Actor| policy.decide(Path::new("/etc/a"), Some(&actor.into())).allowed;
    assert!(is_allowed(&ann));
    for (unit, slice) in [
        (None, None),
        (text("web.service"), text("system.slice")),
        (text("session-4.scope"), text("user-1000.slice")),
        (text("session-3.scope"), text("user-1001.slice")),
        (text("session-3.scope"), None),
        (text("user@1000.service"), text("user-1000.slice")),
        (text("session-c3.scope"), text("user-1000.slice")),
    ] {
        let forged = Actor { unit, slice, ..ann.clone() };
        assert!(!is_allowed(&forged), "{forged:?}");
    }
    assert!(!is_allowed(&Actor { session: None, ..ann.clone() }));
    assert!(!is_allowed(&Actor { login_uid: Some(1001), ..ann }));
}

#[test]
fn the_higher_precedence_applies_and_a_tie_is_refused() {
    let low = policy("    - {path: /etc/a, action: ignore}\n    - {path: /etc/b, action: ignore}\n");
    let mut high = policy("    - {path: /etc/a, action: deny}\n");
    let error = DriftPolicy::merge(&[low.clone(), high.clone()]).unwrap_err();
    assert_eq!(error.field, "spec.rules[0].path");
    assert!(error.reason.to_string().contains("another rule for \"/etc/a\""), "{error}");
    high.precedence = 5;
    for order in [[low.clone(), high.clone()], [high.clone(), low.clone()]] {
        let policy = DriftPolicy::merge(&order).unwrap();
        assert_eq!(policy.decide(Path::new("/etc/a"), None).action, DriftAction::Deny);
        assert_eq!(policy.decide(Path::new("/etc/b"), None).action, DriftAction::Ignore);
    }
    assert!(DriftPolicy::merge(&[low.clone(), low]).is_ok(), "the same rule twice is no contradiction");
}

#[test]
fn a_rule_that_closes_a_directory_decides_about_the_directory_alone_and_not_about_declared_things() {
    let policy = merged(
        "
    - {path: /etc/, action: degrade}
    - {path: /etc/cron.d/, action: revert}
    - {path: /etc/cron.d/, action: observe, closed: true, allowedActors: {units: [a.service]}, except: [x], exceptLinks: [{name: link, target: /a}]}
",
    );
    assert_eq!(policy.decide(Path::new("/etc/cron.d/declared"), None).action, DriftAction::Revert);
    let closed: Vec<&str> = policy.closed().map(|(rule, _)| rule.path.as_str()).collect();
    assert_eq!(closed, ["/etc/cron.d/"]);
    let expectations =
        crate::closed::closed_directories(&[], &policy, &crate::closed::HostDirectories::default());
    let [directory] = &expectations[..] else { panic!("{expectations:?}") };
    let a = PolicyActor { unit: Some("a.service"), ..PolicyActor::default() };
    for (actor, allowed) in [(None, false), (Some(&a), true)] {
        let decision = policy.decide_about(directory, actor);
        assert_eq!((decision.action, decision.allowed), (DriftAction::Observe, allowed));
    }
    // Also after a way through JSON, which the process that reads configs goes.
    let text = serde_json::to_string(&policy).unwrap();
    assert_eq!(serde_json::from_str::<DriftPolicy>(&text).unwrap(), policy);
}

#[test]
fn a_rule_about_the_image_decides_about_what_the_image_has_alone_and_the_most_precise_one_applies() {
    let policy = merged(
        "
    - {path: /usr/bin/, action: degrade}
    - {path: /usr/bin/, action: observe, image: true, allowedActors: {exes: [/usr/bin/dpkg]}}
    - {path: /usr/bin/kubelet, action: deny, image: true}
    - {path: '/usr/bin/*.pyc', action: ignore, image: true}
",
    );
    assert!(policy.expects_image());
    let of = |path: &str, source: ExpectationSource| Expectation {
        thing: Thing::directory(path),
        expected: Expected::Directory(DirectoryExpectation {
            mode: 0,
            user: Owner::Id(0),
            group: Owner::Id(0),
        }),
        ssh_keys: false,
        label: None,
        source,
    };
    let layer = || {
        let layer = ImageLayer { layer: "layer 1 of 1".into(), image: "sha256:0".into(), strength: None };
        ExpectationSource::from(layer)
    };
    let dpkg = PolicyActor { exe: Some("/usr/bin/dpkg"), ..PolicyActor::default() };
    for (path, actor, action) in [
        ("/usr/bin/ls", None, DriftAction::Observe),
        ("/usr/bin/kubelet", None, DriftAction::Deny),
        ("/usr/bin/kubelet", Some(&dpkg), DriftAction::Deny),
        ("/usr/bin/x.pyc", None, DriftAction::Ignore),
    ] {
        assert_eq!(policy.decide_about(&of(path, layer()), actor).action, action, "{path}");
        assert_eq!(
            policy.expects_of_image(Path::new(path)).is_some(),
            action != DriftAction::Ignore,
            "{path}"
        );
    }
    let declared = of("/usr/bin/kubelet", Source::new("50-a", "a.yaml").into());
    assert_eq!(policy.decide_about(&declared, None).action, DriftAction::Degrade);
    assert_eq!(policy.expects_of_image(Path::new("/usr/sbin/sshd")), None);
    // Rules about declared things do not apply to what only the image has.
    assert_eq!(policy.decide_about(&of("/usr/sbin/sshd", layer()), None).action, DriftAction::Observe);
    let text = serde_json::to_string(&policy).unwrap();
    let again: DriftPolicy = serde_json::from_str(&text).unwrap();
    let rule = again.expects_of_image(Path::new("/usr/bin/ls")).map(|rule| rule.path.as_str());
    assert_eq!(rule, Some("/usr/bin/"));
}

#[test]
fn the_most_precise_rule_about_the_image_decides_whether_a_path_is_scanned_or_watched() {
    let policy = merged(
        "
    - {path: /usr/, action: observe, image: true, scan: true}
    - {path: /usr/bin/, action: degrade, image: true}
    - {path: /usr/share/doc/, action: ignore, image: true}
",
    );
    assert!(policy.scans_image());
    let scans = |path: &str| policy.expects_of_image(Path::new(path)).map(|rule| rule.scan);
    assert_eq!(scans("/usr/lib/a.so"), Some(true));
    assert_eq!(scans("/usr/bin/ls"), Some(false));
    assert_eq!(scans("/usr/share/doc/a"), None);
    // Nothing but what differs is watched by a rule that scans.
    assert_eq!(policy.image_rules().collect::<Vec<_>>(), ["/usr/bin/"]);
    assert!(!merged("    - {path: /usr/, action: ignore, image: true, scan: true}\n").scans_image());
}

#[test]
fn a_higher_precedence_opens_a_closed_directory_again() {
    let low = policy("    - {path: /etc/a/, action: observe, closed: true}\n");
    let mut high =
        policy("    - {path: /etc/a/, action: ignore, closed: true}\n    - {path: /etc/a/, action: deny}\n");
    high.precedence = 1;
    let merged = DriftPolicy::merge(&[low, high]).unwrap();
    assert_eq!(merged.closed().count(), 0);
    assert_eq!(merged.decide(Path::new("/etc/a/b"), None).action, DriftAction::Deny);
}

#[test]
fn a_fault_is_named_with_field_and_reason_and_the_schema_refuses_it_too() {
    let schema = schema();
    let head = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: x}\n";
    let rules = |rules: &str| format!("{head}spec:\n  rules:\n{rules}");
    // The last column: whether the schema refuses it, too.
    for (text, field, reason, by_schema) in [
        ("- 1".to_owned(), "file", "must be a mapping, not a list", true),
        ("a: [".to_owned(), "file", "", false),
        (
            head.replace("v1alpha1", "v2") + "spec: {rules: []}",
            "apiVersion",
            "must be holdfast.dev/v1alpha1",
            true,
        ),
        (head.replace("DriftPolicy", "Pod") + "spec: {rules: []}", "kind", "must be DriftPolicy", true),
        (head.to_owned(), "spec", "is missing", true),
        (format!("{head}spec: {{}}"), "spec.rules", "is missing", true),
        (format!("{head}spec: {{rules: [], rule: 1}}"), "spec", "unknown key \"rule\"", true),
        (format!("{head}spec: {{rules: {{}}}}"), "spec.rules", "must be a list, not a mapping", true),
        (format!("{head}spec: {{precedence: high, rules: []}}"), "spec.precedence", "a whole number", true),
        (rules("  - {path: /a}"), "spec.rules[0].action", "is missing", true),
        (rules("  - {path: /a, action: Deny}"), "spec.rules[0].action", "not \"Deny\"", true),
        (
            rules("  - {path: /a, action: deny}\n  - {path: a, action: deny}"),
            "spec.rules[1].path",
            "not absolute",
            true,
        ),
        (rules("  - {path: /a/../b, action: deny}"), "spec.rules[0].path", "not fully simplified", false),
        (rules("  - {path: '/a/[', action: deny}"), "spec.rules[0].path", "", false),
        (rules("  - {path: '/a/*/', action: deny}"), "spec.rules[0].path", "a glob fits names", false),
        (rules("  - {path: /a, action: deny, secrt: false}"), "spec.rules[0]", "unknown key \"secrt\"", true),
        (rules("  - {path: /a, action: deny, secret: 1}"), "spec.rules[0].secret", "true or false", true),
        (rules("  - {path: /a, action: deny, labels: true}"), "spec.rules[0].labels", "a text", true),
        (
            rules("  - {path: /a, action: deny, labels: none}"),
            "spec.rules[0].labels",
            "must be compare or ignore, not \"none\"",
            true,
        ),
        (
            rules("  - {path: /a, action: deny}\n  - {path: /a, action: deny}"),
            "spec.rules[1].path",
            "has a rule already",
            false,
        ),
        (rules("  - {path: /a/, action: deny, closed: 1}"), "spec.rules[0].closed", "true or false", true),
        (
            rules("  - {path: /a, action: deny, closed: true}"),
            "spec.rules[0].path",
            "cannot be closed",
            false,
        ),
        (rules("  - {path: /, action: deny, closed: true}"), "spec.rules[0].path", "cannot be closed", false),
        (rules("  - {path: '/a/**', action: deny, closed: true}"), "spec.rules[0].path", "without **", false),
        (rules("  - {path: /a/, action: deny, except: [b]}"), "spec.rules[0].except", "closed: true", false),
        (
            rules("  - {path: /a/, action: deny, closed: true, except: [b, c/d]}"),
            "spec.rules[0].except[1]",
            "is not a name",
            true,
        ),
        (
            rules("  - {path: /a/, action: deny, exceptLinks: [{name: b, target: c}]}"),
            "spec.rules[0].exceptLinks",
            "closed: true",
            false,
        ),
        (
            rules(
                "  - {path: /a/, action: deny, closed: true, exceptLinks: [{name: b, target: c}, {name: d}]}",
            ),
            "spec.rules[0].exceptLinks[1].target",
            "",
            true,
        ),
        (
            rules("  - {path: /a/, action: deny, closed: true, exceptLinks: [{name: b/c, target: d}]}"),
            "spec.rules[0].exceptLinks[0].name",
            "is not a name",
            true,
        ),
        (
            rules("  - {path: /a/, action: deny, closed: true, exceptLinks: [{name: b, target: ''}]}"),
            "spec.rules[0].exceptLinks[0].target",
            "not empty",
            true,
        ),
        (
            rules(
                "  - {path: /a/, action: deny, closed: true}\n  - {path: /a/, action: observe, closed: true}",
            ),
            "spec.rules[1].path",
            "has a rule already",
            false,
        ),
        (rules("  - {path: /a/, action: deny, image: 1}"), "spec.rules[0].image", "true or false", true),
        (
            rules("  - {path: /a/, action: deny, image: true, closed: true}"),
            "spec.rules[0].image",
            "write two rules",
            true,
        ),
        (
            rules("  - {path: /a/, action: revert, image: true}"),
            "spec.rules[0].action",
            "not be revert",
            true,
        ),
        (rules("  - {path: /a/, action: observe, scan: true}"), "spec.rules[0].scan", "image: true", true),
        (
            rules("  - {path: /a/, action: deny, image: true, scan: true}"),
            "spec.rules[0].action",
            "does not watch the paths",
            true,
        ),
        (
            rules("  - {path: /a, action: deny, allowedActors: {unit: [a]}}"),
            "spec.rules[0].allowedActors",
            "unknown key",
            true,
        ),
        (
            rules("  - {path: /a, action: deny, allowedActors: {exes: [a]}}"),
            "spec.rules[0].allowedActors.exes[0]",
            "absolute",
            true,
        ),
        (
            rules("  - {path: /a, action: deny, allowedActors: {users: [1]}}"),
            "spec.rules[0].allowedActors.users[0]",
            "a text",
            true,
        ),
    ] {
        let error = DriftPolicyFile::parse("bad.yaml", text.as_bytes()).unwrap_err();
        assert_eq!(error.field, field, "{text}\n{error}");
        assert!(error.reason.to_string().contains(reason), "{text}\n{error}");
        assert!(error.to_string().starts_with("drift policy bad.yaml: "), "{error}");
        if let (true, Ok(value)) = (by_schema, serde_saphyr::from_str(&text)) {
            assert!(!schema.is_valid(&value), "the schema takes {text}");
        }
    }
}

#[test]
fn the_shipped_policies_are_valid_by_schema_and_parser_and_go_together() {
    let schema = schema();
    let mut files = Vec::new();
    for (name, text) in SHIPPED {
        let value = serde_saphyr::from_str(text).unwrap();
        let faults: Vec<_> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{name}: {faults:?}");
        files.push(shipped(name));
    }
    DriftPolicy::merge(&files).unwrap();
}

#[test]
fn the_openshift_policy_ignores_files_that_the_operator_rewrites() {
    let policy = DriftPolicy::merge(&[shipped("default.yaml"), shipped("openshift.yaml")]).unwrap();
    for path in [
        "/etc/kubernetes/kubelet-ca.crt",
        "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem",
        "/etc/mco/internal-registry-pull-secret.json",
        "/etc/machine-config-daemon/currentconfig",
    ] {
        assert_eq!(policy.decide(Path::new(path), None).action, DriftAction::Ignore, "{path}");
    }
    assert_eq!(policy.decide(Path::new("/etc/kubernetes/kubelet.conf"), None).action, DriftAction::Degrade);
}

#[test]
fn the_strict_policy_reverts_and_refuses_changes_of_logins() {
    let policy = DriftPolicy::merge(&[shipped("default.yaml"), shipped("strict.yaml")]).unwrap();
    assert_eq!(policy.decide(Path::new("/etc/chrony.conf"), None).action, DriftAction::Revert);
    assert_eq!(
        policy.decide(Path::new("/home/core/.ssh/authorized_keys.d/ignition"), None).action,
        DriftAction::Deny
    );
}

#[test]
fn the_shipped_rules_watch_programs_kernels_and_closed_directories_and_only_scan_the_rest_of_usr() {
    let policy = DriftPolicy::merge(&[shipped("image.yaml")]).unwrap();
    let is_scanned = |path: &Path| policy.expects_of_image(path).map(|rule| rule.scan);
    let fixed = [
        "/usr/bin/x",
        "/usr/sbin/x",
        "/usr/libexec/x",
        "/usr/lib/systemd/x",
        "/etc/x",
        "/usr/lib/modules/6.12/vmlinuz",
        "/usr/lib/modules/6.12/initramfs.img",
        "/usr/lib/modules/6.12/initrd.img",
        "/usr/lib/ostree-boot/x",
        "/usr/lib/bootupd/x",
        "/boot/vmlinuz-6.12",
    ];
    let closed = DriftPolicy::merge(&[shipped("closed.yaml")]).unwrap();
    let closed: Vec<PathBuf> = closed.closed().map(|(rule, _)| rule.fixed_path().join("x")).collect();
    let of_the_os =
        |path: &&PathBuf| ["/etc", "/usr/lib", "/usr/share"].iter().any(|top| path.starts_with(top));
    for path in fixed.iter().map(Path::new).chain(closed.iter().filter(of_the_os).map(PathBuf::as_path)) {
        assert_eq!(is_scanned(path), Some(false), "{}", path.display());
    }
    assert_eq!(is_scanned(Path::new("/usr/lib64/libc.so.6")), Some(true));
    assert_eq!(is_scanned(Path::new("/var/x")), None);
}
