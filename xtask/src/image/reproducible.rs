//! Whether the image depends on the folder in which it is built.
//!
//! In: the working tree. Out: success if a build of a copy in another folder, with an empty build folder, gives the same files. It
//! takes as long as two builds.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::build::build;
use crate::cache::{remove_tree, sha256_file};
use crate::dist::{self, VERSION};
use crate::run::{cargo, output, say, show};

/// Where the copy is, below the build folder.
const COPY: &str = "second-build/source";

/// Builds the image here and in a copy, and compares. The copy stays if something differs.
pub(crate) fn check() -> Result<()> {
    let digest = build()?.digest;
    let copy = dist::target_dir().join(COPY);
    remove_tree(&copy)?;
    copy_sources(&dist::root(), &copy)?;
    say("image", &format!("the same once more in {}", copy.display()));
    show(
        cargo()
            .args(["run", "--quiet", "--package", "xtask", "--", "image"])
            .current_dir(&copy)
            .env("CARGO_TARGET_DIR", copy.join("target")),
    )?;
    let differing = differing(&dist::root().join("target/dist"), &copy.join("target/dist"))?;
    if !differing.is_empty() {
        bail!("two builds differ in {}: compare them with those in {}", differing.join(", "), copy.display());
    }
    say("image", &format!("two builds in two folders have the digest {digest}"));
    remove_tree(&copy)
}

/// The files of the product that differ between two folders.
fn differing(one: &Path, other: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> =
        ["holdfast.bpf.o", "holdfast", "holdfast-cluster"].map(str::to_owned).to_vec();
    names.extend(["cdx.json", "oci.tar", "digest"].map(|kind| format!("holdfast-{VERSION}.{kind}")));
    let mut found = Vec::new();
    for name in names {
        if sha256_file(&one.join(&name))? != sha256_file(&other.join(&name))? {
            found.push(name);
        }
    }
    Ok(found)
}

/// Copies the files that Git knows or would take.
fn copy_sources(from: &Path, to: &Path) -> Result<()> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(from);
    for name in output(&mut git)?.split_terminator('\0') {
        let (source, target): (PathBuf, PathBuf) = (from.join(name), to.join(name));
        // A file that was removed and is not committed yet.
        let Ok(kind) = fs::symlink_metadata(&source) else { continue };
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        let copied = if kind.is_symlink() {
            fs::read_link(&source).and_then(|link| symlink(link, &target))
        } else {
            fs::copy(&source, &target).map(drop)
        };
        copied.with_context(|| format!("cannot copy {}", source.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_files_and_links_that_git_knows() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("a")).unwrap();
        fs::write(from.join("a/file"), "content").unwrap();
        fs::write(from.join("ignored"), "").unwrap();
        fs::write(from.join(".gitignore"), "ignored\n").unwrap();
        symlink("a", from.join("link")).unwrap();
        output(Command::new("git").args(["init", "--quiet"]).current_dir(&from)).unwrap();
        copy_sources(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/file")).unwrap(), "content");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("a"));
        assert!(!to.join("ignored").exists() && !to.join(".git").exists());
    }

    #[test]
    fn a_file_that_differs_is_named() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for folder in &folders {
            for name in ["holdfast.bpf.o", "holdfast", "holdfast-cluster"] {
                fs::write(folder.path().join(name), name).unwrap();
            }
            for kind in ["cdx.json", "oci.tar", "digest"] {
                fs::write(folder.path().join(format!("holdfast-{VERSION}.{kind}")), kind).unwrap();
            }
        }
        let [one, other] = folders.each_ref().map(tempfile::TempDir::path);
        assert_eq!(differing(one, other).unwrap(), Vec::<String>::new());
        fs::write(other.join("holdfast"), "else").unwrap();
        assert_eq!(differing(one, other).unwrap(), ["holdfast"]);
    }
}
