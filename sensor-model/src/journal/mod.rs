//! The journal of an apply: what is changed, how far it got, and what comes next.
//!
//! In: the targets of an apply (each with its image before and after) and its acts. Out: records for the
//! disk, and through [`machine`] one request after another to whoever does the work. The same machine runs
//! in the daemon, in the commands and in the model checker. It never reads a clock or a disk itself.

mod boot;
pub mod codec;
pub mod machine;
mod os_change;
pub mod settle;

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

/// What is at a path, in full: enough to make it again and to know it when it is seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Image {
    /// Nothing.
    Absent,
    /// A regular file.
    File(FileImage),
    /// A directory, without what is in it.
    Directory(Metadata),
    /// A symbolic link.
    Link(LinkImage),
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
    /// Extended attributes by name, values in hexadecimal digits. In an image that is wanted, those that
    /// are set; the kernel may add its own (see [`crate::xattr::is_ignored`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, String>,
}

/// A regular file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileImage {
    /// Mode, owner, attributes.
    #[serde(flatten)]
    pub metadata: Metadata,
    /// SHA-256 of the content, in hexadecimal digits: its name in the store.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
    /// When the content was changed, nanoseconds since 1970: given back, never compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_ns: Option<i64>,
    /// The path of which this is to be another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<PathBuf>,
    /// How many names the file had, where it had more than one: reported when they come apart, never compared.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub names: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkImage {
    /// Where it points.
    pub target: PathBuf,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// SELinux label. In an image that is wanted, the one that is set; without one the kernel gives its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl Image {
    /// Whether something that was seen is this image. Attributes that the kernel writes by itself count
    /// only where the image names them.
    pub fn is(&self, seen: &Self) -> bool {
        match (self, seen) {
            (Self::Absent, Self::Absent) => true,
            (Self::File(image), Self::File(seen)) => {
                image.sha256 == seen.sha256 && image.metadata.is(&seen.metadata)
            }
            (Self::Directory(image), Self::Directory(seen)) => image.is(seen),
            (Self::Link(image), Self::Link(seen)) => image.is(seen),
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

impl LinkImage {
    fn is(&self, seen: &Self) -> bool {
        (&self.target, self.uid, self.gid) == (&seen.target, seen.uid, seen.gid)
            && (self.label.is_none() || self.label == seen.label)
    }
}

impl Metadata {
    fn is(&self, seen: &Self) -> bool {
        let names = |name: &str| self.xattrs.contains_key(name);
        let kernels = |name: &str| crate::xattr::is_ignored(name, "") && !names(name);
        let others: BTreeMap<_, _> = seen.xattrs.iter().filter(|(name, _)| !kernels(name)).collect();
        (self.mode, self.uid, self.gid) == (seen.mode, seen.uid, seen.gid)
            && others.len() == self.xattrs.len()
            && self.xattrs.iter().all(|(name, value)| others.get(name) == Some(&value))
    }
}

/// One path that is changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// Absolute, cleaned.
    pub path: PathBuf,
    /// What was there.
    pub before: Image,
    /// What shall be there.
    pub after: Image,
}

impl Target {
    /// What the machine has to know of it.
    pub fn kind(&self) -> Kind {
        let directory = |image: &Image| matches!(image, Image::Directory(_));
        Kind {
            before_absent: self.before == Image::Absent,
            after_absent: self.after == Image::Absent,
            in_place: directory(&self.before) && directory(&self.after),
            last: directory(&self.before) && !directory(&self.after),
            hard: matches!(&self.after, Image::File(file) if file.hard.is_some()),
        }
    }

    /// Whether a file or a link turns into a directory, or the other way round: what is below it is there on one side only.
    pub fn turns(&self) -> bool {
        matches!(
            (&self.before, &self.after),
            (Image::Directory(_), Image::File(_) | Image::Link(_))
                | (Image::File(_) | Image::Link(_), Image::Directory(_))
        )
    }

    /// Of a directory that stays: whether each attribute that was seen is that of one image or of the other. A death in
    /// the middle leaves nothing else, and what is anything else somebody else did.
    pub fn is_between(&self, seen: &Image) -> bool {
        let (Image::Directory(before), Image::Directory(after), Image::Directory(seen)) =
            (&self.before, &self.after, seen)
        else {
            return false;
        };
        let one = |of: fn(&Metadata) -> u32| of(seen) == of(before) || of(seen) == of(after);
        let mut names =
            before.xattrs.keys().chain(after.xattrs.keys()).chain(seen.xattrs.keys()).map(String::as_str);
        one(|image| image.mode)
            && one(|image| image.uid)
            && one(|image| image.gid)
            && names.all(|name| {
                let [was, shall, is] = [before, after, seen].map(|image| image.xattrs.get(name));
                let kernels = crate::xattr::is_ignored(name, "") && was.is_none() && shall.is_none();
                kernels || is == was || is == shall
            })
    }

    /// The name beside the path that is ours while an apply is under way; `.part` is added to it while
    /// it is being written. It has no ending that anything reads in a drop-in directory.
    pub fn temporary(&self, id: u64, number: usize) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("/")).join(format!("{TEMPORARY}{id}-{number}"))
    }
}

