//! Fields that a format does not have, and the field that the writer probably meant.
//!
//! In: a word, and the words of the format. Out: the reason to refuse it, with the nearest known word. Such a field must not
//! be ignored silently: with `confg` for `config` a MachineConfig declares nothing, and Holdfast would empty the node.

/// Why a field is refused or ignored with a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnknownField {
    /// A later version of the format has the field; the version of this object does not.
    #[error("unknown field of this version; a later one has it")]
    OfLaterVersion,
    /// The field is probably a misspelt known one.
    #[error("unknown field; did you mean {0}?")]
    Near(&'static str),
    /// No known field is similar.
    #[error("unknown field; known are {}", _0.join(", "))]
    Known(&'static [&'static str]),
}

/// The reason of the error or warning about a field. `known` has at least one word.
pub(crate) fn unknown_field(word: &str, known: &'static [&'static str]) -> UnknownField {
    match nearest(word, known) {
        Some(near) if near == word => UnknownField::OfLaterVersion,
        Some(near) => UnknownField::Near(near),
        None => UnknownField::Known(known),
    }
}

/// The known word that is nearest to a word; `None` if no word is similar.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let near = known.iter().map(|known| (distance(&lower, &known.to_lowercase()), *known));
    let (distance, near) = near.min_by_key(|(distance, _)| *distance)?;
    // Two typing errors; in a long word one for each four letters.
    (distance <= 2.max(near.len() / 4) && distance < near.len()).then_some(near)
}

/// Levenshtein distance, over the first 64 characters of each word.
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
    fn the_error_names_the_nearest_known_word_or_all_if_none_is_similar() {
        const KNOWN: &[&str] = &["config", "extensions", "kernelArguments", "osImageURL"];
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
            assert_eq!(nearest(word, KNOWN), near, "{word:?}");
        }
        assert_eq!(unknown_field("confg", KNOWN).to_string(), "unknown field; did you mean config?");
        assert_eq!(
            unknown_field("x", KNOWN).to_string(),
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
