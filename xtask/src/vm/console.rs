//! Watching a running guest.
//!
//! In: the console and the message port, byte by byte. Out: the messages, and how the guest ended. A log keeps every line,
//! without the escape codes of the firmware. The watch ends if a guest prints nothing for too long, or takes too long in all.
//! The caller then ends the emulator.

use std::fs::File;
use std::io::Write as _;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::Result;
use vm_tests::protocol::{Ending, Message, ResultLine};

use super::machine::Emulator;
use super::stalled;

/// How a guest ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GuestEnd {
    /// It reported the end of its scenario, and powered off.
    Done,
    /// Its kernel panicked; the line with the panic.
    Panic(String),
    /// It ended before its scenario did.
    Died,
    /// It printed nothing in this number of seconds.
    Silent(u64),
    /// It had not ended after this number of seconds.
    TooLong(u64),
    /// Its program runs and waits for a scenario, and the watch ends here by request.
    Ready,
}

/// What a guest reported.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Its results, in order.
    pub(crate) results: Vec<ResultLine>,
    /// The release of its kernel, once its program ran.
    pub(crate) release: Option<String>,
    /// The scenario began, after the first boot at least.
    pub(crate) begun: bool,
    /// A kernel has begun to boot, for the first time or again, and the scenario has not begun since.
    pub(crate) booting: bool,
    /// How it ended.
    pub(crate) end: GuestEnd,
    /// It was not done, and the emulator had left a processor asleep for which an interrupt waited.
    pub(crate) stalled: bool,
    /// Processor time of the emulator.
    pub(crate) cpu: Duration,
}

/// The two limits of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Longest time without a line.
    pub(crate) silence: Duration,
    /// Longest time in all.
    pub(crate) total: Duration,
}

/// Where lines go beside the results, and what limits a watch.
#[derive(Debug)]
pub(crate) struct ConsoleWatch<'a> {
    /// When the watch ends.
    pub(crate) limits: Limits,
    /// Gets every line.
    pub(crate) log: &'a mut File,
    /// The name under which each line is repeated on standard error.
    pub(crate) mirror: Option<&'a str>,
    /// Gets the scenario's notes as they come.
    pub(crate) narrate: Option<fn(&str)>,
}

/// Follows a guest to its end. `hello` is called when the guest's program starts, after each boot, and returns whether the
/// watch continues. A guest that runs already has a `release`.
pub(super) fn watch(
    machine: &mut Emulator,
    watch: ConsoleWatch<'_>,
    release: Option<String>,
    hello: &mut dyn FnMut(&mut Emulator) -> Result<bool>,
) -> Result<Seen> {
    let ConsoleWatch { limits, log, mirror, narrate } = watch;
    let start = Instant::now();
    let mut seen = Seen {
        results: Vec::new(),
        release,
        begun: false,
        booting: true,
        end: GuestEnd::Died,
        stalled: false,
        cpu: Duration::ZERO,
    };
    loop {
        let left = limits.total.saturating_sub(start.elapsed());
        let line = match machine.lines.recv_timeout(left.min(limits.silence)) {
            Ok(line) => line,
            // Both streams are closed: the emulator ended.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                seen.end = if start.elapsed() >= limits.total {
                    GuestEnd::TooLong(limits.total.as_secs())
                } else {
                    GuestEnd::Silent(limits.silence.as_secs())
                };
                break;
            }
        };
        writeln!(log, "{:8.3} {line}", start.elapsed().as_secs_f64())?;
        if let Some(name) = mirror {
            eprintln!("{name} | {line}");
        }
        match Message::from_line(&line) {
            Some(Message::Hello { release }) => {
                seen.release = Some(release);
                if !hello(machine)? {
                    seen.end = GuestEnd::Ready;
                    return Ok(seen);
                }
            }
            Some(Message::Begun) => {
                seen.begun = true;
                seen.booting = false;
            }
            Some(Message::Result(result)) => seen.results.push(result),
            Some(Message::Done) if seen.end == GuestEnd::Died => seen.end = GuestEnd::Done,
            None if is_panic(&line) => seen.end = GuestEnd::Panic(line),
            None if line.contains("] Linux version ") => seen.booting = true,
            Some(Message::Note { text }) => narrate.into_iter().for_each(|tell| tell(&text)),
            Some(_) | None => {}
        }
    }
    if matches!(seen.end, GuestEnd::Silent(_) | GuestEnd::TooLong(_)) {
        seen.stalled = look_at_processors(machine, log)?;
    }
    // The kernel keeps the numbers until the process is waited for.
    seen.cpu = cpu_time(machine.child.id());
    Ok(seen)
}

