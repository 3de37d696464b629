//! Enablement and mask of a systemd unit, read from unit files and links.
//!
//! In: a unit name. Out: what `systemctl is-enabled` would print. Like systemd it reads the links in the configuration directories and
//! `[Install]` sections, and not the loaded units. So it works without a running systemd, below any root, and at once after a change.
//! It never asks the manager; `crate::systemd` does.

use super::{
    names::list_names,
    object::{FailedOperation, stat_handle},
    opened::{OpenedObject, open_directory},
    resolve::Root,
};
use crate::bounded::{self, Kind, Unreadable};
use nix::{
    dir::{Dir, Type},
    errno::Errno,
    fcntl::{OFlag, readlinkat},
};
use rustix::fs::StatxFlags;
use sensor_model::{
    expectations::install_directories,
    host::{
        install::Install,
        unit_name::{is_template, template_of, with_instance},
    },
    observation::UnitObservation,
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

/// The directory of the administrator's units and links.
const CONFIGURATION: &str = "/etc/systemd/system";

/// Directories of units, in falling precedence. `/lib` is for hosts without a merged `/usr`.
const SEARCH_PATH: [&str; 13] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    CONFIGURATION,
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// Most aliases that it follows from one unit to the next.
const MAXIMUM_ALIASES: usize = 16;

/// What `systemctl is-enabled` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnitFileState {
    /// Linked into a target, or under one of its declared aliases.
    Enabled,
    /// The same below `/run`.
    EnabledRuntime,
    /// Its file is a link to a unit outside the search path.
    Linked,
    /// The same below `/run`.
    LinkedRuntime,
    /// The name is a link to another unit.
    Alias,
    /// A link to `/dev/null`, or empty.
    Masked,
    /// The same below `/run`.
    MaskedRuntime,
    /// Its `[Install]` section has nothing to do.
    Static,
    /// It can be enabled and is not.
    Disabled,
    /// It is enabled under another name, or names other units to enable.
    Indirect,
    /// A generator created it.
    Generated,
    /// It was created at run time.
    Transient,
}

impl UnitFileState {
    /// The word that systemd uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::EnabledRuntime => "enabled-runtime",
            Self::Linked => "linked",
            Self::LinkedRuntime => "linked-runtime",
            Self::Alias => "alias",
            Self::Masked => "masked",
            Self::MaskedRuntime => "masked-runtime",
            Self::Static => "static",
            Self::Disabled => "disabled",
            Self::Indirect => "indirect",
            Self::Generated => "generated",
            Self::Transient => "transient",
        }
    }
}

impl fmt::Display for UnitFileState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Links in one directory of the search path.
#[derive(Debug, Default)]
struct EnablingLinks {
    /// Links beside the units: name and target.
    aliases: Vec<(String, PathBuf)>,
    /// Names of links in `*.wants`, `*.requires` and `*.upholds`.
    wanted: Vec<String>,
}

