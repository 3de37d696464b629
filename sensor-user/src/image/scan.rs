//! A scan of what the image has and the daemon does not watch: each path once a round, at a slow pace.
//!
//! In: the indexes that apply to a host, and the policy's rules with `scan`. Out: the paths that differ, in a file. The daemon watches
//! these from then on, so each has a drift that ends when the path is as in the image again. A scan that is ended goes on where it was.

use super::{
    chosen::applying,
    error::ImageError,
    images::Images,
    index::ImageIndex,
    live::can_be_watched,
    scan_files::ScanFiles,
    verify::{OF_THE_HOST, Verifier},
};
use crate::{
    clock::{Clock as _, SystemClock},
    observation::Observer,
    sys::CallError,
};
use nix::time::{ClockId, clock_gettime};
use sensor_model::{
    drift_policy::DriftPolicy,
    image::{ImageEntry, ScanPace, ScanProgress, ScanRound, ScanSpent},
    observation::FileType,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    ops::ControlFlow,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    time::{Duration, Instant},
};

/// How often the progress is kept.
const KEEP: Duration = Duration::from_secs(10);
/// How often findings are kept at most. Each time the daemon reads configs and policies again.
const KEEP_FINDINGS: Duration = Duration::from_secs(30);

/// What a scan compares, and how fast.
pub struct Scan<'a> {
    /// The host.
    pub observer: &'a Observer,
    /// Its root directory.
    pub root: &'a Path,
    /// The rules.
    pub policy: &'a DriftPolicy,
    /// The state directory.
    pub state: &'a Path,
    /// Whether a config declares a path.
    pub is_declared: &'a dyn Fn(&Path) -> bool,
    /// The pace.
    pub pace: ScanPace,
    /// The time from the end of a round to the beginning of the next one.
    pub every: Duration,
    /// Pauses for a time. [`ControlFlow::Break`] ends the scan, which goes on there the next time.
    pub pause: &'a dyn Fn(Duration) -> ControlFlow<()>,
}

/// How a scan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEnd {
    /// No round is due, no rule asks for one, or no index applies.
    NotDue,
    /// It ended between two paths.
    Interrupted,
    /// The round is complete.
    Complete(ScanRound),
}

/// Why a scan cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// An index cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The progress cannot be kept.
    #[error(transparent)]
    Files(#[from] CallError),
    /// The scan was interrupted. It never leaves this file.
    #[error("the scan of the image was interrupted; it goes on the next time")]
    Interrupted,
}

impl std::fmt::Debug for Scan<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Scan").field("state", &self.state).field("pace", &self.pace).finish_non_exhaustive()
    }
}

impl Scan<'_> {
    /// Runs the round that is due, from where it is.
    ///
    /// # Errors
    /// An index cannot be read, or the progress cannot be kept.
    pub fn run(&self) -> Result<ScanEnd, ScanError> {
        if !self.policy.scans_image() {
            return Ok(ScanEnd::NotDue);
        }
        let indexes = applying(&Images::of(self.state), self.observer)?.indexes;
        let files = ScanFiles::of(self.state);
        let mut progress = files.progress();
        let paths = indexes.iter().map(|index| index.meta().entries).sum();
        let due = progress.due(&self.subject(&indexes), paths, now(), self.every);
        let Some(round) = due.filter(|_| paths > 0) else { return Ok(ScanEnd::NotDue) };
        let mut walk = Walk {
            scan: self,
            known: files.findings(),
            files,
            progress,
            round,
            spent: Spending::now(),
            kept: Instant::now(),
            kept_findings: Instant::now(),
        };
        match walk.indexes(&indexes) {
            Ok(()) => walk.end().map(ScanEnd::Complete),
            Err(ScanError::Interrupted) => {
                walk.keep()?;
                Ok(ScanEnd::Interrupted)
            }
            Err(error) => Err(error),
        }
    }

    /// A digest of what is compared.
    fn subject(&self, indexes: &[ImageIndex]) -> String {
        let mut digest = Sha256::new();
        for index in indexes {
            digest.update(index.sha256());
        }
        for rule in self.policy.all_image_rules() {
            digest.update(format!("{:?} {} {}\n", rule.path, rule.action.as_str(), rule.scan));
        }
        hex::encode(digest.finalize())
    }
}

/// A round that goes on.
struct Walk<'a> {
    scan: &'a Scan<'a>,
    files: ScanFiles,
    progress: ScanProgress,
    round: ScanRound,
    /// The findings in the file.
    known: BTreeSet<String>,
    spent: Spending,
    kept: Instant,
    kept_findings: Instant,
}

