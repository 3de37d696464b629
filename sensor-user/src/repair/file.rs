//! Files, and files of ssh keys.

use super::{
    RepairError,
    metadata::{self, Metadata},
    place::{Host, KeyOwner, Place, TAKEN, bits, own, refused},
};
use crate::bounded;
use nix::{
    fcntl::{OFlag, openat},
    sys::stat::{Mode, fchmod, fstat},
    unistd::geteuid,
};
use sensor_model::{
    authorized_keys::{self, SshKey},
    difference::{Difference, DifferenceKind},
    expectation::FileExpectation,
    expectations::expected_bytes,
    observation::{FileType, Observation},
};
use std::{fs::File, io::Write as _, os::fd::OwnedFd, path::Path};

impl Host<'_> {
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
        if !rewrite {
            let file = place.open(self.observer)?;
            let stat = fstat(&file).map_err(place.failed("stat"))?;
            if stat.st_mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
                return Err(refused(path, TAKEN));
            }
            // Where others can write, they may have put a file of root's there since it was looked at. The path gets a new file
            // with the declared content instead.
            let is_of_others = place.is_of_others()?;
            let wanted = Metadata { mode: Some(expected.mode), user, group, label };
            if !is_of_others {
                return metadata::apply(&file, path, wanted);
            }
            if expected.content.is_none() {
                let reason = match stat.st_nlink {
                    0 | 1 if stat.st_uid != geteuid().as_raw() => {
                        return metadata::apply(&file, path, wanted);
                    }
                    0 | 1 => {
                        "it is root's, and others can write its directory; set its owner and mode by hand"
                    }
                    _ => "it has another name elsewhere",
                };
                return Err(refused(path, format!("its content is not declared, and {reason}")));
            }
        }
        let bytes = match expected.content {
            Some(_) => self.bytes(path)?,
            // Ignition makes an empty file where nothing is declared of the content and nothing is there.
            None if has(DifferenceKind::Missing) => Vec::new(),
            None => {
                return Err(refused(path, "its content is not declared, and no file is in its place"));
            }
        };
        place.clear_way(self.observer)?;
        let made = New { bytes: &bytes, mode: expected.mode, user, group, label };
        place.write(&made)?;
        Ok(vec![if has(DifferenceKind::Missing) { "file made" } else { "content written" }.to_owned()])
    }

    /// The declared bytes, checked against the expectation's digest by the look that follows.
    fn bytes(&self, path: &Path) -> Result<Vec<u8>, RepairError> {
        // Keys that are declared as none are an empty file.
        let is_keys = path.ends_with("authorized_keys.d/ignition");
        expected_bytes(self.rendered, path)
            .or_else(|| is_keys.then(Vec::new))
            .ok_or_else(|| refused(path, "no MachineConfig declares its content any more"))
    }

    /// A user's own file of keys: undeclared keys and lines that are none are taken out.
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
        let copy = file.try_clone().map_err(|error| refused(path, format!("read: {}", error.kind())))?;
        let bytes = bounded::read_open(copy, bounded::KEYS)
            .map_err(|error| refused(path, format!("read: {error}; move it away first")))?;
        let (kept, removed) = declared_lines(&bytes, declared);
        if let (0, Some(label)) = (removed, label) {
            // Nothing else of it is anybody's but the user's.
            metadata::set_label(&file, path, label)?;
            return Ok(vec!["label set".to_owned()]);
        }
        place.clear_way(self.observer)?;
        place.write(&New {
            bytes: &kept,
            mode: object.mode,
            user: Some(object.uid),
            group: Some(object.gid),
            label,
        })?;
        Ok(vec![format!("{removed} undeclared line{} removed", if removed == 1 { "" } else { "s" })])
    }
}

/// The lines that are comments, blank or declared keys, and how many others there are.
pub(crate) fn declared_lines(bytes: &[u8], declared: &[SshKey]) -> (Vec<u8>, usize) {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut removed = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = line.trim_ascii();
        let found = authorized_keys::parse(text);
        let fine = found.invalid.is_empty()
            && found.keys.iter().all(|key| declared.iter().any(|other| other.grants_the_same(key)));
        if fine {
            kept.extend_from_slice(line);
        } else {
            removed += 1;
        }
    }
    (kept, removed)
}

/// A file that is to be made.
#[derive(Debug)]
struct New<'a> {
    bytes: &'a [u8],
    mode: u32,
    user: Option<u32>,
    group: Option<u32>,
    label: Option<&'a str>,
}

impl Place {
    /// Replaces whatever has the name by a new file, at once and durably.
    fn write(&self, new: &New<'_>) -> Result<(), RepairError> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let (file, temporary) = self.temporary("make a temporary file", |name| {
            // Nobody else may read it before its owner and mode are right.
            openat(&self.directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)
        })?;
        let file: OwnedFd = self.fill(file, new.bytes)?;
        own(&file, new.user, new.group).map_err(self.failed("change the owner"))?;
        // What a default access control list of the directory has put on it.
        metadata::remove_attributes(&file, &self.path)?;
        if let Some(label) = new.label {
            metadata::set_label(&file, &self.path, label)?;
        }
        fchmod(&file, bits(new.mode)).map_err(self.failed("change the mode"))?;
        self.sync_of(&file, "sync")?;
        self.rename(&file, temporary)
    }

    fn fill(&self, file: OwnedFd, bytes: &[u8]) -> Result<OwnedFd, RepairError> {
        let mut file = File::from(file);
        file.write_all(bytes).map_err(|error| {
            self.failed("write")(
                error.raw_os_error().map_or(nix::errno::Errno::EIO, nix::errno::Errno::from_raw),
            )
        })?;
        Ok(file.into())
    }
}
