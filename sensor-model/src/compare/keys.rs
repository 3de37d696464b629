//! Closed directories and ssh keys: undeclared names and keys.
//!
//! In: declared names and keys, and the observed ones. Out: a difference for each undeclared and each missing one.

use super::subject::ComparedThing;
use crate::{
    authorized_keys::{AuthorizedKeys, SshKey},
    difference::{Difference, DifferenceKind},
    expectation::{ClosedDirectoryExpectation, FileExpectation},
    observation::{FileType, ObjectObservation},
    text::quote_path,
};
use std::collections::BTreeMap;

/// A user's own `authorized_keys`, which may contain declared keys and no others.
pub(super) fn authorized(
    subject: &ComparedThing<'_>,
    declared: &[SshKey],
    object: &ObjectObservation,
) -> Vec<Difference> {
    if object.file_type != FileType::Regular {
        return vec![subject.wrong_type(FileType::Regular, 0o600, object)];
    }
    match &object.ssh_keys {
        Some(found) => undeclared_keys(subject, declared, found),
        None => vec![subject.unreadable("the keys were not read")],
    }
}

/// A declared file of keys with other content: undeclared and missing keys.
pub(super) fn declared_file(
    subject: &ComparedThing<'_>,
    expected: &FileExpectation,
    object: &ObjectObservation,
) -> Vec<Difference> {
    let Some(found) = &object.ssh_keys else { return Vec::new() };
    let mut differences = undeclared_keys(subject, &expected.keys, found);
    for key in &expected.keys {
        if !found.keys.iter().any(|other| other.grants_the_same(key)) {
            differences.push(Difference {
                kind: DifferenceKind::SshKey,
                expected: key.to_string(),
                found: "missing".to_owned(),
                text: format!("missing ssh key in {}: {key}", subject.name()),
            });
        }
    }
    differences
}

/// Whether the file has the declared keys in the declared order. Blank lines and comments are ignored.
pub(super) fn same_lines(expected: &FileExpectation, object: &ObjectObservation) -> bool {
    object
        .ssh_keys
        .as_ref()
        .is_some_and(|found| *found.keys == *expected.keys && found.invalid.is_empty() && !found.truncated)
}

fn undeclared_keys(
    subject: &ComparedThing<'_>,
    declared: &[SshKey],
    found: &AuthorizedKeys,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut push = |found: String, text: String| {
        differences.push(Difference {
            kind: DifferenceKind::SshKey,
            expected: "not present".to_owned(),
            found,
            text,
        });
    };
    for key in &found.keys {
        if declared.iter().any(|other| other.grants_the_same(key)) {
            continue;
        }
        let text = if declared.iter().any(|other| other.fingerprint == key.fingerprint) {
            format!("unexpected options of ssh key in {}: {key}", subject.name())
        } else {
            format!("unexpected ssh key in {}: {key}", subject.name())
        };
        push(key.to_string(), text);
    }
    for line in &found.invalid {
        let text = format!("unexpected line {} in {}: {}", line.line, subject.name(), line.reason);
        push(format!("line {}: {}", line.line, line.reason), text);
    }
    if found.truncated {
        push(
            "more than is read".to_owned(),
            format!("unexpected length of {}: not all of it was read for keys", subject.name()),
        );
    }
    differences
}

/// A directory in which only declared names may exist.
pub(super) fn closed_directory(
    subject: &ComparedThing<'_>,
    expected: &ClosedDirectoryExpectation,
    (names, more): (&[String], u64),
    ssh_keys: &BTreeMap<String, AuthorizedKeys>,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for name in names.iter().filter(|name| expected.is_unexpected(name)) {
        let path = subject.path.join(name);
        if !expected.ssh_keys {
            differences.push(Difference {
                kind: DifferenceKind::Unexpected,
                expected: "not present".to_owned(),
                found: path.to_string_lossy().into_owned(),
                text: format!("unexpected file {}", quote_path(&path)),
            });
            continue;
        }
        differences.push(Difference {
            kind: DifferenceKind::SshKey,
            expected: "not present".to_owned(),
            found: path.to_string_lossy().into_owned(),
            text: format!("unexpected ssh key file {}", quote_path(&path)),
        });
        if let Some(keys) = ssh_keys.get(name) {
            let subject = ComparedThing { path: &path, noun: "file" };
            differences.extend(undeclared_keys(&subject, &[], keys));
        }
    }
    if more > 0 {
        differences.push(Difference {
            kind: if expected.ssh_keys { DifferenceKind::SshKey } else { DifferenceKind::Unexpected },
            expected: "not present".to_owned(),
            found: format!("{more} more"),
            text: format!("unexpected number of files in {}: at least {more} more", subject.name()),
        });
    }
    differences
}
