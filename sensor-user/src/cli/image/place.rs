//! The options that name the indexes and one of their images.

use crate::{
    cli::BadInput,
    desired::state_directory,
    image::{ImageError, ImageIndex, Images},
    inspection,
    observation::Observer,
};
use std::path::{Path, PathBuf};

/// Where the indexes are.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// State directory, in which the indexes are. [default: /var/lib/holdfast]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
}

impl Place {
    /// The indexes.
    pub(super) fn images(&self) -> Images {
        Images::of(&state_directory(self.state.as_deref(), Path::new("/")))
    }
}

/// The image to use.
#[derive(Debug, clap::Args)]
pub(super) struct ImageOption {
    /// The image: the digest of its manifest or of its image index, or the beginning of the manifest's. [default: the booted
    /// image, if this host shows its digest]
    #[arg(long, value_name = "DIGEST")]
    image: Option<String>,
}

impl ImageOption {
    /// Opens its index.
    pub(super) fn open(&self, images: &Images) -> anyhow::Result<ImageIndex> {
        let wanted = if let Some(wanted) = &self.image {
            wanted.clone()
        } else {
            let observer = Observer::new(Path::new("/"))?;
            inspection::booted_digest(&observer).ok_or_else(|| {
                BadInput::because(
                    "this host does not show which image it booted; name one with --image DIGEST",
                )
            })?
        };
        images.open(&wanted).map_err(input)
    }
}

/// An error about an image, with its exit code.
pub(super) fn input(error: ImageError) -> anyhow::Error {
    BadInput::wrap_if(error.is_input(), error)
}
