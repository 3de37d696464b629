//! Paths where a drift policy expects nothing.
//!
//! In: the expectations of a config, the policy, and the host's directories and packages. Out: an expectation for each path that a rule with
//! `absent` names and that nothing declares. A directory above a declared path is declared, too. Two paths that lead to one place by links
//! are one path here.

use crate::{
    closed::{HostDirectories, each_declared},
    drift_policy::{DriftPolicy, Rule},
    expectation::{ClosedBy, Expectation, ExpectationSource, Expected, Thing},
};
use std::{
    collections::{BTreeMap, HashSet},
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// The expectations of the paths where nothing may be, sorted by thing. `declared` are all expectations of the config, also those that the policy
/// ignores. `places` are those of declared objects with the name of a path in a rule with `absent`.
pub fn absent_paths(
    declared: &[Expectation],
    places: &[PathBuf],
    policy: &DriftPolicy,
    host: &HostDirectories,
) -> Vec<Expectation> {
    let place =
        |path: &Path| host.places.get(path).cloned().unwrap_or_else(|| host.on_disk(path).into_owned());
    let mut undeclared: BTreeMap<PathBuf, Vec<(&Rule, &str)>> = BTreeMap::new();
    for (rule, origin) in policy.absent() {
        undeclared.entry(place(Path::new(&rule.path))).or_default().push((rule, origin));
    }
    if undeclared.is_empty() {
        return Vec::new();
    }
    let mut declare = |path: &Path| {
        for above in host.on_disk(path).ancestors() {
            undeclared.remove(host.places.get(above).map_or(above, PathBuf::as_path));
        }
    };
    for path in places.iter().chain(&host.accepted) {
        declare(path);
    }
    each_declared(declared, host, |path, _| declare(path));
    // A directory that a rule closes may exist.
    policy.closed().filter_map(|(rule, _)| rule.directory()).for_each(&mut declare);
    let matching = policy.closed().filter_map(|(rule, _)| host.matching.get(&rule.path));
    matching.flatten().for_each(|path| declare(path));
    let expectation = |(rule, origin): (&Rule, &str)| Expectation {
        thing: Thing::file(&rule.path),
        expected: Expected::Absent,
        ssh_keys: false,
        label: None,
        source: ExpectationSource::ClosedBy(ClosedBy {
            rule: rule.path.as_str().into(),
            policy: origin.into(),
            packages_unread: host.packages_unread,
            image_unindexed: host.image_unindexed
                && !(host.shipped_etc_known && Path::new(&rule.path).starts_with("/etc")),
        }),
    };
    let mut found: Vec<Expectation> = undeclared.into_values().flatten().map(expectation).collect();
    found.sort_by(|one, other| one.thing.cmp(&other.thing));
    found
}

/// The last names of the paths in rules with `absent`. If links lead from a declared path to such a path, or to something below it, the declared path
/// or a directory above it has one of these names.
#[derive(Debug)]
pub struct AbsentNames(HashSet<OsString>);

impl AbsentNames {
    /// Those of the rules of a policy.
    pub fn of(policy: &DriftPolicy) -> Self {
        let names = policy.absent().filter_map(|(rule, _)| Path::new(&rule.path).file_name());
        Self(names.map(OsStr::to_owned).collect())
    }

    /// The path and the directories above it, as far as they have one of the names.
    pub fn at_or_above<'a>(&self, path: &'a Path) -> impl Iterator<Item = &'a Path> {
        path.ancestors().filter(|above| above.file_name().is_some_and(|name| self.0.contains(name)))
    }
}

/// Whether one of these expectations declares a path, or something below it.
pub fn declares(declared: &[Expectation], path: &Path) -> bool {
    let mut is_declared = false;
    each_declared(declared, &HostDirectories::default(), |one, _| is_declared |= one.starts_with(path));
    is_declared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        closed::PackagedPath,
        drift_policy::DriftPolicyFile,
        expectation::{DirectoryExpectation, Owner, Source, UnitExpectation},
    };
    const RULES: &str = "
    - {path: /etc/ld.so.preload, absent: true, action: observe}
    - {path: /etc/rc.local, absent: true, action: revert}
