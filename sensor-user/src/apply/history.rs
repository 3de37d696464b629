//! The report of past applies.
//!
//! In: the state directory. Out: every apply, and the state of the node's config. It changes nothing, and does not continue an
//! interrupted apply.

use crate::store::{HistoryEntry, Store, StoreError};
use sensor_model::node_state::Standing;
use serde::Serialize;
use std::path::Path;

/// The value of [`HistoryReport::schema`].
const SCHEMA: &str = "holdfast.history/v1";

/// Past applies, and the state of the node's config.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct HistoryReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The apply whose config the node has; null if no config was ever applied.
    pub current: Option<u64>,
    /// The state of the node with its config.
    pub standing: Standing,
    /// Every apply, the newest first.
    pub applies: Vec<HistoryEntry>,
}

impl HistoryReport {
    /// Reads a state directory. A host without a store has no applies.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub fn read(state: &Path) -> Result<Self, StoreError> {
        let mut report =
            Self { schema: SCHEMA, current: None, standing: Standing::default(), applies: Vec::new() };
        let Some(store) = Store::open_existing(state)? else { return Ok(report) };
        for id in store.generations()?.into_iter().rev() {
            report.applies.extend(store.history(id)?);
        }
        report.current = store.current()?.map(|(id, _)| id);
        report.standing = store.standing()?.unwrap_or_default();
        Ok(report)
    }
}
