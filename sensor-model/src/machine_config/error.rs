//! Why a manifest is refused.
//!
//! In: nothing. Out: the errors, with file, object, field and reason.

use crate::{ignition::IgnitionFault, path::NameError, text::quote, unknown::UnknownField};
use std::str::Utf8Error;

/// Deepest nesting. A MachineConfig needs ten levels, and each level needs stack.
pub(super) const MAXIMUM_DEPTH: usize = 64;

/// Why a file was refused, or which of its fields is ignored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {object}: {field}: {reason}")]
pub struct ManifestError {
    /// The file.
    pub origin: String,
    /// `MachineConfig "99-worker-chrony"`, or `document 2` when it has no name.
    pub object: String,
    /// The field, as a path from the object's root.
    pub field: String,
    /// What is wrong with it.
    pub reason: Box<ManifestFault>,
}

/// What is wrong with a field of a manifest, or with the whole file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestFault {
    /// The value has another type.
    #[error("not {0}")]
    NotA(JsonType),
    /// The value is missing, or has another type.
    #[error("missing, or not {0}")]
    MissingOrNotA(JsonType),
    /// The format does not have the field.
    #[error(transparent)]
    Unknown(#[from] UnknownField),
    /// The kind is probably a misspelt one.
    #[error("unknown kind; did you mean {0}?")]
    Kind(&'static str),
    /// The API is probably a misspelt one.
    #[error("unknown API; did you mean {0}?")]
    Api(&'static str),
    /// The version is not supported.
    #[error("{} is not supported: {supported} is", quote(found))]
    ApiVersion {
        /// The object's version.
        found: String,
        /// The supported version.
        supported: &'static str,
    },
    /// The name is not one component of a path.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The Ignition config is invalid.
    #[error(transparent)]
    Ignition(#[from] IgnitionFault),
    /// Lists contain lists.
    #[error("lists are nested too deeply")]
    NestedLists,
    /// There is no such kernel type.
    #[error("{} is not one of default, realtime, 64k-pages", quote(_0))]
    KernelType(String),
    /// There is no such extension.
    #[error("{} is not one of {}", quote(extension), known.join(", "))]
    Extension {
        /// The extension.
        extension: String,
        /// The extensions that exist.
        known: &'static [&'static str],
    },
    /// The file is too large.
    #[error("larger than {0} bytes")]
    TooLarge(usize),
    /// The file is not text.
    #[error("not UTF-8: {0}")]
    NotUtf8(#[from] Utf8Error),
    /// The file is empty.
    #[error("no document in it")]
    NoDocument,
    /// Aliases of YAML would take too much memory.
    #[error("too many YAML aliases (limit 1,000,000)")]
    Aliases,
    /// Objects or lists are nested too deeply.
    #[error("nested too deeply (limit {MAXIMUM_DEPTH} levels)")]
    Depth,
    /// The file has too many values.
    #[error("too many values (limit 4,000,000)")]
    Values,
    /// The file exceeds another limit of the parser.
    #[error("too large: {0}")]
    Limit(String),
    /// The file is not valid YAML, in the parser's words.
    #[error("{0}")]
    Yaml(String),
}

/// A type of JSON, as errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonType {
    /// An object.
    #[error("an object")]
    Object,
    /// A list.
    #[error("a list")]
    List,
    /// A string.
    #[error("a string")]
    String,
    /// True or false.
    #[error("a boolean")]
    Boolean,
}
