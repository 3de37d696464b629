//! From an untyped document to MachineConfigs and other objects.
//!
//! In: a document. Out: its objects, added to a manifest, or the first invalid field.

use super::{
    error::{JsonType, ManifestError, ManifestFault},
    fields,
    manifest::{API_VERSION, MachineConfig, Manifest, OtherObject},
};
use crate::{
    expectation::Source,
    ignition::{self, Dialect, IgnitionError, Purpose},
    text::quote,
};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Lists may contain lists. More levels than this are a mistake or an attack.
const MAXIMUM_LIST_DEPTH: usize = 4;

/// Kinds of kernel that exist.
const KERNEL_TYPES: [&str; 4] = ["", "default", "realtime", "64k-pages"];

/// Extensions that exist.
const EXTENSIONS: &[&str] =
    &["two-node-ha", "ipsec", "usbguard", "kerberos", "kernel-devel", "sandboxed-containers", "sysstat"];

pub(super) fn read(
    origin: &str,
    place: &str,
    document: Value,
    purpose: Purpose,
    manifest: &mut Manifest,
) -> Result<(), ManifestError> {
    read_nested(origin, place, document, purpose, manifest, 0)
}

fn read_nested(
    origin: &str,
    place: &str,
    document: Value,
    purpose: Purpose,
    manifest: &mut Manifest,
    depth: usize,
) -> Result<(), ManifestError> {
    let reader = ObjectReader { origin, object: place.to_owned(), purpose };
    let Value::Object(mut object) = document else {
        return Err(reader.error("content", ManifestFault::NotA(JsonType::Object)));
    };
    if object.contains_key("ignition") && !object.contains_key("kind") {
        return plain(origin, &Value::Object(object), purpose, manifest);
    }
    if fields::is_stored_by_operator(&object) {
        object.insert("kind".to_owned(), "MachineConfig".into());
        object.insert("apiVersion".to_owned(), API_VERSION.into());
    }
    let Some(kind) = object.get("kind").and_then(Value::as_str).map(str::to_owned) else {
        let meant = object.keys().find_map(|key| Some((key.as_str(), fields::meant_as_head(key)?.into())));
        let (field, reason) = meant.unwrap_or(("kind", ManifestFault::MissingOrNotA(JsonType::String)));
        return Err(reader.error(field, reason));
    };
    let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    if kind.ends_with("List") && object.contains_key("items") {
        if depth == MAXIMUM_LIST_DEPTH {
            return Err(reader.error("items", ManifestFault::NestedLists));
        }
        let items = match object.remove("items") {
            Some(Value::Array(items)) => items,
            Some(Value::Null) => Vec::new(),
            _ => return Err(reader.error("items", ManifestFault::NotA(JsonType::List))),
        };
        for (index, mut item) in items.into_iter().enumerate() {
            // Items of a typed list may omit kind and apiVersion, which the list has.
            if let (Some(item_kind), Some(item)) = (kind.strip_suffix("List"), item.as_object_mut())
                && !item_kind.is_empty()
            {
                item.entry("kind").or_insert_with(|| item_kind.into());
                item.entry("apiVersion").or_insert_with(|| api_version.clone().into());
            }
            read_nested(origin, &format!("{place}, items[{index}]"), item, purpose, manifest, depth + 1)?;
        }
        return Ok(());
    }
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
    let group = api_version.split('/').next().unwrap_or_default();
    // A MachineConfig without an apiVersion is meant as the operator's: it is refused below, not ignored.
    if kind == "MachineConfig" && (api_version.is_empty() || Some(group) == API_VERSION.split('/').next()) {
        let name = name.unwrap_or_default().to_owned();
        let object_name = if name.is_empty() {
            format!("MachineConfig in {place}")
        } else {
            format!("MachineConfig {}", quote(&name))
        };
        let reader = ObjectReader { origin, object: object_name, purpose };
        let unknown = fields::unknown(&object);
        // A misspelt field is reported first: the missing value is probably in it.
        if let (true, Some((field, reason))) = (api_version.is_empty() || name.is_empty(), unknown.first()) {
            return Err(reader.error(field, reason.clone()));
        }
        if api_version != API_VERSION {
            let reason = ManifestFault::ApiVersion { found: api_version, supported: API_VERSION };
            return Err(reader.error("apiVersion", reason));
        }
        crate::path::check_name(&name).map_err(|reason| reader.error("metadata.name", reason))?;
        manifest.unknown.extend(reader.unknown(unknown));
        let (config, unknown) = reader.machine_config(name, &object)?;
        manifest.machine_configs.push(config);
        manifest.unknown.extend(unknown);
        return Ok(());
    }
    manifest.unknown.extend(reader.unknown(fields::meant_otherwise(&kind, &api_version, &object)));
    manifest.others.push(OtherObject {
        api_version,
        kind,
        name: name.unwrap_or_default().to_owned(),
        origin: origin.to_owned(),
        value: Value::Object(object),
    });
    Ok(())
}

fn plain(
    origin: &str,
    config: &Value,
    purpose: Purpose,
    manifest: &mut Manifest,
) -> Result<(), ManifestError> {
    let name = origin.rsplit('/').next().unwrap_or(origin);
    let reader = ObjectReader { origin, object: format!("Ignition config {}", quote(name)), purpose };
    let parsed = ignition::parse_for(config, Dialect::Plain, purpose)
        .map_err(|error| reader.error(&error.field, error.reason))?;
    manifest.unknown.extend(reader.unknown(pairs(parsed.unknown, "")));
    manifest.machine_configs.push(MachineConfig {
        source: Source::new(name, origin),
        dialect: Dialect::Plain,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        kernel_arguments: Vec::new(),
        config: Some(parsed.config),
        kernel_type: None,
        extensions: Vec::new(),
        fips: false,
        os_image_url: None,
        base_os_extensions_container_image: None,
        warnings: parsed.warnings,
    });
    Ok(())
}

