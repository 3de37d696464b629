//! Whether Holdfast's report of a vector is right.
//!
//! In: a vector, its file system and path, the performing process, the records since. Out: right, not yet, or wrong
//! with the reason. Pure.

use anyhow::{Error, anyhow};
use serde_json::Value;

use crate::guest::disks::FileSystem;
use crate::vectors::{ExpectedActor, ExpectedReport, Vector, operations_of};

/// The result for the records so far.
#[derive(Debug)]
pub(super) enum JudgeResult {
    /// The right record exists.
    Right(CoverageRow),
    /// It may still come; the records so far.
    NotYet(Error),
    /// It cannot come any more.
    Wrong(Error),
}

/// Operations without a hook of the vector: a sweep found the change, or a process closed a file that it had open
/// before the start.
const WITHOUT_HOOK: &[&str] = &[SWEEP, "release"];
const SWEEP: &str = "sweep";

/// Judges one vector.
pub(super) fn judge(
    vector: &Vector,
    kind: FileSystem,
    path: &str,
    pid: u32,
    records: &[Value],
) -> JudgeResult {
    let about: Vec<&Value> = records.iter().filter(|record| record["path"] == path).collect();
    let Some(wanted_kind) = vector.expected.record() else {
        return match about.first() {
            Some(record) => {
                JudgeResult::Wrong(anyhow!("Holdfast should report nothing, and reported: {record}"))
            }
            None => JudgeResult::NotYet(anyhow!("Holdfast has reported nothing")),
        };
    };
    let wrong_kind = match vector.expected {
        ExpectedReport::Touched | ExpectedReport::Exec => {
            about.iter().find(|record| record["kind"] == "drift")
        }
        _ => None,
    };
    if let Some(record) = wrong_kind {
        return JudgeResult::Wrong(anyhow!("Holdfast should report {wanted_kind}, and reported: {record}"));
    }
    let of_kind: Vec<&&Value> = about.iter().filter(|record| record["kind"] == wanted_kind).collect();
    let matching = of_kind.iter().find(|record| match vector.expected.difference() {
        None => true,
        Some(wanted) => {
            record["differences"].as_array().is_some_and(|list| list.iter().any(|d| d["kind"] == wanted))
        }
    });
    let Some(record) = matching else {
        let records_of_path: Vec<String> = about.iter().map(|record| brief(record)).collect();
        return JudgeResult::NotYet(anyhow!(
            "no {:?}; records of {path}: [{}]",
            vector.expected,
            records_of_path.join(", ")
        ));
    };
    if let ExpectedReport::TamperThenDrift(_) = vector.expected {
        let tamper = records.iter().any(|r| r["kind"] == "tamper" && r["actor"]["pid"] == pid);
        // While a preempted task waits inside the program, the kernel skips it for other tasks. Then a gap is the right report.
        let tamper = tamper || records.iter().any(|r| r["detail"]["reason"] == "recursion-missed");
        if !tamper {
            // The verification of another opening may come first.
            return JudgeResult::NotYet(anyhow!("the opening of the device by {pid} was not recorded"));
        }
    }
    if is_unseen(vector, kind) && record["operation"] == SWEEP && record["actor"].is_null() {
        return JudgeResult::Right(CoverageRow { swept: true, operation: SWEEP.to_owned() });
    }
    // Several records of an episode may name different steps of it. One of them must name the right actor.
    let named: Vec<_> = of_kind.iter().filter(|record| names(vector, &record["actor"], pid)).collect();
    if named.is_empty() {
        return JudgeResult::Wrong(anyhow!("{:?} {pid} was to be named, but: {record}", vector.who));
    }
    // And one of these must come from a hook in the table's row.
    let mut allowed =
        if vector.hooks.is_empty() { WITHOUT_HOOK.to_vec() } else { operations_of(vector.hooks) };
    if is_unseen(vector, kind) {
        allowed.extend(operations_of(&["file_open"]));
    }
    // A verification in the middle may report the close of the same open.
    let uses = operations_of(&["file_open", "file_permission", "inode_create"]);
    if allowed.iter().any(|operation| uses.contains(operation)) {
        allowed.extend(operations_of(&["file_release"]));
    }
    // The daemon may enrol a new inode between its creation and its opening. Then the opening is the last step that is known.
    if allowed.iter().any(|operation| operations_of(&["inode_create"]).contains(operation)) {
        allowed.extend(operations_of(&["file_open"]));
    }
    let operations = named.iter().filter_map(|record| record["operation"].as_str());
    let Some(operation) = operations.clone().find(|operation| allowed.contains(operation)) else {
        let reported: Vec<&str> = operations.collect();
        return JudgeResult::Wrong(anyhow!(
            "expected a record of one of {allowed:?}, found: {reported:?}; {record}"
        ));
    };
    JudgeResult::Right(CoverageRow {
        swept: vector.who == ExpectedActor::NoActor,
        operation: operation.to_owned(),
    })
}

/// A mapping on an overlay is one of the lower file. While the overlay's file is open, the daemon verifies it, and
/// names the process that opened or closed it. After the close nothing reports the stores: such files are never
/// compliant, and the full verification finds the difference.
fn is_unseen(vector: &Vector, kind: FileSystem) -> bool {
    kind == FileSystem::Overlay
        && vector.hooks.iter().any(|hook| matches!(*hook, "mmap_file" | "file_mprotect"))
}

