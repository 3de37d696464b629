//! `path-exclude` and `path-include` of dpkg's configuration: files of packages that dpkg does not unpack. The lists of the packages have
//! them all the same.

use globset::{GlobBuilder, GlobMatcher};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

/// The rules for paths, in their order.
#[derive(Debug, Default)]
pub struct PathFilters(Vec<(bool, GlobMatcher)>);

impl PathFilters {
    /// Adds the rules of a configuration file. As for dpkg, a line is an option without its dashes. A pattern that is none is left out.
    pub fn add(&mut self, text: &[u8]) {
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
        self.0.extend(lines.filter_map(rule));
    }

    /// Whether dpkg leaves out a path. The last rule that matches decides.
    pub fn exclude(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let last = self.0.iter().rev().find(|(_, glob)| glob.is_match(path));
        last.is_some_and(|(excludes, _)| *excludes)
    }
}

/// A rule, and whether it excludes.
fn rule(line: &str) -> Option<(bool, GlobMatcher)> {
    let line = line.trim();
    let end = line.find(|letter: char| letter == '=' || letter.is_whitespace())?;
    let excludes = match &line[..end] {
        "path-exclude" => true,
        "path-include" => false,
        _ => return None,
    };
    let value = line[end + 1..].trim_start_matches(|letter: char| letter == '=' || letter.is_whitespace());
    let quoted = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    // fnmatch(3) without flags: `*` matches `/`, too, and braces are letters.
    let pattern = quoted.unwrap_or(value).replace('{', "[{]").replace('}', "[}]");
    let glob = GlobBuilder::new(&pattern).literal_separator(false).backslash_escape(true).build().ok()?;
    Some((excludes, glob.compile_matcher()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_that_matches_a_path_decides() {
        let mut filters = PathFilters::default();
        filters.add(
            b"# path-exclude=/etc/*\nno-debsig\npath-exclude=/usr/share/doc/*\npath-include=/usr/share/doc/*/copyright\n\
              path-exclude = \"/usr/share/man/{a}/*\"\npath-exclude /usr/share/locale/[!e]*\npath-exclude=[\n\xff\n",
        );
        for (path, is_excluded) in [
            (&b"/usr/share/doc/a"[..], true),
            (b"/usr/share/doc/a/b/README", true),
            (b"/usr/share/doc/a/copyright", false),
            (b"/usr/share/doc", false),
            (b"/usr/share/man/{a}/x", true),
            (b"/usr/share/man/a/x", false),
            (b"/usr/share/locale/de/x", true),
            (b"/usr/share/locale/en/x", false),
            (b"/usr/share/doc/\xff", true),
            (b"/etc/passwd", false),
        ] {
            assert_eq!(filters.exclude(path), is_excluded, "{}", String::from_utf8_lossy(path));
        }
        filters.add(b"path-include=/usr/share/doc/*");
        assert!(!filters.exclude(b"/usr/share/doc/a"));
    }
}
