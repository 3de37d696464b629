//! Whether a change of `registries.conf` can break image pulls of running workloads.
//!
//! In: the old and the new file, decoded. Out: whether every image pull that works today gets the same image afterwards, with the
//! numbers of the rules that decided. A mirror that is used only for digests cannot return another image. Every change that no
//! rule allows is unsafe. The module does not choose an action.
//!
//! 1. `unqualified-search-registries` only gets longer at its end.
//! 2. No registry is removed. Its key is the prefix, or the location if there is no prefix.
//! 3. A registry that stays keeps its prefix, location, `blocked`, `insecure` and mirrors. A mirror may become `digest-only`.
//!    A new mirror is `digest-only`, or the registry has `mirror-by-digest-only`.
//! 4. A new registry has only `digest-only` mirrors; one without mirrors has `mirror-by-digest-only`.
//! 5. Nothing else changes.

#[cfg(test)]
mod tests;

use crate::text::quote;
use std::{collections::BTreeMap, str::Utf8Error};
use toml::{Table, Value};

/// The path of the file.
pub const PATH: &str = "/etc/containers/registries.conf";

/// The value of `pull-from-mirror` that limits a mirror to digests.
const DIGEST_ONLY: &str = "digest-only";

/// The judgement about a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Every pull that works today gets the same image afterwards.
    pub safe: bool,
    /// The reasons, each with the number of its rule: every unsafe change, or else every safe one.
    pub because: Vec<String>,
}

/// A `registries.conf` that cannot be parsed. The text holds no value of the file except names of registries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistriesError {
    /// The file of the old config.
    #[error("the old registries.conf: {0}")]
    Old(RegistriesFault),
    /// The file of the new config.
    #[error("the new registries.conf: {0}")]
    New(RegistriesFault),
}

