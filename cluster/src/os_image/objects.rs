//! The objects of the cluster, as opinions.
//!
//! In: a `MachineOSBuild` and a `MachineConfig` of the Machine Config Operator, and a `BootcNode` of bootc-operator (`node.bootc.dev/v1alpha1`).
//! Out: the fields that are compared. An object without a required field is no opinion.

use super::opinions::{BootcNode, Build, OsFields};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

/// The name of the usual kernel.
const DEFAULT_KERNEL: &str = "default";

/// A `MachineOSBuild`.
pub(super) fn build(object: &DynamicObject) -> Option<Build> {
    Some(Build {
        name: object.name_any(),
        config: text(object, "/spec/machineConfig/name")?,
        image: text(object, "/status/digestedImagePushSpec"),
    })
}

/// A `BootcNode`.
pub(super) fn bootc_node(object: &DynamicObject) -> Option<BootcNode> {
    // Also `Staged`: then the node is not to boot the image yet.
    let is_to_boot = text(object, "/spec/desiredImageState")? == "Booted";
    let seen = object.data.pointer("/status/observedGeneration").and_then(Value::as_i64);
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    let is_idle = conditions.any(|condition| condition["type"] == "Idle" && condition["status"] == "True");
    Some(BootcNode {
        desired: text(object, "/spec/desiredImage")?,
        is_settled: is_to_boot && is_idle && seen == object.metadata.generation,
        booted: text(object, "/status/booted/image"),
        booted_digest: text(object, "/status/booted/imageDigest"),
    })
}

/// A `MachineConfig`.
pub(super) fn os_fields(object: &DynamicObject) -> OsFields {
    let kernel = text(object, "/spec/kernelType").filter(|kernel| kernel != DEFAULT_KERNEL);
    OsFields {
        os_image_url: text(object, "/spec/osImageURL").unwrap_or_default(),
        kernel_type: kernel.unwrap_or_default(),
        extensions: texts(object, "/spec/extensions").collect(),
        kernel_arguments: texts(object, "/spec/kernelArguments").collect(),
    }
}

fn text(object: &DynamicObject, pointer: &str) -> Option<String> {
    let text = object.data.pointer(pointer)?.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn texts(object: &DynamicObject, pointer: &str) -> impl Iterator<Item = String> {
    let list = object.data.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned))
}
