//! What the images of a host expect at the paths that a drift policy names.
//!
//! In: the policy's rules with `image`, and the indexes that apply to the host, the strongest first. Out: an expectation for each such path
//! of the first index that knows enough of it. Only a state that can be compared in full is expected: a file with its SHA-256, mode and owner, a
//! directory, a symbolic link. The hierarchies of the OS with such paths are expected, too, with the
//! indexed extensions over them. If the booted image has no index, what it has is unknown, and the paths of the rules are too.

use super::{
    chosen::{applying, booted, choose_indexes},
    error::ImageError,
    hierarchies,
    images::{BASELINE, Images},
    index::ImageIndex,
    pristine::{self, Undeclared},
    scan_files::ScanFiles,
    sealed_trees::SealedTrees,
};
use crate::{
    desired::ImagesVersion,
    observation::{Observer, is_of_host},
    sys::version_of,
};
use nix::sys::stat::lstat;
use sensor_model::{
    closed::{HostDirectories, PackagedPath},
    drift_policy::{DriftAction, DriftPolicy},
    expectation::{Expectation, ExpectationSource, Expected, ExpectedXattrs, ImageLayer, Thing},
    image::{ImageEntry, ImageMeta, ImageSource, KnownXattrs, Strength, is_of_each_host},
    observation::FileType,
    xattr,
};
use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Characters of a line of history in the name of a source. Each record of a drift has the name.
const HISTORY: usize = 160;

/// The state of the indexes now.
pub(crate) fn version(observer: &Observer, policy: &DriftPolicy, state: &Path) -> ImagesVersion {
    // A new index gets its name by a rename, which changes the directory.
    let indexes = lstat(Images::of(state).path()).ok().map(|stat| version_of(&stat));
    let findings = policy.scans_image().then(|| ScanFiles::of(state).findings_version()).flatten();
    let seals = if policy.expects_image() { observer.seals_version() } else { None };
    ImagesVersion { indexes, findings, seals }
}

/// Adds what the booted image puts below closed directories and at paths where nothing may be. Without an index, or with an old one, these are
/// the names in the deployment's own copy of `/etc`, and the image's other files look undeclared.
pub(crate) fn add_names_below(
    observer: &Observer,
    state: &Path,
    undeclared: &Undeclared,
    found: &mut HostDirectories,
) {
    if undeclared.roots.is_empty() && undeclared.absent.is_empty() {
        return;
    }
    let images = Images::of(state);
    // A baseline is what an admin accepted at its paths, whatever the rules about the image watch of it.
    let accepted = images.named(BASELINE).and_then(|baseline| {
        let Some(baseline) = baseline else { return Ok(Vec::new()) };
        let mut accepted = Vec::new();
        for path in &undeclared.absent {
            if baseline.find(path.as_os_str().as_bytes())?.is_some() {
                accepted.push(path.clone());
            }
        }
        Ok(accepted)
    });
    match accepted {
        Ok(accepted) => found.accepted = accepted,
        Err(error) => {
            // As if the lists of packages could not be read: nothing is moved.
            found.packages_unread = true;
            tracing::warn!(
                %error,
                "Cannot read the index of the baseline, which may have undeclared objects: Holdfast moves none to the quarantine."
            );
        }
    }
    let mut add = |path: &[u8], entry: ImageEntry| {
        let path = Path::new(OsStr::from_bytes(path));
        if undeclared.concerns(path) {
            let is_directory = entry.file_type == FileType::Directory;
            found.packaged.push(PackagedPath { path: path.to_owned(), is_directory });
        }
        Ok::<(), ImageError>(())
    };
    let read = booted(&images, observer).and_then(|chosen| {
        chosen.indexes.iter().try_for_each(|index| index.each(&mut add))?;
        Ok(chosen)
    });
    match read {
        Ok(chosen) if chosen.is_whole(observer) || !observer.boots_images() => return,
        Ok(_) => tracing::warn!(
            "The booted image has no index, or an old one, so an undeclared name in a closed directory, or where nothing may be, may be the \
             image's: Holdfast moves no such name to the quarantine. Below `/etc` it moves names that the deployment's copy of `/etc` does not have, if the \
             host keeps a copy."
        ),
        Err(error) => tracing::warn!(
            %error,
            "Cannot read the index of the booted image, so an undeclared name in a closed directory, or where nothing may be, may be the image's: \
             Holdfast moves no such name to the quarantine. Below `/etc` it moves names that the deployment's copy of `/etc` does not have, if the \
             host keeps a copy."
        ),
    }
    found.image_unindexed = true;
    if let Some(names) = pristine::names_of(observer, undeclared) {
        found.packaged.extend(names);
        found.shipped_etc_known = true;
    }
}

