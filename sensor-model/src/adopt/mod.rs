//! A MachineConfig that declares the present state.
//!
//! In: observations of things, with the bytes of files whose content may be shown. Out: a MachineConfig as YAML, the same for the
//! same input, and a list of things that it cannot declare, with reasons. Later MachineConfigs override earlier ones, so its name
//! decides whether it has an effect.

mod fragment;
mod left_out;

#[cfg(test)]
mod tests;

pub use left_out::{LeftOut, LeftOutReason, Undeclarable};

use crate::{
    authorized_keys, data_url,
    expectation::{Expectation, Expected, SYSTEMD_DIRECTORY, Thing},
    machine_config::API_VERSION,
    observation::{FileType, NotDeclarable, ObjectObservation, Observation, UnitObservation},
    xattr,
};
use fragment::{Config, Directory, File, Link, OwnerIds, UnitFragment};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

/// One thing whose present state is to be declared.
#[derive(Debug, Clone, Copy)]
pub struct Adoption<'a> {
    /// Its path; a unit's is that of its file.
    pub path: &'a Path,
    /// Its expectation; `None` for an undeclared thing (an unexpected drop-in).
    pub expectation: Option<&'a Expectation>,
    /// Its observation.
    pub observation: &'a Observation,
    /// A regular file's content; `None` if it may be secret.
    pub bytes: Option<&'a [u8]>,
}

/// A generated MachineConfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// A MachineConfig manifest.
    pub yaml: String,
    /// The things that it does not declare, in the order of the input.
    pub left_out: Vec<LeftOut>,
}

