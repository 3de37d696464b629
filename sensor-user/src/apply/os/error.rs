//! Why the OS of a host was not read or changed.

use crate::observation::RootError;
use sensor_model::os::StatusError;
use std::{io, path::PathBuf, process::ExitStatus};

/// Why a tool did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Its program cannot be executed.
    #[error("{program}: cannot be started: {error}")]
    NotStarted {
        /// The program.
        program: String,
        /// Why not.
        error: io::Error,
    },
    /// Its end cannot be awaited.
    #[error("{command}: cannot be awaited: {error}")]
    NotAwaited {
        /// The command line.
        command: String,
        /// Why not.
        error: io::Error,
    },
    /// It failed.
    #[error("{command}: {status}: {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its standard error.
        stderr: String,
    },
    /// It exceeded its time limit, and Holdfast killed it.
    #[error("{command}: not done within {seconds} s; it was killed")]
    Killed {
        /// The command line.
        command: String,
        /// The limit.
        seconds: f64,
    },
    /// A download failed at each attempt.
    #[error("{last} (tried {tries} times)")]
    NotDownloaded {
        /// The last failure.
        last: Box<Self>,
        /// How many attempts there were.
        tries: u32,
    },
}

/// Why a host cannot have a change of the OS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedChange {
    /// The host is not image-based.
    #[error(
        "the host has no OS that can be changed as a whole (no rpm-ostree, bootc or ostree); kernel arguments, kernel type, \
         extensions and OS image cannot be applied"
    )]
    NoTool,
    /// bootc changes only the image.
    #[error(
        "bootc changes the image alone: kernel arguments (/usr/lib/bootc/kargs.d), kernel type and extensions have to be in it"
    )]
    Bootc,
    /// ostree changes only the image and kernel arguments.
    #[error("ostree alone cannot change kernel type or extensions; the image has to hold them")]
    Ostree,
    /// No package is known for a kernel type.
    #[error("kernelType {0:?} is not known; it can be default, realtime or 64k-pages")]
    KernelType(String),
    /// The new config declares no image, and the old one is not known.
    #[error(
        "osImageURL is declared no more, and the image before it is not known; declare the image that the host is to boot"
    )]
    NoImage,
    /// The tools would take the image for an option.
    #[error("osImageURL {0:?} is not an image; it must not be empty or begin with `-`")]
    NotAnImage(String),
}

/// Why the OS of a host was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum OsError {
    /// The host cannot have the change.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedChange),
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The answer of a tool cannot be parsed.
    #[error(transparent)]
    Answer(#[from] StatusError),
    /// A tool lists no deployment.
    #[error("{0} names no deployment at all")]
    NoDeployment(&'static str),
    /// ostree does not list which deployment is booted.
    #[error("ostree does not say what is booted")]
    NothingBooted,
    /// The staged deployment is not the one that was asked for.
    #[error("{}", .0.join("; "))]
    NotStaged(Vec<String>),
    /// The staged deployment is wrong, and cannot be removed.
    #[error("{error}; and what was staged could not be dropped: {removal}")]
    NotDropped {
        /// Why it is wrong.
        error: Box<Self>,
        /// Why it was not removed.
        removal: Box<Self>,
    },
    /// A file of the host cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// No boot loader entry starts the booted deployment.
    #[error(
        "no entry in /boot/loader/entries starts the booted deployment {0}: the ostree= argument of none leads to it"
    )]
    NoEntry(String),
    /// The host's root directory cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The booted deployment cannot be observed.
    #[error("the booted deployment cannot be read: {0}")]
    NoDeploymentRead(String),
    /// The kernel's arguments cannot be observed.
    #[error("the kernel's arguments cannot be read: {0}")]
    NoArgumentsRead(String),
    /// The boot id cannot be read.
    #[error("the boot id cannot be read: {0}")]
    BootId(io::Error),
}
