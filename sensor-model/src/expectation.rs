//! What each managed thing should be, and what declares it.
//!
//! In: the merged configs, from which `expectations` makes these. Out: what `compare` compares with, and the paths that the
//! daemon watches. An expectation holds size and digest of a content. So ten thousand files take a few megabytes, and no secret
//! stays in memory. A repair or a diff decodes the bytes from the config again.

mod os;
mod source;
mod tree;

pub use os::{KernelArgumentsExpectation, NotCarried, OsImageExpectation, OstreeObjectExpectation};
pub use source::{ClosedBy, ExpectationSource, ImageLayer, Source, SourceKind};
pub use tree::{HierarchyExpectation, SealedTree, TreeExpectation};

use crate::{
    authorized_keys::SshKey,
    link_exceptions::{LinkException, LinkExceptions},
    name_patterns::NamePatterns,
};
use sensor_protocol::names;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A managed thing's identity. Two expectations never share one.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Thing {
    /// A regular file (also unit files and drop-ins).
    File {
        /// Absolute, cleaned path.
        path: Arc<Path>,
    },
    /// A directory whose own mode and owner are declared.
    Directory {
        /// Absolute, cleaned path.
        path: Arc<Path>,
    },
    /// A symbolic or hard link.
    Link {
        /// Absolute, cleaned path.
        path: Arc<Path>,
    },
    /// Enablement and mask of a systemd unit (its file is a [`Thing::File`] of its own).
    Unit {
        /// Unit name with suffix, `chronyd.service`.
        name: String,
    },
    /// A directory in which only declared names may exist (systemd `*.d` drop-in directories,
    /// `authorized_keys.d`).
    ClosedDirectory {
        /// Absolute, cleaned path.
        path: Arc<Path>,
    },
    /// A directory whose entries, at any depth, the kernel proves. They are no things of their own. Or one of which no index says what it has.
    Tree {
        /// Absolute, cleaned path.
        path: Arc<Path>,
    },
    /// A directory of the OS, such as `/usr`, over which nothing else may be mounted.
    Hierarchy {
        /// Absolute, cleaned path.
        path: Arc<Path>,
    },
    /// The arguments that the running kernel was booted with.
    KernelArguments,
    /// The booted OS image.
    OsImage,
}

names! {
    /// What kind of managed thing it is. Two things may share a path: a unit and its file, a directory and what may be in it.
    pub enum ThingKind {
        /// A regular file.
        File = "file",
        /// A directory whose own mode and owner are declared.
        Directory = "directory",
        /// A symbolic or hard link.
        Link = "link",
        /// Enablement and mask of a systemd unit.
        Unit = "unit",
        /// A directory in which only declared names may exist.
        ClosedDirectory = "closed-directory",
        /// A directory whose entries the kernel proves.
        Tree = "tree",
        /// A directory of the OS over which nothing else may be mounted.
        Hierarchy = "hierarchy",
        /// The arguments that the running kernel was booted with.
        KernelArguments = "kernel-arguments",
        /// The booted OS image.
        OsImage = "os-image",
    }
}

impl Thing {
    /// A file by its absolute, cleaned path.
    pub fn file(path: impl AsRef<Path>) -> Self {
        Self::File { path: path.as_ref().into() }
    }

    /// A directory by its absolute, cleaned path.
    pub fn directory(path: impl AsRef<Path>) -> Self {
        Self::Directory { path: path.as_ref().into() }
    }

    /// A link by its absolute, cleaned path.
    pub fn link(path: impl AsRef<Path>) -> Self {
        Self::Link { path: path.as_ref().into() }
    }

    /// A directory with declared names only, by its absolute, cleaned path.
    pub fn closed_directory(path: impl AsRef<Path>) -> Self {
        Self::ClosedDirectory { path: path.as_ref().into() }
    }

    /// A hierarchy of the OS by its absolute path.
    pub fn hierarchy(path: impl AsRef<Path>) -> Self {
        Self::Hierarchy { path: path.as_ref().into() }
    }

