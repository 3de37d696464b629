//! Kernel arguments: how they are split and compared.
//!
//! In: a command line, or the lines that MachineConfigs declare. Out: words, which declared ones a kernel did not get, and
//! whether it got the others in their order. As the Machine Config Operator has it, more arguments than declared are no
//! difference, and so do they not count where they stand in between.

use std::collections::BTreeMap;

/// Words of a command line, split as the kernel does it: at blanks that are not between double quotes. Quotes stay.
pub fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for character in line.chars() {
        match character {
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                quoted ^= c == '"';
                word.push(c);
            }
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// The words of several declared lines, in order; a line may declare several arguments.
pub fn words<'a>(declared: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    declared.into_iter().flat_map(split).collect()
}

/// Declared words that are not among those found, each once. The kernel takes `a="b c"` and `"a=b c"` for the same.
pub fn missing<'a>(declared: &'a [String], found: &[String]) -> Vec<&'a str> {
    let mut missing: Vec<&str> = Vec::new();
    for word in declared {
        if !is_among(word, found) && !missing.contains(&word.as_str()) {
            missing.push(word);
        }
    }
    missing
}

/// Whether a word is among those found.
pub fn is_among(word: &str, found: &[String]) -> bool {
    let word = bare(word);
    found.iter().any(|found| bare(found) == word)
}

/// Those words that others have too, as often as they have them and of several the last, which the kernel takes; and the
/// rest. Both in their order. `word`: what makes two of them the same.
pub fn partition<'a, T>(
    words: &'a [T],
    others: &[T],
    word: impl Fn(&T) -> String,
) -> (Vec<&'a T>, Vec<&'a T>) {
    let mut left: BTreeMap<String, usize> = BTreeMap::new();
    for other in others {
        *left.entry(word(other)).or_default() += 1;
    }
    let (mut shared, mut own) = (Vec::new(), Vec::new());
    for part in words.iter().rev() {
        match left.get_mut(&word(part)).filter(|left| **left > 0) {
            Some(left) => {
                *left -= 1;
                shared.push(part);
            }
            None => own.push(part),
        }
    }
    shared.reverse();
    own.reverse();
    (shared, own)
}

/// Of some words those that others have too ([`partition`]).
pub fn common<'a>(words: &'a [String], others: &[String]) -> Vec<&'a String> {
    partition(words, others, |word| bare(word)).0
}

/// Whether declared words stand in their order among those found, but for such as are not there.
pub fn in_order(declared: &[String], found: &[String]) -> bool {
    let bare = |words: Vec<&String>| words.into_iter().map(|word| bare(word)).collect::<Vec<_>>();
    bare(common(declared, found)) == bare(common(found, declared))
}

/// Whether declared words stand in their order among those found and as often as declared, but for such as are not there:
/// where they do not, they have to be set anew.
pub fn are_set(declared: &[String], found: &[String]) -> bool {
    let there = declared.iter().filter(|word| is_among(word, found)).count();
    in_order(declared, found) && common(declared, found).len() == there
}

/// A word without its quotes.
fn bare(word: &str) -> String {
    word.chars().filter(|c| *c != '"').collect()
}
