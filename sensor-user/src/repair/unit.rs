//! Enablement and masks of units.
//!
//! In: a unit's expectation. Out: links that were made or removed. A mask is a link. If systemd runs, it enables and disables
//! units, because it knows presets and drop-ins. Otherwise Holdfast makes or removes the links of the `[Install]` section.

use super::{
    context::RepairContext,
    error::{RepairError, RepairRefusal},
};
use crate::{
    bounded::{self, Kind, Unreadable},
    disk::names_in,
    observation::Observer,
    systemd::UnitStates,
};
use nix::{fcntl::OFlag, sys::stat::SFlag};
use sensor_model::{
    difference::{Difference, DifferenceKind},
    expectation::{Expectation, SYSTEMD_DIRECTORY, Thing, UnitExpectation},
    host::{
        install::Install,
        unit_name::{instance, is_template, template_of, with_instance},
    },
    merge::Rendered,
    path::check_name,
};
use std::{
    collections::BTreeSet,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Directories of links that enable or mask.
const LINK_DIRECTORIES: [&str; 3] = [SYSTEMD_DIRECTORY, "/run/systemd/system", "/etc/systemd/system.control"];

/// Directories of unit files, in systemd's order of precedence.
const UNIT_DIRECTORIES: [&str; 5] = [
    SYSTEMD_DIRECTORY,
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Endings of the directories whose links enable units.
const LINK_SUFFIXES: [&str; 3] = [".wants", ".requires", ".upholds"];

const DEV_NULL: &str = "/dev/null";

/// Restores a unit's enablement and mask.
pub(super) async fn restore(
    host: &RepairContext<'_>,
    units: &mut UnitStates,
    expectation: &Expectation,
    expected: &UnitExpectation,
    differences: &[Difference],
) -> Result<Vec<String>, RepairError> {
    let Thing::Unit { name } = &expectation.thing else { return Ok(Vec::new()) };
    let mut actions = Vec::new();
    if differences.iter().any(|difference| difference.kind == DifferenceKind::UnitMask) {
        if expected.masked == Some(true) {
            let place = host.place(&Path::new(SYSTEMD_DIRECTORY).join(name), None)?;
            place.prepare_replacement(host.observer)?;
            place.replace_by_link(DEV_NULL.as_ref(), (Some(0), Some(0)), None)?;
            actions.push("masked".to_owned());
        } else {
            unmask(host, name)?;
            actions.push("unmasked".to_owned());
        }
        reload(units).await?;
    }
    // A unit that was masked against its declaration may be disabled, too.
    let Some(enabled) = expected.enabled.filter(|_| expected.masked != Some(true)) else {
        return Ok(actions);
    };
    let stated = differences.iter().any(|difference| difference.kind == DifferenceKind::UnitEnablement);
    if !stated && actions.is_empty() {
        return Ok(actions);
    }
    if !by_manager(units, name, enabled).await? {
        if enabled {
            enable(host, name)?;
        } else {
            disable(host, name)?;
        }
    }
    actions.push(if enabled { "enabled" } else { "disabled" }.to_owned());
    Ok(actions)
}

/// Makes systemd read its units again; `false` if systemd does not run.
pub(super) async fn reload(units: &mut UnitStates) -> Result<bool, RepairError> {
    let Some(manager) = units.manager().await else { return Ok(false) };
    manager.reload().await.map_err(systemd("daemon-reload"))?;
    Ok(true)
}

async fn by_manager(units: &mut UnitStates, name: &str, enabled: bool) -> Result<bool, RepairError> {
    let Some(manager) = units.manager().await else { return Ok(false) };
    let files = vec![name.to_owned()];
    if enabled {
        manager.enable_unit_files(files, false, true).await.map_err(systemd(name))?;
    } else {
        for runtime in [false, true] {
            manager.disable_unit_files(files.clone(), runtime).await.map_err(systemd(name))?;
        }
    }
    manager.reload().await.map_err(systemd(name))?;
    Ok(true)
}

fn systemd(unit: &str) -> impl Fn(zbus::Error) -> RepairError {
    move |error| RepairError::Systemd { unit: unit.to_owned(), answer: Box::new(error) }
}

fn unmask(host: &RepairContext<'_>, name: &str) -> Result<(), RepairError> {
    remove(host, mask_links(host.observer, name))
}

/// Links that mask a unit.
pub(crate) fn mask_links(observer: &Observer, name: &str) -> Vec<PathBuf> {
    let links = LINK_DIRECTORIES.map(|directory| Path::new(directory).join(name));
    let is_mask = |path: &PathBuf| link_target(observer, path).as_deref() == Some(Path::new(DEV_NULL));
    links.into_iter().filter(is_mask).collect()
}

/// The paths of masks that stay after a boot.
pub(crate) fn lasting_mask_links(name: &str) -> impl Iterator<Item = PathBuf> {
    let lasting = LINK_DIRECTORIES.into_iter().filter(|directory| !directory.starts_with("/run/"));
    lasting.map(move |directory| Path::new(directory).join(name))
}

/// A link that enables a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Enabling {
    pub(crate) link: PathBuf,
    /// Its target.
    pub(crate) target: PathBuf,
    /// The unit whose `[Install]` section has the link: the enabled unit, or one in its `Also=`.
    pub(crate) unit: String,
}

/// Finds a unit's file and its `[Install]` sections; for an instance those of its template.
pub(crate) type Find<'a> = &'a dyn Fn(&str) -> Option<(PathBuf, Install)>;

/// Whether another unit's `Also=` does not enable or disable a unit.
pub(crate) type Apart<'a> = &'a dyn Fn(&str) -> bool;

/// Whether a config itself decides if a unit is enabled.
pub(crate) fn is_decided(rendered: &Rendered, name: &str) -> bool {
    rendered
        .units
        .get(name)
        .is_some_and(|unit| unit.enabled.is_some() || unit.mask.as_ref().is_some_and(|masked| masked.value))
}

/// Makes the links of the unit's `[Install]` section.
fn enable(host: &RepairContext<'_>, name: &str) -> Result<(), RepairError> {
    let find = |name: &str| on_host(host.observer, name);
    for enabling in links_to_enable(name, &find, &|unit| is_apart(host, unit))? {
        let place = host.place(&enabling.link, None)?;
        // At an alias may be the administrator's own unit.
        if place
            .stat()?
            .is_some_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFLNK)
        {
            return Err(RepairError::refused(&enabling.link, RepairRefusal::InPlace("file".to_owned())));
        }
        place.replace_by_link(enabling.target.as_os_str(), (Some(0), Some(0)), None)?;
    }
    Ok(())
}

