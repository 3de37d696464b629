//! Directories, links, and directories in which only declared names may be.

use super::{
    RepairError,
    metadata::{self, Metadata},
    place::{Host, Place, TAKEN, Temporary, failed, refused},
};
use crate::observation::{
    Observer,
    resolve::{LINK_OF_OTHERS, just_made_link},
};
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::AtFlags,
    unistd::{Gid, Uid, fchownat, linkat, symlinkat},
};
use sensor_model::{
    difference::{Difference, DifferenceKind},
    expectation::{ClosedDirectoryExpectation, DirectoryExpectation, LinkExpectation},
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

impl Host<'_> {
    /// A declared directory: made, or its metadata set. What is in its place and is none stays.
    pub(super) fn declared_directory(
        &self,
        path: &Path,
        expected: &DirectoryExpectation,
        differences: &[Difference],
        label: Option<&str>,
    ) -> Result<Vec<String>, RepairError> {
        if let Some(difference) =
            differences.iter().find(|difference| difference.kind == DifferenceKind::Type)
        {
            let found = &difference.found;
            return Err(refused(path, format!("a {found} is in its place; move it away first")));
        }
        let missing = differences.iter().any(|difference| difference.kind == DifferenceKind::Missing);
        let (user, group) = self.owners(path, &expected.user, &expected.group)?;
        self.directory(path, None)?;
        let file = self.place(path, None)?.open_directory()?;
        let wanted = Metadata { mode: Some(expected.mode), user, group, label };
        let mut actions = metadata::apply(&file, path, wanted)?;
        if missing {
            actions.insert(0, "directory made".to_owned());
        }
        Ok(actions)
    }

    /// A declared link, made anew and put in the place of whatever has its name.
    pub(super) fn link(
        &self,
        path: &Path,
        expected: &LinkExpectation,
        label: Option<&str>,
    ) -> Result<Vec<String>, RepairError> {
        let place = self.place(path, None)?;
        if expected.hard {
            let target = path.parent().unwrap_or(Path::new("/")).join(&expected.target);
            let from = self
                .existing_place(&target)?
                .filter(|from| from.stat().is_ok_and(|stat| stat.is_some()))
                .ok_or_else(|| {
                    refused(path, format!("the target of the hard link, {}, is missing", target.display()))
                })?;
            let linked = from.handle()?;
            place.clear_way(self.observer)?;
            let ((), temporary) = place.temporary("make the hard link", |name| {
                linkat(&from.directory, from.name.as_os_str(), &place.directory, name, AtFlags::empty())
            })?;
            place.rename(&linked, temporary)?;
            return Ok(vec!["hard link made".to_owned()]);
        }
        let (user, group) = self.owners(path, &expected.user, &expected.group)?;
        place.clear_way(self.observer)?;
        place.symlink(expected.target.as_os_str(), (user, group), label)?;
        Ok(vec!["link made".to_owned()])
    }

    /// Removes undeclared names: of a directory that its owner has filled with millions, as many as one call may take.
    pub(super) fn closed_directory(
        &self,
        path: &Path,
        expected: &ClosedDirectoryExpectation,
    ) -> Result<Vec<String>, RepairError> {
        let (mut actions, mut removed) = (Vec::new(), 0);
        let mut is_all = false;
        for _ in 0..BATCHES {
            let names =
                some_names(self.observer, path, |name| expected.is_unexpected(&name.to_string_lossy()))?;
            let (before, mut last) = (removed, None);
            for name in &names {
                let Some(place) = self.existing_place(&path.join(name))? else { continue };
                if place.remove(self.observer)? {
                    removed += 1;
                    if actions.len() < NAMED {
                        actions.push(format!("undeclared {} removed", name.to_string_lossy()));
                    }
                }
                last = Some(place);
            }
            if let Some(place) = last {
                place.sync()?;
            }
            is_all = names.len() < BATCH;
            if is_all || removed == before {
                break;
            }
        }
        if removed > actions.len() {
            actions.push(format!("{} more undeclared names removed", removed - actions.len()));
        }
        if !is_all {
            actions.push("some undeclared names are left; repair it again".to_owned());
        }
        Ok(actions)
    }
}

/// Names of a directory that are kept at once.
const BATCH: usize = 1024;

/// How often so many are read and removed by one call: whoever owns the directory may add names all the time.
const BATCHES: usize = 64;

/// Removed names that are told one by one.
const NAMED: usize = 64;

/// The first names that are found in a directory and for which `is_one` holds, at most [`BATCH`], sorted.
fn some_names(
    observer: &Observer,
    path: &Path,
    is_one: impl Fn(&OsStr) -> bool,
) -> Result<Vec<OsString>, RepairError> {
    let mut names = Vec::new();
    each_name(observer, path, |name| {
        if is_one(name) {
            names.push(name.to_owned());
        }
        names.len() < BATCH
    })?;
    names.sort_unstable();
    Ok(names)
}

/// Names in a directory, sorted.
pub(super) fn names_in(observer: &Observer, path: &Path) -> Result<Vec<OsString>, RepairError> {
    let mut names = Vec::new();
    each_name(observer, path, |name| {
        names.push(name.to_owned());
        true
    })?;
    names.sort_unstable();
    Ok(names)
}

/// Calls `take` for each name in a directory, until it has enough.
fn each_name(
    observer: &Observer,
    path: &Path,
    mut take: impl FnMut(&OsStr) -> bool,
) -> Result<(), RepairError> {
    use nix::fcntl::OFlag;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let directory = observer.root().open_at(path, flags).map_err(|errno| match errno {
        Errno::ELOOP => refused(path, LINK_OF_OTHERS),
        errno => failed(path, "open the directory", errno),
    })?;
    let mut listed = Dir::from_fd(directory).map_err(|errno| failed(path, "read", errno))?;
    for entry in listed.iter() {
        let entry = entry.map_err(|errno| failed(path, "read", errno))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && !take(OsStr::from_bytes(name)) {
            break;
        }
    }
    Ok(())
}

impl Place {
    /// Puts a symbolic link in the place of whatever has the name.
    pub(super) fn symlink(
        &self,
        target: &OsStr,
        (user, group): (Option<u32>, Option<u32>),
        label: Option<&str>,
    ) -> Result<(), RepairError> {
        let ((), temporary) =
            self.temporary("make the link", |name| symlinkat(target, &self.directory, name))?;
        self.put_link(temporary, target, (user, group), label)
    }

    /// Gives a link that was just made its owner and its label, and the name. Its temporary name may lead to another object at
    /// any moment, so both are set by a handle.
    pub(super) fn put_link(
        &self,
        temporary: Temporary<'_>,
        target: &OsStr,
        (user, group): (Option<u32>, Option<u32>),
        label: Option<&str>,
    ) -> Result<(), RepairError> {
        let link = just_made_link(&self.directory, &temporary.name, target)
            .map_err(self.failed("look at the link"))?
            .ok_or_else(|| refused(&self.path, TAKEN))?;
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        fchownat(&link, "", user, group, AtFlags::AT_EMPTY_PATH).map_err(self.failed("change the owner"))?;
        if let Some(label) = label {
            metadata::set_link_label(&link, &self.path, label)?;
        }
        self.rename(&link, temporary)
    }
}
