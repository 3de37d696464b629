//! Enablement and mask of a unit.
//!
//! In: the declared state and the observed one. Out: the differences, by the Machine Config Operator's sets of `UnitFileState`.

use super::subject::ComparedThing;
use crate::{
    difference::{Difference, DifferenceKind},
    expectation::{Thing, UnitExpectation},
    observation::UnitObservation,
    text::{quote, quote_path},
};
use std::path::Path;

const DEV_NULL: &str = "/dev/null";

/// `LoadState` of a unit without a file.
const NOT_FOUND: &str = "not-found";

pub(super) fn compare(
    thing: &Thing,
    subject: &ComparedThing<'_>,
    expected: &UnitExpectation,
    seen: &UnitObservation,
) -> Vec<Difference> {
    let mut differences: Vec<Difference> =
        seen.overridden_by.iter().map(|path| overridden(subject, path)).collect();
    let state = seen.file_state.as_deref().filter(|state| !state.is_empty()).unwrap_or(NOT_FOUND);
    match expected.masked {
        Some(true) => {
            if !seen.masked {
                differences.push(not_masked(subject, seen));
            }
            // A masked unit cannot be enabled: its path is a link to /dev/null.
            return differences;
        }
        Some(false) if seen.masked || matches!(state, "masked" | "masked-runtime") => {
            let found = if seen.masked { DEV_NULL } else { state };
            differences.push(mask_difference(subject, "unmasked", found));
        }
        Some(false) | None => {}
    }
    let Thing::Unit { name } = thing else { return differences };
    let rejected: &[&str] = match expected.enabled {
        Some(true) => &["disabled", "masked", "masked-runtime", NOT_FOUND],
        Some(false) => &["enabled", "enabled-runtime"],
        None => &[],
    };
    if let Some(enabled) = expected.enabled
        && rejected.contains(&state)
    {
        differences.push(Difference {
            kind: DifferenceKind::UnitEnablement,
            expected: if enabled { "enabled" } else { "disabled" }.to_owned(),
            found: state.to_owned(),
            text: format!(
                "unit {} expected enabled={enabled}, but systemd reports {}",
                quote(name),
                quote(state)
            ),
        });
    }
    differences
}

/// Another file decides what systemd runs, whatever is at the unit's path.
fn overridden(subject: &ComparedThing<'_>, path: &Path) -> Difference {
    Difference {
        kind: DifferenceKind::Unexpected,
        expected: "nothing before it".to_owned(),
        found: path.display().to_string(),
        text: format!("systemd uses {} instead of {}", quote_path(path), quote_path(subject.path)),
    }
}

fn not_masked(subject: &ComparedThing<'_>, seen: &UnitObservation) -> Difference {
    match &seen.resolved {
        Some(resolved) => mask_difference(subject, DEV_NULL, &resolved.to_string_lossy()),
        None => Difference {
            kind: DifferenceKind::UnitMask,
            expected: DEV_NULL.to_owned(),
            found: "missing".to_owned(),
            text: format!(
                "state validation: error while evaluation symlink for path {}: lstat {}: no such file or directory",
                quote_path(subject.path),
                subject.path.display()
            ),
        },
    }
}

fn mask_difference(subject: &ComparedThing<'_>, expected: &str, found: &str) -> Difference {
    Difference {
        kind: DifferenceKind::UnitMask,
        expected: expected.to_owned(),
        found: found.to_owned(),
        text: format!(
            "state validation: invalid unit masked setting. path: {}; expected: {expected}; received: {found}",
            quote_path(subject.path)
        ),
    }
}
