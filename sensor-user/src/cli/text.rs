//! Safe text for a terminal, and numbers with their nouns.

use std::fmt::Write as _;

/// A text with its control characters escaped. A file name or an argument of a process may contain sequences that move the
/// terminal's cursor.
pub fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for character in text.chars() {
        let hidden = character.is_control()
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if hidden {
            // Writing to a string cannot fail.
            let _ = write!(cleaned, "{}", character.escape_unicode());
        } else {
            cleaned.push(character);
        }
    }
    cleaned
}

/// `1 thing`, `2 things`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_a_text_do_not_reach_the_terminal() {
        assert_eq!(clean("/etc/\x1b[2Jx\n\u{202e}y"), "/etc/\\u{1b}[2Jx\\u{a}\\u{202e}y");
        assert_eq!(clean("/etc/grüße"), "/etc/grüße");
    }

    #[test]
    fn numbers_agree_with_their_nouns() {
        assert_eq!(
            [count(0, "thing"), count(1, "thing"), count(2, "thing")],
            ["0 things", "1 thing", "2 things"]
        );
    }
}
