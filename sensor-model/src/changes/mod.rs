//! The differences between two rendered configs.
//!
//! In: two rendered configs. Out: one change for each thing that differs, sorted by kind and name. Also every reason why a
//! running node cannot take the new config ([`crate::reconcile`]). Contents are compared decoded. No change contains a content, a
//! key or a password hash.

mod change;
mod contents;
mod objects;
mod pairs;
mod system;
mod units;
mod users;

#[cfg(test)]
pub(crate) mod tests;

pub use change::{Change, ChangeKind, ChangeOperation};

use crate::{
    expectations::ExpectationError,
    merge::Rendered,
    reconcile::{self, Irreconcilable, Overrides},
};

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Every change, sorted by kind and name, no thing twice.
    pub changes: Vec<Change>,
    /// Every reason why a running node cannot take the new config; empty if it can.
    pub reasons: Vec<Irreconcilable>,
    /// Reasons that an administrator has overridden: running nodes keep the old state of these sections.
    pub overridden: Vec<Irreconcilable>,
}

impl Comparison {
    /// Whether a running node can take the new config.
    pub fn reconcilable(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// Compares two rendered configs. `None` is the same as [`Rendered::default`]: a config that declares nothing.
///
/// # Errors
/// A file whose merged contents cannot be decoded.
pub fn compare(
    old: Option<&Rendered>,
    new: Option<&Rendered>,
    overrides: Overrides,
) -> Result<Comparison, ExpectationError> {
    let nothing = Rendered::default();
    let (old, new) = (old.unwrap_or(&nothing), new.unwrap_or(&nothing));
    let mut changes = Vec::new();
    objects::files(old, new, &mut changes)?;
    objects::directories(old, new, &mut changes);
    objects::links(old, new, &mut changes);
    units::compare(old, new, &mut changes);
    users::compare(old, new, &mut changes);
    system::compare(old, new, &mut changes);
    changes.sort();
    let (reasons, overridden) = reconcile::reasons(old, new, overrides);
    Ok(Comparison { changes, reasons, overridden })
}
