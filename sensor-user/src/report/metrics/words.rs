//! The words that labels are made of: closed lists, so that the number of series is bounded.
//!
//! In: enums of the model and of the pipeline. Out: their words, the same that records use.

use sensor_model::{
    difference::DifferenceKind,
    record::{Actor, RecordKind},
    verdict::VerdictKind,
};

/// What kind of actor made a change: the `actor` label, which must stay a short closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActorClass {
    /// Holdfast itself.
    Holdfast,
    /// A process of a container.
    Container,
    /// A process of someone who logged in, also behind sudo.
    Login,
    /// A process of a systemd unit.
    Unit,
    /// Some other process.
    Process,
    /// No actor is known.
    Unknown,
}

impl ActorClass {
    /// The class of an actor. A container wins over a login, since its processes inherit login ids of
    /// the user that started the runtime.
    pub fn of(actor: Option<&Actor>) -> Self {
        let Some(actor) = actor else { return Self::Unknown };
        if actor.holdfast {
            Self::Holdfast
        } else if actor.container_id.is_some() || actor.pod_uid.is_some() {
            Self::Container
        } else if actor.login_uid.is_some() {
            Self::Login
        } else if actor.unit.is_some() {
            Self::Unit
        } else {
            Self::Process
        }
    }

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Holdfast => "holdfast",
            Self::Container => "container",
            Self::Login => "login",
            Self::Unit => "unit",
            Self::Process => "process",
            Self::Unknown => "unknown",
        }
    }
}

/// Every kind of difference.
pub(super) const DIFFERENCE_KINDS: [DifferenceKind; 17] = [
    DifferenceKind::Content,
    DifferenceKind::Mode,
    DifferenceKind::Owner,
    DifferenceKind::Label,
    DifferenceKind::Xattr,
    DifferenceKind::Attribute,
    DifferenceKind::Type,
    DifferenceKind::Missing,
    DifferenceKind::Unexpected,
    DifferenceKind::LinkTarget,
    DifferenceKind::UnitEnablement,
    DifferenceKind::UnitMask,
    DifferenceKind::SshKey,
    DifferenceKind::KernelArgument,
    DifferenceKind::OsImage,
    DifferenceKind::MountOver,
    DifferenceKind::Unreadable,
];

/// The word of a kind in labels: the one it has in records.
pub(super) const fn difference_name(kind: DifferenceKind) -> &'static str {
    match kind {
        DifferenceKind::Content => "content",
        DifferenceKind::Mode => "mode",
        DifferenceKind::Owner => "owner",
        DifferenceKind::Label => "label",
        DifferenceKind::Xattr => "xattr",
        DifferenceKind::Attribute => "attribute",
        DifferenceKind::Type => "type",
        DifferenceKind::Missing => "missing",
        DifferenceKind::Unexpected => "unexpected",
        DifferenceKind::LinkTarget => "link-target",
        DifferenceKind::UnitEnablement => "unit-enablement",
        DifferenceKind::UnitMask => "unit-mask",
        DifferenceKind::SshKey => "ssh-key",
        DifferenceKind::KernelArgument => "kernel-argument",
        DifferenceKind::OsImage => "os-image",
        DifferenceKind::MountOver => "mount-over",
        DifferenceKind::Unreadable => "unreadable",
    }
}

/// The word of a verdict in labels: the one it has in records.
pub(super) const fn verdict_name(verdict: VerdictKind) -> &'static str {
    match verdict {
        VerdictKind::Compliant => "compliant",
        VerdictKind::Touched => "touched",
        VerdictKind::Unknown => "unknown",
        VerdictKind::Drifted => "drifted",
    }
}

/// The word of a record's kind in labels and filters: the one it has in records.
pub(crate) const fn record_name(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Start => "start",
        RecordKind::Stop => "stop",
        RecordKind::Drift => "drift",
        RecordKind::Touched => "touched",
        RecordKind::Recovered => "recovered",
        RecordKind::Exec => "exec",
        RecordKind::Denied => "denied",
        RecordKind::Reverted => "reverted",
        RecordKind::Gap => "gap",
        RecordKind::Rotation => "rotation",
        RecordKind::Checkpoint => "checkpoint",
        RecordKind::Repaired => "repaired",
        RecordKind::Tamper => "tamper",
    }
}
