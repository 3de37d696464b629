//! Files, directories and links.
//!
//! In: two rendered configs. Out: one change for each path that only one of them declares, or that they declare differently.

use super::{
    change::{Change, ChangeKind, ChangeOperation, arrow},
    contents,
    pairs::pairs,
};
use crate::{
    expectation::{Owner, Source},
    expectations::{DIRECTORY_MODE, ExpectationError, FILE_MODE, group, mode, user},
    ignition::spec,
    merge::{Rendered, Sourced},
    text::{octal, quote},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(super) fn files(old: &Rendered, new: &Rendered, found: &mut Vec<Change>) -> Result<(), ExpectationError> {
    let others = Others::new(old, new);
    for (path, old, new) in pairs(&old.files, &new.files) {
        let mut details = Vec::new();
        if let (Some(old), Some(new)) = (old, new) {
            let fault =
                |reason| ExpectationError { source_of: new.source.clone(), path: path.to_owned(), reason };
            if !contents::same(&old.value, &new.value).map_err(fault)? {
                details.push("content".to_owned());
            }
            let (old, new) = (&old.value.file, &new.value.file);
            modes(mode(old.mode, FILE_MODE), mode(new.mode, FILE_MODE), &mut details);
            owners(&user(old.user.as_ref()), &user(new.user.as_ref()), "user", &mut details);
            owners(&group(old.group.as_ref()), &group(new.group.as_ref()), "group", &mut details);
        }
        push(ChangeKind::File, path, [source(old), source(new)], details, &others, found);
    }
    Ok(())
}

pub(super) fn directories(old: &Rendered, new: &Rendered, found: &mut Vec<Change>) {
    let others = Others::new(old, new);
    for (path, old, new) in pairs(&old.directories, &new.directories) {
        let mut details = Vec::new();
        if let (Some(Sourced { value: old, .. }), Some(Sourced { value: new, .. })) = (old, new) {
            modes(mode(old.mode, DIRECTORY_MODE), mode(new.mode, DIRECTORY_MODE), &mut details);
            owners(&user(old.user.as_ref()), &user(new.user.as_ref()), "user", &mut details);
            owners(&group(old.group.as_ref()), &group(new.group.as_ref()), "group", &mut details);
        }
        push(ChangeKind::Directory, path, [source(old), source(new)], details, &others, found);
    }
}

pub(super) fn links(old: &Rendered, new: &Rendered, found: &mut Vec<Change>) {
    let others = Others::new(old, new);
    for (path, old, new) in pairs(&old.links, &new.links) {
        let mut details = Vec::new();
        if let (Some(Sourced { value: old, .. }), Some(Sourced { value: new, .. })) = (old, new) {
            let target = |link: &spec::Link| quote(link.target.as_deref().unwrap_or_default());
            if old.target != new.target {
                details.push(arrow("target", Some(target(old)), Some(target(new))));
            }
            let hard = |link: &spec::Link| link.hard == Some(true);
            if hard(old) != hard(new) {
                details.push(arrow("hard", Some(hard(old)), Some(hard(new))));
            }
            // A hard link has the owner of its target.
            if !hard(new) {
                owners(&user(old.user.as_ref()), &user(new.user.as_ref()), "user", &mut details);
                owners(&group(old.group.as_ref()), &group(new.group.as_ref()), "group", &mut details);
            }
        }
        push(ChangeKind::Link, path, [source(old), source(new)], details, &others, found);
    }
}

/// The MachineConfigs that declare parts of a thing besides the last one, in both configs. A merge does not keep which of them
/// declares which part.
struct Others<'a>([&'a BTreeMap<String, BTreeSet<Arc<str>>>; 2]);

impl<'a> Others<'a> {
    fn new(old: &'a Rendered, new: &'a Rendered) -> Self {
        Self([&old.shared, &new.shared])
    }

    fn of(&self, path: &str, last: &Source) -> Vec<Source> {
        let names: BTreeSet<&Arc<str>> =
            self.0.iter().filter_map(|shared| shared.get(path)).flatten().collect();
        let others = names.into_iter().filter(|name| **name != last.machine_config);
        others.map(|name| Source::new(Arc::clone(name), Arc::clone(&last.origin))).collect()
    }
}

fn source<T>(side: Option<&Sourced<T>>) -> Option<&Source> {
    side.map(|side| &side.source)
}

/// Adds a change, if only one config declares the thing or if there are details.
fn push(
    kind: ChangeKind,
    path: &str,
    [old, new]: [Option<&Source>; 2],
    details: Vec<String>,
    others: &Others<'_>,
    found: &mut Vec<Change>,
) {
    if old.is_some() && new.is_some() && details.is_empty() {
        return;
    }
    if let Some(source) = new.or(old) {
        found.push(Change {
            kind,
            name: path.to_owned(),
            operation: ChangeOperation::of(old.is_some(), new.is_some()),
            details,
            source: source.clone(),
            others: others.of(path, source),
        });
    }
}

fn modes(old: u32, new: u32, details: &mut Vec<String>) {
    if old != new {
        details.push(arrow("mode", Some(octal(old)), Some(octal(new))));
    }
}

fn owners(old: &Owner, new: &Owner, what: &str, details: &mut Vec<String>) {
    let word = |owner: &Owner| match owner {
        Owner::Id(id) => Some(id.to_string()),
        Owner::Name(name) => Some(quote(name)),
        Owner::Undeclared => None,
    };
    if old != new {
        details.push(arrow(what, word(old), word(new)));
    }
}
