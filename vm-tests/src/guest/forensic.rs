//! The records of forensic logs. Each line is parsed once: an emulated guest would otherwise spend most of a long wait on lines that it knows.
//!
//! In: the path of a log. Out: its records so far, without an incomplete last line. A log that another file replaced, that was cut, or whose last
//! known line is another one, is read anew.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// What is known of each log.
static KNOWN: Mutex<BTreeMap<PathBuf, KnownRecords>> = Mutex::new(BTreeMap::new());

/// The records of a log, and where the next one begins.
#[derive(Debug, Default)]
struct KnownRecords {
    inode: u64,
    end: u64,
    last: Vec<u8>,
    records: Vec<Value>,
}

/// All records of a log so far; none without a log.
pub(crate) fn read_records(log: &Path) -> Result<Vec<Value>> {
    with_records(log, <[Value]>::to_vec)
}

/// The first record after the first `skip` ones that `wanted` accepts.
pub(crate) fn find_record(log: &Path, skip: usize, wanted: impl Fn(&Value) -> bool) -> Result<Option<Value>> {
    with_records(log, |records| records.iter().skip(skip).find(|record| wanted(record)).cloned())
}

/// What a function makes of all records of a log so far, which it reads without a copy.
fn with_records<T>(log: &Path, of: impl FnOnce(&[Value]) -> T) -> Result<T> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.entry(log.to_owned()).or_default();
    known.read(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(of(&known.records))
}

impl KnownRecords {
    /// Reads what is new.
    fn read(&mut self, log: &Path) -> Result<()> {
        let mut file = match File::open(log) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                *self = Self::default();
                return Ok(());
            }
            other => other?,
        };
        let metadata = file.metadata()?;
        if metadata.ino() != self.inode || metadata.len() < self.end {
            *self = Self { inode: metadata.ino(), ..Self::default() };
        }
        // The bytes of the last known line show whether this is still the same log, so the line is read again.
        let mut bytes = after(&mut file, self.end - self.last.len() as u64)?;
        if !bytes.starts_with(&self.last) {
            *self = Self { inode: metadata.ino(), ..Self::default() };
            bytes = after(&mut file, 0)?;
        }
        let new = &bytes[self.last.len()..];
        let whole = new.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut last = None;
        for line in new[..whole].split_inclusive(|byte| *byte == b'\n') {
            let record = serde_json::from_slice(line)
                .with_context(|| format!("no JSON in the forensic log: {}", String::from_utf8_lossy(line)))?;
            self.records.push(record);
            self.end += line.len() as u64;
            last = Some(line);
        }
        if let Some(last) = last.map(<[u8]>::to_vec) {
            self.last = last;
        }
        Ok(())
    }
}

fn after(file: &mut File, start: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn numbers(log: &Path) -> Vec<u64> {
        with_records(log, |records| records.iter().filter_map(|record| record["n"].as_u64()).collect())
            .unwrap()
    }

    #[test]
    fn a_log_that_grows_is_cut_or_is_replaced_has_the_records_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert!(numbers(&log).is_empty());
        for (content, expected) in [
            ("{\"n\":1}\n{\"n\"", &[1][..]),
            ("{\"n\":1}\n{\"n\":2}\n", &[1, 2]),
            ("{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n", &[1, 2, 3]),
            ("{\"n\":4}\n", &[4]),
            ("{\"n\":5}\n{\"n\":6}\n", &[5, 6]),
        ] {
            fs::write(&log, content).unwrap();
            assert_eq!(numbers(&log), expected, "{content}");
        }
        // The last known line stays, so only the inode shows the other file.
        fs::write(folder.path().join("new"), "{\"n\":7}\n{\"n\":6}\n").unwrap();
        fs::rename(folder.path().join("new"), &log).unwrap();
        assert_eq!(numbers(&log), [7, 6]);
        fs::remove_file(&log).unwrap();
        assert!(numbers(&log).is_empty());
    }
}
