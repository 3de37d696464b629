//! Things of all kinds restored below a root of their own.

mod given;
mod undeclared;

use super::*;
use crate::disk::DiskError;
use nix::unistd::mkfifo;
use sensor_model::{expectation::Thing, expectations::expectations, machine_config::parse, merge::merge};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::PathBuf,
};
use tempfile::TempDir;

const CONFIG: &str = r"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 99-test, labels: {machineconfiguration.openshift.io/role: worker}}
spec:
  config:
    ignition: {version: 3.4.0}
    passwd: {users: [{name: core, sshAuthorizedKeys: ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb declared']}]}
    storage:
      directories:
      - {path: /etc/deep, mode: 448}
      files:
      - {path: /etc/app.conf, mode: 384, contents: {source: 'data:,declared%0A'}}
      - {path: /etc/deep/er/file, mode: 420, contents: {source: 'data:,x'}}
      links:
      - {path: /etc/link, target: /etc/app.conf}
      - {path: /etc/hard, target: app.conf, hard: true}
    systemd:
      units:
      - name: on.service
        enabled: true
        contents: |
          [Service]
          ExecStart=/bin/true
          [Install]
          WantedBy=multi-user.target
        dropins: [{name: 10-declared.conf, contents: '[Service]'}]
      - {name: off.service, enabled: false}
      - {name: never.service, mask: true}
      - {name: t@.service, enabled: true}
      - {name: many@own.service, enabled: true}
      - {name: apart.service, enabled: false}
";

struct Case {
    root: TempDir,
    restorer: Restorer,
    rendered: Rendered,
    expectations: Vec<Expectation>,
    runtime: tokio::runtime::Runtime,
}

impl Case {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        fs::create_dir_all(etc.join("systemd/system")).unwrap();
        fs::write(etc.join("passwd"), "root:x:0:0\ncore:x:1000:1000\n").unwrap();
        fs::write(etc.join("group"), "root:x:0\ncore:x:1000\n").unwrap();
        let manifest = parse("test.yaml", CONFIG.as_bytes()).unwrap();
        let rendered = merge(manifest.machine_configs).unwrap();
        let expectations = expectations(&rendered).unwrap();
        let observer = Arc::new(Observer::new(root.path()).unwrap());
        let restorer = Restorer::new(observer, root.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { root, restorer, rendered, expectations, runtime }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// What a repair of the host knows.
    fn context<'a>(&'a self, ids: &'a Ids) -> RepairContext<'a> {
        RepairContext { observer: &self.restorer.observer, rendered: &self.rendered, ids, pristine: None }
    }

    fn restore_thing(&mut self, thing: &Thing) -> Result<Vec<String>, RepairError> {
        let expectation =
            self.expectations.iter().find(|expectation| expectation.thing == *thing).unwrap().clone();
        let ids = Ids::default();
        let restore = self.restorer.restore(&self.rendered, &expectation, &ids);
        self.runtime.block_on(restore).map(|restored| restored.actions)
    }

    fn file(&mut self, path: &str) -> Result<Vec<String>, RepairError> {
        self.restore_thing(&Thing::file(path))
    }

    fn unit(&mut self, name: &str) -> Result<Vec<String>, RepairError> {
        self.restore_thing(&Thing::Unit { name: name.to_owned() })
    }

    /// Names in a directory that we made for temporary files and forgot.
    fn leftovers(&self, path: &str) -> Vec<String> {
        let names = fs::read_dir(self.at(path)).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(".holdfast")).collect()
    }
}

#[test]
fn a_changed_file_gets_content_mode_and_owner_back_in_a_new_inode() {
    let mut case = Case::new();
    let path = case.at("/etc/app.conf");
    fs::write(&path, "tampered").unwrap();
    let before = fs::metadata(&path).unwrap().ino();
    assert_eq!(case.file("/etc/app.conf").unwrap(), ["content written"]);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "declared\n");
    assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o600, 0, 0));
    assert_ne!(metadata.ino(), before, "it is replaced, not written into");
    assert_eq!(case.leftovers("/etc"), [""; 0]);
}

#[test]
fn a_wrong_mode_is_set_without_replacing_the_file() {
    let mut case = Case::new();
    let path = case.at("/etc/app.conf");
    fs::write(&path, "declared\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
    let before = fs::metadata(&path).unwrap().ino();
    assert_eq!(case.file("/etc/app.conf").unwrap(), ["mode set to 0600"]);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.ino()), (0o600, before));
}

