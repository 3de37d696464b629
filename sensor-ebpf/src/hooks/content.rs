//! Content: writes by descriptor, shared mappings, and ioctls that swap content or flags.

use super::open::MODE_WRITE;
use super::process;
use crate::kernel::{self, Arguments, Pointer};
use crate::managed::{self, Attempt};
use crate::who;
use sensor_common::op::{Operation, ROLE_FILE};

/// `MAY_WRITE` (include/linux/fs.h).
const MAY_WRITE: u64 = 2;
/// `FMODE_PWRITE` (include/linux/fs.h).
const MODE_PWRITE: u32 = 0x10;
/// `PROT_WRITE`, `PROT_EXEC` and `MAP_SHARED`/`MAP_SHARED_VALIDATE` (asm-generic/mman-common.h).
const PROT_WRITE: u64 = 2;
const PROT_EXEC: u64 = 4;
const MAP_SHARED: u64 = 1;
/// `VM_SHARED` (include/linux/mm.h).
const VM_SHARED: u64 = 8;

/// Counts `operation` if `file`'s inode is a managed file.
#[inline(always)]
fn attempt_on(file: Pointer, operation: Operation, detail: u64) -> i32 {
    attempt_with_check(file, operation, detail, |_| false)
}

/// The same. `is_unpermitted` gives whether the kernel refuses the operation to the current task after the hook.
#[inline(always)]
fn attempt_with_check(
    file: Pointer,
    operation: Operation,
    detail: u64,
    is_unpermitted: impl FnOnce(Pointer) -> bool,
) -> i32 {
    let Some(inode) = file.follow(kernel::file_inode()).non_null() else { return 0 };
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    if unsafe { (*entry).roles } & ROLE_FILE == 0 {
        return 0;
    }
    managed::record_attempt(
        entry,
        &Attempt { unpermitted: is_unpermitted(inode), ..Attempt::of(inode, operation, detail) },
    )
}

/// Counts an ioctl. On a file that is not open for writing it needs the owner or a capability, which the kernel checks after the hook.
#[inline(always)]
fn controlled(file: Pointer, command: u64) -> i32 {
    attempt_with_check(file, Operation::Ioctl, command, |inode| {
        file.load::<u32>(kernel::file_mode()) & MODE_WRITE == 0 && who::has_no_right(inode)
    })
}

/// `file_permission(file, mask)`: attached only while a managed file has writers.
#[inline(always)]
pub(crate) fn file_permission(args: Arguments) -> i32 {
    let mask = args.get(kernel::arg_file_permission_mask());
    // SAFETY: a single jump. The compiler would make two instructions of the test, and each read on the node would run both.
    unsafe {
        core::arch::asm!("if {0} & {1} goto {2}", in(reg) mask, const MAY_WRITE, label { return write(args) }, options(nostack, nomem));
    }
    0
}

/// A write, splice, fallocate or another operation with this hook.
#[inline(always)]
fn write(args: Arguments) -> i32 {
    let Some(file) = args.pointer(kernel::arg_file_permission_file()) else { return 0 };
    // A regular file always has this mode, and a pipe, a socket or a terminal never.
    if file.load::<u32>(kernel::file_mode()) & MODE_PWRITE == 0 {
        return 0;
    }
    second_part(file.0) as i32
}

/// The second part of [`write`]. It is not inlined, so that the program saves no registers for a read.
#[inline(never)]
fn second_part(file: *const u8) -> i64 {
    i64::from(attempt_on(Pointer(file), Operation::Write, 0))
}

/// `file_release(file)`: a task drops the last reference to an open file. Attached together with `file_permission`.
#[inline(always)]
pub(crate) fn file_release(args: Arguments) -> i32 {
    let Some(file) = args.pointer(kernel::arg_file_release_file()) else { return 0 };
    let mode: u32 = file.load(kernel::file_mode());
    if mode & MODE_WRITE == 0 {
        return 0;
    }
    attempt_on(file, Operation::Release, 0)
}

