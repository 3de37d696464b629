//! The cost of comparing a whole tree.
//!
//! In: a tree with Debians, its index, AIDE, rpm, and the machine's dpkg. Out: CPU seconds of Holdfast and of the other tool on the same paths, in
//! one run, so that their ratio depends little on the machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::rpm::PackagedRoot;
use crate::run::output;
use crate::tools::PackageTree;

const AIDE: &str = "aide";
/// The part of AIDE's CPU time that Holdfast may take.
const SHARE: f64 = 0.5;
/// What AIDE compares: permissions, owners, size, type, target of a link, SHA-256, attributes.
const RULE: &str = "/ p+u+g+s+ftype+l+sha256+xattrs";
/// The sum of AIDE's codes for new, removed and changed files.
const AIDE_DIFFERENCES: i32 = 7;
/// The code of dpkg and of rpm for differences.
const PACKAGE_DIFFERENCES: i32 = 1;
/// The directories of the tree that are one package of rpm: those of both Debians with most of their files.
pub(super) const PACKAGED: [&str; 4] = ["usr", "etc", "srv/other/usr", "srv/other/etc"];

/// What `image_bench verify` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Verified {
    compared: u64,
    differing: u64,
    cpu_seconds: f64,
}

/// Comparisons of the same trees.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Scans {
    image: Verified,
    aide_cpu_seconds: f64,
    packages: Verified,
    dpkg_cpu_seconds: f64,
    rpm_packages: Verified,
    rpm_cpu_seconds: f64,
}

/// AIDE with its libraries.
pub(super) fn aide(cache: &Cache) -> Result<PackageTree> {
    PackageTree::of_package(cache, AIDE)
}

/// Compares `root` with its index and with AIDE's database, its packages with dpkg's, and `of_rpm` with rpm's.
pub(super) fn measure(
    program: &Path,
    aide: &PackageTree,
    root: &Path,
    state: &Path,
    digest: &str,
    of_rpm: &PackagedRoot,
) -> Result<Scans> {
    let verify =
        |image: &str, root: &Path| json(Command::new(program).arg("verify").arg(state).arg(image).arg(root));
    let image: Verified = verify(digest, root)?;
    let packages: Verified = verify("packages", root)?;
    let aide_cpu_seconds = aide_check(aide, root)?;
    let mut dpkg = Command::new("dpkg");
    dpkg.arg("--verify").arg(format!("--root={}", root.display()));
    let dpkg_cpu_seconds = processor_seconds(&dpkg, PACKAGE_DIFFERENCES)?;
    let rpm_packages: Verified = verify("packages", &of_rpm.root)?;
    let rpm_cpu_seconds = processor_seconds(&of_rpm.verify(), PACKAGE_DIFFERENCES)?;
    Ok(Scans { image, aide_cpu_seconds, packages, dpkg_cpu_seconds, rpm_packages, rpm_cpu_seconds })
}

/// CPU seconds of `aide --check`, after `aide --init`.
fn aide_check(aide: &PackageTree, root: &Path) -> Result<f64> {
    let program = aide.program(AIDE).context("the package holds no aide")?;
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name).display().to_string();
    let config = format!(
        "database_in=file:{0}\ndatabase_out=file:{0}\ngzip_dbout=no\nreport_url=file:{1}\nroot_prefix={2}\n{RULE}\n",
        place("database"),
        place("report"),
        root.display()
    );
    std::fs::write(place("config"), config)?;
    let command = |action: &str| {
        let mut command = aide.command(&program);
        command.arg(format!("--config={}", place("config"))).arg(action);
        command
    };
    output(&mut command("--init"))?;
    processor_seconds(&command("--check"), AIDE_DIFFERENCES)
}

/// Runs a command that prints JSON.
pub(super) fn json<T: DeserializeOwned>(command: &mut Command) -> Result<T> {
    serde_json::from_str(&output(command)?).context("what the example prints")
}

/// CPU seconds of a command, which may end with at most this code.
pub(super) fn processor_seconds(command: &Command, worst: i32) -> Result<f64> {
    // The shell's `times` counts the CPU time of its children.
    let script = "\"$@\" >/dev/null 2>&1; code=$?; times; echo $code";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let text = output(&mut shell)?;
    let mut lines = text.lines().rev();
    let code: i32 = lines.next().unwrap_or_default().parse().context("the shell has printed no exit code")?;
    if !(0..=worst).contains(&code) {
        bail!("{} ended with code {code}", command.get_program().display());
    }
    let line = lines.next().context("the shell has printed no times")?;
    line.split_whitespace().map(seconds).sum::<Option<f64>>().context("the shell's times are not understood")
}

/// `1m2.34s` in seconds.
fn seconds(text: &str) -> Option<f64> {
    let (minutes, rest) = text.strip_suffix('s')?.split_once('m')?;
    Some(minutes.parse::<f64>().ok()? * 60.0 + rest.parse::<f64>().ok()?)
}

impl Scans {
    /// The budget that was missed.
    pub(super) fn missed(&self) -> Option<String> {
        let share = self.image.cpu_seconds / self.aide_cpu_seconds;
        (share > SHARE).then(|| format!("`image verify`: {share:.2} of AIDE's CPU time, at most {SHARE}"))
    }

    /// What was measured, its value, and its limit.
    pub(super) fn rows(&self) -> Vec<(String, String, String)> {
        let Self { image, aide_cpu_seconds, packages, dpkg_cpu_seconds, rpm_packages, rpm_cpu_seconds } =
            self;
        let of_packages = |ours: &Verified, other: &str, seconds: f64| {
            (
                format!(
                    "`image verify --image packages` of {} paths, for each CPU second of `{other}`",
                    ours.compared
                ),
                format!("{:.2}", ours.cpu_seconds / seconds),
                String::new(),
            )
        };
        vec![
            (
                format!("`image verify` of {} paths, for each CPU second of `aide --check`", image.compared),
                format!("{:.2}", image.cpu_seconds / aide_cpu_seconds),
                format!("{SHARE:.2}"),
            ),
            of_packages(packages, "dpkg --verify", *dpkg_cpu_seconds),
            of_packages(rpm_packages, "rpm -Va", *rpm_cpu_seconds),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shells_times_are_read() {
        assert_eq!(seconds("1m2.500s"), Some(62.5));
        assert_eq!(seconds("2.5"), None);
    }

    #[test]
    fn a_command_may_end_with_the_code_for_differences_and_with_no_worse_one() {
        let ends = |code: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("exit {code}")]);
            processor_seconds(&command, 1)
        };
        assert!(ends("1").is_ok());
        assert!(ends("2").is_err());
    }
}
