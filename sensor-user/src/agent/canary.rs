//! Whether changes arrive: the daemon changes a file of its own, and the record of that change has to come back.
//!
//! In: the maps, the ring (through the count of canary records drained), `ftrace_enabled`. Out: alive, or blind and why. It
//! exercises the whole chain: hook, map, ring, decoder.

use super::reasons;
use super::registry::FIRST_OWN;
use super::verifier::Witness;
use crate::kernel::maps::MapsError;
use crate::observation::Observer;
use sensor_common::map::{DEVICES_KEY, InodeKey, MOUNTS_KEY, Managed, OBSERVED_WRITERS, SWITCH_KEY};
use sensor_common::op::{ROLE_FILE, ROLE_MOUNTS, ROLE_TAMPER};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The canary's number.
pub const CANARY_ID: u32 = FIRST_OWN;
/// The mount table's number.
pub const MOUNTS_ID: u32 = FIRST_OWN + 1;
/// The first of the watched tunables.
pub const TAMPER_ID: u32 = FIRST_OWN + 2;
/// The number of all block devices together, far from those that earlier programs gave to each.
pub const DEVICES_ID: u32 = FIRST_OWN * 2 - 1;

/// What switches the kernel's function tracing, and with it the programs, off.
pub const FTRACE_ENABLED: &str = "/proc/sys/kernel/ftrace_enabled";

/// The daemon's own watched objects.
#[derive(Debug)]
pub struct Canary {
    path: PathBuf,
    key: Option<InodeKey>,
    expected: u64,
    /// Canary records drained since the last tick.
    is_received: bool,
    last_write: LastWrite,
    unanswered: UnansweredBeats,
    /// Kept open so that the inodes, and so their numbers, stay: procfs makes new ones otherwise.
    held: Vec<File>,
    tamper: Vec<PathBuf>,
    /// The tunable among them, where this kernel has it.
    switch: Option<InodeKey>,
    /// Its counter when it was last looked at.
    switch_counter: Option<u64>,
    /// No change ever arrived, since the programs cannot run for now.
    began_blind: bool,
}

/// Beats without an answer after which another backend is looked for.
const MOST_UNANSWERED: u32 = 3;

/// Beats in a row at which the file was changed and the programs did not answer.
#[derive(Debug, Default)]
struct UnansweredBeats(u32);

impl UnansweredBeats {
    fn beat(&mut self, is_unanswered: bool) {
        self.0 = if is_unanswered { self.0.saturating_add(1) } else { 0 };
    }

    fn is_for_good(&self) -> bool {
        self.0 >= MOST_UNANSWERED
    }
}

/// Its record comes through the ring that no flood of changes can fill.
const ROLES: u32 = ROLE_FILE | ROLE_TAMPER;

/// How the last beat went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastWrite {
    /// The file could not be changed.
    NotWritten,
    /// The programs did not answer the daemon's look at the file. Only the set that the daemon asks answers; a change is
    /// counted by any set that is attached to the same maps.
    NotAnswered,
    /// They did, and the file was changed.
    Answered,
}

/// What a tick found.
#[derive(Debug, PartialEq, Eq)]
pub enum CanaryState {
    /// The last change came back.
    Alive,
    /// It was counted, and its record did not arrive: the ring had no room.
    RecordLost,
    /// It did not, and why that may be.
    Blind(&'static str),
}

impl Canary {
    /// Makes the file, in the first of the `directories` that can be written to, and enrols it, the mount table, the block
    /// devices and the tunable.
    pub fn new(directories: &[&Path], observer: &Observer, witness: &mut Witness) -> Result<Self, MapsError> {
        let mut canary = Self {
            path: choose_path(directories),
            key: None,
            expected: 0,
            is_received: false,
            last_write: LastWrite::NotWritten,
            unanswered: UnansweredBeats::default(),
            held: Vec::new(),
            tamper: Vec::new(),
            switch: None,
            switch_counter: None,
            began_blind: false,
        };
        witness.maps().enrol(MOUNTS_KEY, MOUNTS_ID, ROLE_MOUNTS)?;
        witness.maps().enrol(DEVICES_KEY, DEVICES_ID, ROLE_TAMPER)?;
        canary.key = observer.open(&canary.path).ok().and_then(|_| witness.identity());
        if let Some(key) = canary.key {
            witness.maps().enrol(key, CANARY_ID, ROLES)?;
        }
        canary.watch_tamper(observer, witness)?;
        Ok(canary)
    }