/// What the host's image, commit, packages and baseline expect at the paths of the policy's rules. Paths are unknown without an index, with
/// one that cannot be read, and with one that is old.
pub(crate) fn expected(observer: &Observer, policy: &DriftPolicy, state: &Path) -> Vec<Expectation> {
    let mut found = Found::default();
    if !policy.expects_image() {
        return found.expectations;
    }
    if policy.scans_image() {
        found.scanned = ScanFiles::of(state).findings();
    }
    let images = Images::of(state);
    let paths: Vec<PathBuf> = policy.image_paths().into_iter().collect();
    let extensions = hierarchies::indexed_extensions(&images).unwrap_or_else(|error| {
        tracing::error!(%error, "Cannot read the index of extensions: none is expected.");
        None
    });
    found.expectations.extend(hierarchies::expected(observer, &paths, extensions.as_ref()));
    let mut trees = SealedTrees::of(observer, state);
    let chosen = applying(&images, observer).and_then(|chosen| {
        // An old index says nothing of the present image.
        if chosen.is_whole(observer) {
            found.trees = trees.take();
        }
        for index in &chosen.indexes {
            found.add(index, policy)?;
        }
        Ok(chosen)
    });
    if let Some(trees) = found.trees.take() {
        found.expectations.extend(trees.expectations());
    }
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(error) => {
            tracing::error!(%error, "Cannot read what this host's image has, so the paths of rules with `image: true` are unknown.");
            let is_hierarchy = |one: &Expectation| matches!(one.thing, Thing::Hierarchy { .. });
            found.expectations.retain(is_hierarchy);
            found.expectations.extend(unindexed(policy));
            return found.expectations;
        }
    };
    if !chosen.is_whole(observer) {
        tracing::error!(
            "A drift policy has rules with `image: true`, and an index of what this host should have is missing or old: run `holdfast image \
             index`."
        );
        found.expectations.extend(unindexed(policy));
        return found.expectations;
    }
    found.warn(policy);
    found.expectations
}

/// What the host's image, packages or baseline expect at one path, whatever the policy says; `None` if they do not have it, or know too little.
///
/// # Errors
/// An index cannot be read.
pub(crate) fn expected_at(
    observer: &Observer,
    state: &Path,
    path: &Path,
) -> Result<Option<Expectation>, ImageError> {
    let indexes = choose_indexes(&Images::of(state), None, observer)?;
    let found = deciding(&indexes, path)?;
    Ok(found.and_then(|(index, entry)| live_of(path, &entry, index.meta())))
}

/// What the host's image expects below `/etc`, without what each host writes by itself, as far as it can be compared in full.
///
/// # Errors
/// The host keeps no pristine `/etc`. An index is missing, old, or cannot be read.
pub(crate) fn expected_in_etc(observer: &Observer, state: &Path) -> Result<Vec<Expectation>, ImageError> {
    if observer.pristine().is_none() {
        return Err(ImageError::NoPristine);
    }
    let chosen = applying(&Images::of(state), observer)?;
    if !chosen.is_whole(observer) {
        return Err(ImageError::BootedNotIndexed);
    }
    let mut known: BTreeSet<Box<[u8]>> = BTreeSet::new();
    let mut found = Vec::new();
    for index in &chosen.indexes {
        index.each(|bytes, entry| {
            let path = Path::new(OsStr::from_bytes(bytes));
            let is_decided = path.starts_with("/etc") && decides(path, &entry, index.meta());
            if is_decided && known.insert(bytes.into()) && can_be_watched(path, &entry, index.meta()) {
                found.extend(live_of(path, &entry, index.meta()));
            }
            Ok::<(), ImageError>(())
        })?;
    }
    Ok(found)
}

