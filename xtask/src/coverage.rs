//! The coverage table: how Holdfast reports each vector, on each file system and kernel.
//!
//! In: the results of the scenario `vectors` in `target/vm-logs`, and the vector table. Out: `docs/vectors.md`, if the scenario ran on
//! every kernel: the tests before a merge run it on some. A test fails if code and document have different vectors, or different
//! introductions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, bail};
use vm_tests::guest::disks::FileSystem;
use vm_tests::protocol::{Ending, ResultLine};
use vm_tests::vectors::{self, Does, Vector};

use crate::run::say;
use crate::{dist, kernels};

const SCENARIO: &str = "bare-vectors";
/// The same scenario with fentry programs.
const BY_FENTRY: &str = "bare-vectors-fentry";
const DOCUMENT: &str = "docs/vectors.md";
/// The hint that names the run on all kernels.
const FULL_RUN: &str = "run: cargo xtask test --full";

const HEAD: &str = "# Vectors

A vector is one way in which a managed thing can change. These tables show how Holdfast reports each vector, on each kernel and
file system. `cargo xtask coverage` generates this file from the runs of `cargo xtask test --full`: do not edit it. In a run a
process of its own makes each change, and the report must have the right path and that process.

| word | meaning |
|---|---|
| reported | A hook reported the change, and the record names the actor. |
| swept | No hook can see the change. A verification found it, and the record names no actor. |
| not shown | The change has no effect on the path, and Holdfast reported nothing. |
| refused | The kernel or the file system has no such operation. |
| n/a | The vector does not apply to this file system. |
| - | The vector was not run. |

A word that differs between kernels has the kernel series before it.

";

/// Stores the results of a boot for the table.
pub(crate) fn keep(name: &str, results: &[ResultLine]) -> Result<()> {
    if ![SCENARIO, BY_FENTRY].iter().any(|scenario| name.ends_with(scenario)) {
        return Ok(());
    }
    let path = dist::root().join("target/vm-logs").join(format!("{name}.json"));
    fs::write(&path, serde_json::to_vec(results)?).with_context(|| format!("cannot write {}", path.display()))
}

/// The outcomes of a vector on a file system: kernel series with words.
type Outcomes = BTreeMap<(String, String), Vec<(String, &'static str)>>;

/// Runs of one scenario.
#[derive(Debug, Default)]
struct Runs {
    outcomes: Outcomes,
    series: Vec<&'static str>,
}

impl Runs {
    /// The results of the newest run of a scenario on each kernel.
    fn read(scenario: &str) -> Result<Self> {
        let mut runs = Self::default();
        for series in kernels::series() {
            let path = dist::root().join("target/vm-logs").join(format!("{series}-{scenario}.json"));
            let Ok(text) = fs::read(&path) else { continue };
            let results: Vec<ResultLine> =
                serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
            runs.series.push(series);
            for result in results {
                if let Some((id, kind)) = result.name.split_once('/') {
                    let row = runs.outcomes.entry((id.to_owned(), kind.to_owned())).or_default();
                    row.push((series.to_owned(), word(&result)));
                }
            }
        }
        Ok(runs)
    }

    /// The kernels of the matrix without results.
    fn missing(&self) -> Vec<&'static str> {
        kernels::series().filter(|series| !self.series.contains(series)).collect()
    }

    fn word(&self, key: &(String, String), series: &str) -> Option<&'static str> {
        self.outcomes.get(key)?.iter().find(|(known, _)| known == series).map(|(_, word)| *word)
    }
}

/// Writes the document.
pub(crate) fn write() -> Result<()> {
    let (runs, by_fentry) = (Runs::read(SCENARIO)?, Runs::read(BY_FENTRY)?);
    for (scenario, runs) in [(SCENARIO, &runs), (BY_FENTRY, &by_fentry)] {
        let missing = runs.missing();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            bail!("{scenario} was not run on {missing}: only a full run gives {DOCUMENT}\n    {FULL_RUN}");
        }
    }
    fs::write(dist::root().join(DOCUMENT), document(&runs, &by_fentry))?;
    say("coverage", &format!("{DOCUMENT}, from runs on {}", runs.series.join(", ")));
    Ok(())
}

/// The outcome in one word.
fn word(result: &ResultLine) -> &'static str {
    match (result.ending, result.data["outcome"].as_str()) {
        (Ending::Fail, _) => "FAILED",
        (Ending::Skip, _) => "refused",
        (Ending::Pass, Some("swept")) => "swept",
        (Ending::Pass, Some("not-shown")) => "not shown",
        (Ending::Pass, _) => "reported",
    }
}

fn document(runs: &Runs, by_fentry: &Runs) -> String {
    let mut text = HEAD.to_owned();
    let kinds = FileSystem::ALL.map(FileSystem::name);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "Kernels run: {}.\n", runs.series.join(", "));
    let _ = writeln!(text, "| id | vector | hooks | {} |", kinds.join(" | "));
    let _ = writeln!(text, "|---|---|---|{}", "---|".repeat(kinds.len()));
    let (mut shown, mut absent) = (String::new(), String::new());
    for vector in vectors::all() {
        let start = format!("| {} | {} | {} |", vector.id, vector.name, hooks(vector));
        match vector.does {
            Does::NotPerformed(reason) => {
                let _ = writeln!(absent, "{start} {reason} |");
            }
            Does::Shown { scenario, check } => {
                let _ = writeln!(shown, "{start} `{scenario}`, {check} |");
            }
            _ => {
                let cells = FileSystem::ALL
                    .map(|kind| cell(vector, kind, &runs.outcomes, runs.series.len()))
                    .join(" | ");
                let _ = writeln!(text, "{start} {cells} |");
            }
        }
    }
    text.push_str(&through_fentry(runs, by_fentry));
    text.push_str(
        "\n## Shown by other scenarios\n\n| id | vector | hooks | scenario and check |\n|---|---|---|---|\n",
    );
    text.push_str(&shown);
    text.push_str("\n## Not performed\n\n| id | vector | hooks | why |\n|---|---|---|---|\n");
    text.push_str(&absent);
    text
}

