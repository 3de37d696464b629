//! One target on its way from one image to the other.
//!
//! In: what is at the path and at our temporary name beside it. Out: the next single step. The state is
//! the disk alone, so a process that died between any two steps is continued by looking again. What somebody
//! else wrote is put back or left; it is never dropped.

use super::Kind;

/// Which image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one before the apply.
    Before,
    /// The one after it.
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

/// What was seen of a target. `None` in `path`: neither image (somebody else's); a path with nothing at it
/// is the image that is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sight {
    /// At the path.
    pub path: Option<Side>,
    /// At the path is a directory half-way between both images (see [`super::Target::is_between`]).
    pub between: bool,
    /// At the temporary name: `None` when there is nothing.
    pub temporary: Option<Option<Side>>,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Settling {
    /// It is what it shall be.
    Finished,
    /// Somebody else's content is at the path, and nothing of ours is left.
    Foreign,
    /// Make the image at the temporary name, complete and durable.
    Make(Side),
    /// Exchange path and temporary name.
    Swap,
    /// Give the temporary name's object the path, at which nothing may be.
    PutIn,
    /// Give the path's object the temporary name, at which nothing may be; a directory is removed.
    TakeAway,
    /// Set a directory's metadata where it is.
    Set(Side),
    /// Remove the temporary name.
    Discard,
}

/// Decides the next step towards `goal`. With `keep` the displaced object stays at the temporary name: going
/// back then needs no space and gives back the very inode.
pub fn settle(kind: Kind, goal: Side, keep: bool, sight: Sight) -> Settling {
    let absent = |side| match side {
        Side::Before => kind.before_absent,
        Side::After => kind.after_absent,
    };
    let other = goal.other();
    // A foreign object that our own swap displaced gets its name back.
    let give_back = |at_path| if absent(at_path) { Settling::PutIn } else { Settling::Swap };
    if kind.in_place {
        return match (sight.path, sight.temporary) {
            (_, Some(_)) => Settling::Discard,
            (Some(side), None) if side == goal => Settling::Finished,
            (Some(_), None) => Settling::Set(goal),
            // A death interrupted the setting, or a call of it failed.
            (None, None) if sight.between && goal == Side::Before => Settling::Set(goal),
            (None, None) => Settling::Foreign,
        };
    }
    match (sight.path, sight.temporary) {
        (Some(at), temporary) if at == goal => match temporary {
            None => Settling::Finished,
            Some(None) => give_back(goal),
            Some(Some(side)) if keep && side == other => Settling::Finished,
            Some(Some(_)) => Settling::Discard,
        },
        (Some(_), temporary) => match temporary {
            None if absent(goal) => Settling::TakeAway,
            None => Settling::Make(goal),
            Some(Some(side)) if side == goal => give_back(other),
            Some(None) => give_back(other),
            Some(Some(_)) => Settling::Discard,
        },
        (None, Some(_)) => Settling::Discard,
        (None, None) => Settling::Foreign,
    }
}
