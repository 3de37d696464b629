use super::*;
use sensor_model::closed::{PackagedPath, closed_directories};
use sensor_model::drift_policy::DriftPolicyFile;
use sensor_model::expectation::Expected;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

/// A host with these directories and lists of packages.
fn host(directories: &[&str], lists: &[(&str, &str)]) -> (tempfile::TempDir, Observer) {
    let root = tempfile::tempdir().unwrap();
    let info = root.path().join("var/lib/dpkg/info");
    for directory in directories {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    if !lists.is_empty() {
        fs::create_dir_all(&info).unwrap();
    }
    for (package, list) in lists {
        fs::write(info.join(format!("{package}.list")), list).unwrap();
    }
    let observer = Observer::new(root.path()).unwrap();
    (root, observer)
}

fn policy(rules: &str) -> DriftPolicy {
    let text = format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: test}}\nspec:\n  rules:\n{rules}"
    );
    DriftPolicy::merge(&[DriftPolicyFile::parse("test.yaml", text.as_bytes()).unwrap()]).unwrap()
}

fn packaged(path: &str, is_directory: bool) -> PackagedPath {
    PackagedPath { path: path.into(), is_directory }
}

#[test]
fn packages_declare_their_files_and_directories_below_closed_directories_alone() {
    let (_root, observer) = host(
        &["etc/cron.d/empty", "etc/cron.d/site"],
        &[
            (
                "cron",
                "/.\n/etc\n/etc/cron.d\n/etc/cron.d/empty\n/etc/cron.d/site\n/etc/cron.d/site/x\n/etc/crontab\n",
            ),
            ("e2fsprogs:amd64", "/etc/cron.d/e2scrub_all\n/etc/cron.daily/y\n"),
        ],
    );
    let found = directories(&observer, &policy("    - {path: /etc/cron.d/, closed: true, action: observe}"));
    let wanted = [
        packaged("/etc/cron.d/e2scrub_all", false),
        packaged("/etc/cron.d/empty", true),
        packaged("/etc/cron.d/site", true),
        packaged("/etc/cron.d/site/x", false),
    ];
    assert_eq!(found.packaged, wanted);
}

#[test]
fn a_diverted_file_of_a_package_is_declared_where_it_is_and_not_at_the_path_in_the_list() {
    let lists = [
        ("cron", "/etc/cron.d/job\n/etc/cron.d/shared\n/usr/share/moved\n"),
        ("other:amd64", "/etc/cron.d/shared\n"),
    ];
    let (root, observer) = host(&[], &lists);
    let diversions = root.path().join("var/lib/dpkg/diversions");
    let rules = policy("    - {path: /etc/cron.d/, closed: true, action: observe}");
    let names = |names: &[&str]| -> Vec<PackagedPath> {
        names.iter().map(|name| packaged(&format!("/etc/cron.d/{name}"), false)).collect()
    };
    assert_eq!(directories(&observer, &rules).packaged, names(&["job", "shared"]));
    let (known, old) = (version(&observer, &rules), state(&observer));
    let of_admin = "/etc/cron.d/job\n/etc/cron.d/job.disabled\n:\n/usr/share/moved\n/etc/cron.d/moved\n:\n";
    let of_package = "/etc/cron.d/shared\n/etc/cron.d/shared.cron\nother\n";
    fs::write(&diversions, format!("{of_admin}{of_package}")).unwrap();
    let found = directories(&observer, &rules);
    assert!(!found.packages_unread);
    assert_eq!(found.packaged, names(&["job.disabled", "moved", "shared", "shared.cron"]));
    assert_ne!(version(&observer, &rules), known);
    assert_ne!(state(&observer), old, "an index is of other paths");
    fs::remove_file(&diversions).unwrap();
    fs::create_dir(&diversions).unwrap();
    assert!(directories(&observer, &rules).packages_unread);
}

