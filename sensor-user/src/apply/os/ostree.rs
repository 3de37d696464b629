//! `ostree` alone: branches or commits of its repository, and kernel arguments.
//!
//! `osImageURL` is a branch (`os/v2`), one of a remote (`remote:os/v2`), which is pulled, or a commit. Deployments are
//! staged: `/etc` is merged, and the boot loader's entry written, when the host goes down.

use super::{
    change::{changed_image, words},
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

/// What runs.
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
pub(super) fn commands(change: &OsChange, booted: &Booted) -> Result<Vec<Vec<String>>, String> {
    if change.old_kernel != change.new_kernel
        || !change.add_extensions.is_empty()
        || !change.remove_extensions.is_empty()
    {
        return Err(
            "ostree alone cannot change kernel type or extensions; the image has to hold them".to_owned()
        );
    }
    let image = changed_image(change)?;
    if image.is_none() && !change.has_arguments() {
        return Ok(Vec::new());
    }
    let mut commands = Vec::new();
    let mut deploy = words(&["ostree", "admin", "deploy", "--stage"]);
    if change.has_arguments() {
        // All of them: `--karg-delete` takes one at most, and acts after what is appended.
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
        // The same commit, which goes on being what its origin says.
        let Booted { stateroot, name, .. } = booted;
        deploy.push(format!("--origin-file=/ostree/deploy/{stateroot}/deploy/{name}.origin"));
        deploy.push(name.split('.').next().unwrap_or(name).to_owned());
    }
    commands.push(deploy);
    Ok(commands)
}

/// The arguments after a change. Those that come go first, so that a change made twice appends them once.
fn wanted(change: &OsChange, booted: &[String]) -> Vec<String> {
    let gone = change.gone();
    let gone = |word: &String| gone.contains(word) || change.add_arguments.contains(word);
    booted.iter().filter(|word| !gone(word)).chain(&change.add_arguments).cloned().collect()
}

/// The arguments in the boot loader's entry of the deployment that the kernel was told to boot.
pub(super) fn arguments(root: &Path) -> Result<Vec<String>, String> {
    let text = |path: &Path| {
        bounded::read_text(path, bounded::UNIT)
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))
    };
    let line = arguments::split(&text(&root.join("proc/cmdline"))?);
    let own =
        line.iter().find(|word| word.starts_with("ostree=")).ok_or("the kernel was told of no deployment")?;
    let folder = root.join(ENTRIES);
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("{} cannot be read: {error}", folder.display()))?;
    for entry in entries {
        let entry = text(&entry.map_err(|error| error.to_string())?.path())?;
        let options = entry.lines().find_map(|line| line.strip_prefix("options"));
        let options = arguments::split(options.unwrap_or_default());
        if options.contains(own) {
            return Ok(options.into_iter().filter(|word| word != own).collect());
        }
    }
    Err(format!("no entry of the boot loader names {own}"))
}

pub(super) async fn status(tools: &Tools) -> Result<DeploymentStatus, String> {
    let answer = tools.run(&words(&["ostree", "admin", "status"]), QUESTION).await?;
    DeploymentStatus::of_ostree(&String::from_utf8_lossy(&answer)).map_err(|error| error.to_string())
}

/// Drops what waits for the next boot; it is the first deployment.
pub(super) async fn forget(tools: &Tools) -> Result<(), String> {
    tools.run(&words(&["ostree", "admin", "undeploy", "0"]), CHANGE).await.map(drop)
}

pub(super) async fn stage(
    tools: &Tools,
    change: &OsChange,
    status: &DeploymentStatus,
    root: &Path,
) -> Result<(), String> {
    let (stateroot, name) = status.place.clone().ok_or("ostree does not say what is booted")?;
    let booted = Booted { stateroot, name, arguments: arguments(root)? };
    for command in commands(change, &booted)? {
        if command[1] == "pull" {
            tools.download(&command).await?;
        } else {
            tools.run(&command, CHANGE).await?;
        }
    }
    Ok(())
}
