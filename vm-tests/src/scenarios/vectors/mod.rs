//! Every vector on every file system, with one running daemon.
//!
//! In: the vector table. Out: for each vector and file system one check, and a row of the coverage table. Each vector
//! has things of its own. So the scenario performs them without waiting, different file systems in parallel, and then
//! waits for the records. So the daemon works on a busy node, and the run takes seconds.

mod judge;
mod place;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use crate::guest::agent::RunningDaemon;
use crate::guest::disks::FileSystem;
use crate::guest::{Context, page, status, wait};
use crate::vectors::{self, Does, ExpectedReport, REFUSED, Vector, operations_of};
use judge::{CoverageRow, JudgeResult, judge};
use place::{VectorPlace, config};

/// Interval of full verifications, short so that a sweep finds changes soon.
const VERIFY_EVERY: &str = "8";
/// Time limit for the records after all changes are made.
const LIMIT: Duration = Duration::from_mins(1);

/// The host assumes that a silent guest is stuck.
const SAY_EVERY: Duration = Duration::from_secs(20);
/// The root of [`below_bind_mount`].
const ROOT: &str = "/host";

/// If nothing is expected any more, the scenario waits this long for unexpected records.
const QUIET: Duration = Duration::from_secs(12);

/// One vector on one file system.
#[derive(Debug)]
struct VectorRun {
    vector: &'static Vector,
    place: VectorPlace,
    /// A process that started before the daemon.
    early: Option<(Child, ChildStdin)>,
    done: Option<Done>,
}

/// The result of performing the vector.
#[derive(Debug)]
enum Done {
    /// Performed by this process.
    By(u32),
    /// The kernel or the file system does not have the operation.
    Refused(String),
    /// An error.
    Failed(String),
}

impl VectorRun {
    fn name(&self) -> String {
        format!("{}/{}", self.vector.id, self.place.kind.name())
    }
}

/// All vectors, with LSM programs.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    all(context, "lsm", &[])
}

/// The same for a daemon that sees the host below a bind mount, as a container does that has the host's root as a volume. A mount that
/// another process makes on the host arrives there, and none goes back.
pub(super) fn below_bind_mount(context: &mut Context) -> Result<()> {
    let root = Path::new(ROOT);
    std::fs::create_dir_all(root)?;
    let change = |source: Option<&str>, target: &Path, flags: MsFlags| {
        mount(source, target, None::<&str>, flags | MsFlags::MS_REC, None::<&str>)
            .with_context(|| format!("cannot mount {}", target.display()))
    };
    change(None, Path::new("/"), MsFlags::MS_SHARED)?;
    change(Some("/"), root, MsFlags::MS_BIND)?;
    change(None, root, MsFlags::MS_SLAVE)?;
    all(context, "lsm", &["--host-root", ROOT])
}

/// The same, booted without `bpf` among the security modules.
pub(super) fn by_fentry(context: &mut Context) -> Result<()> {
    all(context, "fentry", &[])
}

fn all(context: &mut Context, backend: &str, options: &[&str]) -> Result<()> {
    let places = place::mount_all()?;
    let mut cases: Vec<VectorRun> = Vec::new();
    for kind in FileSystem::ALL {
        for vector in vectors::all().filter(|vector| vector.runs_on(kind)) {
            let place = VectorPlace::prepare(vector, kind)?;
            cases.push(VectorRun { vector, place, early: None, done: None });
        }
    }
    place::mount_overlay(&places)?;
    for case in &mut cases {
        case.place.finish(case.vector).with_context(|| format!("prepare {}", case.name()))?;
        if let Does::Early(_) = case.vector.does {
            case.early = Some(begin_early(case).with_context(|| format!("begin {}", case.name()))?);
        }
    }
    std::fs::write("/run/vectors.json", config(cases.iter().map(|case| (case.vector, &case.place))))?;
    let mut arguments = vec!["--standalone", "--config", "/run/vectors.json", "--canary-every", "2"];
    arguments.extend(["--verify-every", VERIFY_EVERY]);
    arguments.extend(options);
    let mut agent = RunningDaemon::start(&arguments)?;
    agent.wait_for("the first gap to close", 0, |record| record["detail"]["until"].is_string())?;
    let start = agent.wait_for("the start record", 0, |record| record["kind"] == "start")?;
    ensure!(start["detail"]["backend"] == backend, "{backend} was to be shown, but: {start}");
    context.note(format!("{} cases", cases.len()));
    let first = agent.records()?.len();
    as_expected_at_first(context, &agent, &cases)?;
    // The daemon attaches the hooks on reads and writes a moment after its first verification found files open.
    wait::pause(Duration::from_secs(2));
    perform_all(context, &mut cases);
    context.note("all vectors are done");
    report(context, &mut agent, &cases, first)?;
    context.check("unreported_changes_passed_their_hooks", unreported_changes_passed_their_hooks(&cases));
    // The daemon writes records first, and the status after them.
    let mut last = Err(anyhow!("no status"));
    let agreed = wait::until("the status to agree with the records", LIMIT, || {
        last = status_agrees(&cases);
        Ok(last.is_ok().then_some(()))
    });
    context.check("status", agreed.and(last));
    agent.stop()?;
    Ok(())
}

