//! The links that enable, disable, mask and unmask units.
//!
//! In: the units of the old and the new config. Out: the links that are to be there, and those that are not. So enabling and
//! disabling are part of the apply like any other path, and no stale link stays. As with systemctl, a template is enabled by its
//! `DefaultInstance=` and disabled with all its instances, and units in `Also=` are enabled and disabled with a unit. What the new
//! config says about a unit itself takes precedence over another unit's `Also=` and over its template.

use super::{
    error::ApplyError,
    target_finder::{PlannedState, Planner},
};
use crate::{
    disk::Place,
    observation::Observer,
    repair::{
        RepairError,
        unit::{self as units, Enabling},
    },
};
use sensor_model::{
    expectation::SYSTEMD_DIRECTORY,
    host::{
        install::Install,
        unit_name::{is_template, template_of},
    },
    journal::Image,
    merge::{Rendered, RenderedUnit, Sourced},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

/// Plans the links of units that change, and returns the units' names. `kept` are the paths that the new config declares; the links
/// of its units are added to them.
pub(super) fn wanted(
    planner: &Planner<'_>,
    kept: &mut BTreeSet<Arc<Path>>,
    wanted: &mut BTreeMap<PathBuf, PlannedState>,
) -> Result<Vec<String>, ApplyError> {
    let mut links =
        Links { planner, kept, wanted, needed: BTreeSet::new(), unwanted: BTreeSet::new(), originals: None };
    let mut after = BTreeMap::new();
    for (name, unit) in &planner.new.units {
        let effect = links.effect(Side::New, name);
        links.needed.extend(effect.made.iter().map(|enabling| enabling.link.clone()));
        links.unwanted.extend(effect.taken.iter().cloned());
        if is(unit.mask.as_ref()) == Some(true) {
            links.unwanted.insert(name.clone());
        }
        after.insert(name, effect);
    }
    let mut changed = Vec::new();
    for (name, unit) in &planner.new.units {
        let old = planner.old.units.get(name);
        // Another [Install] section of a template or of an `Also=` unit changes the links, too.
        let is_same =
            old.is_some_and(|old| says(old) == says(unit)) && links.effect(Side::Old, name) == after[name];
        if planner.everything || !is_same {
            links.declared(name, unit)?;
            changed.push(name.clone());
        }
    }
    for (name, unit) in &planner.old.units {
        if !planner.new.units.contains_key(name) {
            links.removed(name, unit)?;
            changed.push(name.clone());
        }
    }
    let needed = links.needed;
    kept.extend(needed.into_iter().map(Arc::from));
    Ok(changed)
}

/// What is declared about a unit, without its sources.
fn says(unit: &RenderedUnit) -> impl PartialEq + use<> {
    let value = |part: &Option<Sourced<bool>>| part.as_ref().map(|part| part.value);
    let dropins: Vec<_> =
        unit.dropins.iter().map(|(name, dropin)| (name.clone(), dropin.value.clone())).collect();
    (unit.contents.as_ref().map(|part| part.value.clone()), value(&unit.enabled), value(&unit.mask), dropins)
}

fn is(part: Option<&Sourced<bool>>) -> Option<bool> {
    part.map(|part| part.value)
}

/// Which of the two configs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Old,
    New,
}

/// What a config's declaration of a unit results in.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effect {
    /// The links by which it is enabled.
    made: Vec<Enabling>,
    /// The units that are disabled.
    taken: Vec<String>,
}

/// The links of one apply.
struct Links<'a, 'b> {
    planner: &'a Planner<'a>,
    kept: &'b BTreeSet<Arc<Path>>,
    wanted: &'b mut BTreeMap<PathBuf, PlannedState>,
    /// Links that a unit of the new config needs.
    needed: BTreeSet<PathBuf>,
    /// Units that the new config disables or masks.
    unwanted: BTreeSet<String>,
    /// Links that Holdfast wrote or removed, with their former or present targets. Read when they are needed.
    originals: Option<Vec<(PathBuf, PathBuf)>>,
}

