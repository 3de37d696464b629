//! Decimal numbers in names, compared eight digits at a time.
//!
//! In: the last sixteen characters of a name, as two words of memory. Out: whether they end with the digits of a number.

/// Digits of the largest 32-bit number.
pub const MOST_DIGITS: u32 = 10;

/// One more than the largest number of eight digits.
const WORD: u64 = 100_000_000;

/// Eight times the digit 0.
const ZEROES: u64 = u64::from_le_bytes([b'0'; 8]);

/// Whether the last `digits` (1 to [`MOST_DIGITS`]) of sixteen characters are the number `wanted`, perhaps with leading zeroes. In
/// each word the first character is the lowest byte. Characters before the digits do not matter.
#[inline(always)]
pub const fn is_number(high: u64, low: u64, digits: u64, wanted: u64) -> bool {
    if digits > 8 {
        low == padded(wanted % WORD) && last(high, digits - 8) == padded(wanted / WORD)
    } else {
        wanted < WORD && last(low, digits) == padded(wanted)
    }
}

/// The last characters of a word, 1 to 8, with leading zeroes.
#[inline(always)]
const fn last(word: u64, characters: u64) -> u64 {
    let mask = u64::MAX << ((64 - 8 * characters) & 63);
    word & mask | ZEROES & !mask
}

/// The eight digits of a number below [`WORD`].
#[inline(always)]
const fn padded(mut number: u64) -> u64 {
    let mut text = 0;
    let mut digit = 0;
    while digit < 8 {
        text = text << 8 | (b'0' as u64 + number % 10);
        number /= 10;
        digit += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::is_number;

    /// The words of sixteen letters that end with these.
    fn words(end: &[u8]) -> (u64, u64) {
        let mut letters = *b"ser-user-session";
        let at = letters.len() - end.len();
        letters[at..].copy_from_slice(end);
        let word = |from: usize| (0..8).rev().fold(0, |word, at| word << 8 | u64::from(letters[from + at]));
        (word(0), word(8))
    }

    fn is(end: &[u8], wanted: u64) -> bool {
        let (high, low) = words(end);
        is_number(high, low, end.len() as u64, wanted)
    }

    #[test]
    fn digits_match_their_own_number_and_no_other() {
        for (text, number) in [
            (&b"0"[..], 0),
            (b"7", 7),
            (b"42", 42),
            (b"1000", 1000),
            (b"65534", 65_534),
            (b"9999999", 9_999_999),
            (b"99999999", 99_999_999),
            (b"100000000", 100_000_000),
            (b"123456789", 123_456_789),
            (b"1000000000", 1_000_000_000),
            (b"4294967295", 4_294_967_295),
        ] {
            assert!(is(text, number), "{number}");
            let others =
                [number + 1, number.wrapping_sub(1), number * 10, number + 10_u64.pow(text.len() as u32)];
            for other in others {
                assert!(other == number || !is(text, other), "{number} is taken for {other}");
            }
            assert!(text.len() == 1 || !is(&text[1..], number), "{number} without its first digit");
        }
    }

    #[test]
    fn other_characters_than_digits_match_no_number() {
        for text in [&b"c3"[..], b"-3", b"3a", b"/9", b":", b" 3", b"1234567x9", b"x234567890"] {
            let digits = text.iter().filter(|letter| letter.is_ascii_digit());
            let number = digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
            assert!(!is(text, number) && !is(text, number % 10), "{text:?}");
        }
    }
}
