//! Orders of the node's reporter, in the mode `manage`: a config is handed in, planned, and applied.
//!
//! In: requests of the reporter's socket. Out: an implementation of [`ConfigOrders`]. The daemon itself writes no managed path and
//! has no right to: [`run`] applies, in a unit of the host's systemd that lives on when the daemon ends. Everything that is known
//! about an order is in files below the state directory ([`files`]), so a daemon that starts again goes on where it was. [`policies`]
//! takes the drift policies of the cluster, also in the mode `observe`.
//!
//! The daemon's own loop orders, too: [`reverts`] has [`revert_run`] write back what drifted under a `revert` rule, in another unit.

mod boot;
mod durable;
mod earlier_pods;
mod files;
mod mode_files;
mod policies;
mod published_plan;
mod revert_files;
mod revert_run;
mod reverts;
mod run;
#[cfg(test)]
mod tests;
mod unit;

pub use mode_files::ModeFiles;
pub use policies::NodePolicies;
pub use revert_run::{RevertHost, run_reverts};
pub use reverts::NodeReverts;
pub use run::{plan_order, run_order};
pub use unit::SUBCOMMAND;

use super::{act_error::SystemdError, actions::transient, operator::running_operator};
use crate::{
    desired::{OPERATOR_CONFIG, generation},
    store::Store,
};
use boot::present_boot;
use files::{OrderDirectory, OrderEnd, OrderName, OrderResult, PlanAnswer};
use published_plan::kept_answer;
use sensor_model::journal::{Boot, Brings};
use sensor_model::socket::{
    ApplyOrder, ApplyPhase, ApplyProgress, DesiredConfig, PLANNED_CONFIG_SCHEMA, PlannedConfig, SocketError,
    SocketErrorReason,
};
use sha2::{Digest as _, Sha256};
use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::{process::Command, time::timeout};
use unit::{OrderUnit, THIS_PROGRAM, start_unit};

use crate::report::socket::ConfigOrders;

/// The unit that applies. An apply takes as long as its actions and drains do.
const UNIT: OrderUnit = OrderUnit {
    name: "holdfast-apply.service",
    description: "Applies a MachineConfig to this node",
    what: "run",
    limit: None,
};
/// Longest message.
const MESSAGE_BYTES: usize = 2000;
/// Longest name of a config: that of an object of the API.
const NAME_BYTES: usize = 253;
/// Longest time to plan. A config that takes longer would keep every other request waiting.
const PLAN_TIMEOUT: Duration = Duration::from_mins(1);
/// How old an answer about the Machine Config Operator's daemon may be.
const OPERATOR_AGE: Duration = Duration::from_secs(10);
/// How often an order whose process ends early is started again.
const STARTS: u32 = 3;

/// The orders of one node.
#[derive(Debug)]
pub struct NodeOrders {
    root: PathBuf,
    state: PathBuf,
    directory: OrderDirectory,
    /// Only one request works at a time. With it: the newest generation whose name was read.
    known: Mutex<Option<(u64, Option<String>)>>,
    /// When the host's processes were last searched for the Machine Config Operator's daemon, and whether it ran.
    operator: Mutex<Option<(Instant, bool)>>,
    /// The order whose process was started again last, and how often. On a full disk the file with this number cannot be written.
    started: Mutex<(String, u32)>,
}

impl NodeOrders {
    /// For the host at `root`, with its state directory.
    pub fn new(root: &Path, state: &Path) -> Self {
        Self {
            root: root.to_owned(),
            state: state.to_owned(),
            directory: OrderDirectory::new(state),
            known: Mutex::default(),
            operator: Mutex::default(),
            started: Mutex::default(),
        }
    }

    /// Hands a config to a process that plans, so that the daemon needs no memory for it.
    fn planned(&self) -> io::Result<PlanAnswer> {
        let mut command = Command::new(THIS_PROGRAM);
        command
            .arg0("holdfast")
            .args([SUBCOMMAND, "plan"])
            .args(["--host-root".as_ref(), self.root.as_os_str()])
            .args(["--state".as_ref(), self.state.as_os_str()])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let out = runtime.block_on(async { timeout(PLAN_TIMEOUT, command.output()).await });
        let out = out.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        serde_json::from_slice(&out.stdout)
            .map_err(|_| io::Error::other(format!("it ended ({})", out.status)))
    }

