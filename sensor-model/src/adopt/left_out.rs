//! What a fragment does not declare, and why.
//!
//! In: nothing. Out: paths with typed reasons, whose texts are for people.

use crate::observation::NotDeclarable;
use std::path::PathBuf;

/// Something that the fragment does not declare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The path.
    pub path: PathBuf,
    /// Why.
    pub reason: LeftOutReason,
}

/// Why a fragment does not declare something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeftOutReason {
    /// The thing is missing, and this config declares it.
    #[error("{}, remove it from {}", NotDeclarable::Missing, _0)]
    Missing(String),
    /// No MachineConfig can declare the observed state.
    #[error(transparent)]
    NotDeclarable(#[from] NotDeclarable),
    /// No MachineConfig can declare a part of the object's state.
    #[error("a MachineConfig cannot declare its {0}")]
    Undeclarable(#[from] Undeclarable),
    /// YAML is UTF-8.
    #[error("its path is not UTF-8")]
    PathNotUtf8,
    /// The caller does not show the content.
    #[error("its content may be secret and was not given")]
    Withheld,
    /// The target cannot be written as YAML.
    #[error("the link's target is not known or not UTF-8")]
    LinkTarget,
    /// A device, FIFO or socket.
    #[error("it is neither a file, a directory nor a link")]
    OtherType,
    /// A user's file of keys.
    #[error(
        "only valid keys can be declared: other lines, and keys that the file no longer has, are not in it"
    )]
    OnlyKeys,
    /// A setuid, setgid or sticky bit.
    #[error("its mode has special bits, which a MachineConfig cannot declare")]
    SpecialBits,
    /// A unit is neither enabled nor disabled; systemd's word for its state.
    #[error("a MachineConfig cannot declare a unit as {0}")]
    UnitState(String),
}

/// A part of an object's state that no MachineConfig can declare.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undeclarable {
    /// An extended attribute.
    #[error("extended attribute {0}")]
    ExtendedAttribute(String),
    /// An attribute of the inode, as chattr(1) sets it.
    #[error("{0} attribute")]
    Attribute(String),
    /// A mount over the path.
    #[error("mount")]
    Mount,
}
