//! The table of hooks. `load` attaches them, `doctor` lists them, metrics count them.
//!
//! In: the running kernel's BTF. Out: for each hook its program and arguments, or why this kernel cannot run it.

use aya::programs::ProgramError;
use sensor_model::host::btf::{Btf, BtfError};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use thiserror::Error;

/// One of the two sets of programs. Each has a program for each hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProgramSet {
    /// BPF LSM programs.
    Lsm,
    /// fentry programs on the `security_` functions.
    Fentry,
}

impl ProgramSet {
    /// Prefix of the program names.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Lsm => "lsm",
            Self::Fentry => "fentry",
        }
    }
}

/// How one program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// To an LSM hook.
    Lsm,
    /// To the entry of a kernel function.
    Fentry,
    /// To a tracepoint.
    Tracepoint,
}

impl Attachment {
    /// Its word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lsm => "lsm",
            Self::Fentry => "fentry",
            Self::Tracepoint => "tracepoint",
        }
    }
}

impl From<ProgramSet> for Attachment {
    fn from(set: ProgramSet) -> Self {
        match set {
            ProgramSet::Lsm => Self::Lsm,
            ProgramSet::Fentry => Self::Fentry,
        }
    }
}

/// When a hook is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// From start to end.
    Always,
    /// Only while a managed file has writers: the hook sees every read and write, or every close, on the node.
    Writers,
    /// Only while a managed thing is a symbolic link. It answers the daemon's observations of the link.
    Links,
}

/// One hook.
#[derive(Debug, Clone, Copy)]
pub struct Hook {
    /// LSM hook name; the fentry target is `security_<name>`.
    pub name: &'static str,
    /// Parameters that its body reads.
    pub arguments: &'static [&'static str],
    /// When it is attached.
    pub when: When,
    /// What Holdfast cannot see without it, for `doctor`.
    pub sees: &'static str,
    /// The first kernel that has it; `None` if all have it. Older kernels do the same through other hooks. BTF decides whether the
    /// running kernel has it.
    pub since: Option<&'static str>,
}

const fn always(name: &'static str, arguments: &'static [&'static str], sees: &'static str) -> Hook {
    Hook { name, arguments, when: When::Always, sees, since: None }
}

/// Every security hook.
pub const HOOKS: &[Hook] = &[
    always("file_open", &["file"], "opens for writing, and the daemon's own observations"),
    Hook {
        when: When::Writers,
        ..always("file_permission", &["file", "mask"], "write(2), splice, sendfile, io_uring, fallocate")
    },
    Hook {
        when: When::Writers,
        since: Some("6.9"),
        ..always("file_release", &["file"], "the end of a writer (polled instead)")
    },
    always("mmap_file", &["file", "prot", "flags"], "shared writable mappings, and loads of libraries"),
    always("file_mprotect", &["vma", "prot"], "shared mappings made writable"),
    always("file_ioctl", &["file", "cmd"], "inode flags and content-swapping ioctls"),
    // Some older stable kernels have it too. On a kernel without it, ioctls of 32-bit processes call `file_ioctl`.
    Hook {
        since: Some("6.8"),
        ..always(
            "file_ioctl_compat",
            &["file", "cmd"],
            "inode flags and content-swapping ioctls of 32-bit processes",
        )
    },
    always("inode_setattr", &["dentry", "attr"], "mode, owner, size and times"),
    Hook { since: Some("6.17"), ..always("inode_file_setattr", &["dentry"], "file_setattr(2)") },
    always("inode_setxattr", &["dentry", "name"], "extended attributes set"),
    always("inode_removexattr", &["dentry", "name"], "extended attributes removed"),
    Hook { since: Some("6.2"), ..always("inode_set_acl", &["dentry"], "access control lists set") },
    Hook { since: Some("6.2"), ..always("inode_remove_acl", &["dentry"], "access control lists removed") },
    always("inode_create", &["dir", "dentry"], "files created"),
    always("inode_mkdir", &["dir", "dentry"], "directories made"),
    always("inode_mknod", &["dir", "dentry"], "nodes made"),
    always("inode_symlink", &["dir", "dentry"], "symbolic links made"),
    always("inode_link", &["old_dentry", "dir", "new_dentry"], "hard links made"),
    always("inode_unlink", &["dir", "dentry"], "names removed"),
    always("inode_rmdir", &["dir", "dentry"], "directories removed"),
    always("inode_rename", &["old_dir", "old_dentry", "new_dir", "new_dentry"], "renames and replacements"),
    always("sb_mount", &["path", "flags"], "mount(2)"),
    always("sb_umount", &["mnt"], "umount(2)"),
    always("move_mount", &["from_path", "to_path"], "mounts attached by the new calls"),
    always("sb_pivotroot", &[], "pivot_root(2)"),
    always("bprm_creds_for_exec", &["bprm"], "executions of managed scripts"),
    Hook {
        when: When::Links,
        ..always("inode_readlink", &["dentry"], "metadata of managed links, except their names")
    },
];

/// A tracepoint that fills the maps of processes and control groups.
#[derive(Debug, Clone, Copy)]
pub struct TracepointHook {
    /// Its name among the hooks.
    pub name: &'static str,
    /// The tracepoint.
    pub tracepoint: &'static str,
    /// The program's name in the object.
    pub program: &'static str,
    /// Whether it only stores what another program was not asked to store, because the kernel skipped that one.
    pub second: bool,
}

impl TracepointHook {
    /// Whether a kernel of this release needs it.
    ///
    /// Up to 6.12 a tracepoint disables preemption around its programs (`__DO_TRACE`), so no program waits inside another task and
    /// none is skipped. Kernel 7.3 preempts them. A release that cannot be read counts as a newer one. On a kernel that preempts
    /// programs and has no second ones, the actor of a change may be unknown, but is never wrong.
    #[must_use]
    pub fn is_needed(&self, release: &str) -> bool {
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => !self.second || (major, minor) > (6, 12),
            _ => true,
        }
    }
}