/// The section on fentry: the outcomes that differ from those with LSM programs, for kernels with results of both.
fn through_fentry(runs: &Runs, by_fentry: &Runs) -> String {
    let mut text = "\n## With fentry programs\n\nIf `bpf` is not among the security modules, the daemon attaches fentry programs to the \
                    functions that call the hooks.\n`cargo xtask vm --guest bare --scenario vectors-fentry` tests them. "
        .to_owned();
    if by_fentry.series.is_empty() {
        text.push_str("Not run.\n");
        return text;
    }
    let _ = write!(text, "Kernels run: {}. ", by_fentry.series.join(", "));
    let is_compared = |series: &str| runs.series.contains(&series);
    let mut rows = String::new();
    for (key, outcomes) in &by_fentry.outcomes {
        for (series, word) in outcomes.iter().filter(|(series, _)| is_compared(series)) {
            let by_lsm = runs.word(key, series).unwrap_or("-");
            if by_lsm != *word {
                let _ = writeln!(rows, "| {series} | {} | {} | {by_lsm} | {word} |", key.0, key.1);
            }
        }
    }
    if !by_fentry.series.iter().any(|series| is_compared(series)) {
        text.push_str("No kernel was run with LSM programs as well.\n");
    } else if rows.is_empty() {
        text.push_str("All outcomes are the same as above.\n");
    } else {
        text.push_str(
            "These outcomes differ:\n\n| kernel | id | file system | with LSM programs | with fentry programs |\n|---|---|---|---|---|\n",
        );
        text.push_str(&rows);
    }
    text
}

fn hooks(vector: &Vector) -> String {
    if vector.hooks.is_empty() { "none".to_owned() } else { vector.hooks.join(", ") }
}

fn cell(vector: &Vector, kind: FileSystem, outcomes: &Outcomes, runs: usize) -> String {
    if !vector.runs_on(kind) {
        return "n/a".to_owned();
    }
    let Some(row) = outcomes.get(&(vector.id.to_owned(), kind.name().to_owned())) else {
        return "-".to_owned();
    };
    let words: BTreeSet<&str> = row.iter().map(|(_, word)| *word).collect();
    match words.first() {
        Some(word) if words.len() == 1 && row.len() == runs => (*word).to_owned(),
        _ => row.iter().map(|(series, word)| format!("{series} {word}")).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First three cells of every row of both tables.
    fn rows(text: &str) -> Vec<[String; 3]> {
        text.lines()
            .filter(|line| line.starts_with("| V"))
            .filter_map(|line| {
                let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
                Some([cells.next()?, cells.next()?, cells.next()?])
            })
            .collect()
    }

    #[test]
    fn the_document_has_the_introduction_of_the_code() {
        let text = fs::read_to_string(dist::root().join(DOCUMENT)).expect("docs/vectors.md");
        assert!(text.starts_with(HEAD), "run cargo xtask test --full, then cargo xtask coverage");
    }

    #[test]
    fn the_document_lists_the_vectors_of_the_code_with_their_hooks_and_no_others() {
        let text = fs::read_to_string(dist::root().join(DOCUMENT)).expect("docs/vectors.md");
        let mut documented = rows(&text);
        let mut coded: Vec<[String; 3]> =
            vectors::all().map(|v| [v.id.to_owned(), v.name.to_owned(), hooks(v)]).collect();
        documented.sort();
        coded.sort();
        assert_eq!(documented, coded, "run cargo xtask test --full, then cargo xtask coverage");
    }

    #[test]
    fn an_outcome_that_differs_with_fentry_programs_is_a_row_and_an_equal_one_is_not() {
        let runs = |word: &'static str| {
            let key = ("V01a".to_owned(), "tmpfs".to_owned());
            Runs { outcomes: Outcomes::from([(key, vec![("5.10".to_owned(), word)])]), series: vec!["5.10"] }
        };
        let same = through_fentry(&runs("reported"), &runs("reported"));
        assert!(same.contains("Kernels run: 5.10. All outcomes are the same as above."), "{same}");
        let other = through_fentry(&runs("reported"), &runs("FAILED"));
        assert!(other.contains("| 5.10 | V01a | tmpfs | reported | FAILED |"), "{other}");
        assert!(through_fentry(&runs("reported"), &Runs::default()).contains("Not run."));
    }

    #[test]
    fn a_kernel_that_was_not_run_is_missing() {
        let runs = Runs {
            outcomes: Outcomes::new(),
            series: kernels::series().filter(|series| *series != "6.1").collect(),
        };
        assert_eq!(runs.missing(), ["6.1"]);
    }

    #[test]
    fn a_word_that_differs_between_kernels_has_the_kernels_and_a_vector_without_a_run_has_a_dash() {
        let vector = vectors::all().next().expect("a vector");
        let key = (vector.id.to_owned(), "tmpfs".to_owned());
        let row = vec![("5.10".to_owned(), "refused"), ("6.12".to_owned(), "reported")];
        let outcomes = Outcomes::from([(key, row)]);
        assert_eq!(cell(vector, FileSystem::Tmpfs, &outcomes, 2), "5.10 refused, 6.12 reported");
        assert_eq!(cell(vector, FileSystem::Ext4, &outcomes, 2), "-");
    }
}
