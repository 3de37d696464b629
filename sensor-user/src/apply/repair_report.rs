//! The report of a repair.
//!
//! In: what a repair restored, and what it could not restore. Out: the same, as `holdfast repair` reports it.

use super::repairs::Repaired;
use sensor_model::{difference::Difference, verdict::VerdictKind};
use serde::Serialize;

/// The value of [`RepairReport::schema`].
const SCHEMA: &str = "holdfast.repair/v1";

/// The result of a repair.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct RepairReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Compliant if everything that should be repaired matches its expectation now.
    pub verdict: VerdictKind,
    /// Things that were restored.
    pub repaired: Vec<RepairedThing>,
    /// Things that could not be restored.
    pub refused: Vec<RefusedThing>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct RepairedThing {
    /// Path on the host; for a unit that of its file.
    pub path: String,
    /// How it differed.
    pub differences: Vec<Difference>,
    /// What was done.
    pub actions: Vec<String>,
    /// What declares it: a MachineConfig, a layer or package, or the rule that closes the directory.
    pub source: String,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct RefusedThing {
    /// Path on the host; for a unit that of its file.
    pub path: String,
    /// Why it could not be restored.
    pub reason: String,
}

impl From<Repaired<'_>> for RepairReport {
    fn from(done: Repaired<'_>) -> Self {
        let repaired = done.restored.into_iter().map(|(expectation, restored)| RepairedThing {
            path: expectation.thing.path().to_string_lossy().into_owned(),
            differences: restored.before,
            actions: restored.actions,
            source: expectation.source.name().to_owned(),
        });
        let refused = done.refused.into_iter();
        let refused: Vec<RefusedThing> =
            refused.map(|(path, error)| RefusedThing { path, reason: error.to_string() }).collect();
        let verdict = if refused.is_empty() { VerdictKind::Compliant } else { VerdictKind::Drifted };
        Self { schema: SCHEMA, verdict, repaired: repaired.collect(), refused }
    }
}
