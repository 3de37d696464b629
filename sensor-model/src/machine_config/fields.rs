//! The fields that a MachineConfig has, and the kinds of its API.
//!
//! In: an object. Out: fields that it should not have, each with the reason. What an API server writes beside the
//! declaration, in `metadata` and `status`, is known; the parts of an Ignition config are its parser's.

use super::manifest::API_VERSION;
use crate::unknown::{nearest, reason};
use serde_json::{Map, Value};

const OBJECT: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

const SPEC: [&str; 7] = [
    "baseOSExtensionsContainerImage",
    "config",
    "extensions",
    "fips",
    "kernelArguments",
    "kernelType",
    "osImageURL",
];

/// Kubernetes' `ObjectMeta`.
const METADATA: [&str; 15] = [
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

/// Unknown fields of a MachineConfig but of its Ignition config: where, and why.
pub(super) fn unknown(object: &Map<String, Value>) -> Vec<(String, String)> {
    let mut unknown = Vec::new();
    let mut check = |at: &str, known: &[&str], map: &Map<String, Value>| {
        let strangers = map.keys().filter(|key| !known.contains(&key.as_str()));
        unknown.extend(strangers.map(|key| (format!("{at}{key}"), reason(key, known))));
    };
    check("", &OBJECT, object);
    for (at, known) in [("metadata", &METADATA[..]), ("spec", &SPEC)] {
        if let Some(Value::Object(map)) = object.get(at) {
            check(&format!("{at}."), known, map);
        }
    }
    unknown
}

/// Why a field was meant to say what an object is: its kind, or that it is an Ignition config.
pub(super) fn meant_as_head(field: &str) -> Option<String> {
    let near = nearest(field, &["kind", "ignition"])?;
    (near != field).then(|| format!("unknown field; did you mean {near}?"))
}

/// Kinds that are no typing errors.
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

/// What makes an object that is no MachineConfig look like one that was meant: where, and why.
pub(super) fn meant_otherwise(
    kind: &str,
    api_version: &str,
    object: &Map<String, Value>,
) -> Vec<(String, String)> {
    const LIST: [&str; 4] = ["apiVersion", "items", "kind", "metadata"];
    let ours = API_VERSION.split('/').next().unwrap_or_default();
    let group = api_version.split('/').next().unwrap_or_default();
    let is_core = ["", "v1"].contains(&group);
    let near = nearest(kind, &KINDS);
    // Other APIs may have a kind of this name.
    if near == Some("MachineConfig") && group != ours && (is_core || nearest(group, &[ours]).is_some()) {
        return vec![("apiVersion".to_owned(), format!("unknown API; did you mean {API_VERSION}?"))];
    }
    if !is_core && group != ours {
        return Vec::new();
    }
    if kind.ends_with("List") {
        // It has no items, or it would have been taken apart.
        let strangers = object.keys().filter(|key| !LIST.contains(&key.as_str()));
        return strangers.map(|key| (key.clone(), reason(key, &LIST))).collect();
    }
    let near = near.filter(|near| *near != kind);
    near.map(|near| ("kind".to_owned(), format!("unknown kind; did you mean {near}?"))).into_iter().collect()
}