const fn tracepoint(name: &'static str, tracepoint: &'static str, program: &'static str) -> TracepointHook {
    TracepointHook { name, tracepoint, program, second: false }
}

const fn second(name: &'static str, tracepoint: &'static str, program: &'static str) -> TracepointHook {
    TracepointHook { name, tracepoint, program, second: true }
}

/// All of these. The kernel skips a program of a tracepoint while a preempted task waits inside it on the same processor
/// (`__bpf_trace_run`). So the tracepoints of processes have a second program, on kernels that preempt programs. The kernel makes
/// control groups one at a time.
pub const TRACEPOINTS: &[TracepointHook] = &[
    tracepoint("sched_process_fork", "sched_process_fork", "process_fork"),
    second("sched_process_fork_again", "sched_process_fork", "process_fork_again"),
    tracepoint("sched_process_exec", "sched_process_exec", "process_exec"),
    second("sched_process_exec_again", "sched_process_exec", "process_exec_again"),
    tracepoint("cgroup_mkdir", "cgroup_mkdir", "group_made"),
];

/// A kernel function without a security hook. Both sets attach the same program to it.
#[derive(Debug, Clone, Copy)]
pub struct Function {
    /// The function.
    pub name: &'static str,
    /// The program's name in the object.
    pub program: &'static str,
    /// The parameter that its body reads.
    pub argument: &'static str,
    /// What Holdfast cannot see without it, for `doctor`.
    pub sees: &'static str,
}

/// All of these functions.
pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "blkdev_open",
        program: "fentry_blkdev_open",
        argument: "filp",
        sees: "block devices opened for writing",
    },
    Function {
        name: "proc_sys_open",
        program: "fentry_proc_sys_open",
        argument: "filp",
        sees: "kernel.ftrace_enabled opened for writing through another procfs mount",
    },
];

/// Why a program is not attached.
#[derive(Clone, Error)]
pub enum WhyOff {
    /// The kernel's types lack what the program needs: its function, or an argument of that.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// The verifier refused to load it.
    #[error("refused by the verifier ({error}): {reason}")]
    Verifier {
        /// The error of the system call.
        error: Arc<io::Error>,
        /// One line of the verifier's log. The log may have many MiB, and the daemon keeps this error as long as it runs.
        reason: String,
    },
    /// The kernel, or the loader, refused for another reason to load or to attach it. Only people read this text.
    #[error("{0}")]
    Refused(String),
}

impl From<ProgramError> for WhyOff {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError { io_error, verifier_log } => {
                Self::by_verifier(io_error, &verifier_log.to_string())
            }
            other => Self::Refused(other.to_string()),
        }
    }
}

