//! Signals that arrive during an apply.
//!
//! In: SIGINT, SIGTERM and SIGHUP. Out: whether the apply stops at its next safe point, from which the journal can continue.
//! Outside an apply each of them ends the process at once.

use sensor_model::journal::{JournalRecord, machine::MachineRequest};
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopRequest {
    /// SIGINT or SIGTERM: roll the apply back.
    Stop(&'static str),
    /// SIGHUP: the terminal or the connection ended, maybe by the apply's own change of the network.
    Unwatched,
}

impl StopRequest {
    /// Why an apply ends before its end.
    pub(super) fn reason(self) -> String {
        let signal = match self {
            Self::Stop(signal) => signal,
            Self::Unwatched => "SIGHUP",
        };
        format!("interrupted by {signal}")
    }
}

/// The signals that this process received.
#[derive(Debug, Clone, Default)]
pub struct Interrupts(Arc<Mutex<InterruptState>>);

#[derive(Debug, Default)]
struct InterruptState {
    under_way: bool,
    asked: Option<StopRequest>,
}

/// Marks an apply as in progress until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Interrupts);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state().under_way = false;
    }
}

impl Interrupts {
    /// Handles the signals from now on, in a thread. Lines for a person go to `say`.
    ///
    /// # Errors
    /// The thread or a handler cannot be made.
    pub fn heed(say: fn(&str)) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let taken = runtime.block_on(async { Taken::all() })?;
        let interrupts = Self::default();
        let theirs = interrupts.clone();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(theirs.follow(taken, say));
        })?;
        Ok(interrupts)
    }

    async fn follow(&self, mut taken: Taken, say: fn(&str)) {
        loop {
            let (asked, number) = taken.next().await;
            if !self.ask(asked) {
                // No apply is in progress: the process ends as a shell expects it for the signal.
                std::process::exit(128 + number);
            }
            say(&match asked {
                StopRequest::Stop(signal) => format!(
                    "{signal}: the apply stops at the next safe point: nothing is written, everything is restored, or it is done"
                ),
                StopRequest::Unwatched => {
                    "SIGHUP: an apply that has begun to write continues, another one ends".to_owned()
                }
            });
        }
    }

    /// Notes a signal; `false` where no apply is in progress.
    fn ask(&self, asked: StopRequest) -> bool {
        let mut state = self.state();
        if state.under_way && !matches!(state.asked, Some(StopRequest::Stop(_))) {
            state.asked = Some(asked);
        }
        state.under_way
    }

    /// No signal ends the process until the result is dropped.
    pub(super) fn begin(&self) -> UnderWay {
        self.state().under_way = true;
        UnderWay(self.clone())
    }

    /// Why no further apply may begin.
    pub fn reason(&self) -> Option<String> {
        self.state().asked.map(StopRequest::reason)
    }

    /// Why a request of the journal's machine is refused. The machine gets the refusal as a failure. So only requests are
    /// refused whose failure leaves nothing half done. With `must_observe`, observations are not refused. A rollback needs this. So
    /// do paths that Holdfast writes again after an update of the OS: a failed observation would roll the new OS back.
    pub(super) fn before(&self, request: &MachineRequest, must_observe: bool) -> Option<String> {
        let asked = self.state().asked?;
        let is_safe = match request {
            MachineRequest::Begin => true,
            _ if asked == StopRequest::Unwatched => false,
            MachineRequest::Observe(_) => !must_observe,
            MachineRequest::Append(record) => {
                matches!(
                    record,
                    JournalRecord::Written
                        | JournalRecord::Started { .. }
                        | JournalRecord::RebootRequested { .. }
                )
            }
            _ => false,
        };
        is_safe.then(|| asked.reason())
    }

    fn state(&self) -> MutexGuard<'_, InterruptState> {
        // A panic of another thread leaves the flags valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The signals, except those that the process was started to ignore: `nohup` ignores SIGHUP.
#[derive(Debug)]
struct Taken {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Taken {
    fn all() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let take = |kind: SignalKind| {
            let is_ignored = is_ignored(&status, kind.as_raw_value());
            if is_ignored { Ok(None) } else { signal(kind).map(Some) }
        };
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal and returns it with its number.
    async fn next(&mut self) -> (StopRequest, i32) {
        tokio::select! {
            () = comes(&mut self.interrupt) => (StopRequest::Stop("SIGINT"), SignalKind::interrupt().as_raw_value()),
            () = comes(&mut self.terminate) => (StopRequest::Stop("SIGTERM"), SignalKind::terminate().as_raw_value()),
            () = comes(&mut self.hangup) => (StopRequest::Unwatched, SignalKind::hangup().as_raw_value()),
        }
    }
}

async fn comes(signal: &mut Option<Signal>) {
    let received = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if received.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Whether a process ignores a signal, by its `/proc/PID/status`.
fn is_ignored(status: &str, number: i32) -> bool {
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    u32::try_from(number - 1).is_ok_and(|bit| mask.unwrap_or_default() >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_model::journal::Boot;

    #[test]
    fn a_signal_is_noted_only_during_an_apply_and_a_later_hangup_does_not_replace_a_stop() {
        let interrupts = Interrupts::default();
        assert!(!interrupts.ask(StopRequest::Stop("SIGTERM")));
        assert_eq!(interrupts.reason(), None);
        let under_way = interrupts.begin();
        assert!(interrupts.ask(StopRequest::Unwatched));
        assert_eq!(interrupts.reason().as_deref(), Some("interrupted by SIGHUP"));
        assert!(interrupts.ask(StopRequest::Stop("SIGINT")) && interrupts.ask(StopRequest::Unwatched));
        drop(under_way);
        assert!(!interrupts.ask(StopRequest::Stop("SIGTERM")));
        assert_eq!(interrupts.reason().as_deref(), Some("interrupted by SIGINT"), "for the next apply");
    }

    #[test]
    fn an_apply_that_has_written_outlives_its_terminal_and_no_rollback_is_interrupted() {
        let reboot = MachineRequest::Append(JournalRecord::RebootRequested { boot: Boot::default() });
        let back = MachineRequest::Append(JournalRecord::RollingBack { reason: String::new() });
        let requests = [
            MachineRequest::Begin,
            MachineRequest::Observe(0),
            MachineRequest::Append(JournalRecord::Written),
            reboot,
            MachineRequest::Act(0),
            MachineRequest::Verify,
            back,
        ];
        let refused = |asked, must_observe| {
            let interrupts = Interrupts::default();
            let _under_way = interrupts.begin();
            assert!(interrupts.ask(asked));
            requests
                .iter()
                .map(|request| interrupts.before(request, must_observe).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(refused(StopRequest::Unwatched, false), [true, false, false, false, false, false, false]);
        assert_eq!(
            refused(StopRequest::Stop("SIGINT"), false),
            [true, true, true, true, false, false, false]
        );
        assert!(!refused(StopRequest::Stop("SIGINT"), true)[1], "a rollback continues to its end");
        assert_eq!(Interrupts::default().before(&MachineRequest::Begin, false), None);
    }

    #[test]
    fn a_signal_that_the_process_was_started_to_ignore_stays_ignored() {
        let status = "Name:\tholdfast\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        let ignored: Vec<i32> = (1..=64).filter(|number| is_ignored(status, *number)).collect();
        assert_eq!(ignored, [1, 13]);
        assert!(!is_ignored("", 1) && !is_ignored("SigIgn: x", 1));
    }
}