fn names(vector: &Vector, actor: &Value, pid: u32) -> bool {
    let ancestor = || {
        actor["ancestors"].as_array().is_some_and(|list| list.iter().any(|ancestor| ancestor["pid"] == pid))
    };
    match vector.who {
        ExpectedActor::Doer => actor["pid"] == pid,
        ExpectedActor::Child => actor["pid"] != pid && ancestor(),
        ExpectedActor::Called(what) => actor["pid"] == pid && called(actor, what),
        ExpectedActor::Unit(start) => {
            actor["pid"] == pid && actor["unit"].as_str().is_some_and(|unit| unit.starts_with(start))
        }
        ExpectedActor::Worker => (actor["pid"] != pid && ancestor()) || called(actor, "[io_w"),
        ExpectedActor::Device => ancestor() || called(actor, "[loop") || called(actor, "[kworker"),
        ExpectedActor::Orphan => called(actor, "orphan"),
        ExpectedActor::NoActor => true,
    }
}

/// Whether an argument of the actor's program contains a text.
fn called(actor: &Value, what: &str) -> bool {
    let mut arguments = actor["argv"].as_array().into_iter().flatten().filter_map(Value::as_str);
    arguments.any(|argument| argument.contains(what))
}

fn brief(record: &Value) -> String {
    format!(
        "{} {} {} by {} {}",
        record["kind"],
        record["operation"],
        record["differences"],
        record["actor"]["pid"],
        record["actor"]["argv"]
    )
}

/// A row of the coverage table.
#[derive(Debug)]
pub(super) struct CoverageRow {
    pub(super) operation: String,
    pub(super) swept: bool,
}

impl CoverageRow {
    pub(super) fn summary(&self) -> String {
        if self.swept { "swept".to_owned() } else { self.operation.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::all;
    use serde_json::json;

    fn vector(id: &str) -> &'static Vector {
        all().find(|vector| vector.id == id).expect("in the table")
    }

    fn drift(pid: u32, kind: &str) -> Value {
        json!({ "kind": "drift", "path": "/a", "operation": "write", "differences": [{ "kind": kind }],
                "actor": { "pid": pid, "argv": ["x"], "ancestors": [{ "pid": 1 }] } })
    }

    fn judged(id: &str, path: &str, records: &[Value]) -> JudgeResult {
        judge(vector(id), FileSystem::Ext4, path, 7, records)
    }

    fn by(operation: &str, pid: u32) -> Value {
        let mut record = drift(pid, "content");
        record["operation"] = operation.into();
        record
    }

    /// By a child of the performing process.
    fn descendant(operation: &str) -> Value {
        let mut record = by(operation, 9);
        record["actor"]["ancestors"] = json!([{ "pid": 7 }]);
        record
    }

    #[test]
    fn the_right_path_kind_and_process_are_right_and_another_process_is_wrong() {
        let judged_at = |path, record: Value| judged("V01a", path, &[record]);
        assert!(matches!(judged_at("/a", drift(7, "content")), JudgeResult::Right(_)));
        assert!(matches!(judged_at("/a", drift(8, "content")), JudgeResult::Wrong(_)));
        assert!(matches!(judged_at("/a", drift(7, "mode")), JudgeResult::NotYet(_)));
        assert!(matches!(judged_at("/b", drift(7, "content")), JudgeResult::NotYet(_)));
    }

    #[test]
    fn drift_where_only_a_touch_was_is_wrong() {
        assert!(matches!(judged("V43", "/a", &[by("set-attributes", 7)]), JudgeResult::Wrong(_)));
    }

    #[test]
    fn a_record_that_no_hook_of_the_vector_gives_is_wrong_though_it_names_the_right_process() {
        assert!(matches!(judged("V19a", "/a", &[by("map", 7)]), JudgeResult::Right(_)));
        for other in ["open-write", "release", SWEEP] {
            assert!(matches!(judged("V19a", "/a", &[by(other, 7)]), JudgeResult::Wrong(_)), "{other}");
        }
        // Another process's record from the right hook does not suffice.
        assert!(matches!(judged("V19a", "/a", &[by("open-write", 7), by("map", 8)]), JudgeResult::Wrong(_)));
        assert!(matches!(judged("V19c", "/a", &[by(SWEEP, 7)]), JudgeResult::Right(_)));
        assert!(matches!(judged("V19c", "/a", &[by("map", 7)]), JudgeResult::Wrong(_)));
    }

    #[test]
    fn only_a_mapping_on_an_overlay_may_be_found_without_anybody() {
        let mut found = by(SWEEP, 0);
        found["actor"] = Value::Null;
        let judged = |id, kind| judge(vector(id), kind, "/a", 7, std::slice::from_ref(&found));
        assert!(matches!(
            judged("V19b", FileSystem::Overlay),
            JudgeResult::Right(CoverageRow { swept: true, .. })
        ));
        assert!(matches!(judged("V19b", FileSystem::Tmpfs), JudgeResult::Wrong(_)));
        assert!(matches!(judged("V01a", FileSystem::Overlay), JudgeResult::Wrong(_)));
        for operation in ["open-write", "release"] {
            let judged = |kind| judge(vector("V20"), kind, "/a", 7, &[descendant(operation)]);
            assert!(matches!(
                judged(FileSystem::Overlay),
                JudgeResult::Right(CoverageRow { swept: false, .. })
            ));
            assert!(matches!(judged(FileSystem::Ext4), JudgeResult::Wrong(_)));
        }
    }

    #[test]
    fn a_device_opened_by_another_process_is_not_the_one() {
        let tamper = |pid: u32| json!({ "kind": "tamper", "path": "/dev/vda", "actor": { "pid": pid } });
        let judged = |pid| judged("V68", "/a", &[tamper(pid), by(SWEEP, 7)]);
        assert!(matches!(judged(7), JudgeResult::Right(_)));
        assert!(matches!(judged(9), JudgeResult::NotYet(_)));
    }
}
