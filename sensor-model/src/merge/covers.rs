//! Whether what a later config says leaves nothing of what was said before.
//!
//! In: a thing as merged so far, and what one more config says of it. Out: whether every field that was set is set again.
//! What it misses counts as said by several, which never lessens a disruption.

use super::rendered::RenderedFile;
use crate::ignition::{Dialect, spec};

pub(super) fn file(old: &RenderedFile, new: &spec::File, dialect: Dialect) -> bool {
    let old = &old.file;
    let contents = match (&old.contents, &new.contents) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(old), Some(new)) => {
            // What is left out of a MachineConfig means no compression.
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

/// Neither id nor name is nobody.
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
