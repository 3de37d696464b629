//! `holdfast log`: the forensic log, read and checked.

use super::{
    exit::{DRIFT, FAILURE, IN_SYNC},
    log_errors::{doubted, unreadable},
    output::{Output, Screen, Tone, clean, count},
    sources::host_path,
    who::{self, Change},
};
use crate::report::forensic::{self, End, EndError, Filter, Follower, LogEntry, Verification, canonical};
use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use sensor_model::record::RecordKind;
use serde::Serialize;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "holdfast.log-verify/v1";

/// How often a log that is followed is looked at.
const PAUSE: Duration = Duration::from_millis(250);

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Log {
    /// The subcommand.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the newest entries.
    Tail {
        /// Number of entries.
        #[arg(short = 'n', long = "lines", default_value_t = 10, value_name = "NUMBER")]
        lines: usize,
        /// Print new entries as the daemon writes them.
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Print entries.
    Show {
        /// Only entries about this path, or about paths below it.
        #[arg(long, value_parser = host_path)]
        path: Option<PathBuf>,
        /// Only entries of this kind; may be repeated.
        #[arg(long, value_parser = kind)]
        kind: Vec<RecordKind>,
        /// Only entries since this time: RFC 3339, or a time span before now such as `90m` or `24h`.
        #[arg(long, value_parser = since, value_name = "TIME")]
        since: Option<Timestamp>,
        #[command(flatten)]
        place: Place,
    },
    /// Check the hash chain, and name the first entry that does not match it.
    Verify {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, clap::Args)]
struct Place {
    /// Directory of the forensic log.
    #[arg(long, default_value = super::agent::LOG, value_name = "DIRECTORY")]
    log: PathBuf,
    /// State directory, in which the daemon keeps the number of the log's last entry.
    #[arg(long, default_value = crate::apply::STATE, value_name = "DIRECTORY")]
    state: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Place {
    fn end(&self) -> End {
        End::read(&self.state, &self.log)
    }
}

/// What the check found.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Report<'a> {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    schema: &'static str,
    /// Whether the log is intact.
    sound: bool,
    /// Why it is not intact.
    #[serde(skip_serializing_if = "Option::is_none")]
    doubt: Option<String>,
    /// How many files were read.
    files: usize,
    /// How many entries are intact, up to the first that is not.
    entries: u64,
    /// Number of the first entry; more than 1 after a rotation that removed older entries.
    first_seq: Option<u64>,
    /// Number of the last entry.
    last_seq: Option<u64>,
    /// Hash of the last entry, to compare with a checkpoint that is kept elsewhere.
    last_hash: Option<&'a str>,
    /// Bytes of an unfinished line at the very end.
    unfinished: usize,
    /// The first entry that was changed or is missing; null if there is none.
    fault: Option<Fault<'a>>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Fault<'a> {
    /// The file.
    file: &'a Path,
    /// The line in it, from 1.
    line: Option<u64>,
    /// Number of the entry.
    seq: Option<u64>,
    /// What is wrong with it.
    reason: &'a str,
}

/// A record kind by its word.
fn kind(word: &str) -> Result<RecordKind, String> {
    serde_json::from_value(word.into()).map_err(|error| error.to_string())
}

/// A moment, or how long ago it was.
fn since(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let span: SignedDuration =
        text.parse().map_err(|_| "neither a time as in RFC 3339 nor a time span such as 90m".to_owned())?;
    Timestamp::now().checked_sub(span.abs()).map_err(|error| error.to_string())
}

impl Log {
    /// Reads and prints.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        match &self.command {
            Command::Tail { lines, follow, place } => {
                let end = place.end();
                let (entries, found) = forensic::newest(&place.log, *lines).map_err(unreadable)?;
                let doubt = forensic::doubt(end, &found).map_err(unreadable)?;
                // Taken before the entries are printed, so that it misses none that is added meanwhile.
                let follower = follow.then(|| Follower::after(&place.log, &entries).map_err(unreadable));
                print(&entries, place.output, screen)?;
                if let Some(follower) = follower {
                    self::follow(follower?, place.output, screen)?;
                }
                doubted(doubt, screen)
            }
            Command::Show { path, kind, since, place } => {
                let end = place.end();
                let filter = Filter { path: path.clone(), kinds: kind.clone(), since: *since };
                let mut written = Ok(());
                let found = forensic::show_checked(&place.log, &filter, &mut |entry| {
                    if written.is_ok() {
                        written = print(&[entry], place.output, screen);
                    }
                })
                .map_err(unreadable)?;
                written?;
                doubted(forensic::doubt(end, &found).map_err(unreadable)?, screen)
            }
            Command::Verify { place } => {
                let end = place.end();
                let mut found = forensic::verify(&place.log).map_err(unreadable)?;
                let emptied = found.fault.is_none() && found.doubt().is_some();
                let is_copy = place.log != Path::new(super::agent::LOG);
                found.compare_with_note(end, is_copy).map_err(|error| match error {
                    EndError::Log(error) => unreadable(error),
                    error @ EndError::Note { .. } => error.into(),
                })?;
                if place.output.is_json() {
                    screen.json(&report(&found))?;
                } else {
                    text(&found, screen)?;
                }
                Ok(match &found.fault {
                    _ if emptied => FAILURE,
                    Some(_) => DRIFT,
                    None => IN_SYNC,
                })
            }
        }
    }
}

