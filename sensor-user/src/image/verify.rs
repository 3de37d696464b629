//! A host compared with the index of its image.
//!
//! In: an index and an observer. Out: what differs at one path or at all paths, with the layer to blame. It reads each file once and
//! changes nothing.

use super::{
    content, deployment, error::ImageError, held_back::shipping_another, index::ImageIndex, merged_extensions,
};
use crate::{
    observation::{OF_THE_HOST, Observer},
    packages,
};
use nix::{fcntl::OFlag, sys::stat::fstat};
use sensor_model::{
    difference::{Difference, all_unreadable},
    expectation::{ExpectationSource, ImageLayer},
    image::{ImageEntry, ImageSource, Known, KnownXattrs, differences, is_of_each_host, md5_difference},
    observation::{FileType, Observation},
    strength::SealKind,
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Directories of the image over which each running host mounts a file system: procfs and sysfs have another mode than the image's directory. `/tmp`
/// and `/var` are not among them: with a wrong mode there users can change the files of others.
const MOUNT_POINTS: [&str; 5] = ["/dev", "/proc", "/run", "/sys", "/sysroot"];
/// Directories over which a host may mount a file system of its own, whose root directory has the mode that `mkfs` or a mount option gives it.
const MOUNT_POINTS_OF_BOOT: [&str; 3] = ["/boot", "/boot/efi", "/efi"];
/// Most links that are followed to the entry of a path.
const MOST_LINKS: usize = 40;

/// Compares a host with its image.
#[derive(Debug)]
pub struct Verifier<'a> {
    index: &'a ImageIndex,
    observer: &'a Observer,
    image: Arc<str>,
    is_running: bool,
    /// The earlier deployments of an ostree host.
    earlier: Vec<PathBuf>,
    /// The index of extensions that are merged over what the image has.
    extensions: Option<&'a ImageIndex>,
    /// The indexes of what the host has beside the image.
    beside: &'a [ImageIndex],
}

/// The entry of a path, compared.
#[derive(Debug)]
pub struct Found {
    /// The path without links, as the image has it.
    pub path: PathBuf,
    /// What the image has there.
    pub entry: ImageEntry,
    /// What the host has there.
    pub observation: Observation,
    /// Every difference; empty if there is none.
    pub differences: Vec<Difference>,
    /// An earlier deployment that ships something else at this path of `/etc`. So the differing file on the host holds back what the booted
    /// deployment ships. `None` if nothing differs, or all earlier deployments ship the same.
    pub other_content_in: Option<String>,
}

/// What a whole comparison found.
#[derive(Debug, Default)]
pub struct Verified {
    /// How many paths were compared.
    pub compared: u64,
    /// How many of them were not read, because the kernel proves their content, by what proves it.
    pub sealed: BTreeMap<SealKind, u64>,
    /// Paths that differ.
    pub differing: Vec<Found>,
    /// Paths that exist on the host alone, if they are asked for.
    pub unexpected: Vec<PathBuf>,
    /// Directories whose names could not be read, if such paths are asked for. What only the host has there is not known.
    pub unlisted: Vec<UnlistedDirectory>,
    /// How many paths of the image are those of merged extensions, and were not compared.
    pub of_extensions: u64,
    /// Directories whose contents were not compared.
    pub left_out: Vec<&'static str>,
}

/// A directory whose names cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct UnlistedDirectory {
    /// The directory.
    pub path: String,
    /// Why they cannot be read.
    pub reason: String,
}

impl<'a> Verifier<'a> {
    /// A verifier of the host at `root`.
    pub fn new(index: &'a ImageIndex, observer: &'a Observer, root: &Path) -> Self {
        let image = index.meta().digest.as_str().into();
        let is_of_image = matches!(index.meta().source, ImageSource::Layers | ImageSource::Ostree);
        let earlier = if is_of_image { deployment::earlier_deployments(observer) } else { Vec::new() };
        Self {
            index,
            observer,
            image,
            is_running: root == Path::new("/"),
            earlier,
            extensions: None,
            beside: &[],
        }
    }

    /// Leaves the paths of the merged extensions out, by their index.
    #[must_use]
    pub fn below(mut self, extensions: Option<&'a ImageIndex>) -> Self {
        self.extensions = extensions.filter(|_| self.index.meta().source != ImageSource::Extensions);
        self
    }

    /// Takes no name for unexpected that one of these indexes has.
    #[must_use]
    pub fn beside(mut self, indexes: &'a [ImageIndex]) -> Self {
        self.beside = indexes;
        self
    }