/// Performs all vectors, those of each file system one after the other.
fn perform_all(context: &mut Context, cases: &mut [VectorRun]) {
    let all = cases.len();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for cases in cases.chunk_by_mut(|one, other| one.place.kind == other.place.kind) {
            let done = &done;
            scope.spawn(move || {
                for case in cases {
                    let result = perform(case).unwrap_or_else(|error| Done::Failed(format!("{error:#}")));
                    case.done = Some(result);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut printed = Instant::now();
        while done.load(Ordering::Relaxed) < all {
            wait::pause(Duration::from_millis(200));
            if printed.elapsed() > SAY_EVERY {
                context.note(format!("{} of {all} are done", done.load(Ordering::Relaxed)));
                printed = Instant::now();
            }
        }
    });
}

fn guest_program(vector: &Vector, place: &VectorPlace) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("act").arg(vector.id).arg(&place.acts_on);
    command
}

/// Starts a process that waits for the daemon, up to the point where it is ready.
fn begin_early(case: &VectorRun) -> Result<(Child, ChildStdin)> {
    let mut child =
        guest_program(case.vector, &case.place).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("stdout was asked for")?).read_line(&mut line)?;
    ensure!(line == "ready\n", "it printed {line:?}");
    let stdin = child.stdin.take().context("stdin was asked for")?;
    Ok((child, stdin))
}

/// Performs a vector and waits for the end of its process.
fn perform(case: &mut VectorRun) -> Result<Done> {
    let child = match (case.early.take(), case.vector.does) {
        (Some((child, mut stdin)), _) => {
            stdin.write_all(b"go\n")?;
            child
        }
        (None, Does::Shell(line)) => {
            let file = &case.place.acts_on;
            let directory = file.parent().context("a path with a directory")?;
            Command::new("/bin/sh").args(["-c", line]).env("F", file).env("D", directory).spawn()?
        }
        (None, _) => guest_program(case.vector, &case.place).stderr(Stdio::piped()).spawn()?,
    };
    let pid = child.id();
    let out = child.wait_with_output()?;
    let printed = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    match out.status.code() {
        Some(0) => Ok(Done::By(pid)),
        Some(REFUSED) => Ok(Done::Refused(printed)),
        _ => bail!("{}: {printed}", out.status),
    }
}

/// Before any change, exactly the things that were prepared as drifted are drifted.
fn as_expected_at_first(context: &mut Context, agent: &RunningDaemon, cases: &[VectorRun]) -> Result<()> {
    let records = agent.records()?;
    let drifted = |path: &str| records.iter().any(|r| r["kind"] == "drift" && r["path"] == path);
    let wrong: Vec<String> = cases
        .iter()
        .filter(|case| drifted(&case.place.reported) != case.vector.target.begins_drifted())
        .map(|case| {
            let printed = records.iter().find(|r| r["kind"] == "drift" && r["path"] == case.place.reported);
            format!("{}: {}", case.name(), printed.map_or(Value::Null, |r| r["differences"].clone()))
        })
        .collect();
    let result = if wrong.is_empty() {
        Ok(format!("{} things", cases.len()))
    } else {
        Err(anyhow::anyhow!("wrong before anything was done: {}", wrong.join("; ")))
    };
    context.check("before", result);
    Ok(())
}

