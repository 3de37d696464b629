//! Types, metadata, contents.

use super::*;
use nix::{sys::stat::Mode, unistd::mkfifo};
use rustix::fs::{XattrFlags, setxattr};
use sha2::{Digest as _, Sha256};
use std::{
    fs::Permissions,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixListener,
    },
};

#[test]
fn a_file_is_observed_with_its_mode_owner_size_digest_and_change_time() {
    let host = Host::new();
    host.file("/etc/app.conf", "content\n");
    fs::set_permissions(host.at("/etc/app.conf"), Permissions::from_mode(0o4640)).unwrap();
    let stat = fs::metadata(host.at("/etc/app.conf")).unwrap();
    let object = host.object(&file("/etc/app.conf"));
    assert_eq!(object.file_type, FileType::Regular);
    assert_eq!(object.mode, 0o4640);
    assert_eq!((object.uid, object.gid), (stat.uid(), stat.gid()));
    assert_eq!(object.size, 8);
    assert_eq!(object.sha256, Some(Sha256::digest("content\n").into()));
    assert_eq!(object.changed_ns, i128::from(stat.ctime()) * 1_000_000_000 + i128::from(stat.ctime_nsec()));
    assert!(object.attributes.is_empty() && !object.mounted_over && object.ssh_keys.is_none());
}

#[test]
fn contents_of_every_size_around_the_buffer_are_hashed_in_full() {
    let host = Host::new();
    for size in [0, 1, 65_535, 65_536, 65_537, 131_072, 200_000] {
        let content: String = "0123456789".chars().cycle().take(size).collect();
        host.file("/f", &content);
        let object = host.object(&file("/f"));
        assert_eq!(object.sha256, Some(Sha256::digest(&content).into()), "{size} bytes");
        assert_eq!(object.size, size as u64);
    }
}

#[test]
fn a_file_that_shows_no_size_is_read_to_its_end() {
    let observer = Observer::new(Path::new("/")).unwrap();
    let Observation::Object(object) = observer.observe(&file("/proc/sys/kernel/random/boot_id")).observation
    else {
        panic!("not seen")
    };
    let content = fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(object.sha256, Some(Sha256::digest(&content).into()));
    assert_eq!(object.size, content.len() as u64);
}

#[test]
fn a_huge_file_of_the_wrong_size_is_not_read() {
    let host = Host::new();
    fs::File::create(host.at("/huge")).unwrap().set_len(1 << 40).unwrap();
    let mut expected = file("/huge");
    if let Expected::File(file) = &mut expected.expected {
        file.content = Some(sensor_model::expectation::Content { size: 5, sha256: [0; 32] });
    }
    let object = host.object(&expected);
    assert_eq!((object.size, object.sha256), (1 << 40, None));
}

#[test]
fn a_final_link_is_observed_as_a_link_and_never_followed() {
    let host = Host::new();
    host.file("/etc/real", "secret");
    host.link("real", "/etc/link");
    let object = host.object(&file("/etc/link"));
    assert_eq!(object.file_type, FileType::Symlink);
    assert_eq!(object.target.as_deref(), Some(Path::new("real")));
    assert_eq!(object.sha256, None);
}

#[test]
fn a_hard_link_differs_from_a_copy() {
    let host = Host::new();
    host.file("/etc/a", "same");
    host.file("/etc/copy", "same");
    fs::hard_link(host.at("/etc/a"), host.at("/etc/hard")).unwrap();
    assert_eq!(host.object(&link("/etc/hard", "/etc/a", true)).same_inode_as_target, Some(true));
    assert_eq!(host.object(&link("/etc/copy", "/etc/a", true)).same_inode_as_target, Some(false));
    assert_eq!(host.object(&link("/etc/copy", "/etc/gone", true)).same_inode_as_target, Some(false));
}

#[test]
fn fifos_sockets_and_devices_are_observed_without_an_open() {
    let host = Host::new();
    // An open of a FIFO without a writer would block this test for ever.
    mkfifo(&host.at("/fifo"), Mode::from_bits_truncate(0o600)).unwrap();
    let _socket = UnixListener::bind(host.at("/socket")).unwrap();
    for (path, file_type) in [("/fifo", FileType::Fifo), ("/socket", FileType::Socket)] {
        let observed = host.observer.observe(&file(path));
        let Observation::Object(object) = &observed.observation else { panic!("{observed:?}") };
        assert_eq!((object.file_type, object.sha256), (file_type, None));
        assert!(observed.opened.iter().all(|opened| opened.kind == OpenedKind::Parent), "{observed:?}");
    }
    let root = Observer::new(Path::new("/")).unwrap();
    let Observation::Object(object) = root.observe(&file("/dev/null")).observation else {
        panic!("not seen")
    };
    assert_eq!(object.file_type, FileType::CharacterDevice);
}

#[test]
fn a_path_with_any_missing_component_is_missing() {
    let host = Host::new();
    host.file("/etc/file", "");
    for path in ["/etc/none", "/none/at/all", "/etc/file/below"] {
        assert_eq!(host.observe_file(path), Observation::Missing, "{path}");
    }
    host.link("/nowhere", "/etc/dangling");
    assert_eq!(host.observe_file("/etc/dangling/x"), Observation::Missing);
}

