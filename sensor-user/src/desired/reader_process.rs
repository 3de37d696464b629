//! The process that reads configs and policies for the daemon.
//!
//! In: their paths. Out: the desired state as JSON: a line with everything but the expectations, then a line for each expectation.
//! Reading configs takes many times the memory of the result. The process returns all of that memory when it ends.

use super::{
    error::DesiredError, error::ReaderError, error::RefusedConfigs, facts::HostFacts, inputs::Inputs,
    inputs::Waits, load::Desired, load::DesiredWithConfig, load::load as read_here, load::load_with_config,
    source::MachineConfigs, source::StateSource, unknown::Unknown,
};
use sensor_model::expectation::{Expectation, ExpectationSource};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The subcommand of this program that reads configs.
const SUBCOMMAND: &str = "desired";

/// This program, also when another version replaced its file.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Bytes that a pipe holds.
const BUFFER: usize = 64 << 10;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum First {
    /// The number of lines that follow, and everything but the expectations.
    Desired(usize, Box<Desired>),
    Refused(RefusedConfigs),
}

/// Reads configs and policies, in a process of its own if the inputs ask for one.
///
/// # Errors
/// A file that cannot be read or used, with file, field and reason.
pub(crate) fn load(inputs: &Inputs, host: &dyn HostFacts) -> Result<Desired, DesiredError> {
    if inputs.own_process {
        match spawn(inputs) {
            Ok(child) => return take(child),
            Err(error) => {
                tracing::warn!(%error, "No process can be started to read the configs; the daemon reads them and keeps the memory.");
            }
        }
    }
    read_here(&Inputs { keep: inputs.kept_in(), ..inputs.clone() }, host)
}

/// The configs of a host that are in force without being named or applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostConfigs {
    /// Those of the service.
    Service,
    /// The one that the Machine Config Operator's daemon stored.
    Operator,
}

/// The arguments of the process.
#[derive(Debug)]
pub struct ReaderArguments {
    /// MachineConfig manifests or Ignition configs: files, or directories of them.
    pub configs: Vec<PathBuf>,
    /// The configs are those of this apply.
    pub generation: Option<u64>,
    /// Which configs of the host they are; `None` for named ones and those of an apply.
    pub of_host: Option<HostConfigs>,
    /// Drift policies: files, or directories of them.
    pub policies: Vec<PathBuf>,
    /// The host's root directory.
    pub root: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// Unknown fields in configs cause a warning and no error.
    pub allow_unknown: bool,
    /// Configs may declare nothing.
    pub allow_empty: bool,
    /// The directory in which usable files are kept.
    pub keep: Option<PathBuf>,
}

impl ReaderArguments {
    /// Reads configs and policies in this process.
    ///
    /// # Errors
    /// A file that cannot be read or used, with file, field and reason.
    pub fn load(self, host: &dyn HostFacts, waits: Waits) -> Result<Desired, DesiredError> {
        read_here(&self.inputs(waits), host)
    }

    /// The same with the rendered config.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with_config(
        self,
        host: &dyn HostFacts,
        waits: Waits,
    ) -> Result<DesiredWithConfig, DesiredError> {
        load_with_config(&self.inputs(waits), host)
    }

    /// The inputs of which [`load`] made the arguments.
    fn inputs(self, waits: Waits) -> Inputs {
        let mut configs = self.configs;
        let source = match (self.generation, configs.pop()) {
            (Some(number), Some(manifests)) => StateSource::applied((number, manifests).into()),
            (None, Some(path)) if let Some(of_host) = self.of_host => {
                StateSource::MachineConfigs(match of_host {
                    HostConfigs::Service => MachineConfigs::Service(path),
                    HostConfigs::Operator => MachineConfigs::Operator(path),
                })
            }
            (_, last) => {
                configs.extend(last);
                StateSource::named(configs)
            }
        };
        Inputs {
            root: self.root,
            state: self.state,
            source,
            policies: self.policies,
            with_cluster_policies: false,
            allow_unknown: self.allow_unknown,
            allow_empty: self.allow_empty,
            own_process: false,
            keep: self.keep,
            waits,
            root_image: None,
            device_tables: None,
            replaced: None,
        }
    }
}

