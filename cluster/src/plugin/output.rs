//! What the commands print: tables for people, JSON or YAML for programs.

use super::error::PluginError;
use crate::text::{fit, has_hidden, visible_json};
use serde::Serialize;
use std::io::Write;

/// Longest text in a cell of a table, in bytes.
const CELL_BYTES: usize = 1024;
/// Longest line, in bytes: an entry of the log has at most as many.
const LINE_BYTES: usize = 16 << 10;
/// Widest column. A longer cell moves the rest of its own row alone, so that one node cannot spoil the table of all.
const COLUMN: usize = 72;
/// Spaces between two columns.
const BETWEEN: usize = 3;

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people to read.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// The option that chooses the format.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct OutputOptions {
    /// Output format.
    #[arg(short = 'o', long = "output", global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub(super) format: OutputFormat,
}

/// Where answers and notes go.
pub struct Screen<'a> {
    out: &'a mut dyn Write,
    notes: &'a mut dyn Write,
    format: OutputFormat,
    is_terminal: bool,
}

impl std::fmt::Debug for Screen<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").field("format", &self.format).finish_non_exhaustive()
    }
}

impl<'a> Screen<'a> {
    /// Answers go to `out`, notes for people to `notes`.
    pub fn new(out: &'a mut dyn Write, notes: &'a mut dyn Write) -> Self {
        Self { out, notes, format: OutputFormat::default(), is_terminal: false }
    }

    /// The same, where a terminal shows the answers.
    #[must_use]
    pub fn on_terminal(self, is_terminal: bool) -> Self {
        Self { is_terminal, ..self }
    }

    pub(super) fn set_format(&mut self, format: OutputFormat) {
        self.format = format;
    }

    pub(super) fn format(&self) -> OutputFormat {
        self.format
    }

    /// Writes an answer for programs, without hidden characters. Gives whether the format is one of theirs.
    pub(super) fn object(&mut self, value: &impl Serialize) -> Result<bool, PluginError> {
        let wrong = |error: &dyn std::fmt::Display| PluginError::Format(error.to_string());
        let json = || {
            let json = serde_json::to_string_pretty(value).map_err(|error| wrong(&error))?;
            Ok::<_, PluginError>(visible_json(&json) + "\n")
        };
        let text = match self.format {
            OutputFormat::Table => return Ok(false),
            OutputFormat::Json => json()?,
            OutputFormat::Yaml => {
                let yaml = serde_saphyr::to_string(value).map_err(|error| wrong(&error))?;
                // JSON is YAML, and has an escape for each character.
                if has_hidden(&yaml) { json()? } else { yaml }
            }
        };
        self.out.write_all(text.as_bytes())?;
        Ok(true)
    }

    /// Writes a line. Its hidden characters become escapes, and a line that no honest node has is cut.
    pub(super) fn line(&mut self, text: &str) -> Result<(), PluginError> {
        Ok(writeln!(self.out, "{}", fit(text, LINE_BYTES))?)
    }

    /// Writes a line of the log as it is. On a terminal its hidden characters become escapes, which have the same meaning in JSON.
    pub(super) fn log_line(&mut self, line: &str) -> Result<(), PluginError> {
        if self.is_terminal {
            return Ok(writeln!(self.out, "{}", visible_json(line))?);
        }
        Ok(writeln!(self.out, "{line}")?)
    }

    /// Writes bytes as they are.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), PluginError> {
        self.out.write_all(bytes)?;
        Ok(self.out.flush()?)
    }

    /// Writes a line beside the answer.
    pub(super) fn note(&mut self, text: &str) -> Result<(), PluginError> {
        Ok(writeln!(self.notes, "{}", fit(text, LINE_BYTES))?)
    }

    /// Writes rows below their headings, in columns.
    pub(super) fn table<const N: usize>(
        &mut self,
        headings: [&str; N],
        rows: &[[String; N]],
    ) -> Result<(), PluginError> {
        let clean = |row: &[String; N]| row.each_ref().map(|cell| fit(cell, CELL_BYTES));
        let rows: Vec<[String; N]> =
            std::iter::once(headings.map(str::to_owned)).chain(rows.iter().map(clean)).collect();
        let widths: [usize; N] = std::array::from_fn(|column| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.filter(|width| *width <= COLUMN).max().unwrap_or_default()
        });
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                line.push_str(cell);
                let missing = width.saturating_sub(cell.chars().count()) + BETWEEN;
                line.extend(std::iter::repeat_n(' ', missing));
            }
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A time span in one unit, as `kubectl` shows ages: `45s`, `12m`, `3h`, `4d`. A time in the future is `0s`.
pub(super) fn age(since: jiff::Timestamp, now: jiff::Timestamp) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    match now.duration_since(since).as_secs().max(0) {
        seconds @ ..120 => format!("{seconds}s"),
        seconds @ ..7200 => format!("{}m", seconds / MINUTE),
        seconds @ ..172_800 => format!("{}h", seconds / HOUR),
        seconds => format!("{}d", seconds / DAY),
    }
}
