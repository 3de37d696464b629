//! Units: content, drop-ins, enablement and mask, all in one change for each unit.

use super::{Change, Kind, Operation, arrow, pairs};
use crate::{
    expectation::Source,
    merge::{Rendered, RenderedUnit, Sourced},
};

pub(super) fn compare(old: &Rendered, new: &Rendered, found: &mut Vec<Change>) {
    let nothing = RenderedUnit::default();
    for (name, before, after) in pairs(&old.units, &new.units) {
        let details = details(before.unwrap_or(&nothing), after.unwrap_or(&nothing));
        // A unit of which nothing is said is as good as none.
        if details.is_empty() {
            continue;
        }
        let said =
            after.and_then(|unit| source(unit, new)).or_else(|| before.and_then(|unit| source(unit, old)));
        let Some(source) = said else { continue };
        found.push(Change {
            kind: Kind::Unit,
            name: name.to_owned(),
            operation: Operation::of(
                before.is_some_and(|unit| *unit != nothing),
                after.is_some_and(|unit| *unit != nothing),
            ),
            details,
            source: source.clone(),
        });
    }
}

fn details(old: &RenderedUnit, new: &RenderedUnit) -> Vec<String> {
    let mut details = Vec::new();
    if contents(old) != contents(new) {
        details.push("content".to_owned());
    }
    let flag = |flag: &Option<Sourced<bool>>| flag.as_ref().map(|flag| flag.value);
    if flag(&old.enabled) != flag(&new.enabled) {
        details.push(arrow("enabled", flag(&old.enabled), flag(&new.enabled)));
    }
    if flag(&old.mask) != flag(&new.mask) {
        details.push(arrow("masked", flag(&old.mask), flag(&new.mask)));
    }
    for (name, old, new) in pairs(&old.dropins, &new.dropins) {
        let text = |side: Option<&Sourced<Option<String>>>| {
            side.map(|dropin| dropin.value.as_deref().unwrap_or_default().to_owned())
        };
        // A drop-in without contents is one that has to be gone, which is more than nothing.
        if text(old) != text(new) {
            let word = Operation::of(old.is_some(), new.is_some()).word();
            details.push(format!("drop-in {name}: {word}"));
        }
    }
    details
}

fn contents(unit: &RenderedUnit) -> &str {
    unit.contents.as_ref().map_or("", |contents| contents.value.as_str())
}

/// Whoever spoke last of the unit.
fn source<'a>(unit: &'a RenderedUnit, rendered: &Rendered) -> Option<&'a Source> {
    let contents = unit.contents.iter().map(|part| &part.source);
    let flags = [&unit.enabled, &unit.mask].into_iter().flatten().map(|part| &part.source);
    let dropins = unit.dropins.values().map(|part| &part.source);
    contents
        .chain(flags)
        .chain(dropins)
        .max_by_key(|source| rendered.sources.iter().position(|other| other == *source))
}
