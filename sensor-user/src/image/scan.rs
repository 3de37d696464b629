//! A scan of what the image has and the daemon does not watch: each path once a round, at a slow pace.
//!
//! In: the indexes that apply to a host, and the policy's rules with `scan`. Out: the paths that differ, in a file. The daemon watches
//! these from then on, so each has a drift that ends when the path is as in the image again. A scan that is ended goes on where it was.

use super::{
    chosen::applying,
    error::ImageError,
    images::Images,
    index::ImageIndex,
    live::{can_be_watched, deciding, live_of},
    scan_files::ScanFiles,
    scan_spending::Spending,
};
use crate::{
    clock::{Clock as _, SystemClock},
    observation::{Observer, is_of_host},
    sys::CallError,
};
use sensor_model::{
    compare::{Ids, compare},
    difference::all_unreadable,
    drift_policy::DriftPolicy,
    expectation::Expectation,
    image::{ImageEntry, ScanPace, ScanProgress, ScanRound},
    observation::{FileType, Observation},
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

/// What a scan compares, and how fast.
pub struct Scan<'a> {
    /// The host. Nothing counts the changes of what a scan reads, so the observer has to be one
    /// [with settled contents](Observer::with_settled_contents). The scan keeps the contents of sealed files that it reads.
    pub observer: &'a Observer,
    /// The rules.
    pub policy: &'a DriftPolicy,
    /// The state directory.
    pub state: &'a Path,
    /// Whether a config declares what an expectation of the image is about.
    pub is_declared: &'a dyn Fn(&Expectation) -> bool,
    /// Sets the label that the host's SELinux policy gives to an expectation.
    pub label: &'a dyn Fn(&mut Expectation),
    /// The ids that expectations name, and the labels that users may choose.
    pub ids: &'a Ids,
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
        let chosen = applying(&Images::of(self.state), self.observer)?;
        if !chosen.is_whole(self.observer) {
            // Drifts stay open until an index says again what the image has.
            return Ok(ScanEnd::NotDue);
        }
        let indexes = chosen.indexes;
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
            is_whole: round.passed == 0,
            round,
            spent: Spending::now(),
            kept: Instant::now(),
        };
        match walk.indexes(&indexes).and_then(|()| walk.end(&indexes)) {
            Ok(round) => Ok(ScanEnd::Complete(round)),
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
    /// The round began in this process.
    is_whole: bool,
    /// The findings in the file.
    known: BTreeSet<String>,
    spent: Spending,
    kept: Instant,
}

