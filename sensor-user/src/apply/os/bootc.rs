//! `bootc`: the image alone.
//!
//! In: a change. Out: `bootc switch`, and what bootc reports. Kernel arguments are part of the image
//! (`/usr/lib/bootc/kargs.d`). Releases since the spring of 2026 can set those of one host (`bootc loader-entries`). Holdfast
//! does not use that, because no test has run it. On a host with both, Holdfast uses `rpm-ostree`, which can set arguments.

use super::{
    change::{changed_image, words},
    error::{OsError, UnsupportedChange},
    run::{QUESTION, Tools},
};
use sensor_model::{journal::OsChange, os::DeploymentStatus};

/// The commands that stage a change.
///
/// # Errors
/// What bootc cannot do.
pub(super) fn commands(change: &OsChange) -> Result<Vec<Vec<String>>, UnsupportedChange> {
    let others = change.old_kernel != change.new_kernel
        || !change.add_extensions.is_empty()
        || !change.remove_extensions.is_empty()
        || change.has_arguments();
    if others {
        return Err(UnsupportedChange::Bootc);
    }
    let image = changed_image(change)?;
    Ok(image.into_iter().map(|image| words(&["bootc", "switch", image])).collect())
}

pub(super) async fn status(tools: &Tools) -> Result<DeploymentStatus, OsError> {
    let answer = tools.run(&words(&["bootc", "status", "--format", "json"]), QUESTION).await?;
    Ok(DeploymentStatus::of_bootc(&answer)?)
}

pub(super) async fn stage(tools: &Tools, change: &OsChange) -> Result<(), OsError> {
    for command in commands(change)? {
        tools.download(&command).await?;
    }
    Ok(())
}