#[test]
fn a_hold_of_a_package_changes_no_package_and_another_version_or_list_does() {
    let (root, observer) = host(&[], &[("a", "/usr/bin/a\n")]);
    let status = root.path().join("var/lib/dpkg/status");
    let write = |wanted: &str, version: &str| {
        let text =
            format!("Package: a\nStatus: {wanted} ok installed\nArchitecture: all\nVersion: {version}\n");
        fs::write(status.with_extension("new"), text).unwrap();
        fs::rename(status.with_extension("new"), &status).unwrap();
        (state(&observer), versions(&observer))
    };
    let installed = write("install", "1");
    let held = write("hold", "1");
    assert!(held.0 == installed.0 && held.1 != installed.1, "{held:?}");
    let other = write("hold", "2");
    assert_ne!(other.0, held.0);
    // A package of the same version that was built anew may have other files.
    fs::write(root.path().join("var/lib/dpkg/info/a.md5sums"), "").unwrap();
    assert_ne!(state(&observer), other.0);
}

#[test]
fn a_file_of_a_package_that_dpkg_does_not_unpack_may_be_missing() {
    let (root, observer) = host(
        &["etc/dpkg/dpkg.cfg.d"],
        &[("a", "/usr/share/doc/a/README\n/usr/share/doc/a/copyright\n/usr/bin/a\n")],
    );
    fs::write(
        root.path().join("var/lib/dpkg/status"),
        "Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n",
    )
    .unwrap();
    let may_be_missing = || -> Vec<String> {
        let entries = contents(&observer).unwrap().entries;
        let missing = entries.iter().filter(|(_, entry)| entry.may_be_missing);
        missing.map(|(path, _)| String::from_utf8_lossy(path.bytes()).into_owned()).collect()
    };
    assert!(may_be_missing().is_empty());
    let directory = root.path().join("etc/dpkg/dpkg.cfg.d");
    fs::write(directory.join("docker"), "path-exclude=/usr/share/doc/*\n").unwrap();
    fs::write(directory.join("docker.dpkg-old"), "path-exclude=/usr/bin/*\n").unwrap();
    fs::write(root.path().join("etc/dpkg/dpkg.cfg"), "path-include=/usr/share/doc/*/copyright\n").unwrap();
    assert_eq!(may_be_missing(), ["/usr/share/doc/a/README"]);
}

#[test]
fn paths_of_packages_from_before_the_merged_usr_are_those_on_the_disk() {
    let (root, observer) = host(
        &["usr/lib/systemd/system-generators"],
        &[("a", "/lib/systemd/system-generators/a\n"), ("b", "/usr/lib/systemd/system-generators/b\n")],
    );
    symlink("usr/lib", root.path().join("lib")).unwrap();
    let rules = "    - {path: /usr/lib/systemd/system-generators/, closed: true, action: observe}";
    let found = directories(&observer, &policy(rules));
    let wanted =
        ["a", "b"].map(|name| packaged(&format!("/usr/lib/systemd/system-generators/{name}"), false));
    assert_eq!(found.packaged, wanted);
}

#[test]
fn paths_of_packages_in_sbin_are_those_on_the_disk_if_it_is_a_link_to_another_directory_in_usr() {
    let of_packages = |sbin: &dyn Fn(&Path)| {
        let lists = [("old", "/sbin/a\n/usr/sbin/b\n/usr/sbin\n"), ("new", "/usr/bin/b\n/usr/bin/c\n")];
        let (root, observer) = host(&["usr/bin", "opt/sbin"], &lists);
        symlink("usr/sbin", root.path().join("sbin")).unwrap();
        sbin(&root.path().join("usr/sbin"));
        let rules = policy(
            "    - {path: /usr/bin/, closed: true, action: observe}\n    - {path: /usr/sbin/, closed: true, action: observe}\n",
        );
        let found = directories(&observer, &rules).packaged;
        let placed = ["/sbin/a", "/usr/sbin"].map(|path| place(&observer, Path::new(path)));
        (found.into_iter().map(|one| one.path.display().to_string()).collect::<Vec<_>>(), placed)
    };
    let (found, placed) = of_packages(&|sbin| symlink("bin", sbin).unwrap());
    assert_eq!(found, ["/usr/bin/a", "/usr/bin/b", "/usr/bin/c"]);
    assert_eq!(placed, ["/usr/bin/a", "/usr/sbin"].map(Path::new), "the link itself is where it is");
    for (what, sbin) in [
        ("a directory", &(|sbin: &Path| fs::create_dir(sbin).unwrap()) as &dyn Fn(&Path)),
        ("a link out of /usr", &|sbin| symlink("/opt/sbin", sbin).unwrap()),
    ] {
        let (found, placed) = of_packages(sbin);
        assert_eq!(found, ["/usr/bin/b", "/usr/bin/c", "/usr/sbin/a", "/usr/sbin/b"], "{what}");
        assert_eq!(placed, ["/usr/sbin/a", "/usr/sbin"].map(Path::new), "{what}");
    }
}

