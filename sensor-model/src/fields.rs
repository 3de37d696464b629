//! Typed access to the fields of untyped objects.
//!
//! In: a JSON value and its place in the object. Out: the value in the type that the format has, or a [`FieldError`].

use crate::text::quote;
use serde_json::{Map, Value};

/// A field, and what is wrong with its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub(crate) struct FieldError {
    /// The field, as a path from the object's root.
    pub(crate) field: String,
    /// What is wrong with its value.
    pub(crate) reason: FieldFault,
}

impl FieldError {
    fn new(field: impl Into<String>, reason: FieldFault) -> Self {
        Self { field: field.into(), reason }
    }
}

/// What is wrong with the value of a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldFault {
    /// The value has another type. The text names the type and not the value.
    #[error("must be {wanted}, not {found}")]
    Type {
        /// The type that the format has.
        wanted: &'static str,
        /// The type of the value.
        found: &'static str,
    },
    /// The list is empty.
    #[error("is empty")]
    Empty,
    /// The word is not a known one, in the form of Kubernetes' `NotSupported`.
    #[error("Unsupported value: {}: supported values: {}", quote(word), quoted(known))]
    Unsupported {
        /// The word.
        word: String,
        /// The known words.
        known: Vec<&'static str>,
    },
    /// The mapping does not have the field.
    #[error("unknown field, there are only {}", _0.join(", "))]
    Unknown(Vec<String>),
    /// The field is missing.
    #[error("Required value")]
    Required,
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(", ")
}

/// A list of names that is not empty. `check` gets each name and its field, and refuses a wrong name.
pub(crate) fn names<E: From<FieldError>>(
    value: &Value,
    at: &str,
    check: impl Fn(&str, &str) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let mut names = Vec::new();
    for (number, value) in list(value, at)?.iter().enumerate() {
        let at = format!("{at}[{number}]");
        let name = text(value, &at)?;
        check(name, &at)?;
        names.push(name.to_owned());
    }
    if names.is_empty() {
        return Err(FieldError::new(at, FieldFault::Empty).into());
    }
    Ok(names)
}

/// A mapping with no other fields than `known`.
pub(crate) fn mapping<'a>(
    value: &'a Value,
    at: &str,
    known: &[&str],
) -> Result<&'a Map<String, Value>, FieldError> {
    let map = value.as_object().ok_or_else(|| wrong_type(at, value, "a mapping"))?;
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => {
            let dot = if at.is_empty() { "" } else { "." };
            let known = known.iter().map(|word| (*word).to_owned()).collect();
            Err(FieldError::new(format!("{at}{dot}{key}"), FieldFault::Unknown(known)))
        }
        None => Ok(map),
    }
}

/// A field that must be there and not null.
pub(crate) fn required<'a>(
    map: &'a Map<String, Value>,
    key: &str,
    at: &str,
) -> Result<&'a Value, FieldError> {
    map.get(key)
        .filter(|value| !value.is_null())
        .ok_or_else(|| FieldError::new(format!("{at}.{key}"), FieldFault::Required))
}

pub(crate) fn list<'a>(value: &'a Value, at: &str) -> Result<&'a Vec<Value>, FieldError> {
    value.as_array().ok_or_else(|| wrong_type(at, value, "a list"))
}

pub(crate) fn text<'a>(value: &'a Value, at: &str) -> Result<&'a str, FieldError> {
    let text = value.as_str().filter(|text| !text.is_empty());
    text.ok_or_else(|| wrong_type(at, value, "a text that is not empty"))
}

/// The error of a value of another type than `wanted`.
pub(crate) fn wrong_type(at: &str, value: &Value, wanted: &'static str) -> FieldError {
    let found = match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(text) if text.is_empty() => "an empty text",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    };
    FieldError::new(at, FieldFault::Type { wanted, found })
}
