//! Enrols the managed paths of a new root directory after a soft reboot, before units start.
//!
//! In: the options, the pinned programs of the daemon in the root directory before. Out: entries of the new inodes, and none of the
//! old ones. It reads no ring, so the records of changes since then wait for the daemon. It writes no deny rule, because only the
//! daemon knows the allowed actors of this userspace.

use super::applies::Applies;
use super::error::AgentError;
use super::kernel_programs::KernelPrograms;
use super::options::AgentOptions;
use super::verifier::Verifier;
use super::{lock, new_root, start};
use crate::kernel::load;
use crate::observation::Observer;
use std::sync::Arc;

/// The result of [`enrol`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enrolment {
    /// No daemon with the same kernel programs left all of them attached.
    NoPrograms,
    /// The programs watch this root directory already.
    SameRoot,
    /// The managed paths of another root directory are enrolled: the number of entries.
    NewRoot(usize),
}

/// Enrols the managed paths of a new root directory with the programs that an earlier daemon left, and removes the entries of the
/// old one.
///
/// # Errors
/// A daemon runs, a config with a mistake, or programs that cannot be used.
pub fn enrol(mut options: AgentOptions, mut applies: Box<dyn Applies>) -> Result<Enrolment, AgentError> {
    let Some(pins) = options.pins.clone() else { return Ok(Enrolment::NoPrograms) };
    let Some(set) = load::pinned_set(&pins) else { return Ok(Enrolment::NoPrograms) };
    start::make_directory(&options.run)?;
    let _locks = lock::take(&options)?;
    let observer = Arc::new(Observer::guarded(&options.inputs.root)?);
    match applies.current() {
        Ok(Some(generation)) => {
            options.inputs.use_applied(generation.into());
        }
        Ok(None) => {}
        Err(error) => tracing::error!(%error, "Cannot read which config was applied last."),
    }
    let (desired, _) = start::load(&mut options, &observer)?;
    let loaded = load::load(set, Some(&pins), Some(start::map_entries(&desired)))
        .map_err(|error| AgentError::Programs(Box::new(error)))?;
    if !loaded.adopted {
        // The daemon's start attaches new ones, and opens the gap for the time without them.
        loaded.sensor.detach();
        return Ok(Enrolment::NoPrograms);
    }
    let mut kernel = KernelPrograms::new(loaded.maps);
    if !new_root::is_new(&mut kernel, &observer)? {
        kernel.maps().forget_agent()?;
        return Ok(Enrolment::SameRoot);
    }
    new_root::mark(&options.run).map_err(|source| AgentError::io("mark the new root directory", source))?;
    let mut verifier = Verifier::new(observer, &options.inputs.root, Some(kernel), &desired);
    let enrolled = verifier.enrol_all();
    let Some(kernel) = &mut verifier.kernel else { return Ok(Enrolment::NoPrograms) };
    // Also after a failure, because this process ends.
    kernel.maps().forget_agent()?;
    enrolled?;
    Ok(Enrolment::NewRoot(new_root::managed(kernel).count()))
}
