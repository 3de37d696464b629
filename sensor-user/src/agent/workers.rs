//! Worker processes that observe things on file systems with a server, while the loop continues.
//!
//! In: things to observe, each with its file system, and the time. Out: answers, and the things without an answer in time. It owns
//! the processes and their queues. Each file system has at most one process, as long as there is a question about it. The daemon
//! kills a process that misses its deadline. The kernel may keep the process until the server answers; until then the daemon asks
//! nothing about that file system.

use crate::clock::Clock;
use crate::observation::Served;
use crate::observation::worker::{self, Answer, LONGEST};
use sensor_model::expectation::Expectation;
use sensor_model::protocol::ThingId;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::UnixStream;

/// The number of killed processes that may still exist.
const LEFT_BEHIND: usize = 4;

/// Bytes that one read takes.
const CHUNK: usize = 16 << 10;

/// A worker process and its connection.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    pub(super) child: Option<Child>,
    pub(super) stream: UnixStream,
}

/// Starts a worker process.
type Start = Box<dyn Fn() -> io::Result<WorkerProcess>>;

/// All worker processes.
pub(super) struct Workers {
    start: Start,
    clock: Arc<dyn Clock>,
    queues: BTreeMap<Served, WorkerQueue>,
    /// Killed processes that still exist, each with the file system that keeps it, if one does.
    ending: Vec<(Option<Served>, Child)>,
}

/// A question about one thing.
#[derive(Debug)]
struct Question {
    thing: ThingId,
    /// The path itself lies on the file system, not only a link of its route.
    is_there: bool,
    line: Vec<u8>,
    patience: Duration,
}

/// One worker process, with its present question and the waiting ones.
#[derive(Debug)]
struct WorkerQueue {
    process: WorkerProcess,
    thing: ThingId,
    is_there: bool,
    /// Boot-time nanoseconds.
    deadline: u64,
    /// Bytes of the question that are not written yet.
    out: Vec<u8>,
    received: Vec<u8>,
    waiting: VecDeque<Question>,
}

/// The result of a worker process.
#[derive(Debug)]
pub(super) enum WorkerResult {
    /// An answer about a thing, and whether its path itself led to such a file system at the time of the question.
    Answer(ThingId, Box<Answer>, bool),
    /// The process failed, and these things have no answer.
    Failed(Vec<ThingId>),
}

impl Workers {
    /// Workers that observe the host at `root`.
    pub(super) fn new(root: PathBuf, clock: Arc<dyn Clock>) -> Self {
        let start = move || {
            let worker::Worker { child, stream } = worker::start(&root)?;
            stream.set_nonblocking(true)?;
            Ok(WorkerProcess { child: Some(child), stream: UnixStream::from_std(stream)? })
        };
        Self::with(Box::new(start), clock)
    }

    /// Workers that another function starts.
    pub(super) fn with(start: Start, clock: Arc<dyn Clock>) -> Self {
        Self { start, clock, queues: BTreeMap::new(), ending: Vec::new() }
    }

    /// Asks for an observation of a thing on that file system. Its path leads there, or a link of its route. `false`: no process
    /// can be asked.
    pub(super) fn ask(
        &mut self,
        served: Served,
        thing: ThingId,
        expectation: &Expectation,
        is_there: bool,
    ) -> bool {
        self.reap();
        if self.ending.iter().any(|(of, _)| *of == Some(served)) {
            return false;
        }
        let question = match worker::question(expectation) {
            Ok(line) => Question { thing, is_there, line, patience: worker::patience(expectation) },
            Err(error) => {
                tracing::error!(%error, path = %expectation.thing.path().display(), "Cannot ask a worker process for an observation.");
                return false;
            }
        };
        if let Some(queue) = self.queues.get_mut(&served) {
            queue.waiting.push_back(question);
            return true;
        }
        if self.ending.iter().filter(|(of, _)| of.is_some()).count() >= LEFT_BEHIND {
            return false;
        }
        match (self.start)() {
            Ok(process) => {
                let mut queue = WorkerQueue {
                    process,
                    thing,
                    is_there,
                    deadline: 0,
                    out: Vec::new(),
                    received: Vec::new(),
                    waiting: VecDeque::new(),
                };
                queue.begin(question, self.clock.boot_ns());
                self.queues.insert(served, queue);
                true
            }
            Err(error) => {
                tracing::error!(%error, "Cannot start a worker process: a thing on a file system with a server stays unknown.");
                false
            }
        }
    }

