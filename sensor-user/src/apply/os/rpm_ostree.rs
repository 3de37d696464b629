//! `rpm-ostree`: image, kernel arguments, kernel type and extensions.
//!
//! In: a change. Out: the commands that stage it, and how the staged deployment differs from it.

use super::{
    change::{arguments_differ, changed_image, words},
    error::{OsError, ToolError, UnsupportedChange},
    run::{CHANGE, QUESTION, Tools},
};
use sensor_model::{
    journal::OsChange,
    os::{Deployment, DeploymentStatus, arguments},
};

/// The commands that stage a change, in their order.
///
/// # Errors
/// What rpm-ostree cannot do.
pub(super) fn commands(change: &OsChange) -> Result<Vec<Vec<String>>, UnsupportedChange> {
    let mut commands = Vec::new();
    if let Some(image) = changed_image(change)? {
        let image = format!("ostree-unverified-registry:{image}");
        commands.push(words(&["rpm-ostree", "rebase", "--experimental", &image]));
    }
    if change.old_kernel != change.new_kernel {
        let parts =
            |package: &str| ["core", "modules", "modules-extra"].map(|part| format!("{package}-{part}"));
        let (old, new) = (package(&change.old_kernel)?, package(&change.new_kernel)?);
        let mut command = words(&["rpm-ostree", "override"]);
        if new == "kernel" {
            command.push("reset".to_owned());
            command.extend(parts("kernel"));
            command.extend(parts(old).iter().flat_map(|part| words(&["--uninstall", part])));
        } else {
            command.push("remove".to_owned());
            command.extend(parts("kernel"));
            command.extend(parts(new).iter().flat_map(|part| words(&["--install", part])));
        }
        commands.push(command);
    }
    if !change.remove_extensions.is_empty() || !change.add_extensions.is_empty() {
        let mut command = words(&["rpm-ostree", "update"]);
        for package in packages(&change.remove_extensions) {
            command.extend(words(&["--uninstall", package]));
        }
        for package in packages(&change.add_extensions) {
            command.extend(words(&["--install", package]));
        }
        commands.push(command);
    }
    if change.has_arguments() {
        let mut command = words(&["rpm-ostree", "kargs"]);
        // Arguments to be added are removed first, so that a change that is staged twice appends them once.
        let gone = change.gone();
        command.extend(
            gone.iter().chain(&change.add_arguments).map(|word| format!("--delete-if-present={word}")),
        );
        command.extend(change.add_arguments.iter().map(|word| format!("--append={word}")));
        commands.push(command);
    }
    Ok(commands)
}

/// The package of a kernel type.
fn package(kernel: &str) -> Result<&'static str, UnsupportedChange> {
    match kernel {
        "default" => Ok("kernel"),
        "realtime" => Ok("kernel-rt"),
        "64k-pages" => Ok("kernel-64k"),
        other => Err(UnsupportedChange::KernelType(other.to_owned())),
    }
}

/// The packages behind the Machine Config Operator's names of extensions.
fn packages(extensions: &[String]) -> Vec<&str> {
    extensions
        .iter()
        .flat_map(|extension| match extension.as_str() {
            "two-node-ha" => vec!["pacemaker", "pcs", "fence-agents-all"],
            "ipsec" => vec!["NetworkManager-libreswan", "libreswan", "openvswitch3.5-ipsec"],
            "kerberos" => vec!["krb5-workstation", "libkadm5"],
            "kernel-devel" => vec!["kernel-devel", "kernel-headers"],
            "sandboxed-containers" => vec!["kata-containers"],
            other => vec![other],
        })
        .collect()
}

pub(super) async fn status(tools: &Tools) -> Result<DeploymentStatus, OsError> {
    let answer = tools.run(&words(&["rpm-ostree", "status", "--json"]), QUESTION).await?;
    Ok(DeploymentStatus::of_rpm_ostree(&answer)?)
}

/// Drops the deployment that waits for the next boot.
pub(super) async fn forget(tools: &Tools) -> Result<(), ToolError> {
    tools.run(&words(&["rpm-ostree", "cleanup", "-p"]), CHANGE).await.map(drop)
}

pub(super) async fn stage(tools: &Tools, change: &OsChange) -> Result<(), OsError> {
    for command in commands(change)? {
        // All commands but `kargs` download packages or an image.
        if command[1] == "kargs" {
            tools.run(&command, CHANGE).await?;
        } else {
            tools.download(&command).await?;
        }
    }
    Ok(())
}

/// The packages and kernel arguments in which the next deployment differs from a change.
pub(super) async fn missing(
    tools: &Tools,
    change: &OsChange,
    next: &Deployment,
) -> Result<Vec<String>, ToolError> {
    let mut problems = Vec::new();
    let has = |package: &str| next.packages.iter().any(|found| found == package);
    for package in packages(&change.add_extensions).into_iter().filter(|package| !has(package)) {
        problems.push(format!("package {package} is not staged"));
    }
    for package in packages(&change.remove_extensions).into_iter().filter(|package| has(package)) {
        problems.push(format!("package {package} is staged although it should be removed"));
    }
    if change.has_arguments() {
        let line = tools.run(&words(&["rpm-ostree", "kargs", "--deploy-index=0"]), QUESTION).await?;
        let found = arguments::split(&String::from_utf8_lossy(&line));
        problems.extend(arguments_differ(change, &found, "staged", &[]));
    }
    Ok(problems)
}
