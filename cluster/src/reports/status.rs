//! The status of a node's `DriftReport`.

use super::actor::{PodName, PodNames, by, changed_by};
use crate::api::{
    Drift, DriftReportStatus, DriftState, NewestDrift, ReportedGap, ReportedLogEntry, ReportedOsImage,
};
use crate::text::fit;
use jiff::Timestamp;
use sensor_model::{
    socket::LogCheckpoint,
    status::{BootedImage, DriftedThing, NodeStatus, OpenGap},
    verdict::VerdictKind,
};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Most drifts in a report.
pub(super) const DRIFTS: usize = 100;
/// Most bytes of all drifts of a report in JSON. etcd accepts objects of up to 1.5 MiB.
const DRIFTS_BYTES: usize = 160 << 10;
/// Most gaps in a report.
const GAPS: usize = 20;
/// Longest path, in bytes of JSON.
const PATH_BYTES: usize = 1024;
/// Longest name of a MachineConfig.
const SOURCE_BYTES: usize = 253;
/// Longest name of an image.
const IMAGE_BYTES: usize = 512;
/// Longest reason of a gap.
const REASON_BYTES: usize = 256;
/// Bytes of a SHA-256 as text.
const HASH_BYTES: usize = 64;
/// Room that a pod's namespace and name and a container's name take in an entry when they are found.
const POD_NAMES_BYTES: usize = 63 + 253 + 63 + 60;

/// The report of a status, without names of pods and containers.
pub fn status_of(status: &NodeStatus, log: Option<&LogCheckpoint>) -> DriftReportStatus {
    let mut bytes = 0;
    let drifts: Vec<Drift> = newest_first(status)
        .into_iter()
        .take(DRIFTS)
        .map(|(since, thing)| drift(since, thing))
        .take_while(|drift| {
            bytes += json_bytes(drift) + POD_NAMES_BYTES;
            bytes <= DRIFTS_BYTES
        })
        .collect();
    let has_drifts = !status.drifted.is_empty() || status.left_out.drifted > 0;
    let state = match status.verdict {
        VerdictKind::Compliant | VerdictKind::Touched if !has_drifts => DriftState::InSync,
        VerdictKind::Unknown if !has_drifts => DriftState::Unknown,
        _ => DriftState::Drifted,
    };
    let mut report = DriftReportStatus {
        observed_at: time(&status.time),
        state,
        degraded: status.degraded,
        count: sum(status.drifted.len(), status.left_out.drifted),
        newest: None,
        more: sum(status.drifted.len() - drifts.len(), status.left_out.drifted),
        drifts,
        gaps: status.gaps.iter().filter(|gap| gap.until.is_none()).take(GAPS).map(gap).collect(),
        more_gaps: 0,
        backend: (!status.backend.is_empty()).then(|| fit(&status.backend, HASH_BYTES)),
        log: log.map(entry),
        log_rewritten: None,
        policies: Vec::new(),
        plan: None,
        node_uid: None,
        os_image: status.booted_image.as_ref().map(booted),
        config: None,
    };
    let open = status.gaps.iter().filter(|gap| gap.until.is_none()).count();
    report.more_gaps = sum(open - report.gaps.len(), status.left_out.gaps);
    set_newest(&mut report);
    report
}

/// What differs, with its time.
pub(super) fn newest_first(status: &NodeStatus) -> Vec<(Option<Timestamp>, &DriftedThing)> {
    let mut things: Vec<(Option<Timestamp>, &DriftedThing)> =
        status.drifted.iter().map(|thing| (thing.since.parse().ok(), thing)).collect();
    things.sort_unstable_by_key(|(since, thing)| (Reverse(*since), &thing.path, thing.thing));
    things
}

/// The oldest difference in the Machine Config Operator's words; `None` if nothing differs.
pub fn drift_text(status: &NodeStatus) -> Option<String> {
    let oldest =
        status.drifted.iter().min_by_key(|thing| (thing.since.parse::<Timestamp>().ok(), &thing.path))?;
    oldest.differences.first().map(|difference| difference.text.clone())
}