/// A unit file that was found.
#[derive(Debug, Default)]
struct FoundUnit {
    /// The directory of the name, as an index into the search path.
    place: usize,
    /// Name of the file itself.
    name: String,
    kind: UnitKind,
    install: Install,
    /// The directories in which its `[Install]` sections link it.
    directories: Vec<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum UnitKind {
    #[default]
    Regular,
    Linked,
    Masked,
}

/// The state of a unit below the root.
pub(super) fn observe(
    root: &Root,
    name: &str,
    on_open: &mut dyn FnMut(&OpenedObject),
) -> Result<UnitObservation, FailedOperation> {
    let mut links = BTreeMap::new();
    for (place, directory) in SEARCH_PATH.iter().enumerate() {
        links.insert(place, read_links(root, Path::new(directory), on_open)?);
    }
    let own = Path::new(CONFIGURATION).join(name);
    let masked = links
        .get(&configuration())
        .and_then(|links| links.aliases.iter().find(|(link, _)| link == name))
        .is_some_and(|(_, target)| target == Path::new("/dev/null"));
    Ok(UnitObservation {
        file_state: state(root, name, &links).map(|state| state.name().to_owned()),
        masked,
        resolved: root.walk(&own).end.ok().map(|(_, real)| real),
        overridden_by: overriding(root, name),
    })
}

/// The file of a unit's name that comes before that of the configuration directory. A mask is none: [`UnitFileState`] tells of it.
fn overriding(root: &Root, name: &str) -> Option<PathBuf> {
    let place = (0..configuration()).find(|place| exists(root, *place, name))?;
    let is_mask = find(root, name).is_some_and(|unit| unit.kind == UnitKind::Masked);
    (!is_mask).then(|| Path::new(SEARCH_PATH[place]).join(name))
}

/// The directories in which a unit's own file asks for links; none if the unit has no file.
pub(super) fn directories(root: &Root, name: &str) -> Vec<String> {
    find(root, name).map(|unit| unit.directories).unwrap_or_default()
}

fn configuration() -> usize {
    SEARCH_PATH.iter().position(|directory| *directory == CONFIGURATION).unwrap_or(0)
}

fn is_runtime(place: usize) -> bool {
    SEARCH_PATH[place].starts_with("/run/")
}

fn state(root: &Root, name: &str, links: &BTreeMap<usize, EnablingLinks>) -> Option<UnitFileState> {
    let unit = find(root, name)?;
    let runtime = is_runtime(unit.place);
    if unit.kind == UnitKind::Masked {
        return Some(if runtime { UnitFileState::MaskedRuntime } else { UnitFileState::Masked });
    }
    if unit.name != name && template_of(name).as_deref() != Some(&unit.name) {
        return Some(UnitFileState::Alias);
    }
    let directory = SEARCH_PATH[unit.place];
    if directory.starts_with("/run/systemd/generator") {
        return Some(UnitFileState::Generated);
    }
    if directory == "/run/systemd/transient" {
        return Some(UnitFileState::Transient);
    }
    let known = |link: &str| {
        link == name
            || unit.install.aliases.iter().any(|alias| alias == link)
            || unit.install.default_instance.as_ref().is_some_and(|default| {
                is_template(name) && with_instance(name, default).as_deref() == Some(link)
            })
    };
    enabled(name, &unit, links, &known).or_else(|| {
        let install = &unit.install;
        Some(if is_linked_otherwise(name, links) {
            UnitFileState::Indirect
        } else if !install.directories.is_empty() || !install.aliases.is_empty() {
            UnitFileState::Disabled
        } else if !install.also.is_empty() {
            UnitFileState::Indirect
        } else {
            UnitFileState::Static
        })
    })
}

/// The state that links give the unit: those in the configuration directory take precedence over those below `/run`.
fn enabled(
    name: &str,
    unit: &FoundUnit,
    links: &BTreeMap<usize, EnablingLinks>,
    known: &dyn Fn(&str) -> bool,
) -> Option<UnitFileState> {
    let mut runtime = false;
    let mut anywhere = false;
    for (place, links) in links {
        let wanted = links.wanted.iter().any(|link| known(link));
        // An alias of a template is not an alias of its instances.
        let alias = unit.name == name
            && links.aliases.iter().any(|(link, target)| {
                link != name && known(link) && target.file_name() == Some(OsStr::new(&unit.name))
            });
        if wanted || alias {
            if *place == configuration() {
                return Some(UnitFileState::Enabled);
            }
            runtime |= is_runtime(*place);
            anywhere = true;
        }
    }
    if runtime {
        return Some(UnitFileState::EnabledRuntime);
    }
    if anywhere && template_of(name).is_some_and(|template| template != name) {
        return Some(UnitFileState::Static);
    }
    (unit.kind == UnitKind::Linked)
        .then(|| if is_runtime(unit.place) { UnitFileState::LinkedRuntime } else { UnitFileState::Linked })
}

/// Whether the configuration links to the unit by a name that the unit does not declare, or to an instance of it.
fn is_linked_otherwise(name: &str, links: &BTreeMap<usize, EnablingLinks>) -> bool {
    links.iter().any(|(place, links)| {
        (*place == configuration() || is_runtime(*place))
            && (links
                .aliases
                .iter()
                .any(|(link, target)| link != name && target.file_name() == Some(OsStr::new(name)))
                || links.wanted.iter().any(|link| link != name && template_of(link).as_deref() == Some(name)))
    })
}

/// Finds the unit's file, following aliases.
fn find(root: &Root, name: &str) -> Option<FoundUnit> {
    let mut name = name.to_owned();
    for _ in 0..MAXIMUM_ALIASES {
        let candidates = [Some(name.clone()), template_of(&name).filter(|template| *template != name)];
        let (place, found) = candidates.into_iter().flatten().find_map(|candidate| {
            let place = (0..SEARCH_PATH.len()).find(|place| exists(root, *place, &candidate))?;
            Some((place, candidate))
        })?;
        let path = Path::new(SEARCH_PATH[place]).join(&found);
        let target = read_link(root, &path);
        let mut kind = UnitKind::Regular;
        if target.as_deref() == Some(Path::new("/dev/null")) {
            return Some(FoundUnit { place, name: found, kind: UnitKind::Masked, ..FoundUnit::default() });
        }
        if let Some(target) = &target {
            let target = path.parent().unwrap_or(Path::new("/")).join(target);
            let other = target.file_name()?.to_str()?.to_owned();
            let within = root.walk(target.parent()?).end.ok().is_some_and(|(_, real)| {
                SEARCH_PATH.iter().any(|directory| {
                    root.walk(Path::new(directory)).end.is_ok_and(|(_, searched)| searched == real)
                })
            });
            if within && other != found {
                name = other;
                continue;
            }
            if !within {
                kind = UnitKind::Linked;
            }
        }
        // systemd does not know a unit whose link leads nowhere.
        let file = root.open_at(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).ok()?;
        let text = match bounded::read_open(file, bounded::UNIT) {
            Ok(bytes) => String::from_utf8(bytes).ok()?,
            // For systemd any device at the path of a unit masks it, and so does an empty file.
            Err(Unreadable::Kind(Kind::Device)) => String::new(),
            Err(_) => return None,
        };
        if text.is_empty() {
            return Some(FoundUnit { place, name: found, kind: UnitKind::Masked, ..FoundUnit::default() });
        }
        let mut install = Install::default();
        let mut directories = Vec::new();
        for text in std::iter::once(text).chain(drop_ins(root, &found)) {
            install.add(&text);
            directories.extend(install_directories(&text));
        }
        return Some(FoundUnit { place, name: found, kind, install, directories });
    }
    None
}

fn exists(root: &Root, place: usize, name: &str) -> bool {
    let path = Path::new(SEARCH_PATH[place]).join(name);
    root.open_at(&path, super::resolve::HANDLE | OFlag::O_NOFOLLOW)
        .ok()
        .and_then(|handle| stat_handle(handle.as_fd(), StatxFlags::TYPE).ok())
        .is_some_and(|stat| u32::from(stat.stx_mode) & nix::libc::S_IFMT != nix::libc::S_IFDIR)
}

fn read_link(root: &Root, path: &Path) -> Option<PathBuf> {
    let handle = root.open_at(path, super::resolve::HANDLE | OFlag::O_NOFOLLOW).ok()?;
    super::resolve::link_target(handle.as_fd()).ok().flatten().map(PathBuf::from)
}

fn drop_ins(root: &Root, name: &str) -> Vec<String> {
    let mut texts = BTreeMap::new();
    for directory in SEARCH_PATH {
        let directory = Path::new(directory).join(format!("{name}.d"));
        let Ok(handle) = root.open_at(&directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY) else { continue };
        let Ok(names) = list_names(handle) else { continue };
        for file in names.into_iter().filter(|file| file.as_bytes().ends_with(b".conf")) {
            if texts.contains_key(&file) {
                continue;
            }
            let opened = root.open_at(&directory.join(&file), OFlag::O_RDONLY | OFlag::O_NONBLOCK);
            let read =
                opened.map_err(Unreadable::from).and_then(|file| bounded::read_open(file, bounded::UNIT));
            let text = match read {
                // A drop-in that is a link to /dev/null has no content, and hides others of its name.
                Err(Unreadable::Kind(Kind::Device)) => Some(String::new()),
                read => read.ok().and_then(|bytes| String::from_utf8(bytes).ok()),
            };
            if let Some(text) = text {
                texts.insert(file, text);
            }
        }
    }
    texts.into_values().collect()
}

/// The links in a directory of the search path; none if the directory does not exist.
fn read_links(
    root: &Root,
    directory: &Path,
    on_open: &mut dyn FnMut(&OpenedObject),
) -> Result<EnablingLinks, FailedOperation> {
    let mut links = EnablingLinks::default();
    let handle = match open_directory(root, directory, on_open) {
        Err(FailedOperation { errno: Errno::ENOENT | Errno::ENOTDIR, .. }) => return Ok(links),
        other => other?,
    };
    let mut listed = Dir::from_fd(handle).map_err(FailedOperation::at("read"))?;
    let mut found = Vec::new();
    let mut wants = Vec::new();
    for entry in listed.iter() {
        let entry = entry.map_err(FailedOperation::at("read"))?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        match entry.file_type() {
            Some(Type::Symlink) | None => found.push(name.to_owned()),
            Some(Type::Directory) => {}
            Some(_) => continue,
        }
        if [".wants", ".requires", ".upholds"].iter().any(|suffix| name.ends_with(suffix)) {
            wants.push(name.to_owned());
        }
    }
    for name in found {
        // The call fails if it is no link (some file systems have no types in directories), or the link was removed.
        if let Ok(target) = readlinkat(&listed, name.as_str()) {
            links.aliases.push((name, PathBuf::from(target)));
        }
    }
    for name in wants {
        let handle = match open_directory(root, &directory.join(name), on_open) {
            Err(FailedOperation { errno: Errno::ENOENT | Errno::ENOTDIR, .. }) => continue,
            other => other?,
        };
        let mut listed = Dir::from_fd(handle).map_err(FailedOperation::at("read"))?;
        for entry in listed.iter() {
            let entry = entry.map_err(FailedOperation::at("read"))?;
            let is_link = matches!(entry.file_type(), Some(Type::Symlink) | None);
            if let (true, Ok(name)) = (is_link, entry.file_name().to_str()) {
                links.wanted.push(name.to_owned());
            }
        }
    }
    Ok(links)
}
