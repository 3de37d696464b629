//! Processes that look at things on file systems with a server, while the loop goes on.
//!
//! In: things to look at, each with its file system, and the time. Out: answers, and which things got none in time. Each file
//! system has one process at most, while something on it is to be looked at. A process that misses its time is killed. The
//! kernel may keep it until the server answers or is gone; until then nothing else is asked on that file system.

use crate::clock::Clock;
use crate::observation::Served;
use crate::observation::worker::{self, Answer, LONGEST};
use sensor_model::expectation::Expectation;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::UnixStream;

/// Processes that are left behind, at most.
const LEFT_BEHIND: usize = 4;

/// Bytes read at once.
const CHUNK: usize = 16 << 10;

/// A process that looks, and its connection.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) child: Option<Child>,
    pub(super) stream: UnixStream,
}

/// Makes one.
type Start = Box<dyn Fn() -> io::Result<Process>>;

/// All of them.
pub(super) struct Workers {
    start: Start,
    clock: Arc<dyn Clock>,
    queues: BTreeMap<Served, Queue>,
    /// Killed processes that the kernel has not ended yet, with the file system that keeps them, if one does.
    ending: Vec<(Option<Served>, Child)>,
}

/// One question.
#[derive(Debug)]
struct Question {
    thing: u32,
    /// The path itself lies on the file system, not only a link on the way.
    is_there: bool,
    line: Vec<u8>,
    patience: Duration,
}

/// One process at work.
#[derive(Debug)]
struct Queue {
    process: Process,
    thing: u32,
    is_there: bool,
    /// Boot-time nanoseconds.
    deadline: u64,
    /// Bytes of the question that are still to be written.
    out: Vec<u8>,
    received: Vec<u8>,
    waiting: VecDeque<Question>,
}

/// What a process answered.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// An answer about a thing, and whether its path itself led to such a file system when it was asked for.
    Answer(u32, Box<Answer>, bool),
    /// None, about these things.
    Failed(Vec<u32>),
}

impl Workers {
    /// For the host at `root`.
    pub(super) fn new(root: PathBuf, clock: Arc<dyn Clock>) -> Self {
        let start = move || {
            let worker::Worker { child, stream } = worker::start(&root)?;
            stream.set_nonblocking(true)?;
            Ok(Process { child: Some(child), stream: UnixStream::from_std(stream)? })
        };
        Self::with(Box::new(start), clock)
    }

    /// With other processes.
    pub(super) fn with(start: Start, clock: Arc<dyn Clock>) -> Self {
        Self { start, clock, queues: BTreeMap::new(), ending: Vec::new() }
    }

    /// Asks for a look at a thing on that file system, to which its path itself leads or a link. `false` when no process can
    /// be asked.
    pub(super) fn ask(
        &mut self,
        served: Served,
        thing: u32,
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
                tracing::error!(%error, path = %expectation.thing.path().display(), "Cannot ask for a look.");
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
                let mut queue = Queue {
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
                tracing::error!(%error, "No process can be made that looks at what may not answer.");
                false
            }
        }
    }

    /// Waits for an answer. May be dropped at any point.
    pub(super) async fn next(&mut self) -> WorkerEvent {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<WorkerEvent> {
        let now = self.clock.boot_ns();
        let ready = self.queues.iter_mut().find_map(|(served, queue)| match queue.poll(context, now) {
            Poll::Ready(received) => Some((*served, received)),
            Poll::Pending => None,
        });
        let Some((served, received)) = ready else { return Poll::Pending };
        let is_over = match &received {
            WorkerEvent::Answer(..) => {
                self.queues.get(&served).is_some_and(|queue| queue.deadline == u64::MAX)
            }
            WorkerEvent::Failed(_) => true,
        };
        if is_over && let Some(queue) = self.queues.remove(&served) {
            self.end(None, queue);
        }
        Poll::Ready(received)
    }

    /// Things that got no answer in time.
    pub(super) fn overdue(&mut self) -> Vec<u32> {
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

    /// When [`Workers::overdue`] will have something, if no answer comes before.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.queues.values().map(|queue| queue.deadline).min()
    }

    /// Asks for nothing any more, and keeps in mind what may not end.
    pub(super) fn end_all(mut self) -> Self {
        while let Some((served, queue)) = self.queues.pop_first() {
            self.end(Some(served), queue);
        }
        self
    }

    fn end(&mut self, served: Option<Served>, queue: Queue) {
        let Some(mut child) = queue.process.child else { return };
        if let Err(error) = child.kill() {
            tracing::warn!(%error, "A process that looks cannot be killed.");
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
            // It ends by itself, too, unless it waits for a server.
            drop(child.kill());
        }
    }
}

impl Queue {
    fn begin(&mut self, question: Question, now: u64) {
        let Question { thing, is_there, line, patience } = question;
        (self.thing, self.is_there) = (thing, is_there);
        self.out = line;
        self.received.clear();
        self.deadline = now.saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
    }

    /// All that it was asked for.
    fn things(&self) -> Vec<u32> {
        let waiting = self.waiting.iter().map(|question| question.thing);
        std::iter::once(self.thing).chain(waiting).collect()
    }

    fn poll(&mut self, context: &mut Context<'_>, now: u64) -> Poll<WorkerEvent> {
        let stream = &self.process.stream;
        while !self.out.is_empty() && stream.poll_write_ready(context).is_ready() {
            match stream.try_write(&self.out) {
                Ok(length) => drop(self.out.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(WorkerEvent::Failed(self.things())),
            }
        }
        let mut chunk = [0; CHUNK];
        loop {
            if stream.poll_read_ready(context).is_pending() {
                return Poll::Pending;
            }
            match stream.try_read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => return Poll::Ready(WorkerEvent::Failed(self.things())),
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
            }
            if self.received.last() == Some(&b'\n') {
                break;
            }
            if self.received.len() > LONGEST {
                return Poll::Ready(WorkerEvent::Failed(self.things()));
            }
        }
        let Ok(answer) = serde_json::from_slice(&self.received) else {
            return Poll::Ready(WorkerEvent::Failed(self.things()));
        };
        let (thing, is_there) = (self.thing, self.is_there);
        match self.waiting.pop_front() {
            Some(question) => self.begin(question, now),
            None => self.deadline = u64::MAX,
        }
        Poll::Ready(WorkerEvent::Answer(thing, answer, is_there))
    }
}
