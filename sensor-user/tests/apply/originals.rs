//! What comes back where nothing is declared any more, and a disk that has no room for what is declared.

use crate::world::{Said, World};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
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
fn what_the_os_ships_comes_back_as_it_ships_it_now_and_counts_more_than_what_was_there() {
    let world = World::new();
    world.config("files", FILES);
    world.write("/usr/etc/shipped", "of the old OS");
    world.write("/etc/shipped", "changed by hand");
    world.write("/usr/etc/below/only-shipped", "shipped");
    world.write("/etc/only-local", "local");
    assert_eq!(world.apply(&["files"], "").code, Some(0));
    assert_eq!(world.read("/etc/shipped"), "declared");
    // Another OS came meanwhile.
    let now = world.at("/usr/etc/shipped");
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
    // Declared again, it is known as before.
    assert_eq!(world.apply(&["files"], "").code, Some(0));
    assert_eq!(world.read("/etc/shipped"), "declared");
}

#[test]
fn a_file_system_that_has_too_few_inodes_is_told_before_anything_is_written() {
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
    // One inode is the directory's.
    for (inodes, code) in [(3, 3), (64, 0)] {
        let apply = world.command(&["small"], "");
        let mut within = Command::new("unshare");
        within
            .args(["-m", "sh", "-c", "mount -t tmpfs -o nr_inodes=$0 none \"$1\" && shift && exec \"$@\""])
            .arg(inodes.to_string())
            .arg(&small)
            .arg(apply.get_program())
            .args(apply.get_args());
        let said = Said::of(within.output().unwrap());
        assert_eq!(said.code, Some(code), "{inodes}: {}{}", said.out, said.err);
        let told = said.err.contains("inodes free, and 3 are needed");
        assert_eq!(told, code != 0, "{inodes}: {}", said.err);
        assert_eq!(world.current().is_some(), code == 0);
    }
}
