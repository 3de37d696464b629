//! The requests of mode `manage`, played in front of the daemon's own socket.
//!
//! In: requests on `manage.sock`, and what a test says about configs and orders. Out: plans and progress. Every other request goes
//! to the daemon's own socket. No config is read but for its name, and nothing is applied.

use anyhow::{Context as _, Result, bail};
use sensor_model::action::Action;
use sensor_model::plan::{self, Plan, Step};
use sensor_model::socket::{
    APPLY, ApplyOrder, ApplyPhase, ApplyProgress, CONFIG, CONFIG_BYTES, DesiredConfig, PLANNED_CONFIG_SCHEMA,
    PlannedConfig, wait_of,
};
use serde_json::json;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// What the test wants, and what the reporter has asked for.
struct State {
    drains: bool,
    planned: Option<PlannedConfig>,
    progress: ApplyProgress,
}

/// The played applies.
pub(crate) struct Applies(watch::Sender<State>);

impl Applies {
    /// Serves `manage.sock` beside the daemon's socket in this folder.
    pub(crate) fn serve(run: &Path) -> Result<Self> {
        let progress = ApplyProgress::idle();
        let state = watch::Sender::new(State { drains: false, planned: None, progress });
        let listener = UnixListener::bind(run.join("manage.sock"))?;
        let (served, daemon) = (state.clone(), run.join("reporter.sock"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, served.clone(), daemon.clone()));
            }
        });
        Ok(Self(state))
    }

    /// Takes a line of the test. Gives the answer; `None` if the line is about something else.
    pub(crate) fn take(&self, line: &str) -> Option<&'static str> {
        let is_ordered = self.0.borrow().progress.phase == ApplyPhase::Running;
        let words: Vec<&str> = line.split_whitespace().collect();
        self.0.send_if_modified(|state| {
            let progress = &mut state.progress;
            match words[..] {
                ["current", name] => progress.current = Some(name.to_owned()),
                ["drains", answer] => state.drains = answer == "yes",
                ["operator", answer] => progress.is_managed_by_operator = answer == "yes",
                ["finish"] if is_ordered => {
                    progress.phase = ApplyPhase::Done;
                    progress.current.clone_from(&progress.config);
                }
                ["fail-drift"] if is_ordered => {
                    (progress.phase, progress.drifted) = (ApplyPhase::Failed, true);
                    progress.message = Some("preflight: this node has drifted".to_owned());
                }
                _ => return false,
            }
            true
        });
        match words[..] {
            ["ordered" | "finish" | "fail-drift"] if !is_ordered => Some("not ordered"),
            ["ordered" | "finish" | "fail-drift"] | ["current" | "drains" | "operator", _] => Some("done"),
            _ => None,
        }
    }
}

/// One request.
struct Asked {
    line: String,
    head: String,
    body: Vec<u8>,
}

impl Asked {
    async fn read(stream: &mut UnixStream) -> Result<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8(head)?;
        let line = head.lines().next().context("no request line")?.to_owned();
        let mut asked = Self { line, head, body: Vec::new() };
        let length = asked.header("content-length").unwrap_or("0").parse()?;
        if length > CONFIG_BYTES {
            bail!("a body of {length} bytes");
        }
        asked.body.resize(length, 0);
        stream.read_exact(&mut asked.body).await?;
        Ok(asked)
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

async fn connection(mut stream: UnixStream, state: watch::Sender<State>, daemon: PathBuf) -> Result<()> {
    loop {
        let asked = Asked::read(&mut stream).await?;
        let mut words = asked.line.split(' ');
        let answer = match (words.next(), words.next()) {
            (Some("PUT"), Some(CONFIG)) => plan(&asked, &state)?,
            (Some("GET"), Some(CONFIG)) => planned(&state)?,
            (Some("POST"), Some(APPLY)) => order(&asked, &state)?,
            (Some("GET"), Some(APPLY)) => progress(&asked, &state).await?,
            _ => {
                let mut daemon = UnixStream::connect(&daemon).await?;
                let (line, fields) = asked.head.split_once("\r\n").context("no request line")?;
                daemon.write_all(format!("{line}\r\nConnection: close\r\n{fields}").as_bytes()).await?;
                copy(&mut daemon, &mut stream).await?;
                return Ok(());
            }
        };
        stream.write_all(answer.as_bytes()).await?;
    }
}

fn answer(code: &str, body: &str) -> String {
    format!("HTTP/1.1 {code}\r\nETag: {}\r\nContent-Length: {}\r\n\r\n{body}", tag(body), body.len())
}

fn tag(body: &str) -> String {
    format!("\"{:016x}\"", hash(body.as_bytes()))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn plan(asked: &Asked, state: &watch::Sender<State>) -> Result<String> {
    let desired: DesiredConfig = serde_json::from_slice(&asked.body)?;
    let name = desired.machine_config["metadata"]["name"].as_str().context("a config without a name")?;
    let drains = state.borrow().drains;
    let planned = PlannedConfig {
        schema: PLANNED_CONFIG_SCHEMA.to_owned(),
        id: format!("{:064x}", hash(&asked.body)),
        config: name.to_owned(),
        plan: Plan {
            schema: plan::SCHEMA.to_owned(),
            reconcilable: true,
            reasons: Vec::new(),
            overridden: Vec::new(),
            changes: Vec::new(),
            steps: vec![Step {
                action: Action::Write,
                target: None,
                because: vec!["/etc/played".to_owned()],
                policies: Vec::new(),
                timeout_seconds: None,
                fallback: None,
            }],
            drain: drains,
            reboot: false,
            overwritten: Vec::new(),
            removed_by_force: Vec::new(),
        },
        drains,
        reboots: false,
        has_nothing_to_do: false,
        changes_left_out: 0,
        is_shortened: false,
    };
    let body = serde_json::to_string(&planned)?;
    state.send_modify(|state| state.planned = Some(planned));
    Ok(answer("200 OK", &body))
}

fn planned(state: &watch::Sender<State>) -> Result<String> {
    let Some(planned) = state.borrow().planned.clone() else {
        let error = json!({ "reason": "NotPlanned", "error": "no config was handed in" });
        return Ok(answer("409 Conflict", &error.to_string()));
    };
    Ok(answer("200 OK", &serde_json::to_string(&planned)?))
}

fn order(asked: &Asked, state: &watch::Sender<State>) -> Result<String> {
    let order: ApplyOrder = serde_json::from_slice(&asked.body)?;
    let Some(planned) = state.borrow().planned.clone().filter(|planned| planned.id == order.id) else {
        let error = json!({ "reason": "NotPlanned", "error": "another config was handed in" });
        return Ok(answer("409 Conflict", &error.to_string()));
    };
    state.send_modify(|state| {
        let current = state.progress.current.clone();
        state.progress = ApplyProgress {
            phase: ApplyPhase::Running,
            id: Some(planned.id),
            config: Some(planned.config),
            current,
            ..ApplyProgress::idle()
        };
    });
    Ok(answer("202 Accepted", &serde_json::to_string(&state.borrow().progress)?))
}

async fn progress(asked: &Asked, state: &watch::Sender<State>) -> Result<String> {
    let known = asked.header("if-none-match").unwrap_or_default();
    let wait = asked.header("prefer").and_then(wait_of).unwrap_or_default();
    let body = |state: &State| serde_json::to_string(&state.progress).unwrap_or_default();
    let mut states = state.subscribe();
    let other = states.wait_for(|state| tag(&body(state)) != known);
    match timeout(Duration::from_secs(wait), other).await {
        Ok(state) => Ok(answer("200 OK", &body(&*state?))),
        Err(_) => Ok("HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()),
    }
}