/// Removes the links that enable the unit or the units in its `Also=`.
fn disable(host: &RepairContext<'_>, name: &str) -> Result<(), RepairError> {
    let find = |name: &str| on_host(host.observer, name);
    for unit in together(name, &find, &|unit| is_apart(host, unit)) {
        let mut links = enabling_links(host.observer, &unit);
        // A declared instance stays when its template is disabled.
        links.retain(|link| {
            let linked = link.file_name().and_then(|linked| linked.to_str());
            linked == Some(&*unit) || linked.is_none_or(|linked| !is_decided(host.rendered, linked))
        });
        remove(host, links)?;
    }
    Ok(())
}

fn is_apart(host: &RepairContext<'_>, unit: &str) -> bool {
    is_decided(host.rendered, unit) || !mask_links(host.observer, unit).is_empty()
}

/// The links that enable a unit and the units in its `Also=`.
pub(crate) fn links_to_enable(
    name: &str,
    find: Find<'_>,
    apart: Apart<'_>,
) -> Result<Vec<Enabling>, RepairError> {
    let own = Path::new(SYSTEMD_DIRECTORY).join(name);
    let Some((_, install)) = find(name) else {
        return Err(RepairError::refused(&own, RepairRefusal::NoUnitFile));
    };
    if install.directories.is_empty() && install.aliases.is_empty() && install.also.is_empty() {
        return Err(RepairError::refused(&own, RepairRefusal::NoInstall));
    }
    if is_template(name) && install.default_instance.is_none() {
        return Err(RepairError::refused(&own, RepairRefusal::NoDefaultInstance));
    }
    let mut links = Vec::new();
    for unit in together(name, find, apart) {
        links.extend(find(&unit).into_iter().flat_map(|(file, install)| asked(&unit, &file, &install)));
    }
    Ok(links)
}

/// A unit, and the units in its `Also=` that have a file.
pub(crate) fn together(name: &str, find: Find<'_>, apart: Apart<'_>) -> Vec<String> {
    let mut met = BTreeSet::new();
    let mut all = Vec::new();
    let mut waiting = vec![name.to_owned()];
    while let Some(unit) = waiting.pop() {
        let is_first = unit == name;
        if check_name(&unit).is_err() || !met.insert(unit.clone()) || (!is_first && apart(&unit)) {
            continue;
        }
        let found = find(&unit);
        if is_first || found.is_some() {
            all.push(unit);
        }
        waiting.extend(found.into_iter().flat_map(|(_, install)| install.also));
    }
    all
}

