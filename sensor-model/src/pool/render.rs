//! The rendered MachineConfig of a pool.
//!
//! In: the selected MachineConfigs, and the cluster's images. Out: one MachineConfig that declares the same, every list sorted
//! by key. Its name consists of the pool and a hash of its spec, so the same content always has the same name.

use super::{ClusterImages, Pool, RenderError, select};
use crate::{
    machine_config::{API_VERSION, GENERATED_BY_ANNOTATION, MachineConfig},
    merge::{self, DECLARATIONS_ANNOTATION, Rendered, RenderedUnit, RenderedUser, Sourced},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// The Ignition spec in which rendered configs are written.
const SPEC_VERSION: &str = "3.5.0";

/// Prefix of the hashed bytes, so that the hash differs from hashes of other objects and of later forms.
const DOMAIN: &[u8] = b"holdfast.dev/rendered-config/v1\n";

/// Digits of the hash in a name: as many as the Machine Config Operator's MD5 has. They are the first digits of a SHA-256:
/// with MD5 an author could create two contents with one name.
const HASH_DIGITS: usize = 32;

const OVERRIDDEN_ANNOTATION: &str = "machineconfiguration.openshift.io/os-image-url-overridden";
const ORIGINAL_ANNOTATION: &str = "machineconfiguration.openshift.io/original-osimageurl";
const RELEASE_ANNOTATION: &str = "machineconfiguration.openshift.io/release-image-version";

/// The merge of a pool's MachineConfigs, as an object.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedMachineConfig {
    /// Its name.
    pub name: String,
    /// The whole object.
    pub object: Value,
    /// The MachineConfigs in it, in the order of the merge.
    pub sources: Vec<String>,
}

impl RenderedMachineConfig {
    /// The object as YAML.
    ///
    /// # Errors
    /// A value that YAML cannot represent.
    pub fn to_yaml(&self) -> Result<String, RenderError> {
        serde_saphyr::to_string(&self.object)
            .map_err(|error| RenderError::Unwritable { pool: self.name.clone(), reason: error.to_string() })
    }
}

