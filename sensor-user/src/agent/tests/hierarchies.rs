//! What is mounted over a hierarchy of the OS.

use super::super::canary::MOUNTS_ID;
use super::super::mounts::{AnnouncedMount, MountTracker};
use super::unknown_executions::with_baseline;
use super::*;
use crate::image::{Images, index_extensions};
use sensor_common::map::InodeKey;
use sensor_common::op::PRIVATE_MOUNT;
use sensor_common::record::ChangeRecord;
use sensor_model::record::ThingKind;
use sensor_model::verdict::VerdictKind;
use std::path::Path;
use zerocopy::{FromZeros as _, IntoBytes as _};

const UNLOCKED: &str =
    "rw,relatime - overlay overlay rw,lowerdir=usr,upperdir=/proc/self/fd/7/upper,workdir=w";

impl Node {
    /// Mounts something at these points: in the daemon's table, and in that of the host's first process.
    fn mount(&self, mounts: &[(&str, &str)]) {
        let root = self.path("root").canonicalize().unwrap();
        // Each mount has a number and a device of its own, and the nearest one above it as its parent.
        let parent = |at: usize, point: &str| {
            let above = mounts[..at].iter().rposition(|(above, _)| Path::new(point).starts_with(above));
            above.map_or(20, |above| 31 + above)
        };
        let table = |prefix: &str| {
            let line = |(at, (point, rest)): (usize, &(&str, &str))| {
                format!("{} {} 0:{} / {prefix}{point} {rest}\n", 31 + at, parent(at, point), 50 + at)
            };
            mounts.iter().enumerate().map(line).collect::<String>()
        };
        fs::write(self.path("table"), table(&root.to_string_lossy())).unwrap();
        fs::create_dir_all(self.path("root/proc/1")).unwrap();
        fs::write(self.path("root/proc/1/mountinfo"), table("")).unwrap();
    }

    /// An actor mounts, as a record announces it.
    async fn mounted(&self, daemon: &mut Daemon, actor: Actor, mounts: &[(&str, &str)]) {
        daemon.agent.mounts.announced.push(AnnouncedMount {
            key: InodeKey::default(),
            actor,
            operation: Operation::Mount,
            at_ns: self.clock.boot_ns(),
            is_private: false,
        });
        self.mount(mounts);
        daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
        self.settle(daemon).await;
    }

    /// The records of hierarchies of a kind.
    fn of_hierarchies(&self, kind: RecordKind) -> Vec<Record> {
        let mut records = self.recorded(kind);
        records.retain(|record| record.thing == Some(ThingKind::Hierarchy));
        records
    }
}

/// A daemon with a rule about what the image has below `/usr`, on a host without anything over it.
async fn watching(node: &Node) -> Daemon {
    node.mount(&[]);
    let mut daemon = node.begin(None).await;
    daemon.agent.mounts = MountTracker::new(&node.path("table"));
    daemon
}

#[tokio::test]
async fn an_overlay_over_usr_is_one_drift_with_its_actor_and_an_unmount_closes_it() {
    let node = Node::new(&json!({ "path": "/usr/", "image": true, "action": "degrade" }));
    let mut daemon = watching(&node).await;
    node.mounted(&mut daemon, mallory(), &[("/usr", UNLOCKED)]).await;
    // Neither a mount below nor one elsewhere is a change of the hierarchies above it.
    let more = [("/usr", UNLOCKED), ("/usr/lib/x", "rw - tmpfs t rw"), ("/mnt", "rw - tmpfs t rw")];
    node.mounted(&mut daemon, alice(), &more).await;
    daemon.agent.verdicts.recheck_covered();
    node.settle(&mut daemon).await;
    assert!(node.status().degraded);
    // rpm-ostree applies another commit without a further mount.
    let stamp = node.path("root/run/ostree/deployment-state/a.0/rpmostree-is-live.stamp");
    fs::create_dir_all(stamp.parent().unwrap()).unwrap();
    fs::write(&stamp, "").unwrap();
    daemon.agent.verdicts.recheck_covered();
    node.settle(&mut daemon).await;
    fs::remove_file(&stamp).unwrap();
    node.mounted(&mut daemon, alice(), &[]).await;
    assert!(!node.status().degraded);
    node.end(daemon).await;
    let drifts = node.of_hierarchies(RecordKind::Drift);
    let texts: Vec<Vec<&str>> = drifts
        .iter()
        .map(|record| record.differences.iter().map(|difference| difference.found.as_str()).collect())
        .collect();
    let unlocked = "ostree admin unlock (development)";
    assert_eq!(texts, [vec![unlocked], vec![unlocked, "rpm-ostree apply-live"]]);
    for record in &drifts {
        // A record without an actor of its own lists those of the open drift.
        let actor = record.actor.as_ref().or(record.actors.first());
        assert_eq!((record.path.as_deref(), actor), (Some("/usr"), Some(&mallory())));
        assert_eq!(record.detail["policy"], "degrade");
        assert_eq!(record.source.as_deref(), Some("hierarchy of the OS"));
    }
    assert_eq!(drifts[0].operation.as_deref(), Some("mount"));
    let recovered = node.of_hierarchies(RecordKind::Recovered);
    assert_eq!(recovered.len(), 1);
    assert_eq!((recovered[0].verdict, &recovered[0].actor), (Some(VerdictKind::Compliant), &Some(alice())));
    assert_eq!(node.of_hierarchies(RecordKind::Touched).len(), 0);
}

