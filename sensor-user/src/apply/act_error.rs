//! Why an act failed.
//!
//! Each error names the act or its unit. The journal keeps the text of an error for people and decides nothing by it.

use super::os::OsError;
use sensor_model::journal::{Act, Action};
use std::{error::Error, fmt, io, time::Duration};

/// `reload chronyd.service`.
pub(super) fn describe(act: &Act) -> String {
    let verb = if act.kind == Action::Os { "the change of the OS" } else { act.kind.as_str() };
    match &act.unit {
        Some(unit) => format!("{verb} {unit}"),
        None => verb.to_owned(),
    }
}

/// The words for the undoing of a change of the OS.
pub(super) const UNDO_OS: &str = "the rollback of the OS";

/// Why an act failed.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// systemd did not do what an act asks for.
    #[error("{act}: {error}")]
    Systemd {
        /// The act, in words.
        act: String,
        /// Why not.
        error: SystemdError,
    },
    /// The OS was not changed.
    #[error("{act}: {error}")]
    Os {
        /// The act, in words.
        act: String,
        /// Why not.
        error: OsError,
    },
    /// The journal has an act that changes the OS, and no such change.
    #[error("{0}: the journal has no change of the OS")]
    NoOsChange(String),
    /// The journal has an act for a unit, and no unit.
    #[error("{0}: the journal names no unit")]
    NoUnit(String),
    /// The state of a unit after a boot cannot be read.
    #[error("{unit}: {error}")]
    Unit {
        /// The unit.
        unit: String,
        /// Why not.
        error: SystemdError,
    },
    /// The count of soft reboots cannot be read.
    #[error(transparent)]
    SoftReboots(SystemdError),
    /// After a rollback, the booted OS cannot be read.
    #[error(transparent)]
    Booted(#[from] OsError),
    /// After a rollback, another OS is booted than before the apply.
    #[error("the old OS is not back: {}", .0.join("; "))]
    OtherOs(Vec<String>),
    /// logind did not reboot the host.
    #[error("reboot: {0}")]
    Reboot(SystemdError),
    /// Without acts there is no reboot.
    #[error("no act is run in this root, so no reboot either")]
    NoReboot,
    /// The error of another runner of acts.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

/// Why systemd or logind did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The socket of the system bus refuses the connection.
    #[error("the system bus does not answer: {0}")]
    Socket(io::Error),
    /// The system bus refuses the connection.
    #[error("the system bus does not answer: {0}")]
    Bus(zbus::Error),
    /// The system bus did not answer in time.
    #[error("the system bus gave no answer within {} s", .0.as_secs())]
    BusTimeout(Duration),
    /// logind does not answer.
    #[error("logind: {0}")]
    Logind(zbus::Error),
    /// systemd does not answer.
    #[error("systemd does not answer: {0}")]
    Manager(zbus::Error),
    /// No connection owns systemd's name.
    #[error("systemd is not on the bus: {0}")]
    NoOwner(zbus::Error),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] zbus::Error),
    /// The connection ended.
    #[error("the connection to systemd is gone")]
    Disconnected,
    /// systemd did not answer a daemon-reload in time.
    #[error("no answer within {0} s")]
    ReloadTimeout(u64),
    /// A job did not end in time.
    #[error("not done within {} s", .0.as_secs())]
    JobTimeout(Duration),
    /// The boot did not start a unit's job in time.
    #[error("the boot has not come to it within {} s", .0.as_secs())]
    QueueTimeout(Duration),
    /// A job's path has no number.
    #[error("systemd gave a job with an unknown path, {0}")]
    JobPath(String),
    /// systemd has the job no more, and sent no result.
    #[error("the job is over, and systemd did not report its result")]
    NoResult,
    /// A job failed.
    #[error("the job ended as `{0}`")]
    JobFailed(String),
    /// An action is not one for a unit.
    #[error("{} is not a job for a unit", .0.as_str())]
    NoJob(Action),
    /// A unit is masked, and no config masks it.
    #[error("the unit is masked, and not by the config; `systemctl unmask {0}` lets systemd start it")]
    Masked(String),
    /// A unit that failed before the act cannot be reloaded.
    #[error("the unit has failed, so there is nothing to reload")]
    NotReloaded,
    /// A unit does not run as it should.
    #[error(transparent)]
    Unit(#[from] UnitFailure),
}

/// Why a unit does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitFailure {
    /// It has no file.
    Missing,
    /// It failed.
    Failed,
    /// It fails, and systemd starts it again each time.
    Restarting,
    /// It ended right after its start.
    EndedAtOnce,
    /// It neither ran nor ended within a limit.
    NotSettled(Duration),
}

impl fmt::Display for UnitFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "there is no such unit",
            Self::Failed => "the unit failed",
            Self::Restarting => "the unit failed, and systemd starts it again and again",
            Self::EndedAtOnce => "the unit ended at once and was started again",
            Self::NotSettled(limit) => {
                return write!(f, "neither running nor ended within {} s", limit.as_secs());
            }
        })
    }
}

impl Error for UnitFailure {}
