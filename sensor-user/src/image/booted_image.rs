//! The image that a host booted, as its status names it.
//!
//! In: an observer of the host, and the indexes. Out: name, digest and label of the image.

use super::{
    deployment::{commit, deployment},
    images::Images,
};
use crate::observation::Observer;
use sensor_model::status::BootedImage;

/// The name, the digest and the label of the booted image; `None` on a host that boots no images.
///
/// The label of the image is in the booted ostree commit, or else in the index of the image in `images`, if there is one.
pub fn booted_image(observer: &Observer, images: &Images) -> Option<BootedImage> {
    let booted = deployment(observer)?;
    let config = commit(observer, &booted).and_then(|commit| commit.image().ok()??.machine_config);
    let digest = booted.digest;
    let indexed = || images.open(digest.as_ref()?).ok()?.meta().machine_config.clone();
    Some(BootedImage { name: booted.image, config: config.or_else(indexed), digest })
}
