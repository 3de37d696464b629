//! The capabilities of a running process.
//!
//! In: a process id. Out: the sets of each of its threads, by the kernel's own account.

use std::fs;

use anyhow::{Context, Result, ensure};

/// Checks that each thread of a process has exactly these capabilities, by their numbers in `linux/capability.h`, and can gain none.
///
/// # Errors
/// The set that differs, or the process has ended.
pub fn are_exactly(pid: &str, numbers: &[u32]) -> Result<String> {
    let held = numbers.iter().fold(0_u64, |set, number| set | 1 << number);
    let mut threads = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        for (field, wanted) in
            [("CapInh", 0), ("CapPrm", held), ("CapEff", held), ("CapBnd", held), ("CapAmb", 0)]
        {
            let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
            let found = u64::from_str_radix(line.with_context(|| format!("no {field}"))?, 16)?;
            ensure!(found == wanted, "{field} is {found:016x}, not {wanted:016x}");
        }
        ensure!(status.contains("NoNewPrivs:\t1"), "programs that it runs could gain privileges");
        threads += 1;
    }
    ensure!(threads > 0, "the process {pid} has no thread");
    Ok(format!("{held:016x} in {threads} threads"))
}
