//! The operating system: kernel arguments and type, extensions, FIPS mode, the image.
//!
//! In: two rendered configs. Out: their changes of the operating system.

use super::change::{Change, ChangeKind, ChangeOperation, arrow};
use crate::{
    expectation::Source,
    merge::{Rendered, Sourced},
    os::arguments,
    text::quote,
};

pub(super) fn compare(old: &Rendered, new: &Rendered, found: &mut Vec<Change>) {
    kernel_arguments(&old.kernel_arguments, &new.kernel_arguments, found);
    let default = "default".to_owned();
    let kernel =
        |side: &Rendered| side.kernel_type.as_ref().map_or(default.clone(), |kind| kind.value.clone());
    let (before, after) = (kernel(old), kernel(new));
    if before != after
        && let Some(declared) = new.kernel_type.as_ref().or(old.kernel_type.as_ref())
    {
        let detail = arrow("kernel type", Some(before), Some(&after));
        found.push(change(
            ChangeKind::KernelType,
            after,
            ChangeOperation::Change,
            vec![detail],
            &declared.source,
        ));
    }
    extensions(old, new, found);
    if old.fips.is_some() != new.fips.is_some()
        && let Some(source) = new.fips.as_ref().or(old.fips.as_ref())
    {
        let detail = arrow("fips", Some(old.fips.is_some()), Some(new.fips.is_some()));
        found.push(change(
            ChangeKind::Fips,
            "fips".to_owned(),
            ChangeOperation::Change,
            vec![detail],
            source,
        ));
    }
    image(ChangeKind::OsImage, "image", old.os_image_url.as_ref(), new.os_image_url.as_ref(), found);
    // The image matters only to nodes with extensions; the plan decides that.
    let image_of = |side: &'_ Rendered| side.base_os_extensions_container_image.clone();
    image(ChangeKind::Extension, "extensions image", image_of(old).as_ref(), image_of(new).as_ref(), found);
}

fn change(
    kind: ChangeKind,
    name: String,
    operation: ChangeOperation,
    details: Vec<String>,
    source: &Source,
) -> Change {
    Change { kind, name, operation, details, source: source.clone(), others: Vec::new() }
}

/// Kernel arguments, word by word: one change for each added and each removed argument. If the common ones have another order,
/// one change for all of them, since a later argument may override an earlier one.
fn kernel_arguments(old: &[Sourced<String>], new: &[Sourced<String>], found: &mut Vec<Change>) {
    let (old, new) = (words(old), words(new));
    let values = |side: &[Sourced<String>]| side.iter().map(|part| part.value.clone()).collect::<Vec<_>>();
    if values(&old) == values(&new) {
        return;
    }
    // Words with the same meaning but other quotes are different here.
    let word = |part: &Sourced<String>| part.value.clone();
    let (before, removed) = arguments::partition(&old, &new, word);
    let (after, added) = arguments::partition(&new, &old, word);
    for (operation, parts) in [(ChangeOperation::Remove, removed), (ChangeOperation::Add, added)] {
        let mut reported: Vec<&str> = Vec::new();
        for Sourced { value, source } in parts {
            if !reported.contains(&value.as_str()) {
                reported.push(value);
                found.push(change(ChangeKind::KernelArgument, value.clone(), operation, Vec::new(), source));
            }
        }
    }
    let words = |side: &[&Sourced<String>]| side.iter().map(|part| part.value.clone()).collect::<Vec<_>>();
    if words(&before) != words(&after)
        && let Some(last) = after.last()
    {
        let details = vec!["order".to_owned()];
        let name = words(&after).join(" ");
        found.push(change(ChangeKind::KernelArgument, name, ChangeOperation::Change, details, &last.source));
    }
}

/// Every word with its MachineConfig. One declared line may have several words.
fn words(parts: &[Sourced<String>]) -> Vec<Sourced<String>> {
    let split = |part: &Sourced<String>| {
        let source = part.source.clone();
        arguments::split(&part.value).into_iter().map(move |value| Sourced { value, source: source.clone() })
    };
    parts.iter().flat_map(split).collect()
}

/// Extensions have no order, and duplicates do not matter.
fn extensions(old: &Rendered, new: &Rendered, found: &mut Vec<Change>) {
    for (operation, from, other) in [
        (ChangeOperation::Remove, &old.extensions, &new.extensions),
        (ChangeOperation::Add, &new.extensions, &old.extensions),
    ] {
        let mut reported: Vec<&str> = Vec::new();
        for Sourced { value, source } in from {
            if other.iter().any(|other| other.value == *value) || reported.contains(&value.as_str()) {
                continue;
            }
            reported.push(value);
            found.push(change(ChangeKind::Extension, value.clone(), operation, Vec::new(), source));
        }
    }
}

fn image(
    kind: ChangeKind,
    what: &str,
    old: Option<&Sourced<String>>,
    new: Option<&Sourced<String>>,
    found: &mut Vec<Change>,
) {
    let url = |side: Option<&Sourced<String>>| side.map(|side| side.value.clone());
    if url(old) == url(new) {
        return;
    }
    if let Some(declared) = new.or(old) {
        let operation = ChangeOperation::of(old.is_some(), new.is_some());
        let quoted = |side| url(side).map(|url| quote(&url));
        let detail = arrow(what, quoted(old), quoted(new));
        found.push(change(kind, declared.value.clone(), operation, vec![detail], &declared.source));
    }
}
