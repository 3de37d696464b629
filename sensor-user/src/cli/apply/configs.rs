//! The new config of an apply, and the present one.
//!
//! In: files, and the store of applies. Out: both configs. An unknown field in NEW is an error, and so is a NEW that declares
//! nothing after a config that declared something: both are usually typing errors, and would remove files from the host.

use super::options::Site;
use crate::{
    cli::{exit::BadInput, output::say},
    desired::{self, Files, StateSource, Unknown, as_kept, merged, read},
};
use sensor_model::{ignition::Purpose, merge::Rendered};
use std::path::PathBuf;

/// Why a config that declares nothing is refused.
const EMPTY: &str = "NEW declares nothing, so everything that the present config declares would be removed; add `--allow-empty` if \
                     that is intended";

/// The arguments that name configs.
#[derive(Debug, clap::Args)]
pub(super) struct Configs {
    /// The new config: MachineConfig manifests or Ignition configs, files or directories of them.
    #[arg(required_unless_present = "resume", conflicts_with = "resume", value_name = "NEW")]
    new: Vec<PathBuf>,
    /// The present config of a host to which none was applied yet; may be repeated.
    #[arg(long, value_name = "PATH")]
    current: Vec<PathBuf>,
    /// Log a warning about unknown fields in configs instead of refusing the configs.
    #[arg(long)]
    allow_unknown: bool,
    /// Apply a config that declares nothing, which removes everything that the present config declares.
    #[arg(long)]
    allow_empty: bool,
}

/// The configs of an apply.
pub(in crate::cli) struct Wanted {
    pub(in crate::cli) manifests: Files,
    /// The present config, and its number.
    pub(in crate::cli) old: Rendered,
    pub(in crate::cli) previous: Option<u64>,
    pub(in crate::cli) new: Rendered,
    /// The generation that a rollback applies again.
    pub(in crate::cli) rollback_to: Option<u64>,
}

impl Configs {
    /// Reads both configs. In between it finishes an interrupted apply or restores the old config.
    ///
    /// # Errors
    /// Bad input, or an earlier apply that cannot be finished.
    pub(super) fn wanted(&self, site: &Site<'_>) -> anyhow::Result<Wanted> {
        // The files are read once, so that the store keeps what was planned.
        let read = read(&self.new).map_err(BadInput::wrap)?;
        let unknown = Unknown::allowed(self.allow_unknown);
        let compared = merged(&read, Purpose::Compare, unknown).map_err(BadInput::wrap)?;
        // The end of an interrupted apply decides which config is the current one.
        site.recover()?;
        let current = site.current()?;
        if let (Some((id, _)), false) = (&current, self.current.is_empty()) {
            say(&format!(
                "hint: `--current` is ignored: apply number {id} decides which config is the present one"
            ));
        }
        let old = match &current {
            Some((id, _)) => site.there(*id)?,
            None if self.current.is_empty() => Rendered::default(),
            None => desired::rendered(&StateSource::named(self.current.clone()), unknown)
                .map_err(BadInput::wrap)?,
        };
        // A config that is not reconcilable is refused with all its reasons, as `plan` prints them, and not as bad input.
        let possible = site.plan(&old, &compared)?.reconcilable;
        // The read above has reported unknown fields.
        let verified = || merged(&read, Purpose::Verify, Unknown::Ignore).map_err(BadInput::wrap);
        let new = if possible { verified()? } else { compared };
        if new.declares_nothing() && !old.declares_nothing() && !self.allow_empty {
            if !site.how.dry_run {
                return Err(BadInput::because(EMPTY));
            }
            say(&format!("hint: {EMPTY}"));
        }
        let previous = current.map(|(id, _)| id);
        Ok(Wanted { manifests: as_kept(read), old, previous, new, rollback_to: None })
    }
}
