//! Why a thing was not repaired.

use crate::{bounded::Unreadable, disk::DiskError};
use sensor_model::difference::Difference;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a thing was not repaired, or not entirely.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// A repair would destroy something, or no config declares what to write.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: RepairRefusal,
    },
    /// The path could not be written.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// systemd refused.
    #[error("{unit}: systemd: {answer}")]
    Systemd {
        /// The unit.
        unit: String,
        /// Its answer.
        answer: Box<zbus::Error>,
    },
    /// The thing still differs after the write, because another process changes it as well.
    #[error("{}: still differs after it was written; find the other writer with `holdfast who`: {}", path.display(), texts(differences))]
    StillDiffers {
        /// The path.
        path: PathBuf,
        /// What differs now.
        differences: Vec<Difference>,
    },
}

/// Why a repair is refused. No text has content in it.
#[derive(Debug, thiserror::Error)]
pub enum RepairRefusal {
    /// A difference of a kind that no repair removes.
    #[error("{}{}", .0.text, .0.kind.refusal().unwrap_or_default())]
    Difference(Difference),
    /// A thing of a kind that no repair restores, with what does.
    #[error("{0}")]
    NotRestorable(&'static str),
    /// The path is another name of a file that could not be restored.
    #[error("its file could not be restored")]
    FileNotRestored,
    /// The path has another object than a directory.
    #[error("a {0} is in its place; move it away first")]
    InPlace(String),
    /// A hard link has no file to link to.
    #[error("the target of the hard link, {}, is missing", .0.display())]
    NoHardLinkTarget(PathBuf),
    /// A directory of the path is another object.
    #[error("it or one of its parents is not a directory; move it away first")]
    NotADirectory,
    /// A link may lead to what something else declares.
    #[error(
        "a directory on the way to it is a link, so it may be another declared object: name the path without links ({}) in the rule with \
         `absent: true`",
        .0.display()
    )]
    LinkedPath(PathBuf),
    /// A link came on the way to a closed directory.
    #[error(
        "a link now leads to {}, and a config may declare other names there, so nothing was moved; the daemon compares the directory again within \
         seconds",
        .0.display()
    )]
    LinkedDirectory(PathBuf),
    /// A directory is where a rule of a drift policy expects nothing.
    #[error(
        "a directory is there, and a rule with `absent: true` moves no directory to the quarantine: remove it by hand, or declare it; if \
         the rule is about what is in the directory, end its path with / and use `closed: true`"
    )]
    UnexpectedDirectory,
    /// A directory of the path is a link that leads nowhere.
    #[error("it is a link to a missing target; remove it first")]
    DanglingLink,
    /// The directory of ssh keys has no home.
    #[error("the user's home directory is missing")]
    NoHome,
    /// The declared owner does not exist.
    #[error(transparent)]
    UnknownOwner(#[from] UnknownOwner),
    /// The config has no bytes for the file.
    #[error("no MachineConfig declares its content")]
    NoContent,
    /// Without a declared content, the file cannot be made anew, and another user could exchange it.
    #[error(
        "its content is not declared, and it is a file of root, and other users can write its directory; set its \
         owner and mode by hand"
    )]
    UndeclaredOfRoot,
    /// Without a declared content, the file cannot be made anew, and its owner and mode belong to the other name, too.
    #[error(
        "its content is not declared, and it has another name in another directory; set its owner and mode by hand"
    )]
    UndeclaredWithOtherName,
    /// Without a declared content, no file can replace the object.
    #[error("its content is not declared, and it is not a file; move it away first")]
    UndeclaredAndNoFile,
    /// The open file cannot be duplicated.
    #[error("read: {0}")]
    NotDuplicated(io::ErrorKind),
    /// The file of keys cannot be read.
    #[error("read: {0}; move it away first")]
    NotRead(Unreadable),
    /// A unit that is to be enabled has no file.
    #[error("there is no unit file to enable; declare its contents, or install it")]
    NoUnitFile,
    /// A unit that is to be enabled cannot be.
    #[error("its file has no [Install] section with WantedBy=, RequiredBy=, UpheldBy=, Alias= or Also=")]
    NoInstall,
    /// A template that is to be enabled names no instance.
    #[error("a template without DefaultInstance= cannot be enabled; declare an instance")]
    NoDefaultInstance,
}

/// A declared owner that the host does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownOwner {
    /// A user.
    #[error("the host has no user `{0}`")]
    User(String),
    /// A group.
    #[error("the host has no group `{0}`")]
    Group(String),
}

impl RepairError {
    pub(super) fn refused(path: &Path, reason: impl Into<RepairRefusal>) -> Self {
        Self::Refused { path: path.to_owned(), reason: reason.into() }
    }
}

fn texts(differences: &[Difference]) -> String {
    differences.iter().map(|difference| difference.text.as_str()).collect::<Vec<_>>().join("; ")
}
