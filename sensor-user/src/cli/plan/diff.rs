//! The change of a content as text: a unified diff, or sizes and digests.

use crate::{
    apply::{ChangedContent, ContentDigest, ContentSides, HiddenBecause},
    cli::output::{Screen, clean, count},
};
use similar::TextDiff;
use std::io;

/// Most lines of one diff that are printed.
const MOST_LINES: usize = 200;

/// Prints how the contents of a path differ.
pub(super) fn print(changed: &ChangedContent, screen: &mut Screen) -> io::Result<()> {
    match &changed.sides {
        ContentSides::Shown { old, new } => {
            let name = |side: &Option<String>| match side {
                Some(_) => clean(&changed.path),
                None => "/dev/null".to_owned(),
            };
            let names = (&*name(old), &*name(new));
            unified(old.as_deref().unwrap_or_default(), new.as_deref().unwrap_or_default(), names, screen)
        }
        ContentSides::Hidden { because, old, new } => {
            let why = match because {
                HiddenBecause::Secret => "secret",
                HiddenBecause::NotText => "not text",
            };
            screen.line(&format!("  content of {} ({why}):", clean(&changed.path)))?;
            screen.line(&format!("  - {}", digest(old.as_ref())))?;
            screen.line(&format!("  + {}", digest(new.as_ref())))
        }
    }
}

fn digest(content: Option<&ContentDigest>) -> String {
    content.map_or_else(
        || "nothing".to_owned(),
        |content| format!("{} with SHA-256 {}", count(content.bytes, "byte"), content.sha256),
    )
}

fn unified(before: &str, after: &str, (old, new): (&str, &str), screen: &mut Screen) -> io::Result<()> {
    let diff = TextDiff::from_lines(before, after);
    let text = diff.unified_diff().context_radius(3).header(old, new).to_string();
    let lines: Vec<&str> = text.lines().collect();
    for line in lines.iter().take(MOST_LINES) {
        screen.diff_line("  ", line)?;
    }
    if lines.len() > MOST_LINES {
        screen.line(&format!("  … and {} more", count(lines.len() - MOST_LINES, "line")))?;
    }
    Ok(())
}
