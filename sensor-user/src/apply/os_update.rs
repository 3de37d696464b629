//! What an update of the OS takes back.
//!
//! In: what is declared, the host, and what the image ships below `/usr/etc`. Out: the declared paths that are as the image
//! ships them, and in another boot what the image there ships for them. The merge of `/etc` at an update takes a file with
//! the image's own type, mode, owner and content for unchanged, and puts the new image's in its place; extended attributes
//! do not count for it.

use super::{error::ApplyError, password, planner::Planner, targets::Writes};
use crate::{disk::Place, observation::Observer};
use nix::fcntl::OFlag;
use sensor_model::{
    expectation::{Expectation, Expected, Owner},
    journal::{FileImage, Image, Metadata, OsChange, PutAgain, Target},
    xattr,
};
use std::path::{Path, PathBuf};

/// Where an image ships what the host then has in `/etc`.
const SHIPPED: &str = "/usr/etc";

impl Planner<'_> {
    /// The declared paths that a change of the OS would take back, with what they are once everything is written. With other
    /// arguments alone the same image is merged.
    pub(super) fn put_again(
        &self,
        writes: &Writes,
        os: Option<&OsChange>,
    ) -> Result<Vec<PutAgain>, ApplyError> {
        let mut again = Vec::new();
        if os.is_none_or(OsChange::is_of_arguments) {
            return Ok(again);
        }
        for path in &writes.declared {
            let Some(shipped) = shipped(self.observer, path) else { continue };
            let target = writes.targets.iter().find(|target| target.path == **path);
            let mut image = match target {
                Some(target) => target.after.clone(),
                None => self.image(path)?,
            };
            // Names of one file come apart at each merge; no name of them is as it was before.
            let is_one_of_many = matches!(&image, Image::File(FileImage { hard: Some(_), .. }));
            if let Image::File(file) = &mut image {
                file.names = 0;
            }
            if !is_one_of_many && is_unchanged(&image, &shipped) && **path != *Path::new(password::SHADOW) {
                again.push(PutAgain { path: path.to_path_buf(), image });
            }
        }
        Ok(again)
    }
}

/// What is put again in the boot that runs, as targets: before, there is what its image ships.
pub(super) fn targets(observer: &Observer, again: &[PutAgain]) -> Vec<Target> {
    let target = |again: &PutAgain| {
        let is_etc = again.path.starts_with("/etc") && has_image(observer);
        let shipped = shipped(observer, &again.path).or_else(|| is_etc.then_some(Image::Absent));
        again.target(shipped.map(plain))
    };
    again.iter().map(target).collect()
}

/// The paths of files, directories and links of a config that an update would take back, by what is declared of them.
pub fn foreseen(observer: &Observer, expectations: &[Expectation]) -> Vec<PathBuf> {
    let is_foreseen = |expectation: &&Expectation| {
        let path = expectation.thing.path();
        shipped(observer, &path).is_some_and(|shipped| declares(observer, &expectation.expected, &shipped))
    };
    let paths = expectations.iter().filter(is_foreseen).map(|found| found.thing.path().to_path_buf());
    paths.collect()
}

/// Whether the host has an image's own `/etc`.
fn has_image(observer: &Observer) -> bool {
    observer.root().open_at(Path::new(SHIPPED), OFlag::O_PATH | OFlag::O_DIRECTORY).is_ok()
}

/// What the booted image ships for a path; `None` where it ships nothing, or that cannot be read.
fn shipped(observer: &Observer, path: &Path) -> Option<Image> {
    let below = path.strip_prefix("/etc").ok()?;
    let place = Place::find(observer.root(), &Path::new(SHIPPED).join(below)).ok()??;
    place.see().ok()?.image.filter(|image| *image != Image::Absent)
}

/// Whether the merge takes what is there for what the image ships.
fn is_unchanged(image: &Image, shipped: &Image) -> bool {
    let plain = |metadata: &Metadata| (metadata.mode, metadata.uid, metadata.gid);
    match (image, shipped) {
        (Image::File(image), Image::File(shipped)) => {
            image.sha256 == shipped.sha256 && plain(&image.metadata) == plain(&shipped.metadata)
        }
        (Image::Directory(image), Image::Directory(shipped)) => plain(image) == plain(shipped),
        (Image::Link(image), Image::Link(shipped)) => {
            (&image.target, image.uid, image.gid) == (&shipped.target, shipped.uid, shipped.gid)
        }
        _ => false,
    }
}

/// Whether what is declared is what the image ships; what is not declared of it is as it is.
fn declares(observer: &Observer, expected: &Expected, shipped: &Image) -> bool {
    let is = |owner: &Owner, id: u32, number: &dyn Fn(&str) -> Option<u32>| match owner {
        Owner::Id(declared) => *declared == id,
        Owner::Name(name) => number(name) == Some(id),
        Owner::Undeclared => true,
    };
    let owned = |user: &Owner, group: &Owner, (uid, gid): (u32, u32)| {
        is(user, uid, &|name| observer.uid(name)) && is(group, gid, &|name| observer.gid(name))
    };
    let of = |metadata: &Metadata| (metadata.uid, metadata.gid);
    match (expected, shipped) {
        (Expected::File(file), Image::File(shipped)) => {
            file.content.is_none_or(|content| hex::encode(content.sha256) == shipped.sha256)
                && file.mode == shipped.metadata.mode
                && owned(&file.user, &file.group, of(&shipped.metadata))
        }
        (Expected::Directory(directory), Image::Directory(shipped)) => {
            directory.mode == shipped.mode && owned(&directory.user, &directory.group, of(shipped))
        }
        (Expected::Link(link), Image::Link(shipped)) => {
            !link.hard
                && link.target == shipped.target
                && owned(&link.user, &link.group, (shipped.uid, shipped.gid))
        }
        _ => false,
    }
}

/// Without what the host gives each object itself: what is shipped has the labels of `/usr`.
fn plain(mut image: Image) -> Image {
    match &mut image {
        Image::File(FileImage { metadata, .. }) | Image::Directory(metadata) => {
            metadata.xattrs.retain(|name, _| !xattr::is_ignored(name, ""));
        }
        Image::Link(link) => link.label = None,
        Image::Absent => {}
    }
    image
}
