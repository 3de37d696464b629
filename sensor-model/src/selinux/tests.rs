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

#[test]
fn the_last_line_that_fits_counts_and_an_exact_name_before_all_expressions() {
    let contexts = contexts();
    let cases = [
        ("/etc/app.conf", Kind::File, Some("etc_t")),
        ("/etc", Kind::Directory, Some("etc_t")),
        ("/etcetera/x", Kind::File, Some("default_t")),
        ("/file", Kind::File, Some("etc_runtime_t")),
        ("/file", Kind::Directory, Some("default_t")),
        ("/etc/shadow", Kind::File, Some("shadow_t")),
        ("/etc/shadow-", Kind::File, Some("shadow_t")),
        ("/etc/shadow", Kind::Directory, Some("etc_t")),
        ("/etc/chrony.conf", Kind::File, Some("chronyd_conf_t")),
        ("/etc/chronyxconf", Kind::File, Some("etc_t")),
        ("/etc/kubernetes/a/b", Kind::File, Some("kubernetes_file_t")),
        ("/etc/kubernetes/mine/b", Kind::File, Some("mine_t")),
        ("/etc/alias/mine", Kind::Directory, Some("mine_t")),
        ("/etc/aliases", Kind::File, Some("etc_t")),
        ("/usr/lib/rpm/x", Kind::File, Some("rpm_var_lib_t")),
        ("/usr/lib/sysimage/rpm", Kind::Directory, Some("rpm_var_lib_t")),
        ("/run/x", Kind::File, None),
        ("/var/home/core/.ssh/x", Kind::File, Some("user_home_t")),
        ("/home/alice/.ssh/x", Kind::File, Some("ssh_home_t")),
        ("/srv/keys/shadow", Kind::File, Some("shadow_t")),
        ("/etc/../etc/shadow", Kind::File, None),
        ("etc/shadow", Kind::File, None),
    ];
    for (path, kind, wanted) in cases {
        let label = contexts.label(Path::new(path), kind);
        let type_of = label.map(|label| label.split(':').nth(2).unwrap());
        assert_eq!(type_of, wanted, "{path} {kind:?}");
    }
    assert_eq!(contexts.unusable(), 0);
}

#[test]
fn an_exact_name_counts_although_an_expression_comes_after_it() {
    let texts = Texts { policy: "/a/b x:y:exact_t:s0\n/a/.* x:y:any_t:s0\n", ..Texts::default() };
    let contexts = FileContexts::parse(&texts);
    assert_eq!(contexts.label(Path::new("/a/b"), Kind::File), Some("x:y:exact_t:s0"));
    assert_eq!(contexts.label(Path::new("/a/c"), Kind::File), Some("x:y:any_t:s0"));
}

#[test]
fn lines_that_cannot_be_used_are_counted_and_cost_no_other_line() {
    let policy = "/a\n/a -x x:y:z:s0\n/a x\nrelative x:y:z:s0\n/(?=a)b x:y:look_t:s0\n/ok x:y:ok_t:s0\n";
    let contexts = FileContexts::parse(&Texts { policy, substitutions: "/a\n", ..Texts::default() });
    assert_eq!(contexts.unusable(), 5);
    assert_eq!(contexts.label(Path::new("/ok"), Kind::File), Some("x:y:ok_t:s0"));
    assert_eq!(contexts.label(Path::new("/b"), Kind::File), None);
}

proptest! {
    #[test]
    fn what_every_match_begins_with_keeps_no_match_out(
        expression in r"/(a|b|ab|\.|\\\.|x\?|y\*|\(c\|d\)|\[ef\]|/){0,8}",
        path in "/[a-f./xy]{0,8}",
    ) {
        if let Some(compiled) = compile(&expression) && compiled.is_match(&path) {
            let (stem, exact) = stem(&expression);
            prop_assert!(path.starts_with(&stem), "{expression} fits {path} and not {stem}");
            prop_assert!(!exact || path == stem, "{expression} {path}");
        }
    }
}
