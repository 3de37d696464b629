//! The list of the ways in which a managed thing can change, by number.
//!
//! In: nothing. Out: each number with its description. For every number the table of vectors has the code with the expected
//! report, the scenario that shows it, or why no code performs it.

/// Every number. Missing numbers were dropped or merged with others.
pub const NUMBERS: &[(u16, &str)] = &[
    (1, "a file opened and written to"),
    (2, "a file emptied as it is opened"),
    (3, "a file cut by its path"),
    (4, "a file cut by its descriptor"),
    (5, "room in a file given, taken or moved"),
    (8, "one file sent into another"),
    (9, "a pipe's pages moved into a file"),
    (10, "a range copied or shared from another file"),
    (13, "asynchronous writes of the older kind"),
    (14, "writes by io_uring"),
    (15, "opens, renames, links and removals by io_uring"),
    (17, "io_uring's polling thread"),
    (18, "commands to a device by io_uring"),
    (19, "a shared writable mapping"),
    (20, "a shared mapping made writable later"),
    (22, "a descriptor from before the sensor's start"),
    (23, "a descriptor given to another process"),
    (26, "another process's memory, as a file"),
    (27, "another process's memory, by system call"),
    (28, "memory that devices and page faults fill"),
    (29, "faults of the kernel"),
    (30, "a file opened by its handle"),
    (31, "a hard link"),
    (33, "another object renamed over a file, or the file away"),
    (34, "two names exchanged"),
    (36, "a directory above renamed"),
    (37, "a file removed, and made anew"),
    (38, "names made in a directory"),
    (41, "mode"),
    (42, "owner"),
    (43, "times"),
    (44, "extended attributes"),
    (45, "access control lists"),
    (47, "extended attributes taken away"),
    (48, "labels set by the kernel itself"),
    (49, "flags of an inode"),
    (51, "verity and encryption"),
    (52, "privileges that a write takes away"),
    (53, "a file exchanged with the boot loader's"),
    (54, "extents moved between files"),
    (55, "compressed data written as it is"),
    (56, "subvolumes and snapshots"),
    (57, "something mounted over it"),
    (59, "the newer calls that mount"),
    (60, "attributes and owners of a mount"),
    (61, "a mount made read-only, or writable again"),
    (62, "something unmounted"),
    (64, "another root, another mount namespace"),
    (67, "another path to the same file"),
    (68, "the block device beneath"),
    (69, "devices made of files and of other devices"),
    (70, "commands to a disk"),
    (71, "tools that repair file systems"),
    (72, "a file to swap to"),
    (74, "a server of this host's files"),
    (75, "another host's changes of a shared file system"),
    (76, "a file system that a process serves"),
    (77, "content that is filled in when it is asked for"),
    (78, "programs switched off by the kernel's tunable"),
    (79, "the daemon stopped or killed, its ring filled"),
    (80, "maps changed, pins removed"),
    (81, "other programs in the kernel against ours"),
    (82, "a kernel module, another kernel"),
    (83, "changes while nothing of ours runs"),
    (86, "actors that are hard to name"),
    (88, "tricks that leave the file as it is"),
    (89, "attributes that programs in the kernel set"),
    (90, "names that are strange"),
    (92, "execution"),
];

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;
    use std::collections::BTreeSet;

    fn number(id: &str) -> u16 {
        let digits: String = id.chars().skip(1).take_while(char::is_ascii_digit).collect();
        digits.parse().expect("an id is V and a number")
    }

    #[test]
    fn the_table_has_a_row_for_every_number_and_no_other() {
        let listed: BTreeSet<u16> = NUMBERS.iter().map(|(number, _)| *number).collect();
        let coded: BTreeSet<u16> = all().map(|vector| number(vector.id)).collect();
        assert_eq!(listed.len(), NUMBERS.len(), "a number is listed twice");
        assert_eq!(coded, listed);
    }
}