/// The beginnings of the statistics' lines, which differ between kernels.
const STATISTICS: [&str; 5] = ["processed ", "verification time", "stack depth", "subprog ", "mark_precise"];

impl WhyOff {
    /// The verifier's refusal. Its reason is the last line of the log before the statistics.
    fn by_verifier(error: io::Error, log: &str) -> Self {
        let is_reason =
            |line: &&str| !line.is_empty() && !STATISTICS.iter().any(|start| line.starts_with(start));
        let reason = log.lines().rev().find(is_reason).unwrap_or("no reason given").to_owned();
        Self::Verifier { error: Arc::new(error), reason }
    }
}

/// The log's list of hooks quotes the text.
impl fmt::Debug for WhyOff {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), to)
    }
}

/// What Holdfast cannot see because the program of this hook or function is off; `None` if it sees everything. An older kernel
/// that lacks a newer hook's function does the same through other hooks. Without a tracepoint only details of actors are missing.
pub fn hidden(name: &str, off: &WhyOff) -> Option<&'static str> {
    if let Some(hook) = HOOKS.iter().find(|hook| hook.name == name) {
        let is_older = hook.since.is_some() && matches!(off, WhyOff::Types(BtfError::NoFunction(_)));
        return (!is_older).then_some(hook.sees);
    }
    FUNCTIONS.iter().find(|function| function.name == name).map(|function| function.sees)
}

impl Function {
    /// The argument's global and its value on this kernel.
    pub fn argument(&self, btf: &Btf<'_>) -> Result<(String, u32), BtfError> {
        let index = btf.parameter(self.name, self.argument)?;
        Ok((format!("ARG_{}_{}", self.name.to_uppercase(), self.argument.to_uppercase()), index))
    }
}

impl Hook {
    /// The program's name in the object.
    pub fn program(&self, set: ProgramSet) -> String {
        format!("{}_{}", set.prefix(), self.name)
    }

    /// The kernel function that the program is attached to.
    pub fn function(&self, set: ProgramSet) -> String {
        match set {
            ProgramSet::Lsm => format!("bpf_lsm_{}", self.name),
            ProgramSet::Fentry => format!("security_{}", self.name),
        }
    }

    /// Argument globals and their values on this kernel.
    pub fn arguments(&self, btf: &Btf<'_>, set: ProgramSet) -> Result<BTreeMap<String, u32>, BtfError> {
        let function = self.function(set);
        if !btf.has_function(&function) {
            return Err(BtfError::NoFunction(function));
        }
        let mut values = BTreeMap::new();
        for argument in self.arguments {
            let index = match btf.parameter(&function, argument) {
                // `security_inode_setattr` of some releases names the parameter after its type.
                Err(BtfError::NoParameter { .. }) if *argument == "attr" => {
                    btf.parameter(&function, "iattr")?
                }
                other => other?,
            };
            values.insert(format!("ARG_{}_{}", self.name.to_uppercase(), argument.to_uppercase()), index);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_program_is_attached_only_where_the_kernel_may_preempt_programs() {
        let again = TRACEPOINTS.iter().find(|hook| hook.second).expect("a second program");
        for (release, needed) in [
            ("5.10.0-35-cloud-amd64", false),
            ("6.12.43+deb12-cloud-amd64", false),
            ("6.13-rc1", true),
            ("6.18.3", true),
            ("7.3.0-1-cloud-amd64", true),
            ("next", true),
        ] {
            assert_eq!(again.is_needed(release), needed, "{release}");
        }
        assert!(TRACEPOINTS.iter().filter(|hook| !hook.second).all(|hook| hook.is_needed("5.10.0")));
    }

    #[test]
    fn of_a_long_verifier_log_only_the_reason_is_kept() {
        let log = format!(
            "{}R1 invalid mem access 'scalar'\nprocessed 9 insns\n",
            "0: (b7) r0 = 0\n".repeat(100_000)
        );
        let off = WhyOff::by_verifier(io::Error::from_raw_os_error(nix::libc::EACCES), &log);
        assert_eq!(
            off.to_string(),
            "refused by the verifier (Permission denied (os error 13)): R1 invalid mem access 'scalar'"
        );
        let WhyOff::Verifier { reason, .. } = off else { panic!("another variant") };
        assert!(reason.capacity() < 100, "{} bytes", reason.capacity());
    }
}