impl Walk<'_> {
    fn indexes(&mut self, indexes: &[ImageIndex]) -> Result<(), ScanError> {
        while let Some(index) = indexes.get(self.round.index) {
            let stronger = &indexes[..self.round.index];
            let verifier = Verifier::new(index, self.scan.observer, self.scan.root);
            index.each_from(self.round.offset, |next, path, entry| {
                self.round.offset = next;
                self.round.passed += 1;
                self.entry(&verifier, index, stronger, Path::new(OsStr::from_bytes(path)), entry)?;
                self.rest()
            })?;
            self.round.index += 1;
            self.round.offset = 0;
        }
        Ok(())
    }

    /// Compares the entry of a path, if it is one to scan.
    fn entry(
        &mut self,
        verifier: &Verifier<'_>,
        index: &ImageIndex,
        stronger: &[ImageIndex],
        path: &Path,
        entry: ImageEntry,
    ) -> Result<(), ScanError> {
        let Scan { policy, observer, is_declared, .. } = self.scan;
        let is_scanned = policy.expects_of_image(path).is_some_and(|rule| rule.scan)
            && can_be_watched(path, &entry, index.meta())
            && !OF_THE_HOST.iter().any(|above| path.starts_with(above))
            && !is_declared(path)
            // A server that does not answer would hold the scan up.
            && !observer.is_served(path);
        if !is_scanned {
            return Ok(());
        }
        for index in stronger {
            if index.find(path.as_os_str().as_bytes())?.is_some() {
                return Ok(());
            }
        }
        if entry.file_type == FileType::Regular {
            self.spent.bytes += entry.size;
        }
        let found = verifier.compare(path.to_owned(), entry);
        self.round.compared += 1;
        if found.is_unreadable() {
            self.round.unreadable += 1;
        } else if let (false, Some(path)) = (found.differences.is_empty(), path.to_str()) {
            self.round.note(path);
        }
        Ok(())
    }

    /// Pauses if the pace asks for it, and keeps the progress now and then.
    fn rest(&mut self) -> Result<(), ScanError> {
        if let Some(pause) = self.scan.pace.pause(self.spent.so_far(), self.spent.since.elapsed()) {
            if (self.scan.pause)(pause).is_break() {
                return Err(ScanError::Interrupted);
            }
            self.spent = Spending::now();
        }
        if self.kept.elapsed() >= KEEP {
            self.keep()?;
        }
        Ok(())
    }

    /// Keeps the progress, and findings that are new.
    fn keep(&mut self) -> Result<(), ScanError> {
        self.scan.observer.mounts_changed();
        self.progress.round = Some(self.round.clone());
        self.files.keep_progress(&self.progress)?;
        self.kept = Instant::now();
        let may_keep = self.kept_findings.elapsed() >= KEEP_FINDINGS;
        if may_keep && !self.round.differing.is_subset(&self.known) {
            self.known.extend(self.round.differing.iter().cloned());
            self.files.keep_findings(&self.known)?;
            self.kept_findings = Instant::now();
        }
        Ok(())
    }

    /// Ends the round. Paths that no longer differ are no findings any more.
    fn end(mut self) -> Result<ScanRound, ScanError> {
        if self.known != self.round.differing {
            self.files.keep_findings(&self.round.differing)?;
        }
        self.progress.end(&self.round, now());
        self.files.keep_progress(&self.progress)?;
        if self.round.more > 0 {
            tracing::error!(
                paths = self.round.found(),
                watched = self.round.differing.len(),
                "Many paths differ from the index of the image, and the daemon watches only some of them. The index may be of another image: \
                 see `holdfast image verify`."
            );
        }
        Ok(self.round)
    }
}

/// What was spent since the last pause.
struct Spending {
    since: Instant,
    processor: Duration,
    bytes: u64,
}

impl Spending {
    fn now() -> Self {
        Self { since: Instant::now(), processor: processor_time(), bytes: 0 }
    }

    fn so_far(&self) -> ScanSpent {
        ScanSpent { processor: processor_time().saturating_sub(self.processor), bytes: self.bytes }
    }
}

/// Processor time of this process.
fn processor_time() -> Duration {
    // The clock exists on every Linux.
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Seconds since 1970.
fn now() -> i64 {
    SystemClock.now().as_second()
}
