//! What an apply restores when nothing is declared any more, and a disk without room for the declared files.

use crate::world::{RunResult, World};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    process::Command,
};

const FILES: &str = "
    storage:
      files:
      - {path: /etc/shipped, mode: 420, overwrite: true, contents: {source: 'data:,declared'}}
      - {path: /etc/below/only-shipped, mode: 420, contents: {source: 'data:,declared'}}
      - {path: /etc/only-local, mode: 420, overwrite: true, contents: {source: 'data:,declared'}}
";

#[test]
fn a_path_is_restored_to_what_the_os_ships_now_rather_than_to_its_original() {
    for pristine in ["/usr/etc", "/usr/share/flatcar/etc"] {
        let world = World::new();
        fs::create_dir(world.at("/ostree")).unwrap();
        world.config("files", FILES);
        world.write(&format!("{pristine}/shipped"), "of the old OS");
        world.write("/etc/shipped", "changed by hand");
        world.write(&format!("{pristine}/below/only-shipped"), "shipped");
        world.write("/etc/only-local", "local");
        assert_eq!(world.apply(&["files"], "").code, Some(0));
        assert_eq!(world.read("/etc/shipped"), "declared");
        // Another OS was installed meanwhile.
        let now = world.at(&format!("{pristine}/shipped"));
        fs::write(&now, "of the new OS").unwrap();
        fs::set_permissions(&now, fs::Permissions::from_mode(0o640)).unwrap();
        chown(&now, Some(7), Some(8)).unwrap();
        assert_eq!(world.apply(&["nothing"], "").code, Some(0));
        assert_eq!(world.read("/etc/shipped"), "of the new OS");
        let found = fs::metadata(world.at("/etc/shipped")).unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o640, 7, 8));
        assert_eq!(world.read("/etc/below/only-shipped"), "shipped");
        assert_eq!(world.read("/etc/only-local"), "local");
        assert_eq!(fs::read_to_string(&now).unwrap(), "of the new OS", "it is copied and not moved");
        // A new declaration restores the first state.
        assert_eq!(world.apply(&["files"], "").code, Some(0));
        assert_eq!(world.read("/etc/shipped"), "declared");
    }
}

#[test]
fn on_a_host_without_ostree_the_original_comes_back_and_not_what_a_vendor_ships_in_usr_etc() {
    let world = World::new();
    world.config("files", FILES);
    world.write("/usr/etc/shipped", "of the vendor");
    world.write("/etc/shipped", "of the admin");
    world.write("/usr/etc/below/only-shipped", "of the vendor");
    assert_eq!(world.apply(&["files"], "").code, Some(0));
    assert_eq!(world.read("/etc/shipped"), "declared");
    assert_eq!(world.apply(&["nothing"], "").code, Some(0));
    assert_eq!(world.read("/etc/shipped"), "of the admin");
    assert!(!world.at("/etc/below/only-shipped").exists(), "there was none");
}

#[test]
fn a_file_that_only_an_older_image_shipped_is_not_restored() {
    let world = World::new();
    fs::create_dir(world.at("/ostree")).unwrap();
    let files = ["/etc/changed", "/etc/dropped", "/etc/own"];
    let declared = |content: &str| {
        let lines = files.map(|path| {
            format!("      - {{path: {path}, mode: 420, overwrite: true, contents: {{source: 'data:,{content}'}}}}\n")
        });
        format!("    storage:\n      files:\n{}", lines.concat())
    };
    for path in files {
        world.write(&format!("/usr{path}"), "v1");
        world.write(path, "v1");
    }
    // The administrator changes the file to what is declared first, so no config ever changes it.
    world.write("/etc/own", "one");
    world.config("one", &declared("one"));
    world.config("two", &declared("v1"));
    assert_eq!(world.apply(&["one"], "").code, Some(0));
    // The same as the image's default, which a later config declares.
    assert_eq!(world.apply(&["two"], "").code, Some(0));
    assert_eq!(world.apply(&["one"], "").code, Some(0));
    for path in files {
        world.write(&format!("/usr{path}"), "v2");
    }
    fs::remove_file(world.at("/usr/etc/dropped")).unwrap();
    assert_eq!(world.apply(&["nothing"], "").code, Some(0));
    assert_eq!(world.read("/etc/changed"), "v2");
    assert!(!world.at("/etc/dropped").exists(), "the present image ships none");
    assert_eq!(world.read("/etc/own"), "one", "the administrator's");
    assert_eq!(world.originals(), 0);
}

