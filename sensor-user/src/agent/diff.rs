//! The state of a thing before and after, as a record shows it: metadata, digests, and a unified diff if the policy allows it.
//!
//! In: expectations, observations, the config (read again, because the daemon keeps no contents), the file. Out: values for a
//! record, limited in size. It owns the diffs that this turn will add. It shows no content of a path without a rule with `secret:
//! false`, of keys, or of a file that changed after the verification.

use super::verifier::VerifiedThing;
use crate::clock::Clock;
use crate::desired::{self, Desired, StateSource, Unknown};
use crate::observation::{Observer, snapshot};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use sensor_model::difference::DifferenceKind;
use sensor_model::expectation::{Expectation, Expected, Owner};
use sensor_model::expectations::expected_bytes;
use sensor_model::merge::Rendered;
use sensor_model::observation::{FileType, Observation, ObservedKind};
use sensor_model::protocol::ThingId;
use sensor_model::record::Record;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use similar::TextDiff;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

/// The number of names in a directory that a record shows. It counts the others.
const MOST_NAMES: usize = 64;

/// The size limit of contents for a diff.
const MOST_BYTES: usize = 64 << 10;

/// The size limit of a diff, which is cut at the end of a line.
const MOST_DIFF: usize = 16 << 10;

/// The time limit for finding a diff. After it the diff becomes coarser.
const PATIENCE: Duration = Duration::from_millis(20);

/// Reading the config for diffs takes at most this fraction of the daemon's time: one in so many.
const PART: u64 = 10;

/// Why a record has no diff, though the policy allows one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoDiff {
    /// Reading the config again would take too much of the daemon's time.
    #[error("too many changes at once")]
    TooMany,
    /// The config cannot be read.
    #[error("the config cannot be read now")]
    Config,
    /// The thing is no file.
    #[error("not a file")]
    NotAFile,
    /// Another content is declared now.
    #[error("the config says something else by now")]
    Redeclared,
    /// One of the contents is too large.
    #[error("too large")]
    TooLarge,
    /// The file cannot be read.
    #[error("it cannot be read any more")]
    Unreadable,
    /// The file is not as the verification found it.
    #[error("it was changed again")]
    Changed,
    /// One of the contents is not text.
    #[error("not text")]
    NotText,
}

/// The diffs to add to records of this turn.
#[derive(Debug, Default)]
pub(super) struct Diffs {
    wanted: Vec<DiffRequest>,
    /// Boot-time nanoseconds before which the daemon does not read the config for a diff.
    not_before: u64,
}

#[derive(Debug)]
struct DiffRequest {
    /// The index of the record in the group.
    record: usize,
    thing: ThingId,
    /// The digest of the found content.
    found: [u8; 32],
}

impl Diffs {
    /// Asks for a diff in the record with this index, if the record is about content and the policy allows a diff.
    pub(super) fn want(&mut self, record: usize, thing: ThingId, desired: &Desired, seen: &VerifiedThing) {
        let expectation = &desired.expectations[thing.index()];
        let content = seen.differences.iter().any(|difference| difference.kind == DifferenceKind::Content);
        let Observation::Object(object) = &seen.observation else { return };
        if let (Expected::File(_), true, false) = (&expectation.expected, content, expectation.ssh_keys)
            && let (FileType::Regular, Some(found)) = (object.file_type, object.sha256)
            && !desired.policy.decide_about(expectation, None).secret
        {
            self.wanted.push(DiffRequest { record, thing, found });
        }
    }

    /// Adds the diffs of this turn to their records. A record whose diff cannot be made has the reason.
    pub(super) fn add(&mut self, records: &mut [Record], sources: &DiffSources<'_>, clock: &dyn Clock) {
        let wanted = std::mem::take(&mut self.wanted);
        if wanted.is_empty() {
            return;
        }
        let began = clock.boot_ns();
        let mut rendered = Err(NoDiff::TooMany);
        if began >= self.not_before {
            rendered = desired::rendered(sources.source, Unknown::Ignore).map_err(|_| NoDiff::Config);
        }
        for DiffRequest { record, thing, found } in wanted {
            let expectation = &sources.desired.expectations[thing.index()];
            let diff = match &rendered {
                Ok(rendered) => unified(rendered, expectation, sources.observer, &found),
                Err(reason) => Err(*reason),
            };
            let Some(record) = records.get_mut(record) else { continue };
            match diff {
                Ok(diff) => record.diff = Some(diff),
                Err(reason) => {
                    record.detail.insert("no_diff".into(), reason.to_string().into());
                }
            }
        }
        if rendered.is_ok() {
            let now = clock.boot_ns();
            self.not_before = now.saturating_add(now.saturating_sub(began).saturating_mul(PART));
        }
    }
}

/// The inputs of diffs.
pub(super) struct DiffSources<'a> {
    /// Where the config is read.
    pub(super) source: &'a StateSource,
    /// The expectations and policies from it.
    pub(super) desired: &'a Desired,
    /// The host's files.
    pub(super) observer: &'a Observer,
}