#[test]
fn a_glob_names_the_directories_that_match_and_no_file_and_no_link() {
    let (root, observer) = host(&["etc/cron.d", "etc/cron.daily", "etc/cronx", "etc/x/cron.d"], &[]);
    fs::write(root.path().join("etc/cron.allow"), "").unwrap();
    symlink("cron.d", root.path().join("etc/cron.link")).unwrap();
    let found = directories(&observer, &policy("    - {path: '/etc/cron.*', closed: true, action: observe}"));
    assert_eq!(found.matching["/etc/cron.*"], [Path::new("/etc/cron.d"), Path::new("/etc/cron.daily")]);
    let found = directories(&observer, &policy("    - {path: '/*/*/cron.?', closed: true, action: observe}"));
    assert_eq!(found.matching["/*/*/cron.?"], [Path::new("/etc/x/cron.d")]);
}

#[test]
fn a_closed_directory_that_is_a_link_to_another_one_is_known_and_another_link_is_none() {
    let (root, observer) = host(
        &["etc/rc.d/init.d", "etc/rc.d/other", "etc/x", "tmp/closed"],
        &[("a", "/etc/init.d/of-package\n")],
    );
    fs::set_permissions(root.path().join("tmp"), Permissions::from_mode(0o1777)).unwrap();
    let link = |target: &str, path: &str| symlink(target, root.path().join(path)).unwrap();
    link("rc.d/init.d", "etc/init.d");
    link("rc.d/other", "etc/y");
    link("/etc/x", "tmp/z");
    let of = |path: &str| format!("    - {{path: {path}, closed: true, action: observe}}\n");
    let rules = ["/etc/init.d/", "/etc/rc.d/init.d/", "/etc/x/", "/etc/y/", "/tmp/z/", "/etc/missing/"];
    let policy = policy(&rules.map(of).concat());
    let found = directories(&observer, &policy);
    let linked = BTreeMap::from([("/etc/init.d".into(), "/etc/rc.d/init.d".into())]);
    assert_eq!(found.linked, linked);
    assert_eq!(found.packaged, [packaged("/etc/init.d/of-package", false)]);
    let known = version(&observer, &policy);
    assert_eq!((&known.linked, &known.searched[..]), (&linked, &["/etc".into()][..]));
    fs::remove_file(root.path().join("etc/init.d")).unwrap();
    link("/tmp/closed", "etc/init.d");
    assert_ne!(version(&observer, &policy), known, "the link leads to another directory");
    assert!(directories(&observer, &policy).linked.is_empty());
}

