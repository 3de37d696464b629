//! The hash chain of the log.
//!
//! In: a record and the place after the newest entry. Out: the line to write, and for a line that was
//! read whether it is what was written. The hash is SHA-256 over the canonical JSON (RFC 8785) of the
//! entry without its hash; every entry has the hash of the one before it. Pure: it reads no file.

use canon_json::CanonJsonSerialize as _;
use sensor_model::record::Record;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The `previous_hash` of the first entry of all.
pub(super) const ORIGIN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Where the next entry goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the next entry.
    pub(super) seq: u64,
    /// Hash of the newest one.
    pub(super) previous_hash: String,
}

impl Default for Place {
    fn default() -> Self {
        Self { seq: 1, previous_hash: ORIGIN.to_owned() }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Entry {
    /// Its number; they go up by one.
    pub seq: u64,
    /// Hash of the entry before it.
    pub previous_hash: String,
    /// Hash of this one.
    pub hash: String,
    /// What it says.
    #[serde(flatten)]
    pub record: Record,
}

/// The line of a record at a place, without its end, and the place after it.
pub(super) fn seal(place: &Place, record: &Record) -> Result<(String, Place), std::io::Error> {
    let mut value = serde_json::to_value(record)?;
    let Some(map) = value.as_object_mut() else {
        return Err(std::io::Error::other("a record is not a JSON object"));
    };
    map.insert("seq".to_owned(), place.seq.into());
    map.insert("previous_hash".to_owned(), place.previous_hash.clone().into());
    let hash = hash(&value)?;
    if let Some(map) = value.as_object_mut() {
        map.insert("hash".to_owned(), hash.clone().into());
    }
    Ok((value.to_canon_json_string()?, Place { seq: place.seq + 1, previous_hash: hash }))
}

/// Reads a line and checks that its hash is its own. The text says what is wrong with it.
pub(super) fn open(line: &[u8]) -> Result<Entry, String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
    let Some(Value::String(stated)) = value.as_object_mut().and_then(|map| map.remove("hash")) else {
        return Err("it has no hash".to_owned());
    };
    let found = hash(&value).map_err(|error| format!("cannot be hashed: {error}"))?;
    if found != stated {
        return Err(format!("its content has the hash {found}, but it states {stated}"));
    }
    if let Some(map) = value.as_object_mut() {
        map.insert("hash".to_owned(), stated.into());
    }
    serde_json::from_value(value).map_err(|error| format!("not a record: {error}"))
}

fn hash(value: &Value) -> Result<String, std::io::Error> {
    Ok(hex::encode(Sha256::digest(value.to_canon_json_vec()?)))
}
