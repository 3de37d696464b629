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

/// The directories of the deployments that the host did not boot, without those of newer commits. After a rollback, or while an update is
/// staged, the newer one ships what the host does not have yet. A commit without a known time counts as an earlier one, and so does one of the
/// same time: reproducible builds may give all commits the same time.
pub(super) fn earlier_deployments(observer: &Observer) -> Vec<PathBuf> {
    let Some(booted) = booted_commit(observer) else { return Vec::new() };
    let seconds = |checksum: &str| observer.commit(checksum).map(|commit| commit.seconds);
    let of_booted = seconds(&booted);
    let is_earlier = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some((checksum, serial)) = name.split_once('.') else { return false };
        let is_other = checksum != booted && serial.bytes().all(|byte| byte.is_ascii_digit());
        let is_newer = || seconds(checksum).zip(of_booted).is_some_and(|(other, booted)| other > booted);
        is_other && !is_newer()
    };
    observer.deployments().into_iter().filter(is_earlier).collect()
}
