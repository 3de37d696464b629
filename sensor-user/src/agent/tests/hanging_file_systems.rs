//! Things on a file system that does not answer. The tests play the worker processes.

use super::super::workers::{WorkerProcess, Workers};
use super::*;
use crate::observation::worker;
use nix::sys::stat::Mode;
use rustix::fs::{AtFlags, StatxFlags, statx};
use sensor_model::protocol::{GapReason, Scope};
use sensor_model::verdict::VerdictKind;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// The other ends of the processes, newest last.
type Peers = Arc<Mutex<Vec<UnixStream>>>;

const SECONDS: u64 = 1_000_000_000;

fn observe() -> serde_json::Value {
    json!({ "path": "/etc/a.conf", "action": "observe" })
}

/// Sets the mount table: a file system of this type is mounted over the file, or none.
fn mounted(node: &Node, daemon: &Daemon, file_system: Option<&str>) {
    let root = fs::canonicalize(node.path("root")).unwrap();
    let handle = nix::fcntl::open(&root, nix::fcntl::OFlag::O_PATH, Mode::empty()).unwrap();
    let id = statx(&handle, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).unwrap().stx_mnt_id;
    let mut table = format!("{id} 1 8:1 / / rw - ext4 d rw\n");
    if let Some(file_system) = file_system {
        let over = format!("1000000 {id} 0:9 / {}{FILE} rw - {file_system} d rw\n", root.display());
        table.push_str(&over);
    }
    fs::write(node.path("mounts"), table).unwrap();
    daemon.agent.verifications.verifier.observer.mounts_changed();
}

fn peers(daemon: &mut Daemon, node: &Node) -> Peers {
    let peers = Peers::default();
    let kept = Arc::clone(&peers);
    let start = move || {
        let (stream, theirs) = UnixStream::pair()?;
        kept.lock().unwrap().push(theirs);
        Ok(WorkerProcess { child: None, stream })
    };
    daemon.agent.verifications.workers =
        Workers::with(Box::new(start), Arc::clone(&node.clock) as Arc<dyn Clock>);
    peers
}

fn number(daemon: &Daemon, thing: &Thing) -> ThingId {
    let things = daemon.agent.verdicts.desired.expectations.iter().map(|expectation| &expectation.thing);
    (0..).map(ThingId).zip(things).find(|(_, one)| *one == thing).unwrap().0
}

fn verdict(daemon: &Daemon, thing: &Thing) -> VerdictKind {
    daemon.agent.verdicts.detector.thing_verdict(number(daemon, thing)).unwrap().verdict
}

/// The newest worker process observes and answers, until there is no question.
async fn answer(node: &Node, daemon: &mut Daemon, peers: &Peers) {
    while daemon.agent.verifications.workers.next_deadline().is_some() {
        let mut peer = peers.lock().unwrap().pop().unwrap();
        let root = node.path("root");
        let work = async {
            let mut question = Vec::new();
            while question.last() != Some(&b'\n') {
                question.push(peer.read_u8().await.unwrap());
            }
            let mut answer = Vec::new();
            worker::serve(&root, question.as_slice(), &mut answer).unwrap();
            peer.write_all(&answer).await.unwrap();
        };
        let (result, ()) = tokio::join!(daemon.agent.verifications.workers.next(), work);
        daemon.agent.worker_answered(result, &mut daemon.changes).await.unwrap();
        // The verifications that follow are due one after another.
        node.settle(daemon).await;
        node.settle(daemon).await;
    }
}

fn unit() -> Thing {
    Thing::Unit { name: "a.service".to_owned() }
}

fn gaps(node: &Node) -> Vec<(String, Option<String>)> {
    node.status().gaps.into_iter().map(|gap| (gap.reason, gap.path)).collect()
}

