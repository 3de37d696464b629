//! The table, on the screen and as a page.
//!
//! In: rows. Out: text. The page has no date and no host, so that it changes only with the numbers. Each row over its budget has
//! its explanation here.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use super::output::Report;
use super::rows::{MeasureUnit, PEERS, Row};
use crate::dist;
use crate::run::say;

const NOT_ATTACHED: &str =
    "Holdfast attaches nothing there. The number of timer ticks in the best loop differs by one.";

/// Why a row is over its budget, by the row's name. The page omits a row that is within its budget again.
const MISSES: &[(&str, &str)] = &[
    ("getppid", NOT_ATTACHED),
    ("write 64 B, unmanaged, idle", NOT_ATTACHED),
    ("read 64 B, unmanaged, idle", NOT_ATTACHED),
    ("pipe write + read, idle", NOT_ATTACHED),
    ("getppid, under the shipped rules", NOT_ATTACHED),
    ("pipe write + read, under the shipped rules", NOT_ATTACHED),
    (
        "read 64 B, unmanaged, while a managed file is open for writing",
        "An empty trampoline takes 168. The others are the program's entry and exit, and seven instructions. These find the\n\
         argument (at the place that the kernel's BTF gives at run time), load it, test it and answer.",
    ),
    (
        "vfork + exec + wait of a watched program that is as in the image",
        "The budget is that of a program without an entry in the map of managed inodes. Of this one the programs at its opening,\n\
         its execution, the mapping of its code and its closing each find the entry, and read whether the file differs or was\n\
         changed in the last minute. None sends a record.",
    ),
    (
        "memory with 10,000 managed files",
        "The difference of the two rows is backed by the program's file: code that ran once. By the\n\
         settings of its systemd unit the daemon returns freed pages at once.",
    ),
    (
        "write to verdict and record of drift, median",
        "At the first verification the writer still has the file open. The second one is due half a millisecond later, by a\n\
         timer that is finer than the runtime's millisecond. The remaining time is work: two verifications, the actor, and the\n\
         record with its sync.",
    ),
];

const HEADS: [&str; 5] = ["", "base", "ours", "at most", ""];

fn cells(row: &Row) -> Vec<String> {
    let plus = |value: f64| number(value, row.unit, row.base.is_some());
    let mut cells = vec![
        row.name.to_owned(),
        row.base.map_or_else(String::new, |base| number(base, row.unit, false)),
        plus(row.ours),
        row.budget.map_or_else(String::new, plus),
        row.pass.map_or("", |pass| if pass { "pass" } else { "miss" }).to_owned(),
    ];
    cells.extend(PEERS.map(|peer| row.peers.get(peer).map_or_else(String::new, |value| plus(*value))));
    cells
}

/// A number with thousands apart; its sign where it is a difference.
pub(super) fn number(value: f64, unit: MeasureUnit, difference: bool) -> String {
    let text = match unit {
        MeasureUnit::Instructions => apart(&format!("{:.0}", value.abs().round())),
        MeasureUnit::Mebibytes => format!("{value:.1} MiB"),
        MeasureUnit::Milliseconds => format!("{value:.2} ms"),
        MeasureUnit::AMinute => format!("{value:.1}"),
    };
    match difference {
        true if value.abs().round() == 0.0 => "0".to_owned(),
        true if value < 0.0 => format!("-{text}"),
        true => format!("+{text}"),
        false => text,
    }
}

