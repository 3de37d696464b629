//! Kernel arguments: how they are split and compared.
//!
//! In: a command line, or the lines of MachineConfigs. Out: words, the declared words that a kernel lacks, and whether the others
//! are in the declared order. As for the Machine Config Operator, undeclared arguments are no difference, also between declared
//! ones.

use std::collections::BTreeMap;

/// Words of a command line, split as by the kernel's `next_arg()`: at blanks outside double quotes. The words keep their quotes.
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

/// The words of several declared lines, in order. A line may declare several arguments.
pub fn words<'a>(declared: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    declared.into_iter().flat_map(split).collect()
}

/// Declared words that are not among those found, each once. `a="b c"` and `"a=b c"` are the same to the kernel.
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

/// Splits words into those that `others` contain and the remaining ones, both in their order. A word is shared as often as
/// `others` contain it, the last ones first, because the kernel uses the last value. `word` gives the text by which two of them
/// are equal.
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

/// The words that `others` contain, too ([`partition`]).
pub fn common<'a>(words: &'a [String], others: &[String]) -> Vec<&'a String> {
    partition(words, others, |word| bare(word)).0
}

/// Whether the declared words that are found have the declared order.
pub fn in_order(declared: &[String], found: &[String]) -> bool {
    let bare = |words: Vec<&String>| words.into_iter().map(|word| bare(word)).collect::<Vec<_>>();
    bare(common(declared, found)) == bare(common(found, declared))
}

/// Whether the declared words that are found have the declared order, and as many copies as declared. If not, they must be set
/// again.
pub fn are_set(declared: &[String], found: &[String]) -> bool {
    let there = declared.iter().filter(|word| is_among(word, found)).count();
    in_order(declared, found) && common(declared, found).len() == there
}

/// A word without its quotes.
fn bare(word: &str) -> String {
    word.chars().filter(|c| *c != '"').collect()
}
