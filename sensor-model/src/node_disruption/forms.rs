//! Checks the form of names, paths and times in a policy.

use super::{
    EntryAction,
    matching::{glob, is_glob},
};
use crate::{action::Action, ignition::UNIT_SUFFIXES, path::check_absolute, text::quote};
use serde_json::Value;

/// Longest name of a unit.
const MAXIMUM_UNIT: usize = 255;
/// Longest time that an action may be given.
const MAXIMUM_TIMEOUT: u64 = 24 * 60 * 60;

/// Refuses `None` and `Reboot` beside other actions.
pub(super) fn standalone(actions: &[EntryAction]) -> Result<(), String> {
    for alone in [Action::Reboot, Action::None] {
        if actions.len() > 1 && actions.iter().any(|action| action.is(alone)) {
            return Err(format!(
                "{} action can only be specified standalone, as it will override any other actions",
                alone.policy_type()
            ));
        }
    }
    Ok(())
}

/// Checks a unit's name like the Machine Config Operator. Without `strict` an instance (`a@b.service`) is also a name.
pub(super) fn unit(name: &str, strict: bool) -> Result<String, String> {
    if name.len() > MAXIMUM_UNIT {
        return Err(format!("Too long: may not be more than {MAXIMUM_UNIT} bytes"));
    }
    let form = "in service name. Expected format is ${NAME}${SERVICETYPE}, where";
    let (stem, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    if !UNIT_SUFFIXES.contains(&kind) {
        let types: Vec<String> = UNIT_SUFFIXES.iter().map(|kind| format!("\".{kind}\"")).collect();
        return Err(format!(
            "Invalid ${{SERVICETYPE}} {form} ${{SERVICETYPE}} must be one of {}",
            types.join(", ")
        ));
    }
    let fine = |c: char| c.is_ascii_alphanumeric() || ":._\\-".contains(c) || (c == '@' && !strict);
    if stem.is_empty() || !stem.chars().all(fine) {
        return Err(format!(
            "Invalid ${{NAME}} {form} ${{NAME}} must be at least 1 character long and can only consist of \
             alphabets, digits, \":\", \"-\", \"_\", \".\", and \"\\\""
        ));
    }
    Ok(name.to_owned())
}

/// A path in the form of entries: cleaned, a directory without its final `/`.
pub(super) fn path_pattern(path: &str) -> Result<String, String> {
    if is_glob(path) {
        if !path.starts_with('/') {
            return Err(format!("path not absolute: {}", quote(path)));
        }
        if path.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
            return Err(format!("path is not fully simplified: {}", quote(path)));
        }
        return glob(path).map(|_| path.to_owned());
    }
    if path == "/" {
        return Ok(path.to_owned());
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    check_absolute(path).map(|()| path.to_owned()).map_err(|error| error.to_string())
}

/// The name of a kernel argument, or a glob for it.
pub(super) fn argument_pattern(name: &str) -> Result<String, String> {
    if name.contains(char::is_whitespace) {
        return Err(format!("{} is more than one argument", quote(name)));
    }
    if is_glob(name) {
        glob(name)?;
    }
    Ok(name.to_owned())
}

/// A time, in seconds.
pub(super) fn timeout(value: &Value) -> Option<u64> {
    let seconds = match value {
        Value::Number(number) => number.as_u64()?,
        Value::String(text) => {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let number: u64 = text[..end].parse().ok()?;
            let factor = match &text[end..] {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                _ => return None,
            };
            number.checked_mul(factor)?
        }
        _ => return None,
    };
    (1..=MAXIMUM_TIMEOUT).contains(&seconds).then_some(seconds)
}
