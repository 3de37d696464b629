//! Which objects an observation opens, since the kernel programs see only opens.

use super::*;
use std::os::unix::fs::MetadataExt as _;

fn identity(path: &Path) -> (u64, u64) {
    let stat = fs::symlink_metadata(path).unwrap();
    (stat.dev(), stat.ino())
}

#[test]
fn the_parent_is_opened_first_and_once_then_the_object_once() {
    let host = Host::new();
    host.file("/etc/app.conf", "x");
    host.directory("/etc/app.d");
    for (expected, path, file_type) in [
        (file("/etc/app.conf"), "/etc/app.conf", FileType::Regular),
        (directory("/etc/app.d"), "/etc/app.d", FileType::Directory),
        (closed_directory("/etc/app.d", false), "/etc/app.d", FileType::Directory),
    ] {
        let opened = host.observer.observe(&expected).opened;
        let found: Vec<_> = opened
            .iter()
            .map(|it| (it.kind, it.path.to_str().unwrap(), it.file_type, (it.device, it.inode)))
            .collect();
        assert_eq!(
            found,
            [
                (OpenedKind::Parent, "/etc", FileType::Directory, identity(&host.at("/etc"))),
                (OpenedKind::Object, path, file_type, identity(&host.at(path))),
            ]
        );
    }
}

#[test]
fn a_missing_object_still_has_its_parent_opened() {
    let host = Host::new();
    host.directory("/etc");
    let opened = host.observer.observe(&file("/etc/none")).opened;
    assert_eq!(opened.len(), 1);
    assert_eq!((opened[0].kind, opened[0].inode), (OpenedKind::Parent, identity(&host.at("/etc")).1));
}

#[test]
fn the_marked_opens_carry_exactly_the_flags_of_the_abi() {
    let flags = object::observe_flags().bits().cast_unsigned();
    let mark = sensor_common::op::OBSERVE_OPEN_FLAGS;
    assert_eq!(flags & mark, mark);
    assert_eq!(flags & !(mark | OFlag::O_CLOEXEC.bits().cast_unsigned()), 0, "read-only and nothing else");
    assert_eq!(mark, (OFlag::O_NOCTTY | OFlag::O_NONBLOCK | OFlag::O_DSYNC).bits().cast_unsigned());
}

#[test]
fn an_open_for_enrolment_follows_no_final_link_and_opens_no_other_type() {
    let host = Host::new();
    host.file("/etc/real", "x");
    host.link("real", "/etc/link");
    let opened = host.observer.open(Path::new("/etc/real")).unwrap();
    assert_eq!((opened.device, opened.inode), identity(&host.at("/etc/real")));
    assert_eq!(opened.file_type, FileType::Regular);
    assert_eq!(host.observer.open(Path::new("/")).unwrap().inode, identity(host.root.path()).1);
    let link = host.observer.open(Path::new("/etc/link")).unwrap();
    assert_eq!((link.file_type, link.inode), (FileType::Symlink, identity(&host.at("/etc/link")).1));
    nix::unistd::mkfifo(&host.at("/etc/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(host.observer.open(Path::new("/etc/fifo")), Err(Errno::EINVAL));
    assert_eq!(host.observer.open(Path::new("/etc/none")), Err(Errno::ENOENT));
}

#[test]
fn observations_leak_no_descriptor() {
    let host = Host::new();
    host.file("/etc/app.conf", "x");
    host.file("/etc/systemd/system/a.service", "[Install]\nWantedBy=a.target\n");
    host.link("app.conf", "/etc/link");
    // Other tests of this process open and close files meanwhile, so the test does not count descriptors. A leak of one
    // descriptor in each round would use up every number below the limit.
    let rounds = 500;
    for _ in 0..rounds {
        for expected in
            [file("/etc/app.conf"), link("/etc/link", "app.conf", false), closed_directory("/etc", true)]
        {
            assert!(!matches!(host.observer.observe(&expected).observation, Observation::Unreadable { .. }));
        }
    }
    let highest =
        fs::File::open(host.at("/etc/app.conf")).map(|file| std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
    assert!(highest < rounds, "descriptor {highest} after {rounds} rounds");
}
