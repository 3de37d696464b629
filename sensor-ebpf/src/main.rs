//! Holdfast's kernel programs: attributes and one call for each hook.
//!
//! Every change hook has two programs with one body: an LSM program, and an fentry program on the `security_` function of the
//! same name. The daemon loads one of the two sets, without the programs whose hook the running kernel lacks.
//!
//! A file uses only files before it in this order: `kernel`, `maps`, `log`, `inode`, `who`, `ring`, `deny`, `managed`, `hooks`.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod deny;
mod hooks;
mod inode;
mod kernel;
mod log;
mod managed;
mod maps;
mod ring;
mod who;

use aya_ebpf::EbpfContext;
use aya_ebpf::macros::{btf_tracepoint, fentry, lsm};
use aya_ebpf::programs::{BtfTracePointContext, FEntryContext, LsmContext};
use kernel::Arguments;

/// One body, two programs: `lsm/<hook>` and `fentry/security_<hook>`.
macro_rules! change_hook {
    ($hook:literal, $function:literal, $lsm:ident, $fentry:ident, $body:path) => {
        #[doc = concat!("LSM program on `", $hook, "`.")]
        #[lsm(hook = $hook)]
        pub fn $lsm(ctx: LsmContext) -> i32 {
            $body(Arguments(ctx.as_ptr()))
        }

        #[doc = concat!("fentry program on `", $function, "`.")]
        #[fentry(function = $function)]
        pub fn $fentry(ctx: FEntryContext) -> u32 {
            // An fentry program cannot refuse, and the verifier requires it to return 0.
            let _: i32 = $body(Arguments(ctx.as_ptr()));
            0
        }
    };
}

change_hook!("file_open", "security_file_open", lsm_file_open, fentry_file_open, hooks::open::file_open);
change_hook!(
    "file_permission",
    "security_file_permission",
    lsm_file_permission,
    fentry_file_permission,
    hooks::content::file_permission
);
change_hook!(
    "file_release",
    "security_file_release",
    lsm_file_release,
    fentry_file_release,
    hooks::content::file_release
);
change_hook!("mmap_file", "security_mmap_file", lsm_mmap_file, fentry_mmap_file, hooks::content::mmap_file);
change_hook!(
    "file_mprotect",
    "security_file_mprotect",
    lsm_file_mprotect,
    fentry_file_mprotect,
    hooks::content::file_mprotect
);
change_hook!(
    "file_ioctl",
    "security_file_ioctl",
    lsm_file_ioctl,
    fentry_file_ioctl,
    hooks::content::file_ioctl
);
change_hook!(
    "file_ioctl_compat",
    "security_file_ioctl_compat",
    lsm_file_ioctl_compat,
    fentry_file_ioctl_compat,
    hooks::content::file_ioctl_compat
);
change_hook!(
    "inode_setattr",
    "security_inode_setattr",
    lsm_inode_setattr,
    fentry_inode_setattr,
    hooks::attributes::inode_setattr
);
change_hook!(
    "inode_file_setattr",
    "security_inode_file_setattr",
    lsm_inode_file_setattr,
    fentry_inode_file_setattr,
    hooks::attributes::inode_file_setattr
);
change_hook!(
    "inode_setxattr",
    "security_inode_setxattr",
    lsm_inode_setxattr,
    fentry_inode_setxattr,
    hooks::attributes::inode_setxattr
);
change_hook!(
    "inode_removexattr",
    "security_inode_removexattr",
    lsm_inode_removexattr,
    fentry_inode_removexattr,
    hooks::attributes::inode_removexattr
);
change_hook!(
    "inode_set_acl",
    "security_inode_set_acl",
    lsm_inode_set_acl,
    fentry_inode_set_acl,
    hooks::attributes::inode_set_acl
);
change_hook!(
    "inode_remove_acl",
    "security_inode_remove_acl",
    lsm_inode_remove_acl,
    fentry_inode_remove_acl,
    hooks::attributes::inode_remove_acl
);
change_hook!(
    "inode_create",
    "security_inode_create",
    lsm_inode_create,
    fentry_inode_create,
    hooks::names::inode_create
);
change_hook!(
    "inode_mkdir",
    "security_inode_mkdir",
    lsm_inode_mkdir,
    fentry_inode_mkdir,
    hooks::names::inode_mkdir
);
change_hook!(
    "inode_mknod",
    "security_inode_mknod",
    lsm_inode_mknod,
    fentry_inode_mknod,
    hooks::names::inode_mknod
);
change_hook!(
    "inode_symlink",
    "security_inode_symlink",
    lsm_inode_symlink,
    fentry_inode_symlink,
    hooks::names::inode_symlink
);
change_hook!(
    "inode_link",
    "security_inode_link",
    lsm_inode_link,
    fentry_inode_link,
    hooks::names::inode_link
);
change_hook!(
    "inode_unlink",
    "security_inode_unlink",
    lsm_inode_unlink,
    fentry_inode_unlink,
    hooks::names::inode_unlink
);
change_hook!(
    "inode_rmdir",
    "security_inode_rmdir",
    lsm_inode_rmdir,
    fentry_inode_rmdir,
    hooks::names::inode_rmdir
);
change_hook!(
    "inode_rename",
    "security_inode_rename",
    lsm_inode_rename,
    fentry_inode_rename,
    hooks::names::inode_rename
);
change_hook!(
    "inode_readlink",
    "security_inode_readlink",
    lsm_inode_readlink,
    fentry_inode_readlink,
    hooks::open::inode_readlink
);
change_hook!(
    "bprm_creds_for_exec",
    "security_bprm_creds_for_exec",
    lsm_bprm_creds_for_exec,
    fentry_bprm_creds_for_exec,
    hooks::process::about_to_execute
);
change_hook!("sb_mount", "security_sb_mount", lsm_sb_mount, fentry_sb_mount, hooks::mounts::sb_mount);
change_hook!("sb_umount", "security_sb_umount", lsm_sb_umount, fentry_sb_umount, hooks::mounts::sb_umount);
change_hook!(
    "move_mount",
    "security_move_mount",
    lsm_move_mount,
    fentry_move_mount,
    hooks::mounts::move_mount
);
change_hook!(
    "sb_pivotroot",
    "security_sb_pivotroot",
    lsm_sb_pivotroot,
    fentry_sb_pivotroot,
    hooks::mounts::sb_pivotroot
);

