//! Who may use the reporter's socket.
//!
//! In: a connection. Out: nothing, or why the peer is refused. The kernel names the user and the process at the other end. The
//! process's control group shows its unit and its pod. A descriptor of the process shows that no other process has its number.

use crate::bounded;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sensor_model::cgroup::Placement;
use sensor_model::socket::CONNECTIONS;
use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

/// The link in a process's directory of procfs that leads to its process-id namespace.
const PROCESS_IDS: &str = "ns/pid";

/// Most bytes of a file of procfs that is read here.
const PROC_BYTES: u64 = 64 << 10;

/// Why a peer is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerRefusal {
    /// It is another user.
    #[error("it runs as user {0}")]
    User(u32),
    /// It is a root that does not belong to the host.
    #[error("it is root in a container that does not belong to the sensor's pod")]
    Container,
    /// It is in a container, whatever its control group says.
    #[error("it is in a container: its process-id namespace is not that of the sensor")]
    Namespace,
    /// It is in another pod, or in none.
    #[error("it is not in the sensor's pod")]
    Pod,
    /// It is in another unit.
    #[error("it does not belong to the unit {0}")]
    Unit(String),
    /// It ended.
    #[error("it has ended")]
    Ended,
    /// Its process cannot be examined.
    #[error("its process is not known: {0}")]
    Process(io::Error),
    /// Its peers have as many connections as there may be.
    #[error("{CONNECTIONS} connections are open")]
    Connections,
}

impl PeerRefusal {
    /// Every word that [`PeerRefusal::word`] gives.
    pub(super) const WORDS: [&str; 7] =
        ["user", "container", "pod", "unit", "ended", "process", "connections"];

    /// Its word in metrics.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Container | Self::Namespace => "container",
            Self::Pod => "pod",
            Self::Unit(_) => "unit",
            Self::Ended => "ended",
            Self::Process(_) => "process",
            Self::Connections => "connections",
        }
    }
}

/// Decides who may use the socket.
pub(super) trait PeerCheck: Debug + Send + Sync {
    /// Whether this peer may use it.
    fn check(&self, peer: &UnixStream) -> Result<(), PeerRefusal>;
}

/// The reporter. Root of the host may use its socket, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReporterPeer {
    /// Its user.
    pub uid: u32,
    /// The systemd unit that it must belong to.
    pub unit: Option<String>,
    /// The uid of the pod that it must belong to: the sensor's own.
    pub pod: Option<String>,
}

impl ReporterPeer {
    /// Whether a process of this user in this control group may use the socket.
    fn decide(&self, uid: u32, placement: &Placement) -> Result<(), PeerRefusal> {
        let is_own_pod = self.pod.is_some() && placement.pod_uid == self.pod;
        if uid != self.uid {
            self.may_be(uid)?;
            let is_host = placement.pod_uid.is_none() && placement.container_id.is_none();
            return if is_host || is_own_pod { Ok(()) } else { Err(PeerRefusal::Container) };
        }
        if self.pod.is_some() && !is_own_pod {
            return Err(PeerRefusal::Pod);
        }
        match &self.unit {
            Some(unit) if placement.unit.as_ref() != Some(unit) => Err(PeerRefusal::Unit(unit.clone())),
            _ => Ok(()),
        }
    }

    fn may_be(&self, uid: u32) -> Result<(), PeerRefusal> {
        if uid == self.uid || uid == 0 { Ok(()) } else { Err(PeerRefusal::User(uid)) }
    }
}

impl PeerCheck for ReporterPeer {
    fn check(&self, peer: &UnixStream) -> Result<(), PeerRefusal> {
        let credentials = peer.peer_cred().map_err(PeerRefusal::Process)?;
        self.may_be(credentials.uid())?;
        let unseen = || PeerRefusal::Process(io::Error::other("it is in another process namespace"));
        let pid = credentials.pid().and_then(Pid::from_raw).ok_or_else(unseen)?;
        let process = PeerProcess::of(peer, pid)?;
        let group = process.read("cgroup")?;
        // Root of a container to which the host's control groups are mounted can move itself to any of them. It cannot enter a namespace.
        let shares = process.shares_process_ids()?;
        process.lives_on()?;
        if !shares {
            return Err(PeerRefusal::Namespace);
        }
        self.decide(credentials.uid(), &Placement::of_proc(&String::from_utf8_lossy(&group)))
    }
}