/// The work of the process: reads the configs and policies, and writes the desired state, or why it cannot be read. `host` is
/// the host at the root, or why that cannot be opened.
///
/// # Errors
/// The daemon closed the pipe.
pub fn answer(
    arguments: ReaderArguments,
    host: Result<impl HostFacts, impl Display>,
    waits: Waits,
    to: impl Write,
) -> io::Result<()> {
    let read = match host {
        Ok(host) => read_here(&arguments.inputs(waits), &host).map_err(|error| RefusedConfigs::from(&error)),
        Err(error) => Err(RefusedConfigs { reason: error.to_string(), is_input: false }),
    };
    give(read, to)
}

/// Writes the result of the process.
///
/// # Errors
/// The daemon closed the pipe.
fn give(desired: Result<Desired, RefusedConfigs>, to: impl Write) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(BUFFER, to);
    let (first, expectations) = match desired {
        Ok(mut desired) => {
            let expectations = std::mem::take(&mut desired.expectations);
            (First::Desired(expectations.len(), Box::new(desired)), expectations)
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

fn spawn(inputs: &Inputs) -> io::Result<Child> {
    command(SUBCOMMAND, inputs)
        .args(inputs.kept_in().map(|directory| flag("keep", &directory)))
        .stdin(inputs.standard_input())
        .stdout(Stdio::piped())
        .spawn()
}

fn flag(name: &str, value: &Path) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}

/// A subcommand of this program that reads the same configs and policies as the daemon, which does not keep them.
pub(crate) fn command(subcommand: &str, inputs: &Inputs) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command
        .arg0("holdfast")
        .arg(subcommand)
        .args(inputs.source.manifests().iter().map(|path| flag("config", path)))
        .args(inputs.source.is_of_service().then_some("--service"))
        .args(inputs.source.of_operator().map(|_| "--operator"))
        .args(inputs.source.generation().map(|number| format!("--generation={number}")))
        .args(inputs.all_policies().iter().map(|path| flag("policy", path)))
        .arg(flag("host-root", &inputs.root))
        .arg(flag("state", &inputs.state))
        .args(inputs.root_image.iter().map(|path| flag("root-image", path)))
        .args(
            inputs
                .device_tables
                .iter()
                .flat_map(|tables| tables.lines.iter().map(|line| format!("--device-table={line}"))),
        )
        .args((inputs.unknown() == Unknown::Warn).then_some("--allow-unknown"))
        .args(inputs.allow_empty.then_some("--allow-empty"));
    command
}

fn take(mut child: Child) -> Result<Desired, DesiredError> {
    let received = match child.stdout.take() {
        Some(output) => received(BufReader::with_capacity(BUFFER, output)),
        None => Err(DesiredError::Reader(ReaderError::NoOutput)),
    };
    let status = child.wait().map_err(|error| DesiredError::Reader(ReaderError::Wait(error)))?;
    if status.success() {
        return received;
    }
    Err(DesiredError::Reader(match received {
        Ok(_) => ReaderError::Failed(status),
        Err(DesiredError::Reader(ReaderError::Short(_))) => ReaderError::Short(Some(status)),
        Err(DesiredError::Reader(ReaderError::Output { error, .. })) => {
            ReaderError::Output { error, status: Some(status) }
        }
        Err(refused) => return Err(refused),
    }))
}

fn unreadable(error: impl Into<io::Error>) -> DesiredError {
    DesiredError::Reader(ReaderError::Output { error: error.into(), status: None })
}

/// Reads what [`give`] wrote.
fn received(mut from: impl BufRead) -> Result<Desired, DesiredError> {
    let mut line = Vec::new();
    let first = next(&mut from, &mut line)?;
    let (count, mut desired) = match serde_json::from_slice(first).map_err(unreadable)? {
        First::Desired(count, desired) => (count, *desired),
        First::Refused(refused) => return Err(refused.into()),
    };
    desired.expectations.reserve_exact(count);
    // Expectations of one manifest share the text of its name, and those with the same label share the label.
    let mut sources: HashSet<ExpectationSource> = HashSet::new();
    let mut labels: HashSet<Arc<str>> = HashSet::new();
    for _ in 0..count {
        let mut expectation: Expectation =
            serde_json::from_slice(next(&mut from, &mut line)?).map_err(unreadable)?;
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

fn next<'a>(from: &mut impl BufRead, line: &'a mut Vec<u8>) -> Result<&'a [u8], DesiredError> {
    line.clear();
    from.read_until(b'\n', line).map_err(unreadable)?;
    line.strip_suffix(b"\n").ok_or(DesiredError::Reader(ReaderError::Short(None)))
}

#[cfg(test)]
#[path = "reader_process_tests.rs"]
mod tests;
