//! An index of what the packages of a host have at their paths.
//!
//! In: the databases of dpkg and rpm, and the files of dpkg's packages. Out: the index file, and the files that do not have dpkg's MD5. The
//! "layer" of a path is the package that owns it.

use super::{
    error::ImageError,
    images::{Images, PACKAGES},
    package_files::read_files,
    write::{self, Entries, Indexed},
};
use crate::{
    observation::Observer,
    packages::{self, PackageContents},
};
use sensor_model::image::{ImageEntry, ImageMeta, ImageSource, LayerMeta, UnmatchedFiles, encode_record};
use sha2::{Digest as _, Sha256};

/// Most files without the MD5 of their package that the log names.
const NAMED: usize = 5;

/// Indexes the packages of a host. Gives the files of dpkg's packages that do not have the MD5 of the database, too. It calls `progress` before
/// each file of these packages that it reads, with the number of files that are done, and of all files.
///
/// # Errors
/// A host without packages, a database that cannot be read, and an index that cannot be written.
pub fn index_packages(
    observer: &Observer,
    images: &Images,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Indexed, UnmatchedFiles), ImageError> {
    // Before the databases are read: a package that is installed meanwhile makes the index old.
    let state = packages::state(observer);
    let mut contents = packages::contents(observer)?;
    if contents.managers.is_empty() {
        return Err(ImageError::NoPackages);
    }
    let before = images.named(PACKAGES).unwrap_or_else(|error| {
        tracing::warn!(%error, "Cannot read the index of packages that is replaced, so nothing is taken from it.");
        None
    });
    let unmatched = read_files(&mut contents, observer, before.as_ref(), progress);
    let meta = meta(&contents, state);
    let indexed = write::write(images, meta, &contents)?;
    warn(&unmatched);
    Ok((indexed, unmatched))
}

/// Warns of files that nothing watches by the index.
fn warn(unmatched: &UnmatchedFiles) {
    if unmatched.count == 0 {
        return;
    }
    let named = unmatched.first.iter().take(NAMED);
    let named: Vec<String> =
        named.map(|file| format!("{}: {}", file.path.escape_debug(), file.reason.as_str())).collect();
    tracing::warn!(
        files = unmatched.count,
        unwatched = unmatched.unwatched(),
        first = named.join(", "),
        "Some files of packages do not have the MD5 of dpkg's database. No rule with `image: true` watches those of which no earlier index has \
         the SHA-256; `holdfast image verify --image packages` compares all of them."
    );
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
