//! The scan of what the image has and the daemon does not watch: its progress, and its pace.
//!
//! In: the numbers of a round, and the processor time and bytes that were spent. Out: whether a round is due, its result, and how long to
//! pause. No file and no clock is read here.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

/// Most paths that a scan has watched. If more differ, the host is not what the index describes, and another path says nothing new.
pub const MOST_FINDINGS: usize = 256;
/// The shortest and the longest time from findings that are kept to the next ones, in seconds. Each time the daemon reads configs and
/// policies again, and verifies everything. The first ones of a round are kept at once; then the time doubles.
const KEEP_FINDINGS: [i64; 2] = [30, 15 * 60];
/// Shorter pauses are added up.
const SHORTEST: Duration = Duration::from_millis(20);

/// The progress of the scan, as it is kept between two processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanProgress {
    /// The round that has begun and not ended.
    pub round: Option<ScanRound>,
    /// The last round that ended.
    pub last: Option<EndedRound>,
}

/// A round that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRound {
    /// The digest of what is compared: indexes, rules. With other ones a round begins anew.
    pub of: String,
    /// When it began, in seconds since 1970.
    pub began: i64,
    /// The index in which it is, from 0, the strongest first.
    pub index: usize,
    /// The next record of that index.
    pub offset: u64,
    /// Paths of all indexes.
    pub paths: u64,
    /// Paths that it has passed.
    pub passed: u64,
    /// Paths that it has compared.
    pub compared: u64,
    /// Paths that could not be read.
    pub unreadable: u64,
    /// Files that were not read, because the kernel proves their content.
    #[serde(default)]
    pub sealed: u64,
    /// Paths that differ or cannot be read; at most [`MOST_FINDINGS`], and those that are watched already.
    pub differing: BTreeSet<String>,
    /// Paths that differ besides.
    pub more: u64,
    /// When findings were kept last, in seconds since 1970, and for how many seconds the next ones wait from then on.
    #[serde(default)]
    pub findings_kept: Option<(i64, i64)>,
}

/// A round that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedRound {
    /// The digest of what was compared.
    pub of: String,
    /// When it ended, in seconds since 1970.
    pub ended: i64,
    /// Paths that were compared.
    pub compared: u64,
    /// Paths that could not be read.
    pub unreadable: u64,
    /// Files that were not read, because the kernel proves their content.
    #[serde(default)]
    pub sealed: u64,
    /// Paths that differ.
    pub differing: u64,
}

impl ScanProgress {
    /// The round to go on with; `None` if none is due. `of`: the digest of what is compared now. `paths`: those of all indexes.
    pub fn due(&mut self, of: &str, paths: u64, now: i64, pause: Duration) -> Option<ScanRound> {
        if let Some(round) = self.round.take().filter(|round| round.of == of) {
            return Some(round);
        }
        let pause = i64::try_from(pause.as_secs()).unwrap_or(i64::MAX);
        let is_fresh = self.last.as_ref().is_some_and(|last| {
            // A clock that went back makes the last round too young for ever.
            last.of == of && last.ended <= now && now < last.ended.saturating_add(pause)
        });
        (!is_fresh).then(|| ScanRound {
            of: of.to_owned(),
            began: now,
            index: 0,
            offset: 0,
            paths,
            passed: 0,
            compared: 0,
            unreadable: 0,
            sealed: 0,
            differing: BTreeSet::new(),
            more: 0,
            findings_kept: None,
        })
    }

    /// The round ended.
    pub fn end(&mut self, round: &ScanRound, now: i64) {
        self.round = None;
        self.last = Some(EndedRound {
            of: round.of.clone(),
            ended: now,
            compared: round.compared,
            unreadable: round.unreadable,
            sealed: round.sealed,
            differing: round.found(),
        });
    }

    /// How much of the present round is done, from 0 to 1; `None` between two rounds.
    pub fn done(&self) -> Option<f64> {
        let round = self.round.as_ref()?;
        #[expect(clippy::cast_precision_loss, reason = "an index has at most two million paths")]
        let done = round.passed as f64 / round.paths.max(1) as f64;
        Some(done.min(1.0))
    }

