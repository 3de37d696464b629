//! Files, directories and links.
//!
//! In: an expectation and an observed object. Out: the differences of type, mode, content, owner, label and extended attributes, and the
//! flags and mounts that no config can declare.

use super::{
    go_mode::go_mode,
    ids::Ids,
    keys,
    subject::{ComparedThing, type_name},
};
use crate::{
    difference::{Difference, DifferenceKind},
    expectation::{
        DirectoryExpectation, ExpectedXattrs, FileExpectation, LinkExpectation, OstreeObjectExpectation,
        Owner,
    },
    observation::{FileType, ObjectObservation},
    selinux,
    text::{octal, quote, quote_path},
    xattr,
};
use std::collections::BTreeMap;

pub(super) fn file(
    subject: &ComparedThing<'_>,
    expected: &FileExpectation,
    object: &ObjectObservation,
    ids: &Ids,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    if type_and_mode(subject, FileType::Regular, expected.mode, object, &mut differences) {
        content(subject, expected, object, &mut differences);
    }
    owner(subject, (&expected.user, &expected.group), object, ids, &mut differences);
    xattrs(subject, expected.xattrs.as_deref(), object, &mut differences);
    undeclared(subject, object, &mut differences);
    differences
}

pub(super) fn directory(
    subject: &ComparedThing<'_>,
    expected: &DirectoryExpectation,
    expected_xattrs: Option<&ExpectedXattrs>,
    object: &ObjectObservation,
    ids: &Ids,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    type_and_mode(subject, FileType::Directory, expected.mode, object, &mut differences);
    owner(subject, (&expected.user, &expected.group), object, ids, &mut differences);
    xattrs(subject, expected_xattrs, object, &mut differences);
    undeclared(subject, object, &mut differences);
    differences
}

pub(super) fn link(
    subject: &ComparedThing<'_>,
    expected: &LinkExpectation,
    expected_xattrs: Option<&ExpectedXattrs>,
    object: &ObjectObservation,
    ids: &Ids,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    let target = expected.target.to_string_lossy();
    if expected.hard {
        // Content, mode and owner are the target's.
        if object.same_inode_as_target != Some(true) {
            let expected = format!("hard link to {}", quote(&target));
            differences.push(subject.mismatch(
                DifferenceKind::LinkTarget,
                "target",
                expected,
                "another inode".to_owned(),
            ));
        }
        if object.mounted_over {
            differences.push(mounted_over(subject));
        }
        return differences;
    }
    if object.file_type == FileType::Symlink {
        if object.target.as_ref() != Some(&expected.target) {
            let found =
                object.target.as_ref().map_or_else(|| "unknown".to_owned(), |found| quote_path(found));
            differences.push(subject.mismatch(DifferenceKind::LinkTarget, "target", quote(&target), found));
        }
    } else {
        differences.push(subject.wrong_type(FileType::Symlink, 0o777, object));
    }
    owner(subject, (&expected.user, &expected.group), object, ids, &mut differences);
    xattrs(subject, expected_xattrs, object, &mut differences);
    undeclared(subject, object, &mut differences);
    differences
}

/// An object of an ostree commit, of which only the checksum is known.
pub(super) fn of_ostree(
    subject: &ComparedThing<'_>,
    expected: &OstreeObjectExpectation,
    object: &ObjectObservation,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    match object.has_ostree_checksum {
        Some(true) => {}
        Some(false) => differences.push(Difference {
            kind: DifferenceKind::Content,
            expected: format!("ostree:{}", hex::encode(expected.checksum)),
            found: object.summary(),
            text: format!(
                "ostree checksum mismatch for {}: its content, owner, mode or attributes differ from the commit",
                subject.name()
            ),
        }),
        None => differences.push(subject.unreadable("the checksum of ostree was not computed")),
    }
    undeclared(subject, object, &mut differences);
    differences
}

/// The label, if the host's policy has one for the object. The caller leaves out objects of a wrong type, because the policy's
/// label depends on the type.
pub(super) fn label(
    subject: &ComparedThing<'_>,
    expected: &str,
    object: &ObjectObservation,
    ids: &Ids,
) -> Option<Difference> {
    let found = object.label.as_deref();
    if selinux::is_as_good(expected, found, &ids.customizable) {
        return None;
    }
    let found = found.unwrap_or("none").to_owned();
    Some(subject.mismatch(DifferenceKind::Label, "label", expected.to_owned(), found))
}

/// An object where nothing may be.
pub(super) fn unexpected(subject: &ComparedThing<'_>, object: &ObjectObservation) -> Difference {
    Difference {
        kind: DifferenceKind::Unexpected,
        expected: "not present".to_owned(),
        found: object.summary(),
        text: format!("unexpected {} {}", type_name(object.file_type), quote_path(subject.path)),
    }
}

/// A closed directory that is something else.
pub(super) fn not_a_directory(subject: &ComparedThing<'_>, object: &ObjectObservation) -> Vec<Difference> {
    vec![subject.wrong_type(FileType::Directory, 0o755, object)]
}

/// Adds a difference of type or mode. Returns whether the type is as declared.
fn type_and_mode(
    subject: &ComparedThing<'_>,
    file_type: FileType,
    mode: u32,
    object: &ObjectObservation,
    differences: &mut Vec<Difference>,
) -> bool {
    if object.file_type != file_type {
        differences.push(subject.wrong_type(file_type, mode, object));
        return false;
    }
    if object.mode != mode {
        let mut difference = subject.mismatch(
            DifferenceKind::Mode,
            "mode",
            go_mode(file_type, mode),
            go_mode(object.file_type, object.mode),
        );
        // The text has Go's long form, the fields have the plain one.
        difference.expected = octal(mode);
        difference.found = octal(object.mode);
        differences.push(difference);
    }
    true
}

