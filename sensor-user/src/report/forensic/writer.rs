//! Writing the log from another thread, so that the loop does not wait for the disk.
//!
//! In: groups of records. Out: the same records in the same order, one write at a time. Records that arrive during a write are
//! the next group. If too many records wait for a slow disk, [`LogWriter::is_full`] tells the caller to wait. After a failed write
//! the writer repeats the attempt by itself.

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

/// Records that may wait for a write under way; a burst of changes fits. A record also counts once for each difference.
const QUEUE: usize = 8192;

/// The approximate number of bytes that they may take.
const QUEUE_BYTES: usize = 4 << 20;

/// The approximate size in memory of an actor with its ancestors. Users choose the length of these strings.
fn memory_of(actor: &Actor) -> usize {
    let text = |text: &String| size_of::<String>() + text.len();
    let ancestors = actor.ancestors.iter().map(memory_of).sum::<usize>();
    size_of::<Actor>() + actor.argv.iter().chain(&actor.exe).map(text).sum::<usize>() + ancestors
}

/// Which thread has the log.
#[derive(Debug)]
enum WriterState {
    /// This one; nothing is written.
    Idle(Box<ForensicLog>),
    /// The one that writes.
    Busy(JoinHandle<Box<ForensicLog>>),
    /// Neither, while the state changes.
    Between,
}

/// Writes a log from another thread.
#[derive(Debug)]
pub struct LogWriter {
    state: WriterState,
    queue: Vec<Record>,
    /// The sum of what they count for [`QUEUE`].
    weight: usize,
    /// Their approximate size.
    bytes: usize,
    degraded: Option<String>,
    /// When to write without a new record: after a failed write, or for a checkpoint.
    again: Instant,
    /// A timer for `again`.
    pause: Option<Pin<Box<Sleep>>>,
}

impl LogWriter {
    /// Takes over an open log.
    pub fn new(log: ForensicLog) -> Self {
        let mut writer = Self {
            state: WriterState::Between,
            queue: Vec::new(),
            weight: 0,
            bytes: 0,
            degraded: None,
            again: Instant::now(),
            pause: None,
        };
        writer.idle(Box::new(log));
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

    /// Why the last attempt to write the log failed.
    pub fn degraded(&self) -> Option<&str> {
        self.degraded.as_deref()
    }

    /// Whether a write is in progress.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, WriterState::Busy(_))
    }

    /// Whether so many records wait that the caller should await [`LogWriter::progress`] before it appends more.
    pub fn is_full(&self) -> bool {
        self.weight >= QUEUE || self.bytes >= QUEUE_BYTES
    }

    /// Waits until a write has ended, or until the next attempt is due. Then it writes the records that wait. It may be dropped at
    /// any point.
    ///
    /// # Errors
    /// The thread that writes has panicked.
    pub async fn progress(&mut self) -> Result<(), JoinError> {
        poll_fn(|context| self.poll_progress(context)).await
    }

    /// [`LogWriter::progress`] as a poll.
    pub fn poll_progress(&mut self, context: &mut Context<'_>) -> Poll<Result<(), JoinError>> {
        match &mut self.state {
            WriterState::Busy(write) => {
                let log = ready!(Pin::new(write).poll(context))?;
                self.idle(log);
                if !self.queue.is_empty() {
                    self.start();
                }
            }
            WriterState::Idle(_) => {
                let again = self.again;
                let pause = self.pause.get_or_insert_with(|| Box::pin(sleep_until(again)));
                if pause.deadline() != again {
                    pause.as_mut().reset(again);
                }
                ready!(pause.as_mut().poll(context));
                self.start();
            }
            WriterState::Between => return Poll::Pending,
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the records that wait, and gives the log back. Records that the disk refuses stay in the log for the next writer.
    pub async fn finish(mut self) -> Result<ForensicLog, JoinError> {
        self.start();
        loop {
            match std::mem::replace(&mut self.state, WriterState::Between) {
                WriterState::Busy(write) => self.idle(write.await?),
                WriterState::Idle(log) if self.queue.is_empty() => return Ok(*log),
                other => {
                    self.state = other;
                    self.start();
                }
            }
        }
    }

    fn idle(&mut self, log: Box<ForensicLog>) {
        self.degraded = log.degraded().map(str::to_owned);
        let pause = log.retry_in().unwrap_or_else(|| log.upkeep_in());
        // A pause of zero would make a busy loop.
        self.again = Instant::now() + pause.max(Duration::from_millis(10));
        self.state = WriterState::Idle(log);
    }

    fn start(&mut self) {
        match std::mem::replace(&mut self.state, WriterState::Between) {
            WriterState::Idle(mut log) => {
                let group = std::mem::take(&mut self.queue);
                (self.weight, self.bytes) = (0, 0);
                self.state = WriterState::Busy(spawn_blocking(move || {
                    log.append(&group);
                    log
                }));
            }
            other => self.state = other,
        }
    }
}