/// Each kind of thing that can match before a config declares it.
const KINDS: &str = "
    passwd: {users: [{name: core, sshAuthorizedKeys: ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb key']}]}
    storage:
      files: [{path: /etc/same/file, mode: 420, overwrite: true, contents: {source: 'data:,same'}}]
      directories: [{path: /etc/same/empty, mode: 493}]
      links: [{path: /etc/same/link, target: file}, {path: /etc/same/hard, target: /etc/same/file, hard: true}]
    systemd:
      units:
      - {name: off.service, enabled: true}
      - {name: masked.service, mask: true}
      - name: same.service
        contents: '[Service]'
        dropins: [{name: 10-same.conf, contents: '[Unit]'}]
";

/// A host with all of them.
fn same() -> World {
    let world = World::new();
    world.config("kinds", KINDS);
    let key = KINDS.lines().find_map(|line| line.split('\'').nth(1)).unwrap();
    for (path, text) in [
        ("/etc/same/file", "same"),
        ("/etc/systemd/system/same.service", "[Service]"),
        ("/etc/systemd/system/same.service.d/10-same.conf", "[Unit]"),
        ("/home/core/.ssh/authorized_keys.d/ignition", &format!("{key}\n")),
    ] {
        world.write(path, text);
    }
    fs::create_dir(world.at("/etc/same/empty")).unwrap();
    symlink("file", world.at("/etc/same/link")).unwrap();
    fs::hard_link(world.at("/etc/same/file"), world.at("/etc/same/hard")).unwrap();
    symlink("/dev/null", world.at("/etc/systemd/system/masked.service")).unwrap();
    fs::remove_file(world.at("/etc/systemd/system/a.target.wants/masked.service")).unwrap();
    for path in ["/home/core", "/home/core/.ssh", "/home/core/.ssh/authorized_keys.d"] {
        chown(world.at(path), Some(1000), Some(1000)).unwrap();
    }
    let key = world.at("/home/core/.ssh/authorized_keys.d/ignition");
    chown(&key, Some(1000), Some(1000)).unwrap();
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
    world
}

#[test]
fn a_path_that_matched_its_declaration_before_stays_when_the_declaration_is_removed() {
    for rollback in [false, true] {
        let world = same();
        world.config("base", "    storage: {files: [{path: /etc/base, contents: {source: 'data:,x'}}]}\n");
        assert_eq!(world.apply(&["base"], "").code, Some(0));
        world.config(
            "kinds",
            &KINDS.replace("files: [", "files: [{path: /etc/base, contents: {source: 'data:,x'}}, "),
        );
        let before = world.snapshot();
        let inode = fs::metadata(world.at("/etc/same/file")).unwrap().ino();
        let said = world.apply(&["kinds"], "");
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        assert_eq!(world.snapshot(), before, "nothing had to be written");
        let said =
            if rollback { world.run(&["rollback", "--no-acts"], "") } else { world.apply(&["base"], "") };
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        assert_eq!(world.snapshot(), before, "rollback: {rollback}");
        assert_eq!(fs::metadata(world.at("/etc/same/file")).unwrap().ino(), inode, "it was not touched");
        assert_eq!(world.originals(), 1, "what was given back is forgotten");
    }
}

#[test]
fn a_path_that_matched_its_declaration_before_is_restored_after_a_later_config_changed_it() {
    const OTHER: &str = "
    storage:
      files: [{path: /etc/same/file, mode: 384, overwrite: true, contents: {source: 'data:,other'}}]
      directories: [{path: /etc/same/empty, mode: 448}]
      links: [{path: /etc/same/link, target: elsewhere, overwrite: true}]
    systemd:
      units:
      - {name: off.service, enabled: false}
      - {name: masked.service, mask: false}
      - {name: same.service, mask: true}
";
    let world = same();
    world.config("other", OTHER);
    let before = world.snapshot();
    for config in ["kinds", "other", "nothing"] {
        let said = world.apply(&[config], "");
        assert_eq!(said.code, Some(0), "{config}: {}{}", said.out, said.err);
        assert_eq!(world.snapshot() == before, config != "other", "{config}");
    }
    assert_eq!(world.originals(), 0);
}

#[test]
fn a_file_written_while_no_config_declared_it_is_the_next_original() {
    let world = World::new();
    world.config("files", FILES);
    world.write("/etc/only-local", "declared");
    world.write("/etc/shipped", "of long ago");
    // The last config declares the earlier content, so the end of the declaration needs no write.
    world.config("ago", &FILES.replace("data:,declared", "data:,of%20long%20ago"));
    for config in ["files", "ago", "nothing"] {
        let said = world.apply(&[config], "");
        assert_eq!(said.code, Some(0), "{config}: {}{}", said.out, said.err);
    }
    assert_eq!(world.read("/etc/shipped"), "of long ago");
    assert_eq!(world.read("/etc/only-local"), "declared");
    assert_eq!(world.originals(), 0);
    world.write("/etc/shipped", "of the administrator");
    world.write("/etc/only-local", "of the administrator");
    for config in ["files", "nothing"] {
        assert_eq!(world.apply(&[config], "").code, Some(0), "{config}");
    }
    assert_eq!(world.read("/etc/shipped"), "of the administrator");
    assert_eq!(world.read("/etc/only-local"), "of the administrator");
}

#[test]
fn a_drop_in_of_the_hosts_own_is_restored_when_no_config_closes_its_directory_any_more() {
    let dropins = |names: &[&str]| {
        let dropins: Vec<String> =
            names.iter().map(|name| format!("{{name: {name}, contents: '[Unit]'}}")).collect();
        format!("    systemd: {{units: [{{name: on.service, dropins: [{}]}}]}}\n", dropins.join(", "))
    };
    let world = World::new();
    let path = "/etc/systemd/system/on.service.d/10-own.conf";
    world.write(path, "[Unit]");
    world.config("both", &dropins(&["10-own.conf", "20-more.conf"]));
    world.config("more", &dropins(&["20-more.conf"]));
    for (config, is_there) in
        [("both", true), ("more", false), ("both", true), ("more", false), ("nothing", true)]
    {
        let said = world.apply(&[config], "");
        assert_eq!(said.code, Some(0), "{config}: {}{}", said.out, said.err);
        assert_eq!(world.at(path).exists(), is_there, "{config}");
    }
    assert_eq!(world.originals(), 0);
    // What only a forced apply removes was never declared, so it does not come back.
    fs::write(world.at("/etc/systemd/system/on.service.d/30-undeclared.conf"), "").unwrap();
    let said = world.apply(&["both", "--force"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_eq!(world.apply(&["nothing"], "").code, Some(0));
    assert!(!world.at("/etc/systemd/system/on.service.d/30-undeclared.conf").exists());
    assert_eq!(world.originals(), 0);
}

#[test]
fn a_file_system_with_too_few_inodes_is_reported_before_anything_is_written() {
    let world = World::new();
    let small = world.at("/etc/small");
    fs::create_dir_all(&small).unwrap();
    let allowed = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if !allowed {
        println!("skipped: no mount namespace can be made here");
        return;
    }
    let files: String = ["a", "b", "c"].map(|name| format!("      - {{path: /etc/small/{name}}}\n")).concat();
    world.config("small", &format!("    storage:\n      files:\n{files}"));
    // The directory itself uses one inode.
    for (inodes, code) in [(3, 3), (64, 0)] {
        let apply = world.command(&["small", "--yes"], "");
        let mut within = Command::new("unshare");
        within
            .args(["-m", "sh", "-c", "mount -t tmpfs -o nr_inodes=$0 none \"$1\" && shift && exec \"$@\""])
            .arg(inodes.to_string())
            .arg(&small)
            .arg(apply.get_program())
            .args(apply.get_args());
        let said = RunResult::of(within.output().unwrap());
        assert_eq!(said.code, Some(code), "{inodes}: {}{}", said.out, said.err);
        let reported = said.err.contains("inodes free, and 3 are needed");
        assert_eq!(reported, code != 0, "{inodes}: {}", said.err);
        assert_eq!(world.current().is_some(), code == 0);
    }
}
