//! The journal of an apply: its changes, its progress, and the next request.
//!
//! In: the targets of an apply (each with its state before and after) and its acts. Out: records for the disk, and by
//! [`machine`] one request after another to the caller, who carries it out. The same machine runs in the daemon, in the commands
//! and in the model checker. It never reads a clock or a disk.

mod boot;
pub mod codec;
pub mod machine;
mod os_change;
pub mod target_edit;

#[cfg(test)]
mod checker;
#[cfg(test)]
mod mutation;
#[cfg(test)]
mod tests;

pub use crate::action::{Action, Fallback};
pub use boot::{Boot, Brings};
pub use os_change::OsChange;

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The whole state of a path: enough to restore it and to recognise it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum PathState {
    /// No object.
    Absent,
    /// A regular file.
    File(FileState),
    /// A directory, without what is in it.
    Directory(Metadata),
    /// A symbolic link.
    Link(LinkState),
}

/// Mode, owner and extended attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Metadata {
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Extended attributes by name, values in hexadecimal digits. In a wanted state: those to set; the kernel may add others (see
    /// [`crate::xattr::is_ignored`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, String>,
}

/// A regular file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileState {
    /// Mode, owner, attributes.
    #[serde(flatten)]
    pub metadata: Metadata,
    /// SHA-256 of the content, in hexadecimal digits: its name in the store.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970: restored, never compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_ns: Option<i64>,
    /// The path that this is to be a hard link to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<PathBuf>,
    /// The number of the file's hard links, if more than one: reported if an apply separates them, never compared.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub names: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkState {
    /// The target.
    pub target: PathBuf,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// SELinux label. In a wanted state: the label to set; without one the kernel chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl PathState {
    /// Whether an observed state matches this one. Attributes that the kernel writes by itself are compared only if the state
    /// has them.
    pub fn is(&self, observed: &Self) -> bool {
        match (self, observed) {
            (Self::Absent, Self::Absent) => true,
            (Self::File(state), Self::File(observed)) => {
                state.sha256 == observed.sha256 && state.metadata.is(&observed.metadata)
            }
            (Self::Directory(state), Self::Directory(observed)) => state.is(observed),
            (Self::Link(state), Self::Link(observed)) => state.is(observed),
            _ => false,
        }
    }

    /// `absent`, `file`, `directory` or `link`.
    pub fn noun(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::File(_) => "file",
            Self::Directory(_) => "directory",
            Self::Link(_) => "link",
        }
    }

    /// The content's name in the store, for files.
    pub fn content(&self) -> Option<&str> {
        match self {
            Self::File(file) => Some(&file.sha256),
            _ => None,
        }
    }
}

impl LinkState {
    fn is(&self, observed: &Self) -> bool {
        (&self.target, self.uid, self.gid) == (&observed.target, observed.uid, observed.gid)
            && (self.label.is_none() || self.label == observed.label)
    }
}

impl Metadata {
    fn is(&self, observed: &Self) -> bool {
        let names = |name: &str| self.xattrs.contains_key(name);
        let kernels = |name: &str| crate::xattr::is_ignored(name, "") && !names(name);
        let others: BTreeMap<_, _> = observed.xattrs.iter().filter(|(name, _)| !kernels(name)).collect();
        (self.mode, self.uid, self.gid) == (observed.mode, observed.uid, observed.gid)
            && others.len() == self.xattrs.len()
            && self.xattrs.iter().all(|(name, value)| others.get(name) == Some(&value))
    }
}

/// One path that is changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// Absolute, cleaned.
    pub path: PathBuf,
    /// The state before the apply.
    pub before: PathState,
    /// The state after the apply.
    pub after: PathState,
}

impl Target {
    /// The properties that decide its edits.
    pub fn kind(&self) -> TargetKind {
        let directory = |state: &PathState| matches!(state, PathState::Directory(_));
        TargetKind {
            before_absent: self.before == PathState::Absent,
            after_absent: self.after == PathState::Absent,
            in_place: directory(&self.before) && directory(&self.after),
            last: directory(&self.before) && !directory(&self.after),
            hard: matches!(&self.after, PathState::File(file) if file.hard.is_some()),
        }
    }

    /// Whether a file or a link becomes a directory, or the reverse. Paths below it then exist on one side only.
    pub fn turns(&self) -> bool {
        matches!(
            (&self.before, &self.after),
            (PathState::Directory(_), PathState::File(_) | PathState::Link(_))
                | (PathState::File(_) | PathState::Link(_), PathState::Directory(_))
        )
    }

    /// For a directory on both sides: whether each observed attribute is that of one of the two states. A killed apply leaves
    /// only such a state; any other is that of another process.
    pub fn is_between(&self, seen: &PathState) -> bool {
        let (PathState::Directory(before), PathState::Directory(after), PathState::Directory(seen)) =
            (&self.before, &self.after, seen)
        else {
            return false;
        };
        let one = |of: fn(&Metadata) -> u32| of(seen) == of(before) || of(seen) == of(after);
        let mut names =
            before.xattrs.keys().chain(after.xattrs.keys()).chain(seen.xattrs.keys()).map(String::as_str);
        one(|state| state.mode)
            && one(|state| state.uid)
            && one(|state| state.gid)
            && names.all(|name| {
                let [was, shall, is] = [before, after, seen].map(|state| state.xattrs.get(name));
                let kernels = crate::xattr::is_ignored(name, "") && was.is_none() && shall.is_none();
                kernels || is == was || is == shall
            })
    }