    /// Paths that could not be read, by the present round and the last one.
    pub fn unreadable(&self) -> u64 {
        let now = self.round.as_ref().map_or(0, |round| round.unreadable);
        now.max(self.last.as_ref().map_or(0, |last| last.unreadable))
    }

    /// Files that were not read, because the kernel proves their content, by the present round and the last one.
    pub fn sealed(&self) -> u64 {
        let now = self.round.as_ref().map_or(0, |round| round.sealed);
        now.max(self.last.as_ref().map_or(0, |last| last.sealed))
    }

    /// Paths that differ, by the present round and the last one.
    pub fn differing(&self) -> u64 {
        let now = self.round.as_ref().map_or(0, ScanRound::found);
        now.max(self.last.as_ref().map_or(0, |last| last.differing))
    }
}

impl ScanRound {
    /// Notes a path that differs, or that cannot be read. One that is watched already has its place, so that its drift does not end while
    /// it differs.
    pub fn note(&mut self, path: &str, is_watched: bool) {
        if is_watched || self.differing.len() < MOST_FINDINGS {
            self.differing.insert(path.to_owned());
        } else {
            self.more += 1;
        }
    }

    /// The paths to watch while the round goes on: those that are watched already, and as many of the round as there is room for.
    pub fn watched(&self, already: &BTreeSet<String>) -> BTreeSet<String> {
        let room = MOST_FINDINGS.saturating_sub(already.len());
        already.iter().chain(self.differing.difference(already).take(room)).cloned().collect()
    }

    /// Whether new findings may be kept now. If so, the next ones have to wait.
    pub fn keeps_findings(&mut self, now: i64) -> bool {
        let [shortest, longest] = KEEP_FINDINGS;
        let next = match self.findings_kept {
            None => shortest,
            // The clock may have gone back.
            Some((at, pause)) if now < at || now >= at.saturating_add(pause) => (2 * pause).min(longest),
            Some(_) => return false,
        };
        self.findings_kept = Some((now, next));
        true
    }

    /// Ends with at most [`MOST_FINDINGS`] paths: first those that were watched before.
    pub fn bound(&mut self, before: &BTreeSet<String>) {
        let still: BTreeSet<String> =
            self.differing.intersection(before).take(MOST_FINDINGS).cloned().collect();
        let kept = self.watched(&still);
        self.more += (self.differing.len() - kept.len()) as u64;
        self.differing = kept;
    }

    /// The number of paths that differ.
    pub fn found(&self) -> u64 {
        self.differing.len() as u64 + self.more
    }
}

/// How fast a scan may go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScanPace {
    /// The share of one processor, more than 0 and at most 1.
    pub processor: f64,
    /// Bytes a second.
    pub bytes: f64,
}

/// What was spent since the last pause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanSpent {
    /// Processor time.
    pub processor: Duration,
    /// Bytes that were read.
    pub bytes: u64,
}

impl ScanPace {
    /// The same pace in a control group that may use so much of one processor.
    #[must_use]
    pub fn within(self, quota: Option<f64>) -> Self {
        let quota = quota.filter(|quota| *quota > 0.0).map_or(1.0, |quota| quota.min(1.0));
        Self { processor: self.processor * quota, ..self }
    }

