//! The objects that Holdfast defines in the API.
//!
//! In: nothing. Out: the types of `holdfast.dev/v1alpha1` and their CustomResourceDefinitions, which `cargo xtask generate` writes to
//! `deploy/crds`. Fields are added, never renamed or removed.

mod policy;
mod report;

pub use policy::{
    ActorNames, DriftPolicy, DriftPolicySpec, DriftPolicyStatus, LabelExpression, LabelOperator, LabelRule,
    LinkName, NodeSelector, PolicyAction, PolicyRule, RefusingNode,
};
pub use report::{
    ChangedBy, ConfigState, Drift, DriftReport, DriftReportSpec, DriftReportStatus, DriftState, NewestDrift,
    PolicyState, ReportedConfig, ReportedGap, ReportedLogEntry, ReportedOsImage, ReportedPlan,
    ReportedPolicy, ReportedRewriting,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// Every CustomResourceDefinition with the name of its file.
pub fn definitions() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("driftpolicies.holdfast.dev.yaml", DriftPolicy::crd()),
        ("driftreports.holdfast.dev.yaml", DriftReport::crd()),
    ]
}
