//! The form of names, paths and times in a policy.
//!
//! In: a value of a policy. Out: the value in the form that entries have, or the reason to refuse it.

use super::{
    EntryAction,
    error::{MAXIMUM_UNIT, NotAlone, PatternError, UnitNameError},
    matching::{glob, is_glob},
};
use crate::{
    action::Action,
    ignition::UNIT_SUFFIXES,
    path::{PathError, check_absolute},
};
use serde_json::Value;

/// Longest time that an action may be given.
const MAXIMUM_TIMEOUT: u64 = 24 * 60 * 60;

/// Refuses `None` and `Reboot` beside other actions.
pub(super) fn standalone(actions: &[EntryAction]) -> Result<(), NotAlone> {
    for alone in [Action::Reboot, Action::None] {
        if actions.len() > 1 && actions.iter().any(|action| action.is(alone)) {
            return Err(NotAlone(alone));
        }
    }
    Ok(())
}

/// Checks a unit's name like the Machine Config Operator. Without `strict` an instance (`a@b.service`) is also a name.
pub(super) fn unit(name: &str, strict: bool) -> Result<String, UnitNameError> {
    if name.len() > MAXIMUM_UNIT {
        return Err(UnitNameError::TooLong);
    }
    let (stem, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    if !UNIT_SUFFIXES.contains(&kind) {
        return Err(UnitNameError::Suffix);
    }
    let fine = |c: char| c.is_ascii_alphanumeric() || ":._\\-".contains(c) || (c == '@' && !strict);
    if stem.is_empty() || !stem.chars().all(fine) {
        return Err(UnitNameError::Characters);
    }
    Ok(name.to_owned())
}

/// A path in the form of entries: cleaned, a directory without its final `/`.
pub(super) fn path_pattern(path: &str) -> Result<String, PatternError> {
    if is_glob(path) {
        if !path.starts_with('/') {
            return Err(PathError::NotAbsolute(path.to_owned()).into());
        }
        if path.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
            return Err(PathError::NotSimplified(path.to_owned()).into());
        }
        return glob(path).map(|_| path.to_owned());
    }
    if path == "/" {
        return Ok(path.to_owned());
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    check_absolute(path)?;
    Ok(path.to_owned())
}

/// The name of a kernel argument, or a glob for it.
pub(super) fn argument_pattern(name: &str) -> Result<String, PatternError> {
    if name.contains(char::is_whitespace) {
        return Err(PatternError::SeveralArguments(name.to_owned()));
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
