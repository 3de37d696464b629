//! Directories, links, and directories in which only declared names may be.
//!
//! In: the expectation, and how the thing differs. Out: the directory or link as declared, or no undeclared names in the directory.

use super::{
    context::{RepairContext, linked_file},
    error::{RepairError, RepairRefusal},
    file::texts,
};
use crate::{
    disk::{NewMetadata, Xattrs, each_name, set_existing},
    observation::Observer,
};
use sensor_model::{
    difference::{Difference, DifferenceKind},
    escape::name_text,
    expectation::{ClosedDirectoryExpectation, DirectoryExpectation, LinkExpectation},
};
use std::{
    ffi::{OsStr, OsString},
    ops::ControlFlow,
    path::Path,
};

impl RepairContext<'_> {
    /// Makes a declared directory, or sets its metadata. An object of another type stays, and is an error.
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
            return Err(RepairError::refused(path, RepairRefusal::InPlace(found.clone())));
        }
        let missing = differences.iter().any(|difference| difference.kind == DifferenceKind::Missing);
        let (user, group) = self.owners(path, &expected.user, &expected.group)?;
        self.directory(path, None)?;
        let file = self.place(path, None)?.open_directory()?;
        let xattrs = Xattrs::Declared { label };
        let wanted = NewMetadata { mode: Some(expected.mode), uid: user, gid: group, xattrs };
        let mut actions = texts(set_existing(&file, path, &wanted)?);
        if missing {
            actions.insert(0, "directory made".to_owned());
        }
        Ok(actions)
    }

    /// Makes a declared link anew, and replaces the object at its path.
    pub(super) fn link(
        &self,
        path: &Path,
        expected: &LinkExpectation,
        label: Option<&str>,
    ) -> Result<Vec<String>, RepairError> {
        let place = self.place(path, None)?;
        if let Some(target) = linked_file(path, expected) {
            let from = self
                .existing_place(&target)?
                .filter(|from| from.stat().is_ok_and(|stat| stat.is_some()))
                .ok_or_else(|| RepairError::refused(path, RepairRefusal::NoHardLinkTarget(target.clone())))?;
            place.prepare_replacement(self.observer)?;
            place.replace_by_hard_link(&from)?;
            return Ok(vec!["hard link made".to_owned()]);
        }
        let (user, group) = self.owners(path, &expected.user, &expected.group)?;
        place.prepare_replacement(self.observer)?;
        place.replace_by_link(expected.target.as_os_str(), (user, group), label)?;
        Ok(vec!["link made".to_owned()])
    }

    /// Removes undeclared names, a limited number in one call, because the owner of the directory may have made millions.
    pub(super) fn closed_directory(
        &self,
        path: &Path,
        expected: &ClosedDirectoryExpectation,
    ) -> Result<Vec<String>, RepairError> {
        let (mut actions, mut removed) = (Vec::new(), 0);
        let mut is_all = false;
        for _ in 0..BATCHES {
            let names = some_names(self.observer, path, |name| expected.is_unexpected(&name_text(name)))?;
            let (before, mut last) = (removed, None);
            for name in &names {
                let Some(place) = self.existing_place(&path.join(name))? else { continue };
                if place.remove(self.observer)? {
                    removed += 1;
                    if actions.len() < NAMED {
                        actions.push(format!("undeclared {} removed", name_text(name)));
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
            actions.push("more undeclared names are left; repair it again".to_owned());
        }
        Ok(actions)
    }
}

/// How many names are read and removed together.
const BATCH: usize = 1024;

/// How often one call reads and removes names, because the owner of the directory may add more all the time.
const BATCHES: usize = 64;

/// How many removed names are reported one by one.
const NAMED: usize = 64;

/// At most [`BATCH`] names in a directory for which `is_one` holds, sorted.
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
        let flow = if names.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        Ok::<_, RepairError>(flow)
    })?;
    names.sort_unstable();
    Ok(names)
}