/// `mmap_file(file, prot, flags)`: null for anonymous memory.
#[inline(always)]
pub(crate) fn mmap_file(args: Arguments) -> i32 {
    let prot = args.get(kernel::arg_mmap_file_prot());
    if prot & PROT_EXEC == 0 && !is_shared_for_writing(prot, args.get(kernel::arg_mmap_file_flags())) {
        return 0;
    }
    let Some(file) = args.pointer(kernel::arg_mmap_file_file()) else { return 0 };
    mapped(file.0, prot, args.get(kernel::arg_mmap_file_flags())) as i32
}

#[inline(always)]
fn is_shared_for_writing(prot: u64, flags: u64) -> bool {
    prot & PROT_WRITE != 0 && flags & MAP_SHARED != 0
}

/// The second part of [`mmap_file`]. It is not inlined, so that the program saves no registers for a mapping of another kind.
#[inline(never)]
fn mapped(file: *const u8, prot: u64, flags: u64) -> i64 {
    let file = Pointer(file);
    if prot & PROT_EXEC != 0 {
        process::loaded(file);
    }
    // After this hook the kernel refuses such a mapping of a file that is not open for writing.
    if !is_shared_for_writing(prot, flags) || file.load::<u32>(kernel::file_mode()) & MODE_WRITE == 0 {
        return 0;
    }
    i64::from(attempt_on(file, Operation::Map, prot))
}

/// `file_mprotect(vma, prot)`.
#[inline(always)]
pub(crate) fn file_mprotect(args: Arguments) -> i32 {
    let prot = args.get(kernel::arg_file_mprotect_prot());
    if prot & PROT_WRITE == 0 {
        return 0;
    }
    let Some(vma) = args.pointer(kernel::arg_file_mprotect_vma()) else { return 0 };
    let flags: u64 = vma.load(kernel::vma_flags());
    if flags & VM_SHARED == 0 {
        return 0;
    }
    let Some(file) = vma.follow(kernel::vma_file()).non_null() else { return 0 };
    attempt_on(file, Operation::Protect, prot)
}

/// Whether an ioctl command can change a file's content, flags or blocks. The type byte (bits 8 to 15) excludes terminals and
/// devices. `f` is for file systems (FS_IOC_SETFLAGS, ext4, verity, fscrypt), `v` for FS_IOC_SETVERSION, `X` for xfs and the
/// generic FSSETXATTR and FIFREEZE, 0x94 for btrfs and FICLONE, 0xf5 for f2fs.
#[inline(always)]
fn changes_files(command: u64) -> bool {
    matches!((command >> 8) & 0xff, 0x66 | 0x76 | 0x58 | 0x94 | 0xf5)
}

/// `file_ioctl(file, cmd)`.
#[inline(always)]
pub(crate) fn file_ioctl(args: Arguments) -> i32 {
    let command = args.get(kernel::arg_file_ioctl_cmd()) & 0xffff_ffff;
    if !changes_files(command) || reads_only(command) {
        return 0;
    }
    let Some(file) = args.pointer(kernel::arg_file_ioctl_file()) else { return 0 };
    controlled(file, command)
}

/// `file_ioctl_compat(file, cmd)`: the same for a 32-bit process, whose commands have other numbers.
#[inline(always)]
pub(crate) fn file_ioctl_compat(args: Arguments) -> i32 {
    let command = args.get(kernel::arg_file_ioctl_compat_cmd()) & 0xffff_ffff;
    if !changes_files(command) || reads_only(command) {
        return 0;
    }
    let Some(file) = args.pointer(kernel::arg_file_ioctl_compat_file()) else { return 0 };
    controlled(file, command)
}

/// Commands of those families that only read, and that tools issue often: FS_IOC_GETFLAGS,
/// FS_IOC_GETVERSION, both also with 32 bits, FS_IOC_FIEMAP, FS_IOC_FSGETXATTR (include/uapi/linux/fs.h), and FS_IOC_MEASURE_VERITY, by which
/// an observation asks for a seal (include/uapi/linux/fsverity.h).
#[inline(always)]
fn reads_only(command: u64) -> bool {
    matches!(
        command,
        0x8008_6601 | 0x8008_7601 | 0x8004_6601 | 0x8004_7601 | 0xc020_660b | 0x801c_581f | 0xc004_6686
    )
}
