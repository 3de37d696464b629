//! Ignition configs, spec 3.0 to 3.6.
//!
//! In: JSON. Out: the config in the newest spec's types, validated by Ignition's rules. Every content must be in the config
//! itself, so that a verification needs no network. Unusual but valid values cause a warning.

mod dialect;
mod error;
mod fields;
mod form;
mod validate;

pub use dialect::{Dialect, Purpose};
pub use error::{FormFault, IgnitionError, IgnitionFault};
pub(crate) use validate::{FORCE_FILE, UNIT_SUFFIXES};

pub use ignition_config::v3_6 as spec;

use ignition_config::{Config, Error, Warning};
use serde_json::Value;

/// An accepted config.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedConfig {
    /// The config in the newest spec's types; `ignition.version` keeps its value.
    pub config: spec::Config,
    /// Unusual values, such as mode bits that the config's spec version ignores.
    pub warnings: Vec<String>,
    /// Fields that Ignition configs of this version do not have. Their content is ignored.
    pub unknown: Vec<IgnitionError>,
}

/// Parses and validates a config.
///
/// # Errors
/// The first field that Ignition would refuse or that cannot be verified, with the reason.
pub fn parse(json: &Value, dialect: Dialect) -> Result<ParsedConfig, IgnitionError> {
    parse_for(json, dialect, Purpose::Verify)
}

/// Parses and validates a config for a purpose.
///
/// # Errors
/// As [`parse`]; [`Purpose`] says what differs.
pub fn parse_for(json: &Value, dialect: Dialect, purpose: Purpose) -> Result<ParsedConfig, IgnitionError> {
    let version = json.pointer("/ignition/version").and_then(Value::as_str);
    let Some(version) = version else {
        return Err(IgnitionError::new("ignition.version", IgnitionFault::NoVersion));
    };
    let (mut config, unknown) = to_newest_spec(json, version)?;
    let mut warnings = Vec::new();
    validate::normalize(&mut config, minor(version), dialect, &mut warnings);
    validate::validate(&config, dialect, purpose, &mut warnings)?;
    Ok(ParsedConfig { config, warnings, unknown })
}

fn to_newest_spec(json: &Value, version: &str) -> Result<(spec::Config, Vec<IgnitionError>), IgnitionError> {
    let bytes = serde_json::to_vec(json)
        .map_err(|error| IgnitionError::new("ignition", IgnitionFault::Json(error.to_string())))?;
    let (config, warnings) = Config::parse_slice(&bytes).map_err(|error| match error {
        Error::UnknownVersion(_) | Error::InvalidVersion(_) => {
            IgnitionError::new("ignition.version", IgnitionFault::Version(version.to_owned()))
        }
        _ => which_field(json),
    })?;
    let unknown = warnings.iter().map(|warning| match warning {
        Warning::UnusedKey(path) => fields::unused(path),
        other => IgnitionError::new("ignition", IgnitionFault::Warning(other.to_string())),
    });
    let unknown = unknown.collect();
    let newest = match config {
        Config::V3_6(config) => config,
        // Specs 3.0 to 3.6 only add fields, so the JSON of an older one is valid in the newest.
        older => {
            let value = serde_json::to_value(older).map_err(|error| {
                IgnitionError::new("ignition", IgnitionFault::NotConvertible(error.to_string()))
            })?;
            form::read(&value)?
        }
    };
    Ok((newest, unknown))
}

/// Finds the field of a parser's error: the error of `ignition-config` has no path, so the newest types parse again.
fn which_field(json: &Value) -> IgnitionError {
    match form::read::<spec::Config>(json) {
        Err(error) => error,
        // Only the types of an older spec refuse it.
        Ok(_) => IgnitionError::new("ignition", FormFault::Unclear),
    }
}

fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
