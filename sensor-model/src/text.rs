//! Values in the form that Go's `fmt` gives them.
//!
//! In: strings, paths and permission bits. Out: their printed form. Other tools match on the Machine Config Operator's texts,
//! and the operator makes these texts with Go's `fmt`.

use std::{fmt::Write as _, path::Path};

/// A string as Go's `%q` prints it: quoted, with unprintable characters escaped.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            // Writing to a String cannot fail.
            c if c < ' ' || c == '\u{7f}' => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(c));
            }
            c if is_unprintable(c) && u32::from(c) <= 0xffff => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c if is_unprintable(c) => {
                let _ = write!(quoted, "\\U{:08x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A path as Go's `%q` prints it; U+FFFD replaces bytes that are not UTF-8.
pub fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

/// Control characters, spaces other than U+0020, and marks that change the direction of text. A file name with these could
/// make a report show something else than it says.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Permission bits as Go's `%#o` prints them: `0644`.
pub fn octal(mode: u32) -> String {
    if mode == 0 { "0".to_owned() } else { format!("0{mode:o}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_leaves_nothing_that_can_break_a_line_or_its_direction() {
        for (text, expected) in [
            ("/etc/a b", r#""/etc/a b""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("a\nb\tc\u{1b}[31m", r#""a\nb\tc\x1b[31m""#),
            ("/etc/ä", "\"/etc/ä\""),
            ("a\u{202e}b", r#""a\u202eb""#),
            ("a\u{85}b", r#""a\u0085b""#),
        ] {
            assert_eq!(quote(text), expected);
        }
    }
}
