//! One way in which an observation departs from its expectation.

use serde::{Deserialize, Serialize};

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DifferenceKind {
    /// File content.
    Content,
    /// Permission bits.
    Mode,
    /// Owning user or group.
    Owner,
    /// SELinux label.
    Label,
    /// Extended attribute or access control list that nothing declares.
    Xattr,
    /// Immutable or append-only flag that nothing declares.
    Attribute,
    /// Not the declared kind of object.
    Type,
    /// Declared and not there.
    Missing,
    /// There and not declared.
    Unexpected,
    /// A link points elsewhere.
    LinkTarget,
    /// Unit enabled or disabled against its declaration.
    UnitEnablement,
    /// Unit masked or unmasked against its declaration.
    UnitMask,
    /// Undeclared or missing ssh key.
    SshKey,
    /// Kernel argument.
    KernelArgument,
    /// OS image.
    OsImage,
    /// A mount hides the managed object.
    MountOver,
    /// It could not be read, so it cannot be said to be as declared.
    Unreadable,
}

/// One difference, with a text that other tools match on (the Machine Config Operator's where it has one).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Difference {
    /// What differs.
    pub kind: DifferenceKind,
    /// The declared value: digests for contents, never the content itself.
    pub expected: String,
    /// The value found.
    pub found: String,
    /// The sentence for people and for tools that match on texts.
    pub text: String,
}
