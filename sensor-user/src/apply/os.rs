//! The operating system itself: image, kernel arguments, kernel type, extensions.
//!
//! In: a change. Out: a staged deployment for the next boot, by the tool that the host has. Commands are run by their
//! arguments, never through a shell; what they print on failure is told.

use sensor_model::{
    journal::OsChange,
    merge::{Rendered, Sourced},
};
use std::{path::Path, process::Command};

/// What changes an image-based host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The host is not image-based: nothing of its OS can be changed.
    None,
    /// `rpm-ostree`.
    RpmOstree,
    /// `bootc`.
    Bootc,
    /// `ostree` alone.
    Ostree,
}

impl Backend {
    /// The one that this host has. Only the host that runs can be changed.
    pub fn find(root: &Path) -> Self {
        if root != Path::new("/") || !Path::new("/run/ostree-booted").exists() {
            return Self::None;
        }
        let has = |program: &str| Path::new("/usr/bin").join(program).exists();
        match () {
            () if has("rpm-ostree") => Self::RpmOstree,
            () if has("bootc") => Self::Bootc,
            () if has("ostree") => Self::Ostree,
            () => Self::None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RpmOstree => "rpm-ostree",
            Self::Bootc => "bootc",
            Self::Ostree => "ostree",
        }
    }

    /// Why a change cannot be made here; `None` when it can.
    pub fn refuses(self, change: &OsChange) -> Option<String> {
        self.commands(change).err()
    }

    /// Stages a change for the next boot.
    ///
    /// # Errors
    /// What the command said.
    pub fn apply(self, change: &OsChange) -> Result<(), String> {
        for command in self.commands(change)? {
            run(&command)?;
        }
        Ok(())
    }