    /// The programs do not run yet: nothing that was opened has a name in the maps.
    pub fn begins_blind(&mut self) {
        self.began_blind = true;
    }

    /// Whether no change ever arrived.
    pub fn is_blind(&self) -> bool {
        self.began_blind
    }

    /// Whether the programs began to run only now; asked when a change arrived. `true` once.
    pub fn begins_to_see(&mut self, observer: &Observer, witness: &mut Witness) -> Result<bool, MapsError> {
        if !std::mem::take(&mut self.began_blind) {
            return Ok(false);
        }
        self.watch_tamper(observer, witness)?;
        Ok(true)
    }

    /// Tunables whose opening for writing could blind the sensor.
    fn watch_tamper(&mut self, observer: &Observer, witness: &mut Witness) -> Result<(), MapsError> {
        let tunable = PathBuf::from(FTRACE_ENABLED);
        let Ok(file) = File::open(&tunable) else { return Ok(()) };
        let number = TAMPER_ID + u32::try_from(self.tamper.len()).unwrap_or(0);
        witness.maps().enrol(SWITCH_KEY, number, ROLE_TAMPER)?;
        let (looked, key) = look_at(SWITCH_KEY, observer, witness);
        let key = if looked.is_some() {
            SWITCH_KEY
        } else if let Some(key) = key {
            // Without the program on sysctls, the instance of procfs at /proc has to do.
            self.held.push(file);
            witness.maps().enrol(key, number, ROLE_TAMPER)?;
            key
        } else {
            return Ok(());
        };
        self.tamper.push(tunable);
        self.switch = Some(key);
        Ok(())
    }

    /// The tunable of a number.
    pub fn tampered(&self, id: u32) -> Option<&Path> {
        self.tamper.get(id.checked_sub(TAMPER_ID)? as usize).map(PathBuf::as_path)
    }

    /// Whether a number is that of the tunable that switches the programs off.
    pub fn is_switch(&self, id: u32) -> bool {
        self.switch.is_some() && id == TAMPER_ID
    }

    /// Whether no process can have switched the programs off since the last call, nor can without a record: no process has
    /// opened the tunable for writing since, or has it open. The programs see this look, so they run at the very moment at
    /// which they count the writers.
    pub fn is_out_of_reach(&mut self, observer: &Observer, witness: &mut Witness) -> bool {
        let Some(key) = self.switch else { return true };
        let (Some(entry), _) = look_at(key, observer, witness) else { return false };
        let before = self.switch_counter.replace(entry.observed_counter);
        entry.observed & OBSERVED_WRITERS == 0 && before.is_none_or(|before| before == entry.observed_counter)
    }

    /// A canary record came through the ring.
    pub fn received(&mut self) {
        self.is_received = true;
    }

    /// Changes the file. After the ring was drained, [`Canary::check`] finds whether the change arrived.
    pub fn write(&mut self, observer: &Observer, witness: &mut Witness) {
        self.is_received = false;
        // The marked open takes the dirty bit away, so that the change pushes a record.
        let identified = observer.open(&self.path).ok().and_then(|_| witness.identity());
        let answered = if identified.is_some() { LastWrite::Answered } else { LastWrite::NotAnswered };
        if identified.is_some() && identified != self.key {
            self.key = identified;
            if let Some(key) = self.key
                && let Err(error) = witness.maps().enrol(key, CANARY_ID, ROLES)
            {
                tracing::warn!(%error, "Cannot enrol the canary.");
            }
        }
        self.expected = self.counter(witness).unwrap_or(0);
        let write = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path);
        let written = write.and_then(|mut file| file.write_all(b"1"));
        self.last_write = if written.is_ok() { answered } else { LastWrite::NotWritten };
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "Cannot write the canary file.");
        }
    }

    fn counter(&self, witness: &mut Witness) -> Option<u64> {
        Some(witness.maps().entry(self.key?).ok()??.counter)
    }

    /// Whether the change was counted and its record came.
    pub fn check(&mut self, witness: &mut Witness) -> CanaryState {
        if fs::read_to_string(FTRACE_ENABLED).is_ok_and(|text| text.trim() == "0") {
            self.unanswered.beat(false);
            return CanaryState::Blind(reasons::FTRACE_DISABLED);
        }
        let (state, is_unanswered) =
            state_after(self.last_write, self.counter(witness), self.expected, self.is_received);
        self.unanswered.beat(is_unanswered);
        state
    }

    /// Whether the backend stopped answering for good. A beat or two may fall on a moment at which the file was replaced.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.is_for_good()
    }
}