#[tokio::test]
async fn a_thing_whose_file_system_hangs_is_unknown_under_its_own_gap_and_the_loop_continues() {
    let node = Node::new(&observe());
    let mut daemon = node.begin(None).await;
    let peers = peers(&mut daemon, &node);
    let elsewhere = verdict(&daemon, &unit());
    assert_eq!(verdict(&daemon, &file()), VerdictKind::Compliant);

    mounted(&node, &daemon, Some("fuse.sshfs"));
    daemon.agent.verdicts.detector.recheck(Scope::All, node.clock.boot_ns());
    node.settle(&mut daemon).await;
    assert_eq!(peers.lock().unwrap().len(), 1, "the daemon asks a process and does not open the file");
    assert_eq!(verdict(&daemon, &unit()), elsewhere, "everything else was verified meanwhile");

    node.clock.0.fetch_add(6 * SECONDS, Ordering::Relaxed);
    node.settle(&mut daemon).await;
    assert_eq!(verdict(&daemon, &file()), VerdictKind::Unknown);
    assert_eq!(gaps(&node), [(GapReason::FileSystemHangs.to_string(), Some(FILE.to_owned()))]);
    assert_eq!(daemon.agent.verdicts.detector.undecided(), usize::from(elsewhere == VerdictKind::Unknown));

    // The file system answers the next question.
    node.clock.0.fetch_add(11 * SECONDS, Ordering::Relaxed);
    node.settle(&mut daemon).await;
    answer(&node, &mut daemon, &peers).await;
    assert_eq!(gaps(&node), [(GapReason::ForeignFileSystem.to_string(), None)]);
    assert!(
        daemon.agent.verdicts.open_drift(number(&daemon, &file())).is_none(),
        "a verification without an observation decides nothing"
    );

    // The file changed there.
    node.write("other\n");
    daemon.agent.verdicts.detector.recheck(Scope::All, node.clock.boot_ns());
    node.settle(&mut daemon).await;
    answer(&node, &mut daemon, &peers).await;
    assert_eq!(verdict(&daemon, &file()), VerdictKind::Drifted);

    // A drifted thing stays drifted while the file system hangs.
    daemon.agent.verdicts.detector.recheck(Scope::All, node.clock.boot_ns());
    node.settle(&mut daemon).await;
    node.clock.0.fetch_add(6 * SECONDS, Ordering::Relaxed);
    node.settle(&mut daemon).await;
    assert_eq!(verdict(&daemon, &file()), VerdictKind::Drifted);
    assert!(gaps(&node).iter().any(|(reason, _)| reason == GapReason::FileSystemHangs.as_str()));

    // After the unmount, the daemon reads the file itself.
    node.write(DECLARED);
    mounted(&node, &daemon, None);
    daemon.agent.verdicts.detector.recheck(Scope::All, node.clock.boot_ns());
    node.settle(&mut daemon).await;
    node.settle(&mut daemon).await;
    assert_eq!((verdict(&daemon, &file()), gaps(&node)), (VerdictKind::Compliant, Vec::new()));
    node.end(daemon).await;
}

#[tokio::test]
async fn a_thing_that_lies_on_a_local_file_system_when_the_answer_arrives_is_observed_by_the_daemon() {
    let node = Node::new(&observe());
    let mut daemon = node.begin(None).await;
    let peers = peers(&mut daemon, &node);
    mounted(&node, &daemon, Some("autofs"));
    daemon.agent.verdicts.detector.recheck(Scope::All, node.clock.boot_ns());
    node.settle(&mut daemon).await;
    assert_eq!(peers.lock().unwrap().len(), 1);
    // The worker's access mounted it, and the daemon has not read the table since then.
    let root = fs::canonicalize(node.path("root")).unwrap();
    fs::write(node.path("mounts"), format!("1 0 8:1 / {} rw - ext4 d rw\n", root.display())).unwrap();
    answer(&node, &mut daemon, &peers).await;
    assert_eq!((verdict(&daemon, &file()), gaps(&node)), (VerdictKind::Compliant, Vec::new()));
    node.end(daemon).await;
}

#[tokio::test]
async fn a_thing_whose_worker_process_ends_without_an_answer_is_unknown() {
    let node = Node::new(&observe());
    let mut daemon = node.begin(None).await;
    let peers = peers(&mut daemon, &node);
    mounted(&node, &daemon, Some("nfs4"));
    daemon.agent.verdicts.detector.recheck(Scope::All, node.clock.boot_ns());
    node.settle(&mut daemon).await;
    peers.lock().unwrap().clear();
    let result = daemon.agent.verifications.workers.next().await;
    daemon.agent.worker_answered(result, &mut daemon.changes).await.unwrap();
    assert_eq!(verdict(&daemon, &file()), VerdictKind::Unknown);
    daemon.agent.end_turn();
    assert_eq!(gaps(&node), [(GapReason::FileSystemHangs.to_string(), Some(FILE.to_owned()))]);
    node.end(daemon).await;
}