    /// The pause that is due after something was spent in a time; `None` if none is due yet. Time without work is no credit: the caller
    /// measures from the last pause.
    pub fn pause(&self, spent: ScanSpent, elapsed: Duration) -> Option<Duration> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a file of 2^53 bytes is beyond every file system's limit for a day's round"
        )]
        let bytes = spent.bytes as f64 / self.bytes;
        let needed = (spent.processor.as_secs_f64() / self.processor).max(bytes);
        let pause = Duration::try_from_secs_f64(needed).unwrap_or(Duration::MAX).saturating_sub(elapsed);
        (pause >= SHORTEST).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn ended(of: &str, now: i64) -> ScanProgress {
        let mut progress = ScanProgress::default();
        let round = progress.due(of, 10, now, DAY).unwrap();
        progress.end(&round, now);
        progress
    }

    #[test]
    fn a_round_is_due_after_the_pause_and_at_once_for_another_index_or_rule() {
        let mut progress = ended("a", 1_000);
        assert_eq!(progress.due("a", 10, 1_000 + 86_399, DAY), None);
        assert!(progress.due("a", 10, 1_000 + 86_400, DAY).is_some());
        assert!(progress.due("b", 10, 1_001, DAY).is_some());
        // The clock went back.
        assert!(progress.due("a", 10, 999, DAY).is_some());
    }

    #[test]
    fn a_round_goes_on_where_it_was_unless_it_is_of_something_else() {
        let mut progress = ScanProgress::default();
        let mut round = progress.due("a", 10, 5, DAY).unwrap();
        (round.index, round.offset) = (1, 77);
        progress.round = Some(round.clone());
        assert_eq!(progress.clone().due("a", 10, 6, DAY), Some(round));
        assert_eq!(progress.due("b", 10, 6, DAY).map(|round| (round.index, round.offset)), Some((0, 0)));
    }

    #[test]
    fn the_findings_are_bounded_and_all_of_them_are_counted() {
        let mut round = ScanProgress::default().due("a", 10, 5, DAY).unwrap();
        for number in 0..MOST_FINDINGS + 3 {
            round.note(&format!("/usr/{number}"), false);
        }
        assert_eq!((round.differing.len(), round.more), (MOST_FINDINGS, 3));
        let mut progress = ScanProgress::default();
        progress.end(&round, 6);
        assert_eq!(progress.differing(), MOST_FINDINGS as u64 + 3);
    }

    #[test]
    fn findings_are_kept_at_once_and_then_after_pauses_that_grow() {
        let mut round = ScanProgress::default().due("a", 10, 5, DAY).unwrap();
        let kept: Vec<i64> = (0..4000).filter(|second| round.keeps_findings(1_000 + second)).collect();
        assert_eq!(kept, [0, 30, 90, 210, 450, 930, 1830, 2730, 3630]);
        assert!(round.keeps_findings(10), "the clock went back");
    }

    #[test]
    fn a_round_ends_with_a_bounded_number_of_paths_and_the_watched_ones_are_among_them() {
        let mut round = ScanProgress::default().due("a", 10, 5, DAY).unwrap();
        for number in 0..MOST_FINDINGS {
            round.note(&format!("/usr/new/{number}"), false);
        }
        let watched: BTreeSet<String> = (0..10).map(|number| format!("/usr/watched/{number}")).collect();
        for path in &watched {
            round.note(path, true);
        }
        round.bound(&watched);
        assert_eq!((round.differing.len(), round.more), (MOST_FINDINGS, 10));
        assert!(watched.is_subset(&round.differing));
    }

    #[test]
    fn a_watched_path_keeps_its_place_among_many_others() {
        let mut round = ScanProgress::default().due("a", 10, 5, DAY).unwrap();
        for number in 0..MOST_FINDINGS + 3 {
            round.note(&format!("/usr/{number}"), false);
        }
        let watched: BTreeSet<String> = ["/usr/watched".to_owned()].into();
        let during = round.watched(&watched);
        assert!(during.contains("/usr/watched") && during.len() == MOST_FINDINGS);
        round.note("/usr/watched", true);
        assert!(round.differing.contains("/usr/watched"));
    }

    #[test]
    fn processor_time_and_bytes_both_slow_the_scan_down() {
        let pace = ScanPace { processor: 0.02, bytes: 1e6 };
        let spent = |milliseconds, bytes| ScanSpent { processor: Duration::from_millis(milliseconds), bytes };
        let second = Duration::from_secs(1);
        assert_eq!(pace.pause(spent(10, 0), Duration::from_millis(500)), None);
        assert_eq!(pace.pause(spent(40, 0), second), Some(second));
        assert_eq!(pace.pause(spent(0, 3_000_000), second), Some(2 * second));
        assert_eq!(pace.pause(spent(0, 1_010_000), second), None, "short pauses are added up");
    }

    #[test]
    fn a_control_group_with_half_a_processor_gets_half_the_pace() {
        let pace = ScanPace { processor: 0.02, bytes: 1e6 };
        assert!((pace.within(Some(0.5)).processor - 0.01).abs() < 1e-9);
        assert_eq!(pace.within(Some(4.0)), pace);
        assert_eq!(pace.within(None), pace);
    }
}