/// Unknown fields of an Ignition config, with the config's place in its object in front.
fn pairs(unknown: Vec<IgnitionError>, at: &str) -> Vec<(String, ManifestFault)> {
    unknown.into_iter().map(|error| (format!("{at}{}", error.field), error.reason.into())).collect()
}

/// Reads the fields of one object, and names the object in errors.
struct ObjectReader<'a> {
    origin: &'a str,
    object: String,
    purpose: Purpose,
}

impl ObjectReader<'_> {
    fn error(&self, field: &str, reason: impl Into<ManifestFault>) -> ManifestError {
        ManifestError {
            origin: self.origin.to_owned(),
            object: self.object.clone(),
            field: field.to_owned(),
            reason: Box::new(reason.into()),
        }
    }

    fn unknown(&self, fields: Vec<(String, ManifestFault)>) -> impl Iterator<Item = ManifestError> {
        fields.into_iter().map(|(field, reason)| self.error(&field, reason))
    }

    /// The object, and unknown fields of its Ignition config.
    fn machine_config(
        &self,
        name: String,
        object: &Map<String, Value>,
    ) -> Result<(MachineConfig, Vec<ManifestError>), ManifestError> {
        let none = Map::new();
        let spec = match object.get("spec") {
            None | Some(Value::Null) => &none,
            Some(Value::Object(spec)) => spec,
            Some(_) => return Err(self.error("spec", ManifestFault::NotA(JsonType::Object))),
        };
        let (mut warnings, mut unknown) = (Vec::new(), Vec::new());
        let config = match spec.get("config") {
            None | Some(Value::Null) => None,
            // For the Machine Config Operator an empty config is the same as none.
            Some(Value::Object(config)) if config.is_empty() => None,
            Some(config) if !config.is_object() => {
                return Err(self.error("spec.config", ManifestFault::NotA(JsonType::Object)));
            }
            Some(config) => {
                let parsed = ignition::parse_for(config, Dialect::MachineConfig, self.purpose)
                    .map_err(|error| self.error(&format!("spec.config.{}", error.field), error.reason))?;
                unknown.extend(self.unknown(pairs(parsed.unknown, "spec.config.")));
                warnings.extend(parsed.warnings.into_iter().map(|warning| format!("spec.config: {warning}")));
                Some(parsed.config)
            }
        };
        let kernel_type = self.string(spec, "kernelType")?;
        if let Some(kind) = &kernel_type
            && !KERNEL_TYPES.contains(&kind.as_str())
        {
            return Err(self.error("spec.kernelType", ManifestFault::KernelType(kind.clone())));
        }
        let extensions = self.strings(spec, "extensions")?;
        if let Some((index, extension)) =
            extensions.iter().enumerate().find(|(_, extension)| !EXTENSIONS.contains(&extension.as_str()))
        {
            let reason = ManifestFault::Extension { extension: extension.clone(), known: EXTENSIONS };
            return Err(self.error(&format!("spec.extensions[{index}]"), reason));
        }
        let fips = match spec.get("fips") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(fips)) => *fips,
            Some(_) => return Err(self.error("spec.fips", ManifestFault::NotA(JsonType::Boolean))),
        };
        let config = MachineConfig {
            source: Source::new(name, self.origin),
            dialect: Dialect::MachineConfig,
            labels: self.map(object, "labels")?,
            annotations: self.map(object, "annotations")?,
            config,
            kernel_arguments: self.strings(spec, "kernelArguments")?,
            kernel_type: kernel_type.filter(|kind| !kind.is_empty()),
            extensions,
            fips,
            os_image_url: self.string(spec, "osImageURL")?.filter(|url| !url.is_empty()),
            base_os_extensions_container_image: self
                .string(spec, "baseOSExtensionsContainerImage")?
                .filter(|image| !image.is_empty()),
            warnings,
        };
        Ok((config, unknown))
    }

    fn string(&self, spec: &Map<String, Value>, field: &str) -> Result<Option<String>, ManifestError> {
        match spec.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.error(&format!("spec.{field}"), ManifestFault::NotA(JsonType::String))),
        }
    }

    fn strings(&self, spec: &Map<String, Value>, field: &str) -> Result<Vec<String>, ManifestError> {
        match spec.get(field) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => items
                .iter()
                .enumerate()
                .map(|(index, item)| {
                    let reason = ManifestFault::NotA(JsonType::String);
                    let text = item.as_str().map(str::to_owned);
                    text.ok_or_else(|| self.error(&format!("spec.{field}[{index}]"), reason))
                })
                .collect(),
            Some(_) => Err(self.error(&format!("spec.{field}"), ManifestFault::NotA(JsonType::List))),
        }
    }

    fn map(
        &self,
        object: &Map<String, Value>,
        field: &str,
    ) -> Result<BTreeMap<String, String>, ManifestError> {
        match object.get("metadata").and_then(|metadata| metadata.get(field)) {
            None | Some(Value::Null) => Ok(BTreeMap::new()),
            Some(Value::Object(entries)) => entries
                .iter()
                .map(|(key, value)| {
                    let reason = ManifestFault::NotA(JsonType::String);
                    let text = value.as_str().map(|text| (key.clone(), text.to_owned()));
                    text.ok_or_else(|| self.error(&format!("metadata.{field}.{key}"), reason))
                })
                .collect(),
            Some(_) => Err(self.error(&format!("metadata.{field}"), ManifestFault::NotA(JsonType::Object))),
        }
    }
}
