//! Names of any bytes as text, and back.
//!
//! In: bytes of a path. Out: text in which a backslash, a control character and a byte that is not UTF-8 are escapes. No two paths
//! have the same text.

use std::{
    ffi::OsString,
    fmt::Write as _,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

/// A path as text: `\\` is a backslash, `\x0a` the byte with this number.
pub fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                letter if letter.is_control() => {
                    for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                        push(byte, &mut text);
                    }
                }
                letter => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            push(*byte, &mut text);
        }
    }
    text
}

fn push(byte: u8, text: &mut String) {
    // Writing to a string does not fail.
    let _ = write!(text, "\\x{byte:02x}");
}

/// The path of a text that [`escaped`] made; `None` for every other text.
pub fn unescaped(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut left = text;
    while let Some(at) = left.find('\\') {
        bytes.extend_from_slice(&left.as_bytes()[..at]);
        left = &left[at + 1..];
        if let Some(rest) = left.strip_prefix('\\') {
            bytes.push(b'\\');
            left = rest;
        } else {
            let digits = left.strip_prefix('x')?.get(..2)?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            left = &left[3..];
        }
    }
    bytes.extend_from_slice(left.as_bytes());
    let path = PathBuf::from(OsString::from_vec(bytes));
    (escaped(&path) == text).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_a_terminal_cannot_show_is_escaped() {
        for (path, text) in [
            (&b"/etc/cron.d/x y"[..], "/etc/cron.d/x y"),
            ("/etc/żółw".as_bytes(), "/etc/żółw"),
            (b"/etc/\xff\n\\", "/etc/\\xff\\x0a\\\\"),
            ("/etc/\u{9b}".as_bytes(), "/etc/\\xc2\\x9b"),
        ] {
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            assert_eq!(escaped(&path), text);
        }
    }

    proptest! {
        #[test]
        fn each_path_is_found_again(bytes: Vec<u8>) {
            let path = PathBuf::from(OsString::from_vec(bytes));
            prop_assert_eq!(unescaped(&escaped(&path)), Some(path));
        }

        #[test]
        fn each_text_is_of_one_path_or_of_none(text in "[\\\\xa0-9é\n]{0,12}") {
            if let Some(path) = unescaped(&text) {
                prop_assert_eq!(escaped(&path), text);
            }
        }
    }
}
