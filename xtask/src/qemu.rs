//! The emulator.
//!
//! In: the cache. Out: a way to start QEMU 10 or later. Earlier versions crash guests with two CPUs while the kernel patches
//! its text, which attaching programs does. If the machine has an older version, Debian's backport runs from the cache, with
//! the libraries that the machine lacks.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt;
use crate::cache::Cache;
use crate::run::{find_program, output};
use crate::tools::PackageTree;

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
const OLDEST: u32 = 10;
const FOLDER: &str = "qemu";
/// Where firmware is, below the root of the machine or of the unpacked tree.
const FIRMWARE: &[&str] = &["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];

/// A QEMU of a suitable version.
#[derive(Debug, Clone)]
pub(crate) struct Qemu {
    program: PathBuf,
    /// Where it was unpacked, if it is not the machine's own.
    tree: Option<PackageTree>,
}

impl Qemu {
    /// Finds or fetches one.
    pub(crate) fn ensure(cache: &Cache) -> Result<Self> {
        let machine = find_program(PROGRAM).map(|program| Self { program, tree: None });
        let cached = PackageTree::cached(cache, FOLDER).and_then(Self::in_tree);
        // Which libraries were unpacked depends on the machine, so a cache that moved may not run.
        if let Some(qemu) = machine.into_iter().chain(cached).find(Self::is_new_enough) {
            return Ok(qemu);
        }
        let release = apt::codename()?;
        let backports = format!("{release}-backports");
        let tree = if release == "bookworm" {
            PackageTree::make(cache, FOLDER, &[&release, &backports], &backports, &[PACKAGE])?
        } else {
            PackageTree::make(cache, FOLDER, &[&release], &release, &[PACKAGE])?
        };
        let fetched = Self::in_tree(tree).with_context(|| format!("{PACKAGE} holds no {PROGRAM}"))?;
        let version = fetched.version().context("the QEMU unpacked into the cache does not run")?;
        if !fetched.is_new_enough() {
            bail!("Debian {release} has {version}; {OLDEST} or later is needed");
        }
        Ok(fetched)
    }

    fn in_tree(tree: PackageTree) -> Option<Self> {
        Some(Self { program: tree.program(PROGRAM)?, tree: Some(tree) })
    }

    /// A command that starts it.
    pub(crate) fn command(&self) -> Command {
        let Some(tree) = &self.tree else { return Command::new(&self.program) };
        let mut command = tree.command(&self.program);
        command.env("QEMU_MODULE_DIR", tree.path("usr/lib/x86_64-linux-gnu/qemu"));
        for folder in FIRMWARE {
            // What the machine already had was not unpacked.
            command.arg("-L").arg(tree.path(folder)).arg("-L").arg(format!("/{folder}"));
        }
        command
    }

    /// The first line of its version output.
    pub(crate) fn version(&self) -> Result<String> {
        Ok(output(self.command().arg("--version"))?.lines().next().unwrap_or_default().to_owned())
    }

    fn is_new_enough(&self) -> bool {
        let version = self.version().unwrap_or_default();
        let major =
            version.split_once("version ").and_then(|(_, rest)| rest.split('.').next()?.parse::<u32>().ok());
        major.is_some_and(|major| major >= OLDEST)
    }
}