    /// Holdfast's temporary name beside the path during an apply, with `.part` added while its content is written. No program
    /// reads files with this ending in a drop-in directory.
    pub fn temporary(&self, id: u64, number: usize) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("/")).join(format!("{TEMPORARY}{id}-{number}"))
    }
}

/// A path that an update of the OS overwrites. The declared state is exactly that of the old OS image. So the update takes the
/// path for unchanged, and replaces it by the state of the new image. Afterwards Holdfast writes the declared state again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OverwrittenPath {
    /// Absolute, cleaned.
    pub path: PathBuf,
    /// The declared state, which is written again after the update.
    #[serde(rename = "image")]
    pub state: PathState,
}

impl OverwrittenPath {
    /// The path as a target. `shipped` is the booted OS image's state of the path; `None` if unknown.
    pub fn target(&self, shipped: Option<PathState>) -> Target {
        let after = self.state.clone();
        Target { path: self.path.clone(), before: shipped.unwrap_or_else(|| after.clone()), after }
    }
}

/// The beginning of every temporary name.
pub const TEMPORARY: &str = ".holdfast-apply-";

/// The properties of a target that decide its edits.
#[expect(clippy::struct_excessive_bools, reason = "five facts of one target, read by name")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TargetKind {
    /// No object is at the path before the apply.
    pub before_absent: bool,
    /// No object is at the path after the apply.
    pub after_absent: bool,
    /// A directory that stays one: its metadata is set where it is.
    pub in_place: bool,
    /// A directory that is removed or replaced, which is possible only after everything in it is removed.
    pub last: bool,
    /// A hard link to a file, created after that file.
    pub hard: bool,
}

/// One action after the files are written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Act {
    /// The action.
    pub kind: Action,
    /// The unit, with its suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Seconds that it may take.
    pub timeout_s: u64,
    /// What is done when it does not succeed.
    pub fallback: Fallback,
    /// The changes that need it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<String>,
    /// The new config masks the unit, so nothing can start it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
}

/// The state of a path before a config declared it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Original {
    /// Absolute, cleaned.
    pub path: PathBuf,
    /// The object at the path, or its absence.
    #[serde(rename = "image")]
    pub state: PathState,
    /// The OS image of that time ships exactly this state. After an update it is an older image's default.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shipped: bool,
}

/// The whole apply, written before its first change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Begin {
    /// Number of the apply, which is also that of its generation.
    pub id: u64,
    /// The generation before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<u64>,
    /// The generation whose config this apply restores, for a rollback that a person asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<u64>,
    /// When, RFC 3339.
    pub time: String,
    /// The boot in which it began.
    #[serde(flatten)]
    pub boot: Boot,
    /// Digest of the config before.
    pub old: String,
    /// Digest of the config after.
    pub new: String,
    /// Paths in the order in which they are written.
    pub targets: Vec<Target>,
    /// Paths among the targets that no config declared before: their state before is their original.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmanaged: Vec<PathBuf>,
    /// The originals of paths that no config declared before and that match the declaration already, so they are no targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matching: Vec<Original>,
    /// Paths of `unmanaged` whose original is the state that the booted OS image ships.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shipped: Vec<PathBuf>,
    /// Paths that no config declares any more, targets or not. Their originals are restored and then deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<PathBuf>,
    /// Units whose enablement, mask or files change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<String>,
    /// Paths that the update of the OS will overwrite.
    #[serde(rename = "put_again", default, skip_serializing_if = "Vec::is_empty")]
    pub overwritten: Vec<OverwrittenPath>,
    /// The change of the OS, for the OS tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsChange>,
    /// The actions that follow.
    pub acts: Vec<Act>,
    /// Whether the apply ends with a reboot.
    pub reboot: bool,
    /// The apply was started with permission to run beside the Machine Config Daemon; a recovery has the same permission.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside_mco: bool,
}

impl Begin {
    /// The paths of all targets, followed by those that are written again.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let again = self.overwritten.iter().map(|again| again.path.as_path());
        self.targets.iter().map(|target| target.path.as_path()).chain(again)
    }
}

/// The result of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyEnd {
    /// The node matches the new config.
    Done,
    /// The node matches the old config.
    RolledBack,
    /// Nothing was begun.
    Abandoned,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum JournalRecord {
    /// The first record.
    Begin(Box<Begin>),
    /// Every target has its state after the apply.
    Written,
    /// An action begins.
    Started {
        /// Its number.
        act: usize,
    },
    /// It succeeded.
    Finished {
        /// Its number.
        act: usize,
    },
    /// It failed, and its fallback is a reboot.
    Failed {
        /// Its number.
        act: usize,
        /// Why.
        reason: String,
    },
    /// The apply requests the reboot.
    RebootRequested {
        /// The boot that it ends.
        #[serde(flatten)]
        boot: Boot,
    },
    /// The node matches the new config.
    Done,
    /// The rollback begins.
    RollingBack {
        /// Why.
        reason: String,
    },
    /// The undone change of the OS takes effect with the next boot, which the rollback requests.
    ReturnRequested {
        /// The boot that it ends.
        #[serde(flatten)]
        boot: Boot,
    },
    /// Everything is restored, except targets that another process changed.
    RolledBack {
        /// Targets that keep the state of another process, and actions that failed during the rollback.
        problems: Vec<String>,
        /// The paths of these targets. A record of an older version has them only in its problems.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left: Vec<String>,
    },
}
