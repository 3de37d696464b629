//! The budgets, and what was measured for each.
//!
//! In: measurements of a guest by name. Out: rows. A row without a budget is shown and not judged.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

/// What a guest measured, by name.
#[derive(Debug, Default)]
pub(crate) struct Measured(BTreeMap<String, Value>);

impl Measured {
    /// Adds one measurement.
    pub(crate) fn add(&mut self, name: String, data: Value) {
        self.0.insert(name, data);
    }

    pub(super) fn number(&self, name: &str, field: &str) -> Result<f64> {
        self.optional(name, field).with_context(|| format!("the guest did not measure {name} {field}"))
    }

    /// A field of a measurement, or null.
    pub(super) fn field(&self, name: &str, field: &str) -> Value {
        self.0.get(name).and_then(|value| value.get(field)).cloned().unwrap_or_default()
    }

    fn optional(&self, name: &str, field: &str) -> Option<f64> {
        let value = self.0.get(name)?;
        if field.is_empty() { value.as_f64() } else { value.get(field)?.as_f64() }
    }
}

/// The unit of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MeasureUnit {
    /// Executed instructions.
    Instructions,
    /// MiB.
    Mebibytes,
    /// Milliseconds of a CPU with 10^9 instructions a second.
    Milliseconds,
    /// How often in a minute.
    AMinute,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// The operation, or the property, that was measured.
    pub(crate) name: &'static str,
    /// The unit.
    pub(crate) unit: MeasureUnit,
    /// The figure without any watcher, for rows that have one.
    pub(crate) base: Option<f64>,
    /// What Holdfast adds to the base, or uses in all.
    pub(crate) ours: f64,
    /// The limit.
    pub(crate) budget: Option<f64>,
    /// Whether it is within the budget and the noise of the base.
    pub(crate) pass: Option<bool>,
    /// What other watchers add, by their names.
    pub(crate) peers: BTreeMap<&'static str, f64>,
}

/// Peers, by the names of their stages.
pub(crate) const PEERS: [&str; 2] = ["inotify", "auditd"];

/// Two measurements of the same thing differ by less than this fraction.
const NOISE: f64 = 0.001;

/// Name of the row, field of the operation, stage of ours, at most.
const OPERATIONS: [(&str, &str, &str, f64); 12] = [
    ("getppid", "getppid", "ours", 0.0),
    ("open read-only, unmanaged", "open-read", "ours", 220.0),
    ("open for write, unmanaged", "open-write", "ours", 260.0),
    ("write 64 B, unmanaged, idle", "write", "ours", 0.0),
    ("write 64 B, unmanaged, while a managed file is open for writing", "write", "ours, writing", 300.0),
    ("read 64 B, unmanaged, idle", "read", "ours", 0.0),
    ("read 64 B, unmanaged, while a managed file is open for writing", "read", "ours, writing", 190.0),
    ("pipe write + read, idle", "pipe", "ours", 0.0),
    ("pipe write + read, while a managed file is open for writing", "pipe", "ours, writing", 400.0),
    ("rename, unmanaged", "rename", "ours", 700.0),
    ("create + unlink, unmanaged", "create-unlink", "ours", 1_100.0),
    ("vfork + exec + wait", "exec", "ours", 4_000.0),
];

/// Name of the row, field of the operation, at most; with 100,000 inodes enrolled, in a boot of its own.
const MANY: [(&str, &str, f64); 2] = [
    ("open read-only, unmanaged, with 100,000 inodes enrolled", "open-read", 220.0),
    ("open for write, unmanaged, with 100,000 inodes enrolled", "open-write", 260.0),
];

/// Name of the row, field of the operation, at most; under the shipped rules, in a boot of its own.
const LIVE: [(&str, &str, f64); 9] = [
    ("getppid, under the shipped rules", "getppid", 0.0),
    ("open read-only, unmanaged, under the shipped rules", "open-read", 220.0),
    ("open for write, unmanaged, under the shipped rules", "open-write", 260.0),
    ("write 64 B, unmanaged, under the shipped rules", "write", 0.0),
    ("read 64 B, unmanaged, under the shipped rules", "read", 0.0),
    ("pipe write + read, under the shipped rules", "pipe", 0.0),
    ("rename, unmanaged, under the shipped rules", "rename", 700.0),
    ("create + unlink, unmanaged, under the shipped rules", "create-unlink", 1_100.0),
    ("vfork + exec + wait of a watched program that is as in the image", "exec", 4_000.0),
];

