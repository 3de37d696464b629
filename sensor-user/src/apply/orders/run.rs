//! The processes of an order: one plans, one applies.
//!
//! In: the files of an order. Out: the plan, or the end of the apply, which the daemon reads.

use super::boot::present_boot;
use super::files::{KeptOrder, OrderDirectory, OrderEnd, OrderResult, PlanAnswer};
use super::published_plan::{OpenApply, PlanChanged, PublishedPlan, check_plan};
use crate::apply::{
    ApplyConfigs, ApplyError, ApplyReport, ApplyResult, GivenConsent, HostApply, HostApplyError,
    HostApplyOptions, HostRunEnd, Interrupts, NewConfig, OperatorRule, ProposedApply,
};
use crate::{
    desired::{OPERATOR_CONFIG, SERVICE_CONFIGS, Unknown, node_policies},
    store::{Store, StoreError},
};
use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The error of a command without an order.
const NO_ORDER: &str = "there is no order: only the daemon calls this command";

/// How long an apply waits for the lock.
const PATIENCE: Duration = Duration::from_mins(2);
/// The pause between two attempts to take it.
const PAUSE: Duration = Duration::from_secs(1);

/// Plans the config that was handed in last. It changes nothing.
pub async fn plan_order(root: &Path, state: &Path) -> PlanAnswer {
    let Some(order) = OrderDirectory::new(state).new_config() else {
        return PlanAnswer::Failed(NO_ORDER.to_owned());
    };
    let planned = async {
        let host = HostApply::open(options(&order, root, state), Interrupts::default())?;
        let configs = configs(&host, &order, root, true, &mut |_| {}).await?;
        let open = OpenApply::find(state, &order.config)?;
        let HostRunEnd::Planned { plan, is_open, .. } = host.dry_run(&configs, &mut |_| {})? else {
            return Ok::<_, HostApplyError>(PlanAnswer::Failed("no plan".to_owned()));
        };
        let published = PublishedPlan::new(&host, &configs, &plan, open.as_ref());
        Ok(PlanAnswer::Planned { plan, published, is_open: is_open || open.is_some() })
    };
    match planned.await {
        Ok(answer) => answer,
        Err(error) if error.is_input() => PlanAnswer::Refused(error.to_string()),
        Err(error) => PlanAnswer::Failed(error.to_string()),
    }
}

/// Applies the config of the newest order, or continues its apply, and notes the end. Gives whether the node has the config.
///
/// # Errors
/// There is no order, or its end cannot be noted.
pub async fn run_order(root: &Path, state: &Path, interrupts: Interrupts, say: fn(&str)) -> io::Result<bool> {
    let directory = OrderDirectory::new(state);
    let Some(order) = directory.ordered_config() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, NO_ORDER));
    };
    let mut progress = |line: &str| {
        say(line);
        directory.set_line(line);
    };
    let began = Instant::now();
    let applied = loop {
        let applied = apply(&order, root, state, interrupts.clone(), &mut progress).await;
        let is_locked =
            matches!(applied, Err(OrderError::Host(HostApplyError::Apply(ApplyError::Locked(_)))));
        if !is_locked || began.elapsed() >= PATIENCE {
            break applied;
        }
        // The process that writes back has the lock for a moment.
        progress("waits for another process of Holdfast that writes");
        tokio::time::sleep(PAUSE).await;
    };
    let (result, reason) = match &applied {
        Ok(report) => of_report(report),
        Err(error) => of_error(error),
    };
    if result == OrderResult::Done
        && let Err(error) = directory.store_as_operator(root)
    {
        tracing::error!(%error, path = OPERATOR_CONFIG, "Cannot store the config where the Machine Config Operator's daemon keeps its own.");
    }
    let boot = present_boot(root).await?;
    directory.set_end(&OrderEnd { id: order.name.id, boot, result, reason });
    Ok(matches!(result, OrderResult::Done | OrderResult::Rebooting))
}

