//! The rules of a valid config.
//!
//! In: a parsed config. Out: nothing, or the first broken rule with its field. The rules are Ignition's own, and that the config
//! alone is enough to verify a node.

use super::{
    dialect::{Dialect, Purpose},
    error::{IgnitionError, IgnitionFault},
};
use crate::{
    data_url,
    expectation::SYSTEMD_DIRECTORY,
    path::{check_absolute, check_name},
};
use ignition_config::v3_6 as spec;
use std::collections::BTreeMap;

/// setuid, setgid, sticky.
const SPECIAL_BITS: i64 = 0o7000;

/// If this file exists, the Machine Config Daemon skips its checks.
pub(crate) const FORCE_FILE: &str = "/run/machine-config-daemon-force";

/// Types of units: the endings of their names, after a dot.
pub(crate) const UNIT_SUFFIXES: [&str; 12] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "snapshot",
    "slice",
    "scope",
];

/// Removes what the config's own spec version ignores: setuid, setgid and sticky bits before 3.6.0.
pub(super) fn normalize(config: &mut spec::Config, minor: u32, dialect: Dialect, warnings: &mut Vec<String>) {
    if minor >= 6 || dialect == Dialect::MachineConfig {
        return;
    }
    let Some(storage) = &mut config.storage else { return };
    let files = storage.files.iter_mut().flatten().map(|file| (&file.path, &mut file.mode));
    let directories = storage.directories.iter_mut().flatten().map(|dir| (&dir.path, &mut dir.mode));
    for (path, mode) in files.chain(directories) {
        if let Some(mode) = mode
            && *mode > 0
            && *mode & SPECIAL_BITS != 0
        {
            *mode &= !SPECIAL_BITS;
            warnings.push(format!("{path}: setuid, setgid and sticky bits need spec 3.6.0 and are left out"));
        }
    }
}

pub(super) fn validate(
    config: &spec::Config,
    dialect: Dialect,
    purpose: Purpose,
    warnings: &mut Vec<String>,
) -> Result<(), IgnitionError> {
    if let Some(source) = &config.ignition.config
        && (source.replace.as_ref().is_some_and(|replace| replace.source.is_some())
            || source.merge.as_ref().is_some_and(|merge| !merge.is_empty()))
    {
        return Err(IgnitionError::new("ignition.config", IgnitionFault::OtherConfigs));
    }
    let units = systemd(config)?;
    if let Some(storage) = &config.storage {
        validate_storage(storage, &units, dialect, purpose, warnings)?;
    }
    passwd(config, warnings)
}

/// Checks the units. The result maps each path that a unit writes to the unit's field.
fn systemd(config: &spec::Config) -> Result<BTreeMap<String, String>, IgnitionError> {
    let mut written = BTreeMap::new();
    let mut seen = BTreeMap::new();
    let units = config.systemd.as_ref().and_then(|systemd| systemd.units.as_ref());
    for (index, unit) in units.into_iter().flatten().enumerate() {
        let field = format!("systemd.units[{index}]");
        let name_field = format!("{field}.name");
        check_unit_name(&unit.name).map_err(|reason| IgnitionError::new(&name_field, reason))?;
        unique(&mut seen, &unit.name, &name_field)?;
        if unit.contents.as_ref().is_some_and(|contents| !contents.is_empty()) {
            written.insert(format!("{SYSTEMD_DIRECTORY}/{}", unit.name), name_field);
        }
        let mut seen_dropins = BTreeMap::new();
        for (index, dropin) in unit.dropins.iter().flatten().enumerate() {
            let field = format!("{field}.dropins[{index}].name");
            check_name(&dropin.name).map_err(|reason| IgnitionError::new(&field, reason))?;
            let is_conf = std::path::Path::new(&dropin.name).extension().is_some_and(|end| end == "conf");
            if !is_conf {
                return Err(IgnitionError::new(field, IgnitionFault::DropInSuffix(dropin.name.clone())));
            }
            unique(&mut seen_dropins, &dropin.name, &field)?;
            if dropin.contents.as_ref().is_some_and(|contents| !contents.is_empty()) {
                written.insert(format!("{SYSTEMD_DIRECTORY}/{}.d/{}", unit.name, dropin.name), field);
            }
        }
    }
    Ok(written)
}

fn check_unit_name(name: &str) -> Result<(), IgnitionFault> {
    check_name(name)?;
    match name.rsplit_once('.') {
        Some((stem, suffix)) if !stem.is_empty() && UNIT_SUFFIXES.contains(&suffix) => Ok(()),
        _ => Err(IgnitionFault::UnitSuffix(name.to_owned())),
    }
}

