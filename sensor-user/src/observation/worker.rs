//! Observes things in another process, for file systems that may never answer.
//!
//! In: expectations, a line of JSON each. Out: an answer to each, a line each. No signal ends a call that waits for a file system's
//! server. A thread in such a call keeps its whole process alive. So another process, which holds no resources, makes the call, and
//! the daemon can abandon it. It never writes to the host.

use super::{Observer, RootError, device, stat_handle};
use nix::fcntl::OFlag;
use rustix::fs::StatxFlags;
use sensor_model::{
    expectation::{Expectation, Expected},
    observation::{FileType, Observation},
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The subcommand that runs a worker.
pub const COMMAND: &str = "look";

/// This program's file, also after an upgrade has replaced it.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// How long the observation of one thing may take, without its content.
const PATIENCE: Duration = Duration::from_secs(5);

/// For each of so many bytes of content it may take a second more.
const SECOND_BYTES: u64 = 4 << 20;

/// Most bytes of one answer: the names of a closed directory with the keys in it.
pub(crate) const LONGEST: usize = 64 << 20;

/// The answer to a question.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The observation of the thing.
    pub observation: Observation,
    /// The inodes of the thing and of the directories above it.
    pub inodes: Vec<Identified>,
}

/// The inode at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// The path below the host root.
    pub path: PathBuf,
    /// Regular file, directory, symbolic link and so on.
    pub file_type: FileType,
    /// `super_block.s_dev`, as the kernel has it.
    pub dev: u32,
    /// `inode.i_ino`.
    pub ino: u64,
}

/// A running worker and its connection.
#[derive(Debug)]
pub struct Worker {
    /// Its process. Dropping this does not end it.
    pub child: Child,
    /// The connection. The worker ends when it closes.
    pub stream: UnixStream,
}

/// How long to wait for the answer to one question.
pub fn patience(expectation: &Expectation) -> Duration {
    let size = match &expectation.expected {
        Expected::File(file) => file.content.map_or(0, |content| content.size),
        _ => 0,
    };
    PATIENCE + Duration::from_secs(size / SECOND_BYTES)
}

/// The line that asks for the observation of a thing.
///
/// # Errors
/// A path that is not UTF-8.
pub fn question(expectation: &Expectation) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(expectation)?;
    line.push(b'\n');
    Ok(line)
}

/// Starts a worker for the host at `root`.
///
/// # Errors
/// The process cannot be created.
pub fn start(root: &Path) -> io::Result<Worker> {
    let (stream, theirs) = UnixStream::pair()?;
    let mut flag = OsString::from("--host-root=");
    flag.push(root);
    let child = Command::new(THIS_PROGRAM)
        .arg0("holdfast")
        .arg(COMMAND)
        .arg(flag)
        .stdin(OwnedFd::from(theirs.try_clone()?))
        .stdout(OwnedFd::from(theirs))
        .stderr(Stdio::inherit())
        .spawn()?;
    Ok(Worker { child, stream })
}

/// Starts a worker for one thing, and waits for its answer for at most `patience`.
///
/// # Errors
/// The process cannot be created, or does not answer in time: [`io::ErrorKind::TimedOut`].
pub fn ask(root: &Path, expectation: &Expectation, patience: Duration) -> io::Result<Observation> {
    let end = Instant::now() + patience;
    let Worker { mut child, mut stream } = start(root)?;
    let mut asked = || -> io::Result<Answer> {
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(&question(expectation)?)?;
        let mut line = Vec::new();
        let mut reader = BufReader::new(&stream);
        while line.last() != Some(&b'\n') {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || line.len() > LONGEST {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            let chunk = reader.fill_buf()?;
            if chunk.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = chunk.len();
            line.extend_from_slice(chunk);
            reader.consume(taken);
        }
        Ok(serde_json::from_slice(&line)?)
    };
    let answer = asked().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    });
    // The kernel ends a worker that waits for a server only after the server has answered, so this does not wait for the end.
    child.kill()?;
    drop(child.try_wait());
    Ok(answer?.observation)
}