/// Why an order did not begin.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    /// As an apply of a person.
    #[error(transparent)]
    Host(#[from] HostApplyError),
    /// The plan drains or reboots the node, and the published plan did not.
    #[error(transparent)]
    PlanChanged(#[from] PlanChanged),
}

impl From<StoreError> for OrderError {
    fn from(error: StoreError) -> Self {
        Self::Host(error.into())
    }
}

async fn apply(
    order: &KeptOrder,
    root: &Path,
    state: &Path,
    interrupts: Interrupts,
    progress: &mut dyn FnMut(&str),
) -> Result<ApplyReport, OrderError> {
    let host = HostApply::open(options(order, root, state), interrupts)?;
    if let Some(open) = OpenApply::find(state, &order.config)? {
        let mut report = host.resume(open.limit(order.published)?, progress).await?;
        let is_end = match report.result {
            // Another process ended it meanwhile.
            ApplyResult::Unchanged => false,
            ApplyResult::Rebooting => true,
            ApplyResult::Halted if !open.is_of_order => {
                report.reason = format!("apply number {} has to end first: {}", open.id, report.reason);
                true
            }
            // After the apply of another, however it ended, the order itself comes next.
            _ => open.is_of_order,
        };
        if is_end {
            return Ok(report);
        }
    }
    let configs = configs(&host, order, root, false, progress).await?;
    let present = configs.previous;
    // The order is the consent to the published plan. Another plan needs another order.
    let mut changed = None;
    let consent = |proposed: &ProposedApply<'_>| {
        changed = check_plan(order.published, proposed.plan, present).err();
        Ok(changed.is_none())
    };
    let ended = host.run(configs, GivenConsent::default(), consent, progress).await?;
    match ended {
        HostRunEnd::Reported(report) => Ok(*report),
        HostRunEnd::Planned { .. } | HostRunEnd::Refused => {
            changed.map_or_else(|| Ok(ApplyReport::nothing_to_resume(state)), |changed| Err(changed.into()))
        }
    }
}

fn options(order: &KeptOrder, root: &Path, state: &Path) -> HostApplyOptions {
    HostApplyOptions {
        root: root.to_owned(),
        state: state.to_owned(),
        disruption_policies: order.disruption.iter().cloned().collect(),
        drift_policies: node_policies(root, state).into_iter().collect(),
        pool: None,
        force: false,
        act: true,
        operator: OperatorRule::TakeOver,
    }
}

async fn configs(
    host: &HostApply,
    order: &KeptOrder,
    root: &Path,
    is_dry: bool,
    progress: &mut dyn FnMut(&str),
) -> Result<ApplyConfigs, HostApplyError> {
    // Until the first apply the present config is that of the daemon: of another daemon before it, or of the host's service.
    let known = [OPERATOR_CONFIG, SERVICE_CONFIGS].map(|path| root.join(path));
    let present: Vec<PathBuf> = known.into_iter().find(|path| path.exists()).into_iter().collect();
    let current = if Store::current_in(host.state())?.is_some() { &[][..] } else { &present[..] };
    let wanted = NewConfig {
        new: std::slice::from_ref(&order.config),
        current,
        unknown: Unknown::Refuse,
        allow_empty: false,
    };
    host.configs(wanted, is_dry, progress).await
}

fn of_report(report: &ApplyReport) -> (OrderResult, String) {
    let result = match report.result {
        ApplyResult::Done | ApplyResult::Unchanged => OrderResult::Done,
        ApplyResult::Rebooting => OrderResult::Rebooting,
        ApplyResult::Drifted => OrderResult::Drifted,
        ApplyResult::RolledBack => OrderResult::RolledBack,
        ApplyResult::Abandoned | ApplyResult::Halted => OrderResult::Failed,
    };
    let problems: Vec<&str> = report.problems_besides_reason().collect();
    let texts = Some(report.reason.as_str()).into_iter().chain(problems).filter(|text| !text.is_empty());
    (result, texts.collect::<Vec<_>>().join("; "))
}

fn of_error(error: &OrderError) -> (OrderResult, String) {
    let result = match error {
        OrderError::Host(HostApplyError::Apply(ApplyError::Unreconcilable(_))) => OrderResult::Unreconcilable,
        OrderError::Host(HostApplyError::Apply(ApplyError::Preflight(_))) => OrderResult::Drifted,
        _ => OrderResult::Failed,
    };
    (result, error.to_string())
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