/// The paths of the rules, whose state is unknown.
fn unindexed(policy: &DriftPolicy) -> impl Iterator<Item = Expectation> {
    let layer =
        ImageLayer { layer: "image without an index".into(), image: "unknown".into(), strength: None };
    let source = ExpectationSource::from(layer);
    policy.image_paths().into_iter().map(move |path| Expectation {
        thing: Thing::Tree { path: path.into() },
        expected: Expected::Unindexed,
        ssh_keys: false,
        label: None,
        source: source.clone(),
    })
}

#[derive(Default)]
struct Found<'a> {
    expectations: Vec<Expectation>,
    /// The paths about which an earlier index decides.
    known: BTreeSet<Box<[u8]>>,
    /// Paths of which no index so far knows enough.
    left_out: BTreeSet<Box<[u8]>>,
    /// The paths that differed when they were scanned last.
    scanned: BTreeSet<String>,
    /// The paths of the rules that watch something.
    rules: BTreeSet<String>,
    /// The trees that the kernel proves.
    trees: Option<SealedTrees<'a>>,
}

impl Found<'_> {
    fn add(&mut self, index: &ImageIndex, policy: &DriftPolicy) -> Result<(), ImageError> {
        let meta = index.meta();
        let mut sources: HashMap<(u16, Strength), ExpectationSource> = HashMap::new();
        index.each(|bytes, entry| {
            let path = Path::new(OsStr::from_bytes(bytes));
            let Some(rule) = policy.expects_of_image(path) else { return Ok(()) };
            // An image only fills these directories once. A baseline has what an admin accepted there.
            if meta.source != ImageSource::Baseline && is_of_host(path) {
                return Ok(());
            }
            let is_found = || path.to_str().is_some_and(|path| self.scanned.contains(path));
            if rule.scan && !is_found() {
                return Ok(());
            }
            if self.known.contains(bytes) {
                return Ok(());
            }
            if is_changed_by_host(path, &entry, meta) {
                if decides(path, &entry, meta) {
                    self.decided(bytes);
                }
                return Ok(());
            }
            let strength = meta.strength(&entry);
            let layer = entry.layer;
            let source = sources.entry((layer, strength)).or_insert_with(|| source(meta, layer, strength));
            match live(path, &entry, meta, source) {
                Some(expectation) => {
                    self.decided(bytes);
                    // The kernel programs refuse changes of watched paths only, and a finding of the scan differs.
                    let may_be_covered = rule.action != DriftAction::Deny && !rule.scan;
                    let trees = self.trees.as_mut().filter(|_| may_be_covered);
                    if !trees.is_some_and(|trees| trees.covers(path, &expectation)) {
                        self.expectations.push(expectation);
                    }
                    if !self.rules.contains(&rule.path) {
                        self.rules.insert(rule.path.clone());
                    }
                }
                None => drop(self.left_out.insert(bytes.into())),
            }
            Ok::<(), ImageError>(())
        })
    }

    /// Notes that an index decides about a path.
    fn decided(&mut self, path: &[u8]) {
        self.left_out.remove(path);
        self.known.insert(path.into());
    }

    /// Warns of what an operator may take for watched.
    fn warn(&self, policy: &DriftPolicy) {
        if !self.left_out.is_empty() {
            tracing::warn!(
                paths = self.left_out.len(),
                watched = self.expectations.len(),
                "The daemon does not watch some paths of rules with `image: true`, because no index has their SHA-256, mode and owner; \
                 `holdfast image verify` compares what an index has. An index of dpkg's packages that an earlier version of Holdfast made has none \
                 of them: make it anew by `holdfast image index --packages`."
            );
        }
        for rule in policy.image_rules().filter(|rule| !self.rules.contains(*rule)) {
            tracing::warn!(
                rule,
                "A rule with `image: true` watches nothing: no index has a path that it names, with SHA-256, mode and owner."
            );
        }
    }
}

/// Whether hosts are expected to change the path: a configuration file of a package, or one in `/etc` that each host writes by itself.
fn is_changed_by_host(path: &Path, entry: &ImageEntry, meta: &ImageMeta) -> bool {
    match meta.source {
        ImageSource::Packages => entry.config,
        ImageSource::Layers | ImageSource::Ostree => is_of_each_host(path),
        ImageSource::Extensions | ImageSource::Baseline => false,
    }
}