fn apart(digits: &str) -> String {
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The table for the screen.
pub(super) fn table(rows: &[Row]) -> String {
    let heads: Vec<String> = HEADS.into_iter().chain(PEERS).map(str::to_owned).collect();
    let lines: Vec<Vec<String>> = std::iter::once(heads).chain(rows.iter().map(cells)).collect();
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for line in lines {
        let mut text = String::new();
        for (index, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail, here and below.
            let _ =
                if index == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        let _ = writeln!(out, "{}", text.trim_end());
    }
    out
}

/// The same in Markdown.
fn markdown(rows: &[Row]) -> String {
    let heads: Vec<&str> = HEADS.into_iter().chain(PEERS).collect();
    let mut out = format!("| {} |\n|---{}\n", heads.join(" | "), "|--:".repeat(heads.len() - 1) + "|");
    for row in rows {
        let _ = writeln!(out, "| {} |", cells(row).join(" | "));
    }
    out
}

/// Why rows are over their budgets, also where the tolerance lets them pass.
fn over(rows: &[Row]) -> String {
    // As far as the table's numbers show it.
    let is_over = |row: &&Row| row.budget.is_some_and(|budget| row.ours.round() > budget.round());
    let mut page = String::new();
    for row in rows.iter().filter(|row| row.pass == Some(false) || is_over(row)) {
        if page.is_empty() {
            page.push_str("\n## Over the budget\n");
        }
        let known = MISSES.iter().find(|(name, _)| *name == row.name);
        let why = known.map_or("Not explained yet.", |(_, why)| why);
        let within = if row.pass == Some(true) { " (within the tolerance)" } else { "" };
        let _ = write!(page, "\n**{}**{within}: {why}\n", row.name);
    }
    page
}

/// Writes `docs/performance.md`.
pub(super) fn write(report: &Report) -> Result<()> {
    let mut page = format!(
        "# What watching costs\n\n\
         Written by `cargo xtask bench --write-docs`; kernel {}, QEMU {}.\n\n\
         The figures are executed instructions, in a virtual machine with one CPU whose nanoseconds are instructions\n\
         (`-icount shift=0,sleep=off`). One boot measures three times: the base, with Holdfast watching 10,000 files of 4 KiB,\n\
         and the base again. It uses a tmpfs, and does not randomize addresses (`norandmaps`). A figure with a sign, or 0, is the\n\
         difference to the first base. A row passes if it is within its budget plus 0.1 % of that base. The second base was\n\
         measured after the removal of the daemon and its pins. It differed from the first by {:.1} % at most in any row.\n\
         \n\
         The other watchers ran after that in the same boot. `inotify` is a process that watches all managed directories and\n\
         reads the events. `auditd` is Debian's auditd with the rule that `auditctl -w` makes for them. Neither reads contents,\n\
         compares, or names the actor of a change in a form that outlasts the process.\n\n\
         The rows with 100,000 inodes enrolled come from another boot, with 100,000 empty files. It has a base of its own,\n\
         because so many names make the kernel's path lookups longer. So do the rows under the shipped rules, which are\n\
         `policies/drift/image.yaml` and `policies/drift/closed.yaml` as they are. There 5,000 files of a baseline are watched, with\n\
         the executed program among them, and each rule of `closed.yaml` with `closed: true` closes a directory.\n\n\
         \"All CPU work\" is the time in which the CPU is not idle, for the writer, the kernel and the daemon. It is divided by\n\
         the number of changes. Milliseconds are those of a CPU with 10^9 instructions a second. The process that\n\
         reads the configs has ended when memory is measured. Memory is what is resident (`VmRSS`). After its first verification the\n\
         daemon gives back those pages of its program that only the start needed.\n\n{}",
        report.kernel,
        report.qemu,
        report.between_the_bases * 100.0,
        markdown(&report.rows),
    );
    page.push_str(&over(&report.rows));
    let place = dist::root().join("docs/performance.md");
    let old = fs::read_to_string(&place).unwrap_or_default();
    page.push_str(&super::section::kept(&old));
    fs::write(&place, page).with_context(|| format!("cannot write {}", place.display()))?;
    say("bench", &format!("wrote {}", place.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_read_them() {
        assert_eq!(number(1_234_567.4, MeasureUnit::Instructions, false), "1,234,567");
        assert_eq!(number(999.6, MeasureUnit::Instructions, true), "+1,000");
        assert_eq!(number(-0.4, MeasureUnit::Instructions, true), "0");
        assert_eq!(number(-12.0, MeasureUnit::Instructions, true), "-12");
        assert_eq!(number(19.96, MeasureUnit::Mebibytes, false), "20.0 MiB");
    }

    #[test]
    fn a_row_over_its_budget_is_explained_also_where_it_passes() {
        let row = |name, ours, pass| Row {
            name,
            unit: MeasureUnit::Instructions,
            base: Some(1_418.0),
            ours,
            budget: Some(190.0),
            pass: Some(pass),
            peers: std::collections::BTreeMap::new(),
        };
        let known = "read 64 B, unmanaged, while a managed file is open for writing";
        assert_eq!(over(&[row(known, 190.2, true)]), "");
        let page = over(&[row(known, 191.0, true), row("new", 250.0, false)]);
        assert!(page.contains(&format!("**{known}** (within the tolerance): An empty trampoline")), "{page}");
        assert!(page.contains("**new**: Not explained yet."), "{page}");
    }

    #[test]
    fn every_explained_miss_is_a_row_with_a_budget() {
        for (name, _) in MISSES {
            assert!(super::super::rows::has_budget(name), "{name}");
        }
    }
}