    /// The path by which reports and policies name the thing. A unit has the path of its file, the kernel's arguments that of
    /// `/proc/cmdline`, and the OS image that of `/run/ostree-booted`.
    pub fn path(&self) -> Arc<Path> {
        match self {
            Self::File { path }
            | Self::Directory { path }
            | Self::Link { path }
            | Self::ClosedDirectory { path }
            | Self::Tree { path }
            | Self::Hierarchy { path } => Arc::clone(path),
            Self::Unit { name } => Path::new(SYSTEMD_DIRECTORY).join(name).into(),
            Self::KernelArguments => Path::new(KERNEL_ARGUMENTS).into(),
            Self::OsImage => Path::new(OSTREE_BOOTED).into(),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> ThingKind {
        match self {
            Self::File { .. } => ThingKind::File,
            Self::Directory { .. } => ThingKind::Directory,
            Self::Link { .. } => ThingKind::Link,
            Self::Unit { .. } => ThingKind::Unit,
            Self::ClosedDirectory { .. } => ThingKind::ClosedDirectory,
            Self::Tree { .. } => ThingKind::Tree,
            Self::Hierarchy { .. } => ThingKind::Hierarchy,
            Self::KernelArguments => ThingKind::KernelArguments,
            Self::OsImage => ThingKind::OsImage,
        }
    }

    /// Its noun in the texts of differences: the Machine Config Operator's word if it has one.
    pub fn noun(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Directory { .. } | Self::ClosedDirectory { .. } => "directory",
            Self::Link { .. } => "link",
            Self::Unit { .. } => "unit",
            Self::Tree { .. } => "tree",
            Self::Hierarchy { .. } => "hierarchy",
            Self::KernelArguments => "kernel arguments",
            Self::OsImage => "OS image",
        }
    }

    /// Whether it is the object at its path. Another thing may share the path with an object: a unit, or the names in a
    /// directory.
    pub fn is_object(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Directory { .. } | Self::Link { .. })
    }

    /// Whether only a boot changes it: nothing has to be watched, and nothing can be written back.
    pub fn changes_with_a_boot(&self) -> bool {
        matches!(self, Self::KernelArguments | Self::OsImage)
    }
}

/// The directory into which units of MachineConfigs are written.
pub const SYSTEMD_DIRECTORY: &str = "/etc/systemd/system";

/// The file in which the kernel lists its arguments.
pub const KERNEL_ARGUMENTS: &str = "/proc/cmdline";

/// The file that exists only on a host that booted an ostree deployment.
pub const OSTREE_BOOTED: &str = "/run/ostree-booted";

/// A file owner as Ignition declares it: by number or by name (resolved on the node).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum Owner {
    /// Numeric id.
    Id(u32),
    /// Name in the node's passwd or group database.
    Name(String),
    /// Not declared: never compared.
    Undeclared,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => f.write_str(name),
            Self::Undeclared => f.write_str("not declared"),
        }
    }
}

/// Size and digest of a file's decoded content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Content {
    /// Bytes after decoding and decompression.
    pub size: u64,
    /// SHA-256 of those bytes.
    #[serde(with = "hex::serde")]
    #[schemars(with = "String", regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: [u8; 32],
}

/// What a file should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FileExpectation {
    /// Size and digest; null if the content is not declared (`overwrite: false` without a source).
    pub content: Option<Content>,
    /// The declared keys of an `authorized_keys`-like file, in order; empty for every other file.
    #[serde(default, skip_serializing_if = "<[SshKey]>::is_empty")]
    pub keys: Box<[SshKey]>,
    /// Blank lines and the last line ending are not compared: Ignition and the Machine Config Operator write the same keys with
    /// and without them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layout_free: bool,
    /// Permission bits, including setuid, setgid and sticky.
    pub mode: u32,
    /// Owning user.
    pub user: Owner,
    /// Owning group.
    pub group: Owner,
    /// The declared file is empty and may be missing (the Machine Config Operator's rule for empty drop-ins).
    pub may_be_missing: bool,
    /// Its extended attributes; null if it should have none, as every file of a MachineConfig. In a box, because most files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattrs: Option<Box<ExpectedXattrs>>,
}

