//! What is made from the command line's definition: `docs/cli.md`, man pages and completion scripts.
//!
//! Comes in: the definition, through an example of `sensor-user`. Goes out: `docs/cli.md`, which is kept in the
//! repository, and `target/dist/man` and `target/dist/completions`, which are not; or an error when the kept one is
//! not what would be made now.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::dist;
use crate::run::{cargo, say, show};

/// The generated file that is kept.
const KEPT: &str = "docs/cli.md";

/// Makes everything; with `check` only says whether the kept file is what it should be. The options of
/// Cargo are those of other builds, so that nothing is built twice. They change nothing of the command line.
pub(crate) fn generate(check: bool, options: &[&str]) -> Result<()> {
    let folder = dist::target_dir().join("dist");
    say("generate", "command line reference, man pages, completions");
    show(
        cargo()
            .args(["build", "--quiet", "--workspace", "--example", "reference"])
            .args(options)
            .current_dir(dist::root()),
    )?;
    let program = dist::target_dir().join("debug/examples/reference");
    show(Command::new(program).arg(&folder).current_dir(dist::root()))?;
    let made = folder.join("cli.md");
    let made = fs::read_to_string(&made).with_context(|| format!("cannot read {}", made.display()))?;
    let kept = dist::root().join(KEPT);
    if fs::read_to_string(&kept).is_ok_and(|kept| kept == made) {
        return Ok(());
    }
    if check {
        bail!("{KEPT} is not what the command line's definition makes; run `cargo xtask generate`");
    }
    fs::write(&kept, made).with_context(|| format!("cannot write {}", kept.display()))
}
