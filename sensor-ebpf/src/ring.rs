//! Sends records of changes to the rings, from which the daemon reads them.

use crate::inode::RecordInode;
use crate::kernel::{self, Pointer, current, read};
use crate::log;
use crate::maps::{self, ALARMS, CHANGES};
use crate::who;
use aya_ebpf::helpers::{bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str_bytes};
use sensor_common::limits::NAME_BYTES;
use sensor_common::map::{Counter, Managed};
use sensor_common::op::{RECORD_IN_DIRECTORY, RECORD_NAME_CUT, ROLE_TAMPER};
use sensor_common::record::ChangeRecord;

/// Sends a record. Without room in the ring it marks the entry and counts the loss; the dirty bit stays either way.
/// `half_ring_only`: the record may not use the second half of the ring.
///
/// # Safety
/// `entry` must come from a map look-up in this program run.
#[inline(always)]
pub(crate) unsafe fn push(
    entry: *mut Managed,
    operation: u32,
    detail: u64,
    dentry: Pointer,
    recorded_inode: RecordInode,
    flags: u16,
    half_ring_only: bool,
) {
    // SAFETY: the caller took `entry` from a map look-up in this program run.
    let alarms = unsafe { (*entry).roles } & ROLE_TAMPER != 0;
    let slot = if alarms {
        ALARMS.reserve::<ChangeRecord>(0)
    } else if half_ring_only && maps::is_half_full() {
        None
    } else {
        CHANGES.reserve::<ChangeRecord>(0)
    };
    let Some(mut slot) = slot else {
        // It marks the entry before it counts, so that a daemon that sees the count finds the mark.
        // SAFETY: as above. The word is written whole. If two records are lost at once, either value is correct.
        unsafe {
            let counter = core::ptr::read_volatile(&raw const (*entry).counter);
            core::ptr::write_volatile(&raw mut (*entry).lost, counter as u32);
            log::log_loss(u64::from((*entry).id), u64::from(operation));
        }
        maps::count(Counter::Lost);
        return;
    };
    let record = slot.as_mut_ptr();
    // SAFETY: the reservation is exactly one record. Every field is written below; of the name, `name_length` bytes.
    unsafe {
        (*record).time_ns = bpf_ktime_get_boot_ns();
        (*record).counter = core::ptr::read_volatile(&raw const (*entry).counter);
        (*record).detail = detail;
        (*record).id = (*entry).id;
        (*record).ino = recorded_inode.key.ino;
        (*record).dev = recorded_inode.key.dev;
        (*record).volume = recorded_inode.key.volume;
        (*record).generation = recorded_inode.generation;
        (*record).operation = operation as u16;
        (*record).padding = 0;
        let mut flags = flags | who::describe(record);
        let executions = read(current(), kernel::task_executions());
        (*record).exec_id = who::execution((*record).tgid, (*record).start_ns, executions);
        let mut length = 0u16;
        if dentry.is_null() {
            (*record).name[0] = 0;
        } else {
            flags |= RECORD_IN_DIRECTORY;
            let name: *const u8 = dentry.load(kernel::dentry_name() + kernel::qstr_name());
            if let Ok(read) = bpf_probe_read_kernel_str_bytes(name, &mut (*record).name) {
                length = read.len() as u16;
                if read.len() >= NAME_BYTES - 1 {
                    flags |= RECORD_NAME_CUT;
                }
            }
        }
        (*record).name_length = length;
        (*record).flags = flags;
    }
    slot.submit(0);
    maps::count(Counter::Pushed);
}
