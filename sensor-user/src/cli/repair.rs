//! `holdfast repair`: writes the expected state back, after asking.

use super::{
    BadInput, DRIFT, IN_SYNC,
    output::{Output, Screen, Tone, clean, count},
    runtime,
    sources::{Loaded, Sources, host_path},
};
use crate::apply::{
    ApplyError, Store,
    tie::{self, Hello, Tie},
};
use crate::repair::{Restorer, order};
use nix::fcntl::Flock;
use sensor_model::{
    difference::Difference,
    drift_policy::Action,
    expectation::{Expectation, SYSTEMD_DIRECTORY, Thing},
    verdict::VerdictKind,
};
use serde::Serialize;
use std::{
    fs::File,
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    path::PathBuf,
    sync::Arc,
};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "holdfast.repair/v1";

/// Why nothing is written beside a daemon that would report the result as drift.
const UNEXPECTED: &str = "the running daemon expects another state of these paths, because it runs with another config or policy; \
    nothing was written. Without --config and --policy the repair uses those that are in force";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Repair {
    /// Paths on the host; for a unit, the path of its file.
    #[arg(value_parser = host_path, required_unless_present = "all", conflicts_with = "all")]
    path: Vec<PathBuf>,
    /// Repair everything that has drifted.
    #[arg(long)]
    all: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    output: Output,
}

/// What became of it.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    /// Compliant when everything that was to be repaired is as declared now.
    verdict: VerdictKind,
    repaired: Vec<Repaired>,
    refused: Vec<Refused>,
}

#[derive(Debug, Serialize)]
struct Repaired {
    path: String,
    /// How it differed.
    differences: Vec<Difference>,
    /// What was done.
    actions: Vec<String>,
    source: String,
}

#[derive(Debug, Serialize)]
struct Refused {
    path: String,
    reason: String,
}

impl Repair {
    /// Asks, writes, looks again, reports.
    ///
    /// # Errors
    /// Bad input, and a question that cannot be asked. What could not be repaired is in the report.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        screen.outlive_readers();
        let state = self.sources.state();
        let store = Store::look(&state)?;
        // An apply under way, or an interrupted one, has to finish or to restore its own paths.
        let lock = match &store {
            Some(store) => Some(alone(store)?),
            None => None,
        };
        let loaded = self.sources.load()?;
        let things = self.things(&loaded)?;
        let runtime = runtime()?;
        let mut restorer = Restorer::new(Arc::clone(&loaded.observer), &loaded.root);
        let drifted = runtime.block_on(async {
            let mut drifted = Vec::new();
            for expectation in things {
                let (_, differences) = restorer.look(&expectation, &loaded.desired().ids).await;
                if !differences.is_empty() {
                    drifted.push((expectation, differences));
                }
            }
            drifted
        });
        if !drifted.is_empty() && !self.yes && !ask(&drifted)? {
            return Ok(DRIFT);
        }
        let report = runtime.block_on(async {
            // The daemon lets this process pass its deny rules. Without a daemon, writes that they refuse fail.
            let repair = drifted.iter().map(|(expectation, _)| expectation);
            // The daemon does not watch what the policy ignores.
            let known = repair.filter(|known| loaded.decision(&known.thing.path()).action != Action::Ignore);
            let hello = Hello { repair: known.map(tie::digest).collect(), ..Hello::default() };
            let tie = Tie::make(&state, &hello, &mut |line| tracing::info!(line)).await;
            if tie.as_ref().is_some_and(|tie| tie.unexpected) {
                return Err(anyhow::anyhow!(UNEXPECTED));
            }
            let report = restore(&mut restorer, &loaded, &drifted).await;
            // The daemon lets this process write while the connection lives.
            drop(tie);
            Ok(report)
        })?;
        // A slow reader of the report must not keep applies waiting.
        drop(lock);
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(if report.verdict == VerdictKind::Compliant { IN_SYNC } else { DRIFT })
    }

    /// The things to repair, in the order in which they have to be restored.
    fn things(&self, loaded: &Loaded) -> anyhow::Result<Vec<Expectation>> {
        let mut things = if self.all { loaded.desired().expectations.clone() } else { Vec::new() };
        for path in &self.path {
            let found = loaded.things_at(path)?;
            if found.is_empty() {
                let reason = format!("{}: no MachineConfig declares it", path.display());
                return Err(BadInput::because(reason));
            }
            if let Some(closed) = found.iter().find(|expectation| *expectation.thing.path() != **path) {
                let directory = closed.thing.path();
                return Err(BadInput::because(format!(
                    "{}: no MachineConfig declares it; `repair {}` removes everything in that directory that is not declared",
                    path.display(),
                    directory.display()
                )));
            }
            things.extend(found);
        }
        things.sort_by_key(order);
        things.dedup_by(|later, earlier| later.thing == earlier.thing);
        Ok(things)
    }
}

