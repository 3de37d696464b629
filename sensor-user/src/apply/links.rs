//! Units by their links: what enables, disables, masks and unmasks them.
//!
//! In: the units of the old and the new config. Out: the links that shall be there, and those that shall not, so that
//! enabling and disabling are part of the transaction like any other path, and no stale link stays.

use super::{
    ApplyError,
    image::Place,
    targets::{Planner, Wanted},
};
use crate::{observation::Observer, repair::unit as units};
use nix::fcntl::OFlag;
use sensor_model::{
    expectation::SYSTEMD_DIRECTORY,
    journal::Image,
    merge::{Rendered, RenderedUnit, Sourced},
};
use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

/// Adds the links of units that change; gives the units' names.
pub(super) fn wanted(
    planner: &Planner<'_>,
    wanted: &mut BTreeMap<PathBuf, Wanted>,
) -> Result<Vec<String>, ApplyError> {
    let mut changed = Vec::new();
    for (name, unit) in &planner.new.units {
        if planner.everything || planner.old.units.get(name).is_none_or(|old| says(old) != says(unit)) {
            declared(planner, name, unit, wanted)?;
            changed.push(name.clone());
        }
    }
    for (name, unit) in &planner.old.units {
        if !planner.new.units.contains_key(name) {
            removed(planner, name, unit, wanted)?;
            changed.push(name.clone());
        }
    }
    Ok(changed)
}

/// What a unit says, whoever says it.
fn says(unit: &RenderedUnit) -> impl PartialEq + use<> {
    let value = |part: &Option<Sourced<bool>>| part.as_ref().map(|part| part.value);
    let dropins: Vec<_> =
        unit.dropins.iter().map(|(name, dropin)| (name.clone(), dropin.value.clone())).collect();
    (unit.contents.as_ref().map(|part| part.value.clone()), value(&unit.enabled), value(&unit.mask), dropins)
}

fn is(part: Option<&Sourced<bool>>) -> Option<bool> {
    part.map(|part| part.value)
}

fn declared(
    planner: &Planner<'_>,
    name: &str,
    unit: &RenderedUnit,
    wanted: &mut BTreeMap<PathBuf, Wanted>,
) -> Result<(), ApplyError> {
    let own = Path::new(SYSTEMD_DIRECTORY).join(name);
    let to_null = || Wanted::Link { target: PathBuf::from("/dev/null"), uid: 0, gid: 0 };
    if is(unit.mask.as_ref()) == Some(true) {
        for link in units::enabling_links(planner.observer, name) {
            wanted.entry(link).or_insert(Wanted::Gone);
        }
        wanted.insert(own, to_null());
        return Ok(());
    }
    let old = planner.old.units.get(name);
    let was_masked = old.is_some_and(|old| is(old.mask.as_ref()) == Some(true));
    let was_decided = old.is_some_and(|old| is(old.enabled.as_ref()).is_some());
    if is(unit.mask.as_ref()) == Some(false) || was_masked {
        for link in units::mask_links(planner.observer, name) {
            wanted.entry(link).or_insert(Wanted::Gone);
        }
    }
    match is(unit.enabled.as_ref()) {
        Some(true) => {
            let links = to_enable(planner, name, unit)?;
            // Links of an [Install] section that said something else.
            for link in units::enabling_links(planner.observer, name) {
                if !links.iter().any(|(path, _)| *path == link) {
                    wanted.entry(link).or_insert(Wanted::Gone);
                }
            }
            for (path, target) in links {
                wanted.entry(path).or_insert(Wanted::Link { target, uid: 0, gid: 0 });
            }
        }
        Some(false) => {
            for link in units::enabling_links(planner.observer, name) {
                wanted.entry(link).or_insert(Wanted::Gone);
            }
        }
        // Nothing says any more that links should be there, or gone; masking took some away, too.
        None if was_masked || was_decided => give_back(planner, name, wanted)?,
        None => {}
    }
    Ok(())
}

/// Links that enabled a unit before Holdfast removed or wrote them become what they were.
fn give_back(
    planner: &Planner<'_>,
    name: &str,
    wanted: &mut BTreeMap<PathBuf, Wanted>,
) -> Result<(), ApplyError> {
    for link in planner.store.originals()? {
        if units::can_enable(&link, name) {
            wanted.entry(link).or_insert(Wanted::Original);
        }
    }
    Ok(())
}

fn to_enable(
    planner: &Planner<'_>,
    name: &str,
    unit: &RenderedUnit,
) -> Result<Vec<(PathBuf, PathBuf)>, ApplyError> {
    let own = Path::new(SYSTEMD_DIRECTORY).join(name);
    let declared = own_text(planner.new, name, unit).map(|text| (own.clone(), text));
    units::links_to_enable(planner.observer, name, declared)
        .map_err(|error| ApplyError::refused(&own, format!("it cannot be enabled: {error}")))
}

/// The text of the unit's declared file with that of its drop-ins; `None` where the host has the file.
fn own_text(rendered: &Rendered, name: &str, unit: &RenderedUnit) -> Option<String> {
    let template = name
        .split_once('@')
        .and_then(|(prefix, rest)| Some((prefix, rest.rsplit_once('.')?.1)))
        .map(|(prefix, suffix)| format!("{prefix}@.{suffix}"));
    let contents = |unit: &RenderedUnit| {
        unit.contents.as_ref().map(|part| part.value.clone()).filter(|text| !text.is_empty())
    };
    let mut text = contents(unit).or_else(|| rendered.units.get(&template?).and_then(contents))?;
    for dropin in unit.dropins.values().filter_map(|dropin| dropin.value.as_deref()) {
        text.push('\n');
        text.push_str(dropin);
    }
    Some(text)
}

/// A unit that nothing declares any more: its links go back to what they were before Holdfast wrote them.
fn removed(
    planner: &Planner<'_>,
    name: &str,
    unit: &RenderedUnit,
    wanted: &mut BTreeMap<PathBuf, Wanted>,
) -> Result<(), ApplyError> {
    let own = Path::new(SYSTEMD_DIRECTORY).join(name);
    if is(unit.mask.as_ref()) == Some(true) {
        wanted.insert(own.clone(), Wanted::Original);
    }
    // Links to a file of ours lead nowhere when it goes for good; others are none of our business.
    let is_ours = unit.contents.as_ref().is_some_and(|part| !part.value.is_empty());
    let before = planner.store.original(&own)?.map(|original| original.image);
    if is_ours && before.is_none_or(|before| before == Image::Absent) {
        for link in units::enabling_links(planner.observer, name) {
            if leads_to(planner.observer, &link, &own)? {
                wanted.entry(link).or_insert(Wanted::Original);
            }
        }
    }
    give_back(planner, name, wanted)
}

/// Whether a link names a path as its target.
fn leads_to(observer: &Observer, link: &Path, path: &Path) -> Result<bool, ApplyError> {
    let Some(place) = Place::find(observer.root(), link)? else { return Ok(false) };
    let Some(Image::Link(seen)) = place.see()?.image else { return Ok(false) };
    let directory = link.parent().unwrap_or(Path::new("/"));
    Ok(lexically(&directory.join(seen.target)) == path)
}

/// A path without `.` and `..`, by its names alone.
fn lexically(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

/// Names in a directory; none where there is no directory.
pub(super) fn names(observer: &Observer, path: &Path) -> Vec<String> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let Ok(directory) = observer.root().open_at(path, flags) else { return Vec::new() };
    let names = super::sys::names(directory).unwrap_or_default();
    names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
}
