//! The form that declared paths and names must have.
//!
//! In: a path or a name. Out: nothing, or the reason to refuse it. It reads no disk.

use crate::text::quote;

/// Why a declared path is refused. Each text quotes the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Empty, or the root directory.
    #[error("path not specified: {}", quote(_0))]
    Unspecified(String),
    /// Without a leading `/`.
    #[error("path not absolute: {}", quote(_0))]
    NotAbsolute(String),
    /// With a character that no path can have.
    #[error("path with a NUL character: {}", quote(_0))]
    Nul(String),
    /// With `.`, `..`, `//` or a final `/`.
    #[error("path is not fully simplified: {}", quote(_0))]
    NotSimplified(String),
}

/// Why a name is not one component of a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a file name: {}", quote(_0))]
pub struct NameError(pub String);

/// Checks a path by Ignition's rules: given, absolute and cleaned (no `.`, `..`, `//`, final `/`).
///
/// # Errors
/// The rule that the path breaks.
pub fn check_absolute(path: &str) -> Result<(), PathError> {
    let error = if path.is_empty() || path == "/" {
        PathError::Unspecified
    } else if !path.starts_with('/') {
        PathError::NotAbsolute
    } else if path.contains('\0') {
        PathError::Nul
    } else if path.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
        PathError::NotSimplified
    } else {
        return Ok(());
    };
    Err(error(path.to_owned()))
}

/// Checks a name that becomes one component of a path.
///
/// # Errors
/// A name that cannot be one component.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', '\0', '\n']) {
        return Err(NameError(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_and_cleaned_paths_pass() {
        for (path, fine) in [
            ("/etc/foo", true),
            ("/a", true),
            ("", false),
            ("/", false),
            ("etc/foo", false),
            ("/etc//foo", false),
            ("/etc/foo/", false),
            ("/etc/./foo", false),
            ("/etc/../foo", false),
            ("/etc/..foo", true),
            ("/etc/a\0b", false),
        ] {
            assert_eq!(check_absolute(path).is_ok(), fine, "{path:?}");
        }
    }

    #[test]
    fn a_name_is_one_component() {
        for (name, fine) in
            [("a.conf", true), ("..a", true), ("", false), (".", false), ("..", false), ("a/b", false)]
        {
            assert_eq!(check_name(name).is_ok(), fine, "{name:?}");
        }
    }
}
