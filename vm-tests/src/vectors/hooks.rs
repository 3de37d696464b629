//! The operations in the records of each hook.
//!
//! In: the name of a hook. Out: the words that its records in the forensic log may hold.

use sensor_common::op::Operation;

/// The operations of a hook; empty for an unknown name.
fn operations(hook: &str) -> &'static [Operation] {
    match hook {
        "file_open" => &[Operation::OpenWrite],
        "file_permission" => &[Operation::Write],
        "file_release" => &[Operation::Release],
        "mmap_file" => &[Operation::Map],
        "file_mprotect" => &[Operation::Protect],
        "file_ioctl" | "file_ioctl_compat" => &[Operation::Ioctl],
        "inode_setattr" => &[Operation::SetAttributes],
        "inode_file_setattr" => &[Operation::SetFlags],
        "inode_setxattr" => &[Operation::SetXattr],
        "inode_removexattr" => &[Operation::RemoveXattr],
        "inode_set_acl" => &[Operation::SetAcl],
        "inode_remove_acl" => &[Operation::RemoveAcl],
        "inode_create" => &[Operation::Create],
        "inode_mkdir" => &[Operation::MakeDirectory],
        "inode_mknod" => &[Operation::MakeNode],
        "inode_symlink" => &[Operation::Symlink],
        "inode_link" => &[Operation::Link],
        "inode_unlink" => &[Operation::Unlink],
        "inode_rmdir" => &[Operation::RemoveDirectory],
        "inode_rename" => &[Operation::Rename, Operation::RenameOver],
        "sb_mount" => &[Operation::Mount],
        "sb_umount" => &[Operation::Unmount],
        "move_mount" => &[Operation::MoveMount],
        "sb_pivotroot" => &[Operation::PivotRoot],
        "proc_sys_open" => &[Operation::OpenTamper],
        "sched_process_exec" => &[Operation::Exec],
        _ => &[],
    }
}

/// The words that records of these hooks may hold.
pub fn operations_of(hooks: &[&str]) -> Vec<&'static str> {
    hooks.iter().flat_map(|hook| operations(hook)).map(|operation| operation.name()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;

    #[test]
    fn every_hook_in_the_table_has_operations() {
        for vector in all() {
            for hook in vector.hooks {
                assert!(!operations(hook).is_empty(), "{}: {hook} is no hook", vector.id);
            }
        }
    }
}
