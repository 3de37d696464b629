//! Other influences of a host: SELinux labels, the lock of the shadow file, files that packages put aside.

use crate::world::World;
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use std::{fs, path::Path};

const FILES: &str = "
    storage:
      directories: [{path: /etc/made, mode: 493}]
      links: [{path: /etc/made/deep/link, target: /nowhere}]
      files:
      - {path: /etc/made/deep/er/secret, mode: 384, contents: {source: 'data:,new'}}
      - {path: /etc/present, mode: 420, contents: {source: 'data:,new'}}
      - {path: /etc/chosen, mode: 420, contents: {source: 'data:,new'}}
      - {path: /etc/none, mode: 420, contents: {source: 'data:,new'}}
";

fn label(path: &Path) -> Option<String> {
    let mut value = vec![0; 256];
    let length = rustix::fs::lgetxattr(path, "security.selinux", value.as_mut_slice()).ok()?;
    Some(String::from_utf8(value[..length].to_vec()).unwrap())
}

fn policy(world: &World) {
    world.write("/etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=mine\n");
    world.write(
        "/etc/selinux/mine/contexts/files/file_contexts",
        "/etc(/.*)? u:object_r:etc_t:s0\n/etc/made/deep(/.*)? u:object_r:deep_t:s0\n/etc/none <<none>>\n",
    );
    let local = "/srv/secret -- u:object_r:secret_t:s0\n";
    world.write("/etc/selinux/mine/contexts/files/file_contexts.local", local);
    let same = "/etc/made/deep/er/secret /srv/secret\n";
    world.write("/etc/selinux/mine/contexts/files/file_contexts.subs", same);
    world.write("/etc/selinux/mine/contexts/customizable_types", "chosen_t\n");
    // The test mounts nothing, so this table says that the file systems keep labels.
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let table: Vec<String> = table.lines().map(|line| format!("{line},seclabel\n")).collect();
    world.write("/proc/self/mountinfo", &table.concat());
    world.config("files", FILES);
    world.config("none", "    storage: {}\n");
    for (path, label) in
        [("/etc/present", "theirs:object_r:theirs_t:s0\0"), ("/etc/chosen", "u:object_r:chosen_t:s0\0")]
    {
        world.write(path, "before");
        set_label(&world.at(path), label);
    }
}

fn set_label(path: &Path, label: &str) {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "security.selinux", label.as_bytes(), flags).unwrap();
}

