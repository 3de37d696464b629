//! What each managed thing should be, and who says so.
//!
//! Comes in from `machine_config` (parse and merge); goes out to `compare` and, by path, to the
//! daemon's index of what the kernel has to watch. Contents are kept as size and digest only, so
//! that ten thousand files cost a few megabytes and no secret stays in memory; the bytes are decoded
//! again from the source when a repair or a diff needs them.

use crate::authorized_keys::SshKey;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Who says what a thing should be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Source {
    /// Name of the MachineConfig (`metadata.name`), or the file name of a plain Ignition config.
    pub machine_config: String,
    /// The manifest file it was read from, as given on the command line or found in a directory.
    pub origin: String,
}

/// A managed thing's identity. Two expectations never share one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Thing {
    /// A regular file (also unit files and drop-ins).
    File {
        /// Absolute, cleaned path.
        path: PathBuf,
    },
    /// A directory whose own mode and owner are declared.
    Directory {
        /// Absolute, cleaned path.
        path: PathBuf,
    },
    /// A symbolic or hard link.
    Link {
        /// Absolute, cleaned path.
        path: PathBuf,
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
        path: PathBuf,
    },
    /// What the running kernel was told at boot.
    KernelArguments,
    /// The image of the OS that is booted.
    OsImage,
}

impl Thing {
    /// The path by which reports and policies name the thing; units are named by their file's path, the kernel's
    /// arguments and the OS by the files that tell of them.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::File { path }
            | Self::Directory { path }
            | Self::Link { path }
            | Self::ClosedDirectory { path } => path.clone(),
            Self::Unit { name } => Path::new(SYSTEMD_DIRECTORY).join(name),
            Self::KernelArguments => PathBuf::from(KERNEL_ARGUMENTS),
            Self::OsImage => PathBuf::from(OSTREE_BOOTED),
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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Content {
    /// Bytes after decoding and decompression.
    pub size: u64,
    /// SHA-256 of those bytes.
    #[serde(serialize_with = "hex::serde::serialize")]
    pub sha256: [u8; 32],
}

/// What a file should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileExpectation {
    /// `None` only for files whose content is not declared (`overwrite: false` without a source).
    pub content: Option<Content>,
    /// The declared keys of an `authorized_keys`-like file, in order; empty for every other file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<SshKey>,
    /// Blank lines and the last line ending of a file of keys don't count: Ignition and the Machine
    /// Config Operator write the same keys with and without them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub layout_free: bool,
    /// Permission bits, including setuid, setgid and sticky.
    pub mode: u32,
    /// Owning user.
    pub user: Owner,
    /// Owning group.
    pub group: Owner,
    /// SELinux label, known only after a first compliant observation.
    pub label: Option<String>,
    /// The thing may be missing as long as an existing one is empty (MCO's rule for empty drop-ins).
    pub may_be_missing: bool,
}

/// What a directory should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DirectoryExpectation {
    /// Permission bits.
    pub mode: u32,
    /// Owning user.
    pub user: Owner,
    /// Owning group.
    pub group: Owner,
}

/// What a link should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnitExpectation {
    /// Declared enablement.
    pub enabled: Option<bool>,
    /// Declared mask.
    pub masked: Option<bool>,
    /// Directories below [`SYSTEMD_DIRECTORY`] that enablement links into, as far as the declared
    /// content's `[Install]` section names them: `multi-user.target.wants`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub install_directories: Vec<String>,
}

/// Names that may exist in a closed directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClosedDirectoryExpectation {
    /// Declared names (file names, no paths), sorted.
    pub names: Vec<String>,
    /// Only names with this ending count (`.conf` in a drop-in directory); `None` means all do.
    pub suffix: Option<&'static str>,
    /// Whether an undeclared name is reported as an undeclared ssh key rather than a file.
    pub ssh_keys: bool,
}

/// A user's own `authorized_keys`: it may be missing, and no other key than these may be in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuthorizedKeysExpectation {
    /// Whose keys.
    pub user: String,
    /// Keys that are declared for the user.
    pub keys: Vec<SshKey>,
}

/// Arguments that the kernel must have been given, among others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelArgumentsExpectation {
    /// One argument each, in their order.
    pub arguments: Vec<String>,
}

/// The image that must be booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OsImageExpectation {
    /// As declared (`osImageURL`).
    pub image: String,
}

/// The declared state of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Expectation {
    /// Which thing.
    pub thing: Thing,
    /// What it should be.
    pub expected: Expected,
    /// The file is `authorized_keys`-like (or the directory holds such files): the observer has to
    /// read the keys, and differences are reported as ssh keys.
    pub ssh_keys: bool,
    /// The MachineConfig that says so (the last one of the merge that set it).
    pub source: Source,
}
