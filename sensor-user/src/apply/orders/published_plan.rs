//! What the answer to the reporter said about a plan, and whether the order disturbs the node more than that.
//!
//! In: plans, and the journal of an apply that is open. Out: the note and the answer that are kept with a planned config; how far an order may
//! go, or why it does not begin. The cluster drains a node by the answer. Between the answer and the order the present config, the force file or the
//! open apply may become another one.

use crate::{
    apply::{ApplyConfigs, HostApply, ResumeLimit},
    store::{Store, StoreError},
};
use sensor_model::{
    journal::JournalRecord,
    plan::Plan,
    socket::{KEPT_PLAN_BYTES, PlannedConfig},
};
use serde::{Deserialize, Serialize};
use std::{fmt, fs, path::Path};

/// What an apply does to the workloads of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDisturbance {
    /// They have to leave it.
    pub drains: bool,
    /// It reboots.
    pub reboots: bool,
}

impl NodeDisturbance {
    const ALL: Self = Self { drains: true, reboots: true };

    /// That of a plan.
    pub(super) fn of(plan: &Plan) -> Self {
        Self { drains: plan.drain, reboots: plan.reboot }
    }

    fn with(self, other: Self) -> Self {
        Self { drains: self.drains || other.drains, reboots: self.reboots || other.reboots }
    }

    fn is_within(self, other: Self) -> bool {
        self.with(other) == other
    }
}

impl fmt::Display for NodeDisturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.drains, self.reboots) {
            (true, true) => "drains and reboots the node",
            (true, false) => "drains the node",
            (false, true) => "reboots the node",
            (false, false) => "leaves the workloads of the node alone",
        })
    }
}

/// What the answer said about a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPlan {
    /// The number of the config that the node had.
    pub previous: Option<u64>,
    /// What it said.
    #[serde(flatten)]
    pub node: NodeDisturbance,
}

/// The order disturbs the node more than the answer said.
#[derive(Debug, thiserror::Error)]
#[error(
    "the plan changed since it was published: {subject} now {node}; Holdfast publishes the new plan before the next attempt"
)]
pub(super) struct PlanChanged {
    subject: String,
    node: NodeDisturbance,
}

impl PublishedPlan {
    /// For the answer. An open apply is finished or undone before the new config is applied, so its own disturbance is added, and that of the
    /// plan from its config.
    pub(super) fn new(
        host: &HostApply,
        configs: &ApplyConfigs,
        plan: &Plan,
        open: Option<&OpenApply>,
    ) -> Self {
        let mut node = NodeDisturbance::of(plan);
        if let Some(open) = open {
            let after = host.plan_after(open.id, configs);
            let after = after.map_or(NodeDisturbance::ALL, |plan| NodeDisturbance::of(&plan));
            node = node.with(open.node).with(after);
        }
        Self { previous: configs.previous, node }
    }

    fn check(self, node: NodeDisturbance, subject: String) -> Result<(), PlanChanged> {
        if node.is_within(self.node) { Ok(()) } else { Err(PlanChanged { subject, node }) }
    }
}

/// The answer about a plan, in the form in which the state directory keeps it. Of a plan that is too long the lists end early. Empty if that is not
/// enough: then no answer is kept.
pub(super) fn kept_answer(planned: &PlannedConfig) -> Vec<u8> {
    // Structures of texts and numbers always have a JSON.
    let whole = serde_json::to_vec(planned).unwrap_or_default();
    if whole.len() <= KEPT_PLAN_BYTES {
        return whole;
    }
    drop(whole);
    let mut kept = PlannedConfig { is_shortened: true, ..planned.clone() };
    let plan = &planned.plan;
    let lengths =
        [plan.changes.len(), plan.overwritten.len(), plan.removed_by_force.len(), plan.reasons.len()];
    let mut most = lengths.into_iter().max().unwrap_or_default();
    while most > 0 {
        most /= 2;
        shorten(&mut kept.plan, most);
        let left_out = planned.plan.changes.len() - kept.plan.changes.len();
        kept.changes_left_out = u64::try_from(left_out).unwrap_or(u64::MAX);
        let text = serde_json::to_vec(&kept).unwrap_or_default();
        if text.len() <= KEPT_PLAN_BYTES {
            return text;
        }
    }
    Vec::new()
}