/// Waits for the records, and reports each case.
fn report(context: &mut Context, agent: &mut RunningDaemon, cases: &[VectorRun], first: usize) -> Result<()> {
    let start = Instant::now();
    let mut open: Vec<&VectorRun> = cases.iter().collect();
    loop {
        let records = agent.records()?;
        let records = records.get(first..).unwrap_or_default();
        // Vectors without an expected record are judged when all others are.
        let waiting = open.iter().any(|case| case.vector.expected != ExpectedReport::Nothing);
        let late = start.elapsed() > LIMIT || (!waiting && start.elapsed() > QUIET);
        let mut left = Vec::new();
        for case in open {
            match &case.done {
                Some(Done::By(pid)) => {
                    match judge(case.vector, case.place.kind, &case.place.reported, *pid, records) {
                        JudgeResult::Right(row) => {
                            context.measured(&case.name(), row.summary(), data(&row, case));
                        }
                        JudgeResult::NotYet(_) if !late => left.push(case),
                        JudgeResult::NotYet(_) if case.vector.expected == ExpectedReport::Nothing => {
                            context.measured(&case.name(), "nothing, as it must be".into(), not_shown(case));
                        }
                        JudgeResult::NotYet(why) | JudgeResult::Wrong(why) => {
                            context.check(&case.name(), Err(why));
                        }
                    }
                }
                Some(Done::Refused(printed)) => context.skip(
                    &case.name(),
                    &format!("this kernel or file system has no such operation: {printed}"),
                ),
                Some(Done::Failed(printed)) => {
                    context.check(&case.name(), Err(anyhow::anyhow!("failed: {printed}")));
                }
                None => bail!("{} was not done", case.name()),
            }
        }
        open = left;
        if open.is_empty() {
            return Ok(());
        }
        wait::pause(Duration::from_millis(200));
    }
}

fn not_shown(case: &VectorRun) -> Value {
    json!({ "vector": case.vector.id, "file_system": case.place.kind.name(), "outcome": "not-shown" })
}

/// A change without a record still passes the hooks in the table's row.
fn unreported_changes_passed_their_hooks(cases: &[VectorRun]) -> Result<String> {
    let unshown = cases.iter().filter(|case| {
        case.vector.expected == ExpectedReport::Nothing && matches!(case.done, Some(Done::By(_)))
    });
    let hooks: BTreeSet<&str> = unshown.flat_map(|case| case.vector.hooks).copied().collect();
    for hook in &hooks {
        let records = page::sum("holdfast_events_total", |line| {
            operations_of(&[hook]).iter().any(|operation| line.contains(&format!("\"{operation}\"")))
        });
        ensure!(records? > 0.0, "{hook} has no record");
    }
    Ok(hooks.into_iter().collect::<Vec<_>>().join(", "))
}

/// The status lists everything that must be drifted now, and nothing else.
fn status_agrees(cases: &[VectorRun]) -> Result<String> {
    let mut wrong = Vec::new();
    ensure!(status::verdict() == "drifted", "the verdict is {}", status::verdict());
    let drifted = status::drifted()?;
    for case in cases {
        let Some(Done::By(_)) = case.done else { continue };
        let wanted = match case.vector.expected {
            ExpectedReport::Drift(_) | ExpectedReport::TamperThenDrift(_) => true,
            ExpectedReport::Touched
            | ExpectedReport::Recovered
            | ExpectedReport::Exec
            | ExpectedReport::Nothing => false,
        };
        if drifted.contains(&case.place.reported) != wanted {
            wrong.push(case.name());
        }
    }
    ensure!(wrong.is_empty(), "wrong in the status: {}", wrong.join(", "));
    Ok(format!("{} drifted", drifted.len()))
}

/// The row's data for the host.
fn data(row: &CoverageRow, case: &VectorRun) -> Value {
    json!({
        "vector": case.vector.id,
        "file_system": case.place.kind.name(),
        "outcome": if row.swept { "swept" } else { "reported" },
        "operation": row.operation,
    })
}
