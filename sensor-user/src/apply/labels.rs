//! SELinux labels of what an apply writes.
//!
//! In: the host's policy, and the wanted states. Out: for each path the label that `restorecon` would set. A new object gets the
//! policy's label. An object that was there keeps its own label if `restorecon` would keep it. Without SELinux no label is written.

use super::target_finder::WantedState;
use crate::{disk::label_value, labels::Policy, observation::Observer};
use sensor_model::{
    drift_policy::{self, DriftPolicy},
    journal::PathState,
    selinux::{ATTRIBUTE, ObjectKind, given},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// The labels of everything that an apply writes.
#[derive(Debug)]
pub(super) struct Labels<'a> {
    drift: &'a DriftPolicy,
    by_path: BTreeMap<PathBuf, String>,
    customizable: BTreeSet<String>,
}

impl<'a> Labels<'a> {
    /// Reads the host's policy once for all paths.
    pub(super) fn of(
        observer: &Observer,
        drift: &'a DriftPolicy,
        wanted: &BTreeMap<PathBuf, WantedState>,
    ) -> Self {
        let mut labels = Self { drift, by_path: BTreeMap::new(), customizable: BTreeSet::new() };
        let Some(policy) = Policy::read(observer) else { return labels };
        let asked: Vec<(&Path, ObjectKind)> =
            wanted.iter().filter_map(|(path, wanted)| Some((path.as_path(), kind(wanted)?))).collect();
        let found = asked.iter().zip(policy.labels(observer, &asked));
        labels.by_path =
            found.filter_map(|((path, _), label)| Some(((*path).to_owned(), label?.to_owned()))).collect();
        labels.customizable = policy.customizable;
        labels
    }

    /// The label of an object of a kind at a path; `before` is the state of the present object.
    pub(super) fn label(&self, path: &Path, kind: ObjectKind, before: &PathState) -> Option<String> {
        let found = match (kind, before) {
            (ObjectKind::File, PathState::File(file)) => file.metadata.xattrs.get(ATTRIBUTE).and_then(text),
            (ObjectKind::Directory, PathState::Directory(metadata)) => {
                metadata.xattrs.get(ATTRIBUTE).and_then(text)
            }
            (ObjectKind::Link, PathState::Link(link)) => link.label.clone(),
            _ => None,
        };
        let is_free = self.drift.decide(path, None).labels == drift_policy::LabelComparison::Ignore;
        match self.by_path.get(path).filter(|_| !(is_free && found.is_some())) {
            Some(policys) => Some(given(policys, found.as_deref(), &self.customizable)),
            None => found,
        }
    }

    /// The label as extended attributes.
    pub(super) fn attributes(
        &self,
        path: &Path,
        kind: ObjectKind,
        before: &PathState,
    ) -> BTreeMap<String, String> {
        let label = self.label(path, kind, before);
        label.map(|label| (ATTRIBUTE.to_owned(), hex::encode(label_value(&label)))).into_iter().collect()
    }
}

fn text(digits: &String) -> Option<String> {
    let value = hex::decode(digits).ok()?;
    String::from_utf8(value.strip_suffix(b"\0").unwrap_or(&value).to_vec()).ok()
}

fn kind(wanted: &WantedState) -> Option<ObjectKind> {
    match wanted {
        WantedState::File { .. } => Some(ObjectKind::File),
        WantedState::Directory { .. } => Some(ObjectKind::Directory),
        WantedState::Link { .. } => Some(ObjectKind::Link),
        WantedState::Hard { .. } | WantedState::Gone | WantedState::Original => None,
    }
}