#[test]
fn a_file_that_matches_its_declaration_is_not_touched() {
    let mut case = Case::new();
    assert_eq!(case.file("/etc/app.conf").unwrap(), ["file made"]);
    let path = case.at("/etc/app.conf");
    let before = fs::metadata(&path).unwrap();
    assert_eq!(case.file("/etc/app.conf").unwrap(), [""; 0]);
    let after = fs::metadata(&path).unwrap();
    assert_eq!((before.ino(), before.ctime_nsec()), (after.ino(), after.ctime_nsec()));
}

#[test]
fn a_link_or_fifo_in_the_place_of_a_file_is_replaced_and_never_followed() {
    let mut case = Case::new();
    let (path, victim) = (case.at("/etc/app.conf"), case.at("/etc/victim"));
    fs::write(&victim, "mine").unwrap();
    symlink("victim", &path).unwrap();
    case.file("/etc/app.conf").unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    fs::remove_file(&path).unwrap();
    mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    case.file("/etc/app.conf").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "declared\n");
}

#[test]
fn a_parent_that_is_a_link_out_of_the_root_is_not_followed_out_of_it() {
    let mut case = Case::new();
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), case.at("/etc/deep")).unwrap();
    let error = case.file("/etc/deep/er/file").unwrap_err().to_string();
    assert!(error.contains("a link to a missing target"), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// A home that its user owns, and a directory of root's that such a user would like to write to.
fn with_home(case: &Case) -> PathBuf {
    fs::create_dir_all(case.at("/home/core")).unwrap();
    std::os::unix::fs::chown(case.at("/home/core"), Some(1000), Some(1000)).unwrap();
    let roots = case.at("/etc/x");
    fs::create_dir_all(roots.join("authorized_keys.d")).unwrap();
    roots
}

#[test]
fn a_link_in_a_users_home_leads_no_key_to_another_directory() {
    for (link, target) in [
        ("/home/core/.ssh/authorized_keys.d", "/etc/x/authorized_keys.d"),
        ("/home/core/.ssh/authorized_keys.d", "../../../etc/x/authorized_keys.d"),
        ("/home/core/.ssh", "/etc/x"),
        ("/home/core/.ssh", "../../etc/x"),
    ] {
        let mut case = Case::new();
        let roots = with_home(&case);
        fs::create_dir_all(case.at(link).parent().unwrap()).unwrap();
        symlink(target, case.at(link)).unwrap();
        for path in ["authorized_keys.d/ignition", "authorized_keys.d", "authorized_keys"] {
            let path = Path::new("/home/core/.ssh").join(path);
            let things: Vec<Thing> = case
                .expectations
                .iter()
                .filter(|expectation| *expectation.thing.path() == *path)
                .map(|expectation| expectation.thing.clone())
                .collect();
            assert!(!things.is_empty(), "{}", path.display());
            for thing in things {
                // Refused or nothing to do: what counts is where nothing is written.
                let _ = case.restore_thing(&thing);
            }
        }
        let thing = Thing::file("/home/core/.ssh/authorized_keys.d/ignition");
        let error = case.restore_thing(&thing).unwrap_err().to_string();
        assert!(error.contains("others than root"), "{error}");
        assert_eq!(fs::read_dir(roots.join("authorized_keys.d")).unwrap().count(), 0, "{link} -> {target}");
        assert_eq!(fs::read_dir(&roots).unwrap().count(), 1, "{link} -> {target}");
        assert_eq!(fs::metadata(&roots).unwrap().uid(), 0);
    }
}

#[test]
fn a_hard_link_to_a_file_of_root_in_a_users_home_does_not_change_the_files_owner() {
    let mut case = Case::new();
    with_home(&case);
    let declared = "/home/core/.ssh/authorized_keys.d/ignition";
    case.file(declared).unwrap();
    let (name, roots) = (case.at(declared), case.at("/etc/roots"));
    fs::rename(&name, &roots).unwrap();
    std::os::unix::fs::chown(&roots, Some(0), Some(0)).unwrap();
    fs::hard_link(&roots, &name).unwrap();
    assert_eq!(case.file(declared).unwrap(), ["content written"]);
    assert_eq!((fs::metadata(&roots).unwrap().uid(), fs::metadata(&name).unwrap().uid()), (0, 1000));
}

#[test]
fn a_link_of_root_above_a_home_is_followed() {
    let mut case = Case::new();
    fs::create_dir_all(case.at("/var/home/core")).unwrap();
    std::os::unix::fs::chown(case.at("/var/home/core"), Some(1000), Some(1000)).unwrap();
    symlink("var/home", case.at("/home")).unwrap();
    case.file("/home/core/.ssh/authorized_keys.d/ignition").unwrap();
    assert!(case.at("/var/home/core/.ssh/authorized_keys.d/ignition").is_file());
}

#[test]
fn missing_parents_get_the_mode_that_is_declared_for_them() {
    let mut case = Case::new();
    case.file("/etc/deep/er/file").unwrap();
    let mode = |path: &str| fs::metadata(case.at(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("/etc/deep"), mode("/etc/deep/er"), mode("/etc/deep/er/file")), (0o700, 0o755, 0o644));
}

#[test]
fn a_directory_that_is_not_empty_is_not_replaced_by_a_file() {
    let mut case = Case::new();
    fs::create_dir_all(case.at("/etc/app.conf")).unwrap();
    fs::write(case.at("/etc/app.conf/kept"), "kept").unwrap();
    let error = case.file("/etc/app.conf").unwrap_err();
    assert!(matches!(error, RepairError::Disk(DiskError::Refused { .. })), "{error}");
    assert!(case.at("/etc/app.conf/kept").exists());
    assert_eq!(case.leftovers("/etc"), [""; 0]);
    fs::remove_file(case.at("/etc/app.conf/kept")).unwrap();
    case.file("/etc/app.conf").unwrap();
}

#[test]
fn an_undeclared_attribute_is_removed_where_it_is() {
    let mut case = Case::new();
    case.file("/etc/app.conf").unwrap();
    let path = case.at("/etc/app.conf");
    let set = rustix::fs::setxattr(&path, "user.note", b"v", rustix::fs::XattrFlags::empty());
    if set == Err(rustix::io::Errno::OPNOTSUPP) {
        return;
    }
    set.unwrap();
    assert_eq!(case.file("/etc/app.conf").unwrap(), ["extended attribute user.note removed"]);
}

#[test]
fn links_get_their_declared_targets_back() {
    let mut case = Case::new();
    case.file("/etc/app.conf").unwrap();
    symlink("/elsewhere", case.at("/etc/link")).unwrap();
    case.restore_thing(&Thing::link("/etc/link")).unwrap();
    assert_eq!(fs::read_link(case.at("/etc/link")).unwrap(), Path::new("/etc/app.conf"));
    fs::write(case.at("/etc/hard"), "another inode").unwrap();
    case.restore_thing(&Thing::link("/etc/hard")).unwrap();
    let inode = |path: &str| fs::metadata(case.at(path)).unwrap().ino();
    assert_eq!(inode("/etc/hard"), inode("/etc/app.conf"));
    assert_eq!(case.leftovers("/etc"), [""; 0]);
}

#[test]
fn a_missing_directory_is_made_and_a_file_in_its_place_is_refused() {
    let mut case = Case::new();
    let thing = Thing::directory("/etc/deep");
    assert_eq!(case.restore_thing(&thing).unwrap(), ["directory made"]);
    fs::set_permissions(case.at("/etc/deep"), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(case.restore_thing(&thing).unwrap(), ["mode set to 0700"]);
    fs::remove_dir(case.at("/etc/deep")).unwrap();
    fs::write(case.at("/etc/deep"), "kept").unwrap();
    let error = case.restore_thing(&thing).unwrap_err().to_string();
    assert!(error.contains("a regular file is in its place"), "{error}");
    assert_eq!(fs::read_to_string(case.at("/etc/deep")).unwrap(), "kept");
}

#[test]
fn only_undeclared_drop_ins_are_removed() {
    let mut case = Case::new();
    let directory = case.at("/etc/systemd/system/on.service.d");
    fs::create_dir_all(&directory).unwrap();
    for name in ["10-declared.conf", "99-evil.conf", "readme"] {
        fs::write(directory.join(name), "").unwrap();
    }
    let thing = Thing::closed_directory("/etc/systemd/system/on.service.d");
    assert_eq!(case.restore_thing(&thing).unwrap(), ["undeclared 99-evil.conf removed"]);
    assert!(directory.join("10-declared.conf").exists() && directory.join("readme").exists());
}

#[test]
fn of_very_many_undeclared_names_all_are_removed_and_some_are_reported() {
    let mut case = Case::new();
    let directory = case.at("/etc/systemd/system/on.service.d");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("10-declared.conf"), "").unwrap();
    for number in 0..3000 {
        fs::write(directory.join(format!("90-{number}.conf")), "").unwrap();
    }
    let thing = Thing::closed_directory("/etc/systemd/system/on.service.d");
    let reported = case.restore_thing(&thing).unwrap();
    assert_eq!((reported.len(), reported[64].as_str()), (65, "2936 more undeclared names removed"));
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
}

#[test]
fn a_unit_is_enabled_by_the_links_of_its_install_section() {
    let mut case = Case::new();
    case.file("/etc/systemd/system/on.service").unwrap();
    assert_eq!(case.unit("on.service").unwrap(), ["enabled"]);
    let link = case.at("/etc/systemd/system/multi-user.target.wants/on.service");
    assert_eq!(fs::read_link(link).unwrap(), Path::new("/etc/systemd/system/on.service"));
}

#[test]
fn a_unit_is_disabled_by_removing_every_link_to_it() {
    let mut case = Case::new();
    let usr = case.at("/usr/lib/systemd/system");
    fs::create_dir_all(&usr).unwrap();
    fs::write(usr.join("off.service"), "[Install]\nWantedBy=a.target\nAlias=also.service\n").unwrap();
    let system = case.at("/etc/systemd/system");
    fs::create_dir_all(system.join("a.target.wants")).unwrap();
    symlink("/usr/lib/systemd/system/off.service", system.join("a.target.wants/off.service")).unwrap();
    symlink("/usr/lib/systemd/system/off.service", system.join("also.service")).unwrap();
    symlink("/usr/lib/systemd/system/other.service", system.join("a.target.wants/other.service")).unwrap();
    assert_eq!(case.unit("off.service").unwrap(), ["disabled"]);
    assert!(fs::symlink_metadata(system.join("also.service")).is_err());
    assert!(fs::symlink_metadata(system.join("a.target.wants/other.service")).is_ok());
}

#[test]
fn enabling_a_unit_replaces_no_file_at_an_alias() {
    let mut case = Case::new();
    let usr = case.at("/usr/lib/systemd/system");
    fs::create_dir_all(&usr).unwrap();
    fs::write(usr.join("on.service"), "[Install]\nAlias=own.service\n").unwrap();
    let own = case.at("/etc/systemd/system/own.service");
    fs::write(&own, "[Service]\n").unwrap();
    let error = case.unit("on.service").unwrap_err().to_string();
    assert!(error.contains("own.service") && error.contains("a file is in its place"), "{error}");
    assert_eq!(fs::read_to_string(&own).unwrap(), "[Service]\n");
}

#[test]
fn a_template_is_enabled_by_its_default_instance_together_with_undeclared_units_in_also() {
    let mut case = Case::new();
    let usr = case.at("/usr/lib/systemd/system");
    fs::create_dir_all(&usr).unwrap();
    let also = "Also=with.socket apart.service missing.service\n";
    fs::write(usr.join("t@.service"), format!("[Install]\nWantedBy=a.target\nDefaultInstance=d\n{also}"))
        .unwrap();
    fs::write(usr.join("with.socket"), "[Install]\nRequiredBy=b.target\nAlso=t@.service\n").unwrap();
    fs::write(usr.join("apart.service"), "[Install]\nWantedBy=a.target\n").unwrap();
    assert_eq!(case.unit("t@.service").unwrap(), ["enabled"]);
    let system = case.at("/etc/systemd/system");
    for (link, target) in
        [("a.target.wants/t@d.service", "t@.service"), ("b.target.requires/with.socket", "with.socket")]
    {
        let found = fs::read_link(system.join(link)).unwrap();
        assert_eq!(found, Path::new("/usr/lib/systemd/system").join(target), "{link}");
    }
    assert!(fs::symlink_metadata(system.join("a.target.wants/apart.service")).is_err());
}

#[test]
fn a_unit_is_disabled_together_with_the_units_in_also_and_a_declared_instance_stays() {
    let mut case = Case::new();
    let (usr, system) = (case.at("/usr/lib/systemd/system"), case.at("/etc/systemd/system"));
    fs::create_dir_all(&usr).unwrap();
    fs::create_dir_all(system.join("a.target.wants")).unwrap();
    fs::write(usr.join("off.service"), "[Install]\nWantedBy=a.target\nAlso=many@.service\n").unwrap();
    fs::write(usr.join("many@.service"), "[Install]\nWantedBy=a.target\nDefaultInstance=d\n").unwrap();
    for (link, target) in [
        ("off.service", "off.service"),
        ("many@d.service", "many@.service"),
        ("many@e.service", "many@.service"),
        ("many@own.service", "many@.service"),
    ] {
        let target = Path::new("/usr/lib/systemd/system").join(target);
        symlink(target, system.join("a.target.wants").join(link)).unwrap();
    }
    assert_eq!(case.unit("off.service").unwrap(), ["disabled"]);
    let left: Vec<_> =
        fs::read_dir(system.join("a.target.wants")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["many@own.service"]);
}

#[test]
fn a_unit_without_an_install_section_cannot_be_enabled() {
    let mut case = Case::new();
    let error = case.unit("on.service").unwrap_err().to_string();
    assert!(error.contains("no unit file to enable"), "{error}");
}

#[test]
fn a_unit_is_masked_and_unmasked() {
    let mut case = Case::new();
    let link = case.at("/etc/systemd/system/never.service");
    fs::write(&link, "[Service]").unwrap();
    assert_eq!(case.unit("never.service").unwrap(), ["masked"]);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/null"));
}

#[test]
fn undeclared_keys_are_removed_from_a_users_own_file_and_declared_ones_stay() {
    let mut case = Case::new();
    let path = case.at("/home/core/.ssh/authorized_keys");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let declared = CONFIG.lines().find_map(|line| line.split('\'').nth(1)).unwrap();
    let other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx evil";
    fs::write(&path, format!("# mine\n{other}\n{declared}\nnot a key\n")).unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    let done = case.file("/home/core/.ssh/authorized_keys").unwrap();
    assert_eq!(done, ["2 undeclared lines removed"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("# mine\n{declared}\n"));
    assert_eq!(fs::metadata(&path).unwrap().uid(), 1000);
}

#[test]
fn declared_keys_come_with_a_directory_that_only_their_user_can_write() {
    let mut case = Case::new();
    let declared = "/home/core/.ssh/authorized_keys.d/ignition";
    let error = case.file(declared).unwrap_err().to_string();
    assert!(error.contains("home directory is missing"), "{error}");
    fs::create_dir_all(case.at("/home/core")).unwrap();
    assert_eq!(case.file(declared).unwrap(), ["file made"]);
    let made = fs::metadata(case.at("/home/core/.ssh")).unwrap();
    assert_eq!((made.mode() & 0o7777, made.uid()), (0o700, 1000));
}

#[test]
fn no_error_shows_contents() {
    let mut case = Case::new();
    fs::create_dir_all(case.at("/etc/app.conf/in")).unwrap();
    let error = case.file("/etc/app.conf").unwrap_err();
    assert!(!format!("{error} {error:?}").contains("declared\\n"), "{error:?}");
}

fn label_of(path: &Path) -> String {
    let mut value = vec![0; 256];
    let length = rustix::fs::lgetxattr(path, "security.selinux", value.as_mut_slice()).unwrap();
    String::from_utf8(value[..length].to_vec()).unwrap()
}

#[test]
fn a_new_object_gets_the_policys_label_and_a_wrong_label_the_policys_type() {
    let mut case = Case::new();
    fs::create_dir_all(case.at("/sys/fs/selinux")).unwrap();
    fs::write(case.at("/sys/fs/selinux/enforce"), "1").unwrap();
    let observer = Arc::new(Observer::new(case.root.path()).unwrap());
    case.restorer = Restorer::new(observer, case.root.path());
    for expectation in &mut case.expectations {
        expectation.label = Some("system_u:object_r:etc_t:s0".into());
    }
    for thing in [Thing::directory("/etc/deep"), Thing::file("/etc/app.conf"), Thing::link("/etc/link")] {
        case.restore_thing(&thing).unwrap();
        let path = case.at(&thing.path().to_string_lossy());
        assert_eq!(label_of(&path), "system_u:object_r:etc_t:s0\0");
        let theirs = b"alice_u:object_r:tmp_t:s0:c3\0";
        rustix::fs::lsetxattr(&path, "security.selinux", theirs, rustix::fs::XattrFlags::empty()).unwrap();
        let actions = case.restore_thing(&thing).unwrap();
        assert_eq!(label_of(&path), "alice_u:object_r:etc_t:s0:c3\0", "{actions:?}");
        assert_eq!(case.restore_thing(&thing).unwrap(), [""; 0], "as good as the policy's");
    }
}