/// The uids of the pods in a report, and the ids of their containers, that have no name yet. A container of no pod has none in the API.
pub fn unnamed_pods(report: &DriftReportStatus) -> BTreeSet<String> {
    let in_pods = report.drifts.iter().filter_map(|drift| drift.by.as_ref()).filter_map(|by| {
        let uid = by.pod_uid.as_ref()?;
        let pod = by.pod_name.is_none().then_some(uid);
        Some([pod, by.container_id.as_ref().filter(|_| by.container_name.is_none())])
    });
    in_pods.flatten().flatten().cloned().collect()
}

/// Writes the names of pods and containers into a report. One without a name in `names` keeps the one that it has.
pub fn name_pods(report: &mut DriftReportStatus, names: &PodNames) {
    for by in report.drifts.iter_mut().filter_map(|drift| drift.by.as_mut()) {
        names.name(by);
    }
    set_newest(report);
}

/// The names of pods and containers that a report has.
pub fn names_in(report: &DriftReportStatus) -> PodNames {
    let mut names = PodNames::default();
    for by in report.drifts.iter().filter_map(|drift| drift.by.as_ref()) {
        if let (Some(uid), Some(namespace), Some(name)) = (&by.pod_uid, &by.pod_namespace, &by.pod_name) {
            let pod = PodName { namespace: namespace.clone(), name: name.clone() };
            names.pods.insert(uid.clone(), pod);
        }
        if let (Some(id), Some(name)) = (&by.container_id, &by.container_name) {
            names.containers.insert(id.clone(), name.clone());
        }
    }
    names
}

pub(super) fn set_newest(report: &mut DriftReportStatus) {
    report.newest = report.drifts.first().map(|drift| NewestDrift {
        path: drift.path.clone(),
        by: by(drift.by.as_ref()),
        since: drift.since.clone(),
    });
}

/// One drifted thing. The expected and found values stay out: they may hold parts of contents.
pub(super) fn drift(since: Option<Timestamp>, thing: &DriftedThing) -> Drift {
    let kinds: BTreeSet<_> = thing.differences.iter().map(|difference| difference.kind).collect();
    Drift {
        kind: thing.thing.map(|kind| kind.as_str().to_owned()),
        path: fit(&thing.path, PATH_BYTES),
        differences: kinds.into_iter().map(|kind| kind.as_str().to_owned()).collect(),
        since: since.map(|since| since.to_string()),
        by: thing.actor.as_ref().map(changed_by),
        source: fit(&thing.source, SOURCE_BYTES),
        strength: thing.strength.map(|strength| strength.as_str().to_owned()),
        policy: thing.action.map(|action| action.as_str().to_owned()),
        allowed: thing.allowed,
    }
}

/// The booted image of a sensor's status.
fn booted(image: &BootedImage) -> ReportedOsImage {
    let text = |text: &Option<String>| text.as_deref().map(|text| fit(text, IMAGE_BYTES));
    ReportedOsImage {
        booted: text(&image.name),
        booted_digest: text(&image.digest),
        built_from: text(&image.config),
        ..ReportedOsImage::default()
    }
}

pub(super) fn gap(gap: &OpenGap) -> ReportedGap {
    ReportedGap {
        since: time(&gap.since),
        reason: fit(&gap.reason, REASON_BYTES),
        path: gap.path.as_deref().map(|path| fit(path, PATH_BYTES)),
    }
}

/// An entry of the log, as a report keeps it.
pub fn entry(log: &LogCheckpoint) -> ReportedLogEntry {
    ReportedLogEntry {
        sequence: i64::try_from(log.sequence).unwrap_or(i64::MAX),
        hash: fit(&log.hash, HASH_BYTES),
        time: time(&log.time),
    }
}

/// A time that the API server accepts; none if the text is no time.
fn time(text: &str) -> Option<String> {
    text.parse::<Timestamp>().ok().map(|time| time.to_string())
}

/// A number of elements, with those that the sensor leaves out.
pub(super) fn sum(count: usize, left_out: u64) -> i64 {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    i64::try_from(count.saturating_add(left_out)).unwrap_or(i64::MAX)
}

fn json_bytes(drift: &Drift) -> usize {
    // Structures of texts and numbers always have a JSON.
    serde_json::to_vec(drift).map_or(DRIFTS_BYTES, |json| json.len() + 1)
}
