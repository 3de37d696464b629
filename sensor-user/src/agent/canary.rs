//! Whether changes arrive: the daemon changes a file of its own, and the record of that change must arrive.
//!
//! In: the maps, the canary's records, `ftrace_enabled`. Out: alive, or blind with the reason. It owns the canary file and the
//! enrolment of the daemon's own watched objects. The test covers hook, map, ring and decoder.

use super::kernel_programs::KernelPrograms;
use super::registry::FIRST_OWN;
use crate::kernel::maps::MapsError;
use crate::observation::Observer;
use sensor_common::map::{DEVICES_KEY, FTRACE_ENABLED_KEY, InodeKey, MOUNTS_KEY, Managed, OBSERVED_WRITERS};
use sensor_common::op::{ROLE_FILE, ROLE_MOUNTS, ROLE_TAMPER};
use sensor_model::protocol::GapReason;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The canary's number.
pub const CANARY_ID: u32 = FIRST_OWN;
/// The mount table's number.
pub const MOUNTS_ID: u32 = FIRST_OWN + 1;
/// The first of the watched tunables.
pub const TAMPER_ID: u32 = FIRST_OWN + 2;
/// The number of all block devices together, far from the numbers that earlier programs gave each device.
pub const DEVICES_ID: u32 = FIRST_OWN * 2 - 1;

/// The tunable that switches the kernel's function tracing off, and with it the programs.
pub const FTRACE_ENABLED: &str = "/proc/sys/kernel/ftrace_enabled";

/// The daemon's own watched objects.
#[derive(Debug)]
pub struct Canary {
    /// Opens paths below the daemon's own root, which need not be the one of the host that it observes. `None`: nothing can be opened.
    observer: Option<Box<Observer>>,
    path: PathBuf,
    key: Option<InodeKey>,
    expected: u64,
    /// The record of the last write arrived.
    is_received: bool,
    last_write: LastWrite,
    unanswered: UnansweredWrites,
    /// Open files, so that their inodes and numbers stay: otherwise procfs creates new inodes.
    held: Vec<File>,
    tamper: Vec<PathBuf>,
    /// The key of the tunable that switches the programs off, if this kernel has it.
    switch: Option<InodeKey>,
    /// The counter of that tunable at the last check.
    switch_counter: Option<u64>,
    /// No change has arrived yet, because the programs cannot run for now.
    began_blind: bool,
}

/// Canary writes in a row without an answer, after which the daemon ends.
const MOST_UNANSWERED: u32 = 3;

/// The number of canary writes in a row without an answer of the programs.
#[derive(Debug, Default)]
struct UnansweredWrites(u32);

impl UnansweredWrites {
    fn count(&mut self, is_unanswered: bool) {
        self.0 = if is_unanswered { self.0.saturating_add(1) } else { 0 };
    }

    fn is_for_good(&self) -> bool {
        self.0 >= MOST_UNANSWERED
    }
}

/// The roles of the canary file. Its record uses the ring that no flood of changes can fill.
const ROLES: u32 = ROLE_FILE | ROLE_TAMPER;

/// The result of the last canary write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastWrite {
    /// The daemon could not change the file.
    NotWritten,
    /// The programs did not answer the daemon's observation of the file. Only the set that the daemon asks answers. Any set that
    /// is attached to the same maps counts a change.
    NotAnswered,
    /// The programs answered, and the daemon changed the file.
    Answered,
}

/// The result of a canary check.
#[derive(Debug, PartialEq, Eq)]
pub enum CanaryState {
    /// The record of the last change arrived.
    Alive,
    /// The programs counted the change, and its record did not arrive: the ring was full.
    RecordLost,
    /// Changes do not arrive, for this reason.
    Blind(GapReason),
}

impl Canary {
    /// Creates the file in the first of the `directories` that the daemon can write to. Enrols the file, the mount table, the
    /// block devices and the tunable.
    pub fn new(directories: &[&Path], kernel: &mut KernelPrograms) -> Result<Self, MapsError> {
        let observer = Observer::guarded(Path::new("/"));
        if let Err(error) = &observer {
            tracing::warn!(%error, "Cannot observe the canary file.");
        }
        let mut canary = Self {
            observer: observer.ok().map(Box::new),
            path: choose_path(directories),
            key: None,
            expected: 0,
            is_received: false,
            last_write: LastWrite::NotWritten,
            unanswered: UnansweredWrites::default(),
            held: Vec::new(),
            tamper: Vec::new(),
            switch: None,
            switch_counter: None,
            began_blind: false,
        };
        kernel.maps().enrol(MOUNTS_KEY, MOUNTS_ID, ROLE_MOUNTS)?;
        kernel.maps().enrol(DEVICES_KEY, DEVICES_ID, ROLE_TAMPER)?;
        canary.key = canary.identify(&canary.path, kernel);
        if let Some(key) = canary.key {
            kernel.maps().enrol(key, CANARY_ID, ROLES)?;
            // The file of an earlier daemon, in another directory or another root directory.
            let earlier = |(at, entry): &(InodeKey, Managed)| entry.id == CANARY_ID && *at != key;
            let stale: Vec<InodeKey> = kernel.maps.entries().filter(earlier).map(|(at, _)| at).collect();
            for at in stale {
                kernel.maps().remove(at)?;
            }
        }
        canary.watch_tamper(kernel)?;
        Ok(canary)
    }