/// A process at the other end of a connection.
#[derive(Debug)]
struct PeerProcess {
    /// Its directory in procfs.
    proc: PathBuf,
    descriptor: OwnedFd,
}

impl PeerProcess {
    fn of(peer: &UnixStream, pid: Pid) -> Result<Self, PeerRefusal> {
        let proc = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
        Ok(Self { proc, descriptor: descriptor(peer, pid)? })
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, PeerRefusal> {
        read(&self.proc.join(file))
    }

    /// Whether it is in the process-id namespace of this process: that of the host, also for the containers of the sensor's pod.
    fn shares_process_ids(&self) -> Result<bool, PeerRefusal> {
        let namespace =
            |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).map_err(refusal);
        Ok(namespace(&self.proc.join(PROCESS_IDS))? == namespace(&Path::new("/proc/self").join(PROCESS_IDS))?)
    }

    /// Fails if the process has ended, since another one may have its number then.
    fn lives_on(&self) -> Result<(), PeerRefusal> {
        // The descriptor is readable when the process has ended.
        let mut polled = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(0) => Ok(()),
            Ok(_) => Err(PeerRefusal::Ended),
            Err(errno) => Err(PeerRefusal::Process(errno.into())),
        }
    }
}

/// A descriptor of the peer's process.
fn descriptor(peer: &UnixStream, pid: Pid) -> Result<OwnedFd, PeerRefusal> {
    // Since Linux 6.5 the socket itself has the process that connected, also if another process has its number already.
    match getsockopt(peer, sockopt::PeerPidfd) {
        Ok(descriptor) => return Ok(descriptor),
        Err(Errno::ENOPROTOOPT | Errno::EOPNOTSUPP) => {}
        Err(Errno::EINVAL | Errno::ESRCH | Errno::ENODATA) => return Err(PeerRefusal::Ended),
        Err(errno) => return Err(PeerRefusal::Process(errno.into())),
    }
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
        rustix::io::Errno::SRCH => PeerRefusal::Ended,
        errno => PeerRefusal::Process(errno.into()),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, PeerRefusal> {
    bounded::read(path, PROC_BYTES).map_err(refusal)
}

/// The refusal of a process of which procfs shows no file.
fn refusal(error: io::Error) -> PeerRefusal {
    match error.kind() {
        io::ErrorKind::NotFound => PeerRefusal::Ended,
        _ if error.raw_os_error() == Some(nix::libc::ESRCH) => PeerRefusal::Ended,
        _ => PeerRefusal::Process(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::getuid;

    const POD: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
    const UNIT: &str = "holdfast-reporter.service";

    fn reporter(unit: Option<&str>, pod: Option<&str>) -> ReporterPeer {
        ReporterPeer { uid: 61_234, unit: unit.map(str::to_owned), pod: pod.map(str::to_owned) }
    }

    fn word(peer: &ReporterPeer, uid: u32, group: &str) -> &'static str {
        peer.decide(uid, &Placement::of_path(group)).map_or_else(|refusal| refusal.word(), |()| "accepted")
    }

    #[test]
    fn in_a_pod_the_reporter_is_its_user_in_the_same_pod() {
        let own =
            format!("/kubepods.slice/kubepods-pod{}.slice/cri-containerd-x.scope", POD.replace('-', "_"));
        let other = own.replace("2b6f1d3e", "00000000");
        let peer = reporter(None, Some(POD));
        assert_eq!(word(&peer, 61_234, &own), "accepted");
        assert_eq!(word(&peer, 61_234, &other), "pod");
        assert_eq!(word(&peer, 61_234, "/system.slice/sshd.service"), "pod");
        assert_eq!(word(&peer, 61_234, &format!("/user.slice/user-61234.slice/session-1.scope{own}")), "pod");
        assert_eq!(word(&peer, 61_235, &own), "user");
        assert_eq!(word(&peer, 0, &own), "accepted");
        assert_eq!(word(&peer, 0, &other), "container");
        assert_eq!(word(&peer, 0, "/user.slice/user-0.slice/session-1.scope"), "accepted");
    }

    #[test]
    fn outside_a_pod_the_reporter_is_its_user_in_its_unit() {
        let peer = reporter(Some(UNIT), None);
        assert_eq!(word(&peer, 61_234, &format!("/system.slice/{UNIT}")), "accepted");
        assert_eq!(word(&peer, 61_234, "/system.slice/other.service"), "unit");
        assert_eq!(
            word(&peer, 61_234, &format!("/user.slice/user-61234.slice/user@61234.service/{UNIT}")),
            "unit"
        );
        assert_eq!(word(&peer, 7, &format!("/system.slice/{UNIT}")), "user");
        assert_eq!(word(&reporter(None, None), 61_234, "/system.slice/other.service"), "accepted");
    }

    #[test]
    fn every_refusal_has_its_word_in_the_list() {
        for refusal in [
            PeerRefusal::User(1),
            PeerRefusal::Container,
            PeerRefusal::Namespace,
            PeerRefusal::Pod,
            PeerRefusal::Unit(UNIT.to_owned()),
            PeerRefusal::Ended,
            PeerRefusal::Process(io::Error::other("x")),
            PeerRefusal::Connections,
        ] {
            assert!(PeerRefusal::WORDS.contains(&refusal.word()), "{refusal}");
        }
    }

    #[tokio::test]
    async fn the_kernel_names_the_user_and_the_process_of_a_peer() {
        let (near, _far) = UnixStream::pair().unwrap();
        let own = getuid().as_raw();
        let accepted = ReporterPeer { uid: own, unit: None, pod: None };
        accepted.check(&near).unwrap();
        let elsewhere = ReporterPeer { pod: Some(POD.to_owned()), ..accepted };
        assert!(matches!(elsewhere.check(&near), Err(PeerRefusal::Pod)));
        let other = ReporterPeer { uid: own + 1, unit: None, pod: None };
        if own != 0 {
            assert!(matches!(other.check(&near), Err(PeerRefusal::User(user)) if user == own));
        }
    }

    #[test]
    fn a_process_with_process_ids_of_its_own_is_in_a_container() {
        let process = |child: &std::process::Child| {
            let pid = Pid::from_child(child);
            let descriptor = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            PeerProcess { proc: Path::new("/proc").join(child.id().to_string()), descriptor }
        };
        let mut ours = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(process(&ours).shares_process_ids().unwrap());
        ours.kill().unwrap();
        ours.wait().unwrap();
        assert!(matches!(process_of_none().shares_process_ids(), Err(PeerRefusal::Ended)));
        // The namespace of the children of a thread.
        let contained = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID).ok()?;
            let mut theirs = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            let shares = process(&theirs).shares_process_ids().unwrap();
            theirs.kill().unwrap();
            theirs.wait().unwrap();
            Some(shares)
        });
        // A user without rights makes no such namespace.
        assert_ne!(contained.join().unwrap(), Some(true));
    }

    /// A process whose number no process has.
    fn process_of_none() -> PeerProcess {
        let own = pidfd_open(Pid::from_raw(std::process::id().cast_signed()).unwrap(), PidfdFlags::empty());
        PeerProcess { proc: PathBuf::from("/proc/4194305"), descriptor: own.unwrap() }
    }

    #[tokio::test]
    async fn a_process_that_ended_is_no_peer() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        let proc = PathBuf::from("/proc/self");
        let ended = PeerProcess { proc, descriptor: process };
        assert!(matches!(ended.lives_on(), Err(PeerRefusal::Ended)));
    }
}
