//! The deployments of a host that boots images.
//!
//! In: an observer of the host. Out: what ostree's files say about the booted deployment and the others.

use crate::observation::Observer;
use nix::fcntl::OFlag;
use sensor_model::{
    expectation::{Expectation, Expected, OSTREE_BOOTED, OsImageExpectation, Source, Thing},
    observation::Observation,
    os::Deployment,
};
use std::path::{Path, PathBuf};

/// The booted deployment; `None` on a host that is no ostree host.
fn deployment(observer: &Observer) -> Option<Deployment> {
    // Also that of a node whose image was built in its cluster, which is not compared with the config's.
    let expectation = Expectation {
        thing: Thing::OsImage,
        expected: Expected::OsImage(OsImageExpectation { image: String::new() }),
        ssh_keys: false,
        label: None,
        source: Source::new(String::new(), String::new()).into(),
    };
    match observer.observe(&expectation).observation {
        Observation::Os(deployment) => Some(deployment),
        _ => None,
    }
}

/// The digest of the booted image, if the host shows one.
pub fn booted_digest(observer: &Observer) -> Option<String> {
    deployment(observer)?.digest
}

/// The checksum of the booted ostree commit; `None` on a host that is no ostree host.
pub(super) fn booted_commit(observer: &Observer) -> Option<String> {
    deployment(observer)?.checksum
}

/// Whether the host booted an ostree deployment, also if its files do not say which one.
pub(super) fn is_image_mode(observer: &Observer) -> bool {
    observer.root().open_at(Path::new(OSTREE_BOOTED), OFlag::O_PATH | OFlag::O_CLOEXEC).is_ok()
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