    /// Waits for an answer. The caller may drop the future at any point.
    pub(super) async fn next(&mut self) -> WorkerResult {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<WorkerResult> {
        let now = self.clock.boot_ns();
        let ready = self.queues.iter_mut().find_map(|(served, queue)| match queue.poll(context, now) {
            Poll::Ready(received) => Some((*served, received)),
            Poll::Pending => None,
        });
        let Some((served, received)) = ready else { return Poll::Pending };
        let is_over = match &received {
            WorkerResult::Answer(..) => {
                self.queues.get(&served).is_some_and(|queue| queue.deadline == u64::MAX)
            }
            WorkerResult::Failed(_) => true,
        };
        if is_over && let Some(queue) = self.queues.remove(&served) {
            self.end(None, queue);
        }
        Poll::Ready(received)
    }

    /// Ends the processes that missed their deadline. Gives their things.
    pub(super) fn overdue(&mut self) -> Vec<ThingId> {
        self.reap();
        let now = self.clock.boot_ns();
        let mut things = Vec::new();
        for (served, queue) in
            self.queues.extract_if(.., |_, queue| queue.deadline <= now).collect::<Vec<_>>()
        {
            things.extend(queue.things());
            self.end(Some(served), queue);
        }
        things
    }

    /// The next deadline of an answer.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.queues.values().map(|queue| queue.deadline).min()
    }

    /// Ends all processes, for the next run. Remembers those that still exist.
    pub(super) fn end_all(mut self) -> Self {
        while let Some((served, queue)) = self.queues.pop_first() {
            self.end(Some(served), queue);
        }
        self
    }

    fn end(&mut self, served: Option<Served>, queue: WorkerQueue) {
        let Some(mut child) = queue.process.child else { return };
        if let Err(error) = child.kill() {
            tracing::warn!(%error, "Cannot kill a worker process.");
        }
        self.ending.push((served, child));
        self.reap();
    }

    fn reap(&mut self) {
        self.ending.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in self.queues.values_mut().filter_map(|queue| queue.process.child.as_mut()) {
            // It also ends by itself, unless it waits for a server.
            drop(child.kill());
        }
    }
}

impl WorkerQueue {
    fn begin(&mut self, question: Question, now: u64) {
        let Question { thing, is_there, line, patience } = question;
        (self.thing, self.is_there) = (thing, is_there);
        self.out = line;
        self.received.clear();
        self.deadline = now.saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The things of all its questions.
    fn things(&self) -> Vec<ThingId> {
        let waiting = self.waiting.iter().map(|question| question.thing);
        std::iter::once(self.thing).chain(waiting).collect()
    }

    fn poll(&mut self, context: &mut Context<'_>, now: u64) -> Poll<WorkerResult> {
        let stream = &self.process.stream;
        while !self.out.is_empty() && stream.poll_write_ready(context).is_ready() {
            match stream.try_write(&self.out) {
                Ok(length) => drop(self.out.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(WorkerResult::Failed(self.things())),
            }
        }
        let mut chunk = [0; CHUNK];
        loop {
            if stream.poll_read_ready(context).is_pending() {
                return Poll::Pending;
            }
            match stream.try_read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => return Poll::Ready(WorkerResult::Failed(self.things())),
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
            }
            if self.received.last() == Some(&b'\n') {
                break;
            }
            if self.received.len() > LONGEST {
                return Poll::Ready(WorkerResult::Failed(self.things()));
            }
        }
        let Ok(answer) = serde_json::from_slice(&self.received) else {
            return Poll::Ready(WorkerResult::Failed(self.things()));
        };
        let (thing, is_there) = (self.thing, self.is_there);
        match self.waiting.pop_front() {
            Some(question) => self.begin(question, now),
            None => self.deadline = u64::MAX,
        }
        Poll::Ready(WorkerResult::Answer(thing, answer, is_there))
    }
}
