//! The log behind a loop that does not wait for the disk.
//!
//! In: groups of records. Out: the same in the same order, written by another thread, one write at a time;
//! what comes in while one is under way is the next group. When the disk is so slow that too much waits, it
//! says so, and the caller waits. It tries again by itself when a disk that refused is due for that.

use super::ForensicLog;
use sensor_model::record::{Actor, Record};
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{Instant, Sleep, sleep_until};

/// Records that may wait for a write under way; a burst of changes fits. One with many differences counts as so many.
const QUEUE: usize = 8192;

/// Bytes that they may take, about.
const QUEUE_BYTES: usize = 4 << 20;

/// About what an actor takes in memory with its ancestors: what users choose the length of.
fn memory_of(actor: &Actor) -> usize {
    let text = |text: &String| size_of::<String>() + text.len();
    let ancestors = actor.ancestors.iter().map(memory_of).sum::<usize>();
    size_of::<Actor>() + actor.argv.iter().chain(&actor.exe).map(text).sum::<usize>() + ancestors
}

/// Where the log is.
#[derive(Debug)]
enum State {
    Idle(Box<ForensicLog>),
    Busy(JoinHandle<Box<ForensicLog>>),
    /// Only while one becomes the other.
    Between,
}

/// Writes a log from another thread.
#[derive(Debug)]
pub struct Writer {
    state: State,
    queue: Vec<Record>,
    /// What they count as.
    weight: usize,
    /// What they take, about.
    bytes: usize,
    degraded: Option<String>,
    /// When to write again though nothing new came: a disk that refused, or a checkpoint.
    again: Instant,
    /// Waits for that.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Writer {
    /// Takes over an open log.
    pub fn new(log: ForensicLog) -> Self {
        let mut writer = Self {
            state: State::Between,
            queue: Vec::new(),
            weight: 0,
            bytes: 0,
            degraded: None,
            again: Instant::now(),
            pause: None,
        };
        writer.rest(Box::new(log));
        writer
    }

    /// Takes a group of records to be written soon.
    pub fn append(&mut self, group: impl IntoIterator<Item = Record>) {
        let (weight, bytes) = (&mut self.weight, &mut self.bytes);
        self.queue.extend(group.into_iter().inspect(|record| {
            *weight += 1 + record.differences.len();
            *bytes +=
                size_of::<Record>() + record.actor.iter().chain(&record.actors).map(memory_of).sum::<usize>();
        }));
        if !self.queue.is_empty() {
            self.start();
        }
    }

    /// Why the log could not be written when that was last tried.
    pub fn degraded(&self) -> Option<&str> {
        self.degraded.as_deref()
    }

    /// Whether so much waits that no more should be appended before [`Writer::progress`] was awaited.
    pub fn is_full(&self) -> bool {
        self.weight >= QUEUE || self.bytes >= QUEUE_BYTES
    }

    /// Waits until a write has ended, or until it is time to try again; then writes what waits. It may be dropped at any
    /// point.
    ///
    /// # Errors
    /// The thread that writes has panicked.
    pub async fn progress(&mut self) -> Result<(), JoinError> {
        poll_fn(|context| self.poll_progress(context)).await
    }

    /// [`Writer::progress`] as a poll.
    pub fn poll_progress(&mut self, context: &mut Context<'_>) -> Poll<Result<(), JoinError>> {
        match &mut self.state {
            State::Busy(write) => {
                let log = ready!(Pin::new(write).poll(context))?;
                self.rest(log);
                if !self.queue.is_empty() {
                    self.start();
                }
            }
            State::Idle(_) => {
                let again = self.again;
                let pause = self.pause.get_or_insert_with(|| Box::pin(sleep_until(again)));
                if pause.deadline() != again {
                    pause.as_mut().reset(again);
                }
                ready!(pause.as_mut().poll(context));
                self.start();
            }
            State::Between => return Poll::Pending,
        }
        Poll::Ready(Ok(()))
    }

    /// Hands what waits to the log, and gives that back: what a disk refuses waits in it for the next writer.
    pub async fn finish(mut self) -> Result<ForensicLog, JoinError> {
        self.start();
        loop {
            match std::mem::replace(&mut self.state, State::Between) {
                State::Busy(write) => self.rest(write.await?),
                State::Idle(log) if self.queue.is_empty() => return Ok(*log),
                other => {
                    self.state = other;
                    self.start();
                }
            }
        }
    }

    fn rest(&mut self, log: Box<ForensicLog>) {
        self.degraded = log.degraded().map(str::to_owned);
        let pause = log.retry_in().unwrap_or_else(|| log.upkeep_in());
        // Not at once again, whatever the log says: this would be a loop without a pause.
        self.again = Instant::now() + pause.max(Duration::from_millis(10));
        self.state = State::Idle(log);
    }

    fn start(&mut self) {
        match std::mem::replace(&mut self.state, State::Between) {
            State::Idle(mut log) => {
                let group = std::mem::take(&mut self.queue);
                (self.weight, self.bytes) = (0, 0);
                self.state = State::Busy(spawn_blocking(move || {
                    log.append(&group);
                    log
                }));
            }
            other => self.state = other,
        }
    }
}