/// Whether an index that has this entry decides about the path, so that weaker indexes do not. An entry that says too little to be watched does
/// not: the name in a package's list would otherwise keep the baseline's digest and mode from being compared. Nor does the configuration file
/// of a package, because a baseline says what it was made to be on this host.
pub(crate) fn decides(path: &Path, entry: &ImageEntry, meta: &ImageMeta) -> bool {
    let is_left_to_host = meta.source != ImageSource::Packages && is_changed_by_host(path, entry, meta);
    is_left_to_host || can_be_watched(path, entry, meta)
}

/// The strongest index that decides about a path, with its entry; `None` if no index does.
///
/// # Errors
/// An index cannot be read.
pub(super) fn deciding<'a>(
    indexes: &'a [ImageIndex],
    path: &Path,
) -> Result<Option<(&'a ImageIndex, ImageEntry)>, ImageError> {
    for index in indexes {
        let entry = index.find(path.as_os_str().as_bytes())?;
        if let Some(entry) = entry.filter(|entry| decides(path, entry, index.meta())) {
            return Ok(Some((index, entry)));
        }
    }
    Ok(None)
}

/// The layer or package to blame, in words, the image, and what a verdict rests on.
fn source(meta: &ImageMeta, layer: u16, strength: Strength) -> ExpectationSource {
    let image = match meta.source {
        ImageSource::Layers => &meta.digest,
        ImageSource::Ostree => super::OSTREE,
        ImageSource::Extensions => super::EXTENSIONS,
        ImageSource::Packages => super::PACKAGES,
        ImageSource::Baseline => super::BASELINE,
    };
    let layer = meta.blame(layer, HISTORY).into();
    ImageLayer { layer, image: image.into(), strength: Some(strength) }.into()
}

/// The expectation of an entry, with its layer as the source; `None` if it is not known in full, or if no expectation has a form for it.
pub(super) fn live_of(path: &Path, entry: &ImageEntry, meta: &ImageMeta) -> Option<Expectation> {
    live(path, entry, meta, &source(meta, entry.layer, meta.strength(entry)))
}

/// Whether the daemon can watch the path of an entry.
pub(super) fn can_be_watched(path: &Path, entry: &ImageEntry, meta: &ImageMeta) -> bool {
    !is_changed_by_host(path, entry, meta) && is_known_in_full(path, entry)
}

/// Whether an expectation has a form for everything that the entry has.
fn is_known_in_full(path: &Path, entry: &ImageEntry) -> bool {
    if entry.ostree.is_some() {
        return path.to_str().is_some();
    }
    let has_text = path.to_str().is_some()
        && entry.target.as_ref().is_none_or(|target| std::str::from_utf8(target).is_ok());
    let has_form = match entry.file_type {
        FileType::Regular => entry.sha256.is_some(),
        // Their attributes are not compared, and only the expectation of a file allows that it is missing.
        FileType::Directory | FileType::Symlink => !entry.may_be_missing,
        _ => false,
    };
    entry.known.has_metadata() && has_text && has_form
}

/// The expectation of an entry; `None` if it is not known in full, or if no expectation has a form for it.
fn live(
    path: &Path,
    entry: &ImageEntry,
    meta: &ImageMeta,
    source: &ExpectationSource,
) -> Option<Expectation> {
    if !is_known_in_full(path, entry) {
        return None;
    }
    let counted = entry.xattrs.iter().filter(|(name, value)| !xattr::is_ignored(name, value));
    let listed: Vec<(String, String)> = counted.cloned().collect();
    let mut expectation = entry.expectation(path, source.clone());
    if let Expected::File(file) = &mut expectation.expected {
        let known = match meta.known_xattrs(entry) {
            KnownXattrs::None => Some(ExpectedXattrs::Unknown),
            KnownXattrs::Capabilities => Some(ExpectedXattrs::Capabilities(listed)),
            KnownXattrs::All if listed.is_empty() => None,
            KnownXattrs::All => Some(ExpectedXattrs::Listed(listed)),
        };
        file.xattrs = known.map(Box::new);
    }
    Some(expectation)
}
