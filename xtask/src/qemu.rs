//! The emulator.
//!
//! Comes in: the cache. Goes out: a way to start QEMU 10 or later. Earlier ones crash guests with two CPUs while
//! kernel text is patched, which attaching programs does. Where the machine has an older one, Debian's backport
//! is unpacked into the cache with the libraries that the machine lacks, and run from there.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt::{self, Apt};
use crate::cache::{Cache, Stamp};
use crate::run::{find_program, output};

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
const OLDEST: u32 = 10;
const FOLDER: &str = "qemu";

/// A QEMU that works for us.
#[derive(Debug, Clone)]
pub(crate) struct Qemu {
    program: PathBuf,
    /// Root of an unpacked tree, if it does not come from the machine itself.
    tree: Option<PathBuf>,
}

impl Qemu {
    /// Finds or fetches one.
    pub(crate) fn ensure(cache: &Cache) -> Result<Self> {
        if let Some(program) = find_program(PROGRAM) {
            let machine = Self { program, tree: None };
            if machine.major().is_some_and(|major| major >= OLDEST) {
                return Ok(machine);
            }
        }
        let tree = cache.path(FOLDER);
        let cached = Self { program: tree.join("usr/bin").join(PROGRAM), tree: Some(tree) };
        if cache.stamp(FOLDER).is_some() && cached.major().is_some_and(|major| major >= OLDEST) {
            return Ok(cached);
        }
        let release = apt::codename()?;
        let backports = format!("{release}-backports");
        let suite = if release == "bookworm" { backports.as_str() } else { release.as_str() };
        let suites = if suite == release { vec![suite] } else { vec![release.as_str(), suite] };
        let debs = Apt::with_suites(cache, &suites)?.download_with_dependencies(PACKAGE, suite)?;
        cache.make(FOLDER, |folder| {
            let mut stamp = Stamp::of_version(suite);
            for deb in &debs {
                stamp.add_file(deb)?;
                apt::unpack(deb, folder)?;
            }
            Ok(stamp)
        })?;
        let version = cached.version().context("the QEMU unpacked into the cache does not run")?;
        if !cached.major().is_some_and(|major| major >= OLDEST) {
            bail!("Debian {suite} has {version}; {OLDEST} or later is needed");
        }
        Ok(cached)
    }

    /// A command that starts it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(tree) = &self.tree {
            let libraries = tree.join("usr/lib/x86_64-linux-gnu");
            let path = format!("{}:{}", libraries.display(), tree.join("lib/x86_64-linux-gnu").display());
            command.env("LD_LIBRARY_PATH", path).env("QEMU_MODULE_DIR", libraries.join("qemu"));
            for folder in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
                command.arg("-L").arg(tree.join(folder));
            }
            // What the machine already had was not downloaded.
            for folder in ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu"] {
                command.args(["-L", folder]);
            }
        }
        command
    }

    /// The first line of what it says of itself.
    pub(crate) fn version(&self) -> Result<String> {
        Ok(output(self.command().arg("--version"))?.lines().next().unwrap_or_default().to_owned())
    }

    fn major(&self) -> Option<u32> {
        let text = self.version().ok()?;
        text.split_once("version ")?.1.split('.').next()?.parse().ok()
    }
}
