use super::lines::{compile, stem};
use super::*;
use proptest::prelude::*;

const POLICY: &str = "\
# expressions of a policy, the general ones first
/.*\t\tsystem_u:object_r:default_t:s0
/[^/]+\t--\tsystem_u:object_r:etc_runtime_t:s0
/etc(/.*)?\tsystem_u:object_r:etc_t:s0
/etc/shadow.*\t--\tsystem_u:object_r:shadow_t:s0
/etc/chrony\\.conf\t--\tsystem_u:object_r:chronyd_conf_t:s0
/etc/kubernetes(/.*)?\tsystem_u:object_r:kubernetes_file_t:s0
/etc/systemd/system(/.*)?\tsystem_u:object_r:systemd_unit_file_t:s0
/usr/lib/(sysimage/)?rpm(/.*)?\tsystem_u:object_r:rpm_var_lib_t:s0
/run/.*\t<<none>>
/home/[^/]+/\\.ssh(/.*)?\tunconfined_u:object_r:ssh_home_t:s0
";

fn contexts() -> FileContexts {
    FileContexts::parse(&Texts {
        policy: POLICY,
        homes: "/home/core/.+ unconfined_u:object_r:user_home_t:s0\n",
        local: "/etc/kubernetes/mine(/.*)? system_u:object_r:mine_t:s0\n",
        substitutions_of_policy: "/var/home /home\n/etc/alias /etc/kubernetes\n",
        substitutions: "/srv/keys /etc\n",
    })
}

/// The label of one path.
fn label<'a>(contexts: &'a FileContexts, path: &str, kind: ObjectKind) -> Option<&'a str> {
    contexts.labels(&[(Path::new(path), kind)])[0]
}

#[test]
fn the_last_matching_line_decides_and_an_exact_name_before_all_expressions() {
    let contexts = contexts();
    let cases = [
        ("/etc/app.conf", ObjectKind::File, Some("etc_t")),
        ("/etc", ObjectKind::Directory, Some("etc_t")),
        ("/etcetera/x", ObjectKind::File, Some("default_t")),
        ("/file", ObjectKind::File, Some("etc_runtime_t")),
        ("/file", ObjectKind::Directory, Some("default_t")),
        ("/etc/shadow", ObjectKind::File, Some("shadow_t")),
        ("/etc/shadow-", ObjectKind::File, Some("shadow_t")),
        ("/etc/shadow", ObjectKind::Directory, Some("etc_t")),
        ("/etc/chrony.conf", ObjectKind::File, Some("chronyd_conf_t")),
        ("/etc/chronyxconf", ObjectKind::File, Some("etc_t")),
        ("/etc/kubernetes/a/b", ObjectKind::File, Some("kubernetes_file_t")),
        ("/etc/kubernetes/mine/b", ObjectKind::File, Some("mine_t")),
        ("/etc/alias/mine", ObjectKind::Directory, Some("mine_t")),
        ("/etc/aliases", ObjectKind::File, Some("etc_t")),
        ("/usr/lib/rpm/x", ObjectKind::File, Some("rpm_var_lib_t")),
        ("/usr/lib/sysimage/rpm", ObjectKind::Directory, Some("rpm_var_lib_t")),
        ("/run/x", ObjectKind::File, None),
        ("/var/home/core/.ssh/x", ObjectKind::File, Some("user_home_t")),
        ("/home/alice/.ssh/x", ObjectKind::File, Some("ssh_home_t")),
        ("/srv/keys/shadow", ObjectKind::File, Some("shadow_t")),
        ("/etc/../etc/shadow", ObjectKind::File, None),
        ("etc/shadow", ObjectKind::File, None),
    ];
    let asked: Vec<_> = cases.iter().map(|(path, kind, _)| (Path::new(path), *kind)).collect();
    for ((path, kind, wanted), found) in cases.iter().zip(contexts.labels(&asked)) {
        assert_eq!(found.map(|label| type_of(label).unwrap()), *wanted, "{path} {kind:?}");
        assert_eq!(label(&contexts, path, *kind), found, "{path} alone");
    }
    assert_eq!(contexts.unusable(), 0);
}