/// Writes the state of the emulated processors to the log. Gives whether one is stalled.
fn look_at_processors(machine: &mut Emulator, log: &mut File) -> Result<bool> {
    /// Longer than the emulator takes to wake a processor on a busy machine.
    const BETWEEN: Duration = Duration::from_secs(2);
    let look = |machine: &mut Emulator| machine.monitor()?.processors();
    let first = look(machine);
    let end = Instant::now() + BETWEEN;
    while let Ok(line) = machine.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
        writeln!(log, "{line}")?;
    }
    if Instant::now() < end {
        // The emulator ended meanwhile.
        return Ok(false);
    }
    let (first, second) = match (first, look(machine)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(error), _) | (_, Err(error)) => {
            writeln!(log, "the emulator does not show its processors: {error:#}")?;
            return Ok(false);
        }
    };
    for line in stalled::lines(&second) {
        writeln!(log, "{line}")?;
    }
    Ok(stalled::is_stalled(&first, &second))
}

impl Seen {
    /// Whether the guest starts once more: it never came up, or a later boot stopped before the scenario began again, or the emulator
    /// left a processor asleep. (With two CPUs it sometimes loses a wake-up.) A check that failed is never repeated.
    pub(crate) fn is_worth_another_try(&self) -> bool {
        let failed = self.results.iter().any(|result| result.ending == Ending::Fail);
        !failed && (!self.begun || self.stalled || (self.booting && matches!(self.end, GuestEnd::Silent(_))))
    }
}

/// Processor time that a process has used; nothing where it is gone.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ticks(&stat).map_or(Duration::ZERO, |ticks| Duration::from_millis(ticks * 10))
}

/// User and system time of a line of `/proc/PID/stat`, in hundredths of a second.
fn ticks(stat: &str) -> Option<u64> {
    // The name of the program, which may hold anything, ends with the last bracket; the times are fields 14 and 15.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Whether the kernel gives up with this line.
fn is_panic(line: &str) -> bool {
    line.contains("Kernel panic - not syncing") && !line.contains("end Kernel panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(begun: bool, booting: bool, end: GuestEnd) -> Seen {
        Seen { results: Vec::new(), release: None, begun, booting, end, stalled: false, cpu: Duration::ZERO }
    }

    #[test]
    fn a_guest_that_never_came_up_is_started_again_and_one_whose_scenario_began_is_not() {
        for end in [GuestEnd::Died, GuestEnd::Silent(120), GuestEnd::Panic("p".into())] {
            assert!(seen(false, true, end.clone()).is_worth_another_try(), "{end:?}");
            assert!(!seen(true, false, end.clone()).is_worth_another_try(), "{end:?}");
        }
    }

    #[test]
    fn a_guest_whose_emulator_stalled_is_started_again_and_one_that_takes_too_long_is_not() {
        let late = || seen(true, false, GuestEnd::TooLong(480));
        assert!(Seen { stalled: true, ..late() }.is_worth_another_try());
        assert!(!late().is_worth_another_try());
    }

    #[test]
    fn a_later_boot_that_stands_still_is_started_again_and_one_that_ends_is_not() {
        assert!(seen(true, true, GuestEnd::Silent(120)).is_worth_another_try());
        assert!(!seen(true, true, GuestEnd::Panic("p".into())).is_worth_another_try());
        assert!(!seen(true, true, GuestEnd::Died).is_worth_another_try());
    }

    #[test]
    fn a_check_that_failed_is_not_repeated_whatever_came_after_it() {
        let with = |ending| {
            let line = ResultLine {
                name: "check".into(),
                ending,
                detail: String::new(),
                data: serde_json::Value::Null,
            };
            Seen { results: vec![line], ..seen(true, true, GuestEnd::Silent(120)) }
        };
        assert!(with(Ending::Pass).is_worth_another_try());
        assert!(!with(Ending::Fail).is_worth_another_try());
    }

    #[test]
    fn processor_time_is_read_behind_a_name_with_spaces_and_brackets() {
        let stat = "7 (qemu) S 1 (x) S 2 3 4 5 6 7 8 9 10 11 250 50 0 0";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (qemu"), None);
    }

    #[test]
    fn only_the_first_line_of_a_panic_counts() {
        assert!(is_panic("[ 1.0] Kernel panic - not syncing: Attempted to kill init!"));
        assert!(!is_panic("[ 1.1] ---[ end Kernel panic - not syncing: Attempted to kill init! ]---"));
        assert!(!is_panic("panic=-1"));
    }
}
