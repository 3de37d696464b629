//! Ignition configs, spec 3.0 to 3.6.
//!
//! JSON comes in; out comes the config in the newest spec's types, validated as Ignition demands and
//! as verification needs (every content must travel in the config itself). What is only unusual is a
//! warning. Nothing is fetched.

mod dialect;
mod error;
mod fields;
mod validate;

pub use dialect::{Dialect, Purpose};
pub use error::IgnitionError;
pub(crate) use validate::{FORCE_FILE, UNIT_SUFFIXES};

pub use ignition_config::v3_6 as spec;

use ignition_config::{Config, Error, Warning};
use serde_json::Value;

/// A config that was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The config in the newest spec's types, its `ignition.version` as it was written.
    pub config: spec::Config,
    /// What is unusual, such as bits that the config's spec version ignores.
    pub warnings: Vec<String>,
    /// Fields that no Ignition config of this version has. What they were to declare is not declared.
    pub unknown: Vec<IgnitionError>,
}

/// Parses and validates a config.
///
/// # Errors
/// The first field that Ignition would refuse or that cannot be verified, and why.
pub fn parse(json: &Value, dialect: Dialect) -> Result<Parsed, IgnitionError> {
    parse_for(json, dialect, Purpose::Verify)
}

/// Parses and validates a config for a purpose.
///
/// # Errors
/// As [`parse`]; see [`Purpose`] for what differs.
pub fn parse_for(json: &Value, dialect: Dialect, purpose: Purpose) -> Result<Parsed, IgnitionError> {
    let version = json.pointer("/ignition/version").and_then(Value::as_str);
    let Some(version) = version else {
        return Err(IgnitionError::new("ignition.version", "missing, or not a string"));
    };
    let (mut config, unknown) = to_newest_spec(json, version)?;
    let mut warnings = Vec::new();
    validate::normalize(&mut config, minor(version), dialect, &mut warnings);
    validate::validate(&config, dialect, purpose, &mut warnings)?;
    Ok(Parsed { config, warnings, unknown })
}

fn to_newest_spec(json: &Value, version: &str) -> Result<(spec::Config, Vec<IgnitionError>), IgnitionError> {
    let bytes = serde_json::to_vec(json)
        .map_err(|error| IgnitionError::new("ignition", format!("cannot be read as JSON: {error}")))?;
    let (config, warnings) = Config::parse_slice(&bytes).map_err(|error| match error {
        Error::UnknownVersion(_) | Error::InvalidVersion(_) => IgnitionError::new(
            "ignition.version",
            format!("{version:?} is not supported: Ignition 3.0.0 to 3.6.0 are"),
        ),
        error => which_field(json, &error),
    })?;
    let unknown = warnings.iter().map(|warning| match warning {
        Warning::UnusedKey(path) => {
            let (field, reason) = fields::unused(path);
            IgnitionError { field, reason }
        }
        other => IgnitionError::new("ignition", other.to_string()),
    });
    let unknown = unknown.collect();
    let newest = match config {
        Config::V3_6(config) => config,
        // Every spec so far only adds to the one before, so that its JSON is the newer one's.
        older => {
            let value = serde_json::to_value(older)
                .map_err(|error| IgnitionError::new("ignition", format!("cannot be converted: {error}")))?;
            serde_path_to_error::deserialize(value)
                .map_err(|error| IgnitionError::new(error.path().to_string(), without_value(error.inner())))?
        }
    };
    Ok((newest, unknown))
}

/// The parser of `ignition-config` says what is wrong, not where; the newest types say where.
fn which_field(json: &Value, error: &Error) -> IgnitionError {
    match serde_path_to_error::deserialize::<_, spec::Config>(json) {
        Err(error) => IgnitionError::new(error.path().to_string(), without_value(error.inner())),
        Ok(_) => IgnitionError::new("ignition", without_value(error)),
    }
}

/// The parser quotes a value of the wrong type, which may be a secret: only what it expected is said.
fn without_value(error: &impl ToString) -> String {
    let text = error.to_string();
    match text.rfind("expected ") {
        Some(expected) => text[expected..].to_owned(),
        None if text.starts_with("missing field") => text,
        None => "not of the expected form".to_owned(),
    }
}

fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