    /// The programs do not run yet, so they identified none of the opened objects.
    pub fn set_began_blind(&mut self) {
        self.began_blind = true;
    }

    /// Whether the programs cannot run yet, so that no change has arrived.
    pub fn has_begun_blind(&self) -> bool {
        self.began_blind
    }

    /// Whether the programs began to run only now. The caller asks when a change arrived. `true` once.
    pub fn take_programs_began(&mut self, kernel: &mut KernelPrograms) -> Result<bool, MapsError> {
        if !std::mem::take(&mut self.began_blind) {
            return Ok(false);
        }
        self.watch_tamper(kernel)?;
        Ok(true)
    }

    /// Enrols the tunable that a process could open for writing to blind the sensor.
    fn watch_tamper(&mut self, kernel: &mut KernelPrograms) -> Result<(), MapsError> {
        let tunable = PathBuf::from(FTRACE_ENABLED);
        let Ok(file) = File::open(&tunable) else { return Ok(()) };
        let number = TAMPER_ID + u32::try_from(self.tamper.len()).unwrap_or(0);
        kernel.maps().enrol(FTRACE_ENABLED_KEY, number, ROLE_TAMPER)?;
        let (seen, key) = self.observe_tunable(FTRACE_ENABLED_KEY, kernel);
        let key = if seen.is_some() {
            FTRACE_ENABLED_KEY
        } else if let Some(key) = key {
            // Without the program on sysctls, only opens through the procfs at /proc are seen.
            self.held.push(file);
            kernel.maps().enrol(key, number, ROLE_TAMPER)?;
            key
        } else {
            return Ok(());
        };
        self.tamper.push(tunable);
        self.switch = Some(key);
        Ok(())
    }

    /// The path of the tunable with this number.
    pub fn tampered(&self, number: u32) -> Option<&Path> {
        self.tamper.get(number.checked_sub(TAMPER_ID)? as usize).map(PathBuf::as_path)
    }

    /// Whether a number belongs to the tunable that switches the programs off.
    pub fn is_switch(&self, number: u32) -> bool {
        self.switch.is_some() && number == TAMPER_ID
    }

    /// Whether no process has the tunable open for writing, and none opened it since the last call. So no process could switch
    /// the programs off unseen. The programs see this observation, so they run at the moment at which they count the writers.
    pub fn has_no_switch_writer(&mut self, kernel: &mut KernelPrograms) -> bool {
        let Some(key) = self.switch else { return true };
        let (Some(entry), _) = self.observe_tunable(key, kernel) else { return false };
        let before = self.switch_counter.replace(entry.observed_counter);
        entry.observed & OBSERVED_WRITERS == 0 && before.is_none_or(|before| before == entry.observed_counter)
    }

    /// A canary record arrived.
    pub fn received(&mut self) {
        self.is_received = true;
    }

