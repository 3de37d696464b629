//! The form that declared paths and names must have.

use crate::text::quote;

/// Checks a path as Ignition does: given, absolute and cleaned (no `.`, `..`, `//`, final `/`).
///
/// # Errors
/// The reason, quoting the path.
pub fn check_absolute(path: &str) -> Result<(), String> {
    let problem = if path.is_empty() || path == "/" {
        "path not specified"
    } else if !path.starts_with('/') {
        "path not absolute"
    } else if path.contains('\0') {
        "path with a NUL character"
    } else if path.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
        "path is not fully simplified"
    } else {
        return Ok(());
    };
    Err(format!("{problem}: {}", quote(path)))
}

/// Checks a name that becomes one component of a path.
///
/// # Errors
/// The reason, quoting the name.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', '\0', '\n']) {
        return Err(format!("not a file name: {}", quote(name)));
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
