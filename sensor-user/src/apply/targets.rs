//! What an apply changes on the disk: every path with its state before and after.
//!
//! In: the expectations of the old and the new config, and the host. Out: targets in the order of writing, and their contents in
//! the store. A path is a target only if the configs differ in it and the host differs from the new one. No managed path is changed
//! here.

use super::{
    error::{ApplyError, ApplyRefusal},
    hard_link_finder::Names,
    labels::Labels,
    password, removed_by_force,
    target_finder::{PARENT_MODE, TargetFinder, WantedState, is_object},
    unit_links,
};
use crate::{
    disk::{DiskError, Place},
    repair::linked_file,
};
use nix::fcntl::OFlag;
use sensor_model::{
    expectation::{DirectoryExpectation, Expectation, Expected, FileExpectation, LinkExpectation, Thing},
    expectations::{expectations, expected_bytes},
    journal::{FileState, LinkState, Metadata, Original, PathState, Target},
    selinux::ObjectKind,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

/// All changes of an apply on the disk.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) targets: Vec<Target>,
    /// Units whose files, enablement or mask change.
    pub(super) units: Vec<String>,
    /// Targets that the old config did not manage. Their present objects are their originals.
    pub(super) unmanaged: Vec<PathBuf>,
    /// Originals of unmanaged paths that match the new config already.
    pub(super) matching: Vec<Original>,
    /// Paths of `unmanaged` whose objects the booted OS image ships.
    pub(super) shipped: Vec<PathBuf>,
    /// Paths that the new config no longer manages.
    pub(super) released: Vec<PathBuf>,
    /// The paths that the new config declares, with the links of its units.
    pub(super) declared: BTreeSet<Arc<Path>>,
}

