//! The edits that bring one target from one state to the other.
//!
//! In: the state of the path and of Holdfast's temporary name beside it. Out: the next single edit. The state is only on the
//! disk, so after a kill between two edits the next process observes the disk and continues. An object of another process is
//! put back or left; it is never deleted.

use super::TargetKind;

/// One of the two states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The state before the apply.
    Before,
    /// The state after the apply.
    After,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Before => Self::After,
            Self::After => Self::Before,
        }
    }
}

/// The observed state of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TargetState {
    /// The state at the path; `None` for the state of another process. A missing object matches the absent state.
    pub path: Option<Side>,
    /// The path is a directory with attributes of both states (see [`super::Target::is_between`]).
    pub between: bool,
    /// The state at the temporary name; `None` if that name does not exist.
    pub temporary: Option<Option<Side>>,
}

/// The next edit: one change at the path of a target or at its temporary name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TargetEdit {
    /// The target has the wanted state.
    Finished,
    /// The object of another process is at the path, and nothing of Holdfast's is left.
    Foreign,
    /// Create the state at the temporary name, complete and durable.
    Make(Side),
    /// Exchange path and temporary name.
    Swap,
    /// Move the object at the temporary name to the path, which must not exist.
    PutIn,
    /// Move the object at the path to the temporary name, which must not exist. A directory is removed instead.
    TakeAway,
    /// Set the metadata of a directory in place.
    Set(Side),
    /// Remove the object at the temporary name.
    Discard,
}

/// Decides the next edit towards `goal`. With `keep` the displaced object stays at the temporary name: a rollback then needs no
/// space and restores the same inode.
pub fn next_edit(kind: TargetKind, goal: Side, keep: bool, state: TargetState) -> TargetEdit {
    let absent = |side| match side {
        Side::Before => kind.before_absent,
        Side::After => kind.after_absent,
    };
    let other = goal.other();
    // The exchange displaced the object of another process, so that object gets its name back.
    let give_back = |at_path| if absent(at_path) { TargetEdit::PutIn } else { TargetEdit::Swap };
    if kind.in_place {
        return match (state.path, state.temporary) {
            (_, Some(_)) => TargetEdit::Discard,
            (Some(side), None) if side == goal => TargetEdit::Finished,
            (Some(_), None) => TargetEdit::Set(goal),
            // A kill interrupted the change of attributes, or one of its system calls failed.
            (None, None) if state.between && goal == Side::Before => TargetEdit::Set(goal),
            (None, None) => TargetEdit::Foreign,
        };
    }
    match (state.path, state.temporary) {
        (Some(at), temporary) if at == goal => match temporary {
            None => TargetEdit::Finished,
            Some(None) => give_back(goal),
            Some(Some(side)) if keep && side == other => TargetEdit::Finished,
            Some(Some(_)) => TargetEdit::Discard,
        },
        (Some(_), temporary) => match temporary {
            None if absent(goal) => TargetEdit::TakeAway,
            None => TargetEdit::Make(goal),
            Some(Some(side)) if side == goal => give_back(other),
            Some(None) => give_back(other),
            Some(Some(_)) => TargetEdit::Discard,
        },
        (None, Some(_)) => TargetEdit::Discard,
        (None, None) => TargetEdit::Foreign,
    }
}
