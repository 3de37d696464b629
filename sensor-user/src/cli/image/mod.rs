//! `holdfast image`: the index of an OS image, and what differs from it.

mod diff;
mod index;
mod list;
mod place;
mod policy;
mod show;
mod verify;

pub use diff::ImageDiffReport;
pub use index::IndexedReport;
pub use list::ImageListReport;
pub use show::ImageShowReport;
pub use verify::ImageVerifyReport;

use super::output::Screen;
use clap::Subcommand;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct ImageCommand {
    /// What to do.
    #[command(subcommand)]
    command: ImageSubcommand,
}

/// Every command about images.
#[derive(Debug, Subcommand)]
enum ImageSubcommand {
    /// Read an OCI image layout, verify it, and keep the index of what its layers put at each path.
    Index(index::Index),
    /// List the images that have an index.
    List(list::List),
    /// Show what an image has at a path, and the layer that put it there.
    Show(show::Show),
    /// Show what an update from one image to another adds, removes and changes, and the layers to blame.
    Diff(diff::Diff),
    /// Print a policy for remote attestation: the SHA-256 of each file of an image, for Keylime or as lines.
    Policy(policy::Policy),
    /// Compare this host, or a root directory, with an image: what differs, and the layer to blame.
    Verify(verify::Verify),
}

impl ImageCommand {
    /// Runs the command; gives the exit code.
    ///
    /// # Errors
    /// Bad input, and an index that cannot be read or written.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        match &self.command {
            ImageSubcommand::Diff(diff) => diff.run(screen),
            ImageSubcommand::Index(index) => index.run(screen),
            ImageSubcommand::List(list) => list.run(screen),
            ImageSubcommand::Policy(policy) => policy.run(screen),
            ImageSubcommand::Show(show) => show.run(screen),
            ImageSubcommand::Verify(verify) => verify.run(screen),
        }
    }
}
