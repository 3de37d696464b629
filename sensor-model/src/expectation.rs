//! What each managed thing should be, and who says so.
//!
//! Comes in from `machine_config` (parse and merge); goes out to `compare` and, by path, to the
//! daemon's index of what the kernel has to watch. Contents are kept as size and digest only, so
//! that ten thousand files cost a few megabytes and no secret stays in memory; the bytes are decoded
//! again from the source when a repair or a diff needs them.

use crate::authorized_keys::SshKey;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Who says what a thing should be. Shared by everything that one manifest says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Source {
    /// Name of the MachineConfig (`metadata.name`), or the file name of a plain Ignition config.
    pub machine_config: Arc<str>,
    /// The manifest file it was read from, as given on the command line or found in a directory.
    pub origin: Arc<str>,
}

impl Source {
    /// What a MachineConfig of this name, read from there, says.
    pub fn new(machine_config: impl Into<Arc<str>>, origin: impl Into<Arc<str>>) -> Self {
        Self { machine_config: machine_config.into(), origin: origin.into() }
    }
}

/// A managed thing's identity. Two expectations never share one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// What the running kernel was told at boot.
    KernelArguments,
    /// The image of the OS that is booted.
    OsImage,
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

    /// The path by which reports and policies name the thing; units are named by their file's path, the kernel's
    /// arguments and the OS by the files that tell of them.
    pub fn path(&self) -> Arc<Path> {
        match self {
            Self::File { path }
            | Self::Directory { path }
            | Self::Link { path }
            | Self::ClosedDirectory { path } => Arc::clone(path),
            Self::Unit { name } => Path::new(SYSTEMD_DIRECTORY).join(name).into(),
            Self::KernelArguments => Path::new(KERNEL_ARGUMENTS).into(),
            Self::OsImage => Path::new(OSTREE_BOOTED).into(),
        }
    }
}

/// Where MachineConfig units are written.
pub const SYSTEMD_DIRECTORY: &str = "/etc/systemd/system";

/// Where the kernel tells its arguments.
pub const KERNEL_ARGUMENTS: &str = "/proc/cmdline";

/// What is there only on a host that booted an ostree deployment.
pub const OSTREE_BOOTED: &str = "/run/ostree-booted";

/// A file owner as Ignition declares it: by number or by name (resolved on the node).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Owner {
    /// Numeric id.
    Id(u32),
    /// Name in the node's passwd or group database.
    Name(String),
    /// Not declared and not known: never compared.
    Undeclared,
}

/// Size and digest of a file's decoded content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Content {
    /// Bytes after decoding and decompression.
    pub size: u64,
    /// SHA-256 of those bytes.
    #[serde(with = "hex::serde")]
    pub sha256: [u8; 32],
}

/// What a file should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileExpectation {
    /// `None` only for files whose content is not declared (`overwrite: false` without a source).
    pub content: Option<Content>,
    /// The declared keys of an `authorized_keys`-like file, in order; empty for every other file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<SshKey>,
    /// Blank lines and the last line ending of a file of keys don't count: Ignition and the Machine
    /// Config Operator write the same keys with and without them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layout_free: bool,
    /// Permission bits, including setuid, setgid and sticky.
    pub mode: u32,
    /// Owning user.
    pub user: Owner,
    /// Owning group.
    pub group: Owner,
    /// The thing may be missing as long as an existing one is empty (MCO's rule for empty drop-ins).
    pub may_be_missing: bool,
}

/// What a directory should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryExpectation {
    /// Permission bits.
    pub mode: u32,
    /// Owning user.
    pub user: Owner,
    /// Owning group.
    pub group: Owner,
}

/// What a link should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkExpectation {
    /// What it points to, as declared.
    pub target: PathBuf,
    /// A hard link must share the target's inode.
    pub hard: bool,
    /// Owning user (symbolic links only).
    pub user: Owner,
    /// Owning group (symbolic links only).
    pub group: Owner,
}

/// What a unit's state should be. `None` means not declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitExpectation {
    /// Declared enablement.
    pub enabled: Option<bool>,
    /// Declared mask.
    pub masked: Option<bool>,
    /// Directories below [`SYSTEMD_DIRECTORY`] that enablement links into, as far as the declared
    /// content's `[Install]` section names them: `multi-user.target.wants`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub install_directories: Vec<String>,
}

/// Names that may exist in a closed directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedDirectoryExpectation {
    /// Declared names (file names, no paths), sorted.
    pub names: Vec<String>,
    /// Only names with this ending count (`.conf` in a drop-in directory); `None` means all do.
    pub suffix: Option<Cow<'static, str>>,
    /// Whether an undeclared name is reported as an undeclared ssh key rather than a file.
    pub ssh_keys: bool,
}

impl ClosedDirectoryExpectation {
    /// Whether a name in the directory is one that must not be there.
    pub fn is_unexpected(&self, name: &str) -> bool {
        let counts = self.suffix.as_deref().is_none_or(|suffix| name.ends_with(suffix));
        counts && self.names.binary_search_by(|declared| declared.as_str().cmp(name)).is_err()
    }
}

/// A user's own `authorized_keys`: it may be missing, and no other key than these may be in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorizedKeysExpectation {
    /// Whose keys.
    pub user: String,
    /// Keys that are declared for the user.
    pub keys: Vec<SshKey>,
}

/// Arguments that the kernel must have been given, among others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelArgumentsExpectation {
    /// One argument each, in their order.
    pub arguments: Vec<String>,
    /// Those among them that this boot need not have: they are set for the next one ([`crate::waiting`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<String>,
}

/// The image that must be booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsImageExpectation {
    /// As declared (`osImageURL`).
    pub image: String,
}

/// The declared state of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Expected {
    /// See [`FileExpectation`].
    File(FileExpectation),
    /// See [`DirectoryExpectation`].
    Directory(DirectoryExpectation),
    /// See [`LinkExpectation`].
    Link(LinkExpectation),
    /// See [`UnitExpectation`].
    Unit(UnitExpectation),
    /// See [`ClosedDirectoryExpectation`].
    ClosedDirectory(ClosedDirectoryExpectation),
    /// See [`AuthorizedKeysExpectation`]; the thing is a [`Thing::File`].
    AuthorizedKeys(AuthorizedKeysExpectation),
    /// See [`KernelArgumentsExpectation`].
    KernelArguments(KernelArgumentsExpectation),
    /// See [`OsImageExpectation`].
    OsImage(OsImageExpectation),
}

/// What one managed thing should be, and who says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// Which thing.
    pub thing: Thing,
    /// What it should be.
    pub expected: Expected,
    /// The file is `authorized_keys`-like (or the directory holds such files): the observer has to
    /// read the keys, and differences are reported as ssh keys.
    pub ssh_keys: bool,
    /// The SELinux label that the host's policy has for the object at the thing's path, of which the type counts. No config
    /// declares one, so it is not known before the host was asked; `None` where there is none to compare with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Arc<str>>,
    /// The MachineConfig that says so (the last one of the merge that set it).
    pub source: Source,
}
