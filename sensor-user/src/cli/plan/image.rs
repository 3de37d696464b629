//! The changes that another OS image brings, for people to read.

use crate::{
    cli::output::{Screen, Tone, clean, count},
    image::{ChangedLayer, ImageChanges, ImageUpdate},
};
use std::io;

/// Most layers and units that are printed. JSON has all.
const MOST: usize = 20;

/// Prints the changes: in all, by layer, by the time at which they take effect, by unit.
pub(super) fn print(update: &ImageUpdate, screen: &mut Screen) -> io::Result<()> {
    match update {
        ImageUpdate::Known(changes) => known(changes, screen),
        ImageUpdate::Unknown(reason) => {
            let word = screen.paint(Tone::Notable, "not known");
            screen.line(&format!("what the new OS image changes is {word}: {}", clean(reason)))
        }
    }
}

fn known(changes: &ImageChanges, screen: &mut Screen) -> io::Result<()> {
    let ImageChanges { old, new, added, removed, changed, .. } = changes;
    screen.line(&format!("OS image {} -> {}:", clean(old), clean(new)))?;
    let all = count(added + removed + changed, "path");
    screen.line(&format!("  {all}: {added} added, {removed} removed, {changed} changed"))?;
    let effects = [
        (changes.need_reboot, "need a reboot: boot loader, kernel, modules, firmware, process 1"),
        (changes.of_units, "are files of units or programs that units start"),
        (changes.libraries, "are libraries, which processes use when they start again"),
        (changes.files, "are other files, which processes read when they open them again"),
    ];
    for (number, text) in effects.into_iter().filter(|(number, _)| *number > 0) {
        screen.line(&format!("  {number} {text}"))?;
    }
    let units = changes.units.iter().take(MOST);
    for unit in units {
        let paths = unit.paths.join(", ");
        screen.line(&format!("  unit {}: {}", clean(&unit.unit), clean(&paths)))?;
    }
    more(changes.units.len(), "unit", screen)?;
    for layer in changes.layers.iter().take(MOST) {
        let line = screen.paint(Tone::Quiet, &clean(&origin(layer)));
        screen.line(&format!("  {} by {line}", count(layer.paths, "path")))?;
    }
    more(changes.layers.len(), "layer", screen)
}

/// A line for what is not printed.
fn more(all: usize, what: &str, screen: &mut Screen) -> io::Result<()> {
    match all.checked_sub(MOST) {
        None | Some(0) => Ok(()),
        Some(rest) => screen.line(&format!("  {} more, with -o json", count(rest, what))),
    }
}

/// The layer, with its image, its digest and its line of the history.
fn origin(layer: &ChangedLayer) -> String {
    let image = if layer.of_new { "" } else { " of the old image" };
    let digest = if layer.digest.is_empty() { String::new() } else { format!(", {}", layer.digest) };
    let history = layer.history.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
    format!("layer {}{image}{digest}{history}", layer.number)
}