/// How a beat went: by the canary's counter in the map, what it was before, and whether the record came. And whether the
/// programs did not answer, though there was something to answer.
fn state_after(
    last_write: LastWrite,
    counter: Option<u64>,
    before: u64,
    is_received: bool,
) -> (CanaryState, bool) {
    match counter {
        None => (CanaryState::Blind(reasons::CANARY_NOT_ENROLLED), false),
        Some(_) if last_write == LastWrite::NotWritten => {
            (CanaryState::Blind(reasons::CANARY_NOT_WRITTEN), false)
        }
        Some(counter) if counter <= before || last_write == LastWrite::NotAnswered => {
            (CanaryState::Blind(reasons::CANARY_NOT_SEEN), true)
        }
        Some(_) if !is_received => (CanaryState::RecordLost, false),
        Some(_) => (CanaryState::Alive, false),
    }
}

/// Looks at the tunable that switches the programs off. Gives its entry if the programs saw the look and noted it there, and
/// the inode that was opened.
fn look_at(key: InodeKey, observer: &Observer, witness: &mut Witness) -> (Option<Managed>, Option<InodeKey>) {
    let entry = |witness: &mut Witness| witness.maps().entry(key).ok().flatten();
    let before = entry(witness).map(|entry| entry.observed_sequence);
    let opened = observer.open(Path::new(FTRACE_ENABLED)).ok().and_then(|_| witness.identity());
    let seen = entry(witness).filter(|entry| Some(entry.observed_sequence) != before);
    (seen, opened)
}

/// Where the canary lives.
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
    fn the_canary_lives_where_it_can_be_written() {
        let run = tempfile::tempdir().unwrap();
        let state = run.path().join("missing");
        assert_eq!(choose_path(&[&state, run.path()]), run.path().join("canary"));
        assert!(run.path().join("canary").exists());
    }

    #[test]
    fn where_nothing_can_be_written_the_first_place_is_named() {
        assert_eq!(
            choose_path(&[Path::new("/missing/a"), Path::new("/missing/b")]),
            Path::new("/missing/a/canary")
        );
    }

    #[test]
    fn only_a_beat_without_an_answer_counts_as_silence_and_three_in_a_row_end_the_backend() {
        let is_unanswered =
            |last_write, counter, is_received| state_after(last_write, counter, 7, is_received).1;
        assert!(
            is_unanswered(LastWrite::NotAnswered, Some(8), true),
            "another set of programs counted the change"
        );
        assert!(is_unanswered(LastWrite::Answered, Some(7), false), "nobody counted the change");
        assert!(!is_unanswered(LastWrite::Answered, Some(8), false), "its record was crowded out");
        assert!(!is_unanswered(LastWrite::NotWritten, Some(7), false), "there was nothing to answer");
        assert!(!is_unanswered(LastWrite::NotAnswered, None, false), "its entry is gone");
        assert_eq!(state_after(LastWrite::Answered, Some(8), 7, true), (CanaryState::Alive, false));

        let mut unanswered = UnansweredBeats::default();
        for (is_unanswered, is_for_good) in [
            (true, false),
            (true, false),
            (false, false),
            (true, false),
            (true, false),
            (true, true),
            (false, false),
        ] {
            unanswered.beat(is_unanswered);
            assert_eq!(unanswered.is_for_good(), is_for_good);
        }
    }
}
