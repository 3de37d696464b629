//! The layers of the image that a commit was made from.
//!
//! In: a commit and its repository. Out: the image by the commit's metadata, and for each path the layer that put it there. The importer
//! of an image keeps a commit for each layer. The trees of these commits pass through memory one directory at a time. If one of them is
//! missing or damaged, no layer is used: what a lower layer has there may be of another layer.

use super::repository::{MOST_DEEP, Repository};
use crate::{image::error::ImageError, sys::CallError};
use nix::errno::Errno;
use sensor_model::ostree::{
    Commit, CommitImage, CommitImageError, CommitLayer, DirectoryTree, LayerContent, LayerPaths, TooManyPaths,
};
use std::path::Path;

/// The image that a commit was made from.
#[derive(Default)]
pub(super) struct ImageLayers {
    /// The image. It has no layers if they cannot be used.
    pub(super) image: Option<CommitImage>,
    /// What its layers put at each path.
    pub(super) paths: LayerPaths,
}

/// Why the layers are not used.
#[derive(Debug, thiserror::Error)]
enum LayersFault {
    #[error(transparent)]
    Image(#[from] CommitImageError),
    #[error("layer {number} of {count} ({digest}): {reason}")]
    Layer { number: usize, count: usize, digest: String, reason: Box<LayerFault> },
}

/// What is wrong with the commit of a layer.
#[derive(Debug, thiserror::Error)]
enum LayerFault {
    #[error(transparent)]
    Object(#[from] ImageError),
    #[error(transparent)]
    TooManyPaths(#[from] TooManyPaths),
}

impl From<CallError> for LayerFault {
    fn from(error: CallError) -> Self {
        Self::Object(error.into())
    }
}

impl ImageLayers {
    /// The image of a commit and its layers. What cannot be used is in the log: the commit itself is what is verified.
    pub(super) fn of(repository: &Repository<'_>, commit: &Commit) -> Self {
        let mut found = Self::default();
        if let Err(error) = found.read(repository, commit) {
            tracing::warn!(
                %error,
                "The layers of the image that the ostree commit was made from cannot be used, so the index names the commit and no layer. A \
                 new deployment of the image brings its layers back."
            );
            found.paths = LayerPaths::default();
            if let Some(image) = &mut found.image {
                image.layers.clear();
            }
        }
        found
    }

    fn read(&mut self, repository: &Repository<'_>, commit: &Commit) -> Result<(), LayersFault> {
        let Some(image) = commit.image()? else { return Ok(()) };
        let layers = &self.image.insert(image).layers;
        let numbered = || (0_u16..).zip(layers);
        // The tree of the base takes the layers of its files from those that list them.
        let lists = numbered().filter(|(_, layer)| layer.content == LayerContent::Files);
        let trees = numbered().filter(|(_, layer)| layer.content != LayerContent::Files);
        for (number, layer) in lists.chain(trees) {
            add(repository, &mut self.paths, number, layer).map_err(|reason| LayersFault::Layer {
                number: usize::from(number) + 1,
                count: layers.len(),
                digest: layer.meta.digest.clone(),
                reason: reason.into(),
            })?;
        }
        Ok(())
    }
}

/// Adds what the commit of a layer has.
fn add(
    repository: &Repository<'_>,
    paths: &mut LayerPaths,
    number: u16,
    layer: &CommitLayer,
) -> Result<(), LayerFault> {
    let commit = repository.commit(repository.reference(&layer.reference)?)?;
    let mut root = repository.tree(commit.tree)?;
    if layer.content == LayerContent::Files {
        return Ok(root.files.iter().try_for_each(|file| paths.add_file(file.file, number))?);
    }
    // An index has the links of the root directory and what is in `/usr`.
    root.directories.retain(|directory| directory.name == "usr");
    let mut walk = TreeWalk { repository, paths, number, content: layer.content };
    walk.add(b"/", &root, 0)
}

/// A walk through the tree of a layer.
struct TreeWalk<'a, 'r> {
    repository: &'a Repository<'r>,
    paths: &'a mut LayerPaths,
    number: u16,
    content: LayerContent,
}

impl TreeWalk<'_, '_> {
    /// Adds the names in a directory and in those below it.
    fn add(&mut self, path: &[u8], tree: &DirectoryTree, depth: usize) -> Result<(), LayerFault> {
        if depth > MOST_DEEP {
            let path = String::from_utf8_lossy(path);
            return Err(CallError::new(Path::new(&*path), "read the directory", Errno::ELOOP).into());
        }
        match self.content {
            LayerContent::Changes => self.paths.add(path, tree, self.number)?,
            LayerContent::Tree | LayerContent::Files => self.paths.add_base(path, tree, self.number)?,
        }
        for directory in &tree.directories {
            let path = [path, directory.name.as_bytes(), b"/"].concat();
            self.add(&path, &self.repository.tree(directory.tree)?, depth + 1)?;
        }
        Ok(())
    }
}
