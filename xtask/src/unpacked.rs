//! The tests of `sensor-user` that need programs and whole systems of Debian.
//!
//! In: Debian's packages of umoci, buildah and rpm, and two of the guests' disks. Out: success if the tests pass. Two compare the index of an
//! image with what umoci unpacks, path by path, one the index of a package with what rpm finds, and one what is in closed directories with the
//! packages.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt::GUEST_RELEASE;
use crate::cache::{Cache, CacheStamp};
use crate::dist;
use crate::image::{Buildah, Step};
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
    let (programs, folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (umoci, root, layout) = {
        let cache = Cache::open()?;
        rpm::programs(&cache, programs.path())?;
        let buildah = Buildah::ensure(&cache, folder.path())?;
        (umoci(&cache)?, debians(&cache)?, buildah.layers(&steps())?)
    };
    show(
        cargo()
            .args(["test", "--workspace", features, "--quiet", "--test", "image", "--", "--ignored"])
            .env("HOLDFAST_UMOCI", umoci)
            .env("HOLDFAST_DEBIAN_ROOT", root)
            .env("HOLDFAST_RPM", programs.path())
            .env("HOLDFAST_BUILDAH_LAYOUT", layout)
            .current_dir(dist::root()),
    )
}

/// A recipe whose lines replace, remove and link what earlier ones made. The test in `sensor-user` knows its paths.
fn steps() -> [Step; 4] {
    let step = |line, act| Step { line, act };
    [
        step("COPY tree /", |root| {
            for path in ["gone/a", "gone/below/b", "opaque/old", "keep", "suid", "file", "directory/x"] {
                write(root, path, "1")?;
            }
            Ok(())
        }),
        step("RUN rm -r gone opaque && mkdir opaque && ln keep linked", |root| {
            let srv = root.join("srv");
            fs::remove_dir_all(srv.join("gone"))?;
            fs::remove_dir_all(srv.join("opaque"))?;
            write(root, "opaque/new", "2")?;
            fs::hard_link(srv.join("keep"), srv.join("linked"))?;
            fs::set_permissions(srv.join("suid"), fs::Permissions::from_mode(0o4755))?;
            symlink("../keep", srv.join("link"))?;
            // The program needs root, and a file system that has capabilities.
            let _ = output(Command::new("setcap").arg("cap_net_raw+ep").arg(srv.join("opaque/new")));
            Ok(())
        }),
        step("COPY later /srv/", |root| {
            let srv = root.join("srv");
            fs::remove_file(srv.join("file"))?;
            write(root, "file/now-a-directory", "3")?;
            fs::remove_dir_all(srv.join("directory"))?;
            write(root, "directory", "3")?;
            write(root, "keep", "changed")
        }),
        step("RUN rm linked opaque/new && chmod 0700 opaque", |root| {
            let srv = root.join("srv");
            fs::remove_file(srv.join("linked"))?;
            fs::remove_file(srv.join("opaque/new"))?;
            fs::remove_file(srv.join("link"))?;
            write(root, "link/x", "4")?;
            Ok(fs::set_permissions(srv.join("opaque"), fs::Permissions::from_mode(0o700))?)
        }),
    ]
}

/// Writes a file below `/srv`, with its directories.
fn write(root: &Path, path: &str, content: &str) -> Result<()> {
    let path = root.join("srv").join(path);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(&path, content).with_context(|| format!("write {}", path.display()))
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
