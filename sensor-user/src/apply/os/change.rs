//! The parts of a change of the OS that all OS tools share.
//!
//! In: a change, and the arguments that are booted or staged. Out: the image to stage, and how the arguments differ.

use super::error::UnsupportedChange;
use sensor_model::{changes::ChangeOperation, journal::OsChange, os::arguments, waiting::WaitingArgument};

/// How arguments differ from those of a change: missing ones, removed ones that are still present, and another order. Arguments
/// that wait for the next boot do not count. If some wait, this boot cannot have changed the order, so it does not count either.
pub(super) fn arguments_differ(
    change: &OsChange,
    found: &[String],
    place: &str,
    waits: &[WaitingArgument],
) -> Vec<String> {
    let mut problems = Vec::new();
    let is_order_due = waits.is_empty() && !arguments::are_set(&change.add_arguments, found);
    let waits = |word: &str, operation: ChangeOperation| {
        waits.iter().any(|waits| waits.argument == word && waits.operation == operation)
    };
    let missing = arguments::missing(&change.add_arguments, found).into_iter();
    let missing: Vec<&str> = missing.filter(|word| !waits(word, ChangeOperation::Add)).collect();
    if !missing.is_empty() {
        problems.push(format!("missing expected kernel arguments: [{}]", missing.join(" ")));
    }
    let gone = change.gone();
    let gone = gone.iter().filter(|word| !change.add_arguments.contains(word));
    for word in gone.filter(|word| !waits(word, ChangeOperation::Remove)) {
        if arguments::missing(std::slice::from_ref(word), found).is_empty() {
            problems.push(format!("kernel argument {word} is still {place}"));
        }
    }
    if is_order_due {
        let line = |words: Vec<&String>| words.into_iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        problems.push(format!(
            "kernel arguments have to be in the order [{}], and are [{}]",
            line(change.add_arguments.iter().filter(|word| arguments::is_among(word, found)).collect()),
            line(arguments::common(found, &change.add_arguments))
        ));
    }
    problems
}

/// Words as owned strings.
pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The image that a change stages; `None` where the image stays.
///
/// # Errors
/// The change names no image, or one that a tool would take for an option.
pub(super) fn changed_image(change: &OsChange) -> Result<Option<&str>, UnsupportedChange> {
    if change.old_image == change.new_image {
        return Ok(None);
    }
    let image = change.new_image.as_deref().ok_or(UnsupportedChange::NoImage)?;
    // The tool would take an image that begins with a dash for an option.
    if image.starts_with('-') || image.is_empty() {
        return Err(UnsupportedChange::NotAnImage(image.to_owned()));
    }
    Ok(Some(image))
}
