//! Other processes of Holdfast that write managed paths and announce it: applies and repairs.
//!
//! In: connections to a socket that only root reaches. Out: announcements, the end of a connection, and the process behind it. It
//! owns the socket and the connections. The kernel names the process. The daemon accepts it as Holdfast if it runs as root from
//! the same file as the daemon. Nothing here waits.

use super::writer_protocol::{COPY, DaemonAnswer, LONGEST, WriterAnnouncement, socket};
use sensor_model::protocol::ThingId;
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    task::{Context, Poll},
};
use tokio::net::{UnixListener, UnixStream};

/// The number of connections at once. One lock allows one apply, and people start repairs by hand.
const MOST: usize = 32;

/// The link in a process's directory of procfs that leads to its executable.
const EXE: &str = "exe";

/// All connected writers.
#[derive(Debug, Default)]
pub(super) struct HoldfastWriters {
    /// The daemon's copy of its own program, which systemd runs for orders.
    copy: Option<PathBuf>,
    listener: Option<UnixListener>,
    connected: Vec<ConnectedWriter>,
    last: u64,
    /// The closed directories in which temporary names of writers were seen, which are no drift while the writer is connected.
    pub(super) excused: BTreeSet<ThingId>,
}

/// One connected writer.
#[derive(Debug)]
struct ConnectedWriter {
    number: u64,
    stream: UnixStream,
    received: Vec<u8>,
    announcement: Option<WriterAnnouncement>,
    /// Number and start of its process, if the daemon accepted it as Holdfast.
    process: Option<(u32, u64)>,
}

/// What the connection of a writer brings.
#[derive(Debug)]
pub(super) enum WriterUpdate {
    /// The writer announced what it will write, and waits for an answer.
    Announced(u64, WriterAnnouncement),
    /// The connection is closed.
    Gone,
}

/// Why the daemon does not accept a writer as Holdfast.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriterRefusal {
    /// Its connection is closed.
    #[error("it is gone")]
    Gone,
    /// The kernel does not name its process.
    #[error("its process is not known: {0}")]
    Peer(io::Error),
    /// Only root may write declared state.
    #[error("it runs as user {0}")]
    User(u32),
    /// Its process number belongs to another process namespace.
    #[error("it is in a process namespace that the daemon does not see")]
    Namespace,
    /// It is another program.
    #[error("it does not run from the file that the daemon runs from, nor from its copy")]
    OtherFile,
    /// Its executable cannot be read.
    #[error("its executable is not known: {0}")]
    Executable(io::Error),
    /// No journal of this apply is open.
    #[error("apply number {0} is not under way")]
    NotUnderWay(u64),
    /// It would write a state that the daemon does not expect.
    #[error("it does not restore what the daemon expects")]
    OtherState,
    /// The kernel programs did not record its start.
    #[error("it was not seen to start")]
    NotSeen,
}

impl HoldfastWriters {
    /// Listens below a state directory. Without the socket no writer waits for the daemon.
    pub(super) fn listen(state: &Path) -> Self {
        let path = socket(state);
        let bound = prepare(&path).and_then(|()| UnixListener::bind(&path));
        let listener = bound
            .inspect_err(
                |error| tracing::error!(path = %path.display(), %error, "Cannot listen for writers: the daemon does not learn what they write."),
            )
            .ok();
        Self { listener, copy: Some(state.join(COPY)), ..Self::default() }
    }

    /// The announcements of connected writers, for a new run of the loop.
    pub(super) fn open(&self) -> Vec<(u64, WriterAnnouncement)> {
        self.connected
            .iter()
            .filter_map(|writer| Some((writer.number, writer.announcement.clone()?)))
            .collect()
    }

    /// Waits for an update. The caller may drop the future at any point.
    pub(super) async fn next(&mut self) -> WriterUpdate {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<WriterUpdate> {
        if let Some(listener) = &self.listener {
            while let Poll::Ready(accepted) = listener.poll_accept(context) {
                match accepted {
                    Ok((stream, _)) if self.connected.len() < MOST => {
                        self.last += 1;
                        let number = self.last;
                        self.connected.push(ConnectedWriter {
                            number,
                            stream,
                            received: Vec::new(),
                            announcement: None,
                            process: None,
                        });
                    }
                    Ok(_) => tracing::warn!("Too many writers at once: refused the connection of one."),
                    Err(error) => {
                        tracing::warn!(%error, "Cannot accept the connection of a writer.");
                        break;
                    }
                }
            }
        }
        for position in 0..self.connected.len() {
            if let Poll::Ready(update) = self.connected[position].poll(context) {
                if matches!(update, WriterUpdate::Gone) {
                    self.connected.remove(position);
                }
                return Poll::Ready(update);
            }
        }
        Poll::Pending
    }

    /// The number of a writer's process, if it is Holdfast.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn process(&self, number: u64) -> Result<u32, WriterRefusal> {
        let writer =
            self.connected.iter().find(|writer| writer.number == number).ok_or(WriterRefusal::Gone)?;
        let peer = writer.stream.peer_cred().map_err(WriterRefusal::Peer)?;
        if peer.uid() != 0 {
            return Err(WriterRefusal::User(peer.uid()));
        }
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
        let pid = pid.ok_or(WriterRefusal::Namespace)?;
        let exe = |process: &str| fs::metadata(Path::new("/proc").join(process).join(EXE));
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        let (ours, theirs) = (exe("self"), exe(&pid.to_string()));
        // Only root writes below the state directory.
        let copy = self.copy.as_ref().and_then(|copy| fs::symlink_metadata(copy).ok()).map(identity);
        match (ours.map(identity), theirs.map(identity)) {
            (Ok(ours), Ok(theirs)) if ours == theirs || copy == Some(theirs) => Ok(pid),
            (Ok(_), Ok(_)) => Err(WriterRefusal::OtherFile),
            (Err(error), _) | (_, Err(error)) => Err(WriterRefusal::Executable(error)),
        }
    }

