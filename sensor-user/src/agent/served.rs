//! Things on file systems that a server answers for: processes look at them, and the loop goes on.
//!
//! In: things to look at, each with its file system, and the time. Out: answers, and which things got none in time. For each
//! file system there is one process at most, while something is to be looked at there. One that misses its time is killed
//! and left behind: the kernel may keep it until the server answers or is gone, and until then nothing else is asked for on
//! that file system. It waits for nobody.

use super::look::HANGS;
use super::{Agent, backend::Changes};
use crate::clock::Clock;
use crate::observation::Served;
use crate::observation::worker::{self, Answer, LONGEST};
use sensor_model::expectation::Expectation;
use sensor_model::protocol::{Report, Scope};
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

/// When a thing that could not be looked at is tried again.
const RETRY_NS: u64 = 10_000_000_000;

/// More things than this that cannot be looked at have one gap together, and not one each.
const GAPS_AT_ONCE: usize = 16;

/// Bytes read at once.
const CHUNK: usize = 16 << 10;

/// A process that looks, and the way to talk to it.
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
    lanes: BTreeMap<Served, Lane>,
    /// Those that may not end yet, with the file system that keeps them; without one they only have to be waited for.
    ending: Vec<(Option<Served>, Child)>,
}

/// One question.
#[derive(Debug)]
struct Question {
    thing: u32,
    /// Its path itself leads there, and no link on the way.
    is_there: bool,
    line: Vec<u8>,
    patience: Duration,
}

/// One process at work.
#[derive(Debug)]
struct Lane {
    process: Process,
    thing: u32,
    is_there: bool,
    /// Boot-time nanoseconds.
    deadline: u64,
    /// What it is still to be told.
    out: Vec<u8>,
    heard: Vec<u8>,
    waiting: VecDeque<Question>,
}

/// What is heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// An answer about a thing, and whether its path itself led to such a file system when it was asked for.
    Answer(u32, Box<Answer>, bool),
    /// None, about these things.
    Nothing(Vec<u32>),
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
        Self { start, clock, lanes: BTreeMap::new(), ending: Vec::new() }
    }

    /// Asks for a look at a thing on that file system, to which its path itself leads or a link. `false` when nobody can
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
        if let Some(lane) = self.lanes.get_mut(&served) {
            lane.waiting.push_back(question);
            return true;
        }
        if self.ending.iter().filter(|(of, _)| of.is_some()).count() >= LEFT_BEHIND {
            return false;
        }
        match (self.start)() {
            Ok(process) => {
                let mut lane = Lane {
                    process,
                    thing,
                    is_there,
                    deadline: 0,
                    out: Vec::new(),
                    heard: Vec::new(),
                    waiting: VecDeque::new(),
                };
                lane.begin(question, self.clock.boot_ns());
                self.lanes.insert(served, lane);
                true
            }
            Err(error) => {
                tracing::error!(%error, "No process can be made that looks at what may not answer.");
                false
            }
        }
    }

    /// Waits for an answer. May be dropped at any point.
    pub(super) async fn next(&mut self) -> Heard {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Heard> {
        let now = self.clock.boot_ns();
        let ready = self.lanes.iter_mut().find_map(|(served, lane)| match lane.poll(context, now) {
            Poll::Ready(heard) => Some((*served, heard)),
            Poll::Pending => None,
        });
        let Some((served, heard)) = ready else { return Poll::Pending };
        let is_over = match &heard {
            Heard::Answer(..) => self.lanes.get(&served).is_some_and(|lane| lane.deadline == u64::MAX),
            Heard::Nothing(_) => true,
        };
        if is_over && let Some(lane) = self.lanes.remove(&served) {
            self.end(None, lane);
        }
        Poll::Ready(heard)
    }

    /// Things that got no answer in time.
    pub(super) fn overdue(&mut self) -> Vec<u32> {
        self.reap();
        let now = self.clock.boot_ns();
        let mut things = Vec::new();
        for (served, lane) in self.lanes.extract_if(.., |_, lane| lane.deadline <= now).collect::<Vec<_>>() {
            things.extend(lane.things());
            self.end(Some(served), lane);
        }
        things
    }

    /// When [`Workers::overdue`] will have something, if nothing is heard before.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.lanes.values().map(|lane| lane.deadline).min()
    }

    /// Asks for nothing any more, and keeps in mind what may not end.
    pub(super) fn let_go(mut self) -> Self {
        while let Some((served, lane)) = self.lanes.pop_first() {
            self.end(Some(served), lane);
        }
        self
    }

    fn end(&mut self, served: Option<Served>, lane: Lane) {
        let Some(mut child) = lane.process.child else { return };
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
        for child in self.lanes.values_mut().filter_map(|lane| lane.process.child.as_mut()) {
            // It ends by itself, too, unless it waits for a server.
            drop(child.kill());
        }
    }
}