    /// Changes the file. The caller drains the ring, and [`Canary::check`] then finds whether the change arrived.
    pub fn write(&mut self, kernel: &mut KernelPrograms) {
        self.is_received = false;
        // The open for observation clears the dirty bit, so that the change sends a record.
        let identified = self.identify(&self.path, kernel);
        let answered = if identified.is_some() { LastWrite::Answered } else { LastWrite::NotAnswered };
        if identified.is_some() && identified != self.key {
            self.key = identified;
            if let Some(key) = self.key
                && let Err(error) = kernel.maps().enrol(key, CANARY_ID, ROLES)
            {
                tracing::warn!(%error, "Cannot enrol the canary.");
            }
        }
        self.expected = self.counter(kernel).unwrap_or(0);
        let write = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path);
        let written = write.and_then(|mut file| file.write_all(b"1"));
        self.last_write = if written.is_ok() { answered } else { LastWrite::NotWritten };
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "Cannot write the canary file.");
        }
    }

    /// The inode at a path, if the programs answer this observation of it.
    fn identify(&self, path: &Path, kernel: &mut KernelPrograms) -> Option<InodeKey> {
        self.observer.as_ref()?.open(path).ok()?;
        kernel.identity()
    }

    /// Opens the tunable that switches the programs off. Gives its entry if the programs saw this observation and noted it there,
    /// and the inode of the open.
    fn observe_tunable(
        &self,
        key: InodeKey,
        kernel: &mut KernelPrograms,
    ) -> (Option<Managed>, Option<InodeKey>) {
        let entry = |kernel: &mut KernelPrograms| kernel.maps().entry(key).ok().flatten();
        let before = entry(kernel).map(|entry| entry.observed_sequence);
        let opened = self.identify(Path::new(FTRACE_ENABLED), kernel);
        let seen = entry(kernel).filter(|entry| Some(entry.observed_sequence) != before);
        (seen, opened)
    }

    fn counter(&self, kernel: &mut KernelPrograms) -> Option<u64> {
        Some(kernel.maps().entry(self.key?).ok()??.counter)
    }

    /// Whether the programs counted the change and its record arrived.
    pub fn check(&mut self, kernel: &mut KernelPrograms) -> CanaryState {
        if fs::read_to_string(FTRACE_ENABLED).is_ok_and(|text| text.trim() == "0") {
            self.unanswered.count(false);
            return CanaryState::Blind(GapReason::FtraceDisabled);
        }
        let (state, is_unanswered) =
            state_after(self.last_write, self.counter(kernel), self.expected, self.is_received);
        self.unanswered.count(is_unanswered);
        state
    }

    /// Whether the backend no longer answers. One or two writes may meet a moment at which another process replaced the file.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.is_for_good()
    }
}

/// The state after a canary write, from the canary's counter in the map, the counter before, and whether the record arrived.
/// The second value: the programs did not answer, though they had something to answer.
fn state_after(
    last_write: LastWrite,
    counter: Option<u64>,
    before: u64,
    is_received: bool,
) -> (CanaryState, bool) {
    match counter {
        None => (CanaryState::Blind(GapReason::CanaryNotEnrolled), false),
        Some(_) if last_write == LastWrite::NotWritten => {
            (CanaryState::Blind(GapReason::CanaryNotWritten), false)
        }
        Some(counter) if counter <= before || last_write == LastWrite::NotAnswered => {
            (CanaryState::Blind(GapReason::CanaryNotSeen), true)
        }
        Some(_) if !is_received => (CanaryState::RecordLost, false),
        Some(_) => (CanaryState::Alive, false),
    }
}

/// Chooses the path of the canary file.
fn choose_path(directories: &[&Path]) -> PathBuf {
    let mut paths = directories.iter().map(|directory| directory.join("canary"));
    let mut first = None;
    for path in paths.by_ref() {
        match fs::write(&path, b"0") {
            Ok(()) => return path,
            Err(error) => tracing::warn!(path = %path.display(), %error, "Cannot make the canary file."),
        }
        first.get_or_insert(path);
    }
    first.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canary_file_is_in_the_first_directory_that_is_writable() {
        let run = tempfile::tempdir().unwrap();
        let state = run.path().join("missing");
        assert_eq!(choose_path(&[&state, run.path()]), run.path().join("canary"));
        assert!(run.path().join("canary").exists());
    }

    #[test]
    fn without_a_writable_directory_the_path_is_in_the_first_one() {
        assert_eq!(
            choose_path(&[Path::new("/missing/a"), Path::new("/missing/b")]),
            Path::new("/missing/a/canary")
        );
    }

    #[test]
    fn only_a_write_without_an_answer_counts_and_three_in_a_row_end_the_backend() {
        let is_unanswered =
            |last_write, counter, is_received| state_after(last_write, counter, 7, is_received).1;
        assert!(
            is_unanswered(LastWrite::NotAnswered, Some(8), true),
            "another set of programs counted the change"
        );
        assert!(is_unanswered(LastWrite::Answered, Some(7), false), "no set counted the change");
        assert!(!is_unanswered(LastWrite::Answered, Some(8), false), "its record found no room in the ring");
        assert!(!is_unanswered(LastWrite::NotWritten, Some(7), false), "there was nothing to answer");
        assert!(!is_unanswered(LastWrite::NotAnswered, None, false), "its entry is gone");
        assert_eq!(state_after(LastWrite::Answered, Some(8), 7, true), (CanaryState::Alive, false));

        let mut unanswered = UnansweredWrites::default();
        for (is_unanswered, is_for_good) in [
            (true, false),
            (true, false),
            (false, false),
            (true, false),
            (true, false),
            (true, true),
            (false, false),
        ] {
            unanswered.count(is_unanswered);
            assert_eq!(unanswered.is_for_good(), is_for_good);
        }
    }
}