#[test]
fn a_user_who_fills_a_directory_leaves_room_for_the_directories_of_other_users() {
    let (root, observer) = host(&["home/alice/conf", "home/bob/conf/x.d"], &[]);
    let alice = root.path().join("home/alice/conf");
    fs::set_permissions(&alice, Permissions::from_mode(0o777)).unwrap();
    let rule = policy("    - {path: '/home/*/conf/*.d', closed: true, action: observe}");
    let matching = || directories(&observer, &rule).matching["/home/*/conf/*.d"].clone();
    let of_bob = Path::new("/home/bob/conf/x.d");
    for number in 0..5000 {
        fs::write(alice.join(format!("{number}.d")), "").unwrap();
    }
    assert_eq!(matching(), [of_bob], "files are no directories");
    for number in 0..100 {
        fs::create_dir(alice.join(format!("0{number}.d"))).unwrap();
    }
    let found = matching();
    assert!(found.contains(&of_bob.to_owned()) && found.len() <= 65, "{}", found.len());
}

#[test]
fn without_a_closed_directory_and_without_packages_nothing_is_read() {
    let (_root, observer) = host(&[], &[]);
    let found = directories(&observer, &policy("    - {path: /etc/, action: observe}"));
    assert!(found.packaged.is_empty() && found.matching.is_empty());
    let found = directories(&observer, &policy("    - {path: /etc/cron.d/, closed: true, action: observe}"));
    assert!(found.packaged.is_empty());
}