#[test]
fn an_exact_name_decides_even_if_an_expression_follows_it() {
    let texts = Texts { policy: "/a/b x:y:exact_t:s0\n/a/.* x:y:any_t:s0\n", ..Texts::default() };
    let contexts = FileContexts::parse(&texts);
    assert_eq!(label(&contexts, "/a/b", ObjectKind::File), Some("x:y:exact_t:s0"));
    assert_eq!(label(&contexts, "/a/c", ObjectKind::File), Some("x:y:any_t:s0"));
}

#[test]
fn an_unusable_line_leaves_only_the_paths_that_it_may_match_without_a_label() {
    let policy = "/.* x:y:any_t:s0\n/(?=a)b x:y:look_t:s0\n/c++ x:y:possessive_t:s0\n/d.* -x x:y:kind_t:s0\n/e\n\
                  /f x\nrelative x:y:z:s0\n/d/known x:y:known_t:s0\n/e/.* x:y:below_t:s0\n";
    let contexts = FileContexts::parse(&Texts { policy, substitutions: "/a\n", ..Texts::default() });
    // An expression is compiled only when a label is asked for.
    assert_eq!(contexts.unusable(), 5);
    for (path, wanted) in [
        ("/b", None),
        ("/c", None),
        ("/d/x", None),
        ("/d/known", Some("known_t")),
        ("/e", None),
        ("/e/x", Some("below_t")),
        ("/f", None),
        ("/f/x", None),
    ] {
        assert_eq!(label(&contexts, path, ObjectKind::File).and_then(type_of), wanted, "{path}");
    }
    let usable = "/.* x:y:any_t:s0\n/d.* -x x:y:kind_t:s0\nrelative x:y:z:s0\n";
    let contexts = FileContexts::parse(&Texts { policy: usable, ..Texts::default() });
    assert_eq!(label(&contexts, "/b", ObjectKind::File).and_then(type_of), Some("any_t"));
    assert_eq!(label(&contexts, "/relative", ObjectKind::File).and_then(type_of), Some("any_t"));
}

#[test]
fn a_line_that_cannot_be_compiled_matters_only_if_no_later_one_decides() {
    let policy = "/a/(?=b)b x:y:look_t:s0\n/a/.* -d x:y:directory_t:s0\n";
    let contexts = FileContexts::parse(&Texts { policy, ..Texts::default() });
    assert_eq!(label(&contexts, "/a/b", ObjectKind::File), None);
    assert_eq!(label(&contexts, "/a/b", ObjectKind::Directory), Some("x:y:directory_t:s0"));
}

#[test]
fn a_label_matches_by_its_type_or_if_users_may_choose_it() {
    let customizable = customizable("# of admins\n\npublic_content_t\nswapfile_t\n");
    let policys = "system_u:object_r:etc_t:s0";
    for (found, is_good, becomes) in [
        (Some("system_u:object_r:etc_t:s0"), true, "system_u:object_r:etc_t:s0"),
        (Some("alice_u:role_r:etc_t:s0-s15:c0.c1"), true, "alice_u:role_r:etc_t:s0-s15:c0.c1"),
        (Some("alice_u:role_r:public_content_t:s0"), true, "alice_u:role_r:public_content_t:s0"),
        (Some("alice_u:role_r:tmp_t:s0-s15:c0.c1"), false, "alice_u:role_r:etc_t:s0-s15:c0.c1"),
        (Some("alice_u:role_r:tmp_t"), false, "alice_u:role_r:etc_t"),
        (Some("unlabeled"), false, policys),
        (Some("a:b"), false, policys),
        (None, false, policys),
    ] {
        assert_eq!(is_as_good(policys, found, &customizable), is_good, "{found:?}");
        assert_eq!(given(policys, found, &customizable), becomes, "{found:?}");
    }
}

proptest! {
    #[test]
    fn what_every_match_begins_with_keeps_no_match_out(
        expression in r"/(a|b|ab|\.|\\\.|x\?|y\*|\(c\|d\)|\[ef\]|\[\(\]|\||/){0,8}",
        path in "/[a-f./xy(]{0,8}",
    ) {
        if let Some(compiled) = compile(&expression) && compiled.is_match(path.as_bytes()) {
            let (stem, exact) = stem(&expression);
            prop_assert!(path.starts_with(&stem), "{expression} fits {path} and not {stem}");
            prop_assert!(!exact || path == stem, "{expression} {path}");
        }
    }
}