/// A path that an update of the OS takes back: it is what the image ships, so the update takes it for unchanged, and puts
/// in its place what the new image ships.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PutAgain {
    /// Absolute, cleaned.
    pub path: PathBuf,
    /// What the new config declares, and what is put there again.
    pub image: Image,
}

impl PutAgain {
    /// The same as a target, where the booted image ships something for it; `None` where that is not known.
    pub fn target(&self, shipped: Option<Image>) -> Target {
        let after = self.image.clone();
        Target { path: self.path.clone(), before: shipped.unwrap_or_else(|| after.clone()), after }
    }
}

/// How every temporary name begins.
pub const TEMPORARY: &str = ".holdfast-apply-";

/// How a target has to be treated.
#[expect(clippy::struct_excessive_bools, reason = "five facts of one target, read by name")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Nothing was there.
    pub before_absent: bool,
    /// Nothing shall be there.
    pub after_absent: bool,
    /// A directory that stays one: its metadata is set where it is.
    pub in_place: bool,
    /// A directory that goes away or turns into something else, which it can only when everything in it is gone for good.
    pub last: bool,
    /// Another name of a file, made anew after that file.
    pub hard: bool,
}

/// One act after the files are written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Act {
    /// What.
    pub kind: Action,
    /// The unit, with its suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Seconds that it may take.
    pub timeout_s: u64,
    /// What is done when it does not succeed.
    pub fallback: Fallback,
    /// Which changes need it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<String>,
    /// The new config masks the unit, so nothing can start it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
}

/// What was at a path before a config declared it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Original {
    /// Absolute, cleaned.
    pub path: PathBuf,
    /// What was there.
    pub image: Image,
    /// The OS image that was booted then ships exactly this. After an update it is an older image's default.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shipped: bool,
}

/// What is to be done in all, written down before anything is done.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Begin {
    /// Number of the apply; that of its generation.
    pub id: u64,
    /// The generation before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<u64>,
    /// The generation whose config this one brings back, for a rollback that a person asked for.
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
    /// Paths among them that no config declared before: what is there is their original.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmanaged: Vec<PathBuf>,
    /// The originals of paths that no config declared before, and that are as declared already: they are no targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matching: Vec<Original>,
    /// Paths of `unmanaged` whose original is what the booted OS image ships.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shipped: Vec<PathBuf>,
    /// Paths that no config declares any more, targets or not: their originals are given back and then forgotten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<PathBuf>,
    /// Units whose enablement, mask or files change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<String>,
    /// Paths that the update of the OS is foreseen to take back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub put_again: Vec<PutAgain>,
    /// What the OS has to be changed to, for the OS backend; it reads its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<OsChange>,
    /// What follows.
    pub acts: Vec<Act>,
    /// Whether a reboot ends it.
    pub reboot: bool,
    /// Whoever began it wants it done beside the Machine Config Operator's daemon, too; a recovery goes by that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside_mco: bool,
}

impl Begin {
    /// The paths of all targets, and behind them those that are put again.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let again = self.put_again.iter().map(|again| again.path.as_path());
        self.targets.iter().map(|target| target.path.as_path()).chain(again)
    }
}

/// How an apply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The node is what the new config says.
    Done,
    /// The node is what the old config says.
    RolledBack,
    /// Nothing was begun.
    Abandoned,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The first.
    Begin(Box<Begin>),
    /// Every target is what it shall be.
    Written,
    /// An act begins.
    Started {
        /// Its number.
        act: usize,
    },
    /// It succeeded.
    Finished {
        /// Its number.
        act: usize,
    },
    /// It did not, and its fallback is a reboot.
    Failed {
        /// Its number.
        act: usize,
        /// Why.
        reason: String,
    },
    /// The reboot is asked for.
    RebootRequested {
        /// The boot that it ends.
        #[serde(flatten)]
        boot: Boot,
    },
    /// The new config holds.
    Done,
    /// From here on everything goes back.
    RollingBack {
        /// Why.
        reason: String,
    },
    /// What was undone takes effect with the next boot, which is asked for.
    ReturnRequested {
        /// The boot that it ends.
        #[serde(flatten)]
        boot: Boot,
    },
    /// Everything is back but what somebody else wrote.
    RolledBack {
        /// What was left as somebody else wrote it, and acts that failed on the way back.
        problems: Vec<String>,
    },
}
