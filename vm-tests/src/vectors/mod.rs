//! The vector table: the ways in which a managed thing can change, each as code that does it.
//!
//! Comes in: the id of a vector and the path of a managed thing. Goes out: the change, made for real by the process
//! that calls [`perform`]; and for each vector what Holdfast must say of it. Numbers are those of [`NUMBERS`]; letters
//! tell variants apart. Nothing here looks at what Holdfast said: that is the scenario's part.

mod actors;
mod attributes;
mod beneath;
mod content;
mod hooks;
mod ioctls;
mod mapped;
mod mounts;
mod names;
mod narrow;
mod numbers;
pub(crate) mod prepare;
mod raw;
mod rest;
mod uring;

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::guest::disks::FileSystem;
use crate::scenarios::{burst, flood};

pub use hooks::told_by;
pub use numbers::NUMBERS;

/// Exit status of a performing process whose kernel or file system refuses the operation.
pub const REFUSED: i32 = 77;

/// What is managed, and how it stands before the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A file as declared.
    File,
    /// A file of several blocks.
    Blocks,
    /// A file that another one, of other content, is mounted over.
    FileMountedOver,
    /// A file in a directory that is a mount of its own.
    FileInMount,
    /// A file with an extended attribute that nothing declares.
    FileWithXattr,
    /// A file with an access control list that nothing declares.
    FileWithAcl,
    /// An executable file that is a script.
    Script,
    /// An executable file that the kernel runs itself.
    Program,
    /// A file to swap to.
    Swap,
    /// A file in a subvolume of its own.
    FileInSubvolume,
    /// A symbolic link.
    Link,
    /// A directory.
    Directory,
    /// A drop-in directory, in which every file is declared.
    ClosedDirectory,
    /// A file that is declared and not there.
    AbsentFile,
    /// A file that is declared, in a directory that is not there.
    AbsentDirectory,
}

impl Target {
    /// Whether it departs from its declaration before the change.
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

/// How a vector is done.
#[derive(Debug, Clone, Copy)]
pub enum Does {
    /// By system calls.
    Call(fn(&Path) -> Result<()>),
    /// The same, but the process begins before the daemon: it calls the second argument when it is ready, which
    /// comes back when the daemon has started.
    Early(fn(&Path, &mut dyn FnMut() -> Result<()>) -> Result<()>),
    /// By a line of shell, with the thing in `$F` and the directory it is in in `$D`.
    Shell(&'static str),
    /// By a check of another scenario.
    Shown {
        /// The scenario's name.
        scenario: &'static str,
        /// The check's.
        check: &'static str,
    },
    /// Not at all, and why not.
    NotPerformed(&'static str),
}

/// What Holdfast must say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Drift with a difference of this kind.
    Drift(&'static str),
    /// Changed and as declared.
    Touched,
    /// As declared again.
    Recovered,
    /// An execution, with the verdict at that moment.
    Exec,
    /// Drift with a difference of this kind, and before that the opening of a device.
    TamperThenDrift(&'static str),
    /// Nothing: the change does not show on the node.
    Nothing,
}

impl Expected {
    /// Kind of the record that is waited for.
    pub fn record(self) -> Option<&'static str> {
        match self {
            Self::Drift(_) | Self::TamperThenDrift(_) => Some("drift"),
            Self::Touched => Some("touched"),
            Self::Recovered => Some("recovered"),
            Self::Exec => Some("exec"),
            Self::Nothing => None,
        }
    }

    /// Kind of the difference that is waited for.
    pub fn difference(self) -> Option<&'static str> {
        match self {
            Self::Drift(kind) | Self::TamperThenDrift(kind) => Some(kind),
            _ => None,
        }
    }
}

/// Who must be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The performing process.
    Doer,
    /// A process that has the performing one among its ancestors.
    Child,
    /// A process that the performing one left to init: it is named by its arguments.
    Orphan,
    /// The performing process, as it was when it ran the program with this in its arguments.
    Called(&'static str),
    /// The performing process, in a unit whose name begins so.
    Unit(&'static str),
    /// A child that gave the file to a device, or the kernel's thread that writes for the device.
    Device,
    /// A child, or the kernel's thread that carries out what it asked `io_uring` for.
    Worker,
    /// Nobody: no hook sees it, a sweep finds it.
    Nobody,
}

/// One way in which a managed thing can change.
#[derive(Debug)]
pub struct Vector {
    /// Number and variant.
    pub id: &'static str,
    /// In a few words.
    pub name: &'static str,
    /// Hooks that see it, the most telling first; none means that it is swept.
    pub hooks: &'static [&'static str],
    /// What it is done to.
    pub target: Target,
    /// How.
    pub does: Does,
    /// What must be said.
    pub expected: Expected,
    /// Who must be named.
    pub who: Who,
    /// File systems on which it is done; empty means all.
    pub only: &'static [FileSystem],
}

impl Vector {
    /// A vector on a declared file, on every file system, with its doer named.
    const fn file(id: &'static str, name: &'static str, hooks: &'static [&'static str], does: Does) -> Self {
        Self {
            id,
            name,
            hooks,
            target: Target::File,
            does,
            expected: Expected::Drift("content"),
            who: Who::Doer,
            only: &[],
        }
    }

