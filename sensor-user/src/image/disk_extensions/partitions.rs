//! The partitions of a disk image that belong to an extension.
//!
//! In: the lines of `partx` about the image. Out: where the file systems for `/` and `/usr` are in it. The types are those of the Discoverable
//! Partitions Specification (UAPI.2), as systemd takes them.

use super::programs::printed;
use std::{env::consts::ARCH, path::Path, process::Command};

/// The program of util-linux that reads tables of partitions.
const PARTX: &str = "partx";
/// Bytes of the sectors that it counts, whatever those of the disk are.
const SECTOR: u64 = 512;
/// Length of a type in a GPT. Types of other tables are numbers.
const TYPE_LENGTH: usize = 36;
/// A processor, and the types of its partitions for `/` and `/usr`.
const TYPES: [(&str, &str, &str); 2] = [
    ("x86_64", "4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "8484680c-9521-48c6-9c11-b0720656f69e"),
    ("aarch64", "b921b045-1df0-41c3-af44-4c6f280d3fae", "b0e01050-ee5f-4390-949a-9101b17104e9"),
];

/// A partition with a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Partition {
    /// Where it belongs: the empty text for the root directory, or `usr`.
    pub(super) place: &'static str,
    /// Its first byte.
    pub(super) start: u64,
    /// Its bytes.
    pub(super) size: u64,
}

/// The partitions of an image, the one for the root directory first. `None` without a GPT: then the image is a file system.
///
/// # Errors
/// No partition, or several, for one place.
pub(super) fn of_image(image: &Path) -> Result<Option<Vec<Partition>>, String> {
    let columns = ["--show", "--noheadings", "--output", "TYPE,START,SECTORS", "--"];
    match printed(Command::new(PARTX).args(columns).arg(image)) {
        Ok(lines) => of_table(&lines, ARCH),
        // It found no table, or the host does not have the program. `mount` gives the reason if it cannot read the image either.
        Err(_) => Ok(None),
    }
}

/// The same, of the lines that `partx` prints, for a processor.
fn of_table(lines: &str, processor: &str) -> Result<Option<Vec<Partition>>, String> {
    let rows = || lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    if !rows().any(|row| row.first().is_some_and(|kind| kind.len() == TYPE_LENGTH)) {
        return Ok(None);
    }
    let types = TYPES.iter().find(|(name, ..)| *name == processor);
    let mut found: Vec<Partition> = Vec::new();
    for (kind, place) in types.into_iter().flat_map(|(_, root, usr)| [(root, ""), (usr, "usr")]) {
        let of_kind = rows().filter(|row| row.first().is_some_and(|first| first.eq_ignore_ascii_case(kind)));
        for row in of_kind {
            let number = |column: usize| row.get(column).and_then(|text| text.parse::<u64>().ok());
            let bytes = |column: usize| number(column).and_then(|sectors| sectors.checked_mul(SECTOR));
            let (Some(start), Some(size)) = (bytes(1), bytes(2)) else {
                return Err(format!("{PARTX} does not say where the partition for /{place} is"));
            };
            if found.iter().any(|other| other.place == place) {
                return Err(format!("it has several partitions for /{place}"));
            }
            found.push(Partition { place, start, size });
        }
    }
    if found.is_empty() {
        return Err(format!("it has no partition for / or /usr of this processor ({processor})"));
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709 2048 40960\n";
    const VERITY: &str = "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5 43008 1000\n";
    const USR: &str = "8484680C-9521-48C6-9C11-B0720656F69E 64 8\n";

    fn found(lines: &str) -> Result<Vec<(&'static str, u64, u64)>, String> {
        let partitions = of_table(lines, "x86_64")?.expect("a table");
        Ok(partitions.into_iter().map(|Partition { place, start, size }| (place, start, size)).collect())
    }

    #[test]
    fn the_partitions_for_the_root_and_usr_are_found_by_their_types_in_this_order() {
        assert_eq!(found(&[ROOT, VERITY].concat()).unwrap(), [("", 2048 * 512, 40960 * 512)]);
        let both = found(&[USR, VERITY, ROOT].concat()).unwrap();
        assert_eq!(both, [("", 2048 * 512, 40960 * 512), ("usr", 64 * 512, 8 * 512)]);
    }

    #[test]
    fn a_table_without_one_with_two_or_of_another_processor_is_refused() {
        assert!(found(VERITY).unwrap_err().contains("no partition for / or /usr"));
        assert!(found(&ROOT.repeat(2)).unwrap_err().contains("several partitions for /"));
        assert!(of_table(ROOT, "aarch64").unwrap_err().contains("(aarch64)"));
        assert!(found(&ROOT.replace("2048", "x")).unwrap_err().contains("does not say where"));
    }

    #[test]
    fn a_file_system_and_the_table_of_a_boot_sector_are_no_gpt() {
        assert_eq!(of_table("", "x86_64").unwrap(), None);
        assert_eq!(of_table("0x83 2048 40960\n", "x86_64").unwrap(), None);
    }
}