/// Shortens the lists of a plan that may have an element for each change. A step keeps one of the names that need it.
fn shorten(plan: &mut Plan, most: usize) {
    plan.reasons.truncate(most.max(1));
    plan.overridden.truncate(most);
    plan.changes.truncate(most);
    plan.overwritten.truncate(most);
    plan.removed_by_force.truncate(most);
    for step in &mut plan.steps {
        step.because.truncate(most.max(1));
        step.policies.truncate(most);
    }
}

/// Checks the plan of an order whose node has the config with the number `present`. Without a note of what an earlier version published,
/// only a plan that leaves the workloads alone is followed.
///
/// # Errors
/// It disturbs the node more than the published plan.
pub(super) fn check_plan(
    published: Option<PublishedPlan>,
    plan: &Plan,
    present: Option<u64>,
) -> Result<(), PlanChanged> {
    let number = |id: Option<u64>| id.map_or_else(|| "none".to_owned(), |id| format!("number {id}"));
    let subject = match published {
        None => "what an earlier version of Holdfast published is not known, and it".to_owned(),
        Some(published) if published.previous == present => "it".to_owned(),
        Some(published) => {
            let (was, is) = (number(published.previous), number(present));
            format!("the config that was applied last was {was} and is {is}, and the plan from it")
        }
    };
    published.unwrap_or_default().check(NodeDisturbance::of(plan), subject)
}

/// An apply whose journal is open when an order begins.
#[derive(Debug)]
pub(super) struct OpenApply {
    /// Its number.
    pub(super) id: u64,
    /// What its plan does.
    planned: NodeDisturbance,
    /// What it does from now on, at most: with a reboot that it asked for because an action failed.
    node: NodeDisturbance,
    /// Its config is that of the order.
    pub(super) is_of_order: bool,
}

impl OpenApply {
    /// The open apply, for an order with a config; `None` if there is none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) fn find(state: &Path, config: &Path) -> Result<Option<Self>, StoreError> {
        let Some(store) = Store::open_existing(state)? else { return Ok(None) };
        let Some(journal) = store.open_journal()? else { return Ok(None) };
        let begin = journal.begin;
        // Its history is written before its journal.
        let drains = store.history(begin.id)?.is_none_or(|entry| entry.plan.drain && !entry.without_acts);
        let planned = NodeDisturbance { drains: drains || begin.reboot, reboots: begin.reboot };
        let has_asked = journal.records.iter().any(|record| {
            matches!(record, JournalRecord::RebootRequested { .. } | JournalRecord::ReturnRequested { .. })
        });
        let node = if has_asked { NodeDisturbance::ALL } else { planned };
        let is_of_order = has_config(&store.config(begin.id), config);
        Ok(Some(Self { id: begin.id, planned, node, is_of_order }))
    }

    /// How far an order may continue it. The order's own apply began with a plan that was published. `None` is the plan of an order that
    /// an earlier version took, of which nothing is noted.
    ///
    /// # Errors
    /// It disturbs the node more than the published plan.
    pub(super) fn limit(&self, published: Option<PublishedPlan>) -> Result<ResumeLimit, PlanChanged> {
        if self.is_of_order && published.is_none_or(|plan| self.planned.is_within(plan.node)) {
            return Ok(ResumeLimit::Unlimited);
        }
        let published = published.unwrap_or_default();
        let subject = format!("apply number {} was interrupted, and its continuation", self.id);
        published.check(self.node, subject)?;
        Ok(if published.node.reboots { ResumeLimit::Unlimited } else { ResumeLimit::NoReboot })
    }
}

