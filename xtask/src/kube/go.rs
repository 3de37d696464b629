//! Programs that Go builds from pinned modules.
//!
//! In: a folder with `go.mod` and `go.sum`, and which programs of its module are wanted. Out: a folder of the cache
//! with these programs, linked statically and stripped. An interrupted build continues from Go's own caches, which are
//! below the Holdfast cache. The caller removes them when everything is built, since they take gigabytes. A machine without Go gets
//! Debian's, unpacked into the cache, and an older Go than the pins need fetches the needed one as a module.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::apt::Apt;
use crate::cache::{Cache, CacheStamp, remove_tree};
use crate::dist;
use crate::run::{find_program, output, say};
use crate::tools::PackageTree;

/// Debian's packages, one for each version of Go.
const PACKAGES: &str = "golang-1.*-go";
/// The suites with them. Their programs run on Debian 12 too.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
/// The folder in the cache.
const UNPACKED: &str = "kube/go";
/// How often a download of modules is tried. A module is downloaded once, so each try continues the one before.
const TRIES: usize = 3;
/// Packages that Go compiles at once.
const AT_ONCE: &str = "2";
/// Go's caches, below the Holdfast cache.
const CACHES: &str = "tmp/go";

/// The programs of one module.
#[derive(Debug, Clone)]
pub(super) struct GoSource {
    /// The folder with the pins, below the root of the working tree.
    pub(super) folder: String,
    /// The module.
    pub(super) module: &'static str,
    /// Programs in its folder `cmd`.
    pub(super) programs: &'static [&'static str],
    /// Build tags.
    pub(super) tags: &'static str,
    /// The variable that holds the version that the programs print, if the build has to set it.
    pub(super) version_variable: Option<&'static str>,
    /// The programs' folder in the cache.
    pub(super) cached: String,
}

impl GoSource {
    /// Where a program is after a build.
    pub(super) fn program(&self, cache: &Cache, name: &str) -> PathBuf {
        cache.path(&self.cached).join(name)
    }

    /// Whether the cache has the programs of these very pins, built with these flags.
    pub(super) fn is_built(&self, cache: &Cache) -> Result<bool> {
        let pins = self.pins()?;
        Ok(cache.stamp(&self.cached) == Some(self.stamp(&pins)?))
    }

    /// The oldest Go that can build it.
    pub(super) fn needed(&self) -> Result<GoVersion> {
        let pins = self.pins()?;
        let line = pins.lines().find_map(|line| line.strip_prefix("go "));
        line.and_then(GoVersion::parse)
            .with_context(|| format!("{}/go.mod names no version of Go", self.folder))
    }

    fn pins(&self) -> Result<String> {
        let path = dist::root().join(&self.folder).join("go.mod");
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The flags of `go build`.
    fn flags(&self, pins: &str) -> Result<Vec<String>> {
        let version = version(pins, self.module)
            .with_context(|| format!("{}/go.mod does not require {}", self.folder, self.module))?;
        let mut linker = "-s -w".to_owned();
        if let Some(variable) = self.version_variable {
            linker = format!("{linker} -X {variable}={version}");
        }
        Ok(vec!["-trimpath".into(), "-ldflags".into(), linker, "-tags".into(), self.tags.into()])
    }

    fn stamp(&self, pins: &str) -> Result<CacheStamp> {
        let mut stamp =
            CacheStamp::of_version(&[&self.flags(pins)?.join(" "), "of", &self.programs.join(" ")].join(" "));
        for file in ["go.mod", "go.sum"] {
            stamp.add_file(&dist::root().join(&self.folder).join(file))?;
        }
        Ok(stamp)
    }

    /// Builds the programs into the cache.
    pub(super) fn build(&self, cache: &Cache, go: &Go) -> Result<()> {
        let pins = self.pins()?;
        let flags = self.flags(&pins)?;
        let packages: Vec<String> =
            self.programs.iter().map(|program| format!("{}/cmd/{program}", self.module)).collect();
        self.download(go, &packages)?;
        cache.make(&self.cached, |folder| {
            for (program, package) in self.programs.iter().zip(&packages) {
                say("go", &format!("build {program}"));
                let start = Instant::now();
                let mut build = go.command(&self.folder);
                build.args(["build", "-p", AT_ONCE]).args(&flags).arg("-o").arg(folder.join(program));
                output(build.arg(package))?;
                say("go", &format!("{program} is built ({:.0} s)", start.elapsed().as_secs_f64()));
            }
            self.stamp(&pins)
        })?;
        Ok(())
    }

    /// Downloads the modules that the packages need.
    fn download(&self, go: &Go, packages: &[String]) -> Result<()> {
        say("go", &format!("download {} and the modules that it needs", self.module));
        let mut tries = 1;
        loop {
            let mut list = go.command(&self.folder);
            list.args(["list", "-deps", "-f", "{{.ImportPath}}", "-tags", self.tags]).args(packages);
            match output(&mut list) {
                Ok(_) => return Ok(()),
                Err(error) if tries == TRIES => {
                    return Err(error.context(format!("cannot download the modules of {}", self.module)));
                }
                Err(_) => say("go", "the download failed; it continues with another try"),
            }
            tries += 1;
        }
    }
}

/// The version of a module that `go.mod` requires.
fn version<'a>(pins: &'a str, module: &str) -> Option<&'a str> {
    pins.lines().find_map(|line| {
        let line = line.trim().strip_prefix("require ").unwrap_or(line.trim());
        let version = line.strip_prefix(module)?.strip_prefix(' ')?;
        version.starts_with('v').then(|| version.split(' ').next().unwrap_or(version))
    })
}

/// A Go toolchain, and where it keeps what it downloads and compiles.
#[derive(Debug)]
pub(super) struct Go {
    program: PathBuf,
    /// The value of `GOTOOLCHAIN`.
    toolchain: String,
    caches: PathBuf,
}

