//! `holdfast who`: the last changes of a path, from the forensic log.

use super::{
    describe,
    exit::BadInput,
    log_errors,
    output::{Output, Screen, Tone, clean, count, say},
    sources::host_path,
};
use crate::{
    inspection::{AuditLogs, AuditNotes},
    report::forensic::{self, LogAnswer, LogPlace, PathChange},
};
use sensor_model::{
    audit::{AuditedRequest, UserMatch},
    record::RecordKind,
};
use std::path::PathBuf;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Who {
    /// The path on the host.
    #[arg(value_parser = host_path)]
    path: PathBuf,
    /// Number of changes, the newest first.
    #[arg(short = 'n', long = "lines", default_value_t = 10, value_name = "NUMBER")]
    lines: usize,
    /// Directory of the forensic log.
    #[arg(long, default_value = forensic::DIRECTORY, value_name = "DIRECTORY")]
    log: PathBuf,
    /// State directory, in which the daemon keeps the number of the log's last entry.
    #[arg(long, default_value = crate::desired::STATE, value_name = "DIRECTORY")]
    state: PathBuf,
    /// The API server's audit log, also compressed with gzip; may be repeated. Names the users whose requests match a change by
    /// pod, container and time.
    #[arg(long, value_name = "FILE")]
    audit_log: Vec<PathBuf>,
    /// Directory in which the kubelet links the logs of pods, which tell the pods' names.
    #[arg(long, default_value = "/var/log", value_name = "DIRECTORY", requires = "audit_log")]
    pod_logs: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Who {
    /// Reads the log and prints the changes.
    ///
    /// # Errors
    /// A log that cannot be read or is not sound, or an audit log that cannot be read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let log = LogPlace::new(&self.log, &self.state);
        let LogAnswer { found: mut report, doubt } =
            log.who(&self.path, self.lines).map_err(log_errors::unreadable)?;
        if !self.audit_log.is_empty() {
            let audit = AuditLogs { files: &self.audit_log, pod_logs: &self.pod_logs };
            let notes = audit
                .name_users(&mut report.changes)
                .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--audit-log")))?;
            say_notes(&notes);
        }
        if self.output.is_json() {
            screen.json(&report)?;
        } else if report.changes.is_empty() {
            screen.line(&format!("no change of {} is in the log", clean(&report.path)))?;
        } else {
            for change in &report.changes {
                text(change, screen)?;
            }
            let changes = count(report.changes.len(), "change");
            screen.line(&screen.paint(Tone::Quiet, &format!("{changes}, the newest first")))?;
        }
        log_errors::refuse_unsound(doubt, screen)
    }
}

/// Prints a change in two lines, one for each difference, and its diff.
///
/// # Errors
/// Those of the writer.
pub fn text(change: &PathChange, screen: &mut Screen) -> std::io::Result<()> {
    let tone = match change.kind {
        RecordKind::Drift | RecordKind::Denied => Tone::Bad,
        RecordKind::Recovered | RecordKind::Reverted => Tone::Good,
        _ => Tone::Notable,
    };
    let operation = change.operation.as_deref().unwrap_or("no operation");
    let kind = screen.paint(tone, change.kind.as_str());
    screen.line(&format!("{} {kind} by {}", describe::time(&change.time), clean(operation)))?;
    screen.line(&format!("  {}", describe::actor(change.actor.as_ref())))?;
    let named = change.actor.as_ref().map(|actor| (actor.pid, actor.start_ns));
    for actor in change.actors.iter().filter(|actor| Some((actor.pid, actor.start_ns)) != named) {
        screen.line(&format!("  beside {}", describe::actor(Some(actor))))?;
    }
    for user in change.users.iter().flatten() {
        screen.line(&format!("  {}", matching_user(user)))?;
    }
    if change.users.as_ref().is_some_and(Vec::is_empty) {
        screen.line("  no request in the audit log matches")?;
    }
    for difference in &change.differences {
        screen.line(&format!("  {}", clean(&difference.text)))?;
    }
    for line in change.diff.iter().flat_map(|diff| diff.lines()) {
        screen.diff_line("    ", line)?;
    }
    Ok(())
}

/// A match in one line: `matches user alice: exec into default/web-0 container app, 2026-01-02 03:04:00Z from 192.0.2.7`.
fn matching_user(found: &UserMatch) -> String {
    let mut text = format!("matches user {}", found.user);
    if let Some(other) = &found.impersonated_by {
        text.extend([", impersonated by ", other]);
    }
    let request = match found.request {
        AuditedRequest::Exec => "exec in",
        AuditedRequest::Attach => "attach to",
        AuditedRequest::EphemeralContainer => "ephemeral container in",
        AuditedRequest::Create => "creation of",
    };
    text.extend([": ", request, " ", &found.namespace, "/", &found.pod]);
    if let Some(container) = &found.container {
        text.extend([" container ", container]);
    }
    text.extend([", ", &describe::time(&found.began.to_string())]);
    if !found.source_ips.is_empty() {
        text.extend([" from ", &found.source_ips.join(", ")]);
    }
    text += " (a match by pod, container and time, no proof)";
    clean(&text)
}

/// Says on standard error what the audit logs do not tell.
fn say_notes(notes: &AuditNotes) {
    for uid in &notes.unnamed_pods {
        say(&format!(
            "the name of pod {uid} is neither in the directory of --pod-logs nor in the audit log, so its changes match no user"
        ));
    }
    if notes.skipped > 0 {
        let lines = count(usize::try_from(notes.skipped).unwrap_or(usize::MAX), "line");
        say(&format!(
            "the audit log has {lines} that are no audit events, or that are cut off; they were left out"
        ));
    }
}
