//! What differs between an entry of an image and the host.
//!
//! In: an entry, and the observation of its path. Out: the differences, with the texts that a declared thing would have. Times are
//! never compared, because tools that make an image from a commit set them all to zero.

use super::{
    entry::{ImageEntry, Known},
    reference::KnownXattrs,
};
use crate::{
    compare::{Ids, compare},
    difference::{Difference, DifferenceKind},
    expectation::{
        Content, DirectoryExpectation, Expectation, ExpectationSource, Expected, ExpectedXattrs,
        FileExpectation, LinkExpectation, OstreeObjectExpectation, Owner, Thing,
    },
    observation::{FileType, ObjectObservation, Observation},
    selinux, xattr,
};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

impl ImageEntry {
    /// By what the path is observed and compared. A device or a pipe is observed as a file without a declared content.
    pub fn expectation(&self, path: &Path, source: ExpectationSource) -> Expectation {
        if let Some(checksum) = self.ostree {
            let (thing, expected) = (Thing::file(path), OstreeObjectExpectation { checksum });
            let expected = Expected::OstreeObject(expected);
            return Expectation { thing, expected, ssh_keys: false, label: None, source };
        }
        let (user, group) = (self.owner(self.uid), self.owner(self.gid));
        let (thing, expected) = match (self.file_type, &self.target) {
            (FileType::Directory, _) => (
                Thing::directory(path),
                Expected::Directory(DirectoryExpectation { mode: self.mode, user, group }),
            ),
            (FileType::Symlink, Some(target)) => {
                let target = Path::new(OsStr::from_bytes(target)).to_owned();
                (Thing::link(path), Expected::Link(LinkExpectation { target, hard: false, user, group }))
            }
            _ => {
                let content = self.sha256.map(|sha256| Content { size: self.size, sha256 });
                let file = FileExpectation {
                    content,
                    keys: Box::default(),
                    layout_free: false,
                    mode: self.mode,
                    user,
                    group,
                    may_be_missing: self.may_be_missing,
                    // The caller knows whether the image has them.
                    xattrs: Some(Box::new(ExpectedXattrs::Unknown)),
                };
                (Thing::file(path), Expected::File(file))
            }
        };
        Expectation { thing, expected, ssh_keys: false, label: None, source }
    }

    fn owner(&self, id: u32) -> Owner {
        if self.known.has_metadata() { Owner::Id(id) } else { Owner::Undeclared }
    }
}

/// Which parts of a path differ between two images, by the names of the differences. The layers may be others.
pub fn changed_parts(old: &ImageEntry, new: &ImageEntry) -> Vec<&'static str> {
    if old.file_type != new.file_type {
        return vec![DifferenceKind::Type.as_str()];
    }
    let known = old.known.has_metadata() && new.known.has_metadata();
    let parts = [
        (
            (old.size, old.sha256, old.md5, old.ostree) != (new.size, new.sha256, new.md5, new.ostree),
            DifferenceKind::Content.as_str(),
        ),
        (known && old.mode != new.mode, DifferenceKind::Mode.as_str()),
        (known && (old.uid, old.gid) != (new.uid, new.gid), DifferenceKind::Owner.as_str()),
        (known && old.xattrs != new.xattrs, DifferenceKind::Xattr.as_str()),
        (old.target != new.target, DifferenceKind::LinkTarget.as_str()),
        (old.device != new.device, "device"),
    ];
    parts.into_iter().filter(|(differs, _)| *differs).map(|(_, part)| part).collect()
}

