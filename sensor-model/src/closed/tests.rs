use super::*;
use crate::{
    drift_policy::{DriftPolicyFile, names_top_directories},
    expectation::{DirectoryExpectation, Owner, Source, UnitExpectation},
};

fn policy(rules: &str) -> DriftPolicy {
    let text = format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: test}}\nspec:\n  rules:\n{rules}"
    );
    DriftPolicy::merge(&[DriftPolicyFile::parse("test.yaml", text.as_bytes()).unwrap()]).unwrap()
}

fn expectation(thing: Thing, expected: Expected) -> Expectation {
    let source = Source::new("50-test", "test.yaml").into();
    Expectation { thing, expected, ssh_keys: false, label: None, source }
}

fn directory(path: &str) -> Expectation {
    let expected = DirectoryExpectation { mode: 0o755, user: Owner::Id(0), group: Owner::Id(0) };
    expectation(Thing::directory(path), Expected::Directory(expected))
}

/// A unit that is wanted by `multi-user.target`.
fn unit(name: &str, enabled: Option<bool>) -> Expectation {
    let install_directories = vec!["multi-user.target.wants".to_owned()];
    let unit = UnitExpectation { enabled, masked: Some(false), install_directories };
    expectation(Thing::Unit { name: name.to_owned() }, Expected::Unit(unit))
}

/// Each closed directory with its names and the path of its rule.
fn closed(declared: &[Expectation], rules: &str, host: &HostDirectories) -> Vec<String> {
    let found = closed_directories(declared, &policy(rules), host);
    assert!(found.is_sorted_by(|one, other| one.thing < other.thing));
    let line = |expectation: &Expectation| {
        let Expected::ClosedDirectory(closed) = &expectation.expected else { panic!("{expectation:?}") };
        let ExpectationSource::ClosedBy(by) = &expectation.source else { panic!("{expectation:?}") };
        format!("{} [{}] {}", expectation.thing.path().display(), closed.names.join(" "), by.rule)
    };
    found.iter().map(line).collect()
}

#[test]
fn a_closed_directory_may_hold_what_configs_and_packages_declare_at_any_depth() {
    let declared = [directory("/etc/cron.d/site/deep"), directory("/etc/other")];
    let packaged = |path: &str, is_directory| PackagedPath { path: path.into(), is_directory };
    let host = HostDirectories {
        packaged: vec![
            packaged("/etc/cron.d", true),
            packaged("/etc/cron.d/e2scrub_all", false),
            packaged("/etc/cron.d/empty", true),
        ],
        ..HostDirectories::default()
    };
    assert_eq!(
        closed(&declared, "    - {path: /etc/cron.d/, closed: true, action: observe}", &host),
        [
            "/etc/cron.d [e2scrub_all empty site] /etc/cron.d/",
            "/etc/cron.d/empty [] /etc/cron.d/",
            "/etc/cron.d/site [deep] /etc/cron.d/",
            "/etc/cron.d/site/deep [] /etc/cron.d/",
        ]
    );
}

