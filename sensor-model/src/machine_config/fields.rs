//! The fields that a MachineConfig has, and the kinds of its API.
//!
//! In: an object. Out: its unknown fields, each with the reason. The fields that an API server adds in `metadata` and
//! `status` are known. The Ignition parser reports unknown fields of the Ignition config.

use super::{error::ManifestFault, manifest::API_VERSION};
use crate::unknown::{UnknownField, nearest, unknown_field};
use serde_json::{Map, Value};

const OBJECT: &[&str] = &["apiVersion", "kind", "metadata", "spec", "status"];

const SPEC: &[&str] = &[
    "baseOSExtensionsContainerImage",
    "config",
    "extensions",
    "fips",
    "kernelArguments",
    "kernelType",
    "osImageURL",
];

/// Kubernetes' `ObjectMeta`.
const METADATA: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Unknown fields of a MachineConfig outside its Ignition config, each with the reason.
pub(super) fn unknown(object: &Map<String, Value>) -> Vec<(String, ManifestFault)> {
    let mut unknown = Vec::new();
    let mut check = |at: &str, known: &'static [&'static str], map: &Map<String, Value>| {
        let others = map.keys().filter(|key| !known.contains(&key.as_str()));
        unknown.extend(others.map(|key| (format!("{at}{key}"), unknown_field(key, known).into())));
    };
    check("", OBJECT, object);
    for (at, known) in [("metadata", METADATA), ("spec", SPEC)] {
        if let Some(Value::Object(map)) = object.get(at) {
            check(&format!("{at}."), known, map);
        }
    }
    unknown
}

/// Whether an object is a MachineConfig as the Machine Config Operator's daemon stores it on its node: its Go type loses `kind` and
/// `apiVersion` when a client reads it from the API.
pub(super) fn is_stored_by_operator(object: &Map<String, Value>) -> bool {
    let spec = object.get("spec").and_then(Value::as_object);
    object.keys().all(|key| ["metadata", "spec", "status"].contains(&key.as_str()))
        && object.contains_key("metadata")
        && spec.is_some_and(|spec| spec.contains_key("config"))
}

/// The reason to refuse a field that is probably a misspelt `kind` or `ignition`.
pub(super) fn meant_as_head(field: &str) -> Option<UnknownField> {
    let near = nearest(field, &["kind", "ignition"])?;
    (near != field).then_some(UnknownField::Near(near))
}

/// Known kinds, which are never taken for a misspelt one.
const KINDS: [&str; 11] = [
    "MachineConfig",
    "ContainerRuntimeConfig",
    "ControllerConfig",
    "InternalReleaseImage",
    "KubeletConfig",
    "List",
    "MachineConfigNode",
    "MachineConfigPool",
    "MachineOSBuild",
    "MachineOSConfig",
    "PinnedImageSet",
];

/// The fields by which an object of another kind is probably a misspelt MachineConfig, each with the reason.
pub(super) fn meant_otherwise(
    kind: &str,
    api_version: &str,
    object: &Map<String, Value>,
) -> Vec<(String, ManifestFault)> {
    const LIST: &[&str] = &["apiVersion", "items", "kind", "metadata"];
    let ours = API_VERSION.split('/').next().unwrap_or_default();
    let group = api_version.split('/').next().unwrap_or_default();
    let is_core = ["", "v1"].contains(&group);
    let near = nearest(kind, &KINDS);
    // Another API group may have a kind of this name.
    if near == Some("MachineConfig") && group != ours && (is_core || nearest(group, &[ours]).is_some()) {
        return vec![("apiVersion".to_owned(), ManifestFault::Api(API_VERSION))];
    }
    if !is_core && group != ours {
        return Vec::new();
    }
    if kind.ends_with("List") {
        // The list has no `items`, or it would have been split before.
        let others = object.keys().filter(|key| !LIST.contains(&key.as_str()));
        return others.map(|key| (key.clone(), unknown_field(key, LIST).into())).collect();
    }
    let near = near.filter(|near| *near != kind);
    near.map(|near| ("kind".to_owned(), ManifestFault::Kind(near))).into_iter().collect()
}