/// Why a `registries.conf` cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistriesFault {
    /// The file is not text.
    #[error("not UTF-8: {0}")]
    NotUtf8(#[from] Utf8Error),
    /// The file is not TOML, in the parser's words.
    #[error("{0}")]
    Toml(String),
    /// The value has another type.
    #[error("{key}: not {wanted}")]
    Type {
        /// The key.
        key: &'static str,
        /// The type that its value must have.
        wanted: &'static str,
    },
    /// The registry has no name.
    #[error("registry: neither prefix nor location")]
    NoName,
    /// A registry or a mirror has two entries.
    #[error("{kind}: {} has two entries", quote(name))]
    Twice {
        /// `registry` or `mirror`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

/// Judges a change. A missing file is the same as an empty one.
///
/// # Errors
/// Which of the two cannot be parsed, and why.
pub fn judge(old: &[u8], new: &[u8]) -> Result<Judgement, RegistriesError> {
    let old = Registries::parse(old).map_err(RegistriesError::Old)?;
    let new = Registries::parse(new).map_err(RegistriesError::New)?;
    let mut because = Vec::new();
    if !new.search.starts_with(&old.search) {
        because.push("rule 1: unqualified-search-registries changes otherwise than at its end".to_owned());
    }
    let mut safe = Vec::new();
    if new.search.len() > old.search.len() {
        safe.push("rule 1: unqualified-search-registries only gets longer at its end".to_owned());
    }
    for (key, registry) in &old.named {
        match new.named.get(key) {
            None => because.push(format!("rule 2: registry {} is removed", quote(key))),
            Some(new) if new != registry => {
                let change = stays(registry, new);
                let reason = |what: String| format!("rule 3: registry {}: {what}", quote(key));
                because.extend(change.harmful.into_iter().map(reason));
                safe.extend(change.harmless.into_iter().map(reason));
            }
            Some(_) => {}
        }
    }
    for (key, registry) in new.named.iter().filter(|(key, _)| !old.named.contains_key(*key)) {
        let harmless = match &registry.mirrors[..] {
            [] => registry.digest_only,
            mirrors => mirrors.iter().all(Mirror::digest_only),
        };
        let list = if harmless { &mut safe } else { &mut because };
        let what = if harmless { "only for digests" } else { "also for tags" };
        list.push(format!("rule 4: registry {} is added, its mirrors are used {what}", quote(key)));
    }
    if old.rest != new.rest {
        let mut keys: Vec<&String> = old.rest.keys().chain(new.rest.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys.into_iter().filter(|key| old.rest.get(*key) != new.rest.get(*key)) {
            because.push(format!("rule 5: {} changes", quote(key)));
        }
    }
    if because.is_empty() {
        if safe.is_empty() {
            safe.push("its content means the same".to_owned());
        }
        return Ok(Judgement { safe: true, because: safe });
    }
    Ok(Judgement { safe: false, because })
}

/// The changes of a registry that is in both files.
#[derive(Debug, Default)]
struct RegistryChange {
    harmful: Vec<String>,
    harmless: Vec<String>,
}

/// Rule 3.
fn stays(old: &Registry, new: &Registry) -> RegistryChange {
    let mut change = RegistryChange::default();
    for (name, same) in [
        ("prefix", old.prefix == new.prefix),
        ("location", old.location == new.location),
        ("blocked", old.blocked == new.blocked),
        ("insecure", old.insecure == new.insecure),
        ("another key", old.rest == new.rest),
    ] {
        if !same {
            change.harmful.push(format!("{name} changes"));
        }
    }
    match (old.digest_only, new.digest_only) {
        (true, false) => change.harmful.push("mirror-by-digest-only changes".to_owned()),
        (false, true) => change.harmless.push("mirror-by-digest-only becomes true".to_owned()),
        _ => {}
    }
    for mirror in &old.mirrors {
        let location = quote(&mirror.location);
        let now = new.mirrors.iter().find(|other| other.location == mirror.location);
        let Some(now) = now else {
            change.harmful.push(format!("mirror {location} is removed"));
            continue;
        };
        if now.pull != mirror.pull {
            if now.digest_only() {
                change.harmless.push(format!("mirror {location} becomes digest-only"));
            } else {
                let what = format!("mirror {location} changes pull-from-mirror, and not to digest-only");
                change.harmful.push(what);
            }
        }
        if now.rest != mirror.rest {
            change.harmful.push(format!("mirror {location} changes otherwise"));
        }
    }
    let is_in =
        |mirrors: &[Mirror], mirror: &Mirror| mirrors.iter().any(|other| other.location == mirror.location);
    for mirror in new.mirrors.iter().filter(|mirror| !is_in(&old.mirrors, mirror)) {
        let location = quote(&mirror.location);
        if mirror.digest_only() || new.digest_only {
            change.harmless.push(format!("mirror {location} is added, only for digests"));
        } else {
            change.harmful.push(format!("mirror {location} is added, also for tags"));
        }
    }
    let order = |one: &Registry, other: &Registry| -> Vec<String> {
        let both = one.mirrors.iter().filter(|mirror| is_in(&other.mirrors, mirror));
        both.map(|mirror| mirror.location.clone()).collect()
    };
    if order(old, new) != order(new, old) {
        change.harmless.push("its mirrors have another order".to_owned());
    }
    change
}

/// The content of the file.
#[derive(Debug, Default)]
struct Registries {
    search: Vec<String>,
    /// By prefix, or by location without one.
    named: BTreeMap<String, Registry>,
    /// Every other key.
    rest: Table,
}

#[derive(Debug, PartialEq)]
struct Registry {
    prefix: String,
    location: String,
    blocked: bool,
    insecure: bool,
    /// `mirror-by-digest-only`.
    digest_only: bool,
    mirrors: Vec<Mirror>,
    rest: Table,
}

#[derive(Debug, PartialEq)]
struct Mirror {
    location: String,
    /// `pull-from-mirror`.
    pull: String,
    rest: Table,
}

impl Mirror {
    fn digest_only(&self) -> bool {
        self.pull == DIGEST_ONLY
    }
}

impl Registries {
    fn parse(bytes: &[u8]) -> Result<Self, RegistriesFault> {
        let text = std::str::from_utf8(bytes)?;
        // Only the message: the full error quotes the line, which may hold a password in a URL.
        let mut rest: Table =
            toml::from_str(text).map_err(|error| RegistriesFault::Toml(error.message().to_owned()))?;
        let mut found = Self::default();
        for value in list(&mut rest, "unqualified-search-registries")? {
            let Value::String(name) = value else {
                let (key, wanted) = ("unqualified-search-registries", "a list of texts");
                return Err(RegistriesFault::Type { key, wanted });
            };
            found.search.push(name);
        }
        for value in list(&mut rest, "registry")? {
            let registry = Registry::read(value)?;
            let named = [&registry.prefix, &registry.location].into_iter().find(|name| !name.is_empty());
            let key = named.ok_or(RegistriesFault::NoName)?.clone();
            if found.named.insert(key.clone(), registry).is_some() {
                return Err(RegistriesFault::Twice { kind: "registry", name: key });
            }
        }
        found.rest = rest;
        Ok(found)
    }
}

impl Registry {
    fn read(value: Value) -> Result<Self, RegistriesFault> {
        let not_a_table = |key| RegistriesFault::Type { key, wanted: "a table" };
        let Value::Table(mut rest) = value else { return Err(not_a_table("registry")) };
        let mut mirrors: Vec<Mirror> = Vec::new();
        for value in list(&mut rest, "mirror")? {
            let Value::Table(mut rest) = value else { return Err(not_a_table("mirror")) };
            let location = text(&mut rest, "location")?;
            if mirrors.iter().any(|other| other.location == location) {
                return Err(RegistriesFault::Twice { kind: "mirror", name: location });
            }
            mirrors.push(Mirror { location, pull: text(&mut rest, "pull-from-mirror")?, rest });
        }
        Ok(Self {
            prefix: text(&mut rest, "prefix")?,
            location: text(&mut rest, "location")?,
            blocked: flag(&mut rest, "blocked")?,
            insecure: flag(&mut rest, "insecure")?,
            digest_only: flag(&mut rest, "mirror-by-digest-only")?,
            mirrors,
            rest,
        })
    }
}

fn list(table: &mut Table, key: &'static str) -> Result<Vec<Value>, RegistriesFault> {
    match table.remove(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(RegistriesFault::Type { key, wanted: "a list" }),
    }
}

fn text(table: &mut Table, key: &'static str) -> Result<String, RegistriesFault> {
    match table.remove(key) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(RegistriesFault::Type { key, wanted: "a text" }),
    }
}

fn flag(table: &mut Table, key: &'static str) -> Result<bool, RegistriesFault> {
    match table.remove(key) {
        None => Ok(false),
        Some(Value::Boolean(flag)) => Ok(flag),
        Some(_) => Err(RegistriesFault::Type { key, wanted: "true or false" }),
    }
}
