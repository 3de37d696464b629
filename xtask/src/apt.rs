//! Debian packages, through the machine's own apt but never into its own state.
//!
//! In: suites and package names. Out: `.deb` files, checked by apt against the archive's signatures, or their trees, unpacked
//! with `dpkg -x`. The mirrors are those of the machine's configuration. Their other suites get a private sources file and a
//! private state folder. Only `install` changes the machine, and it installs from the machine's own suites.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::{Cache, remove_tree};
use crate::run::{find_program, output, say};

/// Keyring that the archive's signatures are checked with; part of every Debian.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The Debian release that guests run, whatever the machine runs.
pub(crate) const GUEST_RELEASE: &str = "bookworm";

/// The Debian release of the guest that reboots softly: the first one with systemd 254 or later.
pub(crate) const NEWER_RELEASE: &str = "trixie";

/// A private view of the archive: one set of suites with its own package lists.
#[derive(Debug)]
pub(crate) struct Apt {
    state: PathBuf,
}

/// One version of one package that a suite offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) package: String,
    pub(crate) version: String,
}

impl Apt {
    /// Prepares the view of `suites` (such as `trixie-backports`, `bullseye-security`) and fetches their lists.
    pub(crate) fn with_suites(cache: &Cache, suites: &[&str]) -> Result<Self> {
        if find_program("apt-get").is_none() {
            bail!(
                "apt-get is missing: the kernels and guests come from Debian packages, so this needs Debian"
            );
        }
        let state = cache.path(&format!("apt/{}", suites.join("+")));
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(folder))?;
        }
        let mirrors = Mirrors::of_this_machine()?;
        let sources: Vec<String> = suites.iter().map(|suite| mirrors.source(suite)).collect::<Result<_>>()?;
        fs::write(state.join("suites.sources"), sources.join("\n"))?;
        let apt = Self { state };
        say("apt", &format!("package lists of {}", suites.join(", ")));
        output(apt.command("apt-get").arg("update")).context("cannot fetch package lists")?;
        Ok(apt)
    }

    /// One of apt's programs, working on this view.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let state = self.state.display();
        for option in [
            format!("Dir::Etc::SourceList={state}/suites.sources"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            format!("Dir::State={state}/state"),
            "Dir::State::status=/var/lib/dpkg/status".to_owned(),
            format!("Dir::Cache={state}/cache"),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            // Private folders need no lock of the machine's package system, and so no root.
            "Debug::NoLocking=1".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Every version of the packages whose name matches `pattern` (apt's regular expressions).
    pub(crate) fn offers(&self, pattern: &str) -> Result<Vec<Offer>> {
        let names = output(self.command("apt-cache").args(["pkgnames"]))?;
        let wanted: Vec<&str> = names.lines().filter(|name| glob(pattern, name)).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let table = output(self.command("apt-cache").arg("madison").args(&wanted))?;
        Ok(table.lines().filter_map(parse_madison).collect())
    }

    /// The newest version among all packages whose name matches `pattern`.
    pub(crate) fn newest(&self, pattern: &str) -> Result<Option<Offer>> {
        let mut newest: Option<Offer> = None;
        for offer in self.offers(pattern)? {
            let newer = match &newest {
                Some(best) => is_newer(&offer.version, &best.version)?,
                None => true,
            };
            if newer {
                newest = Some(offer);
            }
        }
        Ok(newest)
    }

    /// Downloads one package in one version; gives the path of the `.deb`.
    pub(crate) fn download(&self, offer: &Offer) -> Result<PathBuf> {
        say("apt", &format!("download {} {}", offer.package, offer.version));
        let folder = self.state.join("download").join(&offer.package);
        remove_tree(&folder)?;
        fs::create_dir_all(&folder)?;
        let what = format!("{}={}", offer.package, offer.version);
        output(self.command("apt-get").args(["download", &what]).current_dir(&folder))?;
        only_deb(&folder)
    }

    /// Downloads packages of a suite with all their dependencies that this machine does not have.
    pub(crate) fn download_with_dependencies(&self, packages: &[&str], suite: &str) -> Result<Vec<PathBuf>> {
        say("apt", &format!("download {} from {suite}, with what they need", packages.join(" ")));
        let archives = self.state.join("cache/archives");
        remove_tree(&archives)?;
        fs::create_dir_all(archives.join("partial"))?;
        let mut command = self.command("apt-get");
        command.args(["install", "--yes", "--download-only", "--reinstall", "--no-install-recommends"]);
        output(command.args(["--target-release", suite]).args(packages))?;
        debs(&archives)
    }
}

/// Unpacks a `.deb` into a folder, without installing it.
pub(crate) fn unpack(deb: &Path, into: &Path) -> Result<()> {
    output(Command::new("dpkg").arg("-x").arg(deb).arg(into)).map(drop)
}

/// Compares two Debian versions the way dpkg does: is `left` newer?
fn is_newer(left: &str, right: &str) -> Result<bool> {
    let status = Command::new("dpkg").args(["--compare-versions", left, "gt", right]).status()?;
    Ok(status.success())
}

/// Whether we are root, and so may install packages.
pub(crate) fn is_root() -> Result<bool> {
    Ok(output(Command::new("id").arg("-u"))?.trim() == "0")
}

/// Makes sure that programs exist; installs the packages of missing ones from the machine's own suites.
pub(crate) fn install(programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_root()? {
        bail!("missing packages: {list}\n    install them with: sudo apt-get install {list}");
    }
    say("apt", &format!("install {list}"));
    let install = || {
        let mut command = Command::new("apt-get");
        command.args(["install", "--yes", "--no-install-recommends"]).args(&missing);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        output(&mut command)
    };
    if install().is_err() {
        output(Command::new("apt-get").arg("update"))?;
        install().with_context(|| format!("cannot install {list}"))?;
    }
    Ok(())
}

/// The name of the Debian release that this machine runs, such as `bookworm`.
pub(crate) fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .context("/etc/os-release has no VERSION_CODENAME: this needs Debian")?;
    Ok(name.trim_matches('"').to_owned())
}

/// Where this machine gets Debian from.
#[derive(Debug)]
pub(crate) struct Mirrors {
    main: String,
    security: Option<String>,
}

impl Mirrors {
    /// Reads the mirrors from the machine's apt configuration.
    pub(crate) fn of_this_machine() -> Result<Self> {
        let codename = codename()?;
        let targets = output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(RELEASE) $(REPO_URI)",
            "Created-By: Packages",
        ]))?;
        let find = |suite: &str| {
            targets
                .lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(s, _)| *s == suite)
                .map(|(_, uri)| uri.to_owned())
        };
        let main = find(&codename).with_context(|| {
            format!("the apt configuration of this machine names no mirror for the Debian suite {codename}")
        })?;
        Ok(Self { main, security: find(&format!("{codename}-security")) })
    }

    /// The mirror that has a suite.
    fn uri(&self, suite: &str) -> Result<&str> {
        if suite.ends_with("-security") {
            self.security.as_deref().context("the apt configuration of this machine names no security mirror")
        } else {
            Ok(&self.main)
        }
    }

    /// The sources paragraph of a suite.
    fn source(&self, suite: &str) -> Result<String> {
        let uri = self.uri(suite)?;
        Ok(format!(
            "Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: main\nArchitectures: amd64\nSigned-By: {KEYRING}\n"
        ))
    }

    /// The same as one line.
    pub(crate) fn one_line(&self, suite: &str) -> Result<String> {
        Ok(format!("deb [signed-by={KEYRING}] {} {suite} main", self.uri(suite)?))
    }
}