/// Whether a directory of manifests has this config, and nothing else.
fn has_config(manifests: &Path, config: &Path) -> bool {
    let Ok(wanted) = fs::read(config) else { return false };
    let Ok(kept) = fs::read_dir(manifests) else { return false };
    let kept: Vec<_> = kept.flatten().collect();
    matches!(&kept[..], [one] if fs::read(one.path()).is_ok_and(|bytes| bytes == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_model::node_disruption::DisruptionPolicy;
    use sensor_model::plan::PlannedChange;

    const DRAINS: NodeDisturbance = NodeDisturbance { drains: true, reboots: false };
    const NONE: NodeDisturbance = NodeDisturbance { drains: false, reboots: false };

    fn open(is_of_order: bool, planned: NodeDisturbance, node: NodeDisturbance) -> OpenApply {
        OpenApply { id: 3, planned, node, is_of_order }
    }

    fn said(node: NodeDisturbance) -> PublishedPlan {
        PublishedPlan { previous: None, node }
    }

    #[test]
    fn an_order_continues_the_apply_of_another_only_as_far_as_the_published_plan_disturbs_the_node() {
        for (node, published, wanted) in [
            (NONE, Some(said(NONE)), Some(ResumeLimit::NoReboot)),
            (NONE, None, Some(ResumeLimit::NoReboot)),
            (NONE, Some(said(DRAINS)), Some(ResumeLimit::NoReboot)),
            (DRAINS, Some(said(DRAINS)), Some(ResumeLimit::NoReboot)),
            (DRAINS, Some(said(NONE)), None),
            (NodeDisturbance::ALL, Some(said(NodeDisturbance::ALL)), Some(ResumeLimit::Unlimited)),
            (NodeDisturbance::ALL, Some(said(DRAINS)), None),
            (NodeDisturbance::ALL, None, None),
        ] {
            let limit = open(false, node, node).limit(published);
            assert_eq!(limit.ok(), wanted, "{node:?} {published:?}");
        }
    }

    #[test]
    fn a_kept_answer_has_room_for_a_long_plan_only_in_part_and_says_so() {
        let nothing = sensor_model::plan::plan(None, None, &DisruptionPolicy::default()).unwrap();
        let mut planned = PlannedConfig {
            schema: String::new(),
            id: String::new(),
            config: "long".to_owned(),
            plan: nothing,
            drains: false,
            reboots: true,
            has_nothing_to_do: false,
            changes_left_out: 0,
            is_shortened: false,
        };
        let parsed = |planned: &PlannedConfig| -> PlannedConfig {
            let kept = kept_answer(planned);
            assert!(kept.len() <= KEPT_PLAN_BYTES);
            serde_json::from_slice(&kept).unwrap()
        };
        assert_eq!(parsed(&planned), planned);
        let long = |number: usize| format!("/{number}{}", "x".repeat(2000));
        let of_paths = PlannedConfig {
            plan: Plan {
                overwritten: (0..1000).map(|number| long(number).into()).collect(),
                ..planned.plan.clone()
            },
            ..planned.clone()
        };
        let kept = parsed(&of_paths);
        assert_eq!((kept.plan.overwritten.len(), kept.changes_left_out, kept.is_shortened), (500, 0, true));
        let change = |number: usize| -> PlannedChange {
            serde_json::from_value(serde_json::json!({
                "kind": "file", "name": long(number), "operation": "change", "action": "reboot", "policy": "p", "source": "s",
            }))
            .unwrap()
        };
        planned.plan.changes = (0..1000).map(change).collect();
        let kept = parsed(&planned);
        assert_eq!((kept.plan.changes.len(), kept.changes_left_out, kept.reboots), (250, 750, true));
        planned.config = "x".repeat(KEPT_PLAN_BYTES);
        assert!(kept_answer(&planned).is_empty());
    }

    #[test]
    fn an_order_continues_its_own_apply_with_the_reboot_of_a_failed_action() {
        for published in [Some(said(NONE)), Some(said(NodeDisturbance::ALL)), None] {
            let own = open(true, NONE, NodeDisturbance::ALL);
            assert_eq!(own.limit(published).ok(), Some(ResumeLimit::Unlimited), "{published:?}");
        }
        // A person applied the same config with `--force`.
        let error =
            open(true, NodeDisturbance::ALL, NodeDisturbance::ALL).limit(Some(said(NONE))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the plan changed since it was published: apply number 3 was interrupted, and its continuation now drains and \
             reboots the node; Holdfast publishes the new plan before the next attempt"
        );
    }
}
