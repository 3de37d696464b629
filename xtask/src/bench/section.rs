//! The sections of `docs/performance.md` that are measured apart from the rest.
//!
//! In: a page. Out: the page with another text of a section, and the sections that stay when the rest is written again. A section
//! begins with its heading and ends before the next one of the same rank, or with the page.

use std::fs;

use anyhow::{Context as _, Result};

use crate::dist;
use crate::run::say;

/// The page.
const PAGE: &str = "docs/performance.md";
/// How a heading of this rank begins.
const RANK: &str = "\n## ";
/// The section about two configs.
pub(super) const COMPARE: &str = "\n## What comparing two configs costs\n";
/// The section about the cluster side.
pub(super) const CLUSTER: &str = "\n## What the cluster side costs\n";
/// The section about the index of an OS image.
pub(super) const IMAGES: &str = "\n## What the index of an OS image costs\n";
/// The headings of all sections, in their order.
const SECTIONS: [&str; 3] = [COMPARE, IMAGES, CLUSTER];

/// Writes a section, which begins with its heading.
pub(super) fn write(heading: &str, section: &str) -> Result<()> {
    let place = dist::root().join(PAGE);
    let page = fs::read_to_string(&place).with_context(|| format!("cannot read {}", place.display()))?;
    fs::write(&place, replaced(&page, heading, section))
        .with_context(|| format!("cannot write {}", place.display()))?;
    say("bench", &format!("wrote {}", place.display()));
    Ok(())
}

/// All sections of a page.
pub(super) fn kept(page: &str) -> String {
    SECTIONS.map(|heading| text(page, heading)).concat()
}

/// The page with another text of one section. The sections are last, in their order.
fn replaced(page: &str, heading: &str, section: &str) -> String {
    let rest = SECTIONS.iter().fold(page.to_owned(), |page, heading| {
        let old = text(&page, heading);
        if old.is_empty() { page } else { page.replacen(old, "", 1) }
    });
    let sections = SECTIONS.map(|known| if known == heading { section } else { text(page, known) });
    format!("{rest}{}", sections.concat())
}

/// A section of a page; empty if it is not there.
fn text<'a>(page: &'a str, heading: &str) -> &'a str {
    let Some(start) = page.find(heading) else { return "" };
    let body = start + heading.len();
    let end = page[body..].find(RANK).map_or(page.len(), |end| body + end);
    &page[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_and_the_others_stay() {
        let [first, _, second] = SECTIONS;
        let page = format!("# Page\n\n## Other\nx\n{first}a\n");
        let both = replaced(&page, second, &format!("{second}b\n"));
        assert_eq!(both, format!("# Page\n\n## Other\nx\n{first}a\n{second}b\n"));
        let other = replaced(&both, first, &format!("{first}c\n"));
        assert_eq!(other, format!("# Page\n\n## Other\nx\n{first}c\n{second}b\n"));
        assert_eq!(kept(&other), format!("{first}c\n{second}b\n"));
        assert_eq!(kept("# Page\n"), "");
    }
}
