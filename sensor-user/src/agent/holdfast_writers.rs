//! Processes of Holdfast that write beside the daemon, and announce what they are about to write.
//!
//! In: connections to a socket that only root reaches. Out: what each writer announces, that it is gone, and which process it
//! is. The kernel names the process, not the writer: it counts as Holdfast if it runs as root from the very file that the
//! daemon runs from. Nothing here waits.

use super::writer_protocol::{Answer, Hello, LONGEST, socket};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    task::{Context, Poll},
};
use tokio::net::{UnixListener, UnixStream};

/// Writers at once; there is one lock for applies, and people repair by hand.
const MOST: usize = 32;

/// What the daemon runs from, and what a process does.
const EXE: &str = "exe";

/// All writers.
#[derive(Debug, Default)]
pub(super) struct Writers {
    listener: Option<UnixListener>,
    connected: Vec<Writer>,
    last: u64,
}

/// One writer.
#[derive(Debug)]
struct Writer {
    number: u64,
    stream: UnixStream,
    received: Vec<u8>,
    hello: Option<Hello>,
    /// Number and start of its process, where it is ours.
    process: Option<(u32, u64)>,
}

/// What a writer does.
#[derive(Debug)]
pub(super) enum WriterEvent {
    /// It announces what it is about to write, and waits for an answer.
    Hello(u64, Hello),
    /// It is gone.
    Gone,
}

/// Why a writer does not count as Holdfast.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stranger {
    /// Its connection is closed.
    #[error("it is gone")]
    Gone,
    /// The kernel does not say which process it is.
    #[error("its process is not known: {0}")]
    Peer(io::Error),
    /// Only root may write declared state.
    #[error("it runs as user {0}")]
    User(u32),
    /// Its number means nothing here.
    #[error("it is in a process namespace that the daemon does not see")]
    Namespace,
    /// Another program.
    #[error("it does not run from the file that the daemon runs from")]
    OtherFile,
    /// Its program is not known.
    #[error("its executable is not known: {0}")]
    Executable(io::Error),
    /// No journal is open for it.
    #[error("apply number {0} is not under way")]
    NotUnderWay(u64),
    /// It would write something that the daemon does not expect.
    #[error("it does not restore what the daemon expects")]
    OtherState,
    /// The programs did not see it start.
    #[error("it was not seen to start")]
    NotSeen,
}

impl Writers {
    /// Listens below a state directory. Without a socket no writer waits for the daemon.
    pub(super) fn listen(state: &Path) -> Self {
        let path = socket(state);
        let bound = prepare(&path).and_then(|()| UnixListener::bind(&path));
        let listener = bound
            .inspect_err(
                |error| tracing::error!(path = %path.display(), %error, "Cannot listen for writers: the daemon does not learn what they write."),
            )
            .ok();
        Self { listener, ..Self::default() }
    }

    /// What connected writers announced, for a new run of the loop.
    pub(super) fn open(&self) -> Vec<(u64, Hello)> {
        self.connected.iter().filter_map(|writer| Some((writer.number, writer.hello.clone()?))).collect()
    }

