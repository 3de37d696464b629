//! Names of any bytes as text, and back.
//!
//! In: bytes of a path. Out: text in which a backslash, a control character and a byte that is not UTF-8 are escapes. No two paths
//! have the same text. Or, of one name, text in which only bytes that are not UTF-8 are escapes, so that names of declared files are their own
//! text.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
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

/// A name in a directory as text. U+FFFD with two hexadecimal digits is a byte that is not UTF-8, or a byte of U+FFFD itself. So no two names
/// have the same text, and every other name is its own text.
pub fn name_text(name: &OsStr) -> Cow<'_, str> {
    if let Some(text) = name.to_str().filter(|text| !text.contains(char::REPLACEMENT_CHARACTER)) {
        return Cow::Borrowed(text);
    }
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            // Writing to a string does not fail.
            let _ = write!(text, "{}{byte:02x}", char::REPLACEMENT_CHARACTER);
        }
    };
    let mut text = String::new();
    for chunk in name.as_bytes().utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter == char::REPLACEMENT_CHARACTER {
                escape(&mut text, letter.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(letter);
            }
        }
        escape(&mut text, chunk.invalid());
    }
    Cow::Owned(text)
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

    #[test]
    fn a_name_in_utf_8_is_its_own_text_and_other_bytes_are_told_apart() {
        let text = |name: &[u8]| name_text(OsStr::from_bytes(name)).into_owned();
        assert_eq!(text("dev-\\x2d żółw\n".as_bytes()), "dev-\\x2d żółw\n");
        assert_eq!(text(b"a\xff"), "a\u{fffd}ff");
        assert_eq!(text(b"a\xfe.conf"), "a\u{fffd}fe.conf");
        assert_eq!(text("a\u{fffd}ff".as_bytes()), "a\u{fffd}ef\u{fffd}bf\u{fffd}bdff");
    }

    proptest! {
        #[test]
        fn two_names_have_two_texts(
            one in proptest::collection::vec(proptest::sample::select(&b"\xff\xfe\xef\xbf\xbdef"[..]), 0..8),
            other in proptest::collection::vec(proptest::sample::select(&b"\xff\xfe\xef\xbf\xbdef"[..]), 0..8),
        ) {
            let texts = [&one, &other].map(|name| name_text(OsStr::from_bytes(name)).into_owned());
            prop_assert_eq!(texts[0] == texts[1], one == other);
        }

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
