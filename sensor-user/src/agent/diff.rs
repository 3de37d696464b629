//! What a record shows of a thing before and after: metadata and digests, and a unified diff where a policy says that the
//! content is no secret.
//!
//! In: expectations, observations, the config (read again, since no content is kept), the file. Out: what goes into a
//! record, bounded in size. No content is shown of a path that no rule with `secret: false` is for, of keys, or of anything
//! that is not the text that was looked at.

use super::verifier::LookResult;
use crate::clock::Clock;
use crate::desired::{self, Desired, StateSource, Unknown};
use crate::observation::{Observer, snapshot};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use sensor_model::difference::DifferenceKind;
use sensor_model::expectation::{Expectation, Expected, Owner};
use sensor_model::expectations::expected_bytes;
use sensor_model::merge::Rendered;
use sensor_model::observation::{FileType, Observation};
use sensor_model::record::Record;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use similar::TextDiff;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

/// Names in a directory that a record shows; others are counted.
const MOST_NAMES: usize = 64;

/// Of larger contents a record has only the digests.
const MOST_BYTES: usize = 64 << 10;

/// Bytes of a diff; what is more is cut at the end of a line.
const MOST_DIFF: usize = 16 << 10;

/// A diff that takes longer to find becomes a coarser one.
const PATIENCE: Duration = Duration::from_millis(20);

/// Reading the config for diffs takes no more than this part of the daemon's time.
const PART: u64 = 10;

/// Diffs that are to be made for records of this turn.
#[derive(Debug, Default)]
pub(super) struct Diffs {
    wanted: Vec<Wanted>,
    /// Boot-time nanoseconds before which no config is read for one.
    not_before: u64,
}

#[derive(Debug)]
struct Wanted {
    /// Which record of the group.
    record: usize,
    thing: u32,
    /// Digest of what was found.
    found: [u8; 32],
}

impl Diffs {
    /// The record with this index in the group is about content. It may show how the content differs.
    pub(super) fn want(&mut self, record: usize, thing: u32, desired: &Desired, seen: &LookResult) {
        let expectation = &desired.expectations[thing as usize];
        let content = seen.differences.iter().any(|difference| difference.kind == DifferenceKind::Content);
        let Observation::Object(object) = &seen.observation else { return };
        if let (Expected::File(_), true, false) = (&expectation.expected, content, expectation.ssh_keys)
            && let (FileType::Regular, Some(found)) = (object.file_type, object.sha256)
            && !desired.policy.decide(&expectation.thing.path(), None).secret
        {
            self.wanted.push(Wanted { record, thing, found });
        }
    }

    /// Makes the diffs of this turn. A record without the diff that its policy allows says why.
    pub(super) fn add(&mut self, records: &mut [Record], sources: &Sources<'_>, clock: &dyn Clock) {
        let wanted = std::mem::take(&mut self.wanted);
        if wanted.is_empty() {
            return;
        }
        let began = clock.boot_ns();
        let mut rendered = Err("too many changes at once");
        if began >= self.not_before {
            rendered = desired::rendered(sources.source, Unknown::Ignore)
                .map_err(|_| "the config cannot be read now");
        }
        for Wanted { record, thing, found } in wanted {
            let expectation = &sources.desired.expectations[thing as usize];
            let diff = match &rendered {
                Ok(rendered) => unified(rendered, expectation, sources.observer, &found),
                Err(reason) => Err(*reason),
            };
            let Some(record) = records.get_mut(record) else { continue };
            match diff {
                Ok(diff) => record.diff = Some(diff),
                Err(reason) => {
                    record.detail.insert("no_diff".into(), reason.into());
                }
            }
        }
        if rendered.is_ok() {
            let now = clock.boot_ns();
            self.not_before = now.saturating_add(now.saturating_sub(began).saturating_mul(PART));
        }
    }
}

/// What diffs are made from.
pub(super) struct Sources<'a> {
    /// The config.
    pub(super) source: &'a StateSource,
    /// What was read from them.
    pub(super) desired: &'a Desired,
    /// The host's files.
    pub(super) observer: &'a Observer,
}

/// From what is declared to what was found, or why that is not shown.
fn unified(
    rendered: &Rendered,
    expectation: &Expectation,
    observer: &Observer,
    found: &[u8; 32],
) -> Result<String, &'static str> {
    let Expected::File(file) = &expectation.expected else { return Err("not a file") };
    let path = expectation.thing.path();
    let declared = expected_bytes(rendered, &path).unwrap_or_default();
    let digest: [u8; 32] = Sha256::digest(&declared).into();
    if file.content.is_none_or(|content| content.sha256 != digest) {
        return Err("the config says something else by now");
    }
    if declared.len() > MOST_BYTES {
        return Err("too large");
    }
    let content = read(observer, &path).map_err(|_| "it cannot be read any more")?;
    if content.len() > MOST_BYTES {
        return Err("too large");
    }
    let digest: [u8; 32] = Sha256::digest(&content).into();
    if digest != *found {
        return Err("it was changed again");
    }
    let (declared, content) = (text(&declared)?, text(&content)?);
    Ok(bounded(declared, content))
}

/// One byte more than is shown, by an open that is no observation: what the kernel counts is left as it is.
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

fn text(bytes: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or("not text")
}

/// A unified diff, cut where it becomes too long.
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

/// What was found, as a record shows it. A missing object is a finding, too.
pub(super) fn shown(observation: &Observation) -> Option<Value> {
    match observation {
        Observation::Missing => Some(json!({ "seen": "missing" })),
        observation => {
            let mut shown = snapshot(observation)?;
            // The differences name keys, and no more of them than they may.
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

/// What a thing was that was as declared, as far as the declaration says: of things that are compliant nothing else is
/// kept. `None` where it leaves open what was there.
pub(super) fn declared(expectation: &Expectation) -> Option<Value> {
    let mut map = Map::new();
    let mut set = |key: &str, value: Value| {
        map.insert(key.to_owned(), value);
    };
    set("from", "declaration".into());
    set("seen", "object".into());
    let (file_type, owners) = match &expectation.expected {
        Expected::File(file) if !file.may_be_missing => {
            set("mode", file.mode.into());
            // Keys may stand there in more than one way.
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
            set("seen", "unit".into());
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
