//! The metrics of the node: one call counts a report and writes its line to the operational log.
//!
//! In: the reports of the loop, and the state of the forensic log. Out: lines of the operational log (tracing), and the page of
//! metrics in OpenMetrics text. It decides nothing, and no verdict depends on a metric.

mod by_source;
mod families;
mod process;

#[cfg(test)]
mod tests;

use crate::agent::open_drift::{OpenDrift, OpenDrifts};
use crate::agent::reports::{BackendName, LOSSES, LossReason, LossStage};
use crate::kernel::hooks::Attachment;
use by_source::BySource;
use families::{
    BackendLabels, BuildLabels, DriftLabels, Families, HookLabels, KindLabels, LossLabels, OperationLabels,
    ReasonLabels, ResultLabels, SourceLabels, StateLabels, UNKNOWN_SOURCE, VerdictLabels, WaitLabels, Word,
};
use jiff::Timestamp;
use prometheus_client::{encoding::text::encode, registry::Registry};
use sensor_common::op::{OPERATIONS, Operation};
use sensor_model::{
    difference::DifferenceKind,
    expectation::SourceKind,
    image::ScanProgress,
    node_state::{NodeState, Wait},
    protocol::GapReason,
    record::{Actor, ActorClass, RecordKind, ThingName},
    verdict::VerdictKind,
};
use std::{borrow::Cow, collections::BTreeMap, fmt, time::Duration};
use tracing::{debug, error, info, warn};

/// Content type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The result of a revert that wrote the declared content back.
const REVERTED: Word = "done";
/// The result of one that could not.
const NOT_REVERTED: Word = "failed";

/// The values of the label `source`.
fn sources() -> impl Iterator<Item = Word> {
    SourceKind::ALL.iter().map(|kind| kind.as_str()).chain([UNKNOWN_SOURCE])
}

/// The versions of the daemon and the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildInfo {
    /// Version of the daemon.
    pub version: String,
    /// The commit of its sources; `unknown` outside a checkout.
    pub commit: String,
    /// SHA-256 of the embedded kernel object, in hex.
    pub object: String,
    /// Release of the running kernel.
    pub kernel: String,
}

/// Counts and logs reports.
pub struct Metrics {
    registry: Registry,
    families: Families,
    by_source: BySource,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Metrics that are all zero. `started` is when the process started.
    pub fn new(build: BuildInfo, started: Timestamp) -> Self {
        let mut registry = Registry::default();
        let BuildInfo { version, commit, object, kernel } = build;
        let families = Families::new(&mut registry, BuildLabels { version, commit, object, kernel });
        for operation in OPERATIONS {
            families.events.get_or_create(&OperationLabels { operation: operation.name() }).inc_by(0);
        }
        // Prometheus sees no increase in a series that begins with the first loss, gap or revert.
        for (stage, reason) in LOSSES {
            let labels = LossLabels { stage: stage.name(), reason: reason.name() };
            families.events_lost.get_or_create(&labels).inc_by(0);
        }
        for reason in GapReason::ALL {
            families.gaps.get_or_create(&ReasonLabels { reason: reason.as_str() }).inc_by(0);
        }
        for result in [REVERTED, NOT_REVERTED] {
            families.reverts.get_or_create(&ResultLabels { result }).inc_by(0);
        }
        // Not so the detected differences: each kind by each actor would be more than a hundred series. Their panels count a first value.
        for kind in DifferenceKind::ALL.iter().copied() {
            families.node_drift.get_or_create(&KindLabels { kind: kind.as_str() }).set(0);
        }
        for source in sources() {
            families.drifted_things.get_or_create(&SourceLabels { source }).set(0);
        }
        for kind in [RecordKind::Denied, RecordKind::Exec] {
            families.forensic_folded.get_or_create(&KindLabels { kind: kind.as_str() }).inc_by(0);
        }
        families.reload_successful.set(1);
        let started = started.as_duration().as_secs_f64();
        registry.register_collector(Box::new(process::ProcessCollector { started }));
        let by_source = BySource::default();
        registry.register_collector(Box::new(by_source.clone()));
        Self { registry, families, by_source }
    }

    /// The page of metrics, in OpenMetrics text ending in `# EOF`.
    pub fn page(&self) -> Result<String, fmt::Error> {
        let mut page = String::with_capacity(16 << 10);
        encode(&mut page, &self.registry)?;
        Ok(page)
    }

    /// A change event arrived from the kernel programs or from fanotify.
    pub fn event(&self, operation: Operation) {
        self.families.events.get_or_create(&OperationLabels { operation: operation.name() }).inc();
    }

    /// Events were lost.
    pub fn lost(&self, stage: LossStage, reason: LossReason, count: u64) {
        if count == 0 {
            return;
        }
        let (stage, reason) = (stage.name(), reason.name());
        warn!(stage, reason, count, "events lost");
        self.families.events_lost.get_or_create(&LossLabels { stage, reason }).inc_by(count);
    }

