//! The protocol between a process of Holdfast that writes declared state and the daemon.
//!
//! In: what is about to be written, already in the journal. Out: the daemon's answer: whether it watches all of it, and whether
//! the writer counts as Holdfast. The writer writes after the answer, or when the wait is over. The connection lasts as long as
//! the writer: when it is closed, the daemon looks. Without a daemon there is no wait. Only root reaches the socket.

use sensor_model::expectation::Expectation;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    time::timeout,
};

/// How long the daemon may take. One that starts enrols ten thousand paths within a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of one message at most: the digests of ten thousand things.
pub(crate) const LONGEST: usize = 1 << 20;

/// Where the daemon listens, below the state directory.
pub(crate) fn socket(state: &Path) -> PathBuf {
    state.join("apply").join("daemon.sock")
}

/// What a writer says of itself, as one line of JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    /// The apply whose journal is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) apply: Option<u64>,
    /// What is to be repaired: a digest of each thing with its expected state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) repair: Vec<String>,
}

/// What the daemon says, as one line of JSON, once everything is watched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    /// Why the writer is not taken for one of ours; empty when it is.
    pub(crate) stranger: String,
    /// Why not everything is watched; empty when it is.
    pub(crate) unwatched: String,
    /// What is to be repaired is not what the daemon expects.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unexpected: bool,
}

/// A digest of a thing and of what it should be, without its source.
pub(crate) fn digest(expectation: &Expectation) -> String {
    let text = serde_json::to_vec(&(&expectation.thing, &expectation.expected)).unwrap_or_default();
    hex::encode(Sha256::digest(text))
}

/// A tie that holds.
#[derive(Debug)]
pub(crate) struct Tie {
    _stream: BufReader<UnixStream>,
    /// The daemon expects something else than what is to be repaired.
    pub(crate) unexpected: bool,
}

impl Tie {
    /// Announces to the daemon, and waits for its answer. `None` without a daemon. Lines for a person about what is wrong go to
    /// `say`. The wait is bounded, so that a daemon that hangs prevents no write.
    pub(crate) async fn make(state: &Path, hello: &Hello, say: &mut dyn FnMut(&str)) -> Option<Self> {
        let stream = match UnixStream::connect(socket(state)).await {
            Ok(stream) => stream,
            // No daemon, or one that is gone.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return None;
            }
            Err(error) => {
                say(&format!("the daemon cannot be told: {error}"));
                return None;
            }
        };
        let mut stream = BufReader::new(stream);
        let mut unexpected = false;
        match timeout(PATIENCE, ask(&mut stream, hello)).await {
            Ok(Ok(answer)) => {
                unexpected = answer.unexpected;
                if !answer.unwatched.is_empty() {
                    say(&format!("the daemon does not watch everything: {}", answer.unwatched));
                }
                if !answer.stranger.is_empty() {
                    say(&format!(
                        "the daemon does not take this process for Holdfast's: {}",
                        answer.stranger
                    ));
                }
            }
            Ok(Err(error)) => say(&format!("the daemon gave no answer: {error}")),
            Err(_) => say(&format!("the daemon gave no answer within {} s", PATIENCE.as_secs())),
        }
        Some(Self { _stream: stream, unexpected })
    }
}

async fn ask(stream: &mut BufReader<UnixStream>, hello: &Hello) -> io::Result<Answer> {
    let mut line = serde_json::to_vec(hello)?;
    line.push(b'\n');
    stream.get_mut().write_all(&line).await?;
    let mut answer = String::new();
    if stream.read_line(&mut answer).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&answer)?)
}