    /// Runs the order in a unit of systemd.
    fn start(&self) -> Result<(), SocketError> {
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "Cannot start an apply.");
            refusal(SocketErrorReason::NotReady, error.to_string())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&format!("cannot ask systemd: {error}")))?;
        let host = [("--host-root", &*self.root), ("--state", &*self.state)];
        let start = start_unit(&self.root, &self.directory, UNIT, &host);
        runtime.block_on(start).map_err(|error| failed(&error))
    }

    fn is_running(&self) -> Result<bool, SystemdError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(SystemdError::Socket)?.block_on(transient::is_active(&self.root, UNIT.name))
    }

    /// Whether the host shuts down. Without an answer it does not.
    fn is_stopping(&self) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.is_ok_and(|runtime| {
            runtime.block_on(transient::is_host_stopping(&self.root)).unwrap_or_default()
        })
    }

    /// Whether the Machine Config Operator's daemon runs. The reporter asks each second, and the answer may be [`OPERATOR_AGE`] old.
    fn is_managed_by_operator(&self) -> bool {
        let mut last = self.operator.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match *last {
            Some((asked, runs)) if asked.elapsed() < OPERATOR_AGE => runs,
            _ => {
                let runs = running_operator(&self.root).is_some();
                *last = Some((Instant::now(), runs));
                runs
            }
        }
    }

    /// The name of the config that the node has. `known` has the one of the newest generation. Before the first apply by Holdfast it is the one
    /// that the Machine Config Operator's daemon stored. Without an answer of the store it is not known: the stored config may be another one,
    /// and the reporter would call the node `Done` by it.
    fn current(&self, known: &mut Option<(u64, Option<String>)>) -> Option<String> {
        let (id, manifests) = match Store::current_in(&self.state) {
            Ok(Some(current)) => current,
            Ok(None) => return files::name_in(&self.root.join(OPERATOR_CONFIG)),
            Err(error) => {
                tracing::debug!(%error, "the config that the node has is not known");
                return None;
            }
        };
        if known.as_ref().is_none_or(|(read, _)| *read != id) {
            // A generation that cannot be read now may be readable at the next question.
            let kept = generation((id, manifests).into()).ok()?;
            let name = match &kept.rendered.sources[..] {
                [source] => Some(source.machine_config.to_string()),
                _ => None,
            };
            *known = Some((id, name));
        }
        known.as_ref().and_then(|(_, name)| name.clone())
    }

    /// The progress of the newest order. It starts the process of an order again that has no end.
    fn newest(&self, known: &mut Option<(u64, Option<String>)>) -> ApplyProgress {
        self.newest_if(known, Self::is_running)
    }

    /// The same with a question whether the process runs.
    fn newest_if(
        &self,
        known: &mut Option<(u64, Option<String>)>,
        is_running: impl FnOnce(&Self) -> Result<bool, SystemdError>,
    ) -> ApplyProgress {
        let idle = ApplyProgress {
            current: self.current(known),
            is_managed_by_operator: self.is_managed_by_operator(),
            ..ApplyProgress::idle()
        };
        let Some(order) = self.directory.ordered() else { return idle };
        let progress =
            ApplyProgress { id: Some(order.id.clone()), config: Some(order.config.clone()), ..idle };
        if let Some(end) = self.end() {
            return ended(progress, &end);
        }
        let message = match is_running(self) {
            Ok(true) => self.directory.line(),
            // The process notes the end and then ends, so it may have noted it meanwhile.
            Ok(false) => {
                return match self.end() {
                    Some(end) => ended(progress, &end),
                    None => self.again(&order, progress),
                };
            }
            // It may run: a second process would only wait for its lock.
            Err(error) => Some(format!("whether {} runs is not known: {error}", UNIT.name)),
        };
        ApplyProgress { phase: ApplyPhase::Running, message: message.map(|line| fit(&line)), ..progress }
    }

    /// How the newest order ended; `None` while it is under way, and when the boot is over that it waited for.
    fn end(&self) -> Option<OrderEnd> {
        let end = self.directory.end()?;
        let is_to_go_on = end.result == OrderResult::Rebooting && self.is_over(&end.boot);
        (!is_to_go_on).then_some(end)
    }

    /// Whether a boot is over. The apply itself decides whether a soft reboot is the reboot that it waits for, and if not asks again.
    fn is_over(&self, boot: &Boot) -> bool {
        self.boot().is_some_and(|now| boot.is_over(&now, Brings::Services))
    }

    /// The present boot, if it can be read.
    fn boot(&self) -> Option<Boot> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let boot = runtime.and_then(|runtime| runtime.block_on(present_boot(&self.root)));
        boot.inspect_err(|error| tracing::warn!(%error, "Cannot read the present boot.")).ok()
    }

    /// The process of an order is gone, and the order is not over.
    fn again(&self, order: &OrderName, progress: ApplyProgress) -> ApplyProgress {
        let boot = self.boot().unwrap_or_default();
        let mut started = self.started.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if started.0 != order.id {
            *started = (order.id.clone(), 0);
        }
        let starts = self.directory.starts(&boot).max(started.1);
        if starts >= STARTS {
            let reason = format!("the process that applies ended {starts} times without a result");
            self.directory.set_end(&OrderEnd::failed(order, boot, reason.clone()));
            return ApplyProgress { phase: ApplyPhase::Failed, message: Some(reason), ..progress };
        }
        tracing::warn!(config = order.config, "The process of an apply is gone: it is started again.");
        let failure = self.start().err();
        // A host that shuts down starts no units, so that the order goes on after its next start.
        if failure.is_none() || !self.is_stopping() {
            started.1 = starts + 1;
            self.directory.set_starts(boot, starts + 1);
        }
        let message = failure.map(|error| fit(&error.error));
        ApplyProgress { phase: ApplyPhase::Running, message, ..progress }
    }
}

