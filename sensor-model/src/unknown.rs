//! Fields that a format does not have, and which one was meant.
//!
//! In: a word, and those that the format has. Out: the reason to refuse it, with the nearest known word. A field that is
//! passed over in silence takes what it declares away: `confg` for `config` empties a node.

/// Why a field is refused or warned of. `known` has at least one word.
pub(crate) fn reason(word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        // Known, but not to the version that the config names.
        Some(near) if near == word => "unknown field of this version; a later one has it".to_owned(),
        Some(near) => format!("unknown field; did you mean {near}?"),
        None => format!("unknown field; known are {}", known.join(", ")),
    }
}

/// The known word that is nearest to a word, unless none is like it.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let near = known.iter().map(|known| (distance(&lower, &known.to_lowercase()), *known));
    let (distance, near) = near.min_by_key(|(distance, _)| *distance)?;
    // Two typing errors, and more in a long word.
    (distance <= 2.max(near.len() / 4) && distance < near.len()).then_some(near)
}

/// Characters to insert, remove or replace (Levenshtein). Words are short.
fn distance(one: &str, other: &str) -> usize {
    const LONGEST: usize = 64;
    let other: Vec<char> = other.chars().take(LONGEST).collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, character) in one.chars().take(LONGEST).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, with) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(character != *with);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_known_word_is_named_and_none_where_nothing_is_like_it() {
        let known = ["config", "extensions", "kernelArguments", "osImageURL"];
        for (word, near) in [
            ("confg", Some("config")),
            ("Config", Some("config")),
            ("extension", Some("extensions")),
            ("kernelarguments", Some("kernelArguments")),
            ("kernelArgs", None),
            ("osImageUrl", Some("osImageURL")),
            ("storage", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), near, "{word:?}");
        }
        assert_eq!(reason("confg", &known), "unknown field; did you mean config?");
        assert_eq!(
            reason("x", &known),
            "unknown field; known are config, extensions, kernelArguments, osImageURL"
        );
    }

    #[test]
    fn a_distance_is_the_number_of_typing_errors() {
        for (one, other, errors) in [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("flaw", "lawn", 2)]
        {
            assert_eq!((distance(one, other), distance(other, one)), (errors, errors), "{one} {other}");
        }
    }
}
