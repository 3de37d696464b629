//! Typed access to the fields of untyped objects.
//!
//! In: a JSON value and its place in the object. Out: the value in the type that the format has, or a [`Fault`].

use crate::text::quote;
use serde_json::{Map, Value};

/// A field, as a path from the object's root, and what is wrong with its value.
pub(crate) type Fault = (String, String);
pub(crate) type Parsed<T> = Result<T, Fault>;

/// A list of names that is not empty. `check` refuses a name with a reason.
pub(crate) fn names(
    value: &Value,
    at: &str,
    check: impl Fn(&str) -> Result<(), String>,
) -> Parsed<Vec<String>> {
    let mut names = Vec::new();
    for (number, value) in list(value, at)?.iter().enumerate() {
        let at = format!("{at}[{number}]");
        let name = text(value, &at)?;
        check(name).map_err(|reason| (at, reason))?;
        names.push(name.to_owned());
    }
    if names.is_empty() {
        return Err((at.to_owned(), "is empty".to_owned()));
    }
    Ok(names)
}

/// The reason to refuse a word, in the form of Kubernetes' `NotSupported`.
pub(crate) fn unsupported(word: &str, known: &[&str]) -> String {
    let known: Vec<String> = known.iter().map(|word| quote(word)).collect();
    format!("Unsupported value: {}: supported values: {}", quote(word), known.join(", "))
}

/// A mapping with no other fields than `known`.
pub(crate) fn mapping<'a>(value: &'a Value, at: &str, known: &[&str]) -> Parsed<&'a Map<String, Value>> {
    let map = value.as_object().ok_or_else(|| fault(at, value, "a mapping"))?;
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => {
            let dot = if at.is_empty() { "" } else { "." };
            Err((format!("{at}{dot}{key}"), format!("unknown field, there are only {}", known.join(", "))))
        }
        None => Ok(map),
    }
}

/// A field that must be there and not null.
pub(crate) fn required<'a>(map: &'a Map<String, Value>, key: &str, at: &str) -> Parsed<&'a Value> {
    map.get(key)
        .filter(|value| !value.is_null())
        .ok_or_else(|| (format!("{at}.{key}"), "Required value".to_owned()))
}

pub(crate) fn list<'a>(value: &'a Value, at: &str) -> Parsed<&'a Vec<Value>> {
    value.as_array().ok_or_else(|| fault(at, value, "a list"))
}

pub(crate) fn text<'a>(value: &'a Value, at: &str) -> Parsed<&'a str> {
    value.as_str().filter(|text| !text.is_empty()).ok_or_else(|| fault(at, value, "a text that is not empty"))
}

/// A value of another type than `wanted`. The reason names the type and not the value.
pub(crate) fn fault(at: &str, value: &Value, wanted: &str) -> Fault {
    let found = match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(text) if text.is_empty() => "an empty text",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    };
    (at.to_owned(), format!("must be {wanted}, not {found}"))
}