#[test]
fn a_loop_of_links_is_unreadable_and_names_the_path() {
    let host = Host::new();
    host.link("b", "/a");
    host.link("a", "/b");
    let Observation::Unreadable { error } = host.observe_file("/a/x") else { panic!("readable") };
    assert!(error.contains("/a/x") && error.contains("symbolic links"), "{error}");
}

#[test]
fn attributes_are_observed_by_name_with_a_description() {
    let host = Host::new();
    host.file("/f", "");
    match setxattr(host.at("/f"), "user.note", b"hello", XattrFlags::empty()) {
        // tmpfs before 6.6 has no user attributes.
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        other => other.unwrap(),
    }
    let object = host.object(&file("/f"));
    let digest = format!("sha256:{}", hex::encode(Sha256::digest("hello")));
    assert!(object.xattrs.contains(&("user.note".to_owned(), digest)), "{:?}", object.xattrs);
}

#[test]
fn owners_have_the_names_of_the_roots_own_databases() {
    let host = Host::new();
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    host.file("/f", "");
    host.file("/etc/passwd", &format!("# comment\nbroken\nother:x:{}:0::/:\nalice:x:{uid}:0::/:\n", uid + 1));
    host.file("/usr/lib/group", &format!("staff:x:{gid}:\n"));
    let object = host.object(&file("/f"));
    assert_eq!((object.user.as_deref(), object.group.as_deref()), (Some("alice"), Some("staff")));
    assert_eq!(host.observer.uid("other"), Some(uid + 1));
    assert_eq!(host.observer.gid("none"), None);
}

#[test]
fn an_owner_is_not_wrong_because_of_a_stale_database() {
    let host = Host::new();
    let uid = nix::unistd::geteuid().as_raw();
    host.file("/f", "");
    host.file("/etc/passwd", &format!("old:x:{uid}:0::/:\n"));
    assert_eq!(host.object(&owned_file("/f", Owner::Name("old".to_owned()))).user.as_deref(), Some("old"));
    // Within the time in which cached names are valid without a check.
    host.file("/etc/passwd", &format!("renamed:x:{uid}:0::/:\n"));
    assert_eq!(
        host.object(&owned_file("/f", Owner::Name("renamed".to_owned()))).user.as_deref(),
        Some("renamed")
    );
}

#[test]
fn the_observation_of_a_closed_directory_has_its_names_sorted() {
    let host = Host::new();
    host.file("/etc/x.d/20-b.conf", "");
    host.file("/etc/x.d/10-a.conf", "");
    host.directory("/etc/x.d/sub");
    let observed = host.observer.observe(&closed_directory("/etc/x.d", false));
    let Observation::Names { names, ssh_keys, .. } = &observed.observation else { panic!("{observed:?}") };
    assert_eq!(names, &["10-a.conf", "20-b.conf", "sub"]);
    assert!(ssh_keys.is_empty());
}

#[test]
fn an_object_of_another_type_at_the_path_of_a_closed_directory_is_observed_as_an_object() {
    let host = Host::new();
    host.file("/etc/x.d", "");
    let observed = host.observer.observe(&closed_directory("/etc/x.d", false));
    assert!(
        matches!(&observed.observation, Observation::Object(object) if object.file_type == FileType::Regular)
    );
    assert_eq!(host.observer.observe(&closed_directory("/etc/y.d", false)).observation, Observation::Missing);
}

#[test]
fn ssh_keys_are_read_only_for_expectations_that_want_them() {
    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me\n";
    let host = Host::new();
    host.file("/home/core/.ssh/authorized_keys.d/ignition", KEY);
    let keys = |observation| match observation {
        Observation::Names { ssh_keys, .. } => ssh_keys,
        other => panic!("{other:?}"),
    };
    let directory = "/home/core/.ssh/authorized_keys.d";
    let found = keys(host.observer.observe(&closed_directory(directory, true)).observation);
    assert_eq!(found["ignition"].keys.len(), 1);
    assert!(keys(host.observer.observe(&closed_directory(directory, false)).observation).is_empty());
    let path = format!("{directory}/ignition");
    let declared = Expectation { ssh_keys: true, ..file(&path) };
    assert_eq!(host.object(&declared).ssh_keys.unwrap().keys[0].comment.as_deref(), Some("me"));
    assert_eq!(host.object(&file(&path)).ssh_keys, None);
}

#[test]
fn a_snapshot_has_metadata_and_digest_and_no_content() {
    let host = Host::new();
    host.file("/f", "password=1");
    let value = snapshot(&host.observe_file("/f")).unwrap();
    assert_eq!(value["size"], 10);
    assert_eq!(value["sha256"], hex::encode(Sha256::digest("password=1")));
    assert!(!value.to_string().contains("password"), "{value}");
    assert_eq!(snapshot(&Observation::Missing), None);
}