/// Renders a pool. `version` is the program's, for an annotation of the object.
///
/// # Errors
/// See [`RenderError`].
pub fn render(
    pool: &Pool,
    configs: &[MachineConfig],
    images: &ClusterImages,
    version: &str,
) -> Result<RenderedMachineConfig, RenderError> {
    let merged = merge::merge(select(pool, configs)?)
        .map_err(|reason| RenderError::Merge { pool: pool.name.clone(), reason })?;
    let mut spec = spec(&merged, images)
        .map_err(|error| RenderError::Unwritable { pool: pool.name.clone(), reason: error.to_string() })?;
    spec.sort_all_objects();
    let hash = Sha256::new_with_prefix(DOMAIN).chain_update(spec.to_string()).finalize();
    let name = format!("rendered-{}-{}", pool.name, &hex::encode(hash)[..HASH_DIGITS]);
    let mut annotations = Map::new();
    annotations.insert(GENERATED_BY_ANNOTATION.to_owned(), version.into());
    if let Some(release) = &images.release_version {
        annotations.insert(RELEASE_ANNOTATION.to_owned(), release.clone().into());
    }
    if let (Some(_), Some(original)) = (&merged.os_image_url, &images.os_image_url) {
        annotations.insert(OVERRIDDEN_ANNOTATION.to_owned(), "true".into());
        annotations.insert(ORIGINAL_ANNOTATION.to_owned(), original.clone().into());
    }
    let declarations = declarations(&merged);
    if !declarations.is_empty() {
        let text = Value::Object(declarations).to_string();
        annotations.insert(DECLARATIONS_ANNOTATION.to_owned(), text.into());
    }
    let mut metadata = json!({ "annotations": annotations, "name": name });
    if let Some(uid) = &pool.uid {
        metadata["ownerReferences"] = json!([{
            "apiVersion": API_VERSION, "kind": "MachineConfigPool", "name": pool.name, "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        }]);
    }
    let mut object =
        json!({ "apiVersion": API_VERSION, "kind": "MachineConfig", "metadata": metadata, "spec": spec });
    object.sort_all_objects();
    let sources = merged.sources.into_iter().map(|source| source.machine_config.to_string()).collect();
    Ok(RenderedMachineConfig { name, object, sources })
}

fn spec(merged: &Rendered, images: &ClusterImages) -> Result<Value, serde_json::Error> {
    fn image<'a>(declared: Option<&'a Sourced<String>>, cluster: Option<&'a String>) -> &'a str {
        declared.map(|declared| &declared.value).or(cluster).map_or("", String::as_str)
    }
    fn values(list: &[Sourced<String>]) -> Vec<&str> {
        list.iter().map(|part| part.value.as_str()).collect()
    }
    let extensions_image = merged.base_os_extensions_container_image.as_ref();
    Ok(json!({
        "baseOSExtensionsContainerImage": image(extensions_image, images.extensions_image.as_ref()),
        "config": config(merged)?,
        "extensions": values(&merged.extensions),
        "fips": merged.fips.is_some(),
        "kernelArguments": values(&merged.kernel_arguments),
        "kernelType": merged.kernel_type.as_ref().map_or("default", |kind| kind.value.as_str()),
        "osImageURL": image(merged.os_image_url.as_ref(), images.os_image_url.as_ref()),
    }))
}

fn config(merged: &Rendered) -> Result<Value, serde_json::Error> {
    // Sections by their parent; the parent of top-level sections is "".
    let mut parents: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut put = |parent, key: &str, value| {
        parents.entry(parent).or_default().insert(key.to_owned(), value);
    };
    put("ignition", "version", SPEC_VERSION.into());
    for (section, value) in merged.fixed.sections() {
        let [parent, key] = section.pointer();
        put(parent, key, value.clone());
    }
    let mut files = Vec::new();
    for file in merged.files.values() {
        let mut file = file.value.file.clone();
        file.overwrite.get_or_insert(true);
        files.push(written(&file)?);
    }
    let directories: Result<Vec<Value>, _> =
        merged.directories.values().map(|directory| written(&directory.value)).collect();
    let links: Result<Vec<Value>, _> = merged.links.values().map(|link| written(&link.value)).collect();
    for (parent, key, list) in [
        ("storage", "files", files),
        ("storage", "directories", directories?),
        ("storage", "links", links?),
        ("systemd", "units", merged.units.iter().map(|(name, unit)| written_unit(name, unit)).collect()),
        ("passwd", "users", merged.users.values().map(written_user).collect::<Result<_, _>>()?),
    ] {
        if !list.is_empty() {
            put(parent, key, Value::Array(list));
        }
    }
    let mut config = parents.remove("").unwrap_or_default();
    config.extend(parents.into_iter().map(|(parent, map)| (parent.to_owned(), Value::Object(map))));
    Ok(Value::Object(config))
}

fn written(value: &impl Serialize) -> Result<Value, serde_json::Error> {
    Ok(without_nulls(serde_json::to_value(value)?))
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

fn written_unit(name: &str, unit: &RenderedUnit) -> Value {
    let dropins: Vec<Value> = unit
        .dropins
        .iter()
        .map(|(name, contents)| without_nulls(json!({ "name": name, "contents": contents.value })))
        .collect();
    without_nulls(json!({
        "name": name,
        "contents": unit.contents.as_ref().map(|part| &part.value),
        "enabled": unit.enabled.as_ref().map(|part| part.value),
        "mask": unit.mask.as_ref().map(|part| part.value),
        "dropins": (!dropins.is_empty()).then_some(dropins),
    }))
}

fn written_user(user: &RenderedUser) -> Result<Value, serde_json::Error> {
    let mut declared = user.user.clone();
    declared.ssh_authorized_keys =
        user.keys.as_ref().map(|keys| keys.iter().map(|key| key.value.clone()).collect());
    written(&declared)
}

/// The disruption that owners declare, with the content that it is about. The rendered config alone no longer says which
/// MachineConfig declares which content.
fn declarations(merged: &Rendered) -> Map<String, Value> {
    // If several MachineConfigs declare parts of a thing, no declaration is about the whole thing.
    fn paths<T>(merged: &Rendered, things: &BTreeMap<String, Sourced<T>>, name: &str) -> Vec<String> {
        let of_name = things.iter().filter(|(_, thing)| *thing.source.machine_config == *name);
        let alone = of_name.filter(|(path, _)| merged.shared.get(*path).is_none_or(BTreeSet::is_empty));
        alone.map(|(path, _)| path.clone()).collect()
    }
    let mut declared = Map::new();
    for (name, declaration) in &merged.declarations {
        let units = merged.units.iter().filter(|(_, unit)| unit.is_declared_by(name)).map(|(unit, _)| unit);
        let content = json!({
            "disruption": declaration.text,
            "labels": declaration.labels,
            "files": paths(merged, &merged.files, name),
            "directories": paths(merged, &merged.directories, name),
            "links": paths(merged, &merged.links, name),
            "units": units.collect::<Vec<_>>(),
        });
        declared.insert(name.clone(), content);
    }
    declared
}
