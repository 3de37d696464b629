//! What is mounted over a hierarchy of the OS.
//!
//! In: the host's root, and a hierarchy. Out: the mounts that replace it, with the names of merged extensions. It reads the mount table of
//! the host's first process, since a container has another view of the host's mounts.

use super::{
    host_mounts::host_mounts,
    object::FailedOperation,
    os,
    resolve::{HANDLE, Root},
};
use crate::bounded;
use nix::fcntl::OFlag;
use sensor_model::{
    expectation::{Expectation, ExpectationSource},
    observation::Observation,
    os::hierarchy::{Cover, HIERARCHIES, covers, is_cover_on_top, names},
    strength::Strength,
};
use std::path::Path;

/// Most bytes of a list of extensions.
const LIST: u64 = 64 << 10;

/// The directory in which ostree and rpm-ostree keep the state of deployments for this boot.
const RUN_STATE: &str = "/run/ostree/deployment-state";
/// The file that `rpm-ostree apply-live` makes there for the booted deployment.
const LIVE: &str = "rpmostree-is-live.stamp";

/// Observes what is mounted over a hierarchy.
pub(super) fn observe(root: &Root, hierarchy: &Path) -> Result<Observation, FailedOperation> {
    Ok(Observation::Hierarchy { covers: over(root, &host_mounts(root)?, hierarchy) })
}

/// What is mounted over each hierarchy, from one reading of the mount table.
pub(super) fn all(root: &Root) -> Result<Vec<(&'static Path, Vec<Cover>)>, FailedOperation> {
    let table = host_mounts(root)?;
    let hierarchies = HIERARCHIES.iter().map(Path::new);
    Ok(hierarchies.map(|hierarchy| (hierarchy, over(root, &table, hierarchy))).collect())
}

/// What is mounted over a hierarchy by a mount table.
fn over(root: &Root, table: &[u8], hierarchy: &Path) -> Vec<Cover> {
    let mut found = covers(table, hierarchy);
    for cover in &mut found {
        if let Cover::Extensions { class, names: of, .. } = cover {
            *of = listed(root, &hierarchy.join(class.list()));
        }
    }
    if hierarchy == Path::new("/usr") && is_live(root) {
        found.push(Cover::LiveApply);
    }
    found
}

/// Whether the topmost mount at a hierarchy is one that [`observe`] reports. If that is not known, it is not.
pub(super) fn has_cover(root: &Root, hierarchy: &Path) -> bool {
    host_mounts(root).is_ok_and(|table| is_cover_on_top(&table, hierarchy))
}

/// The names in a list of extensions. A merge whose list cannot be read has none, and is never an expected one.
fn listed(root: &Root, list: &Path) -> Vec<String> {
    let opened = root.open_at(list, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW);
    let bytes = opened.ok().and_then(|file| bounded::read_open(file, LIST).ok());
    bytes.map(|bytes| names(&String::from_utf8_lossy(&bytes))).unwrap_or_default()
}

/// Whether rpm-ostree applied another commit to the running system. The state of a deployment that was booted before stays in `/run` after a
/// soft reboot. If the booted deployment cannot be found, any of them counts.
fn is_live(root: &Root) -> bool {
    let state = Path::new(RUN_STATE);
    let booted = os::ostree_deployment(root);
    let of_booted = booted.ok().and_then(|deployment| Some(state.join(deployment.file_name()?)));
    let places = of_booted.map_or_else(|| os::names(root, state).unwrap_or_default(), |place| vec![place]);
    places.iter().any(|place| root.open_at(&place.join(LIVE), HANDLE).is_ok())
}

/// Whether an image expects a directory in which no mount is by design, also not one from before the first observation: below `/usr` and `/etc`. A
/// baseline may have been taken with the mount, and `/usr/local` may be a file system of its own.
pub(super) fn is_never_mount_point(expectation: &Expectation) -> bool {
    let ExpectationSource::ImageLayer(layer) = &expectation.source else { return false };
    let path = expectation.thing.path();
    let is_below = |top: &str| path.starts_with(top) && *path != *Path::new(top);
    layer.strength != Some(Strength::Baseline)
        && (is_below("/usr") || is_below("/etc"))
        && !path.starts_with("/usr/local")
}

/// Whether an image expects a directory that is a hierarchy. What is mounted over that is a thing of its own.
pub(super) fn is_of_image(expectation: &Expectation) -> bool {
    let path = expectation.thing.path();
    matches!(expectation.source, ExpectationSource::ImageLayer(_))
        && HIERARCHIES.iter().any(|hierarchy| *path == *Path::new(hierarchy))
}
