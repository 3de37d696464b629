//! Why a disruption policy or a declaration is refused.
//!
//! In: nothing. Out: the errors, with file, object, field and reason.

use super::{API_VERSION, KIND, MCO_API_VERSION, MCO_KIND};
use crate::{
    action::Action,
    fields::{FieldError, FieldFault},
    ignition::UNIT_SUFFIXES,
    machine_config::ManifestError,
    path::PathError,
    text::quote,
};

/// Longest name of a unit.
pub(super) const MAXIMUM_UNIT: usize = 255;

/// A policy file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DisruptionPolicyError {
    /// The file holds no objects that can be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A field of a policy is wrong.
    #[error("{origin}: {object}: {field}: {reason}")]
    Field {
        /// The file.
        origin: String,
        /// The object: `DisruptionPolicy "site"`.
        object: String,
        /// The field, as a path from the object's root.
        field: String,
        /// What is wrong with it.
        reason: Box<PolicyFault>,
    },
}

/// A field of a policy, and what is wrong with it. The caller knows the file and the object.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {reason}")]
pub(super) struct PolicyFieldError {
    pub(super) field: String,
    pub(super) reason: PolicyFault,
}

impl PolicyFieldError {
    pub(super) fn new(field: impl Into<String>, reason: impl Into<PolicyFault>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    pub(super) fn of(self, origin: &str, object: String) -> DisruptionPolicyError {
        let (origin, reason) = (origin.to_owned(), Box::new(self.reason));
        DisruptionPolicyError::Field { origin, object, field: self.field, reason }
    }
}

impl From<FieldError> for PolicyFieldError {
    fn from(error: FieldError) -> Self {
        Self::new(error.field, error.reason)
    }
}

/// What is wrong with a field of a disruption policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFault {
    /// The value has not the form that the format asks for.
    #[error(transparent)]
    Form(#[from] FieldFault),
    /// The version is not supported.
    #[error("{} is not supported: {supported} is", quote(found))]
    ApiVersion {
        /// The object's version.
        found: String,
        /// The supported version.
        supported: &'static str,
    },
    /// The cluster has one `MachineConfiguration`, with a fixed name.
    #[error("must be \"cluster\", not {}: there is only one", quote(_0))]
    NotCluster(String),
    /// The file holds other objects only.
    #[error("no {MCO_KIND} of {MCO_API_VERSION} and no {KIND} of {API_VERSION} in it")]
    NoPolicy,
    /// The kind is probably a misspelt one. An ignored policy would make its changes reboot nodes.
    #[error("unknown kind; did you mean {0}?")]
    Kind(&'static str),
    /// The pattern of an entry or of a declaration is wrong.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The name of an entry's unit is wrong.
    #[error(transparent)]
    UnitName(#[from] UnitNameError),
    /// The unit of an action is wrong.
    #[error("Invalid value: {0}")]
    ServiceName(UnitNameError),
    /// A list has two entries for the same.
    #[error("Duplicate value: {{{}:{}}}", quote(key), quote(value))]
    Duplicate {
        /// `path` or `name`.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// A list is too long.
    #[error("Too many: {count}: must have at most {limit} items")]
    TooMany {
        /// Its length.
        count: usize,
        /// The most items that it may have.
        limit: usize,
    },
    /// An entry has no actions.
    #[error("Invalid value: 0: must have at least 1 item")]
    NoActions,
    /// An action excludes the others of its entry.
    #[error("Invalid value: {0}")]
    NotAlone(#[from] NotAlone),
    /// The unit is missing, or in a field that belongs to another action.
    #[error("Invalid value: {field} is required when type is {action}, and forbidden otherwise")]
    UnitField {
        /// The field.
        field: &'static str,
        /// The value of `type` that the field belongs to.
        action: &'static str,
    },
    /// The limit is no time, or too long a time.
    #[error("must be a time from 1s to 24h: 30s, 5m, 1h, or a number of seconds")]
    Timeout,
    /// An entry of `declarations` is for no MachineConfig.
    #[error("machineConfigs or matchLabels must name the MachineConfigs whose declarations apply")]
    NoOwner,
    /// An entry of `declarations` allows actions on units, and names no unit.
    #[error("Required value: which units may be reloaded and restarted")]
    NoUnits,
    /// Two files of the same rank contradict each other.
    #[error("{0} has other actions for the same")]
    Contradiction(String),
}

/// `None` and `Reboot` make other actions superfluous. The text is the Machine Config Operator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} action can only be specified standalone, as it will override any other actions", _0.policy_type())]
pub struct NotAlone(pub Action);

/// Why a unit's name is refused. The texts are the Machine Config Operator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitNameError {
    /// The name is too long.
    #[error("Too long: may not be more than {MAXIMUM_UNIT} bytes")]
    TooLong,
    /// The name has no known suffix.
    #[error(
        "Invalid ${{SERVICETYPE}} in service name. Expected format is ${{NAME}}${{SERVICETYPE}}, where \
         ${{SERVICETYPE}} must be one of {}",
        suffixes()
    )]
    Suffix,
    /// The name is empty before its suffix, or has another character.
    #[error(
        "Invalid ${{NAME}} in service name. Expected format is ${{NAME}}${{SERVICETYPE}}, where ${{NAME}} must be \
         at least 1 character long and can only consist of alphabets, digits, \":\", \"-\", \"_\", \".\", and \"\\\""
    )]
    Characters,
}

fn suffixes() -> String {
    UNIT_SUFFIXES.iter().map(|suffix| format!("\".{suffix}\"")).collect::<Vec<_>>().join(", ")
}

/// Why a pattern is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The path has not the form of declared paths.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The glob cannot be read.
    #[error("{0}")]
    Glob(globset::ErrorKind),
    /// The name of a kernel argument has a blank.
    #[error("{} is more than one argument", quote(_0))]
    SeveralArguments(String),
}

/// Why the actions that an owner declares are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    /// The text is no action, or has a unit too many or too few.
    #[error("{text:?} is not an action: there are {}", forms_of_actions())]
    NotAnAction {
        /// The text.
        text: String,
    },
    /// The name of the unit is wrong.
    #[error(transparent)]
    UnitName(#[from] UnitNameError),
    /// An action excludes the others.
    #[error(transparent)]
    NotAlone(#[from] NotAlone),
}

/// `Reboot, Drain, Reload UNIT, …`.
fn forms_of_actions() -> String {
    let form = |action: Action| {
        let unit = if action.needs_unit() { " UNIT" } else { "" };
        format!("{}{unit}", action.policy_type())
    };
    Action::in_policies(true).map(form).collect::<Vec<_>>().join(", ")
}
