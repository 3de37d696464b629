//! Kernel arguments: how they are split and compared.
//!
//! In: a command line, or the lines that MachineConfigs declare. Out: words, and which declared ones a kernel did not
//! get. As the Machine Config Operator has it, more arguments than declared are no difference.

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
        let there = found.iter().any(|found| bare(found).eq(bare(word)));
        if !there && !missing.contains(&word.as_str()) {
            missing.push(word);
        }
    }
    missing
}

fn bare(word: &str) -> impl Iterator<Item = char> {
    word.chars().filter(|c| *c != '"')
}
