//! What a vector is: the thing that changes, how, and what Holdfast must report.
//!
//! In: the rows of the families. Out: constants that the scenario reads.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::guest::disks::FileSystem;

/// Exit status of a performing process whose kernel or file system refuses the operation.
pub const REFUSED: i32 = 77;

/// The managed thing, and its state before the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartState {
    /// A compliant file.
    File,
    /// A file of several blocks.
    Blocks,
    /// A file with another file of other content mounted over it.
    FileMountedOver,
    /// A file in a directory that is a mount point.
    FileInMount,
    /// A file with an undeclared extended attribute.
    FileWithXattr,
    /// A file with an undeclared access control list.
    FileWithAcl,
    /// An executable file that is a script.
    Script,
    /// An executable file in a format of the kernel (ELF).
    Program,
    /// A swap file.
    Swap,
    /// A file in its own subvolume.
    FileInSubvolume,
    /// A symbolic link.
    Link,
    /// A directory.
    Directory,
    /// A closed directory: a drop-in directory in which every file is declared.
    ClosedDirectory,
    /// A declared file that does not exist.
    AbsentFile,
    /// A declared file in a directory that does not exist.
    AbsentDirectory,
}

impl StartState {
    /// Whether the thing differs from its declaration before the change.
    pub fn begins_drifted(self) -> bool {
        matches!(
            self,
            Self::FileMountedOver
                | Self::FileWithXattr
                | Self::FileWithAcl
                | Self::AbsentFile
                | Self::AbsentDirectory
        )
    }
}

/// How a vector makes its change.
#[derive(Debug, Clone, Copy)]
pub enum Does {
    /// By system calls.
    Call(fn(&Path) -> Result<()>),
    /// The same, but the process starts before the daemon. It calls the second argument when it is ready, and that call
    /// returns after the daemon has started.
    Early(fn(&Path, &mut dyn FnMut() -> Result<()>) -> Result<()>),
    /// By a line of shell. `$F` is the thing's path, `$D` its directory.
    Shell(&'static str),
    /// By a check of another scenario, which shows this vector.
    Shown {
        /// The scenario's name.
        scenario: &'static str,
        /// The name of its check.
        check: &'static str,
    },
    /// Not performed, with the reason.
    NotPerformed(&'static str),
}

/// What Holdfast must report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedReport {
    /// Drift with a difference of this kind.
    Drift(&'static str),
    /// The thing changed and is compliant.
    Touched,
    /// The thing is compliant again.
    Recovered,
    /// An execution, with the verdict at that moment.
    Exec,
    /// The opening of a device, and then drift with a difference of this kind.
    TamperThenDrift(&'static str),
    /// Nothing: the change has no effect on the node.
    Nothing,
}

impl ExpectedReport {
    /// Kind of the expected record.
    pub fn record(self) -> Option<&'static str> {
        match self {
            Self::Drift(_) | Self::TamperThenDrift(_) => Some("drift"),
            Self::Touched => Some("touched"),
            Self::Recovered => Some("recovered"),
            Self::Exec => Some("exec"),
            Self::Nothing => None,
        }
    }

    /// Kind of the expected difference.
    pub fn difference(self) -> Option<&'static str> {
        match self {
            Self::Drift(kind) | Self::TamperThenDrift(kind) => Some(kind),
            _ => None,
        }
    }
}

/// The actor that Holdfast must name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedActor {
    /// The performing process.
    Doer,
    /// A process that has the performing one among its ancestors.
    Child,
    /// A process that the performing one left to init. Its arguments identify it.
    Orphan,
    /// The performing process, as it was while it ran the program with this in its arguments.
    Called(&'static str),
    /// The performing process, in a unit whose name starts with this.
    Unit(&'static str),
    /// A child that gave the file to a device, or the kernel thread that writes for the device.
    Device,
    /// A child, or the kernel thread that handles its `io_uring` request.
    Worker,
    /// No actor: no hook sees the change, and a sweep finds it.
    NoActor,
}

/// One way in which a managed thing can change.
#[derive(Debug)]
pub struct Vector {
    /// Number and variant.
    pub id: &'static str,
    /// Short description.
    pub name: &'static str,
    /// Hooks that see the change, the most specific first. Without any, only a sweep finds it.
    pub hooks: &'static [&'static str],
    /// The thing that changes.
    pub target: StartState,
    /// How the change is made.
    pub does: Does,
    /// What Holdfast must report.
    pub expected: ExpectedReport,
    /// The actor that Holdfast must name.
    pub who: ExpectedActor,
    /// File systems on which the vector runs; empty means all.
    pub only: &'static [FileSystem],
}

impl Vector {
    /// A vector on a declared file, on every file system, whose performing process is the actor.
    pub(super) const fn file(
        id: &'static str,
        name: &'static str,
        hooks: &'static [&'static str],
        does: Does,
    ) -> Self {
        Self {
            id,
            name,
            hooks,
            target: StartState::File,
            does,
            expected: ExpectedReport::Drift("content"),
            who: ExpectedActor::Doer,
            only: &[],
        }
    }

    /// A row with the reason why no code performs the vector.
    pub(super) const fn not_performed(
        id: &'static str,
        name: &'static str,
        hooks: &'static [&'static str],
        reason: &'static str,
    ) -> Self {
        Self::file(id, name, hooks, Does::NotPerformed(reason))
    }

    pub(super) const fn expecting(mut self, expected: ExpectedReport) -> Self {
        self.expected = expected;
        self
    }

    pub(super) const fn on(mut self, target: StartState) -> Self {
        self.target = target;
        self
    }

    pub(super) const fn by(mut self, who: ExpectedActor) -> Self {
        self.who = who;
        self
    }

    pub(super) const fn only(mut self, file_systems: &'static [FileSystem]) -> Self {
        self.only = file_systems;
        self
    }

    /// Whether this table performs the vector.
    pub fn is_performed(&self) -> bool {
        !matches!(self.does, Does::NotPerformed(_) | Does::Shown { .. })
    }

    /// Whether the vector runs on a file system.
    pub fn runs_on(&self, kind: FileSystem) -> bool {
        self.is_performed() && (self.only.is_empty() || self.only.contains(&kind))
    }
}

/// Another path in the same file system, outside every managed directory.
pub(super) fn elsewhere(file: &Path) -> Result<PathBuf> {
    let directory = file.parent().and_then(Path::parent).context("a path with two directories above it")?;
    Ok(directory.join("elsewhere"))
}

/// Declared content of the file at a path: a text longer than any vector needs, unique to this file.
pub(crate) fn declared_content(path: &Path) -> String {
    format!("# declared content of {}\n", path.display()).repeat(5)
}
