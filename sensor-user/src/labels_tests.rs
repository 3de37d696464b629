use super::*;
use sensor_model::{
    drift_policy::DriftPolicyFile,
    expectation::{AuthorizedKeysExpectation, DirectoryExpectation, LinkExpectation, Owner, Source, Thing},
};
use std::{fmt::Write as _, fs, os::unix::fs::symlink};

const CONTEXTS: &str = "\
/.* system_u:object_r:default_t:s0
/etc(/.*)? system_u:object_r:etc_t:s0
/etc/motd -- system_u:object_r:motd_t:s0
/etc/odd(?=a)a system_u:object_r:odd_t:s0
/etc/own <<none>>
/usr/local/etc(/.*)? system_u:object_r:local_t:s0
/usr/local/etc -d system_u:object_r:local_root_t:s0
";

/// A host with a policy, on a file system that keeps labels or does not.
struct World {
    root: tempfile::TempDir,
}

impl World {
    fn new(keeps_labels: bool) -> Self {
        let world = Self { root: tempfile::tempdir().unwrap() };
        world.write("sys/fs/selinux/enforce", "1");
        world.write("etc/selinux/config", "SELINUX=permissive\nSELINUXTYPE=mine\n");
        world.write("etc/selinux/mine/contexts/files/file_contexts", CONTEXTS);
        world.write(
            "etc/selinux/mine/contexts/files/file_contexts.subs_dist",
            "/var/usrlocal /usr/local\n/var/home /home\n",
        );
        world.write("etc/selinux/mine/contexts/customizable_types", "public_content_t\n");
        world.mount(if keeps_labels { "rw,seclabel" } else { "rw,context=system_u:object_r:nfs_t:s0" });
        world
    }

    /// Writes a mount table in which the file system of the root has these options.
    fn mount(&self, options: &str) {
        let root = fs::File::open(self.root.path()).unwrap();
        let stat = statx(&root, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).unwrap();
        self.write("proc/self/mountinfo", &format!("{} 1 0:1 / / rw - ext4 d {options}\n", stat.stx_mnt_id));
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn observer(&self) -> Observer {
        Observer::new(self.root.path()).unwrap()
    }

    /// The types of the things' expected labels, in their order.
    fn types(&self, things: Vec<(Thing, Expected)>, policy: &DriftPolicy) -> Vec<Option<String>> {
        let mut expectations: Vec<Expectation> =
            things.into_iter().map(|(thing, expected)| expectation(thing, expected)).collect();
        expect(&mut expectations, policy, &self.observer());
        let type_of = |label: &str| label.split(':').nth(2).unwrap().to_owned();
        expectations.iter().map(|expectation| expectation.label.as_deref().map(type_of)).collect()
    }

    fn files(&self, paths: &[&str]) -> Vec<Option<String>> {
        self.types(paths.iter().map(|path| declared(Thing::file(path))).collect(), &DriftPolicy::default())
    }
}

fn expectation(thing: Thing, expected: Expected) -> Expectation {
    Expectation { thing, expected, ssh_keys: false, label: None, source: Source::new("a", "a.yaml").into() }
}

/// The expected state for a directory, or for a file of keys at the path of any other object.
fn declared(thing: Thing) -> (Thing, Expected) {
    let expected = if let Thing::Directory { .. } = thing {
        let (user, group) = (Owner::Id(0), Owner::Id(0));
        Expected::Directory(DirectoryExpectation { mode: 0o755, user, group })
    } else {
        Expected::AuthorizedKeys(AuthorizedKeysExpectation { user: "core".into(), keys: Vec::new() })
    };
    (thing, expected)
}

fn some(types: &[&str]) -> Vec<Option<String>> {
    types.iter().map(|name| (!name.is_empty()).then(|| (*name).to_owned())).collect()
}

#[test]
fn each_kind_of_object_has_the_label_of_its_path_and_a_hard_link_has_none() {
    let world = World::new(true);
    let link = |hard| {
        let (user, group) = (Owner::Id(0), Owner::Id(0));
        Expected::Link(LinkExpectation { target: "/a".into(), hard, user, group })
    };
    let things = vec![
        declared(Thing::file("/etc/motd")),
        declared(Thing::directory("/etc/motd")),
        (Thing::link("/etc/motd"), link(false)),
        (Thing::link("/etc/other"), link(true)),
        declared(Thing::directory("/usr/local/etc")),
        declared(Thing::file("/usr/local/etc/a")),
    ];
    let found = world.types(things, &DriftPolicy::default());
    assert_eq!(found, some(&["motd_t", "etc_t", "etc_t", "", "local_root_t", "local_t"]));
}

#[test]
fn a_path_without_a_label_in_the_policy_or_with_an_unusable_line_has_none() {
    let world = World::new(true);
    assert_eq!(world.files(&["/etc/own", "/etc/odda", "/etc/a"]), some(&["", "", "etc_t"]));
}

#[test]
fn the_label_is_that_of_the_path_with_links_followed_in_its_existing_part() {
    let world = World::new(true);
    fs::create_dir_all(world.root.path().join("var/usrlocal/etc")).unwrap();
    fs::create_dir_all(world.root.path().join("usr")).unwrap();
    symlink("../var/usrlocal", world.root.path().join("usr/local")).unwrap();
    symlink("/etc", world.root.path().join("settings")).unwrap();
    let paths =
        ["/usr/local/etc/a", "/usr/local/etc/missing/a", "/settings/motd", "/settings/new/a", "/srv/a"];
    assert_eq!(world.files(&paths), some(&["local_t", "local_t", "motd_t", "etc_t", "default_t"]));
}

#[test]
fn a_path_on_a_file_system_that_keeps_no_labels_has_none() {
    assert_eq!(World::new(false).files(&["/etc/motd"]), some(&[""]));
}

#[test]
fn a_host_without_selinux_has_no_labels_and_no_version_of_a_policy() {
    let world = World::new(true);
    fs::remove_file(world.root.path().join("sys/fs/selinux/enforce")).unwrap();
    assert_eq!(world.files(&["/etc/motd"]), some(&[""]));
    assert_eq!(version(&world.observer()), LabelVersion::default());
}

#[test]
fn a_policy_with_an_unreadable_part_gives_no_label() {
    let world = World::new(true);
    fs::create_dir(world.root.path().join("etc/selinux/mine/contexts/files/file_contexts.local")).unwrap();
    assert_eq!(world.files(&["/etc/motd"]), some(&[""]));
}

#[test]
fn a_path_for_which_the_drift_policy_ignores_labels_has_none() {
    let world = World::new(true);
    let text = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: a}\nspec: {rules: [{path: \
                /etc/free/, action: degrade, labels: ignore}]}\n";
    let policy = DriftPolicy::merge(&[DriftPolicyFile::parse("a", text.as_bytes()).unwrap()]).unwrap();
    let things = ["/etc/free/a", "/etc/a"].map(|path| declared(Thing::file(path))).to_vec();
    assert_eq!(world.types(things, &policy), some(&["", "etc_t"]));
}

