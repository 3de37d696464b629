//! The digest of what a rendered config declares.
//!
//! In: a rendered config. Out: a digest. Two configs with one digest have the same expectations. The form of the declaration does not
//! count: the order of fields and of named items, the encoding of a content, a default or an empty field. Names, labels and
//! annotations of MachineConfigs are no declarations. So two programs can compare the file in which a node keeps its config
//! with the object of the cluster.

#[cfg(test)]
mod tests;

use crate::{
    expectation::{Expectation, Expected, Owner, Thing},
    expectations::{DIRECTORY_MODE, FILE_MODE, file_bytes, group, mode, user},
    ignition::spec,
    machine_config::{ManifestError, parse_for},
    merge::{self, MergeError, Rendered, RenderedFile, RenderedUnit, RenderedUser, Sourced},
    os::arguments,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::{collections::HashMap, path::Path};

/// Prefix of the hashed bytes, so that the digest differs from digests of other objects and of later forms.
const DOMAIN: &[u8] = b"holdfast.dev/config-content/v1\n";

/// The form of a digest, before its colon. A later form gets another word.
const FORM: &str = "v1";

/// The digest of what a config declares: `v1:`, and 64 hexadecimal digits.
pub fn config_digest(config: &Rendered) -> String {
    config_digest_with(config, &[])
}

/// The same for a caller that has the config's expectations. Their contents have been decoded and hashed, which is most of the work.
/// A file that these do not name is decoded here.
pub fn config_digest_with(config: &Rendered, expectations: &[Expectation]) -> String {
    let hashes =
        expectations.iter().filter_map(|expectation| match (&expectation.thing, &expectation.expected) {
            (Thing::File { path }, Expected::File(file)) => Some((&**path, file.content.as_ref()?.sha256)),
            _ => None,
        });
    let mut content = content(config, &hashes.collect());
    content.sort_all_objects();
    let hash = Sha256::new_with_prefix(DOMAIN).chain_update(content.to_string()).finalize();
    format!("{FORM}:{}", hex::encode(hash))
}

/// Whether two digests are of the same declarations; `None` if their forms differ, because another version of Holdfast made one of them.
pub fn is_same_content(one: &str, other: &str) -> Option<bool> {
    let form = |digest: &str| digest.split_once(':').map(|(form, _)| form.to_owned());
    (form(one).is_some() && form(one) == form(other)).then(|| one == other)
}

/// Why the object of a cluster has no digest.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// It is no MachineConfig that Holdfast can use.
    #[error(transparent)]
    Object(#[from] ManifestError),
    /// It is a list, or an object of another kind.
    #[error("the object is not one MachineConfig")]
    NotOne,
    /// Its parts contradict each other.
    #[error(transparent)]
    Parts(#[from] MergeError),
}

/// The digest of the MachineConfig in these bytes, as [`config_digest`] gives it for a node whose only config it is. `origin` names the
/// object in errors.
///
/// # Errors
/// Why it has none.
pub fn digest_of_object(origin: &str, bytes: &[u8]) -> Result<String, DigestError> {
    let mut found = parse_for(origin, bytes, crate::ignition::Purpose::Verify)?.machine_configs;
    let (Some(config), true) = (found.pop(), found.is_empty()) else { return Err(DigestError::NotOne) };
    Ok(config_digest(&merge::rendered(config)?))
}

/// By path, the SHA-256 of each content that is known already.
type Hashes<'a> = HashMap<&'a Path, [u8; 32]>;

fn content(config: &Rendered, hashes: &Hashes<'_>) -> Value {
    let image = |image: &Option<Sourced<String>>| image.as_ref().map(|image| image.value.clone());
    let arguments = config.kernel_arguments.iter().map(|part| part.value.as_str());
    // Extensions have no order, and duplicates do not matter.
    let mut extensions: Vec<&str> = config.extensions.iter().map(|part| part.value.as_str()).collect();
    extensions.sort_unstable();
    extensions.dedup();
    json!({
        "files": objects(&config.files, |path, declared| file(declared, hashes.get(Path::new(path)).copied())),
        "directories": objects(&config.directories, |_, declared| directory(declared)),
        "links": objects(&config.links, |_, declared| link(declared)),
        "units": config.units.iter().filter_map(|(name, declared)| Some((name.clone(), unit(declared)?))).collect::<Map<_, _>>(),
        "users": config.users.iter().map(|(name, declared)| (name.clone(), account(declared))).collect::<Map<_, _>>(),
        "kernelArguments": arguments::words(arguments),
        "kernelType": config.kernel_type.as_ref().map(|kind| kind.value.as_str()).filter(|kind| *kind != "default"),
        "extensions": extensions,
        "fips": config.fips.is_some(),
        "osImageURL": image(&config.os_image_url),
        "baseOSExtensionsContainerImage": image(&config.base_os_extensions_container_image),
        "firstBoot": config.fixed.ordered().map(|(section, value)| (section.pointer().join("/"), value)).collect::<Map<_, _>>(),
    })
}

fn objects<'a, T>(
    declared: impl IntoIterator<Item = (&'a String, &'a Sourced<T>)>,
    of: impl Fn(&str, &T) -> Value,
) -> Map<String, Value>
where
    T: 'a,
{
    declared.into_iter().map(|(path, declared)| (path.clone(), of(path, &declared.value))).collect()
}

fn file(declared: &RenderedFile, known: Option<[u8; 32]>) -> Value {
    let file = &declared.file;
    let hash = match known {
        Some(hash) => Ok(Some(hash)),
        None => file_bytes(declared).map(|bytes| Some(Sha256::digest(bytes?).into())),
    };
    let content = match hash {
        Ok(hash) => json!({ "sha256": hash.map(hex::encode::<[u8; 32]>) }),
        // Nothing can be expected of such a content. Its text is all that two declarations can have in common.
        Err(_) => written(&file.contents),
    };
    json!({
        "content": content,
        "append": written(&file.append),
        "mode": mode(file.mode, FILE_MODE),
        "user": owner(&user(file.user.as_ref())),
        "group": owner(&group(file.group.as_ref())),
    })
}

fn directory(directory: &spec::Directory) -> Value {
    json!({
        "mode": mode(directory.mode, DIRECTORY_MODE),
        "user": owner(&user(directory.user.as_ref())),
        "group": owner(&group(directory.group.as_ref())),
    })
}

fn link(link: &spec::Link) -> Value {
    let is_hard = link.hard == Some(true);
    // A hard link has the owner of its target.
    let owned = (!is_hard).then(|| [owner(&user(link.user.as_ref())), owner(&group(link.group.as_ref()))]);
    json!({ "target": link.target, "hard": is_hard, "owner": owned })
}

/// The declared parts of a unit; `None` if there are none.
fn unit(unit: &RenderedUnit) -> Option<Value> {
    if *unit == RenderedUnit::default() {
        return None;
    }
    let flag = |flag: &Option<Sourced<bool>>| flag.as_ref().map(|flag| flag.value);
    let dropins = unit.dropins.iter();
    // For the expectations a drop-in without contents is the same as an empty one.
    let dropins = dropins.map(|(name, part)| (name.clone(), part.value.clone().unwrap_or_default().into()));
    Some(json!({
        "contents": unit.contents.as_ref().map_or("", |contents| contents.value.as_str()),
        "enabled": flag(&unit.enabled),
        "mask": flag(&unit.mask),
        "dropins": dropins.collect::<Map<_, _>>(),
    }))
}

fn account(declared: &RenderedUser) -> Value {
    // A declared list without keys allows no key. Without a list any key is allowed.
    let keys = declared.keys.as_ref();
    let keys = keys.map(|keys| keys.iter().map(|key| key.value.as_str()).collect::<Vec<_>>());
    json!({ "keys": keys, "account": written(&declared.user) })
}

fn owner(owner: &Owner) -> Value {
    match owner {
        Owner::Id(id) => (*id).into(),
        Owner::Name(name) => name.as_str().into(),
        Owner::Undeclared => Value::Null,
    }
}

/// The JSON of a part without empty fields.
fn written(part: &impl Serialize) -> Value {
    // The part was parsed from JSON, so it can be written as JSON.
    serde_json::to_value(part).ok().and_then(without_empty).unwrap_or_default()
}

fn without_empty(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then_some(Value::String(text)),
        Value::Array(items) => {
            let items: Vec<Value> = items.into_iter().filter_map(without_empty).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let fields = fields.into_iter().filter_map(|(key, value)| Some((key, without_empty(value)?)));
            let fields: Map<String, Value> = fields.collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        other => Some(other),
    }
}