/// The extended attributes that a file should have. The label is not among them: the host's policy gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectedXattrs {
    /// These: each name with its value as [`crate::xattr::describe`] shows it.
    Listed(Vec<(String, String)>),
    /// These capabilities, described in the same form. The source does not know the other attributes, so they are not compared.
    Capabilities(Vec<(String, String)>),
    /// The source does not know them, so they are not compared.
    Unknown,
}

/// What a directory should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DirectoryExpectation {
    /// Permission bits.
    pub mode: u32,
    /// Owning user.
    pub user: Owner,
    /// Owning group.
    pub group: Owner,
}

/// What a link should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LinkExpectation {
    /// Its target, as declared.
    pub target: PathBuf,
    /// A hard link must share the target's inode.
    pub hard: bool,
    /// Owning user (symbolic links only).
    pub user: Owner,
    /// Owning group (symbolic links only).
    pub group: Owner,
}

/// What a unit's state should be. Null means not declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UnitExpectation {
    /// Declared enablement.
    pub enabled: Option<bool>,
    /// Declared mask.
    pub masked: Option<bool>,
    /// Directories below `/etc/systemd/system` in which the `[Install]` section of the declared content makes links:
    /// `multi-user.target.wants`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub install_directories: Vec<String>,
}

/// Names that may exist in a closed directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClosedDirectoryExpectation {
    /// Declared names (file names, no paths), sorted.
    pub names: Vec<String>,
    /// Only names with this ending are compared (`.conf` in a drop-in directory); null means all are.
    pub suffix: Option<Cow<'static, str>>,
    /// Whether an undeclared name is reported as an undeclared ssh key rather than a file.
    pub ssh_keys: bool,
    /// Names that may be there besides, as globs.
    #[serde(default, skip_serializing_if = "NamePatterns::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub except: NamePatterns,
    /// Symbolic links that may be there besides, by name and target.
    #[serde(default, skip_serializing_if = "LinkExceptions::is_empty")]
    #[schemars(with = "Vec<LinkException>")]
    pub except_links: LinkExceptions,
}

impl ClosedDirectoryExpectation {
    /// Whether a name must not be in the directory, if it is not one of the [excepted links](Self::is_excepted_link). It is strict for a
    /// caller that does not know what is at the name.
    pub fn is_unexpected(&self, name: &str) -> bool {
        let is_compared = self.suffix.as_deref().is_none_or(|suffix| name.ends_with(suffix));
        is_compared
            && self.names.binary_search_by(|declared| declared.as_str().cmp(name)).is_err()
            && !self.except.matches(name)
    }

    /// Whether a symbolic link with this name may be in the directory because of its target. `target` reads the target, and gives `None`
    /// if another object is at the name. It is called only if an exception is about the name.
    pub fn is_excepted_link<T: AsRef<Path>>(&self, name: &str, target: impl FnOnce() -> Option<T>) -> bool {
        self.except_links.has_name(name)
            && target().is_some_and(|target| self.except_links.matches(name, target.as_ref()))
    }
}

/// A user's own `authorized_keys`: it may be missing, and it may hold only these keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AuthorizedKeysExpectation {
    /// The user.
    pub user: String,
    /// Keys that are declared for the user.
    pub keys: Vec<SshKey>,
}

/// The declared state of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Expected {
    /// A regular file.
    File(FileExpectation),
    /// A directory.
    Directory(DirectoryExpectation),
    /// A symbolic or hard link.
    Link(LinkExpectation),
    /// A file or symbolic link of an ostree commit, of which only the checksum is known; the thing is a file.
    OstreeObject(OstreeObjectExpectation),
    /// A unit's enablement and mask.
    Unit(UnitExpectation),
    /// A directory in which only declared names may exist.
    ClosedDirectory(ClosedDirectoryExpectation),
    /// A user's own `authorized_keys`; the thing is a file.
    AuthorizedKeys(AuthorizedKeysExpectation),
    /// Nothing, by a rule of a drift policy; the thing is a file.
    Absent,
    /// A directory whose entries the kernel proves.
    Tree(TreeExpectation),
    /// A directory in which the image of the host expects entries that no index has, so nothing is known of them; the thing is a tree.
    Unindexed,
    /// A hierarchy over which nothing else stands.
    Hierarchy(HierarchyExpectation),
    /// The running kernel's arguments.
    KernelArguments(KernelArgumentsExpectation),
    /// The booted OS image.
    OsImage(OsImageExpectation),
}

