//! What an apply is to bring about: the new config, and the one that the host has.
//!
//! In: files, and what was applied before. Out: both configs. An unknown field in NEW is an error, and so is a NEW that declares
//! nothing after a config that declared something: both are typing errors that would remove what the host has.

use super::{Apply, Site};
use crate::{
    cli::{BadInput, output::say},
    desired::{self, Files, StateSource, Unknown, as_kept, merged, read},
};
use sensor_model::{ignition::Purpose, merge::Rendered};

/// Why a config that declares nothing is refused.
const EMPTY: &str = "NEW declares nothing, and the present config declares something, which would all be removed; \
                     `--allow-empty` if that is meant";

/// What is wanted, and from where.
pub(in crate::cli) struct Wanted {
    pub(in crate::cli) manifests: Files,
    /// The config that the host has, and its number.
    pub(in crate::cli) old: Rendered,
    pub(in crate::cli) previous: Option<u64>,
    pub(in crate::cli) new: Rendered,
    /// The generation that comes back.
    pub(in crate::cli) rollback_to: Option<u64>,
}

impl Apply {
    /// Reads both configs. What an interrupted apply left is worked off in between.
    ///
    /// # Errors
    /// Bad input, or an earlier apply that is not over.
    pub(super) fn wanted(&self, site: &Site<'_>) -> anyhow::Result<Wanted> {
        // Read once: what is planned is what is kept.
        let read = read(&self.new).map_err(BadInput::wrap)?;
        let unknown = Unknown::allowed(self.allow_unknown);
        let compared = merged(&read, Purpose::Compare, unknown).map_err(BadInput::wrap)?;
        // What an earlier one left decides which config is the current one.
        site.recover()?;
        let current = site.current()?;
        if let (Some((id, _)), false) = (&current, self.current.is_empty()) {
            say(&format!(
                "hint: `--current` does not count: the host has what was applied last, number {id}"
            ));
        }
        let old = match &current {
            Some((id, _)) => site.there(*id)?,
            None if self.current.is_empty() => Rendered::default(),
            None => desired::rendered(&StateSource::named(self.current.clone()), unknown)
                .map_err(BadInput::wrap)?,
        };
        // What cannot be reconciled is told with all its reasons, as by `plan`, and not as bad input.
        let possible = site.plan(&old, &compared)?.reconcilable;
        // What is unknown was told above.
        let verified = || merged(&read, Purpose::Verify, Unknown::Ignore).map_err(BadInput::wrap);
        let new = if possible { verified()? } else { compared };
        if new.declares_nothing() && !old.declares_nothing() && !self.allow_empty {
            if !self.how.dry_run {
                return Err(BadInput::because(EMPTY));
            }
            say(&format!("hint: {EMPTY}"));
        }
        let previous = current.map(|(id, _)| id);
        Ok(Wanted { manifests: as_kept(read), old, previous, new, rollback_to: None })
    }
}