/// Name of the row, measurement, field, at most.
const CHANGES: [(&str, &str, &str, Option<f64>); 4] = [
    ("open, write, close of a managed file, all CPU work", "changes", "row", Some(12_000.0)),
    ("the same over 1,000 files by turns", "changes", "turns", None),
    ("the same once in 50 ms, each with its own verdict and record", "changes", "single", None),
    ("nothing happens for a second", "idle second", "", None),
];

/// Name of the row, measurement, field, unit, divisor, at most.
type Quantity = (&'static str, &'static str, &'static str, MeasureUnit, f64, Option<f64>);

const OTHERS: [Quantity; 12] = [
    (
        "memory with 10,000 managed files",
        "memory at start",
        "resident_kib",
        MeasureUnit::Mebibytes,
        KIB,
        Some(20.0),
    ),
    (
        "of that not backed by the program's file",
        "memory at start",
        "anonymous_kib",
        MeasureUnit::Mebibytes,
        KIB,
        None,
    ),
    (
        "memory of the daemon at its highest, while starting",
        "memory at start",
        "peak_kib",
        MeasureUnit::Mebibytes,
        KIB,
        None,
    ),
    ("memory after all that follows", "memory at end", "resident_kib", MeasureUnit::Mebibytes, KIB, None),
    ("kernel maps with 10,000 managed files", "map memory", "", MeasureUnit::Mebibytes, KIB * KIB, None),
    (
        "all CPU work until the programs are attached and the files known",
        "start",
        "cpu_ns",
        MeasureUnit::Milliseconds,
        NS,
        None,
    ),
    (
        "CPU of the first verification of 10,000 files",
        "first verification",
        "",
        MeasureUnit::Milliseconds,
        NS,
        Some(2_000.0),
    ),
    (
        "write to verdict and record of drift, median",
        "drift latency",
        "median_ns",
        MeasureUnit::Milliseconds,
        NS,
        Some(2.0),
    ),
    (
        "write to verdict and record of drift, p99",
        "drift latency",
        "p99_ns",
        MeasureUnit::Milliseconds,
        NS,
        Some(10.0),
    ),
    (
        "write to verdict and record of recovery, median",
        "recovered latency",
        "median_ns",
        MeasureUnit::Milliseconds,
        NS,
        Some(2.0),
    ),
    (
        "write to verdict and record of recovery, p99",
        "recovered latency",
        "p99_ns",
        MeasureUnit::Milliseconds,
        NS,
        Some(10.0),
    ),
    (
        "100,000 changes of 1,000 managed files on one CPU",
        "burst",
        "wall_ns",
        MeasureUnit::Milliseconds,
        NS,
        None,
    ),
];

pub(super) const KIB: f64 = 1024.0;
/// Nanoseconds of a millisecond.
pub(super) const NS: f64 = 1e6;

/// All rows, in the order of the table.
pub(crate) fn rows(measured: &Measured) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, field, stage, budget) in OPERATIONS {
        let of = |stage: &str| measured.number(&format!("{stage} operations"), field);
        let mut row = added(name, [of("base-1")?, of("base-2")?], of(stage)?, Some(budget));
        if stage == "ours" {
            row.add_peers(|peer| measured.optional(&format!("{peer} operations"), field));
        }
        rows.push(row);
    }
    rows.extend(many(measured)?);
    for (name, what, field, budget) in CHANGES {
        let of = |stage: &str| measured.number(&format!("{stage} {what}"), field);
        let mut row = added(name, [of("base-1")?, of("base-2")?], of("ours")?, budget);
        row.add_peers(|peer| measured.optional(&format!("{peer} {what}"), field));
        rows.push(row);
    }
    for (name, what, field, unit, divisor, budget) in OTHERS {
        let ours = measured.number(what, field)? / divisor;
        let pass = budget.map(|budget| ours <= budget);
        rows.push(Row { name, unit, base: None, ours, budget, pass, peers: BTreeMap::new() });
    }
    Ok(rows)
}

/// The rows of the operations in a boot with one base, with the sensor at a stage.
pub(super) fn operations(measured: &Measured, stage: &str) -> Result<Vec<Row>> {
    let row = |(name, field, ours, budget): (&'static str, &str, &str, f64)| {
        let of = |stage: &str| measured.number(&format!("{stage} operations"), field);
        let base = of("base")?;
        Ok(added(name, [base, base], of(&ours.replacen("ours", stage, 1))?, Some(budget)))
    };
    OPERATIONS.into_iter().map(row).collect()
}

