//! The cost of a comparison of two rendered configs, and its growth with their size.
//!
//! In: the lines of `sensor-model`'s example `compare`. Out: a table with the budget, and a section of `docs/performance.md` with
//! the growth as a plot. It counts CPU time, the cheapest of many runs. Growth is a ratio of two of these, so that it depends on
//! the code and not on the machine.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::output::BenchFormat;
use super::section::{self as page, COMPARE};
use crate::dist;
use crate::run::{cargo, output, say};

/// At most, for [`BUDGET_FILES`] files on each side, whatever differs.
const BUDGET_MILLISECONDS: f64 = 20.0;
const BUDGET_FILES: u64 = 10_000;
/// Twice the files may cost this many times as much; caches make it more than two.
const GROWTH: f64 = 3.0;
/// The case without a budget: contents that must be decoded to be compared.
const DECODED: &str = "all are encoded otherwise, and the same";

/// One measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Measurement {
    case: String,
    files: u64,
    changes: u64,
    compare_nanoseconds: f64,
    plan_nanoseconds: f64,
}

impl Measurement {
    fn milliseconds(&self) -> f64 {
        self.compare_nanoseconds / 1e6
    }
}

/// Measures, prints, writes the section if asked to; fails when the budget is missed.
pub(crate) fn run(format: BenchFormat, write_docs: bool) -> Result<()> {
    say("bench", "comparing configs; a minute or two");
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "-p", "sensor-model", "--example", "compare"])
        .current_dir(dist::root());
    let rows = parse(&output(&mut command)?)?;
    match format {
        BenchFormat::Json => println!("{}", serde_json::to_string_pretty(&rows)?),
        BenchFormat::Table => print!("{}", table(&rows)),
    }
    if write_docs {
        page::write(COMPARE, &section(&rows))?;
    }
    let missed = misses(&rows);
    if !missed.is_empty() {
        bail!("{}", missed.join("; "));
    }
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Measurement>> {
    text.lines().map(|line| serde_json::from_str(line).context("what the example prints")).collect()
}

/// The rows over their budget, and the cases that grow faster than the configs.
fn misses(rows: &[Measurement]) -> Vec<String> {
    let mut missed = Vec::new();
    for row in rows.iter().filter(|row| row.files == BUDGET_FILES && row.case != DECODED) {
        if row.milliseconds() > BUDGET_MILLISECONDS {
            missed.push(format!("{}: {:.1} ms of {BUDGET_MILLISECONDS} ms", row.case, row.milliseconds()));
        }
    }
    for pair in rows.windows(2).filter(|pair| pair[0].case == pair[1].case) {
        let growth = pair[1].compare_nanoseconds / pair[0].compare_nanoseconds;
        // The smallest fit into caches that the next does not.
        if pair[0].files >= BUDGET_FILES / 2 && growth > GROWTH {
            missed.push(format!("{}: {growth:.1} times as much for {} files", pair[1].case, pair[1].files));
        }
    }
    missed
}

fn table(rows: &[Measurement]) -> String {
    let mut out = String::new();
    for row in rows {
        let (compare, plan) = (row.milliseconds(), row.plan_nanoseconds / 1e6);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "{:40} {:>6} files {compare:>8.2} ms, with the plan {plan:>8.2} ms",
            row.case, row.files
        );
    }
    out
}

fn section(rows: &[Measurement]) -> String {
    let mut out = format!(
        "{COMPARE}\nWritten by `cargo xtask bench --compare --write-docs`. Both rendered configs are in memory, with\n\
         files of 4 KiB. The figures are CPU time, the cheapest of 25 runs, so that other work of the machine has little\n\
         effect. The budget is {BUDGET_MILLISECONDS} ms for {BUDGET_FILES} files on each side. Twice the files may take at most {GROWTH} times\n\
         as long.\n\n\
         | | files | changes | compare | with the plan |\n|---|--:|--:|--:|--:|\n"
    );
    for row in rows.iter().filter(|row| row.files == BUDGET_FILES) {
        let (compare, plan) = (row.milliseconds(), row.plan_nanoseconds / 1e6);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {compare:.2} ms | {plan:.2} ms |",
            row.case, row.files, row.changes
        );
    }
    out.push_str(
        "\nTwo contents with the same encoded form are equal. Two base64 forms that differ before their last four characters\n\
         are different contents. Neither case needs decoding. Contents in different forms must be decoded. The budget does not\n\
         cover this cost.\n",
    );
    let cases: Vec<&str> = ["all differ", "identical", DECODED].into_iter().collect();
    for case in cases {
        let of_case: Vec<&Measurement> = rows.iter().filter(|row| row.case == case).collect();
        let list = |value: &dyn Fn(&Measurement) -> String| {
            of_case.iter().map(|row| value(row)).collect::<Vec<_>>().join(", ")
        };
        let _ = write!(
            out,
            "\n```mermaid\nxychart-beta\n    title \"{case}: milliseconds by files\"\n    x-axis [{}]\n    \
             y-axis \"ms\"\n    line [{}]\n```\n",
            list(&|row| row.files.to_string()),
            list(&|row| format!("{:.2}", row.milliseconds())),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, files: u64, milliseconds: f64) -> Measurement {
        let nanoseconds = milliseconds * 1e6;
        Measurement {
            case: case.to_owned(),
            files,
            changes: 0,
            compare_nanoseconds: nanoseconds,
            plan_nanoseconds: nanoseconds,
        }
    }

    #[test]
    fn the_budget_and_the_growth_are_judged() {
        assert_eq!(
            misses(&[row("a", 5_000, 9.0), row("a", 10_000, 19.0), row(DECODED, 10_000, 99.0)]),
            [""; 0]
        );
        assert_eq!(misses(&[row("a", 10_000, 21.0)]), ["a: 21.0 ms of 20 ms"]);
        assert_eq!(
            misses(&[row("a", 5_000, 1.0), row("a", 10_000, 4.0)]),
            ["a: 4.0 times as much for 10000 files"]
        );
    }
}
