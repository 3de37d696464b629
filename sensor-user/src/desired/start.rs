//! The desired state at the daemon's start.
//!
//! In: the inputs. Out: the desired state, from the last usable files if those of the inputs cannot be used.

use super::{
    error::DesiredError, facts::HostFacts, inputs::Inputs, last_usable, load::Desired, reader_process,
    source::MachineConfigs, source::StateSource,
};

/// The subject for which a daemon without usable configs is not ready.
pub const CONFIG: &str = "config";

/// Reads the files that the inputs name. If these cannot be used, it reads the last usable files, and the inputs name those from
/// then on. The error that comes with the desired state is then why the daemon is not ready.
///
/// # Errors
/// Neither can be used: what is wrong with the files that the inputs named.
pub fn start(
    inputs: &mut Inputs,
    host: &dyn HostFacts,
) -> Result<(Desired, Option<DesiredError>), DesiredError> {
    inputs.restore();
    let is_applied = inputs.source.generation().is_some();
    let kept = last_usable::directory(&inputs.state);
    let fallback = last_usable_source(inputs);
    let refused = match reader_process::load(inputs, host) {
        Ok(desired) if desired.nothing && !inputs.allow_empty && !is_applied && fallback.is_some() => {
            DesiredError::DeclaresNothing
        }
        Ok(desired) => return Ok((desired, None)),
        Err(error) => error,
    };
    let Some(fallback) = fallback else { return Err(refused) };
    replace(inputs, fallback);
    match reader_process::load(inputs, host) {
        Ok(desired) => {
            tracing::error!(
                kept = %kept.display(),
                error = %refused,
                "The configs or policies cannot be used; the last usable ones stay in force."
            );
            Ok((desired, Some(refused)))
        }
        Err(error) => {
            tracing::error!(%error, "The last usable configs cannot be used either.");
            Err(refused)
        }
    }
}

impl Inputs {
    /// Names the last usable files in place of the named source and policies, for a process of a daemon that uses them. Gives whether
    /// there are any.
    pub fn use_last_usable(&mut self) -> bool {
        self.restore();
        let fallback = last_usable_source(self);
        fallback.map(|fallback| replace(self, fallback)).is_some()
    }
}

/// The source that replaces the named one. The store of applies keeps applied configs itself.
fn last_usable_source(inputs: &Inputs) -> Option<StateSource> {
    match last_usable::configs(&last_usable::directory(&inputs.state))? {
        _ if inputs.source.generation().is_some() => Some(inputs.source.clone()),
        files if !files.is_empty() => Some(StateSource::MachineConfigs(MachineConfigs::LastUsable(files))),
        _ => None,
    }
}

fn replace(inputs: &mut Inputs, fallback: StateSource) {
    let policies = last_usable::policies(&last_usable::directory(&inputs.state));
    let source = std::mem::replace(&mut inputs.source, fallback);
    let policies = std::mem::replace(&mut inputs.policies, policies);
    inputs.replaced = Some((source, policies));
}
