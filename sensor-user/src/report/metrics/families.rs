//! The metrics' names, help texts and labels.
//!
//! In: nothing. Out: a registry and handles into it. Labels are words from closed lists, never paths, pids or users, so the
//! number of series is limited; `by_source` has the one gauge with other labels. It counts nothing by itself.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};
use std::{borrow::Cow, sync::atomic::AtomicU64};

/// A word from a closed list.
pub(super) type Word = &'static str;

/// The label of a drift from the log of an older daemon, which did not record the kind of the source.
pub(super) const UNKNOWN_SOURCE: Word = "unknown";

/// Upper bounds from 100 µs to about 13 s, each twice the one before. The limits from write to verdict are 2 ms (median) and
/// 10 ms (p99); a busy node may take seconds.
const LATENCY_BUCKETS: [f64; 18] = [
    0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8, 0.025_6, 0.051_2, 0.102_4,
    0.204_8, 0.409_6, 0.819_2, 1.638_4, 3.276_8, 6.553_6, 13.107_2,
];

/// Upper bounds in seconds: the shortest is that of a revert by the daemon, and the longest is a week.
const RECOVERY_BUCKETS: [f64; 10] =
    [0.1, 1.0, 10.0, 60.0, 300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0, 604_800.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabels {
    pub(super) version: String,
    pub(super) commit: String,
    pub(super) object: String,
    pub(super) kernel: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabels {
    pub(super) kind: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SourceLabels {
    pub(super) source: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StateLabels {
    pub(super) state: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct WaitLabels {
    pub(super) wait: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DriftLabels {
    pub(super) kind: Word,
    pub(super) actor: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OperationLabels {
    pub(super) operation: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LossLabels {
    pub(super) stage: Word,
    pub(super) reason: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct HookLabels {
    pub(super) hook: Cow<'static, str>,
    pub(super) mode: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BackendLabels {
    pub(super) backend: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReasonLabels {
    pub(super) reason: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VerdictLabels {
    pub(super) verdict: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabels {
    pub(super) result: Word,
}

/// Handles to every metric.
#[derive(Debug)]
pub(super) struct Families {
    pub(super) node_drift: Family<KindLabels, Gauge>,
    pub(super) drifted_things: Family<SourceLabels, Gauge>,
    pub(super) drift_open_since: Gauge,
    pub(super) drift_recovery: Histogram,
    pub(super) drift_detected: Family<DriftLabels, Counter>,
    pub(super) verdicts: Family<VerdictLabels, Counter>,
    pub(super) events: Family<OperationLabels, Counter>,
    pub(super) events_lost: Family<LossLabels, Counter>,
    pub(super) detection_latency: Histogram,
    pub(super) verify: Histogram,
    pub(super) full_verification: Histogram,
    pub(super) last_full_verification: Gauge,
    pub(super) managed_things: Gauge,
    pub(super) node_state: Family<StateLabels, Gauge>,
    pub(super) node_waiting: Family<WaitLabels, Gauge>,
    pub(super) reload_successful: Gauge,
    pub(super) hook_attached: Family<HookLabels, Gauge>,
    pub(super) backend: Family<BackendLabels, Gauge>,
    pub(super) vectors_unseen: Gauge,
    pub(super) canary_seen: Gauge,
    pub(super) image_scan_progress: Gauge<f64, AtomicU64>,
    pub(super) image_scan_differing: Gauge,
    pub(super) image_scan_unreadable: Gauge,
    pub(super) image_scan_sealed: Gauge,
    pub(super) image_scan_ended: Gauge,
    pub(super) gaps: Family<ReasonLabels, Counter>,
    pub(super) gaps_open: Gauge,
    pub(super) reverts: Family<ResultLabels, Counter>,
    pub(super) forensic_records: Family<KindLabels, Counter>,
    pub(super) forensic_bytes: Counter,
    pub(super) forensic_folded: Family<KindLabels, Counter>,
    pub(super) unknown_executions: Counter,
    pub(super) unknown_loads: Counter,
    pub(super) forensic_dropped: Counter,
    pub(super) forensic_degraded: Gauge,
    pub(super) forensic_pending: Gauge,
    pub(super) forensic_missing: Gauge,
    pub(super) forensic_checkpoint: Gauge,
    pub(super) reporter_refused: Family<ReasonLabels, Counter>,
    pub(super) mcd_config_drift: Gauge,
}

fn latency() -> Histogram {
    Histogram::new(LATENCY_BUCKETS)
}

impl Families {
    /// Makes the metrics and registers them.
    pub(super) fn new(registry: &mut Registry, build: BuildLabels) -> Self {
        let ours = registry.sub_registry_with_prefix("holdfast");
        ours.register(
            "build",
            "Version, commit, hash of the kernel object and running kernel",
            Info::new(build),
        );
        let families = Self {
            node_drift: Family::default(),
            drifted_things: Family::default(),
            drift_open_since: Gauge::default(),
            drift_recovery: Histogram::new(RECOVERY_BUCKETS),
            drift_detected: Family::default(),
            verdicts: Family::default(),
            events: Family::default(),
            events_lost: Family::default(),
            detection_latency: latency(),
            verify: latency(),
            full_verification: latency(),
            last_full_verification: Gauge::default(),
            managed_things: Gauge::default(),
            node_state: Family::default(),
            node_waiting: Family::default(),
            reload_successful: Gauge::default(),
            hook_attached: Family::default(),
            backend: Family::default(),
            vectors_unseen: Gauge::default(),
            canary_seen: Gauge::default(),
            image_scan_progress: Gauge::default(),
            image_scan_differing: Gauge::default(),
            image_scan_unreadable: Gauge::default(),
            image_scan_sealed: Gauge::default(),
            image_scan_ended: Gauge::default(),
            gaps: Family::default(),
            gaps_open: Gauge::default(),
            reverts: Family::default(),
            forensic_records: Family::default(),
            forensic_bytes: Counter::default(),
            forensic_folded: Family::default(),
            unknown_executions: Counter::default(),
            unknown_loads: Counter::default(),
            forensic_dropped: Counter::default(),
            forensic_degraded: Gauge::default(),
            forensic_pending: Gauge::default(),
            forensic_missing: Gauge::default(),
            forensic_checkpoint: Gauge::default(),
            reporter_refused: Family::default(),
            mcd_config_drift: Gauge::default(),
        };
        families.register_drift(ours);
        families.register_detection(ours);
        families.register_forensic(ours);
        ours.register(
            "reporter_refused",
            "Peers of the reporter's socket that were closed without an answer",
            families.reporter_refused.clone(),
        );
        registry.register(
            "mcd_config_drift",
            "Unix time of the last config drift while there is one, 0 when there is none",
            families.mcd_config_drift.clone(),
        );
        families
    }

    fn register_drift(&self, ours: &mut Registry) {
        ours.register("node_drift", "Open differences by kind", self.node_drift.clone());
        ours.register(
            "drifted_things",
            "Things with an open drift, by the kind of what declares them",
            self.drifted_things.clone(),
        );
        ours.register_with_unit(
            "drift_open_since_timestamp",
            "Unix time since which the oldest open drift is open, 0 when there is none",
            Unit::Seconds,
            self.drift_open_since.clone(),
        );
        ours.register_with_unit(
            "drift_recovery",
            "From the change that caused a drift to the end of the drift",
            Unit::Seconds,
            self.drift_recovery.clone(),
        );
        ours.register(
            "drift_detected",
            "Differences that appeared, by kind and by who made them",
            self.drift_detected.clone(),
        );
        ours.register("verdicts", "Verdicts reached", self.verdicts.clone());
        ours.register("managed_things", "Things that have an expectation", self.managed_things.clone());
        ours.register(
            "config_last_reload_successful",
            "1 when the last read of configs and policies succeeded, else 0",
            self.reload_successful.clone(),
        );
        ours.register("node_state", "State of the node; 1 for the present state", self.node_state.clone());
        ours.register(
            "node_waiting",
            "What an apply under way waits for; 1 for the present wait. The status has the details",
            self.node_waiting.clone(),
        );
        ours.register("reverts", "Attempts to write declared content back", self.reverts.clone());
    }

    fn register_detection(&self, ours: &mut Registry) {
        ours.register("events", "Change events received", self.events.clone());
        ours.register(
            "events_lost",
            "Events lost; each lost change starts a verification",
            self.events_lost.clone(),
        );
        ours.register_with_unit(
            "detection_latency",
            "From the change in the kernel to its verdict",
            Unit::Seconds,
            self.detection_latency.clone(),
        );
        ours.register_with_unit(
            "verify",
            "Observation and comparison of one thing",
            Unit::Seconds,
            self.verify.clone(),
        );
        ours.register_with_unit(
            "full_verification",
            "Observation and comparison of all things",
            Unit::Seconds,
            self.full_verification.clone(),
        );
        ours.register_with_unit(
            "last_full_verification_timestamp",
            "Unix time of the end of the last full verification",
            Unit::Seconds,
            self.last_full_verification.clone(),
        );
        ours.register(
            "hook_attached",
            "Whether a kernel hook is attached, and how",
            self.hook_attached.clone(),
        );
        ours.register("backend", "The backend that detection runs on", self.backend.clone());
        ours.register(
            "vectors_unseen",
            "Kinds of changes, as doctor lists them, that this backend does not see at once on this kernel",
            self.vectors_unseen.clone(),
        );
        ours.register_with_unit(
            "canary_seen_timestamp",
            "Unix time at which the record of the last canary change arrived",
            Unit::Seconds,
            self.canary_seen.clone(),
        );
        ours.register(
            "image_scan_progress_ratio",
            "How much of the present round of the scan of the image is done, 0 between two rounds",
            self.image_scan_progress.clone(),
        );
        ours.register(
            "image_scan_differing",
            "Paths that the scan of the image found to differ",
            self.image_scan_differing.clone(),
        );
        ours.register(
            "image_scan_unreadable",
            "Paths that the scan of the image could not read",
            self.image_scan_unreadable.clone(),
        );
        ours.register(
            "image_scan_sealed",
            "Files that the scan of the image did not read again, because the kernel proves their content",
            self.image_scan_sealed.clone(),
        );
        ours.register_with_unit(
            "image_scan_ended_timestamp",
            "Unix time at which the last round of the scan of the image ended; before the first, since when the daemon scans; 0 without a rule that scans",
            Unit::Seconds,
            self.image_scan_ended.clone(),
        );
        ours.register("gaps", "Stretches of time in which events may have been missed", self.gaps.clone());
        ours.register("gaps_open", "Gaps whose things are not verified yet", self.gaps_open.clone());
    }

    fn register_forensic(&self, ours: &mut Registry) {
        ours.register(
            "forensic_records",
            "Records written to the forensic log",
            self.forensic_records.clone(),
        );
        ours.register_with_unit(
            "forensic_written",
            "Size of the records written to the forensic log",
            Unit::Bytes,
            self.forensic_bytes.clone(),
        );
        ours.register(
            "forensic_folded",
            "Refusals and executions without a record of their own, which another record counts",
            self.forensic_folded.clone(),
        );
        ours.register(
            "unknown_executions",
            "Executions of files that no config, image, package or baseline has, in directories of which Holdfast knows everything that should be there",
            self.unknown_executions.clone(),
        );
        ours.register(
            "unknown_loads",
            "Loads, as of libraries, of files that no config, image, package or baseline has, in directories of which Holdfast knows everything that should be there",
            self.unknown_loads.clone(),
        );
        ours.register(
            "forensic_dropped",
            "Records dropped because the log could not be written and memory for them ran out",
            self.forensic_dropped.clone(),
        );
        ours.register(
            "forensic_degraded",
            "1 while the forensic log cannot be written",
            self.forensic_degraded.clone(),
        );
        ours.register(
            "forensic_pending",
            "Records that wait in memory to be written",
            self.forensic_pending.clone(),
        );
        ours.register(
            "forensic_missing_entries",
            "Entries that were on the disk and were missing from the forensic log at this start",
            self.forensic_missing.clone(),
        );
        ours.register_with_unit(
            "forensic_chain_checkpoint_timestamp",
            "Unix time of the last checkpoint of the chain",
            Unit::Seconds,
            self.forensic_checkpoint.clone(),
        );
    }
}
