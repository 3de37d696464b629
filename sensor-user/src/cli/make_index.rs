//! `holdfast make-index`: makes the index of the booted ostree commit, and deletes those of commits that are gone, in a process of its own.

use super::{background::give_way, desired::Read, exit::IN_SYNC};
use crate::image::{Images, delete_old_commits, renew_ostree};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct MakeIndex {
    #[command(flatten)]
    read: Read,
}

impl MakeIndex {
    /// Makes the index, unless there is one. Deletes the indexes of commits that the host does not have any more.
    ///
    /// # Errors
    /// The commit cannot be read, or the index cannot be written.
    pub fn run(self) -> anyhow::Result<u8> {
        give_way();
        let observer = self.read.observer()?;
        let images = Images::of(&self.read.state);
        if let Some(indexed) = renew_ostree(&observer, &images)? {
            if let Some(damaged) = &indexed.meta.damaged {
                tracing::error!(
                    files = damaged.count,
                    first = damaged.first.first().map_or("", |file| &*file.path),
                    "Objects in the ostree repository are damaged, so the index has only their checksums: `holdfast image list` lists the files."
                );
            }
            tracing::info!(
                paths = indexed.meta.entries,
                image = indexed.meta.manifest.unwrap_or_default(),
                commit = indexed.meta.digest,
                "The index of the booted ostree commit is made."
            );
        }
        match delete_old_commits(&observer, &images) {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => {
                tracing::info!(
                    indexes = gone.join(" "),
                    "The indexes of ostree commits that the repository does not have any more are deleted."
                );
            }
            // They only take room on the disk.
            Err(error) => tracing::warn!(%error, "Indexes of earlier ostree commits stay."),
        }
        Ok(IN_SYNC)
    }
}
