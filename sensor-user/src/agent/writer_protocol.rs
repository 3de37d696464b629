//! The protocol between the daemon and another process of Holdfast that writes declared state.
//!
//! In: the announcement of what the process will write, which the journal holds already. Out: the daemon's answer: whether it
//! watches all of it, and whether it accepts the process as Holdfast. An apply or a repair writes after the answer, or after a time limit. A revert
//! that the daemon ordered writes only after the answer. The process keeps the connection open until it ends. Then the daemon checks the
//! state of the apply. If the daemon closes it before, an apply announces itself to the next daemon. Without a daemon the process does not wait.
//! Only root reaches the socket.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sensor_model::expectation::Expectation;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    time::timeout,
};

/// The copy of the daemon's program below the state directory. A daemon in a container has no other file that systemd could run.
pub(crate) const COPY: &str = "order/holdfast";

/// How long a writer waits for the answer. A daemon that starts enrols ten thousand paths within a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The length limit of a message in bytes: the digests of ten thousand things.
pub(crate) const LONGEST: usize = 1 << 20;

/// The daemon's socket below a state directory.
pub(crate) fn socket(state: &Path) -> PathBuf {
    state.join("apply").join("daemon.sock")
}

/// What a process will write, as one line of JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriterAnnouncement {
    /// The number of the apply whose journal is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) apply: Option<u64>,
    /// The things of a repair: a digest of each with its expected state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) repair: Vec<String>,
}

/// The daemon's answer, as one line of JSON, once it watches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DaemonAnswer {
    /// Why the daemon does not accept the process as Holdfast; empty if it does.
    #[serde(rename = "stranger")]
    pub(crate) refused_because: String,
    /// Why the daemon does not watch everything; empty if it does.
    pub(crate) unwatched: String,
    /// The repair would write a state that the daemon does not expect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unexpected: bool,
}

/// A digest of a thing and of its expected state, without its source.
pub(crate) fn digest(expectation: &Expectation) -> String {
    let text = serde_json::to_vec(&(&expectation.thing, &expectation.expected)).unwrap_or_default();
    hex::encode(Sha256::digest(text))
}

/// A connection to the daemon. The daemon accepts the process as Holdfast as long as it is open.
#[derive(Debug)]
pub(crate) struct WriterConnection {
    stream: Option<BufReader<UnixStream>>,
    /// The daemon answered the announcement.
    pub(crate) is_answered: bool,
    /// The daemon expects another state than the repair would write.
    pub(crate) unexpected: bool,
}

impl WriterConnection {
    /// Sends the announcement to the daemon, and waits for its answer for a limited time. `None` if no daemon runs. `say` takes lines for a
    /// person about problems.
    pub(crate) async fn announce(
        state: &Path,
        announcement: &WriterAnnouncement,
        say: &mut dyn FnMut(&str),
    ) -> Option<Self> {
        let mut connection = Self::open(state, &mut *say).await?;
        connection.ask(announcement, PATIENCE, say).await;
        Some(connection)
    }

    /// Connects to the daemon. `None` if no daemon runs.
    pub(crate) async fn open(state: &Path, say: &mut dyn FnMut(&str)) -> Option<Self> {
        let stream = match UnixStream::connect(socket(state)).await {
            Ok(stream) => Some(BufReader::new(stream)),
            // No daemon runs, or it has ended.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return None;
            }
            Err(error) => {
                say(&format!("cannot announce the writes to the daemon: {error}"));
                None
            }
        };
        Some(Self { stream, is_answered: false, unexpected: false })
    }

    /// Sends the announcement, and waits so long for the answer.
    pub(crate) async fn ask(
        &mut self,
        announcement: &WriterAnnouncement,
        patience: Duration,
        say: &mut dyn FnMut(&str),
    ) {
        let Some(stream) = &mut self.stream else { return };
        match timeout(patience, ask(stream, announcement)).await {
            Ok(Ok(answer)) => {
                (self.is_answered, self.unexpected) = (true, answer.unexpected);
                if !answer.unwatched.is_empty() {
                    say(&format!("the daemon does not watch everything: {}", answer.unwatched));
                }
                if !answer.refused_because.is_empty() {
                    say(&format!(
                        "the daemon does not accept this process as Holdfast: {}",
                        answer.refused_because
                    ));
                }
            }
            Ok(Err(error)) => say(&format!("the daemon gave no answer: {error}")),
            Err(_) => say(&format!("the daemon gave no answer within {} s", patience.as_secs())),
        }
    }

    /// Whether the daemon has closed the connection, as it does when it ends.
    pub(crate) fn is_closed(&self) -> bool {
        let Some(stream) = &self.stream else { return false };
        // The runtime notices the end only when a task waits for it, and edits do not wait.
        let mut polled = [PollFd::new(stream.get_ref().as_fd(), PollFlags::empty())];
        let ended = PollFlags::POLLHUP | PollFlags::POLLERR;
        poll(&mut polled, PollTimeout::ZERO).is_ok()
            && polled[0].revents().is_some_and(|events| events.intersects(ended))
    }
}

async fn ask(
    stream: &mut BufReader<UnixStream>,
    announcement: &WriterAnnouncement,
) -> io::Result<DaemonAnswer> {
    let mut line = serde_json::to_vec(announcement)?;
    line.push(b'\n');
    stream.get_mut().write_all(&line).await?;
    let mut answer = String::new();
    if stream.read_line(&mut answer).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&answer)?)
}