#[tokio::test]
async fn a_refresh_of_the_same_extensions_is_one_drift_with_its_own_actor() {
    let node = Node::new(&json!({ "path": "/usr/bin/", "image": true, "action": "degrade" }));
    let mut daemon = watching(&node).await;
    fs::create_dir_all(node.path("root/usr/.systemd-sysext")).unwrap();
    fs::write(node.path("root/usr/.systemd-sysext/extensions"), "a\n").unwrap();
    let merged = "ro,nodev - overlay sysext ro,lowerdir=/run/a/usr:/usr";
    node.mounted(&mut daemon, alice(), &[("/usr", merged)]).await;
    // The table has the same mount once more, with other options.
    node.mounted(&mut daemon, mallory(), &[("/usr", &merged.replace("nodev", "nodev,nosuid"))]).await;
    assert!(!node.status().degraded, "no rule is about the hierarchy itself, so the drift is only observed");
    node.end(daemon).await;
    let actors: Vec<Option<String>> = node
        .of_hierarchies(RecordKind::Drift)
        .into_iter()
        .map(|record| {
            assert_eq!(record.differences.len(), 1);
            assert_eq!(record.differences[0].text, "system extensions are merged over /usr: \"a\"");
            record.actor.and_then(|actor| actor.login_user)
        })
        .collect();
    assert_eq!(actors, [Some("alice".to_owned()), Some("mallory".to_owned())]);
}

/// The thing has not been verified since the refresh, so its watch has the inode of the old overlay.
#[tokio::test]
async fn a_file_that_is_mounted_over_right_after_a_refresh_has_the_actor_of_that_mount() {
    // The second one: no record names an object of the new overlay, and two processes announced mounts.
    for (device, login) in [(50, Some("mallory")), (11, None)] {
        let node = Node::new(&json!({ "path": "/etc/", "image": true, "action": "degrade" }));
        let mut daemon = watching(&node).await;
        let merged = "ro,nodev - overlay confext ro,lowerdir=/run/a/etc:/etc";
        node.mounted(&mut daemon, alice(), &[("/etc", merged)]).await;
        let announce = |daemon: &mut Daemon, actor: Actor, dev: u32| {
            daemon.agent.mounts.announced.push(AnnouncedMount {
                key: InodeKey { ino: 7, dev, volume: 0 },
                actor,
                operation: Operation::Mount,
                at_ns: node.clock.boot_ns(),
                is_private: false,
            });
        };
        // The refresh mounts over the directory of the host and elsewhere, and then a login over the file in the new overlay.
        for dev in [8 << 20, 9] {
            announce(&mut daemon, alice(), dev);
        }
        announce(&mut daemon, mallory(), device);
        node.write("changed");
        let refreshed = merged.replace("nodev", "nodev,nosuid");
        node.mount(&[("/etc", &refreshed), (FILE, "rw - tmpfs t rw")]);
        daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
        node.settle(&mut daemon).await;
        node.end(daemon).await;
        let drifts = node.recorded(RecordKind::Drift);
        let of_file = drifts.iter().find(|record| record.path.as_deref() == Some(FILE)).unwrap();
        let actor = of_file.actor.as_ref().and_then(|actor| actor.login_user.as_deref());
        assert_eq!(actor, login, "{of_file:?}");
    }
}

