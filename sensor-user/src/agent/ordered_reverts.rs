//! Writing declared state back by another process: a trait that the room `apply` implements.
//!
//! In: nothing. Out: the trait. No state. A daemon that may write no managed path uses it: it names the things, and the process finds
//! in the configs and policies what it has to write.

use super::write_back::{WriteBackError, WrittenBack};
use sensor_model::expectation::Thing;
use sensor_model::record::Actor;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::task::{Context, Poll};

/// One thing that another process is to write back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderedRevert {
    /// The thing.
    pub thing: Thing,
    /// The state that the daemon found, as records show it, without contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Value>,
    /// The actors that may have caused the drift, the one of the last change first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actors: Vec<Actor>,
}

/// The result for one thing.
#[derive(Debug)]
pub struct RevertResult {
    /// The thing.
    pub ordered: OrderedRevert,
    /// What was written, or why nothing was.
    pub result: Result<WrittenBack, WriteBackError>,
}

/// Has another process write declared state back, one order at a time. No method waits for that process.
pub trait RevertOrders {
    /// Continues with the order of an earlier daemon, if there is one. The daemon calls it once, before its first turn.
    fn recover(&mut self);

    /// Whether an order is under way, so that the next one has to wait.
    fn is_under_way(&self) -> bool;

    /// Orders these things to be written back. `last_usable`: the daemon uses the last usable configs and policies, because those that
    /// its options name cannot be used.
    fn begin(&mut self, things: Vec<OrderedRevert>, last_usable: bool);

    /// The results of the order that is under way, each time once, when it is over.
    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<Vec<RevertResult>>;
}
