//! Enablement and mask of units.
//!
//! Masks are links and are made as links. Enabling and disabling is left to a running systemd, which
//! knows presets and drop-ins; without one it is done by the links that the `[Install]` section asks for.

use super::{
    RepairError,
    node::names_in,
    place::{Host, refused},
};
use crate::{observation::Observer, systemd::UnitStates};
use nix::fcntl::OFlag;
use sensor_model::{
    difference::{Difference, DifferenceKind},
    expectation::{Expectation, SYSTEMD_DIRECTORY, Thing, UnitExpectation},
    path::check_name,
};
use std::{
    fs::File,
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Where links that enable or mask can be.
const LINK_DIRECTORIES: [&str; 3] = [SYSTEMD_DIRECTORY, "/run/systemd/system", "/etc/systemd/system.control"];

/// Where unit files are, the one that wins first.
const UNIT_DIRECTORIES: [&str; 5] = [
    SYSTEMD_DIRECTORY,
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Directories of links that enable.
const LINK_SUFFIXES: [&str; 3] = [".wants", ".requires", ".upholds"];

const DEV_NULL: &str = "/dev/null";

/// Largest unit file read.
const UNIT_BYTES: u64 = 1 << 20;

/// Makes a unit's state the declared one.
pub(super) async fn restore(
    host: &Host<'_>,
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
            place.clear_way(host.observer)?;
            place.symlink(DEV_NULL.as_ref(), (Some(0), Some(0)))?;
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

/// Lets a running systemd read its units again.
pub(super) async fn reload(units: &mut UnitStates) -> Result<bool, RepairError> {
    let Some(manager) = units.manager().await else { return Ok(false) };
    manager.reload().await.map_err(|error| systemd("daemon-reload", &error))?;
    Ok(true)
}

async fn by_manager(units: &mut UnitStates, name: &str, enabled: bool) -> Result<bool, RepairError> {
    let Some(manager) = units.manager().await else { return Ok(false) };
    let files = vec![name.to_owned()];
    if enabled {
        manager.enable_unit_files(files, false, true).await.map_err(|error| systemd(name, &error))?;
    } else {
        for runtime in [false, true] {
            manager
                .disable_unit_files(files.clone(), runtime)
                .await
                .map_err(|error| systemd(name, &error))?;
        }
    }
    manager.reload().await.map_err(|error| systemd(name, &error))?;
    Ok(true)
}

fn systemd(unit: &str, error: &zbus::Error) -> RepairError {
    RepairError::Systemd { unit: unit.to_owned(), reason: error.to_string() }
}

fn unmask(host: &Host<'_>, name: &str) -> Result<(), RepairError> {
    remove(host, mask_links(host.observer, name))
}

/// Links that mask a unit.
pub(crate) fn mask_links(observer: &Observer, name: &str) -> Vec<PathBuf> {
    let links = LINK_DIRECTORIES.map(|directory| Path::new(directory).join(name));
    let is_mask = |path: &PathBuf| link_target(observer, path).as_deref() == Some(Path::new(DEV_NULL));
    links.into_iter().filter(is_mask).collect()
}

/// Makes the links that the unit's `[Install]` section asks for.
fn enable(host: &Host<'_>, name: &str) -> Result<(), RepairError> {
    for (link, file) in links_to_enable(host.observer, name, None)? {
        let place = host.place(&link, None)?;
        place.clear_way(host.observer)?;
        place.symlink(file.as_os_str(), (Some(0), Some(0)))?;
    }
    Ok(())
}

/// The links that enable a unit, and what they point to: by its `[Install]` section in `declared` (the unit's file and
/// text), else in the file that the host has.
pub(crate) fn links_to_enable(
    observer: &Observer,
    name: &str,
    declared: Option<(PathBuf, String)>,
) -> Result<Vec<(PathBuf, PathBuf)>, RepairError> {
    let own = Path::new(SYSTEMD_DIRECTORY).join(name);
    let Some((file, text)) = declared.or_else(|| unit_file(observer, name)) else {
        return Err(refused(&own, "there is no unit file to enable"));
    };
    let install = Install::parse(&text);
    if install.directories.is_empty() && install.aliases.is_empty() {
        return Err(refused(&own, "its file has no [Install] section that says how to enable it"));
    }
    let link_name = match (name.split_once("@."), &install.default_instance) {
        (Some((prefix, suffix)), Some(instance)) => format!("{prefix}@{instance}.{suffix}"),
        (Some(_), None) => {
            return Err(refused(&own, "a template without DefaultInstance= cannot be enabled"));
        }
        _ => name.to_owned(),
    };
    let system = Path::new(SYSTEMD_DIRECTORY);
    let mut links: Vec<PathBuf> =
        install.directories.iter().map(|directory| system.join(directory).join(&link_name)).collect();
    links.extend(install.aliases.iter().map(|alias| system.join(alias)));
    Ok(links.into_iter().map(|link| (link, file.clone())).collect())
}

/// Removes the links that enable the unit.
fn disable(host: &Host<'_>, name: &str) -> Result<(), RepairError> {
    remove(host, enabling_links(host.observer, name))
}

/// Links that enable a unit, wherever they are.
pub(crate) fn enabling_links(observer: &Observer, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in LINK_DIRECTORIES.map(Path::new) {
        let Ok(names) = names_in(observer, directory) else { continue };
        for entry in names {
            let path = directory.join(&entry);
            let wants = LINK_SUFFIXES.iter().any(|suffix| entry.as_bytes().ends_with(suffix.as_bytes()));
            let is_alias = entry != name
                && link_target(observer, &path)
                    .is_some_and(|target| target.file_name() == Some(name.as_ref()));
            let link = if wants { path.join(name) } else { path };
            if (wants || is_alias) && link_target(observer, &link).is_some() {
                found.push(link);
            }
        }
    }
    found
}

/// Whether a link at this path would enable the unit from a directory of links.
pub(crate) fn can_enable(path: &Path, name: &str) -> bool {
    let directory = path.parent().and_then(Path::file_name).map(std::os::unix::ffi::OsStrExt::as_bytes);
    path.file_name() == Some(name.as_ref())
        && directory.is_some_and(|directory| {
            LINK_SUFFIXES.iter().any(|suffix| directory.ends_with(suffix.as_bytes()))
        })
}

fn remove(host: &Host<'_>, links: Vec<PathBuf>) -> Result<(), RepairError> {
    for link in links {
        if let Some(place) = host.existing_place(&link)? {
            place.remove(host.observer)?;
            place.sync()?;
        }
    }
    Ok(())
}

/// The target of a symbolic link; `None` for everything else.
fn link_target(observer: &Observer, path: &Path) -> Option<PathBuf> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
    let handle = observer.root().open_at(path, flags).ok()?;
    crate::observation::resolve::link_target(std::os::fd::AsFd::as_fd(&handle)).ok()?.map(PathBuf::from)
}

/// The unit's file and its text; that of its template for an instance.
fn unit_file(observer: &Observer, name: &str) -> Option<(PathBuf, String)> {
    let template = name
        .split_once('@')
        .and_then(|(prefix, rest)| rest.rsplit_once('.').map(|(_, suffix)| format!("{prefix}@.{suffix}")));
    [Some(name.to_owned()), template].into_iter().flatten().find_map(|name| {
        UNIT_DIRECTORIES.iter().find_map(|directory| {
            let path = Path::new(directory).join(&name);
            let file = observer.root().open_at(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).ok()?;
            let mut text = String::new();
            File::from(file).take(UNIT_BYTES).read_to_string(&mut text).ok()?;
            Some((path, text))
        })
    })
}

/// What an `[Install]` section asks for.
#[derive(Debug, Default)]
struct Install {
    /// `multi-user.target.wants`.
    directories: Vec<String>,
    aliases: Vec<String>,
    default_instance: Option<String>,
}

impl Install {
    fn parse(text: &str) -> Self {
        let mut install = Self::default();
        let mut within = false;
        for line in text.replace("\\\n", " ").lines().map(str::trim) {
            if line.starts_with('[') {
                within = line == "[Install]";
                continue;
            }
            let (true, Some((key, value))) = (within, line.split_once('=')) else { continue };
            // A name with a slash would lead out of the directory.
            let names = || value.split_whitespace().filter(|name| check_name(name).is_ok());
            let mut link = |suffix: &str| {
                install.directories.extend(names().map(|target| format!("{target}.{suffix}")));
            };
            match key.trim() {
                "WantedBy" => link("wants"),
                "RequiredBy" => link("requires"),
                "UpheldBy" => link("upholds"),
                "Alias" => install.aliases.extend(names().map(str::to_owned)),
                "DefaultInstance" => install.default_instance = names().next().map(str::to_owned),
                _ => {}
            }
        }
        install
    }
}
