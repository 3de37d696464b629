//! The options that name the indexes and one of their images.

use crate::{
    cli::BadInput,
    desired::state_directory,
    image::{
        EXTENSIONS, ImageError, ImageIndex, Images, OSTREE, PACKAGES, booted_digest, of_booted_commit,
        of_booted_image, why_no_booted_image,
    },
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
        Images::of(&self.state())
    }

    /// The state directory.
    pub(super) fn state(&self) -> PathBuf {
        state_directory(self.state.as_deref(), Path::new("/"))
    }
}

/// The host that an index must be current for.
#[derive(Debug, clap::Args)]
pub(super) struct RootOption {
    /// The root directory of the host whose packages, extensions or ostree commit the index must be of, as of `image index --root`.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    root: PathBuf,
}

impl RootOption {
    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.root
    }

    /// The host.
    pub(super) fn observer(&self) -> anyhow::Result<Observer> {
        Observer::new(&self.root).map_err(BadInput::wrap)
    }
}

/// The image to use.
#[derive(Debug, clap::Args)]
pub(super) struct ImageOption {
    /// The image: the digest of its manifest or of its image index, or the beginning of the manifest's, of at least six digits; `ostree-` and the
    /// checksum of a commit, or its beginning; `extensions`, `ostree`, `packages` or `baseline` for those of the host. [default: the booted image, if this host shows its digest; else the booted ostree commit, or
    /// else the packages, if they have an index]
    #[arg(long, value_name = "DIGEST")]
    image: Option<String>,
}

impl ImageOption {
    /// Opens its index, for the host of the observer.
    pub(super) fn open(&self, images: &Images, observer: &Observer) -> anyhow::Result<ImageIndex> {
        if let Some(wanted) = &self.image {
            return images.open(wanted).and_then(|index| index.refuse_old(observer)).map_err(input);
        }
        if let Some(index) = of_booted_image(images, observer).map_err(input)? {
            return Ok(index);
        }
        let mut found = commit(images, observer).map_err(input)?;
        if found.is_none() {
            if let Some(digest) = booted_digest(observer) {
                return Err(input(why_no_booted_image(images, observer, digest)));
            }
            found = images.named(PACKAGES).map_err(input)?;
        }
        if let Some(index) = found {
            return index.refuse_old(observer).map_err(input);
        }
        Err(BadInput::because(
            "this host does not show which image it booted, and neither its ostree commit nor its packages have an index; name an image with \
             --image DIGEST, or run `holdfast image index --ostree` or `--packages`",
        ))
    }
}

/// Opens the index of an image beside another one. The host's own must be current. A commit's need not be the booted one's.
pub(super) fn open_other(images: &Images, wanted: &str, observer: &Observer) -> anyhow::Result<ImageIndex> {
    let index = images.open(wanted).map_err(input)?;
    if [EXTENSIONS, OSTREE, PACKAGES].contains(&wanted) {
        return index.refuse_old(observer).map_err(input);
    }
    Ok(index)
}

/// The index of the booted commit, or else an old one.
fn commit(images: &Images, observer: &Observer) -> Result<Option<ImageIndex>, ImageError> {
    match of_booted_commit(images, observer)? {
        Some(index) => Ok(Some(index)),
        None => images.named(OSTREE),
    }
}

/// An error about an image, with its exit code.
pub(super) fn input(error: ImageError) -> anyhow::Error {
    BadInput::wrap_if(error.is_input(), error)
}