impl Lane {
    fn begin(&mut self, question: Question, now: u64) {
        let Question { thing, is_there, line, patience } = question;
        (self.thing, self.is_there) = (thing, is_there);
        self.out = line;
        self.heard.clear();
        self.deadline = now.saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
    }

    /// All that it was asked for.
    fn things(&self) -> Vec<u32> {
        let waiting = self.waiting.iter().map(|question| question.thing);
        std::iter::once(self.thing).chain(waiting).collect()
    }

    fn poll(&mut self, context: &mut Context<'_>, now: u64) -> Poll<Heard> {
        let stream = &self.process.stream;
        while !self.out.is_empty() && stream.poll_write_ready(context).is_ready() {
            match stream.try_write(&self.out) {
                Ok(length) => drop(self.out.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(Heard::Nothing(self.things())),
            }
        }
        let mut chunk = [0; CHUNK];
        loop {
            if stream.poll_read_ready(context).is_pending() {
                return Poll::Pending;
            }
            match stream.try_read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => return Poll::Ready(Heard::Nothing(self.things())),
                Ok(length) => self.heard.extend_from_slice(&chunk[..length]),
            }
            if self.heard.last() == Some(&b'\n') {
                break;
            }
            if self.heard.len() > LONGEST {
                return Poll::Ready(Heard::Nothing(self.things()));
            }
        }
        let Ok(answer) = serde_json::from_slice(&self.heard) else {
            return Poll::Ready(Heard::Nothing(self.things()));
        };
        let (thing, is_there) = (self.thing, self.is_there);
        match self.waiting.pop_front() {
            Some(question) => self.begin(question, now),
            None => self.deadline = u64::MAX,
        }
        Poll::Ready(Heard::Answer(thing, answer, is_there))
    }
}

impl Agent {
    /// Has a process look at a thing that this one may not touch.
    pub(super) fn ask_worker(&mut self, id: u32, served: Served) {
        let expectation = &self.desired.expectations[id as usize];
        let is_there = self.looker.observer.is_served(&expectation.thing.path());
        if !self.workers.ask(served, id, expectation, is_there) {
            self.hangs(id);
        }
    }

    /// Something was heard of those processes.
    pub(super) async fn heard_of_worker(
        &mut self,
        heard: Heard,
        changes: &mut Changes,
    ) -> anyhow::Result<()> {
        match heard {
            Heard::Answer(id, answer, was_there) => {
                let observer = &self.looker.observer;
                let path = self.desired.expectations[id as usize].thing.path();
                if was_there && observer.is_served(&path) {
                    // The look itself may have mounted something there (autofs).
                    observer.mounts_changed();
                }
                if was_there && !observer.is_served(&path) {
                    // What was seen lies on no such file system: it is looked at by this process.
                    let now = self.clock.boot_ns();
                    let told = self.detector.unanswered(id, now, now);
                    self.tell(told, None);
                    return Ok(());
                }
                let sight = self.looker.heard(id, &self.desired, *answer).await?;
                self.looked(id, sight, changes)
            }
            Heard::Nothing(things) => {
                for id in things {
                    self.hangs(id);
                }
                Ok(())
            }
        }
    }

    /// What was not answered in time is not known.
    pub(super) fn follow_workers(&mut self) {
        for id in self.workers.overdue() {
            self.hangs(id);
        }
    }

    /// A thing cannot be looked at: how it stands is not known until it can.
    fn hangs(&mut self, id: u32) {
        let now = self.clock.boot_ns();
        if !self.hung.contains_key(&id) {
            let path = self.name(id).path;
            tracing::warn!(path, "Its file system does not answer; how it stands is not known.");
            let mut told = Vec::new();
            let mut own = None;
            if self.hung.len() < GAPS_AT_ONCE {
                let gap = self.detector.open_blindness(Scope::Thing(id), HANGS, now);
                own = Some(gap.number);
                told.push(Report::GapOpened(gap));
            } else {
                told = self.detector.vouch(id, Some(HANGS), now);
            }
            self.hung.insert(id, own);
            self.tell(told, None);
        }
        let told = self.detector.unanswered(id, now, now.saturating_add(RETRY_NS));
        self.tell(told, None);
    }

    /// A thing was looked at: it does not hang, or not any more.
    pub(super) fn answers(&mut self, id: u32) {
        if let Some(Some(gap)) = self.hung.remove(&id) {
            let told = self.detector.end_blindness(gap, self.clock.boot_ns());
            self.tell(told, None);
        }
    }
}
