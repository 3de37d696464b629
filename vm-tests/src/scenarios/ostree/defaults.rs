//! A file of the image that a config declares, and later no longer declares.
//!
//! In: a host without an apply, and later one after an update. Out: the default of the booted version, and no local
//! change.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::commit::UNDECLARED;
use super::node::{DEFAULT, config, report};
use crate::guest::ostree::VERSIONS;
use crate::guest::run;
use crate::scenarios::apply::{holdfast, result};

/// Version 2 gets another default of a file that a config is about to declare, and of one that none declares.
pub(super) fn other_default() -> Result<()> {
    fs::create_dir_all("/root/more/usr/etc")?;
    fs::write(format!("/root/more/usr{DEFAULT}"), "of the second version\n")?;
    fs::write(format!("/root/more/usr{UNDECLARED}"), "of the second version\n")?;
    let branch = VERSIONS[1].branch;
    let trees = [format!("--tree=ref={branch}"), "--tree=dir=/root/more".to_owned()];
    run("ostree", &["commit", "-s", VERSIONS[1].name, "-b", branch, &trees[0], &trees[1]]).map(drop)
}

/// Nothing declares the file any more: it is the default of the booted version again, and no local change.
pub(super) fn default_is_back(number: usize, arguments: &[&str], content: &str) -> Result<String> {
    ensure!(fs::read_to_string(DEFAULT)? == "declared", "it is not as declared");
    let mut config = config(VERSIONS[number].branch, arguments, content);
    let files = config["spec"]["config"]["storage"]["files"].as_array_mut().context("no files")?;
    files.retain(|file| file["path"] != DEFAULT);
    fs::write("/root/new.yaml", config.to_string())?;
    let printed = holdfast(0, &["apply", "/root/new.yaml", "--no-acts", "-o", "json"])?;
    result(&report(&printed)?, "done")?;
    let (found, shipped) = (fs::read_to_string(DEFAULT)?, fs::read_to_string(format!("/usr{DEFAULT}"))?);
    ensure!(found == shipped, "{found:?}, and the image ships {shipped:?}");
    ensure!((found == "of the second version\n") == (number == 1), "{found:?}");
    let changed = run("ostree", &["admin", "config-diff"])?;
    let name = DEFAULT.trim_start_matches("/etc/");
    ensure!(!changed.lines().any(|line| line.split_whitespace().nth(1) == Some(name)), "{changed}");
    Ok(found.trim().to_owned())
}
