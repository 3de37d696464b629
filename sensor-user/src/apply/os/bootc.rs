//! `bootc`: the image alone.
//!
//! Kernel arguments are the image's own here (`/usr/lib/bootc/kargs.d`). Releases since the spring of 2026 can set those
//! of one host as well (`bootc loader-entries`); that is not used as long as it was not run. Where `rpm-ostree` is there
//! besides, it is taken, and does arguments.

use super::{
    change::{changed_image, words},
    run::{QUESTION, Tools},
};
use sensor_model::{journal::OsChange, os::DeploymentStatus};

/// # Errors
/// What bootc cannot do.
pub(super) fn commands(change: &OsChange) -> Result<Vec<Vec<String>>, String> {
    let others = change.old_kernel != change.new_kernel
        || !change.add_extensions.is_empty()
        || !change.remove_extensions.is_empty()
        || change.has_arguments();
    if others {
        return Err(
            "bootc changes the image alone: kernel arguments (/usr/lib/bootc/kargs.d), kernel type and extensions \
             have to be in it"
                .to_owned(),
        );
    }
    let image = changed_image(change)?;
    Ok(image.into_iter().map(|image| words(&["bootc", "switch", image])).collect())
}

pub(super) async fn status(tools: &Tools) -> Result<DeploymentStatus, String> {
    let answer = tools.run(&words(&["bootc", "status", "--format", "json"]), QUESTION).await?;
    DeploymentStatus::of_bootc(&answer).map_err(|error| error.to_string())
}

pub(super) async fn stage(tools: &Tools, change: &OsChange) -> Result<(), String> {
    for command in commands(change)? {
        tools.download(&command).await?;
    }
    Ok(())
}
