//! `/proc/PID/stat`, and users, groups and process-id namespaces in `/proc/PID/status` (proc(5)).
//!
//! In: the bytes of the files. Out: the fields that attribution uses.

/// Fields of a process's `stat`. Each execution changes the addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The first 15 bytes of the program's name. The process may set any other name.
    pub comm: String,
    /// Process id of the parent.
    pub parent: u32,
    /// Device number of the controlling terminal, in the kernel's encoding.
    pub terminal: u32,
    /// Start time in clock ticks since boot.
    pub start: u64,
    /// Start addresses of code, stack, arguments and environment; all 0 if the reader may not see them.
    pub addresses: [u64; 4],
}

impl Stat {
    /// Reads the file. The name in parentheses may contain parentheses and blanks, so it ends at the last parenthesis. `None` if
    /// the text is cut.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let (front, rest) = text.rsplit_once(')')?;
        let (_, comm) = front.split_once('(')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Field 0 is the state, the first one after the name.
        Some(Self {
            comm: comm.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            terminal: fields.get(4)?.parse::<i32>().ok()?.cast_unsigned(),
            start: fields.get(19)?.parse().ok()?,
            addresses: [23, 25, 45, 47]
                .map(|n| fields.get(n).and_then(|field| field.parse().ok()).unwrap_or(0)),
        })
    }

    /// Whether another execution would change the addresses. Kernel threads, and processes whose addresses may not be read, have
    /// none.
    pub fn shows_executions(&self) -> bool {
        self.addresses.iter().all(|address| *address > 1)
    }
}

/// The users of a process: the real, effective and saved one, and that of the file system. In: the bytes of `/proc/PID/status`. `None` if the text
/// is cut. The kernel escapes line breaks in the process's name, so no process can add a line.
pub fn users(status: &[u8]) -> Option<[u32; 4]> {
    numbers(status, "Uid:")
}

/// The groups of a process, in the order of [`users`]. `None` if the text is cut.
pub fn groups(status: &[u8]) -> Option<[u32; 4]> {
    numbers(status, "Gid:")
}

/// Whether a process is in a process-id namespace below that of the procfs: `NSpid` has a number for each of these namespaces. `None` without that
/// line. In: as for [`users`].
pub fn is_in_nested_pid_namespace(status: &[u8]) -> Option<bool> {
    Some(all_numbers(status, "NSpid:")?.len() > 1)
}

fn numbers(status: &[u8], key: &str) -> Option<[u32; 4]> {
    all_numbers(status, key)?.try_into().ok()
}

fn all_numbers(status: &[u8], key: &str) -> Option<Vec<u32>> {
    let text = String::from_utf8_lossy(status);
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_whitespace().map_while(|number| number.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_of_a_process_are_all_four() {
        let status = b"Name:\tUid: 7\nUmask:\t0022\nUid:\t0\t1000\t0\t1001\nGid:\t5\t5\t5\t5\n";
        assert_eq!(users(status), Some([0, 1000, 0, 1001]));
        for cut in [&b""[..], b"Name:\tx\n", b"Uid:\t0\t0\t0\n", b"Uid:\t0\t0\t0\tx\n"] {
            assert_eq!(users(cut), None);
        }
    }

    #[test]
    fn a_process_with_numbers_in_two_namespaces_is_in_a_nested_one() {
        let of = |line: &str| is_in_nested_pid_namespace(format!("Name:\tNSpid: 1 2\n{line}").as_bytes());
        assert_eq!((of("NSpid:\t7\n"), of("NSpid:\t7\t1\n"), of("")), (Some(false), Some(true), None));
    }
}