impl Links<'_, '_> {
    fn declared(&mut self, name: &str, unit: &RenderedUnit) -> Result<(), ApplyError> {
        let own = Path::new(SYSTEMD_DIRECTORY).join(name);
        let observer = self.planner.observer;
        let old = self.planner.old.units.get(name);
        let was_masked = old.is_some_and(|old| is(old.mask.as_ref()) == Some(true));
        let was_decided = was_masked || old.is_some_and(|old| is(old.enabled.as_ref()).is_some());
        // What the old config did to links of these units may have to be reverted.
        let mut others = if was_decided { self.together(Side::Old, name) } else { Vec::new() };
        if is(unit.mask.as_ref()) == Some(true) {
            self.take_away(&[name.to_owned()])?;
            others.retain(|other| other != name);
            self.give_back(&others)?;
            let to_null = PlannedState::Link { target: PathBuf::from("/dev/null"), uid: 0, gid: 0 };
            self.wanted.insert(own, to_null);
            return Ok(());
        }
        let (mask, enabled) = (is(unit.mask.as_ref()), is(unit.enabled.as_ref()));
        let may_be_masked = mask.is_none() && enabled != Some(true);
        if mask == Some(false) || was_masked {
            for link in units::mask_links(observer, name) {
                // The original before Holdfast's mask is restored; an original mask only if nothing forbids one.
                let is_ours = was_masked && link == own;
                let comes_back = is_ours && (may_be_masked || !self.was_mask(&own)?);
                let to = if comes_back { PlannedState::Original } else { PlannedState::Gone };
                self.wanted.entry(link).or_insert(to);
            }
        }
        if may_be_masked && old.is_some_and(|old| is(old.mask.as_ref()) == Some(false)) {
            self.give_back_masks(name)?;
        }
        match is(unit.enabled.as_ref()) {
            Some(true) => {
                let links = self
                    .asked(Side::New, name)
                    .map_err(|error| ApplyError::refused(&own, format!("it cannot be enabled: {error}")))?;
                if was_decided {
                    others.extend(self.together(Side::New, name));
                }
                // Instances of a template that somebody enabled one by one stay or are restored. For any other unit the links
                // of a former [Install] section are removed.
                if !is_template(name) {
                    self.take_away(&[name.to_owned()])?;
                    others.retain(|other| other != name);
                }
                self.give_back(&others)?;
                for Enabling { link, target, .. } in links {
                    if !self.kept.contains(link.as_path()) {
                        self.wanted.insert(link, PlannedState::Link { target, uid: 0, gid: 0 });
                    }
                }
            }
            Some(false) => {
                let units = self.together(Side::New, name);
                self.take_away(&units)?;
                others.retain(|other| !units.contains(other));
                self.give_back(&others)?;
            }
            // No config decides about the links any more. A mask may have removed some, too.
            None => self.give_back(&others)?,
        }
        Ok(())
    }

    /// Restores the links of a unit that no config declares any more.
    fn removed(&mut self, name: &str, unit: &RenderedUnit) -> Result<(), ApplyError> {
        let own = Path::new(SYSTEMD_DIRECTORY).join(name);
        let observer = self.planner.observer;
        match is(unit.mask.as_ref()) {
            Some(true) => drop(self.wanted.insert(own.clone(), PlannedState::Original)),
            Some(false) => self.give_back_masks(name)?,
            None => {}
        }
        // Links to a file that Holdfast removes for good would lead nowhere. Other links stay.
        let is_ours = unit.contents.as_ref().is_some_and(|part| !part.value.is_empty());
        if is_ours && self.planner.original(&own)? == Image::Absent {
            for link in units::enabling_links(observer, name) {
                if leads_to(observer, &link, &own)? {
                    self.back_to_original(vec![(link, own.clone())]);
                }
            }
        }
        let units = self.together(Side::Old, name);
        self.give_back(&units)
    }

    /// Whether what was at a path before Holdfast wrote it is a link that masks a unit.
    fn was_mask(&self, path: &Path) -> Result<bool, ApplyError> {
        let original = self.planner.store.original(path)?.map(|original| original.image);
        Ok(matches!(original, Some(Image::Link(link)) if link.target == Path::new("/dev/null")))
    }

    /// Restores masks that Holdfast removed, except those that end with a boot.
    fn give_back_masks(&mut self, name: &str) -> Result<(), ApplyError> {
        for link in units::lasting_mask_links(name) {
            if self.was_mask(&link)? && self.may_go(&link) {
                self.wanted.entry(link).or_insert(PlannedState::Original);
            }
        }
        Ok(())
    }

    /// Removes all links that enable one of these units, also those that the end of another unit would restore.
    fn take_away(&mut self, units: &[String]) -> Result<(), ApplyError> {
        let written = self.written_for(units)?;
        let mut links: Vec<PathBuf> = written.into_iter().map(|(link, _)| link).collect();
        for unit in units {
            links.extend(units::enabling_links(self.planner.observer, unit));
        }
        let planner = self.planner;
        // An object that replaced a link is not Holdfast's.
        links.retain(|link| {
            self.may_go(link) && matches!(planner.image(link), Ok(Image::Absent | Image::Link(_)))
        });
        self.wanted.extend(links.into_iter().map(|link| (link, PlannedState::Gone)));
        Ok(())
    }

    /// Restores the links that enable one of these units to their originals.
    fn give_back(&mut self, units: &[String]) -> Result<(), ApplyError> {
        let links = self.written_for(units)?;
        self.back_to_original(links);
        Ok(())
    }

    fn back_to_original(&mut self, links: Vec<(PathBuf, PathBuf)>) {
        for (link, target) in links {
            if self.may_go(&link) {
                // The new config disables or masks the unit, so its original link is not restored.
                let is_unwanted = self.unwanted.iter().any(|unit| units::enables(&link, &target, unit));
                let to = if is_unwanted { PlannedState::Gone } else { PlannedState::Original };
                self.wanted.entry(link).or_insert(to);
            }
        }
    }