#[test]
fn a_policy_with_a_new_changed_or_removed_file_has_another_version() {
    let world = World::new(true);
    let mut versions = vec![version(&world.observer())];
    assert_eq!(version(&world.observer()), versions[0]);
    let local = "etc/selinux/mine/contexts/files/file_contexts.local";
    world.write(local, "/etc/a -- system_u:object_r:a_t:s0\n");
    versions.push(version(&world.observer()));
    // A tool writes another file and renames it, so the inode differs even if the times do not.
    world.write("etc/new", "/etc/a -- system_u:object_r:b_t:s0\n");
    fs::rename(world.root.path().join("etc/new"), world.root.path().join(local)).unwrap();
    versions.push(version(&world.observer()));
    world.write("etc/selinux/config", "SELINUXTYPE=other\n");
    versions.push(version(&world.observer()));
    for (place, version) in versions.iter().enumerate() {
        assert!(!versions[..place].contains(version), "{place}");
    }
}

/// It prints the time, and asserts only that the labels share their texts.
#[test]
fn thousands_of_files_share_one_text_for_each_label() {
    let world = World::new(true);
    let mut contexts = String::from(CONTEXTS);
    for line in 0..6000 {
        writeln!(contexts, "/etc/part-{}/.*\\.c{line} -- system_u:object_r:c{line}_t:s0", line % 60).unwrap();
    }
    world.write("etc/selinux/mine/contexts/files/file_contexts", &contexts);
    let paths: Vec<String> = (0..10_000).map(|file| format!("/etc/part-{}/{file}.c7", file % 100)).collect();
    let mut expectations: Vec<Expectation> = paths
        .iter()
        .map(|path| declared(Thing::file(path)))
        .map(|(thing, expected)| expectation(thing, expected))
        .collect();
    let began = std::time::Instant::now();
    let customizable = expect(&mut expectations, &DriftPolicy::default(), &world.observer());
    println!("10,000 files by 6,000 lines: {:?}", began.elapsed());
    assert_eq!(customizable, BTreeSet::from(["public_content_t".to_owned()]));
    let texts: HashSet<*const u8> =
        expectations.iter().map(|expectation| expectation.label.as_ref().unwrap().as_ptr()).collect();
    assert_eq!(texts.len(), 2, "c7_t below part-7, etc_t elsewhere");
}

#[test]
fn the_label_of_programs_is_that_of_the_policy_for_usr_bin_and_absent_without_selinux() {
    let world = World::new(true);
    let contexts = format!("{CONTEXTS}/usr/bin(/.*)? system_u:object_r:bin_t:s0\n");
    world.write("etc/selinux/mine/contexts/files/file_contexts", &contexts);
    assert_eq!(of_programs(&world.observer()).as_deref(), Some("system_u:object_r:bin_t:s0"));
    fs::remove_dir_all(world.root.path().join("sys/fs/selinux")).unwrap();
    assert_eq!(of_programs(&world.observer()), None);
}