/// The rows with a boot of their own: with 100,000 inodes enrolled, and under the shipped rules.
pub(crate) fn many(measured: &Measured) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, field, budget) in MANY {
        let base = measured.number("many, base operations", field)?;
        rows.push(added(name, [base, base], measured.number("many, ours operations", field)?, Some(budget)));
    }
    let bytes = measured.number("many, maps", "bytes")?;
    rows.push(Row {
        name: "kernel maps with 100,000 inodes enrolled",
        unit: MeasureUnit::Mebibytes,
        base: None,
        ours: bytes / KIB / KIB,
        budget: None,
        pass: None,
        peers: BTreeMap::new(),
    });
    for (name, field, budget) in LIVE {
        let base = measured.number("live, base operations", field)?;
        rows.push(added(name, [base, base], measured.number("live, ours operations", field)?, Some(budget)));
    }
    Ok(rows)
}

/// The largest relative difference between the base after the daemon ended and the base before it started.
pub(crate) fn between_the_bases(measured: &Measured) -> Result<f64> {
    let operations = OPERATIONS.map(|(_, field, _, _)| ("operations", field));
    let changes = CHANGES.map(|(_, what, field, _)| (what, field));
    let mut most: f64 = 0.0;
    for (what, field) in operations.into_iter().chain(changes) {
        let of = |stage: &str| measured.number(&format!("{stage} {what}"), field);
        let (before, after) = (of("base-1")?, of("base-2")?);
        most = most.max((after - before).abs() / before);
    }
    Ok(most)
}

/// Whether a row of that name is judged.
#[cfg(test)]
pub(crate) fn has_budget(name: &str) -> bool {
    OPERATIONS.iter().any(|row| row.0 == name)
        || MANY.iter().chain(&LIVE).any(|row| row.0 == name)
        || CHANGES.iter().any(|row| row.0 == name && row.3.is_some())
        || OTHERS.iter().any(|row| row.0 == name && row.5.is_some())
}

fn added(name: &'static str, bases: [f64; 2], ours: f64, budget: Option<f64>) -> Row {
    // The first base only. The second is measured after the daemon has ended, and is compared with the first elsewhere.
    let [base, _after] = bases;
    let noise = base * NOISE;
    let added = ours - base;
    let pass = budget.map(|budget| added <= budget + noise);
    Row {
        name,
        unit: MeasureUnit::Instructions,
        base: Some(base),
        ours: added,
        budget,
        pass,
        peers: BTreeMap::new(),
    }
}

impl Row {
    fn add_peers(&mut self, measured: impl Fn(&str) -> Option<f64>) {
        let Some(base) = self.base else { return };
        let found = PEERS.into_iter().filter_map(|peer| Some((peer, measured(peer)? - base)));
        self.peers.extend(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_base_before_us_counts_and_a_budget_has_a_thousandth_of_it_to_spare() {
        let pass = |ours| added("x", [1000.0, 1100.0], ours, Some(50.0)).pass;
        assert_eq!(pass(1051.0), Some(true));
        assert_eq!(pass(1052.0), Some(false));
    }

    #[test]
    fn the_bases_differ_by_as_much_as_their_most_different_rows() {
        let mut measured = Measured::default();
        for (stage, write) in [("base-1", 100.0), ("base-2", 98.0)] {
            let fields = OPERATIONS.map(|(_, field, _, _)| (field.to_owned(), 10.0));
            let mut operations: BTreeMap<String, f64> = fields.into();
            operations.insert("write".to_owned(), write);
            measured.add(format!("{stage} operations"), serde_json::json!(operations));
            measured.add(format!("{stage} idle second"), 5.0.into());
            let changes = serde_json::json!({ "row": 7.0, "turns": 7.0, "single": 7.0 });
            measured.add(format!("{stage} changes"), changes);
        }
        assert!((between_the_bases(&measured).unwrap() - 0.02).abs() < 1e-9);
    }

    #[test]
    fn a_measurement_that_is_missing_is_named() {
        let error = rows(&Measured::default()).unwrap_err().to_string();
        assert!(error.contains("base-1 operations getppid"), "{error}");
    }
}
