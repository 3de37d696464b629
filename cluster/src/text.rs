//! Texts that fit into objects of the cluster.
//!
//! In: a text of any length, with names that users chose. Out: the text without hidden characters, and no longer than a limit.

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

/// Control characters, and those that change the direction or the width of a text.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
    }
}