/// Why there is no fragment at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// A file was changed between the reading of its metadata and of its content.
    #[error("{}: content: it changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The fragment could not be written as YAML.
    #[error("MachineConfig {name}: {reason}")]
    Yaml {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

/// Creates a MachineConfig of a name and a role that declares the present state of the things.
///
/// # Errors
/// A file that changed after the observation.
pub fn adopt(name: &str, role: &str, adoptions: &[Adoption<'_>]) -> Result<Fragment, AdoptError> {
    let mut made = FragmentMaker { config: Config::default(), left_out: Vec::new() };
    for adoption in adoptions {
        made.add(adoption)?;
    }
    made.config.sort();
    let yaml = made
        .config
        .to_yaml(API_VERSION, name, role)
        .map_err(|error| AdoptError::Yaml { name: name.to_owned(), reason: error.to_string() })?;
    Ok(Fragment { yaml, left_out: made.left_out })
}

struct FragmentMaker {
    config: Config,
    left_out: Vec<LeftOut>,
}

impl FragmentMaker {
    fn leave_out(&mut self, path: &Path, reason: impl Into<LeftOutReason>) {
        self.left_out.push(LeftOut { path: path.to_owned(), reason: reason.into() });
    }

    fn add(&mut self, adoption: &Adoption<'_>) -> Result<(), AdoptError> {
        let path = adoption.path;
        match adoption.observation {
            Observation::Object(object) => self.object(adoption, object)?,
            Observation::Unit(unit) => self.unit(path, adoption.expectation, unit),
            other => match other.not_declarable() {
                Some(NotDeclarable::Missing) => {
                    let by = adoption.expectation.map(|expectation| expectation.source.name());
                    let by = by.unwrap_or("the config that declares it").to_owned();
                    self.leave_out(path, LeftOutReason::Missing(by));
                }
                Some(reason) => self.leave_out(path, reason),
                None => {}
            },
        }
        Ok(())
    }

    fn object(&mut self, adoption: &Adoption<'_>, object: &ObjectObservation) -> Result<(), AdoptError> {
        let path = adoption.path;
        let Some(text) = path.to_str() else {
            self.leave_out(path, LeftOutReason::PathNotUtf8);
            return Ok(());
        };
        let owner = OwnerIds { user: object.uid, group: object.gid };
        match object.file_type {
            FileType::Regular => {
                let Some(bytes) = adoption.bytes else {
                    self.leave_out(path, LeftOutReason::Withheld);
                    return Ok(());
                };
                if object.sha256.is_some_and(|sum| sum != *Sha256::digest(bytes)) {
                    return Err(AdoptError::Changed { path: path.to_owned() });
                }
                self.regular(adoption, text, object, bytes);
            }
            FileType::Directory => {
                self.config.directories.push(Directory { path: text.to_owned(), mode: object.mode, owner });
            }
            FileType::Symlink => match object.target.as_deref().map(Path::to_str) {
                Some(Some(target))
                    if path.parent() == Some(Path::new(SYSTEMD_DIRECTORY)) && target == "/dev/null" =>
                {
                    self.config.unit(file_name(path)).mask = Some(true);
                }
                Some(Some(target)) => {
                    self.config.links.push(Link { path: text.to_owned(), target: target.to_owned(), owner });
                }
                _ => self.leave_out(path, LeftOutReason::LinkTarget),
            },
            _ => self.leave_out(path, LeftOutReason::OtherType),
        }
        for what in undeclarable(object) {
            self.leave_out(path, what);
        }
        Ok(())
    }

    fn regular(&mut self, adoption: &Adoption<'_>, text: &str, object: &ObjectObservation, bytes: &[u8]) {
        let path = adoption.path;
        if let Some(user) = keys_of(adoption.expectation) {
            let keys = std::str::from_utf8(bytes).unwrap_or_default().lines().map(str::trim);
            let keys = keys.filter(|line| authorized_keys::parse_line(line.as_bytes()).is_ok());
            self.config.keys(&user).extend(keys.map(str::to_owned));
            self.leave_out(path, LeftOutReason::OnlyKeys);
            return;
        }
        // A unit or drop-in of a MachineConfig is owned by root and has the mode 0644. Any other is declared as a file.
        let plain = object.mode == 0o644 && object.uid == 0 && object.gid == 0;
        if let (true, Some((unit, dropin)), Ok(contents)) =
            (plain, unit_path(path), std::str::from_utf8(bytes))
        {
            let unit = self.config.unit(&unit);
            match dropin {
                Some(dropin) => unit.dropins.push((dropin, contents.to_owned())),
                None => unit.contents = Some(contents.to_owned()),
            }
            return;
        }
        if object.mode > 0o777 {
            self.leave_out(path, LeftOutReason::SpecialBits);
            return;
        }
        self.config.files.push(File {
            path: text.to_owned(),
            mode: object.mode,
            owner: OwnerIds { user: object.uid, group: object.gid },
            source: data_url::encode(bytes),
        });
    }

    fn unit(&mut self, path: &Path, expectation: Option<&Expectation>, seen: &UnitObservation) {
        let name = match expectation.map(|expectation| &expectation.thing) {
            Some(Thing::Unit { name }) => name.clone(),
            _ => file_name(path).to_owned(),
        };
        let unit: &mut UnitFragment = self.config.unit(&name);
        unit.mask = Some(seen.masked);
        if seen.masked {
            return;
        }
        match seen.file_state.as_deref() {
            Some("enabled") => unit.enabled = Some(true),
            Some("disabled") => unit.enabled = Some(false),
            state => {
                let state = state.unwrap_or("not-found").to_owned();
                self.leave_out(path, LeftOutReason::UnitState(state));
            }
        }
    }
}

/// The user of a file of keys.
fn keys_of(expectation: Option<&Expectation>) -> Option<String> {
    match &expectation?.expected {
        Expected::AuthorizedKeys(keys) => Some(keys.user.clone()),
        Expected::File(file) if file.layout_free => match &file.user {
            crate::expectation::Owner::Name(name) => Some(name.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// The names of the unit and of the drop-in, if the path is one of these.
fn unit_path(path: &Path) -> Option<(String, Option<String>)> {
    let below = path.strip_prefix(SYSTEMD_DIRECTORY).ok()?.to_str()?;
    match below.split_once('/') {
        None if below.contains('.') => Some((below.to_owned(), None)),
        Some((directory, dropin)) if !dropin.contains('/') => {
            let is_conf = Path::new(dropin).extension().is_some_and(|end| end == "conf");
            let unit = directory.strip_suffix(".d").filter(|unit| unit.contains('.') && is_conf)?;
            Some((unit.to_owned(), Some(dropin.to_owned())))
        }
        _ => None,
    }
}

/// The last component of a path.
fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn undeclarable(object: &ObjectObservation) -> Vec<Undeclarable> {
    let xattrs = object.xattrs.iter().filter(|(name, value)| !xattr::is_ignored(name, value));
    let mut found: Vec<Undeclarable> =
        xattrs.map(|(name, _)| Undeclarable::ExtendedAttribute(name.clone())).collect();
    found.extend(object.attributes.iter().map(|flag| Undeclarable::Attribute(flag.clone())));
    if object.mounted_over {
        found.push(Undeclarable::Mount);
    }
    found
}