/// A change of a mount's attributes fires no hook. A service mounted something over the same object in its own namespace before.
#[tokio::test]
async fn a_mount_in_another_namespace_takes_no_blame_for_a_change_without_a_record() {
    for (detail, actor) in [(0, Some(u32::MAX)), (PRIVATE_MOUNT, None)] {
        let node = Node::new(&json!({ "path": "/usr/bin/", "image": true, "action": "degrade" }));
        let mut daemon = watching(&node).await;
        let mut record = ChangeRecord::new_zeroed();
        (record.time_ns, record.id, record.tgid) = (node.clock.boot_ns(), MOUNTS_ID, u32::MAX);
        (record.operation, record.detail) = (Operation::Mount as u16, detail);
        daemon.agent.handle_record(record.as_bytes()).unwrap();
        node.mount(&[("/usr", UNLOCKED)]);
        daemon.agent.compare_mounts(&mut daemon.changes).unwrap();
        node.settle(&mut daemon).await;
        node.end(daemon).await;
        let drifts = node.of_hierarchies(RecordKind::Drift);
        assert_eq!(drifts.len(), 1);
        assert_eq!(drifts[0].actor.as_ref().map(|actor| actor.pid), actor, "{detail}");
    }
}

#[tokio::test]
async fn what_is_as_declared_below_a_merged_hierarchy_has_no_record() {
    let node = Node::new(&json!({ "path": "/etc/", "image": true, "action": "observe" }));
    let mut daemon = watching(&node).await;
    // The merged file has another inode and the same content.
    fs::remove_file(node.file()).unwrap();
    node.write(DECLARED);
    fs::set_permissions(node.file(), fs::Permissions::from_mode(0o644)).unwrap();
    let merged = "ro,nodev - overlay confext ro,lowerdir=/run/a/etc:/etc";
    node.mounted(&mut daemon, alice(), &[("/etc", merged)]).await;
    node.end(daemon).await;
    assert_eq!(node.recorded(RecordKind::Touched), []);
    let of_file =
        node.recorded(RecordKind::Drift).into_iter().find(|record| record.path.as_deref() == Some(FILE));
    assert_eq!(of_file, None);
    let drifts = node.of_hierarchies(RecordKind::Drift);
    assert_eq!((drifts.len(), &drifts[0].actor), (1, &Some(alice())));
}

#[tokio::test]
async fn what_an_unmerged_extension_took_with_it_is_unknown_and_the_hierarchy_has_the_only_drift() {
    let node = with_baseline(true);
    for directory in ["root/usr/.systemd-sysext", "root/run/extensions/a/usr/bin"] {
        fs::create_dir_all(node.path(directory)).unwrap();
    }
    fs::write(node.path("root/usr/.systemd-sysext/extensions"), "a\n").unwrap();
    for name in ["added", "shipped"] {
        for directory in ["root/run/extensions/a/usr/bin", "root/usr/bin"] {
            fs::write(node.path(directory).join(name), "of the extension").unwrap();
        }
    }
    node.mount(&[("/usr", "ro,nodev - overlay sysext ro,lowerdir=/run/a/usr:/usr")]);
    let observer = Observer::new(&node.path("root")).unwrap();
    let (_, left_out) = index_extensions(&observer, &Images::of(&node.path("state"))).unwrap();
    assert!(left_out.is_empty());
    let mut daemon = node.begin(None).await;
    daemon.agent.mounts = MountTracker::new(&node.path("table"));
    assert_eq!(node.recorded(RecordKind::Drift), []);
    // While it is merged, a change of what it has is a drift. Nothing is known of the others once it is gone.
    fs::write(node.path("root/usr/bin/below/shipped"), "changed").unwrap();
    fs::remove_dir_all(node.path("root/usr/.systemd-sysext")).unwrap();
    fs::remove_file(node.path("root/usr/bin/added")).unwrap();
    fs::write(node.path("root/usr/bin/shipped"), "program").unwrap();
    node.mounted(&mut daemon, alice(), &[]).await;
    let expectations = &daemon.agent.verdicts.desired.expectations;
    let added = expectations.iter().find(|one| one.thing.path().ends_with("added")).unwrap();
    let verdict = daemon.agent.verdicts.last_verdict(daemon.thing(&added.thing));
    node.end(daemon).await;
    let mut drifts = node.recorded(RecordKind::Drift);
    drifts.retain(|record| record.path.as_deref().is_some_and(|path| path.starts_with("/usr")));
    drifts.sort_by(|one, other| one.path.cmp(&other.path));
    let paths: Vec<&str> = drifts.iter().filter_map(|record| record.path.as_deref()).collect();
    assert_eq!(paths, ["/usr", "/usr/bin/below/shipped"], "what the baseline has is compared as before");
    assert_eq!(drifts[0].actor, Some(alice()));
    assert_eq!(verdict, Some(VerdictKind::Unknown));
}
