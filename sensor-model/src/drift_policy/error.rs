//! Why a drift policy is refused.
//!
//! In: nothing. Out: the errors, with file, field and reason.

use crate::{
    fields::{FieldError, FieldFault},
    name_patterns::NamePatternFault,
    path::PathError,
};
use std::str::Utf8Error;

/// A drift policy file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("drift policy {origin}: {field}: {reason}")]
pub struct DriftPolicyError {
    /// The file.
    pub origin: String,
    /// The field, with the number of the rule from 0: `spec.rules[3].action`.
    pub field: String,
    /// What is wrong with it.
    pub reason: Box<DriftPolicyFault>,
}

/// A field of a drift policy, and what is wrong with it. The caller knows the file.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {reason}")]
pub(super) struct RuleError {
    pub(super) field: String,
    pub(super) reason: DriftPolicyFault,
}

impl RuleError {
    pub(super) fn new(field: impl Into<String>, reason: impl Into<DriftPolicyFault>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    pub(super) fn of(self, origin: &str) -> DriftPolicyError {
        DriftPolicyError { origin: origin.to_owned(), field: self.field, reason: Box::new(self.reason) }
    }
}

impl From<FieldError> for RuleError {
    fn from(error: FieldError) -> Self {
        Self::new(error.field, error.reason)
    }
}

/// What is wrong with a field of a drift policy, or with the whole file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriftPolicyFault {
    /// The value has not the form that the format asks for.
    #[error(transparent)]
    Form(#[from] FieldFault),
    /// The path has not the form of declared paths.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The file is too large.
    #[error("larger than {0} bytes")]
    TooLarge(usize),
    /// The file is not text.
    #[error("not UTF-8: {0}")]
    NotUtf8(#[from] Utf8Error),
    /// The file is not valid YAML, in the parser's words.
    #[error("{0}")]
    Yaml(String),
    /// The field has one possible value.
    #[error("must be {only}, not {found:?}")]
    Only {
        /// That value.
        only: &'static str,
        /// The value found.
        found: String,
    },
    /// The file has too many rules.
    #[error("more than {0} rules")]
    TooManyRules(usize),
    /// The path has a rule already.
    #[error("{path:?} has a rule already: spec.rules[{first}]")]
    Twice {
        /// The path.
        path: String,
        /// The number of its first rule.
        first: usize,
    },
    /// There is no such action.
    #[error("must be ignore, observe, degrade, revert or deny, not {0:?}")]
    Action(String),
    /// There is no such comparison of labels.
    #[error("must be compare or ignore, not {0:?}")]
    Labels(String),
    /// The name of an actor is a glob that cannot be read.
    #[error("not a pattern: {0}")]
    ActorPattern(globset::ErrorKind),
    /// The path is a glob that cannot be read.
    #[error("{0}")]
    Glob(globset::ErrorKind),
    /// A glob with a slash at its end matches nothing.
    #[error("a glob fits names, end {0:?} with ** for everything below a directory")]
    GlobOfDirectory(String),
    /// The name of an exception is none.
    #[error(transparent)]
    Except(#[from] NamePatternFault),
    /// Only a closed directory has exceptions.
    #[error("only a rule with closed: true has exceptions")]
    NotClosed,
    /// The path of a closed directory names no certain directories.
    #[error(
        "{0:?} cannot be closed: name a directory, with / at the end, or a glob of directories without **"
    )]
    ClosedPath(String),
    /// The path of a rule with `absent` names no single object.
    #[error(
        "{0:?} cannot have absent: true: name one path, without / at its end and without wildcards; use closed: true for what is in a \
         directory"
    )]
    AbsentPath(String),
    /// A rule with `absent` has another key about other things.
    #[error("a rule has either absent: true or {0}: true; write two rules")]
    AbsentWith(&'static str),
    /// A rule decides about one kind of things.
    #[error("a rule has either closed: true or image: true; write two rules")]
    ClosedImage,
    /// Holdfast has no content of an image's files.
    #[error(
        "must not be revert in a rule with image: true: Holdfast knows the digests of the image's files and not their contents; use observe, degrade or deny"
    )]
    RevertImage,
    /// Only what the image has is scanned.
    #[error("only a rule with image: true has scan: true")]
    ScanWithoutImage,
    /// The kernel refuses changes of watched paths alone.
    #[error(
        "must not be deny in a rule with scan: true: Holdfast does not watch the paths, so the kernel programs cannot refuse a change; use observe or degrade"
    )]
    DenyScan,
    /// The path of an executable is relative.
    #[error("must be an absolute path, not {0:?}")]
    Relative(String),
    /// The format does not have the key.
    #[error("unknown key {key:?}, there are only {}", known.join(", "))]
    Unknown {
        /// The key.
        key: String,
        /// The keys that the mapping may have.
        known: &'static [&'static str],
    },
    /// The field is missing.
    #[error("is missing")]
    Missing,
    /// Two files of the same precedence contradict each other.
    #[error("{other} has another rule for {path:?} at the same precedence {precedence}")]
    Contradiction {
        /// The other file.
        other: String,
        /// The path.
        path: String,
        /// The precedence of both.
        precedence: i64,
    },
}
