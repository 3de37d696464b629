//! `ostree` alone: branches or commits of its repository, and kernel arguments.
//!
//! In: a change. Out: the commands that stage it. `osImageURL` is a branch (`os/v2`), a commit, or a branch of a remote
//! (`remote:os/v2`), which it pulls first. `ostree` merges `/etc` and writes the boot loader's entry when the host shuts down.

use super::{
    change::{changed_image, words},
    error::{OsError, ToolError, UnsupportedChange},
    run::{CHANGE, QUESTION, Tools},
};
use crate::bounded;
use sensor_model::{
    journal::OsChange,
    os::{DeploymentStatus, arguments},
};
use std::{fs, path::Path};

/// Where the boot loader's entries are.
const ENTRIES: &str = "boot/loader/entries";

/// The booted deployment.
#[derive(Debug, Default)]
pub(super) struct Booted {
    /// The stateroot.
    pub(super) stateroot: String,
    /// Commit and serial of the deployment.
    pub(super) name: String,
    /// The kernel arguments of its boot loader entry, without ostree's own.
    pub(super) arguments: Vec<String>,
}

/// The commands that stage a change.
///
/// # Errors
/// What ostree cannot do.
pub(super) fn commands(change: &OsChange, booted: &Booted) -> Result<Vec<Vec<String>>, UnsupportedChange> {
    if change.old_kernel != change.new_kernel
        || !change.add_extensions.is_empty()
        || !change.remove_extensions.is_empty()
    {
        return Err(UnsupportedChange::Ostree);
    }
    let image = changed_image(change)?;
    if image.is_none() && !change.has_arguments() {
        return Ok(Vec::new());
    }
    let mut commands = Vec::new();
    let mut deploy = words(&["ostree", "admin", "deploy", "--stage"]);
    if change.has_arguments() {
        // ostree accepts one `--karg-delete` and applies it after the appended arguments, so all arguments are given anew.
        deploy.push("--karg-none".to_owned());
        let arguments = wanted(change, &booted.arguments);
        deploy.extend(arguments.into_iter().map(|word| format!("--karg-append={word}")));
    }
    if let Some(image) = image {
        if let Some((remote, branch)) = image.split_once(':') {
            commands.push(words(&["ostree", "pull", remote, branch]));
        }
        deploy.push(image.to_owned());
    } else {
        // The same commit keeps its origin.
        let Booted { stateroot, name, .. } = booted;
        deploy.push(format!("--origin-file=/ostree/deploy/{stateroot}/deploy/{name}.origin"));
        deploy.push(name.split('.').next().unwrap_or(name).to_owned());
    }
    commands.push(deploy);
    Ok(commands)
}

/// The arguments after a change. Arguments to be added are removed first, so that a change made twice appends them once.
fn wanted(change: &OsChange, booted: &[String]) -> Vec<String> {
    let gone = change.gone();
    let gone = |word: &String| gone.contains(word) || change.add_arguments.contains(word);
    booted.iter().filter(|word| !gone(word)).chain(&change.add_arguments).cloned().collect()
}

/// The arguments in the boot loader's entry of a deployment, which has a stateroot and a name.
///
/// The entry of the booted deployment need not have the kernel's own `ostree=`: a soft reboot keeps that of the deployment before, and a rollback gives
/// the links of all entries other names.
pub(super) fn arguments(root: &Path, stateroot: &str, name: &str) -> Result<Vec<String>, OsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| OsError::File { path, error }
    };
    let text = |path: &Path| bounded::read_text(path, bounded::UNIT).map_err(failed(path));
    let deployment = Path::new(stateroot).join("deploy").join(name);
    let leads_there = |word: &String| {
        let link = word.strip_prefix("ostree=").map(|link| root.join(link.trim_start_matches('/')));
        link.and_then(|link| fs::canonicalize(link).ok()).is_some_and(|real| real.ends_with(&deployment))
    };
    let folder = root.join(ENTRIES);
    for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
        let entry = text(&entry.map_err(failed(&folder))?.path())?;
        let options = entry.lines().find_map(|line| line.strip_prefix("options"));
        let options = arguments::split(options.unwrap_or_default());
        if options.iter().any(leads_there) {
            return Ok(options.into_iter().filter(|word| !word.starts_with("ostree=")).collect());
        }
    }
    Err(OsError::NoEntry(name.to_owned()))
}

pub(super) async fn status(tools: &Tools) -> Result<DeploymentStatus, OsError> {
    let answer = tools.run(&words(&["ostree", "admin", "status"]), QUESTION).await?;
    Ok(DeploymentStatus::of_ostree(&String::from_utf8_lossy(&answer))?)
}

/// Drops the deployment that waits for the next boot. ostree lists it first.
pub(super) async fn forget(tools: &Tools) -> Result<(), ToolError> {
    tools.run(&words(&["ostree", "admin", "undeploy", "0"]), CHANGE).await.map(drop)
}

pub(super) async fn stage(
    tools: &Tools,
    change: &OsChange,
    status: &DeploymentStatus,
    root: &Path,
) -> Result<(), OsError> {
    let (stateroot, name) = status.place.clone().ok_or(OsError::NothingBooted)?;
    let arguments = arguments(root, &stateroot, &name)?;
    let booted = Booted { stateroot, name, arguments };
    for command in commands(change, &booted)? {
        if command[1] == "pull" {
            tools.download(&command).await?;
        } else {
            tools.run(&command, CHANGE).await?;
        }
    }
    Ok(())
}