/// The links of one unit's `[Install]` sections.
fn asked(unit: &str, file: &Path, install: &Install) -> Vec<Enabling> {
    let system = Path::new(SYSTEMD_DIRECTORY);
    // systemd cannot start a template, so its default instance is linked.
    let linked = match &install.default_instance {
        _ if !is_template(unit) => Some(unit.to_owned()),
        Some(instance) => with_instance(unit, instance),
        None => None,
    };
    let linked = linked.filter(|linked| check_name(linked).is_ok());
    let wants = install.directories.iter().filter_map(|directory| {
        // A name with a slash is a path to another directory.
        check_name(directory).ok()?;
        Some(system.join(directory).join(linked.as_ref()?))
    });
    let aliases = install.aliases.iter().filter_map(|alias| {
        check_name(alias).ok()?;
        let of_instance = instance(unit).filter(|instance| !instance.is_empty() && is_template(alias));
        let alias =
            of_instance.and_then(|instance| with_instance(alias, instance)).unwrap_or_else(|| alias.clone());
        (alias != unit).then(|| system.join(alias))
    });
    wants
        .chain(aliases)
        .filter(|link| link != file)
        .map(|link| Enabling { link, target: file.to_owned(), unit: unit.to_owned() })
        .collect()
}

/// All links that enable a unit; for a template also those of its instances.
pub(crate) fn enabling_links(observer: &Observer, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in LINK_DIRECTORIES.map(Path::new) {
        let Ok(names) = names_in(observer, directory) else { continue };
        for entry in names {
            let path = directory.join(&entry);
            if !is_of_links(&path) {
                found.push(path);
            } else if is_template(name) {
                let within = names_in(observer, &path).unwrap_or_default();
                found.extend(within.into_iter().map(|linked| path.join(linked)));
            } else {
                found.push(path.join(name));
            }
        }
    }
    found.retain(|link| link_target(observer, link).is_some_and(|target| enables(link, &target, name)));
    found
}

/// Whether a link at this path with this target enables a unit or an instance of it. It does so from a directory of links, or
/// as an alias.
pub(crate) fn enables(link: &Path, target: &Path, name: &str) -> bool {
    let (Some(directory), Some(entry)) = (link.parent(), link.file_name().and_then(|entry| entry.to_str()))
    else {
        return false;
    };
    if is_of_links(directory) {
        return entry == name || (is_template(name) && template_of(entry).as_deref() == Some(name));
    }
    let leads_to = target.file_name().and_then(|file| file.to_str());
    let is_of_instance = || {
        let one = instance(name).filter(|instance| !instance.is_empty());
        one.is_some() && instance(entry) == one && leads_to == template_of(name).as_deref()
    };
    entry != name
        && LINK_DIRECTORIES.iter().any(|searched| directory == Path::new(searched))
        && (leads_to == Some(name) || is_of_instance())
}

/// The directories in which a repair of units makes links.
pub(super) fn directories_of_links(observer: &Observer) -> Vec<PathBuf> {
    let system = Path::new(SYSTEMD_DIRECTORY);
    let within = names_in(observer, system).unwrap_or_default();
    let within = within.into_iter().map(|name| system.join(name)).filter(|path| is_of_links(path));
    std::iter::once(system.to_owned()).chain(within).collect()
}

/// Whether a directory holds links that enable, by its name.
fn is_of_links(directory: &Path) -> bool {
    let name = directory.file_name().unwrap_or_default().as_bytes();
    LINK_SUFFIXES.iter().any(|suffix| name.ends_with(suffix.as_bytes()))
}

fn remove(host: &RepairContext<'_>, links: Vec<PathBuf>) -> Result<(), RepairError> {
    for link in links {
        if let Some(place) = host.existing_place(&link)? {
            place.remove(host.observer)?;
            place.sync()?;
        }
    }
    Ok(())
}

/// The target of a symbolic link; `None` for everything else.
pub(crate) fn link_target(observer: &Observer, path: &Path) -> Option<PathBuf> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
    let handle = observer.root().open_at(path, flags).ok()?;
    crate::observation::resolve::link_target(std::os::fd::AsFd::as_fd(&handle)).ok()?.map(PathBuf::from)
}

/// The `[Install]` section of a unit's file on the host; for an instance that of its template.
fn on_host(observer: &Observer, name: &str) -> Option<(PathBuf, Install)> {
    let (path, text) = [Some(name.to_owned()), template_of(name)]
        .into_iter()
        .flatten()
        .find_map(|name| unit_file(observer, &name, None))?;
    let mut install = Install::default();
    install.add(&text);
    Some((path, install))
}

/// The host's unit file of exactly this name, and its text. Masks and the path `passed_over` count as missing.
pub(crate) fn unit_file(
    observer: &Observer,
    name: &str,
    passed_over: Option<&Path>,
) -> Option<(PathBuf, String)> {
    UNIT_DIRECTORIES.iter().find_map(|directory| {
        let path = Path::new(directory).join(name);
        let is_masked = || link_target(observer, &path).as_deref() == Some(Path::new(DEV_NULL));
        if passed_over == Some(&path) || is_masked() {
            return None;
        }
        let file = observer.root().open_at(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).ok()?;
        let bytes = match bounded::read_open(file, bounded::UNIT) {
            Err(Unreadable::Kind(Kind::Device)) => Vec::new(),
            read => read.ok()?,
        };
        Some((path, String::from_utf8(bytes).ok()?))
    })
}
