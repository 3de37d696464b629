//! Programs in the cache: Debian's, unpacked, and crates, built by cargo.
//!
//! In: packages and their suite, or a crate and its version. Out: a tree with them and with the libraries that this machine
//! lacks, and commands that find both. It installs nothing on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::apt::{self, Apt};
use crate::cache::{Cache, CacheStamp, remove_tree};
use crate::run::{cargo, output, quiet, say, show};

/// Folders of a tree that hold programs.
const PROGRAMS: &[&str] = &["usr/bin", "bin", "usr/sbin", "sbin"];
/// Folders of a tree that hold libraries.
const LIBRARIES: &[&str] = &["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// An unpacked set of packages.
#[derive(Debug, Clone)]
pub(crate) struct PackageTree {
    root: PathBuf,
}

impl PackageTree {
    /// The tree in the cache, if it was completely made.
    pub(crate) fn cached(cache: &Cache, name: &str) -> Option<Self> {
        cache.stamp(name).map(|_| Self { root: cache.path(name) })
    }

    /// Makes a tree from packages of `suite`; their dependencies may come from any of `suites`.
    pub(crate) fn make(
        cache: &Cache,
        name: &str,
        suites: &[&str],
        suite: &str,
        packages: &[&str],
    ) -> Result<Self> {
        let debs = Apt::with_suites(cache, suites)?.download_with_dependencies(packages, suite)?;
        let root = cache.make(name, |folder| {
            let mut stamp = CacheStamp::of_version(suite);
            for deb in &debs {
                stamp.add_file(deb)?;
                apt::unpack(deb, folder)?;
            }
            Ok(stamp)
        })?;
        Ok(Self { root })
    }

    /// The tree of one package of the machine's release, with what it depends on.
    pub(crate) fn of_package(cache: &Cache, package: &str) -> Result<Self> {
        if let Some(tree) = Self::cached(cache, package) {
            return Ok(tree);
        }
        let release = apt::codename()?;
        Self::make(cache, package, &[&release], &release, &[package])
    }

    /// The tree of just these packages of a suite, without what they depend on: for a machine of another release, or for
    /// programs that need nothing. It is made anew when the list changes.
    pub(crate) fn of_packages(cache: &Cache, name: &str, suite: &str, packages: &[&str]) -> Result<Self> {
        Self::of_suites(cache, name, &[suite], packages)
    }

    /// The same, with the newest version that any of the suites has.
    pub(crate) fn of_suites(cache: &Cache, name: &str, suites: &[&str], packages: &[&str]) -> Result<Self> {
        let suite = suites.join(", ");
        let version = format!("{suite}: {}", packages.join(" "));
        let root = cache.path(name);
        if cache.stamp(name).is_some_and(|stamp| stamp.version == version) {
            return Ok(Self { root });
        }
        let apt = Apt::with_suites(cache, suites)?;
        cache.make(name, |folder| {
            let mut stamp = CacheStamp::of_version(&version);
            for package in packages {
                let offer = apt.newest(package)?;
                let deb =
                    apt.download(&offer.with_context(|| format!("Debian {suite} has no {package}"))?)?;
                stamp.add_file(&deb)?;
                apt::unpack(&deb, folder)?;
                fs::remove_file(deb)?;
            }
            Ok(stamp)
        })?;
        Ok(Self { root })
    }

    /// The path of a file in the tree.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Where a program of the tree is, if it is there.
    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        PROGRAMS.iter().map(|folder| self.root.join(folder).join(name)).find(|path| path.is_file())
    }

    /// A command that runs a program with the libraries of the tree.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let folders: Vec<String> =
            LIBRARIES.iter().map(|f| self.root.join(f).display().to_string()).collect();
        command.env("LD_LIBRARY_PATH", folders.join(":"));
        command
    }
}

/// The program of a crate, built once in just this version; `options` go to `cargo install`.
pub(crate) fn cargo_tool(cache: &Cache, name: &str, version: &str, options: &[&str]) -> Result<PathBuf> {
    let root = cache.path(&format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    let right_version = |program: &Path| {
        output(Command::new(program).arg("--version")).is_ok_and(|text| text.contains(version))
    };
    if right_version(&program) {
        return Ok(program);
    }
    say(name, &format!("build {version} (a few minutes)"));
    let target = cache.path(&format!("tmp/{name}-target"));
    show(
        cargo()
            .args(["install", name, "--locked", "--force", "--version", version, "--root"])
            .arg(&root)
            .args(options)
            .args(quiet())
            .env("CARGO_TARGET_DIR", &target)
            .current_dir(cache.path("")),
    )?;
    remove_tree(&target)?;
    if !right_version(&program) {
        bail!("{} does not run after it was built", program.display());
    }
    Ok(program)
}