    /// A thing got a verdict. `latency` is the time since the change in the kernel, if there was one.
    pub fn verdict(&self, verdict: VerdictKind, latency: Option<Duration>) {
        self.families.verdicts.get_or_create(&VerdictLabels { verdict: verdict.as_str() }).inc();
        if let Some(latency) = latency {
            self.families.detection_latency.observe(latency.as_secs_f64());
        }
    }

    /// A thing drifted, or drifted in another way than `before`. Gives whether a kind of difference is new.
    pub fn drift(&self, thing: &ThingName, before: Option<&OpenDrift>, open: &OpenDrift) -> bool {
        let actor = open.actor.as_ref();
        let class = ActorClass::of(actor).as_str();
        let known = before.into_iter().flat_map(|before| &before.differences);
        let mut known: Vec<DifferenceKind> = known.map(|difference| difference.kind).collect();
        let mut is_new = false;
        for difference in &open.differences {
            if let Some(position) = known.iter().position(|kind| *kind == difference.kind) {
                known.swap_remove(position);
                continue;
            }
            is_new = true;
            let kind = difference.kind.as_str();
            warn!(
                path = thing.path,
                kind,
                actor = class,
                source = open.source,
                pid = actor.map(|actor| actor.pid),
                "{}",
                difference.text
            );
            self.families.drift_detected.get_or_create(&DriftLabels { kind, actor: class }).inc();
        }
        is_new
    }

    /// Sets the gauges of open drift. `last`: when the newest drift was detected.
    pub fn open_drifts(&self, drifts: &OpenDrifts, last: Option<Timestamp>) {
        let mut counts: BTreeMap<DifferenceKind, i64> = BTreeMap::new();
        for difference in drifts.iter().flat_map(|(_, open)| &open.differences) {
            *counts.entry(difference.kind).or_default() += 1;
        }
        for kind in DifferenceKind::ALL.iter().copied() {
            let labels = KindLabels { kind: kind.as_str() };
            self.families.node_drift.get_or_create(&labels).set(counts.get(&kind).copied().unwrap_or(0));
        }
        let mut things: BTreeMap<Word, i64> = sources().map(|source| (source, 0)).collect();
        for (_, open) in drifts.iter() {
            *things.entry(open.source_kind.map_or(UNKNOWN_SOURCE, SourceKind::as_str)).or_default() += 1;
        }
        for (source, count) in things {
            self.families.drifted_things.get_or_create(&SourceLabels { source }).set(count);
        }
        self.by_source.set(drifts);
        let oldest = drifts.iter().map(|(_, open)| open.since).min();
        self.families.drift_open_since.set(oldest.map_or(0, Timestamp::as_second));
        let last = last.filter(|_| !drifts.is_empty());
        self.families.mcd_config_drift.set(last.map_or(0, Timestamp::as_second));
    }

    /// A thing that had drifted for this time matches its expectation, or is no longer managed.
    pub fn recovered(&self, thing: &ThingName, after: Duration) {
        self.families.drift_recovery.observe(after.as_secs_f64());
        info!(path = thing.path, "drift is gone");
    }

    /// A thing was changed and matches its expectation again.
    pub fn touched(&self, path: &str, actor: Option<&Actor>) {
        info!(
            path,
            actor = ActorClass::of(actor).as_str(),
            pid = actor.map(|actor| actor.pid),
            "changed and as declared"
        );
    }

    /// One thing was observed and compared.
    pub fn verified(&self, took: Duration) {
        self.families.verify.observe(took.as_secs_f64());
    }

    /// All things were observed and compared.
    pub fn verified_all(&self, things: usize, took: Duration, at: Timestamp) {
        debug!(things, ?took, "verified everything");
        self.families.full_verification.observe(took.as_secs_f64());
        self.families.last_full_verification.set(at.as_second());
        self.managed(things);
    }

    /// The number of things that have an expectation.
    pub fn managed(&self, things: usize) {
        self.families.managed_things.set(i64::try_from(things).unwrap_or(i64::MAX));
    }

    /// A run of the loop begins. The gaps of the last run end without a report.
    pub fn run_begins(&self) {
        self.families.gaps_open.set(0);
    }

    /// The state of the applied config, and what an apply waits for.
    pub fn node_state(&self, state: NodeState, wait: Option<Wait>) {
        for &other in NodeState::ALL {
            let labels = StateLabels { state: other.as_str() };
            self.families.node_state.get_or_create(&labels).set((other == state).into());
        }
        for &other in Wait::ALL {
            let labels = WaitLabels { wait: other.as_str() };
            self.families.node_waiting.get_or_create(&labels).set((Some(other) == wait).into());
        }
    }

    /// Configs and policies were read again, or cannot be used.
    pub fn reloaded(&self, successful: bool) {
        self.families.reload_successful.set(successful.into());
    }

    /// A hook was attached or detached.
    pub fn hook(&self, hook: impl Into<Cow<'static, str>>, attachment: Attachment, attached: bool) {
        let hook = hook.into();
        let mode = attachment.name();
        debug!(hook = &*hook, mode, attached, "hook");
        self.families.hook_attached.get_or_create(&HookLabels { hook, mode }).set(attached.into());
    }

