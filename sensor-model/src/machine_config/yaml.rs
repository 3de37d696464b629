//! From bytes to untyped documents.
//!
//! In: the bytes of a file. Out: its YAML or JSON documents, within limits.

use super::error::{MAXIMUM_DEPTH, ManifestError, ManifestFault};
use serde_json::Value;
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter, budget::BudgetBreach};
use std::borrow::Cow;

/// Largest file that is read: forty times the size limit of an object in etcd (1.5 MiB).
const MAXIMUM_FILE: usize = 64 * 1024 * 1024;

pub(super) fn documents(origin: &str, bytes: &[u8]) -> Result<Vec<Value>, ManifestError> {
    let refuse = |reason: ManifestFault| ManifestError {
        origin: origin.to_owned(),
        object: "file".to_owned(),
        field: "content".to_owned(),
        reason: Box::new(reason),
    };
    if bytes.len() > MAXIMUM_FILE {
        return Err(refuse(ManifestFault::TooLarge(MAXIMUM_FILE)));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| refuse(error.into()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // JSON is valid YAML, but the JSON parser is stricter and many times faster.
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(vec![value]);
    }
    let documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options()).map_err(|error| refuse(reason(&error)))?;
    if documents.is_empty() {
        return Err(refuse(ManifestFault::NoDocument));
    }
    Ok(documents)
}

/// The reason of a parser's error, without the names of Rust types in the parser's own texts.
fn reason(error: &Error) -> ManifestFault {
    match original(error) {
        Error::Budget { breach, .. } => match breach {
            BudgetBreach::RecordedAnchorEvents { .. } | BudgetBreach::RecordedAnchorBytes { .. } => {
                ManifestFault::Aliases
            }
            BudgetBreach::Depth { .. } => ManifestFault::Depth,
            BudgetBreach::Events { .. } | BudgetBreach::Nodes { .. } => ManifestFault::Values,
            other => ManifestFault::Limit(format!("{other:?}")),
        },
        _ => ManifestFault::Yaml(error.render_with_formatter(&WithoutAdvice)),
    }
}

/// The parser's first error. An error in a copy of an alias is inside of another one.
fn original(error: &Error) -> &Error {
    match error {
        Error::AliasError { error, .. } | Error::WithSnippet { error, .. } => original(error),
        error => error,
    }
}

/// The parser's texts, without its advice to callers of the parser.
struct WithoutAdvice;

impl MessageFormatter for WithoutAdvice {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("duplicate mapping key: {key}").into()
            }
            Error::DuplicateMappingKey { key: None, .. } => "duplicate mapping key".into(),
            error => DefaultMessageFormatter.format_message(error),
        }
    }
}

/// The behaviour of Kubernetes' own YAML reader, with limits.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAXIMUM_DEPTH,
            // A declared file takes about thirty events.
            max_events: 4_000_000,
            max_nodes: 4_000_000,
            max_recorded_anchor_events: 1_000_000,
            max_total_scalar_bytes: MAXIMUM_FILE,
        },
        // The cluster reads `mode: 0644` as 420.
        legacy_octal_numbers: true,
        // A snippet of the source in an error could contain a secret.
        with_snippet: false,
    }
}
