//! `holdfast status`: the last status that the daemon wrote, and whether the daemon still runs.

use super::{
    describe,
    exit::{DRIFT, FAILURE, IN_SYNC},
    output::{Output, Screen, Tone, clean, count},
};
use crate::{
    clock::boot_id,
    report::status_file::{self as file, FILE},
};
use anyhow::Context as _;
use sensor_model::{
    node_state::NodeState,
    status::{self, SCHEMA, StatusReport},
    verdict::VerdictKind,
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Directory of the status file.
    #[arg(long, default_value = super::agent::RUN, value_name = "DIRECTORY")]
    run: PathBuf,
    /// Where procfs is.
    #[arg(long, default_value = "/proc", value_name = "DIRECTORY", hide = true)]
    proc: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Status {
    /// Reads and reports.
    ///
    /// # Errors
    /// A status file that cannot be read, other than because there is none.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let report = self.report()?;
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(match report.status.verdict {
            VerdictKind::Compliant | VerdictKind::Touched => IN_SYNC,
            VerdictKind::Drifted => DRIFT,
            VerdictKind::Unknown => FAILURE,
        })
    }

    fn report(&self) -> anyhow::Result<StatusReport> {
        let read = file::read(&self.run);
        let (mut status, mut reason) = match read {
            Ok(status) => (status, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = self.run.join(FILE);
                let reason =
                    format!("there is no {} since boot; see `systemctl status holdfast`", file.display());
                (nothing_said(), Some(reason))
            }
            Err(error) => {
                return Err(error).with_context(|| format!("read {}", self.run.join(FILE).display()));
            }
        };
        if reason.is_none() {
            reason = self.gone(&status).or_else(|| self.stands(&status));
        }
        if reason.is_some() {
            // The status may be outdated.
            status.verdict = VerdictKind::Unknown;
        }
        Ok(StatusReport { running: reason.is_none(), reason, status })
    }

    /// Why the daemon that wrote the status does not run any more; `None` if it runs.
    fn gone(&self, status: &status::NodeStatus) -> Option<String> {
        match boot_id(&self.proc) {
            Ok(boot) if boot != status.boot_id => return Some("its status is from another boot".to_owned()),
            Ok(_) => {}
            Err(error) => return Some(format!("the boot id cannot be read: {error}")),
        }
        (!is_holdfast(&self.proc, status.pid)).then(|| format!("process {} is gone", status.pid))
    }

    /// Why the status of a running daemon is outdated: the daemon was stopped, or hangs.
    fn stands(&self, status: &status::NodeStatus) -> Option<String> {
        if status.beat_seconds == 0 {
            return None;
        }
        let patience = file::patience(Duration::from_secs(status.beat_seconds));
        match file::age(&self.run) {
            Ok(age) if age <= patience => None,
            Ok(age) => Some(format!(
                "process {} has not updated its status for {} seconds",
                status.pid,
                age.as_secs()
            )),
            Err(error) => Some(format!("the age of its status is not known: {error}")),
        }
    }
}

/// Whether a process is Holdfast's: the kernel may have given its number to another one.
fn is_holdfast(proc: &Path, pid: u32) -> bool {
    let comm = fs::read_to_string(proc.join(pid.to_string()).join("comm"));
    comm.is_ok_and(|comm| comm.trim_end().starts_with("holdfast"))
}

fn nothing_said() -> status::NodeStatus {
    status::NodeStatus {
        schema: SCHEMA.to_owned(),
        verdict: VerdictKind::Unknown,
        degraded: false,
        backend: String::new(),
        capabilities: Vec::new(),
        time: String::new(),
        pid: 0,
        boot_id: String::new(),
        beat_seconds: 0,
        sources: Vec::new(),
        config_refused: None,
        drifted: Vec::new(),
        gaps: Vec::new(),
        node: None,
        waiting: Vec::new(),
        counters: BTreeMap::new(),
    }
}

fn text(report: &StatusReport, screen: &mut Screen) -> io::Result<()> {
    let status = &report.status;
    if let Some(reason) = &report.reason {
        let word = screen.paint(Tone::Bad, "not running");
        screen.line(&format!("{word}: {}", clean(reason)))?;
        if status.time.is_empty() {
            return Ok(());
        }
        screen.line(&format!("its last status, from {}:", describe::time(&status.time)))?;
    }
    let things = status.counters.get("managed").copied().unwrap_or(0);
    let things = count(usize::try_from(things).unwrap_or(usize::MAX), "thing");
    let tone = match status.verdict {
        VerdictKind::Compliant => Tone::Good,
        VerdictKind::Drifted => Tone::Bad,
        _ => Tone::Notable,
    };
    if report.running {
        let verdict = screen.paint(tone, status.verdict.as_str());
        let degraded = if status.degraded { ", the node is degraded" } else { "" };
        screen.line(&format!("{verdict}: {things}, backend {}{degraded}", clean(&status.backend)))?;
    }
    if let Some(reason) = &status.config_refused {
        let word = screen.paint(Tone::Bad, "config refused");
        screen.line(&format!("{word}; the last usable one is in force: {}", clean(reason)))?;
    }
    if let Some(node) = status.node.as_ref().filter(|node| node.state != NodeState::Done) {
        let word = screen.paint(Tone::Notable, node.state.as_str());
        let waits = Some(format!("waits for {}", node.waiting_for)).filter(|_| !node.waiting_for.is_empty());
        let told = [Some(node.reason.clone()).filter(|reason| !reason.is_empty()), waits];
        let told = told.into_iter().flatten().collect::<Vec<_>>().join("; ");
        screen.line(&format!("{word} since {}: {}", describe::time(&node.since), clean(&told)))?;
    }
    for thing in &status.drifted {
        let word = screen.paint(Tone::Bad, "drifted");
        screen.line(&format!(
            "{word} {} since {} ({})",
            clean(&thing.path),
            describe::time(&thing.since),
            clean(&thing.source)
        ))?;
        for difference in &thing.differences {
            screen.line(&format!("  {}", clean(&difference.text)))?;
        }
        screen.line(&format!("  by {}", describe::actor(thing.actor.as_ref())))?;
    }
    for waits in &status.waiting {
        screen.line(&format!("{}: {}", screen.paint(Tone::Notable, "waits"), clean(&waits.text)))?;
    }
    for gap in status.gaps.iter().filter(|gap| gap.until.is_none()) {
        let word = screen.paint(Tone::Notable, "gap");
        let path = gap.path.as_ref().map(|path| format!(" {path}")).unwrap_or_default();
        let what = clean(&format!("{}{path}", gap.reason));
        screen.line(&format!("{word} since {}: {what}", describe::time(&gap.since)))?;
    }
    Ok(())
}
