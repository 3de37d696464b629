//! Actors that are hard to name, and executions of managed files.
//!
//! In: a managed file. Out: the file changed by a process that has ended, was orphaned, or runs deep below a shell; or
//! executed.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::vector::{Does, ExpectedActor, ExpectedReport, StartState, Vector};

const OPEN: &[&str] = &["file_open", "file_permission"];
const TRUNCATE: &[&str] = &["file_open", "inode_setattr", "file_permission"];
const EXEC: &[&str] = &["sched_process_exec"];

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file(
        "V86a",
        "subshell three levels deep",
        OPEN,
        Does::Shell("sh -c 'sh -c \"echo drift >> \\\"$F\\\"; true\"; true'"),
    )
    .by(ExpectedActor::Child),
    Vector::file("V86b", "program that a shell starts", TRUNCATE, Does::Shell("cp /proc/version \"$F\"; true"))
        .by(ExpectedActor::Child),
    Vector::file(
        "V86c",
        "double fork: the writer belongs to init",
        OPEN,
        Does::Shell("(sh -c 'sleep 1; echo drift >> \"$1\"' orphan \"$F\" &) &"),
    )
    .by(ExpectedActor::Orphan),
    Vector::file(
        "V86d",
        "two programs executed after the change, by the same process",
        OPEN,
        Does::Shell("echo drift >> \"$F\"; exec sh -c 'exec sh -c true'"),
    )
    .by(ExpectedActor::Called("echo drift")),
    Vector::file(
        "V86e",
        "from a control group that is removed at once",
        OPEN,
        Does::Shell(
            "G=/sys/fs/cgroup; U=$G/brief-$$.service; mkdir $U && echo $$ > $U/cgroup.procs && echo drift >> \"$F\"; \
             echo $$ > $G/cgroup.procs; rmdir $U",
        ),
    )
    .by(ExpectedActor::Unit("brief-")),
    Vector::file("V92a", "a managed program is executed", EXEC, Does::Call(execute))
        .on(StartState::Program)
        .expecting(ExpectedReport::Exec)
        .by(ExpectedActor::Child),
    Vector::file("V92b", "a managed script is executed", EXEC, Does::Call(execute))
        .on(StartState::Script)
        .expecting(ExpectedReport::Exec)
        .by(ExpectedActor::Child),
    Vector::file("V92c", "a managed script becomes the process", EXEC, Does::Shell("exec \"$F\""))
        .on(StartState::Script)
        .expecting(ExpectedReport::Exec),
];

fn execute(path: &Path) -> Result<()> {
    let status = Command::new(path).status()?;
    ensure!(status.success(), "it ended with {status}");
    Ok(())
}
