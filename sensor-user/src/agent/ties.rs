//! Writers beside the daemon that said what they are about to write.
//!
//! In: connections to a socket that only root reaches. Out: what each writer says of itself, that it is gone, and who
//! the kernel says it is. It believes nobody's word for that: a writer is ours when it runs as root from the very file that
//! the daemon runs from. It never waits for anybody.

use crate::apply::tie::{Answer, Hello, LONGEST, socket};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    task::{Context, Poll},
};
use tokio::net::{UnixListener, UnixStream};

/// Writers at once; there is one lock for applies, and people repair by hand.
const WRITERS: usize = 32;

/// What the daemon runs from, and what a process does.
const EXE: &str = "exe";

/// All writers.
#[derive(Debug, Default)]
pub(super) struct Ties {
    listener: Option<UnixListener>,
    writers: Vec<Writer>,
    last: u64,
}

/// One writer.
#[derive(Debug)]
struct Writer {
    number: u64,
    stream: UnixStream,
    heard: Vec<u8>,
    hello: Option<Hello>,
    /// Number and start of its process, where it is ours.
    process: Option<(u32, u64)>,
}

/// What happened.
#[derive(Debug)]
pub(super) enum Said {
    /// A writer says what it is about to write, and waits for an answer.
    Hello(u64, Hello),
    /// A writer is gone.
    Gone,
}

impl Ties {
    /// Listens below a state directory. Without a socket nobody waits for us; the log says why there is none.
    pub(super) fn listen(state: &Path) -> Self {
        let path = socket(state);
        let bound = prepare(&path).and_then(|()| UnixListener::bind(&path));
        let listener = bound
            .inspect_err(
                |error| tracing::error!(path = %path.display(), %error, "Writers beside us cannot tell us."),
            )
            .ok();
        Self { listener, ..Self::default() }
    }

    /// What writers said and have had no answer to, or had one from a daemon that began again since.
    pub(super) fn open(&self) -> Vec<(u64, Hello)> {
        self.writers.iter().filter_map(|writer| Some((writer.number, writer.hello.clone()?))).collect()
    }

    /// Waits until something happens. May be dropped at any point.
    pub(super) async fn next(&mut self) -> Said {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Said> {
        if let Some(listener) = &self.listener {
            while let Poll::Ready(accepted) = listener.poll_accept(context) {
                match accepted {
                    Ok((stream, _)) if self.writers.len() < WRITERS => {
                        self.last += 1;
                        let number = self.last;
                        self.writers.push(Writer {
                            number,
                            stream,
                            heard: Vec::new(),
                            hello: None,
                            process: None,
                        });
                    }
                    Ok(_) => tracing::warn!("Too many writers beside us."),
                    Err(error) => {
                        tracing::warn!(%error, "A writer cannot be heard.");
                        break;
                    }
                }
            }
        }
        for position in 0..self.writers.len() {
            if let Poll::Ready(said) = self.writers[position].poll(context) {
                if matches!(said, Said::Gone) {
                    self.writers.remove(position);
                }
                return Poll::Ready(said);
            }
        }
        Poll::Pending
    }

    /// The number of a writer's process, where it is ours.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn process(&self, number: u64) -> Result<u32, String> {
        let writer = self.writers.iter().find(|writer| writer.number == number).ok_or("it is gone")?;
        let peer = writer.stream.peer_cred().map_err(|error| format!("who it is cannot be told: {error}"))?;
        if peer.uid() != 0 {
            return Err(format!("it runs as user {}", peer.uid()));
        }
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
        let pid = pid.ok_or("it is in a process namespace that the daemon does not see")?;
        let exe = |process: &str| fs::metadata(Path::new("/proc").join(process).join(EXE));
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        let (ours, theirs) = (exe("self"), exe(&pid.to_string()));
        match (ours.map(identity), theirs.map(identity)) {
            (Ok(ours), Ok(theirs)) if ours == theirs => Ok(pid),
            (Ok(_), Ok(_)) => Err("it does not run from the file that the daemon runs from".to_owned()),
            (Err(error), _) | (_, Err(error)) => Err(format!("what it runs from cannot be told: {error}")),
        }
    }