#[test]
fn without_an_index_only_directories_whose_shipped_names_are_known_tell_what_is_undeclared() {
    let rules = "
    - {path: /etc/cron.d/, closed: true, action: observe}
    - {path: /usr/lib/x/, closed: true, action: observe}
";
    let uncertain = |shipped_etc_known| {
        let host = HostDirectories { image_unindexed: true, shipped_etc_known, ..HostDirectories::default() };
        let found = closed_directories(&[], &policy(rules), &host).into_iter();
        let is_uncertain = |expectation: &Expectation| matches!(&expectation.source, ExpectationSource::ClosedBy(by) if by.image_unindexed);
        found.filter(is_uncertain).map(|one| one.thing.path().display().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(uncertain(true), ["/usr/lib/x"]);
    assert_eq!(uncertain(false), ["/etc/cron.d", "/usr/lib/x"]);
}

#[test]
fn an_enabled_unit_declares_its_link_and_a_masked_one_its_own_path() {
    let declared = [unit("on.service", Some(true)), unit("off.service", Some(false))];
    let rules = "    - {path: /etc/systemd/system/, closed: true, action: observe}";
    assert_eq!(
        closed(&declared, rules, &HostDirectories::default()),
        [
            "/etc/systemd/system [multi-user.target.wants off.service on.service] /etc/systemd/system/",
            "/etc/systemd/system/multi-user.target.wants [on.service] /etc/systemd/system/",
        ]
    );
}

#[test]
fn a_directory_whose_name_is_excepted_is_open_at_every_depth_unless_a_rule_names_it() {
    let declared =
        [directory("/etc/a/x.wants/deep"), directory("/etc/a/sub/y.wants"), directory("/etc/a/sub/z")];
    let rules = "    - {path: /etc/a/, closed: true, action: observe, except: ['*.wants']}\n";
    let of_a = ["/etc/a [sub x.wants] /etc/a/", "/etc/a/sub [y.wants z] /etc/a/", "/etc/a/sub/z [] /etc/a/"];
    assert_eq!(closed(&declared, rules, &HostDirectories::default()), of_a);
    let more = format!("{rules}    - {{path: /etc/a/x.wants/, closed: true, action: degrade}}\n");
    let found = closed(&declared, &more, &HostDirectories::default());
    let of_x = ["/etc/a/x.wants [deep] /etc/a/x.wants/", "/etc/a/x.wants/deep [] /etc/a/x.wants/"];
    assert_eq!(found, [of_a.as_slice(), &of_x].concat());
}

#[test]
fn the_shipped_policy_leaves_the_links_of_enabled_units_alone_if_configs_or_packages_declare_their_directory()
{
    let wants = "/etc/systemd/system/multi-user.target.wants";
    let packaged = PackagedPath { path: wants.into(), is_directory: true };
    let host = HostDirectories { packaged: vec![packaged], ..HostDirectories::default() };
    let found = closed_directories(&[unit("on.service", Some(true))], &shipped_policy(), &host);
    let below: Vec<_> =
        found.iter().filter(|one| one.thing.path().starts_with("/etc/systemd/system")).collect();
    let [directory] = &below[..] else { panic!("{below:?}") };
    assert_eq!(directory.thing, Thing::closed_directory("/etc/systemd/system"));
}

#[test]
fn a_closed_directory_that_is_a_link_to_another_one_gives_it_its_names() {
    let linked = BTreeMap::from([("/opt/init.d".into(), "/opt/rc.d/init.d".into())]);
    let packaged = ["/opt/init.d/of-package", "/opt/rc.d/init.d/functions"];
    let packaged = packaged.map(|path| PackagedPath { path: path.into(), is_directory: false });
    let host = HostDirectories { linked, packaged: packaged.into(), ..HostDirectories::default() };
    let declared = [directory("/opt/init.d/of-config")];
    let rules = "
    - {path: /opt/, closed: true, action: observe}
    - {path: /opt/init.d/, closed: true, action: observe}
    - {path: /opt/rc.d/init.d/, closed: true, action: degrade}
";
    assert_eq!(
        closed(&declared, rules, &host),
        [
            "/opt [init.d rc.d] /opt/",
            "/opt/rc.d [init.d] /opt/",
            "/opt/rc.d/init.d [functions of-config of-package] /opt/rc.d/init.d/",
            "/opt/rc.d/init.d/of-config [] /opt/rc.d/init.d/",
        ]
    );
}

#[test]
fn the_most_precise_rule_decides_and_names_its_directory_in_the_one_above_also_if_it_leaves_it_open() {
    let host = HostDirectories {
        matching: BTreeMap::from([("/etc/a/*".to_owned(), vec!["/etc/a/b".into(), "/etc/a/c".into()])]),
        ..HostDirectories::default()
    };
    let rules = "
    - {path: /etc/a/, closed: true, action: observe}
    - {path: '/etc/a/*', closed: true, action: degrade}
    - {path: /etc/a/b/, closed: true, action: deny}
    - {path: /etc/a/d/, closed: true, action: ignore}
    - {path: /etc/a/e/, action: deny}
";
    assert_eq!(
        closed(&[], rules, &host),
        ["/etc/a [b c d] /etc/a/", "/etc/a/b [] /etc/a/b/", "/etc/a/c [] /etc/a/*"]
    );
}

#[test]
fn a_rule_for_one_directory_decides_before_a_glob_and_one_with_ignore_leaves_open_what_packages_have_there() {
    let cron = vec!["/etc/cron.d".into(), "/etc/cron.daily".into()];
    let packaged = PackagedPath { path: "/etc/cron.d/below/x".into(), is_directory: false };
    let host = HostDirectories {
        matching: BTreeMap::from([("/etc/cron.*".to_owned(), cron)]),
        packaged: vec![packaged],
        ..HostDirectories::default()
    };
    let glob = "    - {path: '/etc/cron.*', closed: true, action: observe}\n";
    let rules = format!("{glob}    - {{path: /etc/cron.d/, closed: true, action: revert}}\n");
    let found = closed_directories(&[], &policy(&rules), &host);
    let policy_of = policy(&rules);
    let actions: Vec<String> = found
        .iter()
        .map(|one| {
            format!("{} {}", one.thing.path().display(), policy_of.decide_about(one, None).action.as_str())
        })
        .collect();
    assert_eq!(actions, ["/etc/cron.d revert", "/etc/cron.d/below revert", "/etc/cron.daily observe"]);
    let rules = format!("{glob}    - {{path: /etc/cron.d/, closed: true, action: ignore}}\n");
    assert_eq!(closed(&[], &rules, &host), ["/etc/cron.daily [] /etc/cron.*"]);
    let alone = "    - {path: /etc/cron.d/, closed: true, action: ignore}\n";
    assert_eq!(closed(&[], alone, &host), Vec::<String>::new());
}

#[test]
fn a_link_on_the_way_to_a_closed_directory_or_a_declared_path_leads_to_one_place() {
    let written = BTreeMap::from([("/lib/udev/rules.d".into(), "/usr/lib/udev/rules.d".into())]);
    let packaged =
        vec![PackagedPath { path: "/usr/lib/udev/rules.d/50-default".into(), is_directory: false }];
    let host = HostDirectories { written, packaged, ..HostDirectories::default() };
    let declared = [directory("/lib/udev/rules.d/99-config")];
    for path in ["/lib/udev/rules.d/", "/usr/lib/udev/rules.d/"] {
        let rules = format!("    - {{path: {path}, closed: true, action: observe}}\n");
        let below = "/usr/lib/udev/rules.d/99-config";
        assert_eq!(
            closed(&declared, &rules, &host),
            [format!("/usr/lib/udev/rules.d [50-default 99-config] {path}"), format!("{below} [] {path}")]
        );
    }
}

#[test]
fn half_of_a_path_and_a_glob_of_all_names_in_it_name_directories_of_the_root() {
    for path in ["/etc/", "/opt/", "/*", "/etc/*", "/etc/?*"] {
        assert!(names_top_directories(path), "{path}");
    }
    for path in ["/etc/cron.d/", "/etc/cron.*", "/srv/*/conf.d"] {
        assert!(!names_top_directories(path), "{path}");
    }
}

#[test]
fn a_declared_link_to_a_directory_stays_declared_beside_what_is_declared_through_it() {
    let host = HostDirectories {
        written: BTreeMap::from([("/etc/ssl/certs".into(), "/etc/pki/certs".into())]),
        packaged: vec![PackagedPath { path: "/etc/ssl/certs".into(), is_directory: false }],
        ..HostDirectories::default()
    };
    let rules = "    - {path: /etc/ssl/, closed: true, action: observe}\n    - {path: /etc/pki/, closed: true, action: observe}\n";
    let found = closed(&[directory("/etc/ssl/certs/x")], rules, &host);
    assert_eq!(
        found,
        [
            "/etc/pki [certs] /etc/pki/",
            "/etc/pki/certs [x] /etc/pki/",
            "/etc/pki/certs/x [] /etc/pki/",
            "/etc/ssl [certs] /etc/ssl/",
        ]
    );
}

fn shipped_policy() -> DriftPolicy {
    let text = include_str!("../../../policies/drift/closed.yaml");
    DriftPolicy::merge(&[DriftPolicyFile::parse("closed.yaml", text.as_bytes()).unwrap()]).unwrap()
}

/// What the shipped policy expects of a directory.
fn shipped(directory: &str, host: &HostDirectories) -> ClosedDirectoryExpectation {
    let found = closed_directories(&[], &shipped_policy(), host);
    let found = found.into_iter().find(|one| one.thing == Thing::closed_directory(directory));
    let Some(Expected::ClosedDirectory(closed)) = found.map(|one| one.expected) else {
        panic!("{directory} is not closed")
    };
    closed
}

#[test]
fn a_file_that_the_shipped_policy_reports_has_no_name_that_it_excepts() {
    let host = HostDirectories {
        matching: BTreeMap::from([(
            "/etc/network/if-*.d".to_owned(),
            vec!["/etc/network/if-pre-up.d".into(), "/etc/network/if-post-down.d".into()],
        )]),
        ..HostDirectories::default()
    };
    for path in [
        "/etc/systemd/system/sshd.service",
        "/etc/systemd/system/default.target",
        "/etc/systemd/system/dbus-anything.service",
        "/etc/systemd/system/dbus.service",
        "/etc/systemd/system.control/sshd.service.d",
        "/etc/systemd/user/dbus-anything.service",
        "/usr/local/lib/systemd/system/a.service",
        "/etc/containers/systemd/a.container",
        "/etc/udev/rules.d/70-persistent-x.rules",
        "/etc/kubernetes/manifests/etcd.yaml",
        "/etc/kubernetes/manifests/kube-apiserver.yaml",
        "/etc/kubernetes/manifests/kube-apiserver-pod.yaml",
        "/etc/cni/net.d/00-calico.conflist",
        "/etc/pam.d/common-x",
        "/etc/pam.d/system-auth",
        "/etc/apt/apt.conf.d/00trustcdrom",
        "/etc/sysctl.d/99-sysctl.conf",
        "/etc/logrotate.d/a",
        "/etc/network/if-pre-up.d/a",
        "/etc/network/if-post-down.d/a",
        "/usr/share/polkit-1/rules.d/a.rules",
        "/etc/rc.d/init.d/a",
        "/usr/lib/systemd/system/a.service",
        "/usr/lib/systemd/user/a.service",
        "/usr/lib/udev/rules.d/a.rules",
        "/usr/lib/tmpfiles.d/a.conf",
        "/usr/lib/modules-load.d/a.conf",
        "/usr/lib/sysctl.d/a.conf",
        "/usr/lib/NetworkManager/dispatcher.d/99-a",
        "/usr/lib/modprobe.d/a.conf",
        "/usr/share/containers/systemd/a.container",
        "/usr/lib/sysusers.d/a.conf",
        "/etc/sysusers.d/a.conf",
        "/usr/lib/binfmt.d/a.conf",
        "/etc/binfmt.d/a.conf",
    ] {
        let (directory, name) = path.rsplit_once('/').unwrap();
        let closed = shipped(directory, &host);
        assert!(closed.is_unexpected(name), "{path}");
        assert!(!closed.is_excepted_link(name, || None::<PathBuf>), "{path}");
    }
}

#[test]
fn the_shipped_policy_excepts_links_of_systemctl_enable_by_their_targets() {
    let host = HostDirectories::default();
    for (link, target, is_excepted) in [
        ("/etc/systemd/system/sshd.service", "/lib/systemd/system/ssh.service", true),
        ("/etc/systemd/system/sshd.service", "/usr/lib/systemd/system/ssh.service", true),
        ("/etc/systemd/system/sshd.service", "/usr/lib/systemd/system/../../../../tmp/ssh.service", false),
        ("/etc/systemd/system/sshd.service", "/tmp/ssh.service", false),
        ("/etc/systemd/system/sshd.service", "/dev/null", false),
        (
            "/etc/systemd/system/dbus-org.freedesktop.timesync1.service",
            "/lib/systemd/system/systemd-timesyncd.service",
            true,
        ),
        ("/etc/systemd/system/dbus-org.freedesktop.timesync1.service", "/etc/x/a.service", false),
        ("/etc/systemd/system/dbus-org.freedesktop.timesync1.service", "evil.service", false),
        ("/etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target", true),
        ("/etc/systemd/system/default.target", "/usr/lib/systemd/system/poweroff.target", false),
        ("/etc/systemd/user/dbus.service", "/usr/lib/systemd/user/dbus-broker.service", true),
        ("/etc/pam.d/system-auth", "/etc/authselect/system-auth", true),
        ("/etc/pam.d/system-auth", "/tmp/system-auth", false),
        ("/etc/sysctl.d/99-sysctl.conf", "../sysctl.conf", true),
    ] {
        let (directory, name) = link.rsplit_once('/').unwrap();
        let closed = shipped(directory, &host);
        assert!(closed.is_unexpected(name), "{link}: the name alone is no exception");
        assert_eq!(closed.is_excepted_link(name, || Some(target)), is_excepted, "{link} -> {target}");
    }
    let enabled = shipped("/etc/systemd/system", &host);
    assert!(!enabled.is_unexpected("multi-user.target.wants"), "the directory of the links");
}

#[test]
fn a_directory_that_the_config_closes_keeps_the_expectation_of_the_config() {
    let names = ClosedDirectoryExpectation {
        names: vec!["10.conf".to_owned()],
        suffix: Some(".conf".into()),
        ssh_keys: false,
        except: crate::name_patterns::NamePatterns::default(),
        except_links: crate::link_exceptions::LinkExceptions::default(),
    };
    let path = "/etc/systemd/system/a.service.d";
    let declared = [expectation(Thing::closed_directory(path), Expected::ClosedDirectory(names))];
    let rules = "    - {path: /etc/systemd/system/, closed: true, action: observe}";
    assert_eq!(
        closed(&declared, rules, &HostDirectories::default()),
        ["/etc/systemd/system [a.service.d] /etc/systemd/system/"]
    );
}
