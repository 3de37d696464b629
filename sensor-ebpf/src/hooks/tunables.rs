//! `kernel.ftrace_enabled`: a process that writes 0 to it switches these programs off.
//!
//! Each instance of procfs has its own inode for it, on its own device. So the program is attached to the function that opens a
//! sysctl. It sees every mount of procfs, and other opens cost nothing.

use super::open::{MODE_WRITE, write_evidence, writers};
use crate::kernel::{self, Arguments, MISSING, Pointer, read};
use crate::managed::{self, Attempt};
use crate::maps::MANAGED;
use crate::who;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use core::ffi::c_void;
use sensor_common::map::{FTRACE_ENABLED_KEY, OBSERVED_WRITERS};
use sensor_common::op::{OBSERVE_OPEN_FLAGS, Operation};

/// Most inodes of one sysctl table that the program tests. If there are more, it reports that the tunable may be open.
const SIBLINGS: u32 = 128;

/// `proc_sys_open(inode, filp)`.
#[inline(always)]
pub(crate) fn proc_sys_open(args: Arguments) {
    let Some(file) = args.pointer(kernel::arg_proc_sys_open_filp()) else { return };
    let flags: u32 = file.load(kernel::file_flags());
    let writes = flags.wrapping_add(1) & MODE_WRITE != 0;
    if !writes && flags & OBSERVE_OPEN_FLAGS != OBSERVE_OPEN_FLAGS {
        return;
    }
    let Some(dentry) = file.follow(kernel::file_path() + kernel::path_dentry()).non_null() else { return };
    if !is_ftrace_enabled(dentry) {
        return;
    }
    let Some(inode) = file.follow(kernel::file_inode()).non_null() else { return };
    let Some(entry) = MANAGED.get_ptr_mut(FTRACE_ENABLED_KEY) else { return };
    if writes {
        managed::record_attempt(entry, &Attempt::of(inode, Operation::OpenTamper, u64::from(flags)));
    } else if who::must_answer() {
        write_evidence(entry, || writers_anywhere(inode));
    }
}

/// Whether a sysctl's name is `ftrace_enabled`, which no other sysctl has.
#[inline(always)]
fn is_ftrace_enabled(dentry: Pointer) -> bool {
    /// The mask for the end of the name with its zero, without the byte after that.
    const END: u64 = u64::from_le_bytes(*b"\xff\xff\xff\xff\xff\xff\xff\0");
    let name: u64 = dentry.load(kernel::dentry_name() + kernel::qstr_name());
    read::<u64>(name, 0) == u64::from_le_bytes(*b"ftrace_e")
        && read::<u64>(name, 8) & END == u64::from_le_bytes(*b"nabled\0\0")
}

/// [`OBSERVED_WRITERS`] if the tunable is open for writing through any instance of procfs. The kernel keeps a list of the inodes
/// of a sysctl table (`ctl_table_header.inodes`), and an open inode stays in it.
#[inline(always)]
fn writers_anywhere(inode: Pointer) -> u32 {
    let own = writers(inode);
    let fields = [
        kernel::proc_sysctl(),
        kernel::proc_sysctl_entry(),
        kernel::proc_siblings(),
        kernel::proc_vfs_inode(),
        kernel::sysctl_inodes(),
    ];
    if own != 0 || fields.contains(&MISSING) {
        return own;
    }
    let this = (inode.0 as u64).wrapping_sub(u64::from(kernel::proc_vfs_inode()));
    let tunable: u64 = read(this, kernel::proc_sysctl_entry());
    let table: u64 = read(this, kernel::proc_sysctl());
    let mut node: u64 = read(table, kernel::sysctl_inodes());
    let mut found = 0;
    for _ in 0..SIBLINGS {
        if node == 0 {
            return if found == 0 { 0 } else { OBSERVED_WRITERS };
        }
        let sibling = node.wrapping_sub(u64::from(kernel::proc_siblings()));
        let count: u32 = word(sibling, kernel::proc_vfs_inode() + kernel::inode_writecount());
        found |= u64::from(count) & same(word(sibling, kernel::proc_sysctl_entry()), tunable);
        node = word(node, 0);
    }
    OBSERVED_WRITERS
}

/// All bits if the two are equal, and none otherwise. It has no branch: with two paths in each iteration older verifiers reach
/// their limit.
#[inline(always)]
fn same(one: u64, other: u64) -> u64 {
    let apart = one ^ other;
    let mut negated = apart;
    // SAFETY: it negates one register. The compiler would replace a negation that it recognises by a branch.
    unsafe { core::arch::asm!("{0} = -{0}", inout(reg) negated, options(nostack, nomem)) };
    !(((apart | negated) as i64 >> 63) as u64)
}

/// A field of a kernel structure, like [`read`], for the loop above. The helper writes zeroes for what it cannot read.
#[inline(always)]
fn word<T: Default>(base: u64, offset: u32) -> T {
    let mut value = T::default();
    // SAFETY: the helper checks the address itself, and writes as many bytes as the value has.
    unsafe {
        bpf_probe_read_kernel(
            (&raw mut value).cast(),
            size_of::<T>() as u32,
            (base + u64::from(offset)) as *const c_void,
        );
    }
    value
}