    /// Detection runs on this backend. It does not see so many kinds of changes at once; `doctor` lists these.
    pub fn backend(&self, backend: BackendName, vectors_unseen: usize) {
        for other in [BackendName::Lsm, BackendName::Fentry, BackendName::Fanotify] {
            let labels = BackendLabels { backend: other.as_str() };
            self.families.backend.get_or_create(&labels).set((other == backend).into());
        }
        self.families.vectors_unseen.set(i64::try_from(vectors_unseen).unwrap_or(i64::MAX));
        if backend == BackendName::Fanotify {
            warn!(vectors_unseen, "detection runs on fanotify: who made a change is a best guess");
        } else {
            info!(backend = backend.as_str(), vectors_unseen, "detection runs");
        }
    }

    /// The record of the canary's change arrived.
    pub fn canary(&self, at: Timestamp) {
        self.families.canary_seen.set(at.as_second());
    }

    /// How far the scan of what the image has is. `stale_from`: the time from which on it gets stale, in seconds since 1970; 0 if no policy asks
    /// for one.
    pub fn image_scan(&self, progress: &ScanProgress, stale_from: i64) {
        self.families.image_scan_progress.set(progress.done().unwrap_or(0.0));
        self.families.image_scan_differing.set(i64::try_from(progress.differing()).unwrap_or(i64::MAX));
        self.families.image_scan_unreadable.set(i64::try_from(progress.unreadable()).unwrap_or(i64::MAX));
        self.families.image_scan_sealed.set(i64::try_from(progress.sealed()).unwrap_or(i64::MAX));
        self.families.image_scan_ended.set(stale_from);
    }

    /// A gap opened.
    pub fn gap_opened(&self, reason: GapReason) {
        let reason = reason.as_str();
        warn!(reason, "a gap opened: the things in its scope are unknown until they are verified");
        self.families.gaps.get_or_create(&ReasonLabels { reason }).inc();
        self.families.gaps_open.inc();
    }

    /// The things in the scope of a gap are verified.
    pub fn gap_closed(&self, reason: GapReason) {
        info!(reason = reason.as_str(), "a gap is closed");
        self.families.gaps_open.dec();
    }

    /// The declared state was written back, or could not be.
    pub fn reverted(&self, path: &str, result: Result<(), &dyn std::error::Error>) {
        let word = match result {
            Ok(()) => {
                info!(path, "wrote the declared content back");
                REVERTED
            }
            Err(error) => {
                error!(path, %error, "could not write the declared content back");
                NOT_REVERTED
            }
        };
        self.families.reverts.get_or_create(&ResultLabels { result: word }).inc();
    }

    /// A record was written to the forensic log, as a line of this many bytes.
    pub fn recorded(&self, kind: RecordKind, bytes: usize) {
        self.families.forensic_records.get_or_create(&KindLabels { kind: kind.as_str() }).inc();
        self.families.forensic_bytes.inc_by(bytes as u64);
    }

    /// So many changes of a kind, `denied` or `exec`, have no record of their own. Another record counts them.
    pub fn without_record(&self, kind: RecordKind, count: u64) {
        self.families.forensic_folded.get_or_create(&KindLabels { kind: kind.as_str() }).inc_by(count);
    }

    /// A process executed or loaded a file that no config, image, package or baseline has.
    pub fn unknown_execution(&self, operation: Operation) {
        let counter = match operation {
            Operation::Load => &self.families.unknown_loads,
            _ => &self.families.unknown_executions,
        };
        counter.inc();
    }

    /// A checkpoint was written to the forensic log.
    pub fn checkpoint(&self, at: Timestamp) {
        self.families.forensic_checkpoint.set(at.as_second());
    }

    /// The forensic log cannot be written for this reason; `None`: it can be written. `pending` records wait in memory, and
    /// `dropped` ones were lost since the last call.
    pub fn forensic(&self, reason: Option<&str>, pending: usize, dropped: u64) {
        let was = self.families.forensic_degraded.set(reason.is_some().into());
        match (was, reason) {
            (0, Some(reason)) => {
                error!(reason, pending, "the forensic log cannot be written; records wait in memory");
            }
            (1, None) => info!("the forensic log is written again"),
            _ => {}
        }
        if dropped > 0 {
            error!(dropped, "records of the forensic log were dropped");
            self.families.forensic_dropped.inc_by(dropped);
        }
        self.families.forensic_pending.set(i64::try_from(pending).unwrap_or(i64::MAX));
    }

    /// So many entries that were on the disk are missing from the forensic log.
    pub fn forensic_missing(&self, entries: u64) {
        self.families.forensic_missing.set(i64::try_from(entries).unwrap_or(i64::MAX));
    }

    /// The reporter's socket is open. It may refuse peers for these reasons.
    pub fn reporter_socket(&self, reasons: &[&'static str]) {
        for &reason in reasons {
            self.families.reporter_refused.get_or_create(&ReasonLabels { reason }).inc_by(0);
        }
    }

    /// The reporter's socket refused a peer.
    pub fn reporter_refused(&self, reason: &'static str) {
        self.families.reporter_refused.get_or_create(&ReasonLabels { reason }).inc();
    }
}
