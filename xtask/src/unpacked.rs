//! The tests of `sensor-user` that need programs and whole systems of Debian.
//!
//! In: Debian's packages of umoci and rpm, and two of the guests' disks. Out: success if the tests pass. One compares the index of an image with
//! what umoci unpacks, path by path, one the index of a package with what rpm finds, and one what is in closed directories with the packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt::GUEST_RELEASE;
use crate::cache::{Cache, CacheStamp};
use crate::dist;
use crate::rpm;
use crate::run::{cargo, output, say, show};
use crate::tools::PackageTree;
use crate::vm;

const UMOCI: &str = "umoci";
/// The folder with the files of whole Debians.
const DEBIANS: &str = "debians";
/// Increase the number when the recipe changes.
const RECIPE: &str = "1";

/// Runs the tests. They are ignored elsewhere.
pub(crate) fn test(features: &str) -> Result<()> {
    let programs = tempfile::tempdir()?;
    let (umoci, root) = {
        let cache = Cache::open()?;
        rpm::programs(&cache, programs.path())?;
        (umoci(&cache)?, debians(&cache)?)
    };
    show(
        cargo()
            .args(["test", "--workspace", features, "--quiet", "--test", "image", "--", "--ignored"])
            .env("HOLDFAST_UMOCI", umoci)
            .env("HOLDFAST_DEBIAN_ROOT", root)
            .env("HOLDFAST_RPM", programs.path())
            .current_dir(dist::root()),
    )
}

/// The program, which needs nothing but the C library.
pub(crate) fn umoci(cache: &Cache) -> Result<PathBuf> {
    let tree = PackageTree::of_packages(cache, UMOCI, GUEST_RELEASE, &[UMOCI])?;
    tree.program(UMOCI).with_context(|| format!("the package holds no {UMOCI}"))
}

/// A folder with the files of two Debians: more than ten thousand.
pub(crate) fn debians(cache: &Cache) -> Result<PathBuf> {
    let disks = vm::debian_disks(cache)?;
    let mut version = RECIPE.to_owned();
    for disk in &disks {
        let name = disk.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        version.extend([
            " ",
            &name,
            " ",
            &cache.stamp(&name).map_or_else(String::new, |stamp| stamp.version),
        ]);
    }
    if cache.stamp(DEBIANS).is_some_and(|stamp| stamp.version == version) {
        return Ok(cache.path(DEBIANS).join("root"));
    }
    say("images", "the files of two Debians");
    let folder = cache.make(DEBIANS, |folder| {
        for (disk, place) in disks.iter().zip(["root", "root/srv/other"]) {
            let into = folder.join(place);
            fs::create_dir_all(&into)?;
            output(Command::new("debugfs").arg("-R").arg(format!("rdump / {}", into.display())).arg(disk))?;
        }
        Ok(CacheStamp::of_version(&version))
    })?;
    Ok(folder.join("root"))
}