/// rpm's database of a host, in this format.
fn with_rpm(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A database that rpm 4.18 made.
fn rpmdb() -> Vec<u8> {
    unpacked(include_bytes!("../../../sensor-model/src/rpm/testdata/rpmdb.sqlite.gz"))
}

/// What rpm 4.18 left when it was killed before it merged its log: the database with a package that has `/etc/cron.d/merged`, and the log with
/// one more, which has `/etc/cron.d/logged`.
fn interrupted() -> [Vec<u8>; 2] {
    [
        unpacked(include_bytes!("../../../sensor-model/src/rpm/testdata/interrupted.sqlite.gz")),
        unpacked(include_bytes!("../../../sensor-model/src/rpm/testdata/interrupted.sqlite-wal.gz")),
    ]
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn packages_of_rpm_declare_their_paths_also_those_that_do_not_exist() {
    for database in ["usr/lib/sysimage/rpm/rpmdb.sqlite", "var/lib/rpm/rpmdb.sqlite"] {
        let (root, observer) = host(&["etc/cron.d/sub"], &[("a", "/etc/sudoers.d/of-dpkg\n")]);
        with_rpm(root.path(), database, &rpmdb());
        let rules = "
    - {path: /etc/sudoers.d/, closed: true, action: observe}
    - {path: '/etc/cron.*', closed: true, action: observe}
";
        let found = directories(&observer, &policy(rules));
        assert!(!found.packages_unread);
        let wanted = [
            packaged("/etc/cron.d/sub", true),
            packaged("/etc/cron.d/sub/x", false),
            packaged("/etc/sudoers.d/from rpm", false),
            packaged("/etc/sudoers.d/ghost", false),
            packaged("/etc/sudoers.d/of-dpkg", false),
        ];
        assert_eq!(found.packaged, wanted);
    }
}

#[test]
fn a_closed_directory_behind_a_link_is_the_one_on_the_disk_with_what_packages_have_there() {
    let list = "/lib/udev/rules.d/50-a\n/usr/lib/udev/rules.d/60-b\n/usr/lib/udev/more.d/c\n";
    let (root, observer) = host(&["usr/lib/udev/rules.d", "usr/lib/udev/more.d"], &[("udev", list)]);
    symlink("usr/lib", root.path().join("lib")).unwrap();
    let rules = policy(
        "    - {path: /lib/udev/rules.d/, closed: true, action: revert}
    - {path: '/lib/udev/more.*', closed: true, action: observe}
",
    );
    let found = directories(&observer, &rules);
    let closed: BTreeMap<String, Vec<String>> = closed_directories(&[], &rules, &found)
        .into_iter()
        .map(|one| {
            let Expected::ClosedDirectory(closed) = &one.expected else { panic!("{one:?}") };
            (one.thing.path().display().to_string(), closed.names.clone())
        })
        .collect();
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let expected = BTreeMap::from([
        ("/usr/lib/udev/more.d".to_owned(), of(&["c"])),
        ("/usr/lib/udev/rules.d".to_owned(), of(&["50-a", "60-b"])),
    ]);
    assert_eq!(closed, expected);
    // With a rule for the place, too, that one decides, and the link is no directory of its own.
    let both = policy(
        "    - {path: /lib/udev/rules.d/, closed: true, action: revert}
    - {path: /usr/lib/udev/rules.d/, closed: true, action: observe}
",
    );
    let found = directories(&observer, &both);
    let rules_of: Vec<String> =
        closed_directories(&[], &both, &found).iter().map(|one| one.source.name().to_owned()).collect();
    assert_eq!(rules_of, ["/usr/lib/udev/rules.d/"]);
}

#[test]
fn a_closed_directory_that_became_a_link_to_one_that_is_left_open_stays_closed() {
    let (root, observer) = host(&["etc/cron.d"], &[]);
    symlink("cron.d", root.path().join("etc/sudoers.d")).unwrap();
    let rules = policy(
        "    - {path: /etc/sudoers.d/, closed: true, action: degrade}
    - {path: /etc/cron.d/, closed: true, action: ignore}
",
    );
    let found = directories(&observer, &rules);
    assert_eq!(found.linked, BTreeMap::new());
    let closed = closed_directories(&[], &rules, &found);
    let paths: Vec<_> = closed.iter().map(|one| one.thing.path().display().to_string()).collect();
    assert_eq!(paths, ["/etc/sudoers.d"]);
}

#[test]
fn a_database_that_cannot_be_read_is_said_to_be_unread_and_the_others_count() {
    let half = &rpmdb()[..8192];
    for (path, bytes) in [
        ("var/lib/rpm/Packages", &b"a database of Berkeley DB"[..]),
        ("usr/lib/sysimage/rpm/Packages.db", b"RpmP"),
        ("var/lib/rpm/rpmdb.sqlite", b""),
        ("var/lib/rpm/rpmdb.sqlite", half),
    ] {
        let (root, observer) = host(&[], &[("a", "/etc/cron.d/x\n")]);
        with_rpm(root.path(), path, bytes);
        let rules = "    - {path: /etc/cron.d/, closed: true, action: observe}";
        let found = directories(&observer, &policy(rules));
        assert!(found.packages_unread, "{path}");
        assert_eq!(found.packaged, [packaged("/etc/cron.d/x", false)]);
    }
}

#[test]
fn packages_in_the_log_of_a_killed_rpm_declare_their_paths_and_make_an_index_old() {
    let [database, log] = interrupted();
    let rules = policy("    - {path: /etc/cron.d/, closed: true, action: observe}");
    let (root, observer) = host(&[], &[]);
    let mut states = BTreeSet::from([state(&observer)]);
    let mut check = |log: Option<&[u8]>, names: Option<&[&str]>, is_other: bool| {
        let path = "var/lib/rpm/rpmdb.sqlite-wal";
        match log {
            Some(log) => with_rpm(root.path(), path, log),
            None => with_rpm(root.path(), "var/lib/rpm/rpmdb.sqlite", &database),
        }
        let found = directories(&observer, &rules);
        assert_eq!(found.packages_unread, names.is_none());
        let wanted = names.into_iter().flatten().map(|name| packaged(&format!("/etc/cron.d/{name}"), false));
        let listed = contents(&observer).map(|contents| contents.entries.len());
        if names.is_some() {
            assert_eq!(found.packaged, wanted.collect::<Vec<_>>());
        }
        assert_eq!(listed.ok(), names.map(<[_]>::len));
        let version = version(&observer, &rules).packages;
        assert_eq!(version.iter().flatten().count(), if is_other && log.is_some() { 2 } else { 1 });
        assert_eq!(states.insert(state(&observer)), is_other);
    };
    check(None, Some(&["merged"]), true);
    check(Some(b""), Some(&["merged"]), false);
    check(Some(&log), Some(&["logged", "merged"]), true);
    // A crash tore the last frame, so its transaction is not complete.
    check(Some(&log[..log.len() - 1]), Some(&["merged"]), true);
    check(Some(b"no log"), None, true);
    let error = contents(&observer).unwrap_err().to_string();
    assert!(error.contains("rpmdb.sqlite-wal") && error.contains("`rpmdb --initdb`"), "{error}");
}

#[test]
fn a_directory_in_which_a_user_can_make_names_is_not_among_those_that_the_daemon_watches_for_globs() {
    let (root, observer) = host(&["etc", "tmp", "group"], &[]);
    for (directory, mode) in [("tmp", 0o1777), ("group", 0o775), ("etc", 0o755)] {
        fs::set_permissions(root.path().join(directory), Permissions::from_mode(mode)).unwrap();
    }
    let of = |directory: &str| format!("    - {{path: '/{directory}/*.d', closed: true, action: observe}}\n");
    let policy = policy(&["tmp", "group", "etc", "missing"].map(of).concat());
    assert_eq!(version(&observer, &policy).searched, ["/etc", "/missing"].map(Path::new));
}

#[test]
fn a_change_of_packages_and_a_new_directory_that_matches_are_another_version() {
    let (root, observer) = host(&["etc/cron.d", "var/lib/dpkg"], &[]);
    let rules = "    - {path: '/etc/cron.*', closed: true, action: observe}";
    let policy = policy(rules);
    let mut known = version(&observer, &policy);
    assert_eq!(known.searched, [Path::new("/etc")]);
    assert_eq!(version(&observer, &policy), known);
    for what in ["a directory", "dpkg", "rpm", "the log of rpm"] {
        match what {
            "a directory" => fs::create_dir(root.path().join("etc/cron.daily")).unwrap(),
            "dpkg" => fs::write(root.path().join("var/lib/dpkg/status"), "x").unwrap(),
            "rpm" => with_rpm(root.path(), "var/lib/rpm/rpmdb.sqlite", b"x"),
            _ => with_rpm(root.path(), "var/lib/rpm/rpmdb.sqlite-wal", b"x"),
        }
        let now = version(&observer, &policy);
        assert_ne!(now, known, "{what}");
        known = now;
    }
    fs::write(root.path().join("etc/cron.allow"), "").unwrap();
    assert_eq!(version(&observer, &policy), known, "a file is no directory");
}

#[test]
fn a_package_declares_a_path_where_nothing_may_be_if_it_has_the_path_or_one_below_it() {
    let rules = policy(
        "
    - {path: /etc/rc.local, absent: true, action: observe}
    - {path: /etc/rc.d, absent: true, action: observe}
    - {path: /etc/ld.so.preload, absent: true, action: observe}
    - {path: /lib/merged, absent: true, action: observe}
",
    );
    let list = "/etc/rc.local\n/etc/rc.d/rc.local\n/etc/ld.so.conf\n/usr/lib/merged\n";
    let (root, observer) = host(&["usr/lib"], &[("systemd", list)]);
    symlink("usr/lib", root.path().join("lib")).unwrap();
    let found = directories(&observer, &rules).packaged;
    let paths: Vec<&Path> = found.iter().map(|packaged| &*packaged.path).collect();
    let expected = ["/etc/rc.d", "/etc/rc.d/rc.local", "/etc/rc.local", "/lib/merged", "/usr/lib/merged"];
    assert_eq!(paths, expected.map(Path::new));
    let known = version(&observer, &rules);
    fs::write(root.path().join("var/lib/dpkg/info/other.list"), "/etc/ld.so.preload\n").unwrap();
    fs::write(root.path().join("var/lib/dpkg/status"), "Package: other\n").unwrap();
    assert_ne!(version(&observer, &rules), known, "another package changes what is declared");
    let found = directories(&observer, &rules).packaged;
    assert!(found.contains(&packaged("/etc/ld.so.preload", false)), "{found:?}");
}
