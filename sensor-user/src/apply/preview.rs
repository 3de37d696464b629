//! The plan between two configs in files, before any apply.
//!
//! In: the files of two configs, and disruption policies. Out: the plan as an apply makes it, its report, and both configs. It
//! changes nothing.

use super::past;
use crate::{
    desired::{DesiredError, Unknown, compared, disruption_policies, disruption_policy, side_name},
    image::{ImageUpdate, Images, UnitPrograms, image_update, unit_programs},
    observation::node,
};
use sensor_model::{
    expectations::ExpectationError,
    merge::Rendered,
    plan::{Plan, plan},
    reconcile,
};
use serde::Serialize;
use std::{
    io,
    path::{Path, PathBuf},
};

/// A plan and its two configs. `apply --dry-run` prints the plan alone, so the other fields are not required.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct PlanReport {
    /// The plan.
    #[serde(flatten)]
    pub plan: Plan,
    /// The old config.
    #[schemars(skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// The new config.
    #[schemars(skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// The pool whose policies apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// What the new OS image changes; absent if the image stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageUpdate>,
    /// Seconds that the last applies on this host took that disturbed the node as much, the newest first.
    #[schemars(skip_serializing_if = "Vec::is_empty")]
    pub last_seconds: Vec<i64>,
}

/// The files of a plan, and how they are used.
#[derive(Debug, Clone, Copy)]
pub struct PreviewRequest<'a> {
    /// The present config.
    pub old: &'a Path,
    /// The new config.
    pub new: &'a Path,
    /// What is done about unknown fields.
    pub unknown: Unknown,
    /// Disruption policies: files and directories.
    pub disruption_policies: &'a [PathBuf],
    /// The node's pool; `None`: the pool of the new config.
    pub pool: Option<&'a str>,
    /// Whether to check also what this host cannot change to, and which of its units another image changes.
    pub for_this_host: bool,
    /// The state directory, with the history of applies and the indexes of images.
    pub state: &'a Path,
}

/// A plan with its configs.
#[derive(Debug)]
pub struct Preview {
    /// The plan, and what it is about.
    pub report: PlanReport,
    /// The present config.
    pub old: Rendered,
    /// The new config.
    pub new: Rendered,
}

/// Why two configs have no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A config or a policy cannot be used.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// The content of a declared file cannot be decoded.
    #[error(transparent)]
    Expectation(#[from] ExpectationError),
    /// A fact of the node cannot be read.
    #[error("read {path}: {error}", path = node::FIPS)]
    Facts {
        /// Why not.
        error: io::Error,
    },
}

impl PlanError {
    /// Whether the mistake is in the configs or the policies, and not on the host.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Desired(_) | Self::Expectation(_) => true,
            Self::Facts { .. } => false,
        }
    }
}

/// Reads two configs and plans between them.
///
/// # Errors
/// Bad input, and facts of the host that cannot be read.
pub fn preview(request: PreviewRequest<'_>) -> Result<Preview, PlanError> {
    let old = compared(request.old, request.unknown)?;
    let new = compared(request.new, request.unknown)?;
    let pool = request.pool.or_else(|| new.pool()).map(str::to_owned);
    let policies = request.disruption_policies;
    let plan = plan_between(&old, &new, policies, pool.as_deref(), request.for_this_host)?;
    let report = PlanReport {
        from: side_name(&old, request.old),
        to: side_name(&new, request.new),
        pool,
        image: image_of(&old, &new, &request),
        last_seconds: past::seconds(request.state, &plan),
        plan,
    };
    Ok(Preview { report, old, new })
}

/// What the image of the new config changes; `None` if both configs have the same one.
fn image_of(old: &Rendered, new: &Rendered, request: &PreviewRequest<'_>) -> Option<ImageUpdate> {
    let name = |config: &'_ Rendered| config.os_image_url.as_ref().map(|image| image.value.clone());
    let (before, after) = (name(old), name(new)?);
    if before.as_ref() == Some(&after) {
        return None;
    }
    let units = if request.for_this_host { unit_programs(Path::new("/")) } else { UnitPrograms::new() };
    Some(image_update(&Images::of(request.state), before.as_deref(), &after, &units))
}

/// The plan between two configs under the disruption policies for a pool; `None`: the pool of the new config. For this host it
/// includes why the host cannot take the new config, whatever its config is now.
///
/// # Errors
/// Bad input, and facts of the host that cannot be read.
pub(super) fn plan_between(
    old: &Rendered,
    new: &Rendered,
    policies: &[PathBuf],
    pool: Option<&str>,
    for_this_host: bool,
) -> Result<Plan, PlanError> {
    let policies = disruption_policies(policies)?;
    let policy = disruption_policy(&policies, pool.or_else(|| new.pool()))?;
    let mut plan = plan(Some(old), Some(new), &policy)?;
    if for_this_host {
        let facts = node::facts().map_err(|error| PlanError::Facts { error })?;
        plan.refuse(&reconcile::against_node(&facts, new));
    }
    Ok(plan)
}
