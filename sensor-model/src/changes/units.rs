//! Units.
//!
//! In: two rendered configs. Out: one change for each unit that differs in content, drop-ins, enablement or mask.

use super::{
    change::{Change, ChangeKind, ChangeOperation, arrow},
    pairs::pairs,
};
use crate::{
    expectation::Source,
    merge::{Rendered, RenderedUnit, Sourced},
};

pub(super) fn compare(old: &Rendered, new: &Rendered, found: &mut Vec<Change>) {
    let nothing = RenderedUnit::default();
    for (name, before, after) in pairs(&old.units, &new.units) {
        let UnitDifferences { details, mut sources } =
            differences(before.unwrap_or(&nothing), after.unwrap_or(&nothing));
        let rank = |source: &Source| new.sources.iter().position(|other| other == source);
        sources.sort_by_key(|source| std::cmp::Reverse(rank(source)));
        sources.dedup();
        // A unit without any declared part is the same as none.
        let mut sources = sources.into_iter().cloned();
        let Some(source) = sources.next() else { continue };
        found.push(Change {
            kind: ChangeKind::Unit,
            name: name.to_owned(),
            operation: ChangeOperation::of(
                before.is_some_and(|unit| *unit != nothing),
                after.is_some_and(|unit| *unit != nothing),
            ),
            details,
            source,
            others: sources.collect(),
        });
    }
}

/// The differing parts of a unit, and their MachineConfigs: those of the new config, for a removed part those of the old one.
#[derive(Default)]
struct UnitDifferences<'a> {
    details: Vec<String>,
    sources: Vec<&'a Source>,
}

impl<'a> UnitDifferences<'a> {
    fn add<T>(&mut self, detail: String, old: Option<&'a Sourced<T>>, new: Option<&'a Sourced<T>>) {
        self.details.push(detail);
        self.sources.extend(new.or(old).map(|part| &part.source));
    }
}

fn differences<'a>(old: &'a RenderedUnit, new: &'a RenderedUnit) -> UnitDifferences<'a> {
    let mut found = UnitDifferences::default();
    if contents(old) != contents(new) {
        found.add("content".to_owned(), old.contents.as_ref(), new.contents.as_ref());
    }
    for (what, old, new) in [("enabled", &old.enabled, &new.enabled), ("masked", &old.mask, &new.mask)] {
        let flag = |flag: &Option<Sourced<bool>>| flag.as_ref().map(|flag| flag.value);
        if flag(old) != flag(new) {
            found.add(arrow(what, flag(old), flag(new)), old.as_ref(), new.as_ref());
        }
    }
    for (name, old, new) in pairs(&old.dropins, &new.dropins) {
        let text = |side: Option<&Sourced<Option<String>>>| {
            side.map(|dropin| dropin.value.as_deref().unwrap_or_default().to_owned())
        };
        // A drop-in without contents must be absent, which is more than an undeclared drop-in.
        if text(old) != text(new) {
            let word = ChangeOperation::of(old.is_some(), new.is_some()).as_str();
            found.add(format!("drop-in {name}: {word}"), old, new);
        }
    }
    found
}

fn contents(unit: &RenderedUnit) -> &str {
    unit.contents.as_ref().map_or("", |contents| contents.value.as_str())
}