impl TargetFinder<'_> {
    /// Works out all changes on the disk; contents go to the store.
    pub(super) fn writes(&self) -> Result<Writes, ApplyError> {
        let old = expectations(self.old).map_err(ApplyError::Expectation)?;
        let new = expectations(self.new).map_err(ApplyError::Expectation)?;
        let mut wanted: BTreeMap<PathBuf, WantedState> = BTreeMap::new();
        let before: BTreeMap<&Thing, &Expectation> = old.iter().map(|e| (&e.thing, e)).collect();
        for expectation in &new {
            let same = before.get(&expectation.thing).is_some_and(|old| old.expected == expectation.expected);
            if self.everything || !same {
                self.declared(expectation, &mut wanted)?;
            }
        }
        // A file gets a new inode, so hard links to it are made again.
        for expectation in &new {
            if let Expected::Link(link) = &expectation.expected
                && linked_file(&expectation.thing.path(), link).is_some_and(|file| wanted.contains_key(&file))
            {
                self.declared(expectation, &mut wanted)?;
            }
        }
        let mut kept: BTreeSet<Arc<Path>> =
            new.iter().filter(|e| is_object(e)).map(|e| e.thing.path()).collect();
        for expectation in old.iter().filter(|e| is_object(e)) {
            let path = expectation.thing.path();
            if !kept.contains(&path) {
                wanted.entry(path.to_path_buf()).or_insert(WantedState::Original);
            }
        }
        let forced = self.add_originals_of_closed(&old, &new, &kept, &mut wanted)?;
        let units = unit_links::wanted(self, &mut kept, &mut wanted)?;
        if let Some(shadow) = password::wanted(self)? {
            wanted.insert(PathBuf::from(password::SHADOW), shadow);
        }
        self.add_displaced_contents(&kept, &mut wanted)?;
        self.add_emptied_parents(&kept, &mut wanted)?;
        self.add_type_changes(&mut wanted)?;
        self.add_missing_parents(&mut wanted)?;
        let names = Names::new(self, &wanted, old.iter().chain(&new).filter(|e| is_object(e)).collect());
        let labels = Labels::of(self.observer, self.drift, &wanted);
        let managed: BTreeSet<Arc<Path>> =
            old.iter().filter(|e| is_object(e)).map(|e| e.thing.path()).collect();
        let mut writes = Writes { units, ..Writes::default() };
        let (mut appearing, mut leaving): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
        // Parents sort before what is in them.
        for (path, wanted) in &wanted {
            let under_new = appearing.iter().any(|directory| path.starts_with(directory));
            let before = if under_new { PathState::Absent } else { names.noted(path, self.state(path)?)? };
            // The objects below a replaced directory are restored together with the directory.
            let replaced_parent =
                leaving.iter().find(|directory| wanted.goes() && path.starts_with(directory)).cloned();
            let after = match &replaced_parent {
                Some(_) => PathState::Absent,
                None if *wanted == WantedState::Original => {
                    names.restored(path, &before, self.original(path)?)?
                }
                None => self.after(path, wanted, &before, &labels)?,
            };
            let is_there = after.is(&before) && !self.needs_link(path, &after)?;
            // A path keeps an original, or loses it, also if its object stays as it is.
            if *wanted == WantedState::Original {
                // Below a directory that a declared file or link replaces, the object is only moved away and keeps its original.
                if replaced_parent.as_ref().is_none_or(|directory| writes.released.contains(directory)) {
                    writes.released.push(path.clone());
                }
            } else if !managed.contains(path.as_path())
                && !forced.contains(path)
                && path != Path::new(password::SHADOW)
            {
                let shipped = self.is_shipped(path, &before)?;
                if is_there {
                    let state = before.clone();
                    writes.matching.push(Original { path: path.clone(), state, shipped });
                } else {
                    writes.unmanaged.push(path.clone());
                    writes.shipped.extend(shipped.then(|| path.clone()));
                }
            }
            if is_there {
                continue;
            }
            match (&before, &after) {
                (PathState::Directory(_), PathState::File(_) | PathState::Link(_)) => {
                    leaving.push(path.clone());
                }
                (PathState::Absent | PathState::File(_) | PathState::Link(_), PathState::Directory(_)) => {
                    appearing.push(path.clone());
                }
                _ => {}
            }
            writes.targets.push(Target { path: path.clone(), before, after });
        }
        self.check_left(&writes.targets)?;
        writes.targets.sort_by_cached_key(rank);
        writes.declared = kept;
        Ok(writes)
    }

    fn declared(
        &self,
        expectation: &Expectation,
        wanted: &mut BTreeMap<PathBuf, WantedState>,
    ) -> Result<(), ApplyError> {
        let path = expectation.thing.path().to_path_buf();
        match &expectation.expected {
            Expected::File(file) => {
                let want = self.file(&path, file)?;
                if expectation.ssh_keys && want != WantedState::Gone {
                    self.ssh_parents(&path, file, wanted)?;
                }
                wanted.insert(path, want);
            }
            Expected::Directory(DirectoryExpectation { mode, user, group }) => {
                let (uid, gid) = self.owners(&path, user, group)?;
                wanted.insert(path, WantedState::Directory { mode: *mode, uid, gid });
            }
            Expected::Link(link) => {
                let LinkExpectation { target, user, group, .. } = link;
                let want = if let Some(target) = linked_file(&path, link) {
                    WantedState::Hard { target }
                } else {
                    let (uid, gid) = self.owners(&path, user, group)?;
                    let (uid, gid) = (uid.unwrap_or(0), gid.unwrap_or(0));
                    WantedState::Link { target: target.clone(), uid, gid }
                };
                wanted.insert(path, want);
            }
            // Undeclared names and keys stop an apply in its preflight. Only a forced apply removes them.
            Expected::ClosedDirectory(closed) if self.everything => {
                for name in removed_by_force::names(self.observer, &path, closed)? {
                    wanted.insert(path.join(name), WantedState::Gone);
                }
            }
            Expected::AuthorizedKeys(keys) if self.everything => {
                let PathState::File(state) = self.state(&path)? else { return Ok(()) };
                let bytes = self.store.content(&state.sha256)?;
                let (bytes, removed) = crate::repair::declared_lines(&bytes, &keys.keys);
                if removed > 0 {
                    let Metadata { mode, uid, gid, .. } = state.metadata;
                    let file =
                        WantedState::File { content: Some(bytes), mode, uid: Some(uid), gid: Some(gid) };
                    wanted.insert(path, file);
                }
            }
            Expected::Unit(_)
            | Expected::ClosedDirectory(_)
            | Expected::AuthorizedKeys(_)
            | Expected::Absent
            | Expected::Tree(_)
            | Expected::Unindexed
            | Expected::OstreeObject(_)
            | Expected::Hierarchy(_)
            | Expected::KernelArguments(_)
            | Expected::OsImage(_) => {}
        }
        Ok(())
    }

    fn file(&self, path: &Path, file: &FileExpectation) -> Result<WantedState, ApplyError> {
        if file.may_be_missing {
            return Ok(WantedState::Gone);
        }
        let (uid, gid) = self.owners(path, &file.user, &file.group)?;
        let content = file.content.map(|_| expected_bytes(self.new, path).unwrap_or_default());
        Ok(WantedState::File { content, mode: file.mode, uid, gid })
    }

    /// Adds the directories of a file of keys. sshd refuses keys in a directory that other users can write.
    fn ssh_parents(
        &self,
        path: &Path,
        file: &FileExpectation,
        wanted: &mut BTreeMap<PathBuf, WantedState>,
    ) -> Result<(), ApplyError> {
        let (uid, gid) = self.owners(path, &file.user, &file.group)?;
        let ours: Vec<&Path> = path
            .ancestors()
            .skip(1)
            .take_while(|directory| directory.iter().any(|name| name == ".ssh"))
            .collect();
        let Some(home) = ours.last().and_then(|ssh| ssh.parent()) else { return Ok(()) };
        if self.observer.root().open_at(home, OFlag::O_PATH | OFlag::O_DIRECTORY).is_err() {
            return Err(ApplyError::refused(home, ApplyRefusal::NoHome));
        }
        for directory in ours {
            // An existing directory keeps its mode, but must belong to the user.
            let present = match self.state(directory)? {
                PathState::Directory(present) => Some(present),
                _ => None,
            };
            let mode = present.as_ref().map_or(0o700, |present| present.mode);
            if present.is_some_and(|present| uid.is_none_or(|uid| present.uid == uid)) {
                continue;
            }
            wanted.entry(directory.to_owned()).or_insert(WantedState::Directory { mode, uid, gid });
        }
        Ok(())
    }

    /// Adds the removal of parents that Holdfast made for paths that are removed now, if no other declared path needs them.
    fn add_emptied_parents(
        &self,
        kept: &BTreeSet<Arc<Path>>,
        wanted: &mut BTreeMap<PathBuf, WantedState>,
    ) -> Result<(), ApplyError> {
        let below = |path: &Path, parent: &Path| path != parent && path.starts_with(parent);
        let mut empty = BTreeMap::new();
        for path in wanted.iter().filter(|(_, wanted)| wanted.goes()).map(|(path, _)| path) {
            for parent in path.ancestors().skip(1) {
                if wanted.contains_key(parent) || empty.contains_key(parent) {
                    continue;
                }
                let is_directory = |state: &PathState| matches!(state, PathState::Directory(_));
                let made =
                    self.store.original(parent)?.is_some_and(|original| !is_directory(&original.state));
                let needed = kept
                    .range(Arc::<Path>::from(parent)..)
                    .next()
                    .is_some_and(|path| path.starts_with(parent))
                    || wanted
                        .range(parent.to_owned()..)
                        .take_while(|(path, _)| path.starts_with(parent))
                        .any(|(path, wanted)| below(path, parent) && !wanted.goes());
                if !made || needed {
                    break;
                }
                empty.insert(parent.to_owned(), WantedState::Original);
            }
        }
        wanted.extend(empty);
        Ok(())
    }

    /// Adds the missing parents of new objects.
    fn add_missing_parents(&self, wanted: &mut BTreeMap<PathBuf, WantedState>) -> Result<(), ApplyError> {
        let mut missing: BTreeMap<PathBuf, WantedState> = BTreeMap::new();
        for (path, want) in wanted.iter() {
            if matches!(want, WantedState::Gone | WantedState::Original) {
                continue;
            }
            for parent in path.ancestors().skip(1) {
                if wanted.contains_key(parent) || missing.contains_key(parent) {
                    continue;
                }
                match self.observer.root().open_at(parent, OFlag::O_PATH | OFlag::O_DIRECTORY) {
                    Ok(_) => break,
                    Err(nix::errno::Errno::ENOENT) => {
                        if self.state(parent)? != PathState::Absent {
                            return Err(ApplyError::refused(parent, ApplyRefusal::DanglingLink));
                        }
                        let made = WantedState::Directory { mode: PARENT_MODE, uid: Some(0), gid: Some(0) };
                        missing.insert(parent.to_owned(), made);
                    }
                    Err(nix::errno::Errno::ENOTDIR) => {
                        return Err(ApplyError::refused(parent, ApplyRefusal::NotADirectory));
                    }
                    Err(errno) => return Err(DiskError::opening(parent, "open", errno).into()),
                }
            }
        }
        wanted.extend(missing);
        Ok(())
    }

    /// The state of the path that is wanted. Of the extended attributes only the label is kept or set, by the host's policy.
    fn after(
        &self,
        path: &Path,
        wanted: &WantedState,
        before: &PathState,
        labels: &Labels<'_>,
    ) -> Result<PathState, ApplyError> {
        Ok(match wanted {
            WantedState::Gone => PathState::Absent,
            WantedState::Original => self.original(path)?,
            WantedState::Link { target, uid, gid } => {
                let label = labels.label(path, ObjectKind::Link, before);
                PathState::Link(LinkState { target: target.clone(), uid: *uid, gid: *gid, label })
            }
            WantedState::Directory { mode, uid, gid } => {
                let present = match before {
                    PathState::Directory(present) => Some(present),
                    _ => None,
                };
                PathState::Directory(Metadata {
                    mode: *mode,
                    uid: uid.or_else(|| Some(present?.uid)).unwrap_or(0),
                    gid: gid.or_else(|| Some(present?.gid)).unwrap_or(0),
                    xattrs: labels.attributes(path, ObjectKind::Directory, before),
                })
            }
            WantedState::File { content, mode, uid, gid } => {
                let present = match before {
                    PathState::File(present) => Some(present),
                    _ => None,
                };
                let (sha256, size) = match (content, present) {
                    (Some(bytes), _) => (self.store.keep(bytes)?, bytes.len() as u64),
                    (None, Some(present)) => (present.sha256.clone(), present.size),
                    (None, None) => (self.store.keep(&[])?, 0),
                };
                PathState::File(FileState {
                    metadata: Metadata {
                        mode: *mode,
                        uid: uid.or_else(|| Some(present?.metadata.uid)).unwrap_or(0),
                        gid: gid.or_else(|| Some(present?.metadata.gid)).unwrap_or(0),
                        xattrs: labels.attributes(path, ObjectKind::File, before),
                    },
                    sha256,
                    size,
                    modified_ns: None,
                    hard: None,
                    names: 0,
                })
            }
            WantedState::Hard { target } => self.hard(path, target, labels)?,
        })
    }

    /// The state of a hard link is that of its target.
    fn hard(&self, path: &Path, target: &Path, labels: &Labels<'_>) -> Result<PathState, ApplyError> {
        let of_config = expectations(self.new).map_err(ApplyError::Expectation)?;
        let declared = of_config.iter().find_map(|expectation| match &expectation.expected {
            Expected::File(file) if *expectation.thing.path() == *target => Some(self.file(target, file)),
            _ => None,
        });
        let present = self.state(target)?;
        let state = match declared.transpose()? {
            Some(wanted) => self.after(target, &wanted, &present, labels)?,
            None => present,
        };
        let PathState::File(file) = state else {
            return Err(ApplyError::refused(path, ApplyRefusal::HardLinkToOther(target.to_owned())));
        };
        Ok(PathState::File(FileState { hard: Some(target.to_owned()), ..file }))
    }

    /// Whether a hard link has the right content but is another inode.
    fn needs_link(&self, path: &Path, after: &PathState) -> Result<bool, ApplyError> {
        let PathState::File(FileState { hard: Some(target), .. }) = after else { return Ok(false) };
        let identity = |path: &Path| -> Result<_, ApplyError> {
            let Some(place) = Place::find(self.observer.root(), path)? else { return Ok(None) };
            Ok(place.see()?.identity)
        };
        Ok(identity(path)? != identity(target)?)
    }
}

/// The order of writing: directories before what is in them, hard links after their files, then removals. Directories that go or
/// change their type come last.
fn rank(target: &Target) -> (u8, usize, PathBuf) {
    let depth = target.path.components().count();
    let (rank, depth) = match (&target.before, &target.after) {
        (_, PathState::Directory(_)) => (0, depth),
        (PathState::Directory(_), _) => (4, usize::MAX - depth),
        (_, PathState::File(file)) if file.hard.is_some() => (2, 0),
        (_, PathState::File(_) | PathState::Link(_)) => (1, 0),
        (_, PathState::Absent) => (3, 0),
    };
    (rank, depth, target.path.clone())
}
