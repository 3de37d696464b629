//! The links that enable, disable, mask and unmask units.
//!
//! In: the units of the old and the new config. Out: the links to make and to remove. So an apply enables and disables units like
//! it writes any other path, and leaves no stale link. As with systemctl, a template is enabled by its `DefaultInstance=` and
//! disabled with all its instances. Units in `Also=` are enabled and disabled with a unit. A declaration of a unit itself takes
//! precedence over another unit's `Also=` and over its template.

use super::{
    error::{ApplyError, ApplyRefusal},
    target_finder::{TargetFinder, WantedState},
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
    journal::PathState,
    merge::{Rendered, RenderedUnit, Sourced},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

/// Adds the links of units that change to `wanted`, and returns the units' names. `kept` are the paths that the new config
/// declares; the links of its units are added to them.
pub(super) fn wanted(
    finder: &TargetFinder<'_>,
    kept: &mut BTreeSet<Arc<Path>>,
    wanted: &mut BTreeMap<PathBuf, WantedState>,
) -> Result<Vec<String>, ApplyError> {
    let mut links = UnitLinks {
        finder,
        kept,
        wanted,
        needed: BTreeSet::new(),
        unwanted: BTreeSet::new(),
        originals: None,
    };
    let mut after = BTreeMap::new();
    for (name, unit) in &finder.new.units {
        let effect = links.effect(WhichConfig::New, name);
        links.needed.extend(effect.made.iter().map(|enabling| enabling.link.clone()));
        links.unwanted.extend(effect.taken.iter().cloned());
        if is(unit.mask.as_ref()) == Some(true) {
            links.unwanted.insert(name.clone());
        }
        after.insert(name, effect);
    }
    let mut changed = Vec::new();
    for (name, unit) in &finder.new.units {
        let old = finder.old.units.get(name);
        // Another [Install] section of a template or of an `Also=` unit changes the links, too.
        let is_same = old.is_some_and(|old| declaration(old) == declaration(unit))
            && links.effect(WhichConfig::Old, name) == after[name];
        if finder.everything || !is_same {
            links.declared(name, unit)?;
            changed.push(name.clone());
        }
    }
    for (name, unit) in &finder.old.units {
        if !finder.new.units.contains_key(name) {
            links.removed(name, unit)?;
            changed.push(name.clone());
        }
    }
    let needed = links.needed;
    kept.extend(needed.into_iter().map(Arc::from));
    Ok(changed)
}

/// The declaration of a unit, without its sources.
fn declaration(unit: &RenderedUnit) -> impl PartialEq + use<> {
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
enum WhichConfig {
    Old,
    New,
}

/// The effect of a config's declaration of a unit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effect {
    /// The links by which it is enabled.
    made: Vec<Enabling>,
    /// The units that are disabled.
    taken: Vec<String>,
}

/// The links of one apply.
struct UnitLinks<'a, 'b> {
    finder: &'a TargetFinder<'a>,
    kept: &'b BTreeSet<Arc<Path>>,
    wanted: &'b mut BTreeMap<PathBuf, WantedState>,
    /// Links that a unit of the new config needs.
    needed: BTreeSet<PathBuf>,
    /// Units that the new config disables or masks.
    unwanted: BTreeSet<String>,
    /// Links that Holdfast wrote or removed, with their former or present targets. Read when they are needed.
    originals: Option<Vec<(PathBuf, PathBuf)>>,
}

impl UnitLinks<'_, '_> {
    fn declared(&mut self, name: &str, unit: &RenderedUnit) -> Result<(), ApplyError> {
        let own = Path::new(SYSTEMD_DIRECTORY).join(name);
        let observer = self.finder.observer;
        let old = self.finder.old.units.get(name);
        let was_masked = old.is_some_and(|old| is(old.mask.as_ref()) == Some(true));
        let was_decided = was_masked || old.is_some_and(|old| is(old.enabled.as_ref()).is_some());
        // The old config may have changed links of these units, and then they are restored.
        let mut others = if was_decided { self.together(WhichConfig::Old, name) } else { Vec::new() };
        if is(unit.mask.as_ref()) == Some(true) {
            self.remove_links(&[name.to_owned()])?;
            others.retain(|other| other != name);
            self.restore_links(&others)?;
            let to_null = WantedState::Link { target: PathBuf::from("/dev/null"), uid: 0, gid: 0 };
            self.wanted.insert(own, to_null);
            return Ok(());
        }
        let (mask, enabled) = (is(unit.mask.as_ref()), is(unit.enabled.as_ref()));
        let may_be_masked = mask.is_none() && enabled != Some(true);
        if mask == Some(false) || was_masked {
            for link in units::mask_links(observer, name) {
                // Holdfast's own mask is replaced by the original. An original mask is restored only if the new config allows one.
                let is_ours = was_masked && link == own;
                let comes_back = is_ours && (may_be_masked || !self.was_mask(&own)?);
                let to = if comes_back { WantedState::Original } else { WantedState::Gone };
                self.wanted.entry(link).or_insert(to);
            }
        }
        if may_be_masked && old.is_some_and(|old| is(old.mask.as_ref()) == Some(false)) {
            self.restore_masks(name)?;
        }
        match is(unit.enabled.as_ref()) {
            Some(true) => {
                let links = self
                    .asked(WhichConfig::New, name)
                    .map_err(|error| ApplyError::refused(&own, ApplyRefusal::NotEnabled(Box::new(error))))?;
                if was_decided {
                    others.extend(self.together(WhichConfig::New, name));
                }
                // Instances of a template that a person enabled stay or are restored. For any other unit the links of a former
                // [Install] section are removed.
                if !is_template(name) {
                    self.remove_links(&[name.to_owned()])?;
                    others.retain(|other| other != name);
                }
                self.restore_links(&others)?;
                for Enabling { link, target, .. } in links {
                    if !self.kept.contains(link.as_path()) {
                        self.wanted.insert(link, WantedState::Link { target, uid: 0, gid: 0 });
                    }
                }
            }
            Some(false) => {
                let units = self.together(WhichConfig::New, name);
                self.remove_links(&units)?;
                others.retain(|other| !units.contains(other));
                self.restore_links(&others)?;
            }
            // The new config does not declare the enablement. A former mask may have removed links as well.
            None => self.restore_links(&others)?,
        }
        Ok(())
    }

    /// Restores the links of a unit that no config declares any more.
    fn removed(&mut self, name: &str, unit: &RenderedUnit) -> Result<(), ApplyError> {
        let own = Path::new(SYSTEMD_DIRECTORY).join(name);
        let observer = self.finder.observer;
        match is(unit.mask.as_ref()) {
            Some(true) => drop(self.wanted.insert(own.clone(), WantedState::Original)),
            Some(false) => self.restore_masks(name)?,
            None => {}
        }
        // Holdfast removes the file, so links to it would have no target. Other links stay.
        let is_ours = unit.contents.as_ref().is_some_and(|part| !part.value.is_empty());
        if is_ours && self.finder.original(&own)? == PathState::Absent {
            for link in units::enabling_links(observer, name) {
                if leads_to(observer, &link, &own)? {
                    self.back_to_original(vec![(link, own.clone())]);
                }
            }
        }
        let units = self.together(WhichConfig::Old, name);
        self.restore_links(&units)
    }

    /// Whether the original of a path is a link that masks a unit.
    fn was_mask(&self, path: &Path) -> Result<bool, ApplyError> {
        let original = self.finder.store.original(path)?.map(|original| original.state);
        Ok(matches!(original, Some(PathState::Link(link)) if link.target == Path::new("/dev/null")))
    }

    /// Restores masks that Holdfast removed, except those that end with a boot.
    fn restore_masks(&mut self, name: &str) -> Result<(), ApplyError> {
        for link in units::lasting_mask_links(name) {
            if self.was_mask(&link)? && self.may_go(&link) {
                self.wanted.entry(link).or_insert(WantedState::Original);
            }
        }
        Ok(())
    }

    /// Removes all links that enable one of these units, also links that the removal of another unit would restore.
    fn remove_links(&mut self, units: &[String]) -> Result<(), ApplyError> {
        let written = self.written_for(units)?;
        let mut links: Vec<PathBuf> = written.into_iter().map(|(link, _)| link).collect();
        for unit in units {
            links.extend(units::enabling_links(self.finder.observer, unit));
        }
        let finder = self.finder;
        // An object that replaced a link is not Holdfast's.
        links.retain(|link| {
            self.may_go(link) && matches!(finder.state(link), Ok(PathState::Absent | PathState::Link(_)))
        });
        self.wanted.extend(links.into_iter().map(|link| (link, WantedState::Gone)));
        Ok(())
    }

    /// Restores the originals of the links that enable one of these units.
    fn restore_links(&mut self, units: &[String]) -> Result<(), ApplyError> {
        let links = self.written_for(units)?;
        self.back_to_original(links);
        Ok(())
    }

    fn back_to_original(&mut self, links: Vec<(PathBuf, PathBuf)>) {
        for (link, target) in links {
            if self.may_go(&link) {
                // The new config disables or masks the unit, so its original link is not restored.
                let is_unwanted = self.unwanted.iter().any(|unit| units::enables(&link, &target, unit));
                let to = if is_unwanted { WantedState::Gone } else { WantedState::Original };
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
        let TargetFinder { observer, store, .. } = self.finder;
        let mut links = Vec::new();
        for path in store.originals()? {
            let target = match store.original(&path)?.map(|original| original.state) {
                Some(PathState::Link(link)) => Some(link.target),
                _ => units::link_target(observer, &path),
            };
            links.extend(target.map(|target| (path, target)));
        }
        Ok(links)
    }

    fn rendered(&self, side: WhichConfig) -> &Rendered {
        match side {
            WhichConfig::Old => self.finder.old,
            WhichConfig::New => self.finder.new,
        }
    }

    /// The links by which a config enables a unit; none where it does not.
    fn asked(&self, side: WhichConfig, name: &str) -> Result<Vec<Enabling>, RepairError> {
        let unit = self.rendered(side).units.get(name);
        let is_enabled = unit.is_some_and(|unit| {
            is(unit.enabled.as_ref()) == Some(true) && is(unit.mask.as_ref()) != Some(true)
        });
        if !is_enabled {
            return Ok(Vec::new());
        }
        units::links_to_enable(name, &|unit| self.find(side, unit), &|unit| self.is_apart(side, unit))
    }

    /// The effect of a config's declaration of a unit. [`Self::declared`] reports an error.
    fn effect(&self, side: WhichConfig, name: &str) -> Effect {
        let unit = self.rendered(side).units.get(name);
        let is_disabled = unit.is_some_and(|unit| {
            is(unit.enabled.as_ref()) == Some(false) && is(unit.mask.as_ref()) != Some(true)
        });
        let made = self.asked(side, name).unwrap_or_default();
        Effect { made, taken: if is_disabled { self.together(side, name) } else { Vec::new() } }
    }

    fn together(&self, side: WhichConfig, name: &str) -> Vec<String> {
        let apart = |unit: &str| self.is_apart(side, unit);
        let mut units = units::together(name, &|unit| self.find(side, unit), &apart);
        // The new config declares these units itself, so they are handled on their own.
        units.retain(|unit| unit == name || !self.is_apart(WhichConfig::New, unit));
        units
    }

    fn is_apart(&self, side: WhichConfig, unit: &str) -> bool {
        // A mask of the old config is removed, or the new config declares it again.
        let is_ours = self.finder.old.units.get(unit).is_some_and(|old| is(old.mask.as_ref()) == Some(true));
        units::is_decided(self.rendered(side), unit)
            || (!is_ours && !units::mask_links(self.finder.observer, unit).is_empty())
    }

    /// A unit's file under a config, and its `[Install]` sections; for an instance those of its template.
    fn find(&self, side: WhichConfig, name: &str) -> Option<(PathBuf, Install)> {
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
    fn file(&self, side: WhichConfig, name: &str) -> Option<(PathBuf, String)> {
        let contents = |side: WhichConfig| {
            let contents = self.rendered(side).units.get(name)?.contents.as_ref()?;
            Some(contents.value.clone()).filter(|text| !text.is_empty())
        };
        let own = Path::new(SYSTEMD_DIRECTORY).join(name);
        if let Some(text) = contents(side) {
            return Some((own, text));
        }
        let observer = self.finder.observer;
        if side == WhichConfig::Old || contents(WhichConfig::Old).is_none() {
            return units::unit_file(observer, name, None);
        }
        // The path still has the old config's file. Its original is restored later.
        if let Ok(PathState::File(file)) = self.finder.original(&own)
            && let Ok(bytes) = self.finder.store.content(&file.sha256)
        {
            return Some((own, String::from_utf8_lossy(&bytes).into_owned()));
        }
        units::unit_file(observer, name, Some(&own))
    }
}

/// Whether a link names a path as its target.
fn leads_to(observer: &Observer, link: &Path, path: &Path) -> Result<bool, ApplyError> {
    let Some(place) = Place::find(observer.root(), link)? else { return Ok(false) };
    let Some(PathState::Link(seen)) = place.see()?.state else { return Ok(false) };
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
