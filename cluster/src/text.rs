//! Texts that fit into objects of the cluster.
//!
//! In: a text of any length, with names that users chose. Out: the text without hidden characters, and no longer than a limit.

use std::fmt::Write as _;

/// The end of a text that was cut.
const CUT: char = '…';

/// A text with its hidden characters escaped. It is cut if its JSON, without the quotes, would have more bytes than the limit.
///
/// A file name may contain sequences that move a terminal's cursor, and `kubectl` prints these texts.
pub fn fit(text: &str, limit: usize) -> String {
    let mut fitted = String::new();
    let (mut used, mut end) = (0, 0);
    for character in text.chars() {
        let before = fitted.len();
        if is_hidden(character) {
            fitted.extend(character.escape_unicode());
        } else {
            fitted.push(character);
        }
        used += json_bytes(&fitted[before..]);
        if used > limit {
            fitted.truncate(end);
            fitted.push(CUT);
            return fitted;
        }
        if used + CUT.len_utf8() <= limit {
            end = fitted.len();
        }
    }
    fitted
}

/// `1 thing`, `2 things`.
pub fn count(number: i64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A JSON text whose hidden characters are escaped, so that it has the same meaning. A terminal obeys some of those that JSON allows as they
/// are, such as U+009B.
pub fn visible_json(json: &str) -> String {
    let mut visible = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !is_hidden(character) {
            visible.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(visible, "\\u{unit:04x}");
        }
    }
    visible
}

/// Whether a text has hidden characters besides the ends of lines.
pub fn has_hidden(text: &str) -> bool {
    text.chars().any(|character| character != '\n' && is_hidden(character))
}

/// Control characters, characters without a shape, and those that change the direction or the width of a text.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The bytes of a text without control characters in JSON.
fn json_bytes(text: &str) -> usize {
    text.len() + text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_text_has_at_most_as_many_bytes_as_the_limit() {
        for text in
            ["", "short", &"a".repeat(500), &"\"".repeat(500), &"\u{1b}".repeat(500), &"ü".repeat(500)]
        {
            for limit in 8..70 {
                let json = serde_json::to_string(&fit(text, limit)).unwrap();
                assert!(json.len() - 2 <= limit, "{json} in {limit}");
            }
        }
    }

    #[test]
    fn a_text_that_fits_is_whole_and_another_one_shows_that_it_was_cut() {
        assert_eq!(fit("12345678", 8), "12345678");
        assert_eq!(fit("123456789", 8), "12345…");
    }

    #[test]
    fn hidden_characters_are_escaped() {
        assert_eq!(fit("/etc/\x1b[2Jx\n\u{202e}y", 99), "/etc/\\u{1b}[2Jx\\u{a}\\u{202e}y");
        for hidden in ['\u{9b}', '\u{7f}', '\u{2028}', '\u{feff}', '\u{e0041}', '\u{61c}', '\u{2063}'] {
            assert!(!fit(&format!("a{hidden}b"), 99).contains(hidden), "{hidden:?}");
        }
    }

    #[test]
    fn a_visible_json_has_the_same_meaning_and_no_hidden_character() {
        let value = serde_json::json!({"a\u{9b}": ["\u{7f}[2J\u{202e}\u{e0041}", "ü\n\\u009b", "\u{1b}"]});
        let visible = visible_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!has_hidden(&visible), "{visible}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&visible).unwrap(), value);
    }
}
