//! An index of what the packages of a host have at their paths.
//!
//! In: the databases of dpkg and rpm. Out: the index file. The "layer" of a path is the package that owns it.

use super::{
    error::ImageError,
    images::Images,
    write::{self, Entries, Indexed},
};
use crate::{
    observation::Observer,
    packages::{self, PackageContents},
};
use sensor_model::image::{ImageEntry, ImageMeta, ImageSource, LayerMeta, encode_record};
use sha2::{Digest as _, Sha256};

/// Indexes the packages of a host.
///
/// # Errors
/// A host without packages, a database that cannot be read, and an index that cannot be written.
pub fn index_packages(observer: &Observer, images: &Images) -> Result<Indexed, ImageError> {
    // Before the databases are read: a package that is installed meanwhile makes the index old.
    let state = packages::state(observer);
    let contents = packages::contents(observer)?;
    if contents.managers.is_empty() {
        return Err(ImageError::NoPackages);
    }
    let meta = meta(&contents, state);
    write::write(images, meta, &contents)
}

fn meta(contents: &PackageContents, state: String) -> ImageMeta {
    let mut digest = Sha256::new();
    let mut record = Vec::new();
    for (path, entry) in &contents.entries {
        record.clear();
        encode_record(path.bytes(), entry, &mut record);
        digest.update(&record);
    }
    let layer = |package: &sensor_model::image::Package| LayerMeta {
        digest: String::new(),
        diff_id: String::new(),
        size: None,
        components: Vec::new(),
        package: Some(package.clone()),
        history: None,
    };
    for package in &contents.packages {
        digest.update(package.text());
        digest.update([0]);
    }
    ImageMeta {
        source: ImageSource::Packages,
        digest: super::blob::digest_text(&digest.finalize()),
        manifest: None,
        indexes: Vec::new(),
        config: String::new(),
        platform: contents.managers.join(" and "),
        names: Vec::new(),
        created: None,
        machine_config: None,
        layers: contents.packages.iter().map(layer).collect(),
        entries: 0,
        bytes: 0,
        ostree: false,
        object_xattrs: false,
        shipped_etc: false,
        state: Some(state),
        damaged: None,
    }
}

impl Entries for PackageContents {
    fn each<E>(&self, mut take: impl FnMut(&[u8], &ImageEntry) -> Result<(), E>) -> Result<u64, E> {
        self.entries.iter().try_for_each(|(path, entry)| take(path.bytes(), entry))?;
        Ok(self.entries.len() as u64)
    }
}