fn validate_storage(
    storage: &spec::Storage,
    units: &BTreeMap<String, String>,
    dialect: Dialect,
    purpose: Purpose,
    warnings: &mut Vec<String>,
) -> Result<(), IgnitionError> {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut node = |path: &str, field: &str| -> Result<(), IgnitionError> {
        let field = format!("{field}.path");
        check_absolute(path).map_err(|reason| IgnitionError::new(&field, reason))?;
        if let Some(unit) = units.get(path) {
            let reason = IgnitionFault::Conflict { path: path.to_owned(), unit: unit.clone() };
            return Err(IgnitionError::new(field, reason));
        }
        unique(&mut seen, path, &field)
    };
    for (index, file) in storage.files.iter().flatten().enumerate() {
        let field = format!("storage.files[{index}]");
        node(&file.path, &field)?;
        validate_file(file, &field, dialect, purpose)?;
    }
    for (index, directory) in storage.directories.iter().flatten().enumerate() {
        let field = format!("storage.directories[{index}]");
        node(&directory.path, &field)?;
        check_mode(directory.mode, &directory.path, &field, Dialect::Plain)?;
        owner(directory.user.as_ref().map(|user| (user.id, &user.name)), &format!("{field}.user"))?;
        owner(directory.group.as_ref().map(|group| (group.id, &group.name)), &format!("{field}.group"))?;
    }
    for (index, link) in storage.links.iter().flatten().enumerate() {
        let field = format!("storage.links[{index}]");
        node(&link.path, &field)?;
        validate_link(link, storage, &field, warnings)?;
    }
    no_path_through_a_link(storage)
}

fn validate_file(
    file: &spec::File,
    field: &str,
    dialect: Dialect,
    purpose: Purpose,
) -> Result<(), IgnitionError> {
    let at = |name: &str| format!("{field}.{name}");
    if file.path == FORCE_FILE && purpose == Purpose::Verify {
        return Err(IgnitionError::new(at("path"), IgnitionFault::ForceFile(FORCE_FILE)));
    }
    if purpose == Purpose::Verify && file.append.as_ref().is_some_and(|append| !append.is_empty()) {
        return Err(IgnitionError::new(at("append"), IgnitionFault::Append));
    }
    check_mode(file.mode, &file.path, field, dialect)?;
    owner(file.user.as_ref().map(|user| (user.id, &user.name)), &at("user"))?;
    owner(file.group.as_ref().map(|group| (group.id, &group.name)), &at("group"))?;
    let source = file.contents.as_ref().and_then(|contents| contents.source.as_deref());
    let source = source.filter(|source| !source.is_empty());
    if dialect == Dialect::Plain && file.overwrite == Some(true) && source.is_none() {
        return Err(IgnitionError::new(at("overwrite"), IgnitionFault::Overwrite));
    }
    match &file.contents {
        Some(contents) => validate_contents(contents, source, &at("contents")),
        None => Ok(()),
    }
}

fn validate_contents(
    contents: &spec::Resource,
    source: Option<&str>,
    field: &str,
) -> Result<(), IgnitionError> {
    if contents.http_headers.as_ref().is_some_and(|headers| !headers.is_empty()) {
        return Err(IgnitionError::new(format!("{field}.httpHeaders"), IgnitionFault::HttpHeaders));
    }
    let hash = contents.verification.as_ref().and_then(|verification| verification.hash.as_deref());
    let refuse =
        |name: &str, error: data_url::ContentError| IgnitionError::new(format!("{field}.{name}"), error);
    let Some(source) = source else {
        // An empty content is decoded only to check the name of the compression.
        data_url::decode("data:,", contents.compression.as_deref().filter(|kind| *kind != "gzip"))
            .map_err(|error| refuse("compression", error))?;
        return match hash {
            Some(_) => Err(IgnitionError::new(format!("{field}.source"), IgnitionFault::NoSource)),
            None => Ok(()),
        };
    };
    if let Some(hash) = hash {
        data_url::check_hash(hash).map_err(|error| refuse("verification.hash", error))?;
    }
    let bytes = data_url::decode(source, contents.compression.as_deref()).map_err(|error| match error {
        data_url::ContentError::Compression(_) => refuse("compression", error),
        error => refuse("source", error),
    })?;
    match hash {
        Some(hash) => data_url::verify(hash, &bytes).map_err(|error| refuse("verification.hash", error)),
        None => Ok(()),
    }
}

