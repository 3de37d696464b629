//! The pages of the program's file that only the start needs.
//!
//! In: the kernel's list of the daemon's mappings. Out: fewer resident pages. A start reads configs, kernel types and kernel programs,
//! and runs code that the daemon needs seldom afterwards. The kernel keeps these pages mapped, and counts them as memory of the
//! daemon, for as long as no other program needs the memory. What is needed again comes back from the page cache.

use nix::sys::mman::{MmapAdvise, madvise};
use std::{fs, io, ops::Range, ptr::NonNull};

/// One block of lines for each mapping, with its size by kind of page. Source: `proc_pid_smaps(5)`.
const MAPPINGS: &str = "/proc/self/smaps";

/// Unmaps the pages of the program's file that the daemon only reads.
///
/// # Errors
/// The list of mappings cannot be read, or the kernel refuses.
pub(super) fn give_back() -> io::Result<()> {
    let mappings = fs::read_to_string(MAPPINGS)?;
    let code = give_back as *const () as usize;
    for range in unchanged(&mappings, code) {
        unmap(&range)?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "no crate has this call as a safe function")]
fn unmap(range: &Range<usize>) -> io::Result<()> {
    let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start)) else { return Ok(()) };
    // SAFETY: the range is a mapping of the program's file that is not writable and has no page that differs from the file. The next
    // access to one of its pages reads the same bytes from the file, which the kernel lets nobody write while it runs.
    unsafe { madvise(start, range.len(), MmapAdvise::MADV_DONTNEED) }?;
    Ok(())
}

/// One mapping.
#[derive(Default)]
struct Mapping<'a> {
    range: Range<usize>,
    is_read_only: bool,
    /// Device and inode.
    file: (&'a str, &'a str),
    /// Kilobytes of pages that differ from the file: in memory, and swapped out. `None` until the list names them.
    changed: [Option<u64>; 2],
}

/// The mappings of the file that has the code at this address, as far as they are not writable and no page differs from the file. A page
/// with pointers that the program adapted at its start differs.
fn unchanged(mappings: &str, code: usize) -> Vec<Range<usize>> {
    let mut all: Vec<Mapping<'_>> = Vec::new();
    for line in mappings.lines() {
        if let Some(mapping) = head(line) {
            all.push(mapping);
        } else if let (Some(mapping), Some((field, value))) = (all.last_mut(), line.split_once(':')) {
            let kilobytes = || value.trim().strip_suffix(" kB")?.parse().ok();
            match field {
                "Anonymous" => mapping.changed[0] = kilobytes(),
                "Swap" => mapping.changed[1] = kilobytes(),
                _ => {}
            }
        }
    }
    let Some(own) = all.iter().find(|mapping| mapping.range.contains(&code)).map(|mapping| mapping.file)
    else {
        return Vec::new();
    };
    let is_unchanged = |mapping: &Mapping<'_>| {
        mapping.is_read_only && mapping.file == own && mapping.changed == [Some(0), Some(0)]
    };
    all.into_iter().filter(is_unchanged).map(|mapping| mapping.range).collect()
}

/// The first line of a block: `start-end permissions offset device inode path`.
fn head(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let permissions = words.next()?;
    let file = (words.nth(1)?, words.next()?);
    let is_read_only =
        permissions.starts_with('r') && permissions.get(1..2) == Some("-") && permissions.ends_with('p');
    Some(Mapping { range, is_read_only, file, changed: [None; 2] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::os::unix::fs::FileExt as _;

    const LIST: &str = "\
1000-2000 r--p 00000000 fe:01 77   /usr/bin/holdfast
Rss:                  64 kB
Anonymous:             0 kB
Swap:                  0 kB
2000-5000 r-xp 00001000 fe:01 77   /usr/bin/holdfast
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
5000-6000 r--p 00004000 fe:01 77   /usr/bin/holdfast
Anonymous:             4 kB
Swap:                  0 kB
6000-7000 r--p 00005000 fe:01 77   /usr/bin/holdfast
Anonymous:             0 kB
Swap:                  4 kB
7000-8000 rw-p 00006000 fe:01 77   /usr/bin/holdfast
Anonymous:             0 kB
Swap:                  0 kB
8000-9000 r--p 00000000 fe:01 78   /var/lib/holdfast/an index
Anonymous:             0 kB
Swap:                  0 kB
9000-a000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
a000-b000 r--p 00007000 fe:01 77   /usr/bin/holdfast
Anonymous:             0 kB
b000-c000 r--s 00008000 fe:01 77   /usr/bin/holdfast
Anonymous:             0 kB
Swap:                  0 kB
";

    #[test]
    fn only_read_only_mappings_of_the_program_without_a_changed_page_are_given_back() {
        assert_eq!(unchanged(LIST, 0x2400), [0x1000..0x2000, 0x2000..0x5000]);
        assert!(unchanged(LIST, 0xf000).is_empty());
    }

    /// Nothing else is near its middle, so no other thread has the kernel map that.
    static CONSTANT: [u8; 1 << 20] = [7; 1 << 20];

    /// Whether the page is in the program's page table. Source: bit 63 of an entry of `proc_pid_pagemap(5)`.
    fn is_mapped(byte: &u8) -> bool {
        let mut entry = [0; 8];
        let page = std::ptr::from_ref(byte).addr() as u64 / 4096;
        fs::File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, page * 8).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    fn a_page_of_the_program_leaves_the_memory_and_comes_back_with_the_same_bytes() {
        let byte = &CONSTANT[CONSTANT.len() / 2];
        assert_eq!(*black_box(byte), 7);
        assert!(is_mapped(byte));
        give_back().unwrap();
        assert!(!is_mapped(byte));
        assert_eq!(*black_box(byte), 7);
    }
}