    /// A row that says why nobody does it.
    const fn not_performed(
        id: &'static str,
        name: &'static str,
        hooks: &'static [&'static str],
        reason: &'static str,
    ) -> Self {
        Self::file(id, name, hooks, Does::NotPerformed(reason))
    }

    const fn expecting(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    const fn on(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    const fn by(mut self, who: Who) -> Self {
        self.who = who;
        self
    }

    const fn only(mut self, file_systems: &'static [FileSystem]) -> Self {
        self.only = file_systems;
        self
    }

    /// Whether it is done here at all.
    pub fn is_performed(&self) -> bool {
        !matches!(self.does, Does::NotPerformed(_) | Does::Shown { .. })
    }

    /// Whether it is done on a file system.
    pub fn runs_on(&self, kind: FileSystem) -> bool {
        self.is_performed() && (self.only.is_empty() || self.only.contains(&kind))
    }
}

/// The whole table, in the order of its families.
pub fn all() -> impl Iterator<Item = &'static Vector> {
    [
        content::VECTORS,
        ioctls::VECTORS,
        uring::VECTORS,
        mapped::VECTORS,
        names::VECTORS,
        attributes::VECTORS,
        mounts::VECTORS,
        beneath::VECTORS,
        actors::VECTORS,
        rest::VECTORS,
    ]
    .into_iter()
    .flatten()
}

/// Does a vector in this process: `act ID PATH`. Gives the exit status.
pub fn perform(arguments: &[String]) -> Result<i32> {
    let [id, path] = arguments else { bail!("act needs a vector and a path") };
    let path = Path::new(path);
    if id == content::RECEIVER {
        content::receive(path)?;
        return Ok(0);
    }
    if id == burst::WRITER {
        burst::write(path)?;
        return Ok(0);
    }
    if id == flood::FLOODER {
        flood::attempt(path)?;
        return Ok(0);
    }
    let vector = all().find(|vector| vector.id == id).with_context(|| format!("no vector {id}"))?;
    let result = match vector.does {
        Does::Call(act) => act(path),
        Does::Early(act) => act(path, &mut || {
            println!("ready");
            std::io::stdout().flush()?;
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            Ok(())
        }),
        Does::Shell(_) | Does::Shown { .. } | Does::NotPerformed(_) => {
            bail!("{id} is not done by this program")
        }
    };
    match result {
        Err(error) if refused(&error) => {
            eprintln!("{error:#}");
            Ok(REFUSED)
        }
        other => other.map(|()| 0),
    }
}

/// Whether an error says that the kernel or the file system has no such operation.
fn refused(error: &anyhow::Error) -> bool {
    let code = error.chain().find_map(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error)
            .or_else(|| cause.downcast_ref::<rustix::io::Errno>().map(|e| e.raw_os_error()))
            .or_else(|| cause.downcast_ref::<nix::Error>().map(|e| *e as i32))
    });
    // An overlay without redirect_dir renames no directory of its lower layer.
    let codes = [nix::Error::EOPNOTSUPP, nix::Error::ENOSYS, nix::Error::ENOTTY, nix::Error::EXDEV];
    codes.iter().any(|known| code == Some(*known as i32))
}

/// Another place in the same file system, outside every managed directory.
fn elsewhere(file: &Path) -> Result<PathBuf> {
    let directory = file.parent().and_then(Path::parent).context("a path with two directories above it")?;
    Ok(directory.join("elsewhere"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_vectors_share_an_id() {
        let mut seen = BTreeSet::new();
        for vector in all() {
            assert!(seen.insert(vector.id), "{} is there twice", vector.id);
        }
    }

    #[test]
    fn a_vector_without_hooks_names_nobody_and_one_that_names_somebody_has_hooks() {
        for vector in all().filter(|vector| vector.is_performed()) {
            let swept = vector.hooks.is_empty();
            let nobody = vector.who == Who::Nobody;
            assert_eq!(swept, nobody, "{}: hooks {:?}, who {:?}", vector.id, vector.hooks, vector.who);
        }
    }
}
