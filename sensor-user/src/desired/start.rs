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
    let fallback = match last_usable::configs(&kept) {
        Some(_) if is_applied => Some(inputs.source.clone()),
        Some(files) if !files.is_empty() => {
            Some(StateSource::MachineConfigs(MachineConfigs::LastUsable(files)))
        }
        _ => None,
    };
    let refused = match reader_process::load(inputs, host) {
        Ok(desired) if desired.nothing && !inputs.allow_empty && !is_applied && fallback.is_some() => {
            DesiredError::DeclaresNothing
        }
        Ok(desired) => return Ok((desired, None)),
        Err(error) => error,
    };
    let Some(fallback) = fallback else { return Err(refused) };
    let source = std::mem::replace(&mut inputs.source, fallback);
    let policies = std::mem::replace(&mut inputs.policies, last_usable::policies(&kept));
    inputs.replaced = Some((source, policies));
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