/// One line of `apt-cache madison`: package, version, where from.
fn parse_madison(line: &str) -> Option<Offer> {
    let mut fields = line.split('|').map(str::trim);
    let (package, version, origin) = (fields.next()?, fields.next()?, fields.next()?);
    origin.contains("Packages").then(|| Offer { package: package.to_owned(), version: version.to_owned() })
}

/// Whether `text` is `pattern`, in which each `*` stands for anything.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).any(|skip| tail.is_char_boundary(skip) && glob(rest, &tail[skip..]))
        }),
    }
}

/// The `.deb` files in a folder.
fn debs(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "deb"))
        .collect();
    found.sort();
    Ok(found)
}

/// The one `.deb` file in a folder.
fn only_deb(folder: &Path) -> Result<PathBuf> {
    let mut found = debs(folder)?;
    match (found.pop(), found.is_empty()) {
        (Some(deb), true) => Ok(deb),
        _ => bail!("{} does not hold exactly one package", folder.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_only_names_of_its_shape() {
        assert!(glob("linux-image-6.12.*-cloud-amd64", "linux-image-6.12.95+deb12-cloud-amd64"));
        assert!(!glob("linux-image-6.1.*-cloud-amd64", "linux-image-6.12.95+deb12-cloud-amd64"));
        assert!(!glob("linux-binary-7.*-cloud-amd64", "linux-binary-unsigned-7.2.6+deb13-cloud-amd64"));
    }

    #[test]
    fn sources_lines_of_the_version_table_are_no_offers() {
        let binary = " rust-src | 1.95.0+dfsg1-2~bpo13+1 | http://m trixie-backports/main amd64 Packages";
        let offer = parse_madison(binary).expect("a binary package");
        assert_eq!(offer, Offer { package: "rust-src".into(), version: "1.95.0+dfsg1-2~bpo13+1".into() });
        assert_eq!(parse_madison("rustc | 1.95.0 | http://m trixie-backports/main Sources"), None);
    }
}
