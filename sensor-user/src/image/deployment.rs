//! The deployments of a host that boots images.
//!
//! In: an observer of the host. Out: what ostree's files say about the booted deployment and the others. The booted commit is verified.

use crate::observation::Observer;
use sensor_model::{
    expectation::{Expectation, Expected, OsImageExpectation, Source, Thing},
    observation::Observation,
    os::Deployment,
    ostree::Commit,
};
use std::path::PathBuf;

/// The booted deployment; `None` on a host that boots no images.
pub(super) fn deployment(observer: &Observer) -> Option<Deployment> {
    let expectation = Expectation {
        thing: Thing::OsImage,
        expected: Expected::OsImage(OsImageExpectation::of("")),
        ssh_keys: false,
        label: None,
        source: Source::new(String::new(), String::new()).into(),
    };
    match observer.observe(&expectation).observation {
        Observation::Os(deployment) => Some(deployment),
        _ => None,
    }
}

/// The digest of the booted image, if the host shows one: in the deployment's origin, or else in the booted commit, which was made from the
/// image.
pub fn booted_digest(observer: &Observer) -> Option<String> {
    deployment(observer)?.digest
}

/// The booted commit. One that cannot be read shows nothing.
pub(super) fn commit(observer: &Observer, booted: &Deployment) -> Option<Commit> {
    observer.commit(booted.checksum.as_deref()?)
}

/// The checksum of the booted ostree commit; `None` on a host that is no ostree host.
pub(super) fn booted_commit(observer: &Observer) -> Option<String> {
    deployment(observer)?.checksum
}

/// The directories of the deployments that the host did not boot.
pub(super) fn other_deployments(observer: &Observer) -> Vec<PathBuf> {
    let Some(booted) = booted_commit(observer) else { return Vec::new() };
    let all = observer.deployments();
    let is_other = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.split_once('.').is_some_and(|(checksum, serial)| {
            checksum != booted && serial.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    all.into_iter().filter(is_other).collect()
}
