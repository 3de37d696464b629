//! `holdfast log`: the forensic log, read and checked.

use super::{
    BadInput, DRIFT, FAILURE, IN_SYNC,
    output::{Output, Screen, Tone, clean, count},
    sources::host_path,
    who::{self, Change},
};
use crate::report::forensic::{self, End, EndError, Entry, Filter, Verification};
use anyhow::Context as _;
use canon_json::CanonJsonSerialize as _;
use jiff::{SignedDuration, Timestamp};
use sensor_model::record::RecordKind;
use serde::Serialize;
use std::{
    collections::VecDeque,
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
#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: &'static str,
    sound: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    doubt: Option<String>,
    files: usize,
    entries: u64,
    first_seq: Option<u64>,
    last_seq: Option<u64>,
    last_hash: Option<&'a str>,
    /// Bytes of an unfinished line at the very end.
    unfinished: usize,
    fault: Option<Fault<'a>>,
}

#[derive(Debug, Serialize)]
struct Fault<'a> {
    file: &'a Path,
    line: Option<u64>,
    seq: Option<u64>,
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
                let (entries, found) = newest(&place.log, *lines)?;
                let doubt = doubt(end, &found)?;
                let mut newest = entries.last().map_or(0, |entry| entry.seq);
                if entries.is_empty() && *follow {
                    // With `-n 0` only what is new counts.
                    newest = newest_of(&place.log)?;
                }
                print(&entries, place.output, screen)?;
                if *follow {
                    self::follow(place, newest, screen)?;
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
                doubted(doubt(end, &found)?, screen)
            }
            Command::Verify { place } => {
                let end = place.end();
                let mut found = forensic::verify(&place.log).map_err(unreadable)?;
                let emptied = found.fault.is_none() && found.doubt().is_some();
                compare_with_note(&mut found, end, &place.log)?;
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

/// A whole chain may lack its newest entries: the daemon's note of the last one shows that.
fn compare_with_note(found: &mut Verification, end: End, log: &Path) -> anyhow::Result<()> {
    if found.fault.is_some() {
        return Ok(());
    }
    let shortfall = match end.compare(found.last_seq.unwrap_or_default()) {
        // A copy of a log can be checked without rights on the node.
        Err(EndError::Note { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied && log != Path::new(super::agent::LOG) =>
        {
            return Ok(());
        }
        Err(EndError::Log(error)) => return Err(unreadable(error)),
        compared => compared?,
    };
    found.fault = shortfall.map(|shortfall| forensic::Fault {
        file: shortfall.file,
        line: None,
        seq: shortfall.note.map(|note| note.seq),
        reason: shortfall.reason,
    });
    Ok(())
}

/// Why a log that was read is not sound, by its chain, and by the note of its end where this user may read that.
///
/// # Errors
/// The log cannot be read.
pub(super) fn doubt(end: End, found: &Verification) -> anyhow::Result<Option<String>> {
    match found.doubt() {
        None => cut(end, found.last_seq.unwrap_or_default()),
        doubt => Ok(doubt),
    }
}

/// Why a log that ends with entry `last` may lack its newest entries.
///
/// # Errors
/// The log cannot be read.
pub(super) fn cut(end: End, last: u64) -> anyhow::Result<Option<String>> {
    match end.compare(last) {
        Ok(shortfall) => Ok(shortfall.map(|shortfall| shortfall.told())),
        Err(EndError::Note { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error @ EndError::Note { .. }) => Ok(Some(error.to_string())),
        Err(EndError::Log(error)) => Err(unreadable(error)),
    }
}

/// Ends an answer from a log that is not sound: the answer was given, and need not be true.
///
/// # Errors
/// Those of the writer.
pub(super) fn doubted(doubt: Option<String>, screen: &mut Screen) -> anyhow::Result<u8> {
    let Some(doubt) = doubt else { return Ok(IN_SYNC) };
    screen.flush()?;
    anyhow::bail!("the log is not sound, so this answer may be false or not all of it: {doubt}")
}

/// The newest entries, and what the check of all found.
fn newest(log: &Path, number: usize) -> anyhow::Result<(Vec<Entry>, Verification)> {
    let mut newest = VecDeque::new();
    let found = forensic::show_checked(log, &Filter::default(), &mut |entry| {
        newest.push_back(entry);
        if newest.len() > number {
            newest.pop_front();
        }
    });
    Ok((newest.into(), found.map_err(unreadable)?))
}

pub(super) fn unreadable(error: forensic::ReadError) -> anyhow::Error {
    if error.source.kind() == io::ErrorKind::NotFound {
        return BadInput::wrap(anyhow::Error::from(error).context("--log"));
    }
    error.into()
}

fn newest_of(log: &Path) -> anyhow::Result<u64> {
    Ok(forensic::tail(log, 1, &Filter::default()).map_err(unreadable)?.last().map_or(0, |entry| entry.seq))
}

/// Prints what is newer than an entry, as it comes, over rotations, until the reader goes away.
fn follow(place: &Place, mut newest: u64, screen: &mut Screen) -> anyhow::Result<()> {
    let mut size = None;
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
        // Reading all of a log that did not grow would be waste.
        let files = forensic::files(&place.log).map_err(unreadable)?;
        let now: Vec<(PathBuf, u64)> = files
            .into_iter()
            .map(|file| {
                let length = std::fs::metadata(&file).map_or(0, |metadata| metadata.len());
                (file, length)
            })
            .collect();
        if size.as_ref() == Some(&now) {
            continue;
        }
        size = Some(now);
        let mut fresh = Vec::new();
        forensic::show(&place.log, &Filter::default(), &mut |entry| {
            if entry.seq > newest {
                fresh.push(entry);
            }
        })
        .map_err(unreadable)?;
        newest = fresh.last().map_or(newest, |entry| entry.seq);
        print(&fresh, place.output, screen)?;
    }
}

/// Entries in two lines and more for people, or as the log's own lines.
fn print(entries: &[Entry], output: Output, screen: &mut Screen) -> anyhow::Result<()> {
    for entry in entries {
        if output.is_json() {
            screen.line(&line(entry)?)?;
            continue;
        }
        if let Some(path) = &entry.record.path {
            screen.line(&clean(&format!("#{} {path}", entry.seq)))?;
            who::text(&Change::from(entry.clone()), screen)?;
            continue;
        }
        let kind = serde_json::to_value(entry.record.kind)?;
        let time = super::people::time(&entry.record.time);
        let mut text = format!("#{} {time} {}", entry.seq, kind.as_str().unwrap_or_default());
        for (name, value) in &entry.record.detail {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.extend([" ", name, "=", &value]);
        }
        screen.line(&clean(&text))?;
    }
    Ok(())
}

/// The entry in the form in which it was written: its hash can be checked.
fn line(entry: &Entry) -> anyhow::Result<String> {
    let mut value = serde_json::to_value(&entry.record)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("seq".into(), entry.seq.into());
        map.insert("previous_hash".into(), entry.previous_hash.clone().into());
        map.insert("hash".into(), entry.hash.clone().into());
    }
    let bytes = value.to_canon_json_vec().context("write an entry")?;
    Ok(String::from_utf8(bytes)?)
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