fn validate_link(
    link: &spec::Link,
    storage: &spec::Storage,
    field: &str,
    warnings: &mut Vec<String>,
) -> Result<(), IgnitionError> {
    let target = link.target.as_deref().unwrap_or_default();
    if target.is_empty() || target.contains('\0') {
        return Err(IgnitionError::new(format!("{field}.target"), IgnitionFault::NoTarget));
    }
    owner(link.user.as_ref().map(|user| (user.id, &user.name)), &format!("{field}.user"))?;
    owner(link.group.as_ref().map(|group| (group.id, &group.name)), &format!("{field}.group"))?;
    if link.hard != Some(true) {
        return Ok(());
    }
    if storage.directories.iter().flatten().any(|directory| directory.path == target) {
        return Err(IgnitionError::new(format!("{field}.target"), IgnitionFault::HardLinkToDirectory));
    }
    if link.user.is_some() || link.group.is_some() {
        warnings.push(format!("{}: user and group are ignored for a hard link", link.path));
    }
    Ok(())
}

/// Refuses paths below a declared link: their files would be written to the link's target.
fn no_path_through_a_link(storage: &spec::Storage) -> Result<(), IgnitionError> {
    let links: std::collections::BTreeSet<&str> =
        storage.links.iter().flatten().map(|link| link.path.as_str()).collect();
    let files = storage.files.iter().flatten().map(|file| ("files", &file.path));
    let directories = storage.directories.iter().flatten().map(|directory| ("directories", &directory.path));
    let inner = storage.links.iter().flatten().map(|link| ("links", &link.path));
    for (list, path) in files.chain(directories).chain(inner) {
        let parents = path.match_indices('/').map(|(end, _)| &path[..end]);
        if let Some(link) = parents.skip(1).find(|parent| links.contains(parent)) {
            let reason = IgnitionFault::BelowLink { path: path.clone(), link: link.to_owned() };
            return Err(IgnitionError::new(format!("storage.{list}"), reason));
        }
    }
    Ok(())
}

fn passwd(config: &spec::Config, warnings: &mut Vec<String>) -> Result<(), IgnitionError> {
    let mut seen = BTreeMap::new();
    let users = config.passwd.as_ref().and_then(|passwd| passwd.users.as_ref());
    for (index, user) in users.into_iter().flatten().enumerate() {
        let field = format!("passwd.users[{index}].name");
        check_name(&user.name).map_err(|reason| IgnitionError::new(&field, reason))?;
        unique(&mut seen, &user.name, &field)?;
        if let Some(home) = user.home_dir.as_deref().filter(|home| !home.is_empty()) {
            let field = format!("passwd.users[{index}].homeDir");
            check_absolute(home).map_err(|reason| IgnitionError::new(field, reason))?;
        }
        // The hash becomes a field of a line in the shadow file.
        let splits = |byte: u8| byte == b':' || byte.is_ascii_control();
        if user.password_hash.as_deref().is_some_and(|hash| hash.bytes().any(splits)) {
            let field = format!("passwd.users[{index}].passwordHash");
            return Err(IgnitionError::new(field, IgnitionFault::PasswordHash));
        }
        for (key, text) in user.ssh_authorized_keys.iter().flatten().enumerate() {
            for line in crate::authorized_keys::parse(text.as_bytes()).invalid {
                warnings.push(format!(
                    "passwd.users[{index}].sshAuthorizedKeys[{key}]: line {}: {}",
                    line.line, line.reason
                ));
            }
        }
    }
    Ok(())
}

fn check_mode(mode: Option<i64>, path: &str, field: &str, dialect: Dialect) -> Result<(), IgnitionError> {
    let Some(mode) = mode else { return Ok(()) };
    let field = format!("{field}.mode");
    let Some(bits) = u32::try_from(mode).ok().filter(|bits| *bits <= 0o7777) else {
        return Err(IgnitionError::new(field, IgnitionFault::IllegalMode(mode)));
    };
    if dialect == Dialect::MachineConfig && bits > 0o777 {
        return Err(IgnitionError::new(field, IgnitionFault::SpecialBits { bits, path: path.to_owned() }));
    }
    Ok(())
}

fn owner(declared: Option<(Option<i64>, &Option<String>)>, field: &str) -> Result<(), IgnitionError> {
    let Some((id, name)) = declared else { return Ok(()) };
    let named = name.as_ref().is_some_and(|name| !name.is_empty());
    match id {
        Some(_) if named => Err(IgnitionError::new(field, IgnitionFault::IdAndName)),
        // The kernel reads the largest id (-1) as "no id".
        Some(id) if !(0..i64::from(u32::MAX)).contains(&id) => {
            Err(IgnitionError::new(format!("{field}.id"), IgnitionFault::NotAnId(id)))
        }
        _ => Ok(()),
    }
}

fn unique(seen: &mut BTreeMap<String, String>, name: &str, field: &str) -> Result<(), IgnitionError> {
    match seen.insert(name.to_owned(), field.to_owned()) {
        Some(first) => {
            Err(IgnitionError::new(field, IgnitionFault::Duplicate { name: name.to_owned(), first }))
        }
        None => Ok(()),
    }
}