impl ConfigOrders for NodeOrders {
    fn plan(&self, config: &[u8]) -> Result<PlannedConfig, SocketError> {
        let mut known = self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if is_busy(self.newest(&mut known).phase) {
            return Err(busy());
        }
        // The parser's own text may have values of the config in it.
        let desired: DesiredConfig = serde_json::from_slice(config).map_err(|error| {
            let place = format!("line {}, column {}", error.line(), error.column());
            refusal(SocketErrorReason::Refused, format!("the body is no config: {place}"))
        })?;
        let Some(name) = desired.machine_config["metadata"]["name"].as_str() else {
            let error = "machine_config: metadata.name: is missing".to_owned();
            return Err(refusal(SocketErrorReason::Refused, error));
        };
        // It is in each answer and in the daemon's log from now on.
        if name.is_empty()
            || name.len() > NAME_BYTES
            || name.contains(|letter: char| !letter.is_ascii_graphic() || letter == '/')
        {
            let error = format!(
                "machine_config: metadata.name: must be the name of an object of the API: at most {NAME_BYTES} letters, digits, `-` and `.`"
            );
            return Err(refusal(SocketErrorReason::Refused, error));
        }
        // Of a list or an Ignition config the store would not know this name, and the reporter would hand it in for ever.
        if desired.machine_config["kind"] != "MachineConfig" {
            let error = "machine_config: kind: must be `MachineConfig`".to_owned();
            return Err(refusal(SocketErrorReason::Refused, error));
        }
        let kept = |error: io::Error| {
            tracing::error!(%error, "Cannot keep a config for the reporter.");
            refusal(SocketErrorReason::NotReady, format!("the state directory cannot be written: {error}"))
        };
        let name = OrderName { id: id_of(&desired), config: name.to_owned() };
        self.directory.set_new(&name, &desired).map_err(kept)?;
        match self.planned() {
            Ok(PlanAnswer::Planned { plan, published, is_open }) => {
                let planned = PlannedConfig {
                    schema: PLANNED_CONFIG_SCHEMA.to_owned(),
                    id: name.id,
                    config: name.config,
                    drains: published.node.drains,
                    reboots: published.node.reboots,
                    has_nothing_to_do: plan.has_nothing_to_do() && !is_open,
                    plan: *plan,
                    changes_left_out: 0,
                    is_shortened: false,
                };
                self.directory.accept_new(&published, &kept_answer(&planned)).map_err(kept)?;
                Ok(planned)
            }
            Ok(PlanAnswer::Refused(reason)) => Err(refusal(SocketErrorReason::Refused, fit(&reason))),
            Ok(PlanAnswer::Failed(reason)) => Err(refusal(SocketErrorReason::NotReady, fit(&reason))),
            Err(error) => {
                tracing::error!(%error, "The process that plans gave no answer.");
                Err(refusal(SocketErrorReason::NotReady, format!("the process that plans: {error}")))
            }
        }
    }