    /// Whether the new config does not need a link for another reason.
    fn may_go(&self, link: &Path) -> bool {
        !self.needed.contains(link) && !self.kept.contains(link)
    }

    /// Links that Holdfast wrote or removed and that enable one of these units, with their targets.
    fn written_for(&mut self, units: &[String]) -> Result<Vec<(PathBuf, PathBuf)>, ApplyError> {
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let originals = match self.originals.take() {
            Some(originals) => originals,
            None => self.read_originals()?,
        };
        let is_one = |link: &Path, target: &Path| units.iter().any(|unit| units::enables(link, target, unit));
        let links = originals.iter().filter(|(link, target)| is_one(link, target)).cloned().collect();
        self.originals = Some(originals);
        Ok(links)
    }

    fn read_originals(&self) -> Result<Vec<(PathBuf, PathBuf)>, ApplyError> {
        let Planner { observer, store, .. } = self.planner;
        let mut links = Vec::new();
        for path in store.originals()? {
            let target = match store.original(&path)?.map(|original| original.image) {
                Some(Image::Link(link)) => Some(link.target),
                _ => units::link_target(observer, &path),
            };
            links.extend(target.map(|target| (path, target)));
        }
        Ok(links)
    }

    fn rendered(&self, side: Side) -> &Rendered {
        match side {
            Side::Old => self.planner.old,
            Side::New => self.planner.new,
        }
    }

    /// The links by which a config enables a unit; none where it does not.
    fn asked(&self, side: Side, name: &str) -> Result<Vec<Enabling>, RepairError> {
        let unit = self.rendered(side).units.get(name);
        let is_enabled = unit.is_some_and(|unit| {
            is(unit.enabled.as_ref()) == Some(true) && is(unit.mask.as_ref()) != Some(true)
        });
        if !is_enabled {
            return Ok(Vec::new());
        }
        units::links_to_enable(name, &|unit| self.find(side, unit), &|unit| self.is_apart(side, unit))
    }

    /// What a config's declaration of a unit results in. An error is reported where the unit is enabled.
    fn effect(&self, side: Side, name: &str) -> Effect {
        let unit = self.rendered(side).units.get(name);
        let is_disabled = unit.is_some_and(|unit| {
            is(unit.enabled.as_ref()) == Some(false) && is(unit.mask.as_ref()) != Some(true)
        });
        let made = self.asked(side, name).unwrap_or_default();
        Effect { made, taken: if is_disabled { self.together(side, name) } else { Vec::new() } }
    }

    fn together(&self, side: Side, name: &str) -> Vec<String> {
        let apart = |unit: &str| self.is_apart(side, unit);
        let mut units = units::together(name, &|unit| self.find(side, unit), &apart);
        // The new config decides about these units itself, so they are handled on their own.
        units.retain(|unit| unit == name || !self.is_apart(Side::New, unit));
        units
    }

    fn is_apart(&self, side: Side, unit: &str) -> bool {
        // A mask of the old config is removed, or the new config declares it again.
        let is_ours = self.planner.old.units.get(unit).is_some_and(|old| is(old.mask.as_ref()) == Some(true));
        units::is_decided(self.rendered(side), unit)
            || (!is_ours && !units::mask_links(self.planner.observer, unit).is_empty())
    }

    /// A unit's file under a config, and what its `[Install]` sections say; for an instance those of its template.
    fn find(&self, side: Side, name: &str) -> Option<(PathBuf, Install)> {
        let names = [template_of(name).filter(|template| template != name), Some(name.to_owned())];
        let mut files = names.iter().rev().flatten();
        let (path, text) = files.find_map(|name| self.file(side, name))?;
        let mut install = Install::default();
        install.add(&text);
        let units = &self.rendered(side).units;
        for unit in names.iter().flatten().filter_map(|name| units.get(name)) {
            for text in unit.dropins.values().filter_map(|dropin| dropin.value.as_deref()) {
                install.add(text);
            }
        }
        Some((path, install))
    }

    /// The file of exactly this name, and its text.
    fn file(&self, side: Side, name: &str) -> Option<(PathBuf, String)> {
        let contents = |side: Side| {
            let contents = self.rendered(side).units.get(name)?.contents.as_ref()?;
            Some(contents.value.clone()).filter(|text| !text.is_empty())
        };
        let own = Path::new(SYSTEMD_DIRECTORY).join(name);
        if let Some(text) = contents(side) {
            return Some((own, text));
        }
        let observer = self.planner.observer;
        if side == Side::Old || contents(Side::Old).is_none() {
            return units::unit_file(observer, name, None);
        }
        // The old config's file is still there, and its original is restored later.
        if let Ok(Image::File(file)) = self.planner.original(&own)
            && let Ok(bytes) = self.planner.store.content(&file.sha256)
        {
            return Some((own, String::from_utf8_lossy(&bytes).into_owned()));
        }
        units::unit_file(observer, name, Some(&own))
    }
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
