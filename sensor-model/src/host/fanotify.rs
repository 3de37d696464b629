//! Events in the form of fanotify(7).
//!
//! In: the bytes of one read. Out: events with mask, process and the file handles of objects, or an error.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

/// Bytes of an event before its records: `fanotify_event_metadata`.
const METADATA_BYTES: usize = 24;

/// `FANOTIFY_METADATA_VERSION`.
const VERSION: u8 = 3;

/// Bytes of a record's header: type, padding, length.
const HEADER_BYTES: usize = 4;

/// Types of records: an object, a directory with a name in it, a directory.
const FID: u8 = 1;
const DFID_NAME: u8 = 2;
const DFID: u8 = 3;

/// An object's file handle: file system id, handle type and handle, as the kernel writes them.
pub type Handle = Box<[u8]>;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEvent {
    /// The kinds of event: bits of `include/uapi/linux/fanotify.h`.
    pub mask: u64,
    /// Thread group; 0 if it is outside the reader's pid namespace.
    pub pid: u32,
    /// The object itself.
    pub object: Option<Handle>,
    /// A directory and the name in it; no name for the directory itself.
    pub entry: Option<(Handle, Option<OsString>)>,
}

/// Why bytes are not events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedEvent {
    /// An event or record has an impossible length.
    #[error("fanotify event of {0} bytes does not fit")]
    Length(usize),
    /// Another layout than the one known.
    #[error("fanotify event has version {0}, not {VERSION}")]
    Version(u8),
}

/// Reads all events of one read.
///
/// # Errors
/// An impossible length, or another layout. The result then has no event of the buffer.
pub fn parse(mut bytes: &[u8]) -> Result<Vec<RawEvent>, MalformedEvent> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let length = number(bytes, 0).ok_or(MalformedEvent::Length(bytes.len()))?;
        let event = bytes.get(..length).filter(|event| event.len() >= METADATA_BYTES);
        let event = event.ok_or(MalformedEvent::Length(length))?;
        events.push(parse_event(event)?);
        bytes = &bytes[length..];
    }
    Ok(events)
}

fn parse_event(event: &[u8]) -> Result<RawEvent, MalformedEvent> {
    if event[4] != VERSION {
        return Err(MalformedEvent::Version(event[4]));
    }
    let metadata = usize::from(u16::from_ne_bytes([event[6], event[7]]));
    let mut mask = [0; 8];
    mask.copy_from_slice(&event[8..16]);
    let mut pid = [0; 4];
    pid.copy_from_slice(&event[20..24]);
    let mut parsed = RawEvent {
        mask: u64::from_ne_bytes(mask),
        pid: u32::try_from(i32::from_ne_bytes(pid)).unwrap_or_default(),
        object: None,
        entry: None,
    };
    let mut records = event.get(metadata..).ok_or(MalformedEvent::Length(metadata))?;
    while records.len() >= HEADER_BYTES {
        let length = usize::from(u16::from_ne_bytes([records[2], records[3]]));
        let record = records.get(HEADER_BYTES..length).ok_or(MalformedEvent::Length(length))?;
        match records[0] {
            FID => parsed.object = Some(split_handle(record)?.0),
            DFID | DFID_NAME => {
                let (handle, rest) = split_handle(record)?;
                let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
                let name = (!name.is_empty() && name != b".").then(|| OsString::from_vec(name.to_vec()));
                parsed.entry = Some((handle, name));
            }
            // A record type of a later kernel. The requested information is in the other records.
            _ => {}
        }
        records = &records[length..];
    }
    Ok(parsed)
}

/// File system id (8 bytes), handle length, handle type, handle; then whatever follows it.
fn split_handle(record: &[u8]) -> Result<(Handle, &[u8]), MalformedEvent> {
    let error = MalformedEvent::Length(record.len());
    let bytes = number(record, 8).ok_or(error)?;
    let end = bytes.checked_add(16).filter(|end| *end <= record.len()).ok_or(error)?;
    let (handle, rest) = record.split_at(end);
    Ok((handle.into(), rest))
}

/// The `u32` at a place.
fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_ne_bytes(four)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsStr;

    /// An event as the kernel lays it out.
    fn event(mask: u64, pid: i32, records: &[(u8, &[u8], &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; METADATA_BYTES];
        for (kind, handle, name) in records {
            let length = HEADER_BYTES + 16 + handle.len() + name.len();
            bytes.extend([*kind, 0]);
            bytes.extend(u16::try_from(length).unwrap().to_ne_bytes());
            bytes.extend([7; 8]);
            bytes.extend(u32::try_from(handle.len()).unwrap().to_ne_bytes());
            bytes.extend(1_i32.to_ne_bytes());
            bytes.extend(*handle);
            bytes.extend(*name);
        }
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4] = VERSION;
        bytes[6..8].copy_from_slice(&24_u16.to_ne_bytes());
        bytes[8..16].copy_from_slice(&mask.to_ne_bytes());
        bytes[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        bytes[20..24].copy_from_slice(&pid.to_ne_bytes());
        bytes
    }

    #[test]
    fn an_object_and_an_entry_of_a_directory_are_distinguished() {
        let mut bytes = event(2, 42, &[(FID, b"file", b""), (DFID_NAME, b"dir", b"name\0\0\0")]);
        bytes.extend(event(0x100, 7, &[(DFID_NAME, b"dir", b".\0")]));
        let events = parse(&bytes).unwrap();
        assert_eq!((events[0].mask, events[0].pid), (2, 42));
        assert!(events[0].object.as_ref().unwrap().ends_with(b"file"));
        let (handle, name) = events[0].entry.as_ref().unwrap();
        assert!(handle.ends_with(b"dir"));
        assert_eq!(name.as_deref(), Some(OsStr::new("name")));
        assert_eq!(events[1].entry.as_ref().unwrap(), &(handle.clone(), None));
    }

    #[test]
    fn lengths_that_do_not_fit_are_errors() {
        let whole = event(2, 42, &[(FID, b"file", b"")]);
        for length in 1..whole.len() {
            assert!(parse(&whole[..length]).is_err(), "{length}");
        }
        let mut zero = whole.clone();
        zero[..4].copy_from_slice(&[0; 4]);
        assert_eq!(parse(&zero), Err(MalformedEvent::Length(0)));
        let mut record = whole;
        record[26..28].copy_from_slice(&[0; 2]);
        assert!(parse(&record).is_err(), "a record without a length must not be read for ever");
    }

    proptest! {
        #[test]
        fn any_bytes_are_events_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            if let Ok(events) = parse(&bytes) {
                prop_assert!(events.len() * METADATA_BYTES <= bytes.len());
            }
        }

        #[test]
        fn any_change_of_an_event_is_an_event_or_an_error(at in 0_usize..80, to: u8) {
            let mut bytes = event(2, 42, &[(FID, b"file", b""), (DFID_NAME, b"dir", b"name\0")]);
            let at = at % bytes.len();
            bytes[at] = to;
            if let Ok(events) = parse(&bytes) {
                prop_assert!(events.len() <= 3);
            }
        }
    }
}