/// The worker's own part: answers questions until the connection closes.
///
/// # Errors
/// The host root cannot be opened, or the connection fails.
pub fn serve(root: &Path, from: impl BufRead, mut to: impl Write) -> Result<(), ServeError> {
    let observer = Observer::new(root)?;
    for line in from.lines() {
        let expectation: Expectation = serde_json::from_str(&line?).map_err(io::Error::from)?;
        let mut line = serde_json::to_vec(&answer(&observer, &expectation))
            .or_else(|error| {
                // A name is not UTF-8.
                let observation = Observation::Unreadable {
                    error: format!("observe {}: {error}", expectation.thing.path().display()),
                };
                serde_json::to_vec(&Answer { observation, inodes: Vec::new() })
            })
            .map_err(io::Error::from)?;
        line.push(b'\n');
        to.write_all(&line)?;
        to.flush()?;
    }
    Ok(())
}

/// Why such a process ends early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The host root cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The asking process has ended, or has sent something else than a question.
    #[error("read a question or answer it: {0}")]
    Talk(#[from] io::Error),
}

fn answer(observer: &Observer, expectation: &Expectation) -> Answer {
    let mut observation = observer.observe(expectation).observation;
    if let Observation::Object(object) = &mut observation {
        object.changed_ns = object.changed_ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    }
    let path = expectation.thing.path();
    let inodes = path.ancestors().filter_map(|path| identify(observer, path)).collect();
    Answer { observation, inodes }
}

fn identify(observer: &Observer, path: &Path) -> Option<Identified> {
    let handle = observer.root().open_at(path, OFlag::O_PATH | OFlag::O_NOFOLLOW).ok()?;
    let stat = stat_handle(handle.as_fd(), StatxFlags::BASIC_STATS).ok()?;
    let device = device(&stat);
    // MINORBITS of include/linux/kdev_t.h.
    let dev = rustix::fs::major(device) << 20 | rustix::fs::minor(device);
    Some(Identified {
        path: path.to_owned(),
        file_type: super::object::file_type(&stat),
        dev,
        ino: stat.stx_ino,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sensor_model::expectation::{DirectoryExpectation, Owner, Source, Thing};
    use std::os::unix::fs::{MetadataExt as _, symlink};

    /// A declared directory.
    pub(crate) fn directory(path: &str) -> Expectation {
        let (user, group) = (Owner::Id(0), Owner::Id(0));
        Expectation {
            thing: Thing::directory(path),
            expected: Expected::Directory(DirectoryExpectation { mode: 0o755, user, group }),
            ssh_keys: false,
            label: None,
            source: Source::new("a", "a").into(),
        }
    }

    #[test]
    fn an_answer_has_the_observation_of_this_process_and_the_inodes_of_the_path() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("a")).unwrap();
        std::fs::write(root.path().join("a/file"), "text").unwrap();
        symlink("file", root.path().join("a/link")).unwrap();
        let expected = [directory("/a/file"), directory("/a"), directory("/a/link"), directory("/none")];
        let questions: Vec<u8> = expected.iter().flat_map(|one| question(one).unwrap()).collect();
        let mut answers = Vec::new();
        serve(root.path(), questions.as_slice(), &mut answers).unwrap();
        let answers: Vec<Answer> = answers
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        let observer = Observer::new(root.path()).unwrap();
        for (expectation, answer) in expected.iter().zip(&answers) {
            assert_eq!(answer.observation, observer.observe(expectation).observation);
        }
        assert!(matches!(&answers[0].observation, Observation::Object(object) if object.sha256.is_some()));
        assert_eq!(answers[3].observation, Observation::Missing);
        let found = &answers[0].inodes[0];
        let file = std::fs::metadata(root.path().join("a/file")).unwrap();
        assert_eq!((found.path.as_path(), found.ino), (Path::new("/a/file"), file.ino()));
        let paths: Vec<_> = answers[0].inodes.iter().map(|found| found.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/a/file", "/a", "/"]);
    }

    #[test]
    fn a_line_that_is_no_question_ends_the_worker() {
        let root = tempfile::tempdir().unwrap();
        assert!(serve(root.path(), &b"{}\n"[..], &mut Vec::new()).is_err());
    }
}
