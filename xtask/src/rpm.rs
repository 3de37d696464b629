//! Debian's rpm, for packages in a root directory of their own.
//!
//! In: the cache. Out: programs that run without an installed rpm, a root directory whose files are those of one package, and the commands that
//! compare it. The machine's own packages stay as they are.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt::is_root;
use crate::cache::Cache;
use crate::run::output;
use crate::tools::PackageTree;

const RPM: &str = "rpm";
const RPM_BUILD: &str = "rpmbuild";
/// Where each root has its database.
const DATABASE: &str = "/var/lib/rpm";
/// The files are packaged as they are in the root: nothing installs, strips, links or compresses them.
const AS_THEY_ARE: [(&str, &str); 5] = [
    ("__spec_install_pre", "%{___build_pre}"),
    ("__os_install_post", "%{nil}"),
    ("debug_package", "%{nil}"),
    ("_build_id_links", "none"),
    ("_binary_payload", "w.ufdio"),
];

/// Writes two programs into a folder: `rpmbuild`, which packages files as they are, and `rpm` with a database below its `--root`.
pub(crate) fn programs(cache: &Cache, folder: &Path) -> Result<()> {
    let tree = PackageTree::of_package(cache, RPM)?;
    // `rpm --root` changes the root directory of its process, which an unprivileged user can do in a user namespace.
    let root = if is_root()? { "" } else { "unshare --map-root-user " };
    let defined = AS_THEY_ARE.map(|(name, value)| format!("--define '{name} {value}'")).join(" ");
    for (name, before, options) in
        [(RPM_BUILD, "", format!("--noclean {defined}")), (RPM, root, format!("--dbpath {DATABASE}"))]
    {
        let program = tree.program(name).with_context(|| format!("the package {RPM} holds no {name}"))?;
        let libraries = tree.command(&program);
        let libraries = libraries.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let own = [("RPM_CONFIGDIR", "usr/lib/rpm"), ("MAGIC", "usr/lib/file/magic.mgc")];
        // What the machine itself has is not in the tree.
        let own =
            own.map(|(name, path)| (name, tree.path(path))).into_iter().filter(|(_, path)| path.exists());
        let own = own.map(|(name, path)| (name.into(), path.into_os_string()));
        let environment = libraries.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(own);
        let mut lines = vec!["#!/bin/sh".to_owned()];
        lines.extend(environment.map(|(name, value): (OsString, OsString)| {
            format!("export {}='{}'", name.display(), value.display())
        }));
        lines.push(format!("exec {before}{} {options} \"$@\"\n", program.display()));
        let place = folder.join(name);
        fs::write(&place, lines.join("\n"))?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// A root directory with the files of one package.
pub(crate) struct PackagedRoot {
    /// The root directory.
    pub(crate) root: PathBuf,
    program: PathBuf,
}

impl PackagedRoot {
    /// Copies directories of a root directory into `folder`, and makes them one package that is installed there.
    pub(crate) fn make(cache: &Cache, from: &Path, directories: &[&str], folder: &Path) -> Result<Self> {
        const SPEC: &str = "Name: tree\nVersion: 1\nRelease: 1\nSummary: Files\nLicense: None\nAutoReqProv: no\n\
                            %description\n%install\n%files\n%defattr(-,-,-)\n";
        let root = folder.join("root");
        let listed: String = directories.iter().flat_map(|directory| ["/", directory, "\n"]).collect();
        for directory in directories {
            let into = root.join(directory);
            fs::create_dir_all(into.parent().context("a directory of the root")?)?;
            output(Command::new("cp").arg("-a").arg(from.join(directory)).arg(into))?;
        }
        programs(cache, folder)?;
        let (spec, top) = (folder.join("tree.spec"), folder.join("top"));
        fs::write(&spec, format!("{SPEC}{listed}"))?;
        let mut build = Command::new(folder.join(RPM_BUILD));
        build.arg("-bb").arg("--buildroot").arg(&root);
        output(build.arg("--define").arg(format!("_topdir {}", top.display())).arg(&spec))?;
        let made = output(Command::new("find").arg(&top).args(["-name", "*.rpm"]))?;
        let packaged = Self { root, program: folder.join(RPM) };
        fs::create_dir_all(packaged.root.join(&DATABASE[1..]))?;
        output(packaged.rpm().args(["--install", "--justdb", "--nodeps", "--noscripts"]).arg(made.trim()))?;
        Ok(packaged)
    }

    /// The command that compares every file of the package.
    pub(crate) fn verify(&self) -> Command {
        let mut command = self.rpm();
        command.arg("-Va");
        command
    }

    fn rpm(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.root);
        command
    }
}