/// What differs. `known_xattrs`: which extended attributes of the entry's path the image knows.
pub fn differences(
    entry: &ImageEntry,
    expectation: &Expectation,
    observation: &Observation,
    known_xattrs: KnownXattrs,
) -> Vec<Difference> {
    if entry.known == Known::Name || (entry.may_be_missing && *observation == Observation::Missing) {
        return Vec::new();
    }
    // A checksum of ostree covers everything that an entry may know.
    let (Observation::Object(object), None) = (observation, entry.ostree) else {
        return compare(expectation, observation, &Ids::default());
    };
    if !entry.known.has_type() {
        return Vec::new();
    }
    if !matches!(entry.file_type, FileType::Regular | FileType::Directory | FileType::Symlink) {
        return special(entry, expectation, object);
    }
    let mut found = compare(expectation, observation, &Ids::default());
    let is_wrong_type = found.iter().any(|difference| difference.kind == DifferenceKind::Type);
    found.retain(|difference| match difference.kind {
        DifferenceKind::Xattr => false,
        DifferenceKind::Mode => entry.known.has_metadata(),
        _ => true,
    });
    if entry.known.has_metadata() && !is_wrong_type {
        found.extend(xattrs(entry, expectation, object, known_xattrs));
    }
    found
}

/// The difference between the MD5 of a file and that of its entry; `None` if they are equal, or the entry has none.
pub fn md5_difference(entry: &ImageEntry, path: &Path, found: [u8; 16]) -> Option<Difference> {
    let expected = entry.md5.filter(|expected| *expected != found)?;
    let text = |digest: [u8; 16]| format!("md5:{}", hex::encode(digest));
    Some(Difference {
        kind: DifferenceKind::Content,
        expected: text(expected),
        found: text(found),
        text: format!("content mismatch for file \"{}\"", path.display()),
    })
}

/// Devices and pipes, which a config cannot declare.
fn special(entry: &ImageEntry, expectation: &Expectation, object: &ObjectObservation) -> Vec<Difference> {
    let path = expectation.thing.path();
    let mut found = Vec::new();
    let mut add = |kind, what: &str, expected: String, seen: String| {
        if expected != seen {
            let text =
                format!("{what} mismatch for \"{}\": expected: {expected}; received: {seen}", path.display());
            found.push(Difference { kind, expected, found: seen, text });
        }
    };
    add(
        DifferenceKind::Type,
        "type",
        entry.file_type.as_str().to_owned(),
        object.file_type.as_str().to_owned(),
    );
    add(DifferenceKind::Mode, "mode", format!("{:04o}", entry.mode), format!("{:04o}", object.mode));
    add(
        DifferenceKind::Owner,
        "owner",
        format!("{}:{}", entry.uid, entry.gid),
        format!("{}:{}", object.uid, object.gid),
    );
    found
}

/// Attributes that the image has and the host has not, or the reverse. The label is the host's policy's matter.
fn xattrs(
    entry: &ImageEntry,
    expectation: &Expectation,
    object: &ObjectObservation,
    known: KnownXattrs,
) -> Vec<Difference> {
    let is_known = |name: &str| match known {
        KnownXattrs::All => true,
        KnownXattrs::Capabilities => name == xattr::CAPABILITY,
        KnownXattrs::None => false,
    };
    let counts = |name: &str, value: &str| {
        is_known(name) && name != selinux::ATTRIBUTE && !xattr::is_ignored(name, value)
    };
    let of = |list: &[(String, String)], wanted: &str| {
        let found = list.iter().find(|(name, value)| name == wanted && counts(name, value));
        found.map(|(_, value)| value.clone())
    };
    let mut names: Vec<&String> = entry.xattrs.iter().chain(&object.xattrs).map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    let noun = expectation.thing.noun();
    let path = expectation.thing.path();
    let mut found = Vec::new();
    for name in names {
        let (expected, seen) = (of(&entry.xattrs, name), of(&object.xattrs, name));
        if expected != seen {
            let word = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
            let (expected, seen) = (word(expected), word(seen));
            let text = format!(
                "extended attribute {name} mismatch for {noun} \"{}\": expected: {expected}; received: {seen}",
                path.display()
            );
            found.push(Difference { kind: DifferenceKind::Xattr, expected, found: seen, text });
        }
    }
    found
}
