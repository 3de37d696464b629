//! Configs and policies, read by a process of its own.
//!
//! In: where they are. Out: what the node should be, as JSON: a line with all but the expectations, then a line for each of
//! those. To read configs takes many times the memory of what is kept of them, and what is kept lies scattered in it; a
//! process gives all of it back when it ends.

use super::{Desired, Inputs, Unknown, last_valid};
use crate::agent::Options;
use crate::labels::Version;
use crate::observation::Observer;
use anyhow::{Context as _, bail};
use sensor_model::compare::Ids;
use sensor_model::drift_policy::DriftPolicy;
use sensor_model::expectation::{Expectation, Source};
use sensor_model::waiting::WaitingArgument;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// This program, also when another version was put in its place.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Bytes that a pipe holds.
const BUFFER: usize = 64 << 10;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum First {
    /// All but the expectations.
    Desired {
        /// As many lines follow.
        expectations: usize,
        ids: Ids,
        policy: Box<DriftPolicy>,
        sources: Vec<String>,
        waiting: Vec<WaitingArgument>,
        labels: Version,
        nothing: bool,
    },
    Refused(Refused),
}

/// Something cannot be read or used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// File, field and reason.
    pub reason: String,
    /// It is the fault of whoever wrote it, and not of the host.
    pub is_input: bool,
}

/// Reads configs and policies as the options say.
///
/// # Errors
/// What cannot be read or used, with file, field and reason.
pub(crate) fn load(options: &Options, observer: &Observer) -> anyhow::Result<Desired> {
    if options.apart {
        match spawn(options) {
            Ok(child) => return take(child),
            Err(error) => tracing::warn!(%error, "The daemon reads configs itself, and keeps the memory."),
        }
    }
    let keep = options.keeps();
    super::load(&Inputs { keep: keep.as_deref(), ..options.inputs() }, observer)
}

impl Options {
    /// What is read as these options say.
    pub(crate) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            configs: &self.configs,
            policies: &self.policies,
            state: &self.state,
            unknown: self.unknown(),
            keep: None,
            keep_nothing: self.allow_empty,
        }
    }

    /// Where what is read is kept, unless it is what was kept.
    fn keeps(&self) -> Option<PathBuf> {
        (!self.are_kept()).then(|| last_valid::directory(&self.state))
    }

    /// What is done about unknown fields: what was accepted before stays accepted.
    pub(crate) fn unknown(&self) -> Unknown {
        Unknown::allowed(
            self.allow_unknown || last_valid::are_applied(&self.configs, &self.state) || self.are_kept(),
        )
    }
}

/// What the process does: reads, and writes what it has read.
///
/// # Errors
/// Nobody takes it.
pub fn give(desired: Result<Desired, Refused>, to: impl Write) -> anyhow::Result<()> {
    let mut to = BufWriter::with_capacity(BUFFER, to);
    let (first, expectations) = match desired {
        Ok(Desired { expectations, ids, policy, sources, waiting, labels, nothing }) => {
            let (count, policy) = (expectations.len(), Box::new(policy));
            (
                First::Desired { expectations: count, ids, policy, sources, waiting, labels, nothing },
                expectations,
            )
        }
        Err(refused) => (First::Refused(refused), Vec::new()),
    };
    serde_json::to_writer(&mut to, &first)?;
    to.write_all(b"\n")?;
    for expectation in &expectations {
        serde_json::to_writer(&mut to, expectation)?;
        to.write_all(b"\n")?;
    }
    to.flush()?;
    Ok(())
}

fn spawn(options: &Options) -> std::io::Result<Child> {
    let flag = |name: &str, value: &Path| {
        let mut flag = OsString::from(format!("--{name}="));
        flag.push(value);
        flag
    };
    Command::new(THIS_PROGRAM)
        .arg0("holdfast")
        .arg("desired")
        .args(options.configs.iter().map(|path| flag("config", path)))
        .args(options.policies.iter().map(|path| flag("policy", path)))
        .arg(flag("host-root", &options.root))
        .arg(flag("state", &options.state))
        .args((options.unknown() == Unknown::Warn).then_some("--allow-unknown"))
        .args(options.keeps().map(|directory| flag("keep", &directory)))
        .args(options.allow_empty.then_some("--keep-nothing"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
}

fn take(mut child: Child) -> anyhow::Result<Desired> {
    let told = match child.stdout.take() {
        Some(output) => received(BufReader::with_capacity(BUFFER, output)),
        None => bail!("the process that reads the configs has no output"),
    };
    let status = child.wait().context("wait for the process that reads the configs")?;
    match told {
        Ok(desired) if status.success() => Ok(desired),
        Err(error) if status.success() || error.is::<Refused>() => Err(error),
        Ok(_) => bail!("the process that reads the configs failed: {status}"),
        Err(error) => Err(error.context(format!("the process that reads the configs failed: {status}"))),
    }
}

/// What [`give`] wrote.
fn received(mut from: impl BufRead) -> anyhow::Result<Desired> {
    let mut line = Vec::new();
    let first = next(&mut from, &mut line)?;
    let (count, mut desired) = match serde_json::from_slice(first)? {
        First::Desired { expectations, ids, policy, sources, waiting, labels, nothing } => {
            let policy = *policy;
            (
                expectations,
                Desired { expectations: Vec::new(), ids, policy, sources, waiting, labels, nothing },
            )
        }
        First::Refused(refused) => return Err(refused.into()),
    };
    desired.expectations.reserve_exact(count);
    // One text for all that one manifest says, and one for all that have the same label.
    let mut sources: HashSet<Source> = HashSet::new();
    let mut labels: HashSet<Arc<str>> = HashSet::new();
    for _ in 0..count {
        let mut expectation: Expectation = serde_json::from_slice(next(&mut from, &mut line)?)?;
        match sources.get(&expectation.source) {
            Some(source) => expectation.source = source.clone(),
            None => drop(sources.insert(expectation.source.clone())),
        }
        if let Some(label) = expectation.label.take() {
            let shared = labels.get(&label).cloned();
            expectation.label = Some(shared.unwrap_or_else(|| {
                labels.insert(Arc::clone(&label));
                label
            }));
        }
        desired.expectations.push(expectation);
    }
    Ok(desired)
}

fn next<'a>(from: &mut impl BufRead, line: &'a mut Vec<u8>) -> anyhow::Result<&'a [u8]> {
    line.clear();
    from.read_until(b'\n', line).context("read what the process that reads the configs says")?;
    match line.strip_suffix(b"\n") {
        Some(text) => Ok(text),
        None => bail!("the process that reads the configs said less than it announced"),
    }
}

#[cfg(test)]
#[path = "apart_tests.rs"]
mod tests;
