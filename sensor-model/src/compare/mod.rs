//! Compares what a thing should be with what it is.
//!
//! In: an expectation and an observation. Out: all differences, not only the first one. Tools match on the texts of the Machine
//! Config Operator. So a difference has that operator's text if there is one; the other texts have the same style. No text
//! contains file content or an ssh key. What cannot be compared is a difference: nothing is compliant by default.

mod go_mode;
mod hierarchy;
mod ids;
mod keys;
mod object;
mod os;
mod subject;
mod tree;
mod unit;

#[cfg(test)]
mod tests;

pub use ids::Ids;

use crate::{
    difference::{Difference, DifferenceKind},
    expectation::{Expectation, ExpectationSource, Expected, ExpectedXattrs},
    observation::Observation,
};
use subject::ComparedThing;

/// Most differences reported of one thing. One more difference has the number of those beyond.
pub const MAXIMUM_DIFFERENCES: usize = 64;

/// Every difference, but at most [`MAXIMUM_DIFFERENCES`] and one that counts the others; empty if the thing is compliant.
///
/// For files the order is the Machine Config Operator's (stat, mode, content), followed by what only Holdfast compares. So the
/// first text is the operator's.
pub fn compare(expectation: &Expectation, observation: &Observation, ids: &Ids) -> Vec<Difference> {
    let subject = ComparedThing { path: &expectation.thing.path(), noun: expectation.thing.noun() };
    let mut differences = all(&subject, expectation, observation, ids);
    if let (Some(label), Observation::Object(object)) = (&expectation.label, observation)
        && differences.iter().all(|found| found.kind != DifferenceKind::Type)
    {
        differences.extend(object::label(&subject, label, object, ids));
    }
    bounded(&subject, differences)
}

fn all(
    subject: &ComparedThing<'_>,
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
        (Expected::Directory(_) | Expected::Link(_) | Expected::OstreeObject(_), Observation::Missing) => {
            vec![subject.missing()]
        }
        // A declared file in it is a thing of its own, and missing by itself.
        (
            Expected::ClosedDirectory(_)
            | Expected::AuthorizedKeys(_)
            | Expected::Absent
            | Expected::Unindexed,
            Observation::Missing,
        ) => Vec::new(),
        (Expected::File(file), Observation::Object(object)) => object::file(subject, file, object, ids),
        (Expected::Directory(directory), Observation::Object(object)) => {
            object::directory(subject, directory, attributes(expectation), object, ids)
        }
        (Expected::Link(link), Observation::Object(object)) => {
            object::link(subject, link, attributes(expectation), object, ids)
        }
        (Expected::OstreeObject(expected), Observation::Object(object)) => {
            object::of_ostree(subject, expected, object)
        }
        (Expected::AuthorizedKeys(keys), Observation::Object(object)) => {
            keys::authorized(subject, &keys.keys, object)
        }
        (Expected::Absent, Observation::Object(object)) => vec![object::unexpected(subject, object)],
        (Expected::ClosedDirectory(closed), Observation::Names { names, more, ssh_keys }) => {
            keys::closed_directory(subject, closed, (names, *more), ssh_keys)
        }
        (Expected::ClosedDirectory(_), Observation::Object(object)) => {
            object::not_a_directory(subject, object)
        }
        (Expected::Unit(unit), Observation::Unit(seen)) => {
            unit::compare(&expectation.thing, subject, unit, seen)
        }
        (Expected::Hierarchy(declared), Observation::Hierarchy { covers }) => {
            hierarchy::compare(subject.path, declared, covers)
        }
        (Expected::Tree(declared), Observation::Tree { sealed, over }) => {
            tree::compare(subject, declared, *sealed, over)
        }
        (Expected::KernelArguments(declared), Observation::KernelArguments { arguments }) => {
            os::arguments(declared, arguments)
        }
        (Expected::OsImage(declared), Observation::Os(booted)) => os::image(declared, booted),
        _ => vec![subject.unreadable("the observation is of another kind of thing")],
    }
}

/// The extended attributes that a directory or a link should have. An expectation by an image does not have them.
fn attributes(expectation: &Expectation) -> Option<&'static ExpectedXattrs> {
    match expectation.source {
        ExpectationSource::ImageLayer(_) => Some(&ExpectedXattrs::Unknown),
        ExpectationSource::MachineConfig(_) | ExpectationSource::ClosedBy(_) => None,
    }
}

/// Limits the differences, so that a user who fills a directory or a file cannot fill the log.
fn bounded(subject: &ComparedThing<'_>, mut differences: Vec<Difference>) -> Vec<Difference> {
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
