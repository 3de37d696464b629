//! Which extensions are merged over the hierarchies of a host now.
//!
//! In: an observer. Out: their names by hierarchy, or why they are not known; the directories in which systemd keeps these names.

use crate::observation::Observer;
use sensor_model::{
    expectation::{Expectation, Expected, HierarchyExpectation, ImageLayer, Thing},
    os::{extensions::MergedExtensions, hierarchy::Cover},
};
use std::path::{Path, PathBuf};

/// Why the extensions of a host cannot be indexed.
#[derive(Debug, thiserror::Error)]
pub enum ExtensionFault {
    /// The root is not of a running host.
    #[error("nothing shows which extensions are merged: {0}; index them on the running host")]
    NotRunning(String),
    /// What is merged cannot be read.
    #[error("what is merged over the host's hierarchies is not known: {0}")]
    Unreadable(String),
}

/// Expects these extensions over a hierarchy, and nothing else.
pub(super) fn expectation(path: &Path, extensions: Vec<String>) -> Expectation {
    let layer = ImageLayer { layer: "hierarchy of the OS".into(), image: "host".into(), strength: None };
    Expectation {
        thing: Thing::hierarchy(path),
        expected: Expected::Hierarchy(HierarchyExpectation { extensions }),
        ssh_keys: false,
        label: None,
        source: layer.into(),
    }
}

/// The extensions that are merged over the host's hierarchies now.
pub(super) fn merged(observer: &Observer) -> Result<MergedExtensions, ExtensionFault> {
    // One reason is that of all hierarchies.
    if let Some(reason) = observer.unchecked(&Thing::hierarchy(Path::new("/"))) {
        return Err(ExtensionFault::NotRunning(reason));
    }
    let mut merged = MergedExtensions::default();
    for (hierarchy, covers) in observer.hierarchies().map_err(ExtensionFault::Unreadable)? {
        merged.add(hierarchy, &covers);
    }
    Ok(merged)
}

/// The state of the merged extensions as a text: another text means other extensions. Empty if it is not known.
pub(super) fn state(observer: &Observer) -> String {
    merged(observer).map(|merged| merged.text()).unwrap_or_default()
}

/// The directories that systemd makes in merged hierarchies to describe the merge: `/usr/.systemd-sysext` and the like. In a writable merge others
/// can put files there, so it has none.
pub(super) fn markers(observer: &Observer) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (hierarchy, covers) in observer.hierarchies().unwrap_or_default() {
        for cover in &covers {
            if let Cover::Extensions { class, writable: false, .. } = cover {
                let list = hierarchy.join(class.list());
                found.extend(list.parent().map(Path::to_owned));
            }
        }
    }
    found
}