";

    fn policy(rules: &str) -> DriftPolicy {
        let text = format!(
            "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: test}}\nspec:\n  rules:\n{rules}"
        );
        DriftPolicy::merge(&[DriftPolicyFile::parse("test.yaml", text.as_bytes()).unwrap()]).unwrap()
    }

    fn declared(thing: Thing, expected: Expected) -> Expectation {
        Expectation {
            thing,
            expected,
            ssh_keys: false,
            label: None,
            source: Source::new("50-a", "a.yaml").into(),
        }
    }

    fn directory(path: &str) -> Expectation {
        let expected = DirectoryExpectation { mode: 0o755, user: Owner::Id(0), group: Owner::Id(0) };
        declared(Thing::directory(path), Expected::Directory(expected))
    }

    fn packaged(paths: &[&str]) -> HostDirectories {
        let packaged = paths.iter().map(|path| PackagedPath { path: path.into(), is_directory: false });
        HostDirectories { packaged: packaged.collect(), ..HostDirectories::default() }
    }

    /// The paths where nothing may be.
    fn paths(declared: &[Expectation], rules: &str, host: &HostDirectories) -> Vec<String> {
        let found = absent_paths(declared, &[], &policy(rules), host);
        assert!(found.is_sorted_by(|one, other| one.thing < other.thing));
        assert!(found.iter().all(|one| one.expected == Expected::Absent));
        found.iter().map(|one| one.thing.path().display().to_string()).collect()
    }

    #[test]
    fn each_rule_with_absent_expects_nothing_at_its_path_with_its_own_action() {
        let policy = policy(RULES);
        let found = absent_paths(&[], &[], &policy, &HostDirectories::default());
        let actions: Vec<_> = found
            .iter()
            .map(|one| (one.source.name(), policy.decide_about(one, None).action.as_str()))
            .collect();
        assert_eq!(actions, [("/etc/ld.so.preload", "observe"), ("/etc/rc.local", "revert")]);
        assert_eq!(found[0].source.origin(), "test.yaml");
    }

    #[test]
    fn a_path_that_a_config_a_package_or_an_image_declares_may_exist_and_so_may_the_directories_above_it() {
        let nothing = HostDirectories::default();
        let others = ["/etc/ld.so.preload"];
        assert_eq!(paths(&[], RULES, &packaged(&["/etc/rc.local"])), others);
        assert_eq!(paths(&[], RULES, &packaged(&["/etc/rc.local/below"])), others);
        assert_eq!(paths(&[directory("/etc/rc.local")], RULES, &nothing), others);
        assert_eq!(paths(&[directory("/etc/rc.local/a/b")], RULES, &nothing), others);
        assert_eq!(paths(&[directory("/etc/rc.local.d"), directory("/etc")], RULES, &nothing).len(), 2);
    }

    #[test]
    fn the_path_of_a_declared_unit_and_of_the_link_that_enables_it_may_exist() {
        let unit = UnitExpectation {
            enabled: Some(true),
            masked: None,
            install_directories: vec!["multi-user.target.wants".to_owned()],
        };
        let unit = declared(Thing::Unit { name: "a.service".to_owned() }, Expected::Unit(unit));
        let rules = "
    - {path: /etc/systemd/system/a.service, absent: true, action: observe}
    - {path: /etc/systemd/system/b.service, absent: true, action: observe}
    - {path: /etc/systemd/system/multi-user.target.wants/a.service, absent: true, action: observe}
";
        let units = [unit];
        assert_eq!(paths(&units, rules, &HostDirectories::default()), ["/etc/systemd/system/b.service"]);
        for (path, is_declared) in [
            ("/etc/systemd/system/a.service", true),
            ("/etc/systemd/system/multi-user.target.wants/a.service", true),
            ("/etc/systemd/system", true),
            ("/etc/systemd/system/b.service", false),
        ] {
            assert_eq!(declares(&units, Path::new(path)), is_declared, "{path}");
        }
    }

    #[test]
    fn a_path_below_a_closed_directory_has_both_expectations_and_a_closed_directory_itself_may_exist() {
        let rules = "
    - {path: /etc/a/, closed: true, action: observe}
    - {path: /etc/a, absent: true, action: revert}
    - {path: /etc/a/b, absent: true, action: revert}
";
        let host = HostDirectories::default();
        assert_eq!(paths(&[], rules, &host), ["/etc/a/b"]);
        let closed = crate::closed::closed_directories(&[], &policy(rules), &host);
        let Expected::ClosedDirectory(directory) = &closed[0].expected else { panic!("{closed:?}") };
        assert!(directory.is_unexpected("b"), "the rule of the path declares nothing in the directory");
    }

    #[test]
    fn a_path_that_a_link_leads_to_a_declared_place_may_exist() {
        let rules = "    - {path: /lib/a, absent: true, action: revert}\n";
        let places = [("/lib/a".into(), "/usr/lib/a".into())].into();
        let host = HostDirectories { places, ..HostDirectories::default() };
        assert_eq!(paths(&[directory("/usr/lib/b")], rules, &host), ["/lib/a"]);
        assert_eq!(paths(&[directory("/usr/lib/a")], rules, &host), Vec::<String>::new());
        let host = HostDirectories { packaged: packaged(&["/usr/lib/a"]).packaged, ..host };
        assert_eq!(paths(&[], rules, &host), Vec::<String>::new());
        // The link may be on the way of the declared path, too.
        let rules = policy("    - {path: /etc/rc.d/init.d/a, absent: true, action: revert}\n");
        let found = |places: &[PathBuf]| absent_paths(&[], places, &rules, &HostDirectories::default()).len();
        assert_eq!((found(&[]), found(&["/etc/rc.d/init.d/a".into()])), (1, 0));
    }

    #[test]
    fn a_rule_with_ignore_at_a_higher_precedence_takes_the_path_out() {
        let file = |name: &str, precedence: i64, action: &str| {
            let text = serde_json::json!({
                "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": {"name": name},
                "spec": {"precedence": precedence, "rules": [{"path": "/etc/a", "absent": true, "action": action}]},
            });
            DriftPolicyFile::of_item(&text).unwrap()
        };
        let files = [file("low", 0, "revert"), file("high", 1, "ignore")];
        let policy = DriftPolicy::merge(&files).unwrap();
        assert_eq!(absent_paths(&[], &[], &policy, &HostDirectories::default()), []);
    }

    #[test]
    fn an_object_may_be_the_images_if_that_has_no_index_and_its_own_copy_of_etc_is_unknown() {
        let rules = "
    - {path: /etc/a, absent: true, action: revert}
    - {path: /usr/lib/a, absent: true, action: revert}
";
        let uncertain = |shipped_etc_known| {
            let host =
                HostDirectories { image_unindexed: true, shipped_etc_known, ..HostDirectories::default() };
            let found = absent_paths(&[], &[], &policy(rules), &host).into_iter();
            let uncertain = found.filter(|one| one.source.is_uncertain());
            uncertain.map(|one| one.thing.path().to_path_buf()).collect::<Vec<PathBuf>>()
        };
        assert_eq!(uncertain(true), [Path::new("/usr/lib/a")]);
        assert_eq!(uncertain(false), [Path::new("/etc/a"), Path::new("/usr/lib/a")]);
    }

    #[test]
    fn the_shipped_policy_expects_no_file_that_the_loader_or_systemd_would_take_unless_a_package_has_it() {
        let text = include_str!("../../policies/drift/closed.yaml");
        let file = DriftPolicyFile::parse("closed.yaml", text.as_bytes()).unwrap();
        let policy = DriftPolicy::merge(&[file]).unwrap();
        let found = |host: &HostDirectories| -> Vec<PathBuf> {
            let found = absent_paths(&[], &[], &policy, host);
            found.iter().map(|one| one.thing.path().to_path_buf()).collect()
        };
        let on_debian = found(&HostDirectories::default());
        for path in ["/etc/ld.so.preload", "/etc/rc.local", "/etc/rc.d/rc.local"] {
            assert!(on_debian.contains(&path.into()), "{path}: {on_debian:?}");
        }
        // The package systemd of RHEL has both.
        let on_rhel = found(&packaged(&["/etc/rc.d/rc.local", "/etc/rc.local"]));
        assert!(on_rhel.contains(&"/etc/ld.so.preload".into()), "{on_rhel:?}");
        assert!(!on_rhel.iter().any(|path| path.ends_with("rc.local")), "{on_rhel:?}");
    }
}
