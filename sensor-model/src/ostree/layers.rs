//! Which layer put something at a path.
//!
//! In: the directories of the trees of layers, the lowest layer first. Out: for each path the layer that put it there, and its object. It
//! follows ostree's importer: a file of a higher layer replaces what is there, a directory that is there keeps its owner and mode, and a
//! whiteout removes what lower layers have.

use super::{Checksum, DirectoryTree};
use crate::image::ImageLimits;
use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
};

/// The beginning of a whiteout's name.
const WHITEOUT: &str = ".wh.";
/// The whiteout of everything in its directory.
const OPAQUE: &str = ".wh..wh..opq";

/// The layers have more paths than an image may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the trees of the layers together have more paths than an image may have")]
pub struct TooManyPaths;

/// What a layer put at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The layer, counted from 0.
    pub layer: u16,
    /// The object of a file; of a directory its owner and mode.
    pub object: Checksum,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// What all layers so far put at each path.
#[derive(Debug, Default)]
pub struct LayerPaths {
    paths: BTreeMap<Vec<u8>, Placed>,
    /// The layers whose commits list files of the base without paths.
    files: HashMap<Checksum, u16>,
    /// Names of all directories so far.
    names: u64,
    /// Bytes of their paths.
    bytes: u64,
}

impl LayerPaths {
    /// Notes a file of the base that a layer brings. The first layer that brings it counts.
    ///
    /// # Errors
    /// [`TooManyPaths`].
    pub fn add_file(&mut self, file: Checksum, layer: u16) -> Result<(), TooManyPaths> {
        self.count(0)?;
        self.files.entry(file).or_insert(layer);
        Ok(())
    }

    /// Adds the names in a directory of the base. `path` has a slash at its end.
    ///
    /// # Errors
    /// [`TooManyPaths`].
    pub fn add_base(&mut self, path: &[u8], tree: &DirectoryTree, layer: u16) -> Result<(), TooManyPaths> {
        for file in &tree.files {
            let layer = self.files.get(&file.file).copied().unwrap_or(layer);
            self.put(join(path, &file.name), Placed { layer, object: file.file, is_directory: false })?;
        }
        self.directories(path, tree, layer)
    }

    /// Adds the names in a directory of a layer above the base. `path` has a slash at its end.
    ///
    /// # Errors
    /// [`TooManyPaths`].
    pub fn add(&mut self, path: &[u8], tree: &DirectoryTree, layer: u16) -> Result<(), TooManyPaths> {
        for name in tree.files.iter().filter_map(|file| file.name.strip_prefix(WHITEOUT)) {
            if name == &OPAQUE[WHITEOUT.len()..] {
                self.remove_below(path);
            } else {
                self.remove(&join(path, name));
            }
        }
        for file in tree.files.iter().filter(|file| !file.name.starts_with(WHITEOUT)) {
            self.put(join(path, &file.name), Placed { layer, object: file.file, is_directory: false })?;
        }
        self.directories(path, tree, layer)
    }

    /// What is at a path.
    pub fn at(&self, path: &[u8]) -> Option<Placed> {
        self.paths.get(path).copied()
    }

    fn directories(&mut self, path: &[u8], tree: &DirectoryTree, layer: u16) -> Result<(), TooManyPaths> {
        for directory in &tree.directories {
            let path = join(path, &directory.name);
            self.count(path.len())?;
            if !self.paths.get(&path).is_some_and(|placed| placed.is_directory) {
                self.paths.insert(path, Placed { layer, object: directory.meta, is_directory: true });
            }
        }
        Ok(())
    }

    fn put(&mut self, path: Vec<u8>, file: Placed) -> Result<(), TooManyPaths> {
        self.count(path.len())?;
        self.remove(&path);
        self.paths.insert(path, file);
        Ok(())
    }

    fn remove(&mut self, path: &[u8]) {
        if self.paths.remove(path).is_some_and(|before| before.is_directory) {
            self.remove_below(&[path, b"/"].concat());
        }
    }

    /// Removes what is below a directory, whose path has a slash at its end.
    fn remove_below(&mut self, path: &[u8]) {
        let from = (Bound::Excluded(path), Bound::Unbounded);
        let below = self.paths.range::<[u8], _>(from).take_while(|(found, _)| found.starts_with(path));
        let below: Vec<Vec<u8>> = below.map(|(found, _)| found.clone()).collect();
        for found in &below {
            self.paths.remove(found);
        }
    }

    /// Counts a name. Directories that lead to one object let a small repository have endless paths.
    fn count(&mut self, length: usize) -> Result<(), TooManyPaths> {
        let limits = ImageLimits::default();
        self.names += 1;
        self.bytes += length as u64;
        if self.names > u64::from(limits.entries) || self.bytes > limits.metadata {
            return Err(TooManyPaths);
        }
        Ok(())
    }
}

fn join(path: &[u8], name: &str) -> Vec<u8> {
    [path, name.as_bytes()].concat()
}
