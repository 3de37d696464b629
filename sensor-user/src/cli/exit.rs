//! The end of a command: exit codes and input errors. Also the runtime of commands that ask systemd.

use crate::{agent::AgentError, desired::DesiredError};
use sensor_model::{
    drift_policy::DriftPolicyError, expectations::ExpectationError, machine_config::ManifestError,
    merge::MergeError, node_disruption::DisruptionPolicyError, pool::PoolError,
};

/// Exit codes: in sync.
pub const IN_SYNC: u8 = 0;
/// Drift, or a difference.
pub const DRIFT: u8 = 1;
/// The command line or an input is wrong.
pub const USAGE: u8 = 2;
/// Something failed.
pub const FAILURE: u8 = 3;
/// A config cannot be applied to a running node.
pub const NOT_RECONCILABLE: u8 = 4;

/// A wrong input: the value of an option, or a file that it names.
#[derive(Debug, thiserror::Error)]
#[error("{}", error_line(.0))]
pub struct BadInput(anyhow::Error);

impl BadInput {
    /// An input is wrong, for this reason.
    pub fn because(reason: impl Into<String>) -> anyhow::Error {
        Self(anyhow::Error::msg(reason.into())).into()
    }

    /// An input caused this error.
    pub fn wrap(error: impl Into<anyhow::Error>) -> anyhow::Error {
        Self(error.into()).into()
    }

    /// An error of a room, which knows whether an input caused it.
    pub fn wrap_if(is_input: bool, error: impl Into<anyhow::Error>) -> anyhow::Error {
        if is_input { Self::wrap(error) } else { error.into() }
    }
}

/// An error with its causes in one line. A cause that its error already contains is not repeated.
pub fn error_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.extend([": ", &cause]);
        }
    }
    text
}

/// The exit code of an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        let input = cause.is::<BadInput>()
            || cause.is::<ManifestError>()
            || cause.is::<DisruptionPolicyError>()
            || cause.is::<PoolError>()
            || cause.is::<MergeError>()
            || cause.is::<ExpectationError>()
            || cause.is::<DriftPolicyError>()
            || cause.downcast_ref::<DesiredError>().is_some_and(DesiredError::is_input)
            || matches!(cause.downcast_ref(), Some(AgentError::Desired(error)) if error.is_input());
        if input {
            return USAGE;
        }
    }
    FAILURE
}

/// A runtime for commands that ask systemd.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_cause_is_named_once() {
        let cause = || io::Error::from(io::ErrorKind::NotFound);
        let opened = crate::observation::RootError { root: "/x".into(), source: cause() };
        let error = anyhow::Error::from(opened).context("--host-root");
        assert_eq!(error_line(&error), format!("--host-root: cannot open the host root /x: {}", cause()));
        assert_eq!(error_line(&anyhow::Error::from(cause()).context("read")), format!("read: {}", cause()));
    }

    #[test]
    fn only_bad_input_has_the_exit_code_of_wrong_usage() {
        assert_eq!(exit_code(&BadInput::because("no")), USAGE);
        assert_eq!(exit_code(&BadInput::because("no").context("more")), USAGE);
        assert_eq!(exit_code(&anyhow::anyhow!("no")), FAILURE);
        let manifest = sensor_model::machine_config::parse("a.yaml", b"kind: MachineConfig").unwrap_err();
        assert_eq!(exit_code(&manifest.into()), USAGE);
        // A broken pipe of standard output never reaches this function.
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(exit_code(&anyhow::Error::from(gone).context("ask the daemon")), FAILURE);
    }
}