/// Tracepoint program: stores each new process with its parent.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn process_fork(ctx: BtfTracePointContext) -> i32 {
    hooks::process::fork(Arguments(ctx.as_ptr()))
}

/// The same once more, for the calls for which the kernel skips the first program.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn process_fork_again(ctx: BtfTracePointContext) -> i32 {
    hooks::process::fork_again(Arguments(ctx.as_ptr()))
}

/// Tracepoint program: stores what a process executes, and reports the execution of managed files.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn process_exec(ctx: BtfTracePointContext) -> i32 {
    hooks::process::exec(Arguments(ctx.as_ptr()), false)
}

/// The same once more, for the calls for which the kernel skips the first program.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn process_exec_again(ctx: BtfTracePointContext) -> i32 {
    hooks::process::exec(Arguments(ctx.as_ptr()), true)
}

/// Tracepoint program: stores the paths of new control groups, which may be removed before the daemon needs them.
#[btf_tracepoint(function = "cgroup_mkdir")]
pub fn group_made(ctx: BtfTracePointContext) -> i32 {
    hooks::process::group_made(Arguments(ctx.as_ptr()))
}

/// fentry program, in both sets: reports block devices that are opened for writing.
#[fentry(function = "blkdev_open")]
pub fn fentry_blkdev_open(ctx: FEntryContext) -> u32 {
    hooks::devices::blkdev_open(Arguments(ctx.as_ptr()));
    0
}

/// fentry program, in both sets: reports processes that could switch all of these programs off.
#[fentry(function = "proc_sys_open")]
pub fn fentry_proc_sys_open(ctx: FEntryContext) -> u32 {
    hooks::tunables::proc_sys_open(Arguments(ctx.as_ptr()));
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The kernel gives several helpers only to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
