//! The contents that a change of a plan replaces, as far as they may be shown.
//!
//! In: a change, and both configs of its plan. Out: for each path whose content differs, both contents, or their sizes and digests.
//! A drift policy decides which contents are secret. Keys and password hashes have no content here at all.

use crate::desired::{DesiredError, shown_policy};
use sensor_model::{
    changes::ChangeKind, drift_policy::DriftPolicy, expectation::SYSTEMD_DIRECTORY,
    expectations::expected_bytes, merge::Rendered, plan::PlannedChange,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// A larger content is shown by size and digest.
const MOST_BYTES: usize = 1 << 20;

/// Compares the contents of the two configs of a plan.
#[derive(Debug)]
pub struct PlanContents<'a> {
    old: &'a Rendered,
    new: &'a Rendered,
    /// Which contents may be shown.
    policy: DriftPolicy,
    /// Whether secret contents are shown, too.
    secrets: bool,
}

/// The contents of one path, which differ.
#[derive(Debug)]
pub struct ChangedContent {
    /// The path.
    pub path: String,
    /// Its contents.
    pub sides: ContentSides,
}

/// The contents of one path in the old and the new config; `None`: the config declares none.
#[derive(Debug)]
pub enum ContentSides {
    /// Both are text and may be shown.
    Shown {
        /// The old content.
        old: Option<String>,
        /// The new content.
        new: Option<String>,
    },
    /// They are not shown.
    Hidden {
        /// Why not.
        because: HiddenBecause,
        /// The old content.
        old: Option<ContentDigest>,
        /// The new content.
        new: Option<ContentDigest>,
    },
}

/// Why contents are not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenBecause {
    /// The drift policy marks the path as secret.
    Secret,
    /// One of them is not text, or is too large.
    NotText,
}

/// A content that is not shown.
#[derive(Debug)]
pub struct ContentDigest {
    /// Its size.
    pub bytes: usize,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
}

impl<'a> PlanContents<'a> {
    /// Reads the drift policies; the shipped one if none is named.
    ///
    /// # Errors
    /// A file that cannot be read or used.
    pub fn open(
        old: &'a Rendered,
        new: &'a Rendered,
        drift_policies: &[PathBuf],
        secrets: bool,
    ) -> Result<Self, DesiredError> {
        Ok(Self { old, new, policy: shown_policy(drift_policies)?, secrets })
    }

    /// The contents that a change replaces, path by path.
    pub fn of(&self, change: &PlannedChange) -> Vec<ChangedContent> {
        let paths = self.paths(change).into_iter();
        paths.filter_map(|path| Some(ChangedContent { sides: self.sides(&path)?, path })).collect()
    }

    /// The paths whose contents a change is about.
    fn paths(&self, change: &PlannedChange) -> Vec<String> {
        match change.kind {
            ChangeKind::File => vec![change.name.clone()],
            ChangeKind::Unit => {
                let unit = format!("{SYSTEMD_DIRECTORY}/{}", change.name);
                let dropins: BTreeSet<&String> = [self.old, self.new]
                    .iter()
                    .filter_map(|side| side.units.get(&change.name))
                    .flat_map(|unit| unit.dropins.keys())
                    .collect();
                let dropins = dropins.into_iter().map(|name| format!("{unit}.d/{name}")).collect::<Vec<_>>();
                [vec![unit], dropins].concat()
            }
            _ => Vec::new(),
        }
    }

    /// Both contents of a path; `None` if they are equal.
    fn sides(&self, path: &str) -> Option<ContentSides> {
        let path = Path::new(path);
        let (old, new) = (expected_bytes(self.old, path), expected_bytes(self.new, path));
        if old == new {
            return None;
        }
        let because = if !self.secrets && self.policy.decide(path, None).secret {
            HiddenBecause::Secret
        } else if let (Ok(old), Ok(new)) = (shown(old.as_deref()), shown(new.as_deref())) {
            return Some(ContentSides::Shown { old, new });
        } else {
            HiddenBecause::NotText
        };
        let digest = |bytes: Vec<u8>| ContentDigest {
            bytes: bytes.len(),
            sha256: hex::encode(Sha256::digest(&bytes)),
        };
        Some(ContentSides::Hidden { because, old: old.map(digest), new: new.map(digest) })
    }
}

/// A content that is not text, or is too large.
struct NotText;

/// A content as text.
fn shown(bytes: Option<&[u8]>) -> Result<Option<String>, NotText> {
    let Some(bytes) = bytes else { return Ok(None) };
    if bytes.len() > MOST_BYTES || bytes.contains(&0) {
        return Err(NotText);
    }
    std::str::from_utf8(bytes).map(|text| Some(text.to_owned())).map_err(|_| NotText)
}