    /// Waits until something happens. May be dropped at any point.
    pub(super) async fn next(&mut self) -> WriterEvent {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<WriterEvent> {
        if let Some(listener) = &self.listener {
            while let Poll::Ready(accepted) = listener.poll_accept(context) {
                match accepted {
                    Ok((stream, _)) if self.connected.len() < MOST => {
                        self.last += 1;
                        let number = self.last;
                        self.connected.push(Writer {
                            number,
                            stream,
                            received: Vec::new(),
                            hello: None,
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
            if let Poll::Ready(event) = self.connected[position].poll(context) {
                if matches!(event, WriterEvent::Gone) {
                    self.connected.remove(position);
                }
                return Poll::Ready(event);
            }
        }
        Poll::Pending
    }

    /// The number of a writer's process, if it is Holdfast.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn process(&self, number: u64) -> Result<u32, Stranger> {
        let writer = self.connected.iter().find(|writer| writer.number == number).ok_or(Stranger::Gone)?;
        let peer = writer.stream.peer_cred().map_err(Stranger::Peer)?;
        if peer.uid() != 0 {
            return Err(Stranger::User(peer.uid()));
        }
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
        let pid = pid.ok_or(Stranger::Namespace)?;
        let exe = |process: &str| fs::metadata(Path::new("/proc").join(process).join(EXE));
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        let (ours, theirs) = (exe("self"), exe(&pid.to_string()));
        match (ours.map(identity), theirs.map(identity)) {
            (Ok(ours), Ok(theirs)) if ours == theirs => Ok(pid),
            (Ok(_), Ok(_)) => Err(Stranger::OtherFile),
            (Err(error), _) | (_, Err(error)) => Err(Stranger::Executable(error)),
        }
    }

    /// A writer's process counts as Holdfast from now on.
    pub(super) fn adopt(&mut self, number: u64, process: (u32, u64)) {
        if let Some(writer) = self.connected.iter_mut().find(|writer| writer.number == number) {
            writer.process = Some(process);
        }
    }

    /// Processes of Holdfast that write now, by number and start.
    pub(super) fn processes(&self) -> impl Iterator<Item = (u32, u64)> {
        self.connected.iter().filter_map(|writer| writer.process)
    }

    /// Answers a writer.
    pub(super) fn answer(&self, number: u64, answer: &Answer) {
        let Some(writer) = self.connected.iter().find(|writer| writer.number == number) else { return };
        let mut line = serde_json::to_vec(answer).unwrap_or_default();
        line.push(b'\n');
        // A few bytes fit into an empty socket; one that does not take them waits in vain, and not for ever.
        if let Err(error) = writer.stream.try_write(&line) {
            tracing::warn!(%error, "Cannot answer a writer.");
        }
    }
}

impl Writer {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<WriterEvent> {
        let mut chunk = [0; 4096];
        loop {
            if self.stream.poll_read_ready(context).is_pending() {
                return Poll::Pending;
            }
            match self.stream.try_read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => return Poll::Ready(WriterEvent::Gone),
                // It has announced everything; more bytes have no meaning.
                Ok(_) if self.hello.is_some() => continue,
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
            }
            let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else {
                if self.received.len() > LONGEST {
                    return Poll::Ready(WriterEvent::Gone);
                }
                continue;
            };
            let Ok(hello) = serde_json::from_slice::<Hello>(&self.received[..end]) else {
                return Poll::Ready(WriterEvent::Gone);
            };
            self.received = Vec::new();
            self.hello = Some(hello.clone());
            return Poll::Ready(WriterEvent::Hello(self.number, hello));
        }
    }
}

/// Makes the directory, and room for a new socket where a dead daemon left its own.
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
    use crate::agent::writer_protocol::Tie;
    use std::cell::RefCell;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_writer_goes_on_only_with_an_answer_and_its_end_is_noticed() {
        let state = tempfile::tempdir().unwrap();
        let order = RefCell::new(Vec::new());
        runtime().block_on(async {
            let mut writers = Writers::listen(state.path());
            let hello = Hello { apply: Some(7), repair: vec!["ab".repeat(40_000)] };
            let writer = async {
                let mut lines = Vec::new();
                let tie = Tie::make(state.path(), &hello, &mut |line| lines.push(line.to_owned())).await;
                order.borrow_mut().push("writes");
                assert!(tie.is_some());
                lines
            };
            let daemon = async {
                let WriterEvent::Hello(number, received) = writers.next().await else { panic!("no hello") };
                assert_eq!((&received, writers.open()), (&hello, vec![(number, hello.clone())]));
                if nix::unistd::geteuid().is_root() {
                    assert_eq!(
                        writers.process(number).unwrap(),
                        std::process::id(),
                        "it is this very process"
                    );
                }
                order.borrow_mut().push("answers");
                writers.answer(number, &Answer { stranger: "x".to_owned(), ..Answer::default() });
                assert!(matches!(writers.next().await, WriterEvent::Gone));
                assert_eq!(writers.open(), Vec::new());
            };
            let (lines, ()) = tokio::join!(writer, daemon);
            assert_eq!(lines.len(), 1, "{lines:?}");
        });
        assert_eq!(order.into_inner(), ["answers", "writes"]);
    }

    #[test]
    fn without_a_daemon_nobody_waits_and_a_dead_one_leaves_room_for_the_next() {
        let state = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let mut say = |line: &str| panic!("{line}");
            assert!(Tie::make(state.path(), &Hello::default(), &mut say).await.is_none());
            drop(Writers::listen(state.path()));
            assert!(socket(state.path()).exists());
            assert!(Tie::make(state.path(), &Hello::default(), &mut say).await.is_none());
            assert!(Writers::listen(state.path()).listener.is_some());
        });
    }

    #[test]
    fn what_is_no_hello_ends_the_tie() {
        use tokio::io::AsyncWriteExt as _;
        let state = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let mut writers = Writers::listen(state.path());
            for text in ["{\"apply\": -1}\n", "{\"more\": 1}\n", "\n"] {
                let mut stream = UnixStream::connect(socket(state.path())).await.unwrap();
                stream.write_all(text.as_bytes()).await.unwrap();
                assert!(matches!(writers.next().await, WriterEvent::Gone), "{text}");
            }
        });
    }
}