impl Expected {
    /// Its noun in outputs for people.
    pub fn noun(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Directory(_) => "directory",
            Self::Link(_) => "link",
            Self::OstreeObject(_) => "file or link",
            Self::Unit(_) => "unit",
            Self::ClosedDirectory(_) => "closed directory",
            Self::AuthorizedKeys(_) => "authorized keys",
            Self::Absent => "path",
            Self::Tree(_) | Self::Unindexed => "tree",
            Self::Hierarchy(_) => "hierarchy",
            Self::KernelArguments(_) => "kernel arguments",
            Self::OsImage(_) => "OS image",
        }
    }

    /// The expected state for people: pairs of a word and its value, never contents. Values may hold control characters.
    pub fn details(&self) -> Vec<(&'static str, String)> {
        let owner = |user: &Owner, group: &Owner| ("owner", format!("{user}:{group}"));
        let mode = |mode: u32| ("mode", format!("{mode:04o}"));
        match self {
            Self::File(file) => {
                let content = file.content.map_or_else(
                    || "not declared".to_owned(),
                    |content| format!("sha256:{} ({} bytes)", hex::encode(content.sha256), content.size),
                );
                vec![("content", content), mode(file.mode), owner(&file.user, &file.group)]
            }
            Self::Directory(directory) => {
                vec![mode(directory.mode), owner(&directory.user, &directory.group)]
            }
            Self::Link(link) => {
                let kind = if link.hard { "hard link to" } else { "link to" };
                vec![(kind, link.target.to_string_lossy().into_owned())]
            }
            Self::OstreeObject(object) => {
                vec![("object", format!("ostree:{}", hex::encode(object.checksum)))]
            }
            Self::Unit(unit) => {
                let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
                let declared = [("enabled", unit.enabled), ("masked", unit.masked)];
                declared.into_iter().filter_map(|(word, value)| Some((word, yes(value?)))).collect()
            }
            Self::ClosedDirectory(closed) => {
                let names = list(&closed.names);
                let of = closed.suffix.as_deref().map(|suffix| format!(" (of those in *{suffix})"));
                let mut details = vec![("names", names + &of.unwrap_or_default())];
                if !closed.except.is_empty() {
                    details.push(("and names like", list(closed.except.patterns())));
                }
                if !closed.except_links.is_empty() {
                    let links = closed.except_links.all();
                    let links: Vec<String> =
                        links.map(|link| format!("{} -> {}", link.name, link.target)).collect();
                    details.push(("and links like", list(&links)));
                }
                details
            }
            Self::AuthorizedKeys(keys) => {
                vec![("keys", list(&keys.keys.iter().map(ToString::to_string).collect::<Vec<_>>()))]
            }
            Self::Tree(tree) => {
                vec![("sealed by", tree.sealed.by.as_str().to_owned()), ("entries", tree.entries.to_string())]
            }
            Self::Absent => vec![("expected", "nothing at the path".to_owned())],
            Self::Unindexed => vec![("index", "none".to_owned())],
            Self::Hierarchy(declared) => vec![("extensions", list(&declared.extensions))],
            Self::KernelArguments(declared) => vec![("among others", declared.arguments.join(" "))],
            Self::OsImage(declared) => vec![("image", declared.image.clone())],
        }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// What one managed thing should be, and what declares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// The thing.
    pub thing: Thing,
    /// Its declared state.
    pub expected: Expected,
    /// The file is `authorized_keys`-like (or the directory holds such files): the daemon reads the keys, and differences are
    /// reported as ssh keys.
    pub ssh_keys: bool,
    /// The label that the host's SELinux policy has for the path, since no config declares a label. Only its type is compared.
    /// `None` if the label is not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Arc<str>>,
    /// What declares it; of several MachineConfigs the last one of the merge.
    pub source: ExpectationSource,
}
