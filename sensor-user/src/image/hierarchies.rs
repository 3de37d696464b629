//! The hierarchies of the OS, and what may be mounted over them.
//!
//! In: the paths of image rules, or of a command; the index of extensions, if there is one. Out: expectations of hierarchies, and what
//! is mounted over a hierarchy although it is not expected.

use super::{error::ImageError, images::Images, merged_extensions::expectation};
use crate::observation::Observer;
use sensor_model::{
    compare::{Ids, compare},
    difference::{Difference, DifferenceKind, all_unreadable},
    expectation::{Expectation, ExpectationSource, Thing},
    os::{extensions::MergedExtensions, hierarchy::HIERARCHIES},
};
use serde::Serialize;
use std::path::Path;

/// A hierarchy over which something is mounted that is not expected there.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct CoveredHierarchy {
    /// The hierarchy: `/`, `/etc`, `/opt` or `/usr`.
    pub path: String,
    /// A difference for each mount over it.
    pub differences: Vec<Difference>,
}

impl CoveredHierarchy {
    /// Whether it is not known what is mounted over the hierarchy.
    pub fn is_unreadable(&self) -> bool {
        all_unreadable(&self.differences)
    }

    /// Whether a path is in the hierarchy.
    pub fn has(&self, path: &Path) -> bool {
        path.starts_with(&self.path)
    }
}

/// The expectations of the hierarchies that contain a path, or are in it. A root that is no running host has none.
///
/// `extensions`: what the index of extensions was made of, also if other extensions are merged now.
pub(super) fn expected<'a>(
    observer: &'a Observer,
    paths: &'a [impl AsRef<Path>],
    extensions: Option<&'a MergedExtensions>,
) -> impl Iterator<Item = Expectation> + 'a {
    let concerns = move |hierarchy: &Path| {
        let mut paths = paths.iter().map(AsRef::as_ref);
        paths.any(|path: &Path| path.starts_with(hierarchy) || hierarchy.starts_with(path))
    };
    let hierarchies = HIERARCHIES.iter().map(Path::new).filter(move |hierarchy| concerns(hierarchy));
    let expectations = hierarchies
        .map(move |path| expectation(path, extensions.map(|merged| merged.over(path)).unwrap_or_default()));
    expectations.filter(|expectation| observer.unchecked(&expectation.thing).is_none())
}

/// What the index of extensions was made of, also if it is old; `None` without one.
///
/// # Errors
/// The index cannot be read.
pub(super) fn indexed_extensions(images: &Images) -> Result<Option<MergedExtensions>, ImageError> {
    let index = images.named(super::EXTENSIONS)?;
    Ok(index.map(|index| MergedExtensions::parse(index.meta().state.as_deref().unwrap_or_default())))
}

/// Whether an expectation is that of an extension, while no extension is merged over its hierarchy. `all` has the expectations of the
/// hierarchies, too.
pub(crate) fn is_of_unmerged_extension(observer: &Observer, all: &[Expectation], of: &Expectation) -> bool {
    let is_of_extension =
        matches!(&of.source, ExpectationSource::ImageLayer(layer) if &*layer.image == super::EXTENSIONS);
    let path = of.thing.path();
    // Extensions are expected over one of the hierarchies that have the path.
    let is_above = |one: &&Expectation| matches!(&one.thing, Thing::Hierarchy { path: above } if path.starts_with(above));
    let lacks_extensions = |hierarchy: &Expectation| {
        let found = observer.observe(hierarchy).observation;
        let differences = compare(hierarchy, &found, &Ids::default());
        differences.iter().any(|difference| difference.kind == DifferenceKind::Missing)
    };
    is_of_extension && all.iter().filter(is_above).any(lacks_extensions)
}

/// The hierarchies that contain one of the paths or are in it, and over which something is mounted that is not expected.
///
/// # Errors
/// The index of extensions cannot be read.
pub fn covered(
    observer: &Observer,
    images: &Images,
    paths: &[impl AsRef<Path>],
) -> Result<Vec<CoveredHierarchy>, ImageError> {
    let extensions = indexed_extensions(images)?;
    let found = expected(observer, paths, extensions.as_ref()).filter_map(|expectation| {
        let found = observer.observe(&expectation).observation;
        let differences = compare(&expectation, &found, &Ids::default());
        let path = expectation.thing.path().to_string_lossy().into_owned();
        (!differences.is_empty()).then_some(CoveredHierarchy { path, differences })
    });
    Ok(found.collect())
}
