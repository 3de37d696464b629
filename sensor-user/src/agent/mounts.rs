//! The mount table, compared to see where something was mounted or unmounted.
//!
//! In: `/proc/self/mountinfo`. Out: mount points that differ. Needed because some of the calls that
//! change mounts fire no hook at all (`mount_setattr`, propagation).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Mount points with what is on top there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MountTable(BTreeMap<PathBuf, Vec<String>>);

impl MountTable {
    /// Reads the daemon's own mount namespace, which sees the host's mounts.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mountinfo")?))
    }

    /// Parses the text of a mountinfo file (proc(5)). Lines that are none are left out.
    pub fn parse(text: &str) -> Self {
        let mut table: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
        for line in text.lines() {
            // id parent major:minor root point options ... - type source options
            let mut fields = line.split(' ');
            let (Some(id), Some(_), Some(device), Some(root), Some(point), Some(options)) =
                (fields.next(), fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let what = format!("{id} {device} {root} {options}");
            table.entry(unescape(point).into()).or_default().push(what);
        }
        Self(table)
    }

    /// Mount points at which this table and an other one differ.
    pub fn differences(&self, other: &Self) -> Vec<PathBuf> {
        let mut points: Vec<&PathBuf> = self.0.keys().chain(other.0.keys()).collect();
        points.sort();
        points.dedup();
        points.into_iter().filter(|point| self.0.get(*point) != other.0.get(*point)).cloned().collect()
    }
}

/// Undoes the octal escapes of blanks, newlines and backslashes.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let digits: Vec<u8> = bytes.by_ref().take(3).collect();
        let value = std::str::from_utf8(&digits).ok().and_then(|text| u8::from_str_radix(text, 8).ok());
        match value {
            Some(value) => out.push(value),
            None => out.extend([b'\\'].into_iter().chain(digits)),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 0:20 / / rw - tmpfs tmpfs rw\n23 22 0:21 / /proc rw,nosuid - proc proc rw\n";

    #[test]
    fn a_mount_on_top_and_a_changed_option_are_differences() {
        let before = MountTable::parse(TABLE);
        let over = MountTable::parse(&format!("{TABLE}30 22 0:20 /etc/b /etc/a rw - tmpfs tmpfs rw\n"));
        assert_eq!(before.differences(&over), [PathBuf::from("/etc/a")]);
        let read_only = MountTable::parse(&TABLE.replace("/proc rw", "/proc ro"));
        assert_eq!(before.differences(&read_only), [PathBuf::from("/proc")]);
        assert_eq!(before.differences(&MountTable::parse(TABLE)), Vec::<PathBuf>::new());
    }

    #[test]
    fn escaped_blanks_are_read_as_blanks() {
        let table = MountTable::parse("1 0 0:1 / /a\\040b rw - x y z\n");
        assert_eq!(table.differences(&MountTable::default()), [PathBuf::from("/a b")]);
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        assert_eq!(MountTable::parse("nonsense\n\n1 2 3\n"), MountTable::default());
    }
}
