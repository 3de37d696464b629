//! Why a config is refused.
//!
//! In: nothing. Out: the errors, with field and reason.

use crate::{
    data_url::ContentError,
    path::{NameError, PathError},
    text::{octal, quote},
    unknown::UnknownField,
};

/// Why a config was refused, or which of its fields is ignored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct IgnitionError {
    /// The field: `storage.files[3].mode`.
    pub field: String,
    /// What is wrong with it.
    pub reason: IgnitionFault,
}

impl IgnitionError {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<IgnitionFault>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

/// What is wrong with a field of an Ignition config. No text contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IgnitionFault {
    /// Ignition configs do not have the field.
    #[error(transparent)]
    Unknown(#[from] UnknownField),
    /// The path has not the form of declared paths.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The name is not one component of a path.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The content cannot be decoded, or its hash is another one.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The value has another type.
    #[error(transparent)]
    Form(#[from] FormFault),
    /// No version is given.
    #[error("missing, or not a string")]
    NoVersion,
    /// The version is not supported.
    #[error("{0:?} is not supported: Ignition 3.0.0 to 3.6.0 are")]
    Version(String),
    /// The config cannot be written as JSON.
    #[error("cannot be read as JSON: {0}")]
    Json(String),
    /// The config cannot be written in the form of the newest version.
    #[error("cannot be converted: {0}")]
    NotConvertible(String),
    /// A warning of the parser.
    #[error("{0}")]
    Warning(String),
    /// The config refers to other configs.
    #[error("it refers to other configs, which cannot be verified here: use the rendered config")]
    OtherConfigs,
    /// The unit's name has no known suffix. The text is the Machine Config Operator's.
    #[error("invalid systemd unit extension in {}", quote(_0))]
    UnitSuffix(String),
    /// The drop-in's name does not end in `.conf`.
    #[error("invalid systemd drop-in extension in {}: it must end in .conf", quote(_0))]
    DropInSuffix(String),
    /// A unit or drop-in has the same path.
    #[error("{} conflicts with the systemd unit or drop-in of {unit}", quote(path))]
    Conflict {
        /// The path.
        path: String,
        /// The field of the unit.
        unit: String,
    },
    /// Another entry of the list has the same path or name.
    #[error("duplicate entry defined: {} is at {first} already", quote(name))]
    Duplicate {
        /// The path or name.
        name: String,
        /// The field of the first one.
        first: String,
    },
    /// The file switches off the checks of the Machine Config Daemon.
    #[error("cannot create {0} via Ignition")]
    ForceFile(&'static str),
    /// The file has content to append.
    #[error("found an append section when checking files. Append is not supported")]
    Append,
    /// An existing file is to be overwritten by nothing.
    #[error("must be false if source is unspecified")]
    Overwrite,
    /// The content has HTTP headers.
    #[error("cannot use HTTP headers with this source scheme")]
    HttpHeaders,
    /// A hash is declared, and no content.
    #[error("source must be specified if verification is specified")]
    NoSource,
    /// The link has no target.
    #[error("link target is required")]
    NoTarget,
    /// The target of a hard link is a directory.
    #[error("hard link target is a directory")]
    HardLinkToDirectory,
    /// The path is below a declared link.
    #[error("the path {} includes the link {}", quote(path), quote(link))]
    BelowLink {
        /// The path.
        path: String,
        /// The link's path.
        link: String,
    },
    /// The hash of a password would break its line in the shadow file. It is a secret, so the text does not quote it.
    #[error("a password hash contains neither colons nor line ends nor other control characters")]
    PasswordHash,
    /// The mode is not a number of permission bits.
    #[error("illegal file mode {0}: it is a decimal number from 0 to 4095 (07777)")]
    IllegalMode(i64),
    /// A MachineConfig has no setuid, setgid and sticky bits. The text is the Machine Config Operator's.
    #[error("invalid mode {} for {path}, cannot exceed 0777", octal(*bits))]
    SpecialBits {
        /// The mode.
        bits: u32,
        /// The file's path.
        path: String,
    },
    /// An owner has both an id and a name.
    #[error("cannot set both id and name")]
    IdAndName,
    /// The number is no id.
    #[error("{0} is not a user or group id")]
    NotAnId(i64),
}

/// The type that a value must have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormFault {
    /// Permission bits.
    #[error("must be a number such as 0644 or 420")]
    Mode,
    /// A number.
    #[error("must be a number")]
    Number,
    /// An object.
    #[error("must be an object")]
    Object,
    /// A list.
    #[error("must be a list")]
    List,
    /// Text.
    #[error("must be a string")]
    Text,
    /// True or false.
    #[error("must be a boolean")]
    Boolean,
    /// A field is missing.
    #[error("missing field `{0}`")]
    Missing(&'static str),
    /// The expected type is not known.
    #[error("not of the expected form")]
    Unclear,
}
