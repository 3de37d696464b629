//! `holdfast log`: prints and checks the forensic log.

use super::{
    describe,
    exit::{DRIFT, FAILURE, IN_SYNC},
    log_errors::{refuse_unsound, unreadable},
    output::{Output, Screen, Tone, clean, count},
    sources::host_path,
    who,
};
use crate::report::forensic::{
    self, ChainCheck, EndNoteError, Filter, LogAnswer, LogEntry, LogPlace, LogReport, LogState, PathChange,
    canonical,
};
use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use jiff::{SignedDuration, Timestamp};
use sensor_model::record::RecordKind;
use std::{io, ops::ControlFlow, path::PathBuf};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Log {
    /// The subcommand.
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LogCommand {
    /// Print the newest entries.
    Tail {
        /// Number of entries.
        #[arg(short = 'n', long = "lines", default_value_t = 10, value_name = "NUMBER")]
        lines: usize,
        /// Print new entries as the daemon writes them.
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        options: LogOptions,
    },
    /// Print entries.
    Show {
        /// Only entries about this path, or about paths below it.
        #[arg(long, value_parser = host_path)]
        path: Option<PathBuf>,
        /// Only entries of this kind; may be repeated.
        #[arg(long, value_parser = kind())]
        kind: Vec<RecordKind>,
        /// Only entries since this time: RFC 3339, or a time span before now such as `90m` or `24h`.
        #[arg(long, value_parser = since, value_name = "TIME")]
        since: Option<Timestamp>,
        #[command(flatten)]
        options: LogOptions,
    },
    /// Check the hash chain, and name the first entry that does not match it.
    Verify {
        #[command(flatten)]
        options: LogOptions,
    },
}

#[derive(Debug, clap::Args)]
struct LogOptions {
    /// Directory of the forensic log.
    #[arg(long, default_value = forensic::DIRECTORY, value_name = "DIRECTORY")]
    log: PathBuf,
    /// State directory, in which the daemon keeps the number of the log's last entry.
    #[arg(long, default_value = crate::desired::STATE, value_name = "DIRECTORY")]
    state: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl LogOptions {
    fn place(&self) -> LogPlace {
        LogPlace::new(&self.log, &self.state)
    }
}

/// A record kind by its name.
fn kind() -> impl clap::builder::TypedValueParser<Value = RecordKind> {
    PossibleValuesParser::new(RecordKind::ALL.iter().map(|kind| kind.as_str()))
        .try_map(|name| RecordKind::ALL.iter().copied().find(|kind| kind.as_str() == name).ok_or(UnknownKind))
}

#[derive(Debug, thiserror::Error)]
#[error("no such kind")]
struct UnknownKind;

/// A value of `--since` that is no time.
#[derive(Debug, thiserror::Error)]
enum SinceError {
    #[error("neither a time as in RFC 3339 nor a time span such as 90m")]
    Neither,
    #[error(transparent)]
    TooLong(#[from] jiff::Error),
}

/// A time, or a time span before now.
fn since(text: &str) -> Result<Timestamp, SinceError> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let span: SignedDuration = text.parse().map_err(|_| SinceError::Neither)?;
    Ok(Timestamp::now().checked_sub(span.abs())?)
}

impl Log {
    /// Reads and prints.
    ///
    /// # Errors
    /// A log that cannot be read or is not sound.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        match &self.command {
            LogCommand::Tail { lines, follow: false, options } => {
                let LogAnswer { found: entries, doubt } =
                    options.place().newest(*lines).map_err(unreadable)?;
                print(&entries, options.output, screen)?;
                refuse_unsound(doubt, screen)
            }
            LogCommand::Tail { lines, follow: true, options } => {
                let mut written = Ok(());
                let followed = options.place().follow(*lines, &mut |entries| {
                    written = print(entries, options.output, screen)
                        .and_then(|()| screen.flush().map_err(anyhow::Error::from));
                    let is_over = written.is_err() || screen.is_closed();
                    if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                let doubt = followed.map_err(unreadable)?;
                written?;
                refuse_unsound(doubt, screen)
            }
            LogCommand::Show { path, kind, since, options } => {
                let filter = Filter { path: path.clone(), kinds: kind.clone(), since: *since };
                let mut written = Ok(());
                let shown = options.place().show(&filter, &mut |entry| {
                    if written.is_ok() {
                        written = print(&[entry], options.output, screen);
                    }
                });
                let doubt = shown.map_err(unreadable)?;
                written?;
                refuse_unsound(doubt, screen)
            }
            LogCommand::Verify { options } => {
                let checked = options.place().check().map_err(|error| match error {
                    EndNoteError::Log(error) => unreadable(error),
                    error @ EndNoteError::Note { .. } => error.into(),
                })?;
                if options.output.is_json() {
                    screen.json(&LogReport::from(&checked.found))?;
                } else {
                    text(&checked.found, screen)?;
                }
                Ok(match checked.state {
                    LogState::Sound => IN_SYNC,
                    LogState::Broken => DRIFT,
                    LogState::Empty => FAILURE,
                })
            }
        }
    }
}

/// Prints entries as text, or as the lines of the log.
fn print(entries: &[LogEntry], output: Output, screen: &mut Screen) -> anyhow::Result<()> {
    for entry in entries {
        if output.is_json() {
            screen.line(&canonical(entry).context("write an entry")?)?;
            continue;
        }
        if let Some(path) = &entry.record.path {
            screen.line(&clean(&format!("#{} {path}", entry.seq)))?;
            who::text(&PathChange::from(entry.clone()), screen)?;
            continue;
        }
        let time = describe::time(&entry.record.time);
        let mut text = format!("#{} {time} {}", entry.seq, entry.record.kind.as_str());
        for (name, value) in &entry.record.detail {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.extend([" ", name, "=", &value]);
        }
        screen.line(&clean(&text))?;
    }
    Ok(())
}

fn text(found: &ChainCheck, screen: &mut Screen) -> io::Result<()> {
    let entries =
        count(usize::try_from(found.entries).unwrap_or(usize::MAX), "entry").replace("entrys", "entries");
    let files = count(found.files, "file");
    if let Some(fault) = &found.fault {
        let word = screen.paint(Tone::Bad, "broken");
        screen.line(&format!("{word}: {}", clean(&fault.to_string())))?;
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
