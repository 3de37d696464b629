//! A baseline: what was at some paths of a host at one time, for what no config, image or package describes.
//!
//! In: entries, or the JSON of a baseline. Out: the JSON, or entries. It has digests and no contents.

use super::entry::ImageEntry;
use crate::{
    escape::{escaped, unescaped},
    observation::FileType,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::Path,
};

/// Name and version of the form.
const SCHEMA: &str = "holdfast.baseline/v1";
/// Most paths of a baseline.
const MOST: usize = 2_000_000;

/// What was at some paths of a host at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// When it was taken (RFC 3339).
    pub taken: String,
    /// The paths; a directory is before what is in it.
    pub paths: Vec<BaselinePath>,
}

/// What was at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaselinePath {
    /// The path. A backslash, a control character and a byte that is not UTF-8 are escapes: `\\`, `\x0a`.
    pub path: String,
    /// Its type.
    #[serde(rename = "type")]
    pub file_type: FileType,
    /// Permission bits with setuid, setgid and sticky, as octal digits.
    pub mode: String,
    /// Owning user id.
    pub uid: u32,
    /// Owning group id.
    pub gid: u32,
    /// Size of a file in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u64>,
    /// SHA-256 of a file's content.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sha256: Option<String>,
    /// Target of a symbolic link, with the escapes of a path.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<String>,
    /// Major and minor number of a device.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<(u32, u32)>,
    /// Extended attributes in readable form, without the SELinux label.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub xattrs: Vec<(String, String)>,
}

/// Why a text is no baseline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaselineError {
    /// It is no JSON, or a field is missing, unknown or of another type.
    #[error("{0}")]
    Json(String),
    /// It is of another version, or another document.
    #[error("schema: it is `{0}`, and a baseline has `{SCHEMA}`")]
    Schema(String),
    /// It has more paths than the limit.
    #[error("paths: it has {0} paths, and {MOST} are the limit")]
    TooMany(usize),
    /// A field of a path is wrong.
    #[error("paths[{place}] ({path}): {field}: {reason}")]
    Path {
        /// Its place in the list, counted from 0.
        place: usize,
        /// The path, as the text has it.
        path: String,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Baseline {
    /// A baseline that was taken at `taken`.
    pub fn new(taken: String, paths: Vec<BaselinePath>) -> Self {
        Self { schema: SCHEMA.to_owned(), taken, paths }
    }

    /// Reads a baseline.
    ///
    /// # Errors
    /// See [`BaselineError`].
    pub fn parse(text: &[u8]) -> Result<Self, BaselineError> {
        let found: Self =
            serde_json::from_slice(text).map_err(|error| BaselineError::Json(error.to_string()))?;
        if found.schema != SCHEMA {
            return Err(BaselineError::Schema(found.schema.chars().take(64).collect()));
        }
        if found.paths.len() > MOST {
            return Err(BaselineError::TooMany(found.paths.len()));
        }
        Ok(found)
    }

    /// The entries of an index, in the order of the list.
    ///
    /// # Errors
    /// See [`BaselineError::Path`].
    pub fn entries(&self) -> Result<Vec<(Vec<u8>, ImageEntry)>, BaselineError> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for (place, path) in self.paths.iter().enumerate() {
            let entry = path.entry().and_then(|(bytes, entry)| {
                if seen.insert(path.path.as_str()) {
                    Ok((bytes, entry))
                } else {
                    Err(("path", "the list has it twice"))
                }
            });
            let entry = entry.map_err(|(field, reason)| BaselineError::Path {
                place,
                path: path.path.chars().take(256).collect(),
                field,
                reason,
            })?;
            found.push(entry);
        }
        Ok(found)
    }
}

impl BaselinePath {
    /// What is at a path.
    pub fn of(path: &Path, entry: &ImageEntry) -> Self {
        let target = entry.target.clone().map(OsString::from_vec);
        Self {
            path: escaped(path),
            file_type: entry.file_type,
            mode: format!("{:04o}", entry.mode),
            uid: entry.uid,
            gid: entry.gid,
            size: entry.sha256.is_some().then_some(entry.size),
            sha256: entry.sha256.map(hex::encode),
            target: target.map(|target| escaped(Path::new(&target))),
            device: entry.device,
            xattrs: entry.xattrs.clone(),
        }
    }

    fn entry(&self) -> Result<(Vec<u8>, ImageEntry), (&'static str, &'static str)> {
        let bytes = |text: &str| unescaped(text).map(|path| path.as_os_str().as_bytes().to_vec());
        let path = bytes(&self.path).filter(|path| is_plain(path));
        let path =
            path.ok_or(("path", "it is not an absolute path without `.`, `..` and a slash at its end"))?;
        let mode = u32::from_str_radix(&self.mode, 8).ok().filter(|mode| *mode <= 0o7777);
        let is_file = self.file_type == FileType::Regular;
        let sha256 = self.sha256.as_ref().map(|digest| {
            let mut bytes = [0; 32];
            hex::decode_to_slice(digest, &mut bytes).map(|()| bytes)
        });
        let sha256 = sha256.transpose().map_err(|_| ("sha256", "it is not 64 hexadecimal digits"))?;
        if is_file != sha256.is_some() || is_file != self.size.is_some() {
            return Err(("sha256", "a file has a digest and a size, and nothing else has"));
        }
        if (self.file_type == FileType::Symlink) != self.target.is_some() {
            return Err(("target", "a symbolic link has a target, and nothing else has"));
        }
        let target =
            self.target.as_deref().map(|target| bytes(target).ok_or(("target", "an escape is wrong")));
        let entry = ImageEntry {
            uid: self.uid,
            gid: self.gid,
            size: self.size.unwrap_or(0),
            sha256,
            xattrs: self.xattrs.clone(),
            target: target.transpose()?,
            device: self.device,
            ..ImageEntry::of_root(self.file_type, mode.ok_or(("mode", "it is not octal digits up to 7777"))?)
        };
        Ok((path, entry))
    }
}

/// Whether a path is absolute, and has no name that is empty, `.` or `..`. The root is `/`.
fn is_plain(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/") else { return false };
    rest.is_empty()
        || (path.len() < 4096
            && rest
                .split(|byte| *byte == b'/')
                .all(|name| !matches!(name, b"" | b"." | b"..") && name.len() < 256))
}