    /// The commands that stage a change, each as program and arguments.
    ///
    /// # Errors
    /// What this backend cannot do.
    pub fn commands(self, change: &OsChange) -> Result<Vec<Vec<String>>, String> {
        match self {
            Self::None => {
                Err("the host has no OS that can be changed as a whole (no rpm-ostree, bootc or ostree); \
                               kernel arguments, kernel type, extensions and OS image cannot be applied"
                    .to_owned())
            }
            Self::RpmOstree => rpm_ostree(change),
            Self::Bootc => bootc(change),
            Self::Ostree => ostree(change),
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn rpm_ostree(change: &OsChange) -> Result<Vec<Vec<String>>, String> {
    let mut commands = Vec::new();
    if let Some(image) = changed_image(change)? {
        commands.push(words(&[
            "rpm-ostree",
            "rebase",
            "--experimental",
            &format!("ostree-unverified-registry:{image}"),
        ]));
    }
    if change.old_kernel != change.new_kernel {
        let package = |kernel: &str| match kernel {
            "default" => Ok("kernel"),
            "realtime" => Ok("kernel-rt"),
            "64k-pages" => Ok("kernel-64k"),
            other => Err(format!("kernel type {other:?} is not known")),
        };
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
    if !change.remove_arguments.is_empty() || !change.add_arguments.is_empty() {
        let mut command = words(&["rpm-ostree", "kargs"]);
        command.extend(change.remove_arguments.iter().map(|word| format!("--delete-if-present={word}")));
        command.extend(change.add_arguments.iter().map(|word| format!("--append={word}")));
        commands.push(command);
    }
    Ok(commands)
}

/// The packages behind the Machine Config Operator's names of extensions.
fn packages(extensions: &[String]) -> Vec<&str> {
    extensions
        .iter()
        .flat_map(|extension| match extension.as_str() {
            "two-node-ha" => vec!["pacemaker", "pcs", "fence-agents-all"],
            "ipsec" => vec!["NetworkManager-libreswan", "libreswan"],
            "kerberos" => vec!["krb5-workstation", "libkadm5"],
            "kernel-devel" => vec!["kernel-devel", "kernel-headers"],
            "sandboxed-containers" => vec!["kata-containers"],
            other => vec![other],
        })
        .collect()
}

fn bootc(change: &OsChange) -> Result<Vec<Vec<String>>, String> {
    only_image("bootc", change)?;
    let image = changed_image(change)?;
    Ok(image.into_iter().map(|image| words(&["bootc", "switch", image])).collect())
}

fn ostree(change: &OsChange) -> Result<Vec<Vec<String>>, String> {
    if change.old_kernel != change.new_kernel
        || !change.add_extensions.is_empty()
        || !change.remove_extensions.is_empty()
    {
        return Err(
            "ostree alone cannot change kernel type or extensions; the image has to hold them".to_owned()
        );
    }
    let mut commands = Vec::new();
    let mut deploy = words(&["ostree", "admin", "deploy"]);
    let arguments = |command: &mut Vec<String>, remove: &str, add: &str| {
        command.extend(change.remove_arguments.iter().map(|word| format!("{remove}={word}")));
        command.extend(change.add_arguments.iter().map(|word| format!("{add}={word}")));
    };
    match changed_image(change)? {
        Some(image) => {
            arguments(&mut deploy, "--karg-delete", "--karg-append");
            deploy.push(image.to_owned());
            commands.push(deploy);
        }
        None if !change.remove_arguments.is_empty() || !change.add_arguments.is_empty() => {
            let mut command = words(&["ostree", "admin", "kargs", "edit-in-place"]);
            arguments(&mut command, "--delete-if-present", "--append-if-missing");
            commands.push(command);
        }
        None => {}
    }
    Ok(commands)
}

fn only_image(backend: &str, change: &OsChange) -> Result<(), String> {
    let others = change.old_kernel != change.new_kernel
        || !change.add_extensions.is_empty()
        || !change.remove_extensions.is_empty()
        || !change.add_arguments.is_empty()
        || !change.remove_arguments.is_empty();
    if others {
        return Err(format!(
            "{backend} changes the image alone: kernel arguments, kernel type and extensions have to be in it"
        ));
    }
    Ok(())
}

fn changed_image(change: &OsChange) -> Result<Option<&str>, String> {
    if change.old_image == change.new_image {
        return Ok(None);
    }
    let image = change
        .new_image
        .as_deref()
        .ok_or("no OS image is declared any more, and nobody says which one to go back to")?;
    // An option in the place of an image would be taken for one.
    if image.starts_with('-') {
        return Err(format!("osImageURL {image:?} is no image"));
    }
    Ok(Some(image))
}

fn run(command: &[String]) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let out = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: cannot be started: {error}"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(format!("{}: {}: {}", command.join(" "), out.status, said.trim()))
}

/// What differs of the OS between two configs; `None` when nothing does.
pub fn change(old: &Rendered, new: &Rendered) -> Option<OsChange> {
    let value = |part: &Option<Sourced<String>>| part.as_ref().map(|part| part.value.clone());
    let values = |parts: &[Sourced<String>]| parts.iter().map(|part| part.value.clone()).collect::<Vec<_>>();
    let kernel = |rendered: &Rendered| value(&rendered.kernel_type).unwrap_or_else(|| "default".to_owned());
    let missing = |from: &[String], of: &[String]| -> Vec<String> {
        of.iter().filter(|word| !from.contains(word)).cloned().collect()
    };
    let (old_words, new_words) = (values(&old.kernel_arguments), values(&new.kernel_arguments));
    let (old_extensions, new_extensions) = (values(&old.extensions), values(&new.extensions));
    // Order and repetition of arguments count: all old ones go, all new ones come.
    let (remove_arguments, add_arguments) =
        if old_words == new_words { (Vec::new(), Vec::new()) } else { (old_words, new_words) };
    let change = OsChange {
        old_image: value(&old.os_image_url),
        new_image: value(&new.os_image_url),
        remove_arguments,
        add_arguments,
        old_kernel: kernel(old),
        new_kernel: kernel(new),
        remove_extensions: missing(&new_extensions, &old_extensions),
        add_extensions: missing(&old_extensions, &new_extensions),
    };
    let same = change.old_image == change.new_image
        && change.old_kernel == change.new_kernel
        && change.remove_arguments.is_empty()
        && change.add_arguments.is_empty()
        && change.remove_extensions.is_empty()
        && change.add_extensions.is_empty();
    (!same).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> OsChange {
        OsChange {
            old_image: Some("registry/os@sha256:1".to_owned()),
            new_image: Some("registry/os@sha256:2".to_owned()),
            remove_arguments: vec!["quiet".to_owned()],
            add_arguments: vec!["nosmt; reboot".to_owned()],
            old_kernel: "default".to_owned(),
            new_kernel: "default".to_owned(),
            ..OsChange::default()
        }
    }

    #[test]
    fn every_value_is_one_argument_of_one_program() {
        let commands = Backend::RpmOstree.commands(&change()).unwrap();
        assert_eq!(commands[0].last().unwrap(), "ostree-unverified-registry:registry/os@sha256:2");
        assert_eq!(commands[1][1..], ["kargs", "--delete-if-present=quiet", "--append=nosmt; reboot"]);
        let commands = Backend::Ostree.commands(&change()).unwrap();
        assert_eq!(commands[0][1..4], ["admin", "deploy", "--karg-delete=quiet"]);
    }

    #[test]
    fn what_a_backend_cannot_do_is_said_before_anything_is_done() {
        assert!(Backend::None.refuses(&change()).is_some());
        assert!(Backend::Bootc.refuses(&change()).is_some());
        let odd = OsChange { new_image: Some("--help".to_owned()), ..change() };
        assert!(Backend::RpmOstree.refuses(&odd).is_some());
        let kernel = OsChange { new_kernel: "realtime".to_owned(), ..change() };
        assert!(Backend::Ostree.refuses(&kernel).is_some() && Backend::RpmOstree.refuses(&kernel).is_none());
    }

    #[test]
    fn a_reversed_change_goes_back_to_what_was() {
        let there = change();
        assert_eq!(there.reversed().reversed(), there);
        let commands = Backend::RpmOstree.commands(&there.reversed()).unwrap();
        assert_eq!(commands[1][2..], ["--delete-if-present=nosmt; reboot", "--append=quiet"]);
    }
}