/// The unified diff from the declared content to the found one.
fn unified(
    rendered: &Rendered,
    expectation: &Expectation,
    observer: &Observer,
    found: &[u8; 32],
) -> Result<String, NoDiff> {
    let Expected::File(file) = &expectation.expected else { return Err(NoDiff::NotAFile) };
    let path = expectation.thing.path();
    let declared = expected_bytes(rendered, &path).unwrap_or_default();
    let digest: [u8; 32] = Sha256::digest(&declared).into();
    if file.content.is_none_or(|content| content.sha256 != digest) {
        return Err(NoDiff::Redeclared);
    }
    if declared.len() > MOST_BYTES {
        return Err(NoDiff::TooLarge);
    }
    let content = read(observer, &path).map_err(|_| NoDiff::Unreadable)?;
    if content.len() > MOST_BYTES {
        return Err(NoDiff::TooLarge);
    }
    let digest: [u8; 32] = Sha256::digest(&content).into();
    if digest != *found {
        return Err(NoDiff::Changed);
    }
    let (declared, content) = (as_text(&declared)?, as_text(&content)?);
    Ok(bounded(declared, content))
}

/// Reads one byte more than a diff may have. The open is no observation, so that the kernel's evidence stays as it is.
fn read(observer: &Observer, path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let opened = match observer.root().open_at(path, flags | OFlag::O_NOATIME) {
        Err(Errno::EPERM) => observer.root().open_at(path, flags),
        other => other,
    };
    let mut bytes = Vec::new();
    File::from(opened?).take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn as_text(bytes: &[u8]) -> Result<&str, NoDiff> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or(NoDiff::NotText)
}

/// A unified diff, cut at the size limit.
fn bounded(declared: &str, found: &str) -> String {
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(declared, found);
    let mut shown = diff.unified_diff().context_radius(3).header("declared", "found").to_string();
    if shown.len() > MOST_DIFF {
        let end = shown.floor_char_boundary(MOST_DIFF);
        let end = shown[..end].rfind('\n').map_or(end, |at| at + 1);
        let lines = shown[end..].lines().count();
        shown.truncate(end);
        shown.extend(["\\ and ", &lines.to_string(), " lines more\n"]);
    }
    shown
}

/// The found state, as a record shows it.
pub(super) fn shown(observation: &Observation) -> Option<Value> {
    match observation {
        Observation::Missing => Some(json!({ "seen": ObservedKind::Missing })),
        observation => {
            let mut shown = snapshot(observation)?;
            // The differences name the keys.
            let map = shown.as_object_mut()?;
            map.remove("ssh_keys");
            let left_out = map.get_mut("names").and_then(Value::as_array_mut).map_or(0, |names| {
                let before = names.len();
                names.truncate(MOST_NAMES);
                before - names.len()
            });
            if left_out > 0 {
                let more = map.get("more").and_then(Value::as_u64).unwrap_or(0);
                map.insert("more".to_owned(), more.saturating_add(left_out as u64).into());
            }
            Some(shown)
        }
    }
}

/// The state of a compliant thing, as far as its declaration determines it: the daemon keeps no observation of compliant things.
/// `None` if the declaration allows several states.
pub(super) fn declared(expectation: &Expectation) -> Option<Value> {
    let mut map = Map::new();
    let mut set = |key: &str, value: Value| {
        map.insert(key.to_owned(), value);
    };
    set("from", "declaration".into());
    set("seen", ObservedKind::Object.as_str().into());
    let (file_type, owners) = match &expectation.expected {
        Expected::File(file) if !file.may_be_missing => {
            set("mode", file.mode.into());
            // Keys may be written in more than one way.
            if let Some(content) = file.content.filter(|_| !expectation.ssh_keys) {
                set("size", content.size.into());
                set("sha256", hex::encode(content.sha256).into());
            }
            (FileType::Regular, [&file.user, &file.group])
        }
        Expected::Directory(directory) => {
            set("mode", directory.mode.into());
            (FileType::Directory, [&directory.user, &directory.group])
        }
        Expected::Link(link) if !link.hard => {
            set("target", link.target.display().to_string().into());
            (FileType::Symlink, [&link.user, &link.group])
        }
        Expected::Unit(unit) => {
            set("seen", ObservedKind::Unit.as_str().into());
            for (key, value) in [("enabled", unit.enabled), ("masked", unit.masked)] {
                if let Some(value) = value {
                    set(key, value.into());
                }
            }
            return Some(map.into());
        }
        _ => return None,
    };
    set("file_type", serde_json::to_value(file_type).ok()?);
    for (owner, [id, name]) in owners.into_iter().zip([["uid", "user"], ["gid", "group"]]) {
        match owner {
            Owner::Id(number) => set(id, (*number).into()),
            Owner::Name(owner) => set(name, owner.as_str().into()),
            Owner::Undeclared => {}
        }
    }
    Some(map.into())
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