/// Keeps applies from starting, for as long as the lock lives.
fn alone(store: &Store) -> anyhow::Result<Flock<File>> {
    let Some(lock) = store.lock()? else {
        return Err(ApplyError::Locked(store.path().join("lock")).into());
    };
    match store.open_journal()? {
        Some(journal) => {
            let id = journal.begin.id;
            let reason =
                format!("number {id}; `holdfast apply --resume` finishes it or restores the old config");
            Err(ApplyError::Unfinished(reason).into())
        }
        None => Ok(lock),
    }
}

/// Shows what is to be repaired and asks.
fn ask(drifted: &[(Expectation, Vec<Difference>)]) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(BadInput::because("there is no terminal to ask on; add `--yes` to repair"));
    }
    let mut to = io::stderr().lock();
    for (expectation, differences) in drifted {
        writeln!(to, "{}", clean(&expectation.thing.path().to_string_lossy()))?;
        for difference in differences {
            writeln!(to, "  {}", clean(&difference.text))?;
        }
    }
    write!(to, "Write the expected state of {} back? [y/N] ", count(drifted.len(), "thing"))?;
    to.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

async fn restore(
    restorer: &mut Restorer,
    loaded: &Loaded,
    drifted: &[(Expectation, Vec<Difference>)],
) -> Report {
    let mut repaired = Vec::new();
    let mut refused = Vec::new();
    let mut units = false;
    for (expectation, _) in drifted {
        let path = expectation.thing.path().to_string_lossy().into_owned();
        match restorer.restore(&loaded.whole.rendered, expectation, &loaded.desired().ids).await {
            Ok(done) => {
                units |=
                    !matches!(expectation.thing, Thing::Unit { .. }) && path.starts_with(SYSTEMD_DIRECTORY);
                repaired.push(Repaired {
                    path,
                    differences: done.before,
                    actions: done.actions,
                    source: expectation.source.machine_config.to_string(),
                });
            }
            Err(error) => refused.push(Refused { path, reason: error.to_string() }),
        }
    }
    if units && let Err(error) = restorer.reload_units().await {
        refused.push(Refused { path: SYSTEMD_DIRECTORY.to_owned(), reason: error.to_string() });
    }
    let verdict = if refused.is_empty() { VerdictKind::Compliant } else { VerdictKind::Drifted };
    Report { schema: SCHEMA, verdict, repaired, refused }
}

fn text(report: &Report, screen: &mut Screen) -> io::Result<()> {
    for thing in &report.repaired {
        let word = screen.paint(Tone::Good, "repaired");
        // Another repair restored it already: a closed directory whose undeclared file was removed.
        let actions =
            if thing.actions.is_empty() { "as declared".to_owned() } else { thing.actions.join(", ") };
        screen.line(&format!("{word} {}: {}", clean(&thing.path), clean(&actions)))?;
    }
    for thing in &report.refused {
        let word = screen.paint(Tone::Bad, "not repaired");
        screen.line(&format!("{word} {}", clean(&thing.reason)))?;
    }
    if report.repaired.is_empty() && report.refused.is_empty() {
        return screen.line("in sync: nothing to repair");
    }
    Ok(())
}
