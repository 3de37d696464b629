//! Compares what a thing should be with what it is.
//!
//! An expectation and an observation come in; all differences go out, not the first one. The texts
//! are the Machine Config Operator's where it has one, since tools match on them; the others are in
//! its style. It never reads anything, and no file content or ssh key is in its output. Whatever it
//! cannot compare is a difference: nothing is compliant by default.

mod keys;
mod object;
mod os;
mod unit;

#[cfg(test)]
mod tests;

use crate::{
    difference::{Difference, DifferenceKind},
    expectation::{Expectation, Expected, Thing},
    observation::Observation,
    text::quote_path,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// What the node itself says of what expectations name: the ids of users and groups, as its databases resolve them, and the
/// types of labels that anybody may choose.
///
/// A name that is not in here is compared with the name that the observation carries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// User name to uid.
    pub users: BTreeMap<String, u32>,
    /// Group name to gid.
    pub groups: BTreeMap<String, u32>,
    /// Types that the SELinux policy calls customizable: whoever gives an object one of them means it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub customizable: BTreeSet<String>,
}

/// Differences that are told of one thing one by one; one more says how many there are beyond them.
pub const MAXIMUM_DIFFERENCES: usize = 64;

/// Every way in which the observation departs from the expectation, but at most [`MAXIMUM_DIFFERENCES`] and one
/// that counts the rest; empty when it is compliant.
///
/// For files the order is the Machine Config Operator's (it stats, compares the mode, then the
/// content), and then what only we look at, so that the first text is the one that it would give.
pub fn compare(expectation: &Expectation, observation: &Observation, ids: &Ids) -> Vec<Difference> {
    let subject = Subject { path: &expectation.thing.path(), noun: noun(&expectation.thing) };
    let mut differences = all(&subject, expectation, observation, ids);
    if let (Some(label), Observation::Object(object)) = (&expectation.label, observation)
        && differences.iter().all(|found| found.kind != DifferenceKind::Type)
    {
        differences.extend(object::label(&subject, label, object, ids));
    }
    bounded(&subject, differences)
}

fn all(
    subject: &Subject<'_>,
    expectation: &Expectation,
    observation: &Observation,
    ids: &Ids,
) -> Vec<Difference> {
    if let Observation::Unreadable { error } = observation {
        return vec![subject.unreadable(error)];
    }
    match (&expectation.expected, observation) {
        (Expected::File(file), Observation::Missing) => {
            if file.may_be_missing {
                Vec::new()
            } else {
                vec![subject.missing()]
            }
        }
        (Expected::Directory(_) | Expected::Link(_), Observation::Missing) => vec![subject.missing()],
        // What is declared in it is missed on its own account.
        (Expected::ClosedDirectory(_) | Expected::AuthorizedKeys(_), Observation::Missing) => Vec::new(),
        (Expected::File(file), Observation::Object(object)) => object::file(subject, file, object, ids),
        (Expected::Directory(directory), Observation::Object(object)) => {
            object::directory(subject, directory, object, ids)
        }
        (Expected::Link(link), Observation::Object(object)) => object::link(subject, link, object, ids),
        (Expected::AuthorizedKeys(keys), Observation::Object(object)) => {
            keys::authorized(subject, &keys.keys, object)
        }
        (Expected::ClosedDirectory(closed), Observation::Names { names, more, ssh_keys }) => {
            keys::closed_directory(subject, closed, (names, *more), ssh_keys)
        }
        (Expected::ClosedDirectory(_), Observation::Object(object)) => {
            object::not_a_directory(subject, object)
        }
        (Expected::Unit(unit), Observation::Unit(seen)) => {
            unit::compare(&expectation.thing, subject, unit, seen)
        }
        (Expected::KernelArguments(declared), Observation::KernelArguments { arguments }) => {
            os::arguments(declared, arguments)
        }
        (Expected::OsImage(declared), Observation::Os(booted)) => os::image(declared, booted),
        _ => vec![subject.unreadable("the observation is of another kind of thing")],
    }
}

/// Keeps what somebody may fill a directory or a file with from filling the log: the first differences, and
/// how many there are beyond them.
fn bounded(subject: &Subject<'_>, mut differences: Vec<Difference>) -> Vec<Difference> {
    let Some(more) = differences.len().checked_sub(MAXIMUM_DIFFERENCES).filter(|more| *more > 0) else {
        return differences;
    };
    let kind = differences[MAXIMUM_DIFFERENCES].kind;
    differences.truncate(MAXIMUM_DIFFERENCES);
    differences.push(Difference {
        kind,
        expected: "none".to_owned(),
        found: format!("{more} more"),
        text: format!("and {more} more differences of {}", subject.name()),
    });
    differences.shrink_to_fit();
    differences
}

/// What a text is about.
#[derive(Debug)]
struct Subject<'a> {
    path: &'a Path,
    noun: &'static str,
}

impl Subject<'_> {
    /// `file "/etc/x"`.
    fn name(&self) -> String {
        format!("{} {}", self.noun, quote_path(self.path))
    }

    fn missing(&self) -> Difference {
        Difference {
            kind: DifferenceKind::Missing,
            expected: "present".to_owned(),
            found: "missing".to_owned(),
            text: format!(
                "could not stat {}: lstat {}: no such file or directory",
                self.name(),
                self.path.display()
            ),
        }
    }

    fn unreadable(&self, error: &str) -> Difference {
        Difference {
            kind: DifferenceKind::Unreadable,
            expected: "readable".to_owned(),
            found: error.to_owned(),
            text: format!("could not read {}: {error}", self.name()),
        }
    }

    /// `<what> mismatch for file: "/etc/x"; expected: …; received: …`.
    fn mismatch(&self, kind: DifferenceKind, what: &str, expected: String, found: String) -> Difference {
        let text = format!(
            "{what} mismatch for {}: {}; expected: {expected}; received: {found}",
            self.noun,
            quote_path(self.path)
        );
        Difference { kind, expected, found, text }
    }
}

fn noun(thing: &Thing) -> &'static str {
    match thing {
        Thing::File { .. } => "file",
        Thing::Directory { .. } | Thing::ClosedDirectory { .. } => "directory",
        Thing::Link { .. } => "link",
        Thing::Unit { .. } => "unit",
        Thing::KernelArguments => "kernel arguments",
        Thing::OsImage => "OS image",
    }
}
