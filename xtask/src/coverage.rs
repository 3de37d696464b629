//! The coverage table: which vector is seen on which file system and kernel, from what the runs measured.
//!
//! Comes in: the results that runs of the scenario `vectors` left in `target/vm-logs`, and the vector table. Goes out:
//! `docs/vectors.md`, if the scenario ran on every kernel: the tests before a merge run it on some. A vector that is in
//! the code and not in the document, or the other way round, fails a test.

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
/// The same where the programs hang on functions instead.
const BY_FENTRY: &str = "bare-vectors-fentry";
const DOCUMENT: &str = "docs/vectors.md";
/// What runs the scenarios on all kernels.
const FULL_RUN: &str = "run: cargo xtask test --full";

const HEAD: &str = "# Vectors

The ways in which a managed thing can change, and whether Holdfast sees them. Made by `cargo xtask coverage` from runs of
`cargo xtask vm --guest bare --scenario vectors --all-kernels`; do not edit. Each vector is done for real, by a process
of its own, on each file system; what is said of it has to name the right path and that process.

- **reported**: a hook saw it; the record names who did it.
- **swept**: found by looking, without naming anybody, as no hook can see it.
- **not shown**: it does not change what the node shows, and nothing was said.
- **refused**: the kernel or the file system has no such operation.
- A kernel series stands before a word that holds for it alone. `-` was not run.

";

/// Keeps the results of a boot, for the table.
pub(crate) fn keep(name: &str, results: &[ResultLine]) -> Result<()> {
    if ![SCENARIO, BY_FENTRY].iter().any(|scenario| name.ends_with(scenario)) {
        return Ok(());
    }
    let path = dist::root().join("target/vm-logs").join(format!("{name}.json"));
    fs::write(&path, serde_json::to_vec(results)?).with_context(|| format!("cannot write {}", path.display()))
}

/// The results of a vector on a file system: kernel series with words.
type Said = BTreeMap<(String, String), Vec<(String, &'static str)>>;

/// Runs of one scenario.
#[derive(Debug, Default)]
struct Runs {
    said: Said,
    series: Vec<&'static str>,
}

impl Runs {
    /// What the newest run of a scenario on each kernel left.
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
                    let row = runs.said.entry((id.to_owned(), kind.to_owned())).or_default();
                    row.push((series.to_owned(), word(&result)));
                }
            }
        }
        Ok(runs)
    }

    /// Kernels of the matrix on which the scenario was not run.
    fn missing(&self) -> Vec<&'static str> {
        kernels::series().filter(|series| !self.series.contains(series)).collect()
    }

    fn word(&self, key: &(String, String), series: &str) -> Option<&'static str> {
        self.said.get(key)?.iter().find(|(known, _)| known == series).map(|(_, word)| *word)
    }
}

/// Writes the document.
pub(crate) fn write() -> Result<()> {
    let (runs, by_fentry) = (Runs::read(SCENARIO)?, Runs::read(BY_FENTRY)?);
    for (scenario, runs) in [(SCENARIO, &runs), (BY_FENTRY, &by_fentry)] {
        let missing = runs.missing();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            bail!(
                "{scenario} was not run on {missing}: {DOCUMENT} is made from a full run alone\n    {FULL_RUN}"
            );
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
                let cells =
                    FileSystem::ALL.map(|kind| cell(vector, kind, &runs.said, runs.series.len())).join(" | ");
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

/// What is another word where fentry sees it. Where a kernel was not run by LSM, nothing is said of it but that it ran.
fn through_fentry(runs: &Runs, by_fentry: &Runs) -> String {
    let mut text = "\n## Through fentry\n\nWhere `bpf` is not among the security modules the same bodies hang on the \
                    functions that call the hooks\n(`cargo xtask vm --guest bare --scenario vectors-fentry`). "
        .to_owned();
    if by_fentry.series.is_empty() {
        text.push_str("Not run.\n");
        return text;
    }
    let _ = write!(text, "Kernels run: {}. ", by_fentry.series.join(", "));
    let is_compared = |series: &str| runs.series.contains(&series);
    let mut rows = String::new();
    for (key, said) in &by_fentry.said {
        for (series, word) in said.iter().filter(|(series, _)| is_compared(series)) {
            let by_lsm = runs.word(key, series).unwrap_or("-");
            if by_lsm != *word {
                let _ = writeln!(rows, "| {series} | {} | {} | {by_lsm} | {word} |", key.0, key.1);
            }
        }
    }
    if !by_fentry.series.iter().any(|series| is_compared(series)) {
        text.push_str("The same kernels were not run the other way.\n");
    } else if rows.is_empty() {
        text.push_str("All is as above.\n");
    } else {
        text.push_str(
            "What differs:\n\n| kernel | id | file system | above | here |\n|---|---|---|---|---|\n",
        );
        text.push_str(&rows);
    }
    text
}

fn hooks(vector: &Vector) -> String {
    if vector.hooks.is_empty() { "none".to_owned() } else { vector.hooks.join(", ") }
}

fn cell(vector: &Vector, kind: FileSystem, said: &Said, runs: usize) -> String {
    if !vector.runs_on(kind) {
        return "n/a".to_owned();
    }
    let Some(row) = said.get(&(vector.id.to_owned(), kind.name().to_owned())) else { return "-".to_owned() };
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
    fn the_document_lists_the_vectors_of_the_code_with_their_hooks_and_no_others() {
        let text = fs::read_to_string(dist::root().join(DOCUMENT)).expect("docs/vectors.md");
        let mut documented = rows(&text);
        let mut coded: Vec<[String; 3]> =
            vectors::all().map(|v| [v.id.to_owned(), v.name.to_owned(), hooks(v)]).collect();
        documented.sort();
        coded.sort();
        assert_eq!(documented, coded, "run cargo xtask vm --scenario vectors --all-kernels, then coverage");
    }

    #[test]
    fn what_fentry_does_not_see_alike_is_a_row_and_what_it_does_is_none() {
        let runs = |word: &'static str| {
            let key = ("V01a".to_owned(), "tmpfs".to_owned());
            Runs { said: Said::from([(key, vec![("5.10".to_owned(), word)])]), series: vec!["5.10"] }
        };
        let same = through_fentry(&runs("reported"), &runs("reported"));
        assert!(same.contains("Kernels run: 5.10. All is as above."), "{same}");
        let other = through_fentry(&runs("reported"), &runs("FAILED"));
        assert!(other.contains("| 5.10 | V01a | tmpfs | reported | FAILED |"), "{other}");
        assert!(through_fentry(&runs("reported"), &Runs::default()).contains("Not run."));
    }

    #[test]
    fn a_kernel_that_was_not_run_is_missing() {
        let runs =
            Runs { said: Said::new(), series: kernels::series().filter(|series| *series != "6.1").collect() };
        assert_eq!(runs.missing(), ["6.1"]);
    }

    #[test]
    fn a_word_that_differs_between_kernels_names_them_and_what_was_not_run_is_not_claimed() {
        let vector = vectors::all().next().expect("a vector");
        let key = (vector.id.to_owned(), "tmpfs".to_owned());
        let row = vec![("5.10".to_owned(), "refused"), ("6.12".to_owned(), "reported")];
        let said = Said::from([(key, row)]);
        assert_eq!(cell(vector, FileSystem::Tmpfs, &said, 2), "5.10 refused, 6.12 reported");
        assert_eq!(cell(vector, FileSystem::Ext4, &said, 2), "-");
    }
}