    /// Accepts a writer's process as Holdfast from now on.
    pub(super) fn adopt(&mut self, number: u64, process: (u32, u64)) {
        if let Some(writer) = self.connected.iter_mut().find(|writer| writer.number == number) {
            writer.process = Some(process);
        }
    }

    /// Processes of Holdfast that write now, by number and start.
    pub(super) fn processes(&self) -> impl Iterator<Item = (u32, u64)> {
        self.connected.iter().filter_map(|writer| writer.process)
    }

    /// Connects a writer with an accepted process.
    #[cfg(test)]
    pub(super) fn connect(&mut self, process: u32) -> UnixStream {
        let (stream, other) = UnixStream::pair().unwrap();
        self.connected.push(ConnectedWriter {
            number: 0,
            stream,
            received: Vec::new(),
            announcement: None,
            process: Some((process, 0)),
        });
        other
    }

    /// Closes all connections.
    #[cfg(test)]
    pub(super) fn disconnect_all(&mut self) {
        self.connected.clear();
    }

    /// Answers a writer.
    pub(super) fn answer(&self, number: u64, answer: &DaemonAnswer) {
        let Some(writer) = self.connected.iter().find(|writer| writer.number == number) else { return };
        let mut line = serde_json::to_vec(answer).unwrap_or_default();
        line.push(b'\n');
        // A few bytes fit into an empty socket. A writer that cannot receive them stops waiting after a while.
        if let Err(error) = writer.stream.try_write(&line) {
            tracing::warn!(%error, "Cannot answer a writer.");
        }
    }
}

impl ConnectedWriter {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<WriterUpdate> {
        let mut chunk = [0; 4096];
        loop {
            if self.stream.poll_read_ready(context).is_pending() {
                return Poll::Pending;
            }
            match self.stream.try_read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => return Poll::Ready(WriterUpdate::Gone),
                // The writer has announced everything, so the daemon ignores further bytes.
                Ok(_) if self.announcement.is_some() => continue,
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
            }
            let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else {
                if self.received.len() > LONGEST {
                    return Poll::Ready(WriterUpdate::Gone);
                }
                continue;
            };
            let Ok(announcement) = serde_json::from_slice::<WriterAnnouncement>(&self.received[..end]) else {
                return Poll::Ready(WriterUpdate::Gone);
            };
            self.received = Vec::new();
            self.announcement = Some(announcement.clone());
            return Poll::Ready(WriterUpdate::Announced(self.number, announcement));
        }
    }
}

/// Creates the directory, and removes the socket of an earlier daemon.
fn prepare(path: &Path) -> io::Result<()> {
    let directory: PathBuf = path.parent().map(Path::to_owned).unwrap_or_default();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::writer_protocol::WriterConnection;
    use std::cell::RefCell;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_writer_continues_only_after_an_answer_and_the_daemon_notices_its_end() {
        let state = tempfile::tempdir().unwrap();
        let order = RefCell::new(Vec::new());
        runtime().block_on(async {
            let mut writers = HoldfastWriters::listen(state.path());
            let announcement = WriterAnnouncement { apply: Some(7), repair: vec!["ab".repeat(40_000)] };
            let writer = async {
                let mut lines = Vec::new();
                let connection = WriterConnection::announce(state.path(), &announcement, &mut |line| {
                    lines.push(line.to_owned());
                })
                .await;
                order.borrow_mut().push("writes");
                assert!(connection.is_some());
                lines
            };
            let daemon = async {
                let WriterUpdate::Announced(number, received) = writers.next().await else {
                    panic!("no announcement")
                };
                assert_eq!(
                    (&received, writers.open()),
                    (&announcement, vec![(number, announcement.clone())])
                );
                if nix::unistd::geteuid().is_root() {
                    assert_eq!(
                        writers.process(number).unwrap(),
                        std::process::id(),
                        "it is this very process"
                    );
                }
                order.borrow_mut().push("answers");
                writers.answer(
                    number,
                    &DaemonAnswer { refused_because: "x".to_owned(), ..DaemonAnswer::default() },
                );
                assert!(matches!(writers.next().await, WriterUpdate::Gone));
                assert_eq!(writers.open(), Vec::new());
            };
            let (lines, ()) = tokio::join!(writer, daemon);
            assert_eq!(lines.len(), 1, "{lines:?}");
        });
        assert_eq!(order.into_inner(), ["answers", "writes"]);
    }

    #[test]
    fn without_a_daemon_no_writer_waits_and_the_next_daemon_can_listen() {
        let state = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let mut say = |line: &str| panic!("{line}");
            assert!(
                WriterConnection::announce(state.path(), &WriterAnnouncement::default(), &mut say)
                    .await
                    .is_none()
            );
            drop(HoldfastWriters::listen(state.path()));
            assert!(socket(state.path()).exists());
            assert!(
                WriterConnection::announce(state.path(), &WriterAnnouncement::default(), &mut say)
                    .await
                    .is_none()
            );
            assert!(HoldfastWriters::listen(state.path()).listener.is_some());
        });
    }

    #[test]
    fn an_invalid_announcement_ends_the_connection() {
        use tokio::io::AsyncWriteExt as _;
        let state = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let mut writers = HoldfastWriters::listen(state.path());
            for text in ["{\"apply\": -1}\n", "{\"more\": 1}\n", "\n"] {
                let mut stream = UnixStream::connect(socket(state.path())).await.unwrap();
                stream.write_all(text.as_bytes()).await.unwrap();
                assert!(matches!(writers.next().await, WriterUpdate::Gone), "{text}");
            }
        });
    }
}
