use super::*;
use sensor_model::closed::PackagedPath;
use sensor_model::drift_policy::DriftPolicyFile;
use std::fs;
use std::os::unix::fs::symlink;
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
fn without_a_closed_directory_and_without_packages_nothing_is_read() {
    let (_root, observer) = host(&[], &[]);
    let found = directories(&observer, &policy("    - {path: /etc/, action: observe}"));
    assert!(found.packaged.is_empty() && found.matching.is_empty());
    let found = directories(&observer, &policy("    - {path: /etc/cron.d/, closed: true, action: observe}"));
    assert!(found.packaged.is_empty());
}
