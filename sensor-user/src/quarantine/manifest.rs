//! The manifest of an item: where its object was, what it is, who made it, and which rule moved it.
//!
//! In: what a move knows. Out: `manifest.json` beside the object.

use super::survey::Survey;
use schemars::JsonSchema;
use sensor_model::{
    escape::{escaped, unescaped},
    expectation::ClosedBy,
    observation::FileType,
    record::Actor,
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// One item of the quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// The id: the name of the item's directory.
    pub id: String,
    /// Where the object was. A backslash, a control character and a byte that is not UTF-8 are escapes: `\\`, `\x0a`.
    pub path: String,
    /// When it was moved, RFC 3339.
    pub time: String,
    /// The type of the object.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Permission bits, in octal digits.
    pub mode: String,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Bytes of its files, with those below it.
    pub size: u64,
    /// Objects, with those below it.
    pub objects: u64,
    /// SHA-256 of the content of a file; null for all other objects.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// The number of names that the file had. More than one: it is still reachable by the others.
    pub links: u64,
    /// Where a symbolic link leads; null for all other objects. Escapes as in `path`.
    pub target: Option<String>,
    /// Major and minor number of a device; null for all other objects.
    pub device: Option<[u32; 2]>,
    /// The actors that may have made the object, as far as the manifest has room for them. The first one made the last change. The record of the
    /// drift has all of them.
    pub actors: Vec<Actor>,
    /// The path of the rule.
    pub rule: String,
    /// The file of the drift policy, or kind and name of the object in the cluster.
    pub policy: String,
    /// The object was copied, because the quarantine is on another file system.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
    /// What the item does not have of the original, such as an attribute that the other file system refuses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_kept: Vec<String>,
    /// A directory beside the path that holds the original, or a copy on its way back. Only while a move is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary: Option<TemporaryDirectory>,
}

/// A temporary directory beside the path of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemporaryDirectory {
    /// Its name.
    pub name: String,
    /// It holds a copy for the path. Otherwise it holds the original.
    pub is_restore: bool,
}

/// Why an object is moved.
#[derive(Debug, Clone, Copy)]
pub struct Cause<'a> {
    /// The time, RFC 3339.
    pub time: &'a str,
    /// The actors that may have made it, the one of the last change first.
    pub actors: &'a [Actor],
    /// The rule.
    pub rule: &'a ClosedBy,
}

/// Most bytes of all actors of a manifest, as JSON. Users choose their texts, and a manifest has a limit.
const ACTORS_BYTES: usize = 96 << 10;
/// From this size an actor is without its ancestors, and then without its arguments.
const ACTOR_BYTES: usize = 32 << 10;

/// The first actors that have room in a manifest.
fn fitting(actors: &[Actor]) -> Vec<Actor> {
    let size = |actor: &Actor| serde_json::to_vec_pretty(actor).map_or(usize::MAX, |json| json.len());
    let mut left = ACTORS_BYTES;
    let mut kept = Vec::new();
    for actor in actors {
        let mut actor = actor.clone();
        if size(&actor) > ACTOR_BYTES {
            actor.ancestors.clear();
        }
        if size(&actor) > ACTOR_BYTES {
            actor.argv.clear();
        }
        let Some(rest) = left.checked_sub(size(&actor)) else { break };
        left = rest;
        kept.push(actor);
    }
    kept
}

impl Manifest {
    /// The manifest of an object before it is moved.
    pub(super) fn new(id: String, path: &Path, survey: &Survey, cause: Cause<'_>) -> Self {
        let mut manifest = Self {
            id,
            path: escaped(path),
            time: cause.time.to_owned(),
            kind: FileType::Regular,
            mode: String::new(),
            uid: 0,
            gid: 0,
            size: 0,
            objects: 0,
            sha256: None,
            links: 0,
            target: None,
            device: None,
            actors: fitting(cause.actors),
            rule: cause.rule.rule.to_string(),
            policy: cause.rule.policy.to_string(),
            copied: false,
            not_kept: Vec::new(),
            temporary: None,
        };
        manifest.describe(survey);
        manifest
    }

    /// Notes what the object is.
    pub(super) fn describe(&mut self, survey: &Survey) {
        let Some(top) = survey.top() else { return };
        self.kind = top.file_type();
        self.mode = format!("{:04o}", top.mode & 0o7777);
        (self.uid, self.gid) = (top.uid, top.gid);
        self.size = survey.bytes;
        self.objects = u64::try_from(survey.entries.len()).unwrap_or(u64::MAX);
        self.sha256 = top.sha256.map(hex::encode);
        self.links = top.links();
        self.target = top.target.as_ref().map(|target| escaped(Path::new(target)));
        self.device = top.device();
    }

    /// Where the object was; `None` if no Holdfast wrote this.
    pub(super) fn original(&self) -> Option<PathBuf> {
        unescaped(&self.path).filter(|path| path.is_absolute() && path.file_name().is_some())
    }
}