impl Go {
    /// Finds a Go of this version or later. A machine whose own one is missing or cannot fetch another gets Debian's.
    pub(super) fn find(cache: &Cache, needed: &GoVersion) -> Result<Self> {
        let present = find_program("go").and_then(|program| Self::from(cache, program, needed));
        if let Some(go) = present {
            return Ok(go);
        }
        Self::from(cache, debian(cache)?, needed)
            .context("the Go of Debian does not run, or is older than 1.21")
    }

    /// The program as it is if it is new enough. If it is older, it fetches the needed version.
    fn from(cache: &Cache, program: PathBuf, needed: &GoVersion) -> Option<Self> {
        let toolchain = GoVersion::of(&program)?.toolchain(needed)?;
        if toolchain != LOCAL {
            say("go", &format!("fetch {toolchain} through the module proxy"));
        }
        Some(Self { program, toolchain, caches: cache.path(CACHES) })
    }

    /// A command in a folder of the working tree. Where modules come from is the machine's own setting.
    fn command(&self, folder: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(dist::root().join(folder))
            .env("GOCACHE", self.caches.join("build"))
            .env("GOMODCACHE", self.caches.join("modules"))
            // The caches are removed as any folder is. The working tree's commit is no part of the programs.
            .env("GOFLAGS", "-modcacherw -mod=readonly -buildvcs=false")
            .env("GOTOOLCHAIN", &self.toolchain)
            .env("GOWORK", "off")
            .env("GOOS", "linux")
            .env("GOARCH", "amd64")
            .env("CGO_ENABLED", "0");
        command
    }
}

/// The `go` of Debian's newest package, unpacked into the cache.
fn debian(cache: &Cache) -> Result<PathBuf> {
    let tree = if let Some(tree) = PackageTree::cached(cache, UNPACKED) {
        tree
    } else {
        let offer = Apt::with_suites(cache, &SUITES)?.newest(PACKAGES)?;
        let package = offer.with_context(|| format!("Debian has no package {PACKAGES}"))?.package;
        // The second one has the library's sources, to which the first one's tree links.
        let sources = package.replace("-go", "-src");
        PackageTree::of_suites(cache, UNPACKED, &SUITES, &[&package, &sources])?
    };
    let versions = fs::read_dir(tree.path("usr/lib")).context("the packages of Go hold no usr/lib")?;
    let mut programs = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin/go")));
    programs.find(|program| program.is_file()).context("the packages of Go hold no go")
}

/// Removes what was downloaded and compiled.
pub(super) fn clean(cache: &Cache) -> Result<()> {
    remove_tree(&cache.path(CACHES))
}

/// The `GOTOOLCHAIN` of a program that is used as it is.
const LOCAL: &str = "local";
/// The first version that fetches others.
const FIRST_THAT_FETCHES: [u32; 2] = [1, 21];

/// A version of Go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GoVersion(Vec<u32>);

impl GoVersion {
    /// Reads `1.26.8`; what follows the numbers, such as `rc1`, is left out.
    fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let numbers: Result<Vec<u32>, _> = text[..end].split('.').map(str::parse).collect();
        numbers.ok().map(Self)
    }

    /// The version that a program prints.
    fn of(program: &Path) -> Option<Self> {
        // A `go.mod` in the present folder could name another toolchain.
        let mut command = Command::new(program);
        let text =
            output(command.args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").current_dir("/")).ok()?;
        Self::parse(text.trim().strip_prefix("go")?)
    }

    /// The `GOTOOLCHAIN` with which a program of this version is at least the needed one; `None` if it is too old to fetch it.
    fn toolchain(&self, needed: &Self) -> Option<String> {
        if self >= needed {
            return Some(LOCAL.to_owned());
        }
        // Toolchains have three numbers.
        let patch = if needed.0.len() < 3 { ".0" } else { "" };
        (self.0.as_slice() >= &FIRST_THAT_FETCHES[..]).then(|| format!("go{needed}{patch}"))
    }
}

impl fmt::Display for GoVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let version = |text| GoVersion::parse(text).unwrap();
        assert!(version("1.26.8") > version("1.26.0"));
        assert!(version("1.26.0") > version("1.9"));
        assert_eq!(version("1.27rc1"), version("1.27"));
        assert_eq!(version("1.26.8").to_string(), "1.26.8");
        assert_eq!(GoVersion::parse("devel"), None);
    }

    #[test]
    fn an_older_go_fetches_the_needed_one_if_it_can() {
        let toolchain =
            |own, needed| GoVersion::parse(own).unwrap().toolchain(&GoVersion::parse(needed).unwrap());
        assert_eq!(toolchain("1.26.8", "1.26.6").as_deref(), Some("local"));
        assert_eq!(toolchain("1.24.4", "1.26.6").as_deref(), Some("go1.26.6"));
        assert_eq!(toolchain("1.21.0", "1.26").as_deref(), Some("go1.26.0"));
        assert_eq!(toolchain("1.19", "1.26.6"), None);
    }

    #[test]
    fn the_version_of_a_module_is_the_required_one_and_not_that_of_a_longer_name() {
        let pins = "require k8s.io/kubernetes v1.2.3\n\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/api/v2 v2.1.0 // indirect\n)\n\
                    replace (\n\tk8s.io/api => k8s.io/api v0.9.9\n)\n";
        assert_eq!(version(pins, "k8s.io/kubernetes"), Some("v1.2.3"));
        assert_eq!(version(pins, "k8s.io/api/v2"), Some("v2.1.0"));
        assert_eq!(version(pins, "k8s.io/api"), Some("v0.0.0"));
        assert_eq!(version(pins, "k8s.io"), None);
    }
}