    fn newest_plan(&self) -> Result<PlannedConfig, SocketError> {
        self.directory.answer().ok_or_else(|| {
            let newest = self.directory.newest_with_plan();
            let error = newest.map_or_else(
                || "no config has a plan: the cluster has handed none in".to_owned(),
                |name| {
                    let config = name.config;
                    format!("the plan for {config} is not kept: an earlier version of Holdfast made it, or it is too long")
                },
            );
            refusal(SocketErrorReason::NotPlanned, error)
        })
    }

    fn begin(&self, order: &ApplyOrder) -> Result<ApplyProgress, SocketError> {
        let mut known = self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let progress = self.newest(&mut known);
        if is_busy(progress.phase) {
            return if progress.id.as_ref() == Some(&order.id) { Ok(progress) } else { Err(busy()) };
        }
        if self.directory.planned().is_none_or(|planned| planned.id != order.id) {
            let error = "the newest config has another id: hand the config in again".to_owned();
            return Err(refusal(SocketErrorReason::NotPlanned, error));
        }
        *self.started.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Default::default();
        self.directory.order_planned().map_err(|error| {
            refusal(SocketErrorReason::NotReady, format!("the state directory cannot be written: {error}"))
        })?;
        // A failed start is tried again, as that of a process that ended early.
        if let Err(error) = self.start() {
            tracing::warn!(error = error.error, "The apply is started again later.");
        }
        Ok(self.newest(&mut known))
    }

    fn progress(&self) -> ApplyProgress {
        self.newest(&mut self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

fn is_busy(phase: ApplyPhase) -> bool {
    matches!(phase, ApplyPhase::Running | ApplyPhase::Rebooting)
}

fn busy() -> SocketError {
    refusal(SocketErrorReason::Busy, "an apply is under way: wait for its end".to_owned())
}

fn refusal(reason: SocketErrorReason, error: String) -> SocketError {
    SocketError { reason, error, oldest: None }
}

/// A text that is not too long.
fn fit(text: &str) -> String {
    let end = text.floor_char_boundary(MESSAGE_BYTES);
    if end == text.len() {
        text.to_owned()
    } else {
        format!("{}…", &text[..text.floor_char_boundary(end - 3)])
    }
}

/// The name of a config: the hash of all that was handed in.
fn id_of(desired: &DesiredConfig) -> String {
    // A structure of JSON values always has a JSON.
    hex::encode(Sha256::digest(serde_json::to_vec(desired).unwrap_or_default()))
}

/// The progress of an order that ended, or waits for a reboot.
fn ended(progress: ApplyProgress, end: &OrderEnd) -> ApplyProgress {
    let phase = match end.result {
        OrderResult::Done => ApplyPhase::Done,
        OrderResult::Rebooting => ApplyPhase::Rebooting,
        OrderResult::Drifted
        | OrderResult::Unreconcilable
        | OrderResult::RolledBack
        | OrderResult::Failed => ApplyPhase::Failed,
    };
    ApplyProgress {
        phase,
        message: (!end.reason.is_empty()).then(|| fit(&end.reason)),
        drifted: end.result == OrderResult::Drifted,
        unreconcilable: end.result == OrderResult::Unreconcilable,
        rolled_back: end.result == OrderResult::RolledBack,
        ..progress
    }
}
