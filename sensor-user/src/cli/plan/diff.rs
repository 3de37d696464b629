//! The change of a content, as a unified diff or as digests.
//!
//! In: a change, and both configs. Out: lines. A drift policy decides which contents are shown. For the others the lines have
//! sizes and digests. Keys and password hashes have no content here at all.

use crate::cli::output::{Screen, clean, count};
use sensor_model::{
    changes::ChangeKind, drift_policy::DriftPolicy, expectation::SYSTEMD_DIRECTORY,
    expectations::expected_bytes, merge::Rendered, plan::PlannedChange,
};
use sha2::{Digest as _, Sha256};
use similar::TextDiff;
use std::{collections::BTreeSet, path::Path};

/// Most lines of one diff that are printed.
const MOST_LINES: usize = 200;
/// A larger content is shown by size and digest.
const MOST_BYTES: usize = 1 << 20;

/// Compares the contents of two configs.
pub(super) struct Differ<'a> {
    pub(super) old: &'a Rendered,
    pub(super) new: &'a Rendered,
    /// Which contents may be shown.
    pub(super) policy: DriftPolicy,
    /// Whether secret contents are shown, too.
    pub(super) secrets: bool,
}

impl Differ<'_> {
    /// Prints how the contents of a change differ.
    pub(super) fn show(&self, change: &PlannedChange, screen: &mut Screen) -> anyhow::Result<()> {
        match change.kind {
            ChangeKind::File => self.path(&change.name, screen),
            ChangeKind::Unit => {
                let unit = format!("{SYSTEMD_DIRECTORY}/{}", change.name);
                self.path(&unit, screen)?;
                let names: BTreeSet<&String> = [self.old, self.new]
                    .iter()
                    .filter_map(|side| side.units.get(&change.name))
                    .flat_map(|unit| unit.dropins.keys())
                    .collect();
                for name in names {
                    self.path(&format!("{unit}.d/{name}"), screen)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn path(&self, path: &str, screen: &mut Screen) -> anyhow::Result<()> {
        let bytes = |side: &Rendered| expected_bytes(side, Path::new(path));
        let (old, new) = (bytes(self.old), bytes(self.new));
        if old == new {
            return Ok(());
        }
        let secret = !self.secrets && self.policy.decide(Path::new(path), None).secret;
        let text = |side: &Option<Vec<u8>>| -> Option<String> {
            let bytes = side.as_deref().unwrap_or_default();
            let text = std::str::from_utf8(bytes).ok().filter(|_| bytes.len() <= MOST_BYTES)?;
            (!text.contains('\0')).then(|| text.to_owned())
        };
        match (text(&old), text(&new)) {
            (Some(before), Some(after)) if !secret => {
                let name = |side: &Option<Vec<u8>>| match side {
                    Some(_) => clean(path),
                    None => "/dev/null".to_owned(),
                };
                unified(&before, &after, &name(&old), &name(&new), screen)?;
            }
            _ => {
                let why = if secret { "secret" } else { "not text" };
                let word = |side: &Option<Vec<u8>>| match side {
                    Some(bytes) => format!(
                        "{} with SHA-256 {}",
                        count(bytes.len(), "byte"),
                        hex::encode(Sha256::digest(bytes))
                    ),
                    None => "nothing".to_owned(),
                };
                screen.line(&format!("  content of {} ({why}):", clean(path)))?;
                screen.line(&format!("  - {}", word(&old)))?;
                screen.line(&format!("  + {}", word(&new)))?;
            }
        }
        Ok(())
    }
}

fn unified(before: &str, after: &str, old: &str, new: &str, screen: &mut Screen) -> anyhow::Result<()> {
    let diff = TextDiff::from_lines(before, after);
    let text = diff.unified_diff().context_radius(3).header(old, new).to_string();
    let lines: Vec<&str> = text.lines().collect();
    for line in lines.iter().take(MOST_LINES) {
        screen.diff_line("  ", line)?;
    }
    if lines.len() > MOST_LINES {
        screen.line(&format!("  … and {} more", count(lines.len() - MOST_LINES, "line")))?;
    }
    Ok(())
}
