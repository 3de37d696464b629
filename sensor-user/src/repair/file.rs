//! Files, and files of ssh keys.
//!
//! In: a declared file, and how it differs. Out: the file with its content, owner, mode and label. A user's own file of keys loses
//! only undeclared keys and invalid lines.

use super::{
    context::{KeyOwner, RepairContext},
    error::{RepairError, RepairRefusal},
};
use crate::{
    bounded,
    disk::{Changed, DiskError, NewMetadata, Xattrs, label_value, set_existing, set_label},
    sys::CallError,
};
use nix::{errno::Errno, sys::stat::fstat, unistd::geteuid};
use sensor_model::{
    authorized_keys::{self, SshKey},
    difference::{Difference, DifferenceKind},
    expectation::{ExpectedXattrs, FileExpectation},
    expectations::expected_bytes,
    observation::{FileType, Observation},
    selinux::ATTRIBUTE,
};
use std::{collections::BTreeMap, path::Path};

impl RepairContext<'_> {
    /// A declared file.
    pub(super) fn file(
        &self,
        path: &Path,
        expected: &FileExpectation,
        ssh_keys: bool,
        differences: &[Difference],
        label: Option<&str>,
    ) -> Result<Vec<String>, RepairError> {
        let (user, group) = self.owners(path, &expected.user, &expected.group)?;
        let keys: KeyOwner = ssh_keys.then_some((user, group));
        let place = self.place(path, keys)?;
        let has = |kind| differences.iter().any(|difference| difference.kind == kind);
        let rewrite =
            [DifferenceKind::Content, DifferenceKind::Type, DifferenceKind::Missing, DifferenceKind::SshKey]
                .into_iter()
                .any(has);
        let shipped = self.shipped_xattrs(expected, label);
        let xattrs = match &shipped {
            Some(shipped) => Xattrs::Exactly(shipped),
            None if expected.xattrs.as_deref() == Some(&ExpectedXattrs::Unknown) => {
                Xattrs::Unchanged { label }
            }
            None => Xattrs::Declared { label },
        };
        let wanted = NewMetadata { mode: Some(expected.mode), uid: user, gid: group, xattrs };
        if !rewrite {
            let file = place.open(self.observer)?;
            let stat = fstat(&file).map_err(|errno| DiskError::from(CallError::new(path, "stat", errno)))?;
            if stat.st_mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
                return Err(DiskError::Replaced { path: path.to_owned() }.into());
            }
            // A user who can write the directory may have put a file of root there since the observation. So the path gets a new
            // file with the declared content.
            if !place.is_of_others()? {
                match set_existing(&file, path, &wanted) {
                    // The kernel does not list so many attributes, so none can be removed. A new file has none.
                    Err(DiskError::Failed(error))
                        if error.errno() == Some(Errno::E2BIG) && expected.content.is_some() => {}
                    set => return Ok(texts(set?)),
                }
            }
            if expected.content.is_none() {
                let reason = match stat.st_nlink {
                    0 | 1 if stat.st_uid != geteuid().as_raw() => {
                        return Ok(texts(set_existing(&file, path, &wanted)?));
                    }
                    0 | 1 => RepairRefusal::UndeclaredOfRoot,
                    _ => RepairRefusal::UndeclaredWithOtherName,
                };
                return Err(RepairError::refused(path, reason));
            }
        }
        let bytes = match expected.content {
            Some(_) => self.bytes(path)?,
            // Like Ignition, it makes an empty file if no content is declared and the file is missing.
            None if has(DifferenceKind::Missing) => Vec::new(),
            None => return Err(RepairError::refused(path, RepairRefusal::UndeclaredAndNoFile)),
        };
        place.prepare_replacement(self.observer)?;
        place.replace_by_file(&bytes, &wanted)?;
        Ok(vec![if has(DifferenceKind::Missing) { "file made" } else { "content written" }.to_owned()])
    }

    /// The attributes of a new file whose index does not know them: those of the shipped file, and the label.
    fn shipped_xattrs(
        &self,
        expected: &FileExpectation,
        label: Option<&str>,
    ) -> Option<BTreeMap<String, String>> {
        let is_unknown = expected.xattrs.as_deref() == Some(&ExpectedXattrs::Unknown);
        let mut xattrs = self.pristine.as_ref().filter(|_| is_unknown)?.xattrs.clone();
        xattrs.extend(label.map(|label| (ATTRIBUTE.to_owned(), hex::encode(label_value(label)))));
        Some(xattrs)
    }

    /// The declared bytes, or those of the image. The observation after the write checks them against the expectation's digest.
    fn bytes(&self, path: &Path) -> Result<Vec<u8>, RepairError> {
        if let Some(file) = &self.pristine {
            return Ok(file.bytes.clone());
        }
        // An empty list of declared keys is an empty file.
        let is_keys = path.ends_with("authorized_keys.d/ignition");
        expected_bytes(self.rendered, path)
            .or_else(|| is_keys.then(Vec::new))
            .ok_or_else(|| RepairError::refused(path, RepairRefusal::NoContent))
    }

    /// Removes undeclared keys and invalid lines from a user's own file of keys.
    pub(super) fn authorized_keys(
        &self,
        path: &Path,
        declared: &[SshKey],
        observation: &Observation,
        label: Option<&str>,
    ) -> Result<Vec<String>, RepairError> {
        let Some(place) = self.existing_place(path)? else { return Ok(Vec::new()) };
        let Observation::Object(object) = observation else { return Ok(Vec::new()) };
        if object.file_type != FileType::Regular {
            place.remove(self.observer)?;
            place.sync()?;
            return Ok(vec!["removed: it was not a file".to_owned()]);
        }
        let file = place.open(self.observer)?;
        let copy = file
            .try_clone()
            .map_err(|error| RepairError::refused(path, RepairRefusal::NotDuplicated(error.kind())))?;
        let bytes = bounded::read_open(copy, bounded::KEYS)
            .map_err(|error| RepairError::refused(path, RepairRefusal::NotRead(error)))?;
        let (kept, removed) = declared_lines(&bytes, declared);
        if let (0, Some(label)) = (removed, label) {
            // Owner and mode of the file are the user's.
            set_label(&file, path, label)?;
            return Ok(vec!["label set".to_owned()]);
        }
        place.prepare_replacement(self.observer)?;
        let (mode, uid, gid) = (Some(object.mode), Some(object.uid), Some(object.gid));
        place.replace_by_file(&kept, &NewMetadata { mode, uid, gid, xattrs: Xattrs::Declared { label } })?;
        Ok(vec![format!("{removed} undeclared line{} removed", if removed == 1 { "" } else { "s" })])
    }
}

/// The lines that are comments, blank or declared keys, and the number of the others.
pub(crate) fn declared_lines(bytes: &[u8], declared: &[SshKey]) -> (Vec<u8>, usize) {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut removed = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = line.trim_ascii();
        let found = authorized_keys::parse(text);
        let is_kept = found.invalid.is_empty()
            && found.keys.iter().all(|key| declared.iter().any(|other| other.grants_the_same(key)));
        if is_kept {
            kept.extend_from_slice(line);
        } else {
            removed += 1;
        }
    }
    (kept, removed)
}

/// Changes as texts of a report.
pub(super) fn texts(changed: Vec<Changed>) -> Vec<String> {
    changed.into_iter().map(|change| change.to_string()).collect()
}
