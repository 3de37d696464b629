//! Whether what Holdfast said of a vector is right.
//!
//! Comes in: a vector, the path it was done to, the process that did it, the records since. Goes out: right, not yet,
//! or wrong and why. Pure.

use anyhow::{Error, anyhow};
use serde_json::Value;

use super::Row;
use crate::vectors::{Expected, Vector, Who};

/// What the records say so far.
#[derive(Debug)]
pub(super) enum Found {
    /// The right record is there.
    Right(Row),
    /// It may still come; what is there meanwhile.
    NotYet(Error),
    /// It will not come any more.
    Wrong(Error),
}

/// Judges one vector.
pub(super) fn judge(vector: &Vector, path: &str, pid: u32, records: &[Value]) -> Found {
    let about: Vec<&Value> = records.iter().filter(|record| record["path"] == path).collect();
    let Some(kind) = vector.expected.record() else {
        return match about.first() {
            Some(record) => Found::Wrong(anyhow!("nothing was to be said, but: {record}")),
            None => Found::NotYet(anyhow!("nothing was said")),
        };
    };
    let wrong_kind = match vector.expected {
        Expected::Touched | Expected::Exec => about.iter().find(|record| record["kind"] == "drift"),
        _ => None,
    };
    if let Some(record) = wrong_kind {
        return Found::Wrong(anyhow!("{kind} was to be said, but: {record}"));
    }
    let of_kind: Vec<&&Value> = about.iter().filter(|record| record["kind"] == kind).collect();
    let matching = of_kind.iter().find(|record| match vector.expected.difference() {
        None => true,
        Some(wanted) => {
            record["differences"].as_array().is_some_and(|list| list.iter().any(|d| d["kind"] == wanted))
        }
    });
    let Some(record) = matching else {
        let said: Vec<String> = about.iter().map(|record| brief(record)).collect();
        return Found::NotYet(anyhow!("no {:?}; records of {path}: [{}]", vector.expected, said.join(", ")));
    };
    if let Expected::TamperThenDrift(_) = vector.expected {
        let tamper = records.iter().any(|r| r["kind"] == "tamper" && r["actor"]["pid"] == pid);
        if !tamper {
            return Found::Wrong(anyhow!("the opening of the device by {pid} was not recorded"));
        }
    }
    // Several records of an episode may name different steps of it; one of them has to name the right actor.
    let named = of_kind.iter().any(|record| names(vector, &record["actor"], pid));
    if !named {
        return Found::Wrong(anyhow!("{:?} {pid} was to be named, but: {record}", vector.who));
    }
    let operation = record["operation"].as_str().unwrap_or_default().to_owned();
    Found::Right(Row { swept: vector.who == Who::Nobody, operation })
}

fn names(vector: &Vector, actor: &Value, pid: u32) -> bool {
    let ancestor = || {
        actor["ancestors"].as_array().is_some_and(|list| list.iter().any(|ancestor| ancestor["pid"] == pid))
    };
    match vector.who {
        Who::Doer => actor["pid"] == pid,
        Who::Child => actor["pid"] != pid && ancestor(),
        Who::Called(what) => actor["pid"] == pid && called(actor, what),
        Who::Unit(start) => {
            actor["pid"] == pid && actor["unit"].as_str().is_some_and(|unit| unit.starts_with(start))
        }
        Who::Device => ancestor() || called(actor, "[loop") || called(actor, "[kworker"),
        Who::Orphan => called(actor, "orphan"),
        Who::Nobody => true,
    }
}

/// Whether an argument of the actor's program holds a text.
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

    #[test]
    fn the_right_path_kind_and_process_are_right_and_another_process_is_wrong() {
        let judged = |record: Value| judge(vector("V01a"), "/a", 7, &[record]);
        assert!(matches!(judged(drift(7, "content")), Found::Right(_)));
        assert!(matches!(judged(drift(8, "content")), Found::Wrong(_)));
        assert!(matches!(judged(drift(7, "mode")), Found::NotYet(_)));
        assert!(matches!(judge(vector("V01a"), "/b", 7, &[drift(7, "content")]), Found::NotYet(_)));
    }

    #[test]
    fn drift_where_only_a_touch_was_is_wrong() {
        assert!(matches!(judge(vector("V43"), "/a", 7, &[drift(7, "content")]), Found::Wrong(_)));
    }

    #[test]
    fn a_device_opened_by_another_process_is_not_the_one() {
        let tamper = |pid: u32| json!({ "kind": "tamper", "path": "/dev/vda", "actor": { "pid": pid } });
        let judged = |pid| judge(vector("V68"), "/a", 7, &[tamper(pid), drift(7, "content")]);
        assert!(matches!(judged(7), Found::Right(_)));
        assert!(matches!(judged(9), Found::Wrong(_)));
    }
}