    /// Takes a writer's process for one of ours from now on.
    pub(super) fn adopt(&mut self, number: u64, process: (u32, u64)) {
        if let Some(writer) = self.writers.iter_mut().find(|writer| writer.number == number) {
            writer.process = Some(process);
        }
    }

    /// Processes of ours that write now, by number and start.
    pub(super) fn processes(&self) -> impl Iterator<Item = (u32, u64)> {
        self.writers.iter().filter_map(|writer| writer.process)
    }

    /// Answers a writer.
    pub(super) fn answer(&self, number: u64, answer: &Answer) {
        let Some(writer) = self.writers.iter().find(|writer| writer.number == number) else { return };
        let mut line = serde_json::to_vec(answer).unwrap_or_default();
        line.push(b'\n');
        // A few bytes fit into an empty socket; one that does not take them waits in vain, and not for ever.
        if let Err(error) = writer.stream.try_write(&line) {
            tracing::warn!(%error, "A writer cannot be answered.");
        }
    }
}

impl Writer {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Said> {
        let mut chunk = [0; 4096];
        loop {
            if self.stream.poll_read_ready(context).is_pending() {
                return Poll::Pending;
            }
            match self.stream.try_read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => return Poll::Ready(Said::Gone),
                // It has said everything: what it says now counts for nothing.
                Ok(_) if self.hello.is_some() => continue,
                Ok(length) => self.heard.extend_from_slice(&chunk[..length]),
            }
            let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') else {
                if self.heard.len() > LONGEST {
                    return Poll::Ready(Said::Gone);
                }
                continue;
            };
            let Ok(hello) = serde_json::from_slice::<Hello>(&self.heard[..end]) else {
                return Poll::Ready(Said::Gone);
            };
            self.heard = Vec::new();
            self.hello = Some(hello.clone());
            return Poll::Ready(Said::Hello(self.number, hello));
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
    use crate::apply::tie::Tie;
    use std::cell::RefCell;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_writer_goes_on_only_with_an_answer_and_its_end_is_noticed() {
        let state = tempfile::tempdir().unwrap();
        let order = RefCell::new(Vec::new());
        runtime().block_on(async {
            let mut ties = Ties::listen(state.path());
            let hello = Hello { apply: Some(7), repair: vec!["ab".repeat(40_000)] };
            let writer = async {
                let mut said = Vec::new();
                let tie = Tie::make(state.path(), &hello, &mut |line| said.push(line.to_owned())).await;
                order.borrow_mut().push("writes");
                assert!(tie.is_some());
                said
            };
            let daemon = async {
                let Said::Hello(number, heard) = ties.next().await else { panic!("no hello") };
                assert_eq!((&heard, ties.open()), (&hello, vec![(number, hello.clone())]));
                if nix::unistd::geteuid().is_root() {
                    assert_eq!(ties.process(number), Ok(std::process::id()), "it is this very process");
                }
                order.borrow_mut().push("answers");
                ties.answer(number, &Answer { stranger: "x".to_owned(), ..Answer::default() });
                assert!(matches!(ties.next().await, Said::Gone));
                assert_eq!(ties.open(), Vec::new());
            };
            let (said, ()) = tokio::join!(writer, daemon);
            assert_eq!(said.len(), 1, "{said:?}");
        });
        assert_eq!(order.into_inner(), ["answers", "writes"]);
    }

    #[test]
    fn without_a_daemon_nobody_waits_and_a_dead_one_leaves_room_for_the_next() {
        let state = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let mut say = |line: &str| panic!("{line}");
            assert!(Tie::make(state.path(), &Hello::default(), &mut say).await.is_none());
            drop(Ties::listen(state.path()));
            assert!(socket(state.path()).exists());
            assert!(Tie::make(state.path(), &Hello::default(), &mut say).await.is_none());
            assert!(Ties::listen(state.path()).listener.is_some());
        });
    }

    #[test]
    fn what_is_no_hello_ends_the_tie() {
        use tokio::io::AsyncWriteExt as _;
        let state = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let mut ties = Ties::listen(state.path());
            for text in ["{\"apply\": -1}\n", "{\"more\": 1}\n", "\n"] {
                let mut stream = UnixStream::connect(socket(state.path())).await.unwrap();
                stream.write_all(text.as_bytes()).await.unwrap();
                assert!(matches!(ties.next().await, Said::Gone), "{text}");
            }
        });
    }
}