    /// Whether a merged extension has the path, which then is not the image's.
    ///
    /// # Errors
    /// The index of extensions cannot be read.
    pub fn is_of_extension(&self, path: &Path) -> Result<bool, ImageError> {
        Ok(self.of_extension(path)?.is_some())
    }

    /// What a merged extension has at the path.
    fn of_extension(&self, path: &Path) -> Result<Option<ImageEntry>, ImageError> {
        self.extensions.map_or(Ok(None), |extensions| extensions.find(path.as_os_str().as_bytes()))
    }

    /// Compares the entry of a path. Links in the path are followed as the image has them. `None` if the image has nothing there.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn path(&self, path: &Path) -> Result<Option<Found>, ImageError> {
        let Some((path, entry)) = self.resolve(path)? else { return Ok(None) };
        Ok(Some(self.compare(path, entry)))
    }

    /// Compares all paths of the image, or those at and below `below`. `unexpected`: also finds what the image does not have, neither an
    /// extension nor an index of [`Self::beside`]. Before each path of the image it calls `progress` with the number of paths that are done.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn all(
        &self,
        below: &[PathBuf],
        unexpected: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Verified, ImageError> {
        let mut verified = Verified::default();
        let mut chosen = Vec::new();
        for path in below {
            // A path through a link is below another name in the image.
            chosen.push(self.resolve(path)?.map_or_else(|| path.clone(), |(real, _)| real));
        }
        if self.is_running && chosen.is_empty() {
            verified.left_out = OF_THE_HOST.to_vec();
        }
        let markers = if unexpected { merged_extensions::markers(self.observer) } else { Vec::new() };
        let mut done = 0;
        self.index.each(|path, entry| {
            progress(done);
            done += 1;
            let path = Path::new(OsStr::from_bytes(path));
            let is_chosen = chosen.is_empty() || chosen.iter().any(|above| path.starts_with(above));
            let is_left_out =
                verified.left_out.iter().any(|above| path.starts_with(above) && path != Path::new(above));
            if !is_chosen || is_left_out {
                return Ok(());
            }
            let is_listed = unexpected && !verified.left_out.iter().any(|above| path == Path::new(above));
            if let Some(extended) = self.of_extension(path)? {
                verified.of_extensions += 1;
                // The merged directory has the image's names, too.
                let both = [entry.file_type, extended.file_type];
                if is_listed && both == [FileType::Directory; 2] {
                    self.list(path, &markers, &mut verified)?;
                }
                return Ok(());
            }
            let found = self.compare(path.to_owned(), entry);
            verified.compared += 1;
            if let Some(kind) = found.observation.seal() {
                *verified.sealed.entry(kind).or_default() += 1;
            }
            if is_listed && found.is_directory() {
                self.list(path, &markers, &mut verified)?;
            }
            if !found.differences.is_empty() {
                verified.differing.push(found);
            }
            Ok::<(), ImageError>(())
        })?;
        Ok(verified)
    }

    /// Whether a directory is the root of another file system than the directory above, and root alone can write to it.
    fn is_closed_mount(&self, path: &Path) -> bool {
        let stat_of = |path: &Path| {
            let directory = self.observer.root().open_at(path, OFlag::O_PATH | OFlag::O_CLOEXEC).ok()?;
            fstat(&directory).ok()
        };
        let (Some(here), Some(above)) = (stat_of(path), path.parent().and_then(stat_of)) else {
            return false;
        };
        here.st_dev != above.st_dev && here.st_uid == 0 && here.st_mode & 0o022 == 0
    }

    /// Compares one entry at its path.
    pub(super) fn compare(&self, path: PathBuf, mut entry: ImageEntry) -> Found {
        let meta = self.index.meta();
        let is_of_host = meta.source == ImageSource::Layers && is_of_each_host(&path);
        let is_among = |points: &[&str]| points.iter().any(|point| path == Path::new(point));
        let is_mount_point =
            || is_among(&MOUNT_POINTS) || is_among(&MOUNT_POINTS_OF_BOOT) && self.is_closed_mount(&path);
        if self.is_running && (is_of_host || is_mount_point()) {
            entry.known = Known::Existence;
        }
        let layer = meta.layers.get(usize::from(entry.layer));
        let layer: Arc<str> = match layer.and_then(|layer| layer.package.as_ref()) {
            Some(package) => package.text().into(),
            None => layer.map_or("", |layer| &layer.digest).into(),
        };
        let source =
            ImageLayer { layer, image: Arc::clone(&self.image), strength: Some(meta.strength(&entry)) }
                .into();
        let expectation = entry.expectation(&path, source);
        let observed = self.observer.observe(&expectation).observation;
        let (observation, sum) = self.sum(&path, &entry, observed);
        let mut differences = differences(&entry, &expectation, &observation, meta.known_xattrs(&entry));
        differences.extend(sum.and_then(|sum| md5_difference(&entry, &path, sum)));
        // The object of another deployment may be the same damaged one.
        let other_content_in = if differences.is_empty() || entry.ostree.is_some() {
            None
        } else {
            self.other_content_in(&path, &entry, &expectation.source)
        };
        Found { path, entry, observation, differences, other_content_in }
    }

    /// The name of an earlier deployment that ships something else at a path of `/etc` than the image has there.
    fn other_content_in(
        &self,
        path: &Path,
        entry: &ImageEntry,
        source: &ExpectationSource,
    ) -> Option<String> {
        shipping_another(&self.earlier, path, |there| {
            let expectation = entry.expectation(there, source.clone());
            let found = self.observer.observe(&expectation).observation;
            differences(entry, &expectation, &found, KnownXattrs::None)
        })
    }

    /// The MD5 of a file of which the index has no better digest. A file that cannot be read is not observed either.
    fn sum(
        &self,
        path: &Path,
        entry: &ImageEntry,
        observation: Observation,
    ) -> (Observation, Option<[u8; 16]>) {
        let Observation::Object(object) = &observation else { return (observation, None) };
        if entry.md5.is_none() || entry.sha256.is_some() || object.file_type != FileType::Regular {
            return (observation, None);
        }
        let failed = |reason: &str| {
            let error = format!("{}: {reason}", path.display());
            (Observation::Unreadable { error }, None)
        };
        match content::md5(self.observer, path, object.size) {
            Ok(Some(sum)) => (observation, Some(sum)),
            Ok(None) => failed("it changed while it was read; try again"),
            Err(errno) => failed(errno.desc()),
        }
    }

    /// Notes the names in a directory of the host that are unexpected, or why they are not known.
    fn list(&self, directory: &Path, markers: &[PathBuf], verified: &mut Verified) -> Result<(), ImageError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let names = match self.observer.root().open_at(directory, flags).and_then(crate::sys::names) {
            Ok(names) => names,
            Err(errno) => {
                let (path, reason) = (directory.to_string_lossy().into_owned(), errno.desc().to_owned());
                verified.unlisted.push(UnlistedDirectory { path, reason });
                return Ok(());
            }
        };
        for path in names.iter().map(|name| directory.join(name)) {
            if !markers.contains(&path) && !self.is_known(&path)? {
                verified.unexpected.push(path);
            }
        }
        Ok(())
    }

    /// Whether an index has a path: that of the image, that of the extensions, or one beside it.
    fn is_known(&self, path: &Path) -> Result<bool, ImageError> {
        let all = [Some(self.index), self.extensions].into_iter().flatten().chain(self.beside);
        for index in all {
            if index.find(path.as_os_str().as_bytes())?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The entry of a path, and its path without links, as the image has them. The last name is not followed.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn resolve(&self, path: &Path) -> Result<Option<(PathBuf, ImageEntry)>, ImageError> {
        if self.index.meta().source == ImageSource::Packages {
            // dpkg does not know where its links lead.
            let path = packages::place(self.observer, path);
            return Ok(self.index.find(path.as_os_str().as_bytes())?.map(|entry| (path, entry)));
        }
        if let Some(entry) = self.index.find(path.as_os_str().as_bytes())? {
            return Ok(Some((path.to_owned(), entry)));
        }
        let mut real = PathBuf::from("/");
        let mut pending: VecDeque<Vec<u8>> = names(path.as_os_str().as_bytes());
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            if name == b".." {
                real.pop();
                continue;
            }
            let next = real.join(OsStr::from_bytes(&name));
            let Some(entry) = self.index.find(next.as_os_str().as_bytes())? else { return Ok(None) };
            match &entry.target {
                Some(target) if !pending.is_empty() => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Ok(None);
                    }
                    if target.starts_with(b"/") {
                        real = PathBuf::from("/");
                    }
                    for name in names(target).into_iter().rev() {
                        pending.push_front(name);
                    }
                }
                _ if pending.is_empty() => return Ok(Some((next, entry))),
                _ => real = next,
            }
        }
        Ok(None)
    }
}