fn content(
    subject: &ComparedThing<'_>,
    expected: &FileExpectation,
    object: &ObjectObservation,
    differences: &mut Vec<Difference>,
) {
    let Some(content) = &expected.content else { return };
    let Some(found) = object.sha256 else {
        // The daemon does not read a huge file of another size to its end: the size is enough.
        if object.size == content.size {
            differences.push(subject.unreadable("the content was not read"));
        } else {
            differences.push(Difference {
                kind: DifferenceKind::Content,
                expected: format!("sha256:{} ({} bytes)", hex::encode(content.sha256), content.size),
                found: format!("{} bytes", object.size),
                text: format!("content mismatch for {}", subject.name()),
            });
        }
        return;
    };
    if found == content.sha256 {
        return;
    }
    let key_differences = keys::declared_file(subject, expected, object);
    // Ignition (at the first boot) and the Machine Config Daemon write the same keys with different blank lines. So other blank
    // lines are no drift.
    if expected.layout_free && key_differences.is_empty() && keys::same_lines(expected, object) {
        return;
    }
    if !expected.layout_free || key_differences.is_empty() {
        differences.push(Difference {
            kind: DifferenceKind::Content,
            expected: format!("sha256:{} ({} bytes)", hex::encode(content.sha256), content.size),
            found: format!("sha256:{} ({} bytes)", hex::encode(found), object.size),
            text: format!("content mismatch for {}", subject.name()),
        });
    }
    differences.extend(key_differences);
}

fn owner(
    subject: &ComparedThing<'_>,
    (user, group): (&Owner, &Owner),
    object: &ObjectObservation,
    ids: &Ids,
    differences: &mut Vec<Difference>,
) {
    let halves = [
        ("user", user, object.uid, &object.user, &ids.users),
        ("group", group, object.gid, &object.group, &ids.groups),
    ];
    for (what, expected, id, name, known) in halves {
        if !owns(expected, id, name.as_deref(), known) {
            let declared = match expected {
                Owner::Id(id) => format!("{what} {id}"),
                Owner::Name(name) => format!("{what} {}", quote(name)),
                Owner::Undeclared => continue,
            };
            let found = match name {
                Some(name) => format!("{what} {id} ({name})"),
                None => format!("{what} {id}"),
            };
            differences.push(subject.mismatch(DifferenceKind::Owner, "owner", declared, found));
        }
    }
}

fn owns(expected: &Owner, id: u32, name: Option<&str>, known: &BTreeMap<String, u32>) -> bool {
    match expected {
        Owner::Undeclared => true,
        Owner::Id(expected) => *expected == id,
        Owner::Name(expected) => match known.get(expected) {
            Some(expected) => *expected == id,
            None => name == Some(expected.as_str()),
        },
    }
}

/// The extended attributes of an object.
fn xattrs(
    subject: &ComparedThing<'_>,
    expected: Option<&ExpectedXattrs>,
    object: &ObjectObservation,
    differences: &mut Vec<Difference>,
) {
    let (expected, all): (&[(String, String)], bool) = match expected {
        None => (&[], true),
        Some(ExpectedXattrs::Listed(listed)) => (listed, true),
        Some(ExpectedXattrs::Capabilities(listed)) => (listed, false),
        Some(ExpectedXattrs::Unknown) => return,
    };
    let value = |of: &[(String, String)], wanted: &str| {
        of.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
    };
    for (name, description) in &object.xattrs {
        if xattr::is_ignored(name, description) || !(all || name == xattr::CAPABILITY) {
            continue;
        }
        let found = format!("{name}={description}");
        match value(expected, name) {
            Some(expected) if expected == *description => {}
            Some(expected) => differences.push(Difference {
                kind: DifferenceKind::Xattr,
                expected: format!("{name}={expected}"),
                found,
                text: format!(
                    "extended attribute mismatch for {}: {}: expected: {expected}; received: {description}",
                    subject.name(),
                    quote(name)
                ),
            }),
            None => differences.push(Difference {
                kind: DifferenceKind::Xattr,
                expected: "none".to_owned(),
                found,
                text: format!(
                    "unexpected extended attribute on {}: {} is {description}",
                    subject.name(),
                    quote(name)
                ),
            }),
        }
    }
    for (name, description) in expected {
        if xattr::is_ignored(name, description) || value(&object.xattrs, name).is_some() {
            continue;
        }
        differences.push(Difference {
            kind: DifferenceKind::Xattr,
            expected: format!("{name}={description}"),
            found: "none".to_owned(),
            text: format!(
                "missing extended attribute on {}: {} should be {description}",
                subject.name(),
                quote(name)
            ),
        });
    }
}

/// What no MachineConfig and no image can declare of an object: inode flags, a mount over it.
fn undeclared(subject: &ComparedThing<'_>, object: &ObjectObservation, differences: &mut Vec<Difference>) {
    for flag in &object.attributes {
        differences.push(Difference {
            kind: DifferenceKind::Attribute,
            expected: "none".to_owned(),
            found: flag.clone(),
            text: format!("unexpected attribute on {}: {flag}", subject.name()),
        });
    }
    if object.mounted_over {
        differences.push(mounted_over(subject));
    }
}

fn mounted_over(subject: &ComparedThing<'_>) -> Difference {
    Difference {
        kind: DifferenceKind::MountOver,
        expected: "no mount".to_owned(),
        found: "a mount".to_owned(),
        text: format!("unexpected mount over {}", subject.name()),
    }
}