impl Walk<'_> {
    fn indexes(&mut self, indexes: &[ImageIndex]) -> Result<(), ScanError> {
        while let Some(index) = indexes.get(self.round.index) {
            let stronger = &indexes[..self.round.index];
            index.each_from(self.round.offset, |next, path, entry| {
                self.round.offset = next;
                self.round.passed += 1;
                self.entry(index, stronger, Path::new(OsStr::from_bytes(path)), &entry)?;
                self.rest()
            })?;
            self.round.index += 1;
            self.round.offset = 0;
        }
        Ok(())
    }

    /// Compares the entry of a path, if it is one to scan, and notes it if it differs.
    fn entry(
        &mut self,
        index: &ImageIndex,
        stronger: &[ImageIndex],
        path: &Path,
        entry: &ImageEntry,
    ) -> Result<(), ScanError> {
        if deciding(stronger, path)?.is_some() {
            return Ok(());
        }
        let Some(expectation) = self.expectation(index, path, entry) else { return Ok(()) };
        // A server that does not answer would hold the scan up. One mount may hide thousands of paths, which would leave no room for others.
        let is_served = |path: &Path| self.scan.observer.is_served(path);
        if is_served(path) {
            self.round.unreadable += 1;
            if !path.parent().is_some_and(is_served) {
                tracing::warn!(
                    path = %path.display(),
                    "A server answers for the file system that is mounted over a path of the image, so the scan reads nothing there and counts each \
                     path as unreadable: `holdfast image verify PATH` compares them."
                );
            }
            return Ok(());
        }
        self.round.compared += 1;
        let (compared, is_sealed) = self.compare(&expectation, entry);
        self.round.sealed += u64::from(is_sealed);
        self.round.unreadable += u64::from(compared == Compared::Unreadable);
        if let (true, Some(path)) = (compared != Compared::Equal, path.to_str()) {
            self.round.note(path, self.known.contains(path));
        }
        Ok(())
    }

    /// What the daemon would expect at a path if it watched it; `None` if the path is not one to scan.
    fn expectation(&self, index: &ImageIndex, path: &Path, entry: &ImageEntry) -> Option<Expectation> {
        let Scan { policy, is_declared, label, .. } = self.scan;
        let is_scanned = policy.expects_of_image(path).is_some_and(|rule| rule.scan)
            && can_be_watched(path, entry, index.meta())
            && !is_of_host(path);
        let mut expectation = if is_scanned { live_of(path, entry, index.meta()) } else { None }?;
        if is_declared(&expectation) {
            return None;
        }
        // Matching a label is expensive. Only a watched path needs its label: otherwise a round would end the open drift of the label.
        if path.to_str().is_some_and(|path| self.known.contains(path)) {
            label(&mut expectation);
        }
        Some(expectation)
    }

    /// Compares a path as the daemon does. The second value: the file was not read, because the kernel proves its content.
    fn compare(&mut self, expectation: &Expectation, entry: &ImageEntry) -> (Compared, bool) {
        let found = self.scan.observer.observe(expectation).observation;
        let is_sealed = found.seal().is_some();
        if entry.file_type == FileType::Regular && !is_sealed {
            self.spent.bytes += match &found {
                Observation::Object(object) if entry.ostree.is_some() => object.size,
                _ => entry.size,
            };
        }
        let differences = compare(expectation, &found, self.scan.ids);
        let compared = if differences.is_empty() {
            Compared::Equal
        } else if all_unreadable(&differences) {
            Compared::Unreadable
        } else {
            Compared::Differing
        };
        (compared, is_sealed)
    }

    /// Pauses if the pace asks for it, and keeps the progress now and then.
    fn rest(&mut self) -> Result<(), ScanError> {
        if let Some(pause) = self.scan.pace.pause(self.spent.so_far(), self.spent.since.elapsed()) {
            // A process that is killed during a long pause would have the next one read a large file again.
            if pause >= KEEP {
                self.keep()?;
            }
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
        let watched = self.round.watched(&self.known);
        let is_new = watched != self.known && self.round.keeps_findings(now());
        self.progress.round = Some(self.round.clone());
        self.files.keep_progress(&self.progress)?;
        self.keep_sealed(false)?;
        self.kept = Instant::now();
        if is_new {
            self.known = watched;
            // The daemon ends this process when it reads them.
            self.files.keep_findings(&self.known)?;
        }
        Ok(())
    }

    /// Keeps the contents of sealed files that were read. After a whole round it forgets those that no file has any more.
    fn keep_sealed(&self, is_whole: bool) -> Result<(), CallError> {
        match self.scan.observer.sealed() {
            Some(contents) if is_whole => self.files.keep_sealed(&contents.used()),
            Some(contents) => self.files.add_sealed(&contents.take_new()),
            None => Ok(()),
        }
    }

    /// Ends the round. It compares each earlier finding that the round did not find once more, because the path may have changed since the
    /// round passed it. A path that matches the image is no longer a finding.
    fn end(&mut self, indexes: &[ImageIndex]) -> Result<ScanRound, ScanError> {
        for path in self.known.clone().difference(&self.round.differing.clone()) {
            let place = Path::new(path);
            if self.scan.observer.is_served(place) {
                self.round.note(path, true);
                continue;
            }
            let Some((index, entry)) = deciding(indexes, place)? else { continue };
            let Some(expectation) = self.expectation(index, place, &entry) else { continue };
            if self.compare(&expectation, &entry).0 != Compared::Equal {
                self.round.note(path, true);
            }
            self.rest()?;
        }
        self.round.bound(&self.known);
        if self.known != self.round.differing {
            self.files.keep_findings(&self.round.differing)?;
        }
        self.keep_sealed(self.is_whole)?;
        self.progress.end(&self.round, now());
        self.files.keep_progress(&self.progress)?;
        if self.round.compared == 0 {
            tracing::warn!(
                "The scan of the image compared nothing: no index has SHA-256, mode and owner of a path that its rules name. A baseline \
                 has them, and so has an index of dpkg's packages that `holdfast image index --packages` of this version makes."
            );
        }
        if self.round.more > 0 {
            tracing::error!(
                paths = self.round.found(),
                watched = self.round.differing.len(),
                "Many paths differ from the index of the image, and the daemon watches only some of them. The index may be of another image: \
                 see `holdfast image verify`."
            );
        }
        Ok(self.round.clone())
    }
}

/// How a path compares with what the image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    Equal,
    Differing,
    Unreadable,
}

/// Seconds since 1970.
fn now() -> i64 {
    SystemClock.now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{index_baseline, take_baseline};
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    use sensor_model::drift_policy::DriftPolicyFile;
    use std::fs;

    #[test]
    fn what_a_mount_of_a_server_hides_is_not_read_and_counts_as_unreadable() {
        let place = tempfile::tempdir().unwrap();
        let (root, state) = (place.path().join("root"), place.path().join("state"));
        for name in ["a/b/file", "c/file"] {
            let path = root.join("usr").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let baseline = take_baseline(&Observer::new(&root).unwrap(), &["/usr".into()], &mut |_| {}).unwrap();
        let text = serde_json::to_vec(&baseline).unwrap();
        index_baseline(Path::new("baseline.json"), &text, &Images::of(&state)).unwrap();
        let mounts = place.path().join("mountinfo");
        let top = statx(CWD, &root, AtFlags::empty(), StatxFlags::MNT_ID).unwrap().stx_mnt_id;
        let line = format!("99999 {top} 0:999 / {} rw - fuse.evil e rw\n", root.join("usr/a").display());
        let policy = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: test}\nspec:\n  rules:\n  \
                      - {path: /, image: true, scan: true, action: observe}\n";
        let policy = DriftPolicyFile::parse("test.yaml", policy.as_bytes()).unwrap();
        let policy = DriftPolicy::merge(&[policy]).unwrap();
        let run = |table: &str| {
            fs::write(&mounts, table).unwrap();
            let scan = Scan {
                observer: &Observer::guarded_by(&root, &mounts).unwrap().with_settled_contents(),
                policy: &policy,
                state: &state,
                is_declared: &|_| false,
                label: &|_| {},
                ids: &Ids::default(),
                pace: ScanPace { processor: 1.0, bytes: 1e9 },
                every: Duration::ZERO,
                pause: &|_| ControlFlow::Continue(()),
            };
            match scan.run().unwrap() {
                ScanEnd::Complete(round) => round,
                other => panic!("{other:?}"),
            }
        };
        let found = |round: &ScanRound| {
            (round.compared, round.unreadable, round.differing.iter().cloned().collect::<Vec<_>>())
        };
        assert_eq!(found(&run("")), (6, 0, vec![]));
        assert_eq!(found(&run(&line)), (3, 3, vec![]));
        assert_eq!(found(&run("")), (6, 0, vec![]));
    }
}