impl Found {
    /// Whether the host has a directory there.
    pub fn is_directory(&self) -> bool {
        matches!(&self.observation, Observation::Object(object) if object.file_type == FileType::Directory)
    }

    /// Whether nothing could be read of the path, so that nothing is known.
    pub fn is_unreadable(&self) -> bool {
        !self.differences.is_empty() && all_unreadable(&self.differences)
    }
}

/// The names of a path.
fn names(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Images, index_baseline};
    use nix::errno::Errno;
    use sensor_model::difference::DifferenceKind;
    use serde_json::json;
    use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

    #[test]
    fn only_the_root_of_another_file_system_is_a_closed_mount() {
        let place = tempfile::tempdir().unwrap();
        let images = Images::of(place.path());
        let text = json!({"schema": "holdfast.baseline/v1", "taken": "2026-01-01T00:00:00Z", "paths": []});
        index_baseline(Path::new("baseline.json"), text.to_string().as_bytes(), &images).unwrap();
        let index = images.named("baseline").unwrap().unwrap();
        let root = Path::new("/");
        let observer = Observer::new(root).unwrap();
        let verifier = Verifier::new(&index, &observer, root);
        let is_closed = |path: &str| verifier.is_closed_mount(Path::new(path));
        assert!(is_closed("/proc"));
        assert!(!is_closed("/proc/sys") && !is_closed("/proc/none"));
    }

    #[test]
    fn the_mode_of_a_directory_that_a_running_host_mounts_over_is_not_compared_and_its_existence_is() {
        let place = tempfile::tempdir().unwrap();
        let images = Images::of(&place.path().join("state"));
        let paths = ["/proc", "/sys", "/tmp"]
            .map(|path| json!({"path": path, "type": "directory", "mode": "0755", "uid": 0, "gid": 0}));
        let text = json!({"schema": "holdfast.baseline/v1", "taken": "2026-01-01T00:00:00Z", "paths": paths});
        index_baseline(Path::new("baseline.json"), text.to_string().as_bytes(), &images).unwrap();
        let index = images.named("baseline").unwrap().unwrap();
        let root = place.path().join("root");
        for directory in ["proc", "tmp"] {
            let directory = root.join(directory);
            fs::create_dir_all(&directory).unwrap();
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o555)).unwrap();
        }
        let observer = Observer::new(&root).unwrap();
        let differing = |is_running| {
            let verifier = Verifier { is_running, ..Verifier::new(&index, &observer, &root) };
            let compare = |path: &str| {
                let entry = index.find(path.as_bytes()).unwrap().unwrap();
                let found = verifier.compare(path.into(), entry).differences;
                found.iter().map(|difference| difference.kind).collect::<Vec<_>>()
            };
            ["/proc", "/sys", "/tmp"].map(compare)
        };
        let (mode, missing) = (DifferenceKind::Mode, DifferenceKind::Missing);
        assert_eq!(differing(true), [vec![], vec![missing], vec![mode]]);
        assert_eq!(differing(false), [vec![mode], vec![missing], vec![mode]]);
    }

    #[test]
    fn a_directory_whose_names_cannot_be_read_is_named_and_does_not_count_as_one_without_unexpected_names() {
        // The kernel opens the directory `net` of a process that has ended and was not waited for, and lists no names in it.
        let mut ended = Command::new("true").spawn().unwrap();
        let stat = format!("/proc/{}/stat", ended.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let state = tempfile::tempdir().unwrap();
        let images = Images::of(state.path());
        let directory = format!("/{}/net", ended.id());
        let path = json!({"path": directory, "type": "directory", "mode": "0555", "uid": 0, "gid": 0});
        let text =
            json!({"schema": "holdfast.baseline/v1", "taken": "2026-01-01T00:00:00Z", "paths": [path]});
        index_baseline(Path::new("baseline.json"), text.to_string().as_bytes(), &images).unwrap();
        let index = images.named("baseline").unwrap().unwrap();
        let root = Path::new("/proc");
        let observer = Observer::new(root).unwrap();
        let verifier = Verifier::new(&index, &observer, root);
        let mut progress = Vec::new();
        let found = verifier.all(&[], true, &mut |done| progress.push(done)).unwrap();
        assert_eq!(progress, [0], "the number before the first path");
        assert_eq!((found.compared, &found.unexpected[..]), (1, &[][..]));
        let unlisted = UnlistedDirectory { path: directory, reason: Errno::EINVAL.desc().to_owned() };
        assert_eq!(found.unlisted, [unlisted]);
        assert_eq!(verifier.all(&[], false, &mut |_| {}).unwrap().unlisted, [], "nothing is listed");
        ended.wait().unwrap();
    }
}