#[test]
fn new_objects_and_their_parents_get_the_policys_label_and_present_ones_its_type_unless_it_is_customizable() {
    let world = World::new();
    policy(&world);
    world.write("/sys/fs/selinux/enforce", "1");
    let before = world.snapshot();
    let said = world.apply(&["files"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    for (path, wanted) in [
        ("/etc/made", Some("u:object_r:etc_t")),
        ("/etc/made/deep", Some("u:object_r:deep_t")),
        ("/etc/made/deep/link", Some("u:object_r:deep_t")),
        ("/etc/made/deep/er", Some("u:object_r:deep_t")),
        ("/etc/made/deep/er/secret", Some("u:object_r:secret_t")),
        ("/etc/present", Some("theirs:object_r:etc_t")),
        ("/etc/chosen", Some("u:object_r:chosen_t")),
        ("/etc/none", None),
    ] {
        let wanted = wanted.map(|label| format!("{label}:s0\0"));
        assert_eq!(label(&world.at(path)), wanted, "{path}");
    }
    assert_eq!(world.apply(&["none"], "").code, Some(0));
    assert_eq!(world.snapshot(), before);
    assert_eq!(label(&world.at("/etc/present")).as_deref(), Some("theirs:object_r:theirs_t:s0\0"));
}

#[test]
fn a_label_that_is_not_the_policys_keeps_an_apply_from_beginning_unless_the_drift_policy_ignores_labels() {
    let world = World::new();
    policy(&world);
    world.write("/sys/fs/selinux/enforce", "1");
    assert_eq!(world.apply(&["files"], "").code, Some(0));
    set_label(&world.at("/etc/made/deep/er/secret"), "u:object_r:other_t:s0\0");
    let said = world.apply(&["none"], "");
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    let text = "label mismatch for file: \"/etc/made/deep/er/secret\"; expected: u:object_r:secret_t:s0; received: \
                u:object_r:other_t:s0";
    assert!(said.err.contains(text), "{}", said.err);
    let rule = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: a}\nspec: {rules: [{path: \
                /etc/made/, action: degrade, labels: ignore}]}\n";
    world.write("/etc/holdfast/policies/a.yaml", rule);
    assert_eq!(world.apply(&["none"], "").code, Some(0));
}

#[test]
fn without_selinux_no_label_is_written() {
    let world = World::new();
    policy(&world);
    assert_eq!(world.apply(&["files"], "").code, Some(0));
    assert_eq!(label(&world.at("/etc/made/deep/er/secret")), None);
    assert_eq!(label(&world.at("/etc/made/deep/link")), None);
    // An attribute like any other, which stays with the name.
    assert_eq!(label(&world.at("/etc/present")).as_deref(), Some("theirs:object_r:theirs_t:s0\0"));
}

/// A lock of a whole file for writing.
pub(crate) fn whole() -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(libc::F_WRLCK).unwrap(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[test]
fn an_apply_waits_for_the_lock_of_another_process_and_then_ends_without_a_write() {
    let world = World::old();
    let before = world.snapshot();
    // Opened after the snapshot: the process loses such a lock when it closes any descriptor of the file.
    let lock = fs::File::options().write(true).open(world.at("/etc/.pwd.lock")).unwrap();
    // The lock of passwd and useradd.
    fcntl(&lock, FcntlArg::F_SETLK(&whole())).unwrap();
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(3), "{}", said.out);
    assert!(said.err.contains("/etc/.pwd.lock: another process has kept it locked"), "{}", said.err);
    assert_eq!(world.snapshot(), before);
    drop(lock);
    assert_eq!(world.apply(&["new"], "").code, Some(0));
}

#[test]
fn a_file_that_a_package_put_aside_is_restored_if_there_was_no_original() {
    for ending in ["rpmnew", "dpkg-dist"] {
        let world = World::new();
        world.config("files", FILES);
        world.config("none", "    storage: {}\n");
        world.write("/etc/present", "before");
        assert_eq!(world.apply(&["files"], "").code, Some(0));
        world.write(&format!("/etc/none.{ending}"), "the package's");
        world.write(&format!("/etc/present.{ending}"), "the package's");
        assert_eq!(world.apply(&["none"], "").code, Some(0));
        assert_eq!(world.read("/etc/none"), "the package's");
        assert_eq!(world.read("/etc/present"), "before", "what was there counts more");
    }
}

#[test]
fn a_change_that_is_not_reconcilable_is_reported_as_by_plan() {
    let world = World::old();
    let append = "    storage: {files: [{path: /etc/app/stays, append: [{source: 'data:,more'}]}]}\n";
    world.config("append", append);
    let before = world.snapshot();
    for more in [&["append"][..], &["append", "--dry-run"]] {
        let said = world.apply(more, "");
        assert_eq!(said.code, Some(4), "{}{}", said.out, said.err);
        assert!([said.out, said.err].concat().contains("/etc/app/stays includes append"));
    }
    assert_eq!(world.snapshot(), before);
}

#[test]
fn a_kernel_argument_that_waits_needs_an_os_backend() {
    let world = World::old();
    let config = fs::read_to_string(world.at("../old.yaml")).unwrap();
    fs::write(world.at("../argument.yaml"), format!("{config}  kernelArguments: [sysctl.a=1]\n")).unwrap();
    let policy = "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: a}\n\
                  spec: {kernelArguments: [{name: sysctl.*, actions: [{type: None}]}]}\n";
    fs::write(world.at("../policy.yaml"), policy).unwrap();
    let at = |name: &str| world.at(&format!("../{name}.yaml")).display().to_string();
    let before = world.snapshot();
    let said = world.run(&["apply", &at("argument"), "--policy", &at("policy"), "--dry-run"], "");
    assert!(said.out.contains("written for the next boot"), "{}", said.out);
    let said = world.run(&["apply", &at("argument"), "--policy", &at("policy")], "");
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.err.contains("the host has no OS that can be changed as a whole"), "{}", said.err);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn a_planned_drain_is_reported_as_not_done() {
    let world = World::old();
    let said = world.apply(&["new", "--dry-run"], "");
    assert!(said.out.contains("drain (on a single host Holdfast does not drain"), "{}", said.out);
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.err.contains("does not drain"), "{}", said.err);
}
