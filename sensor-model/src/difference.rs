//! A difference: one way in which an observation departs from its expectation.
//!
//! In: nothing. Out: the kinds of differences with their names, what a repair and the protocol do about each, and the form of a
//! difference. `compare` finds them.

use sensor_protocol::names;
use serde::{Deserialize, Serialize};

names! {
    /// The kind of a difference.
    pub enum DifferenceKind {
        /// File content.
        Content = "content",
        /// Permission bits.
        Mode = "mode",
        /// Owning user or group.
        Owner = "owner",
        /// SELinux label.
        Label = "label",
        /// Extended attribute or access control list that nothing declares.
        Xattr = "xattr",
        /// Immutable or append-only flag that nothing declares.
        Attribute = "attribute",
        /// The type of object is not the declared one.
        Type = "type",
        /// Declared and missing.
        Missing = "missing",
        /// Present and not declared.
        Unexpected = "unexpected",
        /// The link points to another target.
        LinkTarget = "link-target",
        /// The unit is enabled or disabled, and declared otherwise.
        UnitEnablement = "unit-enablement",
        /// The unit is masked or unmasked, and declared otherwise.
        UnitMask = "unit-mask",
        /// Undeclared or missing ssh key.
        SshKey = "ssh-key",
        /// Kernel argument.
        KernelArgument = "kernel-argument",
        /// OS image.
        OsImage = "os-image",
        /// A mount hides the managed object.
        MountOver = "mount-over",
        /// A local state of `/etc` that updates keep, while the booted image ships another content than an earlier deployment of the host.
        HeldBack = "held-back",
        /// The thing could not be read, so it cannot be compared.
        Unreadable = "unreadable",
    }
}

impl DifferenceKind {
    /// For a difference that no repair removes: the words that follow its text in the refusal, with what to do first. `None` if a
    /// repair may remove it.
    pub const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::MountOver => Some("; unmount it first"),
            Self::Unreadable => Some(""),
            _ => None,
        }
    }

    /// Whether an editor that saves causes it for a moment. The name is missing (rename to a backup, then create), or a new
    /// inode does not have its mode, owner and label yet.
    ///
    /// `new_inode`: the path led to another inode at the last decided verification.
    pub const fn is_transient(self, new_inode: bool) -> bool {
        match self {
            Self::Missing => true,
            Self::Mode | Self::Owner | Self::Label | Self::Xattr => new_inode,
            _ => false,
        }
    }
}

/// One difference, with a text that other tools match on (the Machine Config Operator's where it has one).
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Difference {
    /// The kind of the difference.
    pub kind: DifferenceKind,
    /// The declared value: digests for contents, never the content itself.
    pub expected: String,
    /// The value found.
    pub found: String,
    /// The sentence for people, and for tools that match on texts.
    pub text: String,
}

/// Whether every difference is that something cannot be read. Also true for none.
pub fn all_unreadable(differences: &[Difference]) -> bool {
    differences.iter().all(|difference| difference.kind == DifferenceKind::Unreadable)
}

/// Whether an editor that saves causes every difference for a moment; see [`DifferenceKind::is_transient`].
pub fn is_transient(differences: &[Difference], new_inode: bool) -> bool {
    differences.iter().all(|difference| difference.kind.is_transient(new_inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_of_a_save_are_transient() {
        let difference =
            |kind| Difference { kind, expected: String::new(), found: String::new(), text: String::new() };
        let is = |kinds: &[DifferenceKind], new| {
            is_transient(&kinds.iter().map(|kind| difference(*kind)).collect::<Vec<_>>(), new)
        };
        assert!(is(&[DifferenceKind::Missing], false));
        assert!(is(&[DifferenceKind::Mode, DifferenceKind::Owner], true));
        assert!(!is(&[DifferenceKind::Mode], false));
        assert!(!is(&[DifferenceKind::Mode, DifferenceKind::Content], true));
    }
}
