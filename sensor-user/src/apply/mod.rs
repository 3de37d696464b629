//! The change of a host from one config to another, crash-safely.
//!
//! In: two rendered configs, a plan, the host. Out: the new config on the host, verified, or the old one. An apply writes each
//! path, as it is before and after, to a journal before its first change ([`sensor_model::journal`]). If the process dies, the
//! next start finishes the apply or rolls it back. Only acts of the plan run, and no error or log has content in it. An act is
//! one action of the plan in the journal, with its unit and its limit.
//!
//! An apply goes through these files:
//!
//! 1. `cli` hands the files to [`host_apply`], which reads both configs through [`crate::desired`] and plans. [`host_run`] asks for
//!    [`consent`]. Then [`host_apply`] hands a [`request`] to `engine::applying`, which leads through points 2 to 5.
//! 2. [`targets`] works out the state of each path before and after, with [`target_finder`]. `unit_links`, `password`,
//!    `originals`, `labels`, `hard_link_finder`, `type_changes` and `removed_by_force` help. Contents go to [`crate::store`].
//! 3. `engine::preflight` refuses an apply that cannot succeed, or that would destroy something.
//! 4. [`acts`] turns the plan's steps into acts.
//! 5. `driver::drive` notifies a running daemon, and asks [`sensor_model::journal::machine`] for one request after
//!    another. `driver::edits` writes through [`crate::disk`], [`actions`] and [`os`] run acts, [`verify`]
//!    compares, and `engine::notes` writes history and node state.
//! 6. After a kill, `engine::recovering` continues from the journal.
//!
//! [`agent_view`] shows applies to the daemon. [`orders`] plans and applies what a cluster's reporter hands in, and writes back for a
//! daemon that may not. [`repairs`], `repair_run` and `repair_report` are for `holdfast repair`, `preview` and `plan_contents` for `holdfast plan`, `history` for `holdfast history`. Both the apply and the repair notify a
//! running daemon through [`crate::agent::writer_protocol`].

mod act_error;
mod act_runner;
mod actions;
mod acts;
pub mod agent_view;
mod consent;
mod driver;
mod engine;
mod error;
mod generations;
mod hard_link_finder;
mod history;
mod host_apply;
mod host_run;
mod interrupts;
mod labels;
mod operator;
pub mod orders;
mod originals;
pub mod os;
mod os_update;
mod password;
mod past;
mod plan_contents;
mod preflight_checks;
mod preview;
mod removed_by_force;
mod repair_report;
mod repair_run;
pub mod repairs;
mod report;
mod request;
mod target_finder;
mod targets;
mod type_changes;
mod unit_links;
mod verify;
mod waiting;

pub use crate::desired::STATE;
pub use crate::store::Store;
pub use act_error::{ActError, SystemdError, UnitFailure};
pub use act_runner::{ActFuture, ActResult, ActRunner, NoActs, UndoResult, UnitAfterBoot};
pub use actions::Systemd;
pub use consent::{ConsentError, GivenConsent, MissingConsent, ProposedApply, REBOOT, YES};
pub use driver::ResumeLimit;
pub use engine::{AfterRollback, Applied, Engine, Recovered};
pub use error::{ApplyError, ApplyRefusal};
pub use generations::{GenerationError, present_config, rollback_target};
pub use history::HistoryReport;
pub use host_apply::{ApplyConfigs, HostApply, HostApplyError, HostApplyOptions, NewConfig};
pub use host_run::{HostRunEnd, NO_DRAIN};
pub use interrupts::Interrupts;
pub use operator::OperatorDaemon;
pub use orders::{
    ModeFiles, NodeOrders, NodePolicies, NodeReverts, RevertHost, plan_order, run_order, run_reverts,
};
pub use os_update::foreseen;
pub use plan_contents::{ChangedContent, ContentDigest, ContentSides, HiddenBecause, PlanContents};
pub use preview::{PlanError, PlanReport, Preview, PreviewRequest, preview};
pub use removed_by_force::removed_by_force;
pub use repair_report::RepairReport;
pub use repair_run::{QuestionError, RepairRunError, RepairScope, repair_host};
pub use report::{ApplyReport, ApplyResult, RebootCause};
pub use request::{ApplyOptions, ApplyRequest, OperatorRule};
pub use verify::Differences;
pub use waiting::{waits, waits_or_none};

/// The file by which the Machine Config Operator asks for everything to be written again.
pub const FORCE_FILE: &str = "/run/machine-config-daemon-force";
