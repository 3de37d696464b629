//! Whether a later config sets every field of a thing that earlier ones set.
//!
//! In: a thing as merged so far, and the declaration of one more config. Out: whether every field that was set is set again.
//! A wrong "no" makes the thing one of several MachineConfigs, which never reduces a disruption.

use super::rendered::RenderedFile;
use crate::ignition::{Dialect, spec};

pub(super) fn file(old: &RenderedFile, new: &spec::File, dialect: Dialect) -> bool {
    let old = &old.file;
    let contents = match (&old.contents, &new.contents) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(old), Some(new)) => {
            // In a MachineConfig an omitted compression means none.
            let compression = new.compression.is_some() || dialect == Dialect::MachineConfig;
            new.source.is_some() && (old.compression.is_none() || compression)
        }
    };
    contents
        && old.append.as_ref().is_none_or(Vec::is_empty)
        && again(old.mode, new.mode)
        && again(user(old.user.as_ref()), user(new.user.as_ref()))
        && again(group(old.group.as_ref()), group(new.group.as_ref()))
}

pub(super) fn directory(old: &spec::Directory, new: &spec::Directory) -> bool {
    again(old.mode, new.mode)
        && again(user(old.user.as_ref()), user(new.user.as_ref()))
        && again(group(old.group.as_ref()), group(new.group.as_ref()))
}

pub(super) fn link(old: &spec::Link, new: &spec::Link) -> bool {
    again(old.target.as_ref(), new.target.as_ref())
        && again(old.hard, new.hard)
        && again(user(old.user.as_ref()), user(new.user.as_ref()))
        && again(group(old.group.as_ref()), group(new.group.as_ref()))
}

/// An owner without id and name is not set.
fn user(user: Option<&spec::NodeUser>) -> Option<()> {
    user.filter(|user| user.id.is_some() || user.name.is_some()).map(drop)
}

/// See [`user`].
fn group(group: Option<&spec::NodeGroup>) -> Option<()> {
    group.filter(|group| group.id.is_some() || group.name.is_some()).map(drop)
}

fn again<T: Copy>(old: Option<T>, new: Option<T>) -> bool {
    old.is_none() || new.is_some()
}
