//! From bytes to untyped documents.

use super::error::ManifestError;
use serde_json::Value;

/// Largest file that is read: forty times what a MachineConfig may have in a cluster's store.
const MAXIMUM_FILE: usize = 64 * 1024 * 1024;

/// Deepest nesting; a MachineConfig needs ten levels, and each costs stack.
const MAXIMUM_DEPTH: usize = 64;

pub(super) fn documents(origin: &str, bytes: &[u8]) -> Result<Vec<Value>, ManifestError> {
    let refuse = |reason: String| ManifestError {
        origin: origin.to_owned(),
        object: "file".to_owned(),
        field: "content".to_owned(),
        reason,
    };
    if bytes.len() > MAXIMUM_FILE {
        return Err(refuse(format!("larger than {MAXIMUM_FILE} bytes")));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| refuse(format!("not UTF-8: {error}")))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // JSON is YAML, but its own parser is exact and many times faster.
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(vec![value]);
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options())
        .map_err(|error| refuse(error.to_string()))?;
    if documents.is_empty() {
        return Err(refuse("no document in it".to_owned()));
    }
    Ok(documents)
}

/// What Kubernetes' own YAML reader does, within limits.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAXIMUM_DEPTH,
            // One file of a config takes about thirty events.
            max_events: 4_000_000,
            max_nodes: 4_000_000,
            max_total_scalar_bytes: MAXIMUM_FILE,
        },
        // People write `mode: 0644` and the cluster reads 420.
        legacy_octal_numbers: true,
        // A snippet of the source in an error could show a secret.
        with_snippet: false,
    }
}