/// Prints entries as they are added, until the reader closes standard output.
fn follow(mut follower: Follower<'_>, output: Output, screen: &mut Screen) -> anyhow::Result<()> {
    loop {
        screen.flush()?;
        if screen.is_unheard() {
            return Ok(());
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a reader beside the daemon has nothing else to wait for"
        )]
        std::thread::sleep(PAUSE);
        print(&follower.added().map_err(unreadable)?, output, screen)?;
    }
}

/// Entries in two lines and more for people, or as the log's own lines.
fn print(entries: &[LogEntry], output: Output, screen: &mut Screen) -> anyhow::Result<()> {
    for entry in entries {
        if output.is_json() {
            screen.line(&canonical(entry).context("write an entry")?)?;
            continue;
        }
        if let Some(path) = &entry.record.path {
            screen.line(&clean(&format!("#{} {path}", entry.seq)))?;
            who::text(&Change::from(entry.clone()), screen)?;
            continue;
        }
        let time = super::describe::time(&entry.record.time);
        let mut text = format!("#{} {time} {}", entry.seq, entry.record.kind.as_str());
        for (name, value) in &entry.record.detail {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.extend([" ", name, "=", &value]);
        }
        screen.line(&clean(&text))?;
    }
    Ok(())
}

fn report(found: &Verification) -> Report<'_> {
    Report {
        schema: SCHEMA,
        sound: found.doubt().is_none(),
        doubt: found.doubt(),
        files: found.files,
        entries: found.entries,
        first_seq: found.first_seq,
        last_seq: found.last_seq,
        last_hash: found.last_hash.as_deref(),
        unfinished: found.unfinished,
        fault: found.fault.as_ref().map(|fault| Fault {
            file: &fault.file,
            line: fault.line,
            seq: fault.seq,
            reason: &fault.reason,
        }),
    }
}

fn text(found: &Verification, screen: &mut Screen) -> io::Result<()> {
    let entries =
        count(usize::try_from(found.entries).unwrap_or(usize::MAX), "entry").replace("entrys", "entries");
    let files = count(found.files, "file");
    if let Some(fault) = &found.fault {
        let word = screen.paint(Tone::Bad, "broken");
        screen.line(&format!("{word}: {}", clean(&fault.told())))?;
        return screen
            .line(&format!("{entries} before it {} intact", if found.entries == 1 { "is" } else { "are" }));
    }
    if let Some(doubt) = found.doubt() {
        return screen.line(&format!("{}: {doubt}", screen.paint(Tone::Bad, "not sound")));
    }
    let word = screen.paint(Tone::Good, "sound");
    let range = match (found.first_seq, found.last_seq) {
        (Some(first), Some(last)) => format!(", {first} to {last}"),
        _ => String::new(),
    };
    screen.line(&format!("{word}: {entries}{range} in {files}"))?;
    if found.first_seq.is_some_and(|first| first > 1) {
        screen.line("older entries were removed by rotation")?;
    }
    if found.unfinished > 0 {
        screen.line(&format!("{} bytes of an entry that is being written", found.unfinished))?;
    }
    match &found.last_hash {
        Some(hash) if found.entries > 0 => screen.line(&format!("last hash {hash}")),
        _ => Ok(()),
    }
}
