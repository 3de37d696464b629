//! The order of a crate's modules, from the tables of a document.
//!
//! In: Markdown. Out: the names in the first column of the table below the crate's heading, in their order.

use anyhow::{Result, bail};

/// The order of the modules of a crate. Its heading is the crate's name in backticks; the table below it names one or
/// more modules in the first cell of each row.
pub(super) fn order(document: &str, name: &str) -> Result<Vec<String>> {
    let heading = format!("### `{name}`");
    let mut lines = document.lines().skip_while(|line| line.trim() != heading);
    if lines.next().is_none() {
        bail!("no heading `{heading}`");
    }
    let section = lines.take_while(|line| !line.starts_with('#'));
    let rows = section.filter(|line| line.starts_with('|')).skip(2);
    let mut order: Vec<String> = Vec::new();
    for row in rows {
        let cell = row.split('|').nth(1).unwrap_or_default();
        for module in cell.split('`').skip(1).step_by(2) {
            if order.iter().any(|named| named == module) {
                bail!("`{module}` stands there twice");
            }
            order.push(module.to_owned());
        }
    }
    if order.is_empty() {
        bail!("no table below `{heading}`");
    }
    Ok(order)
}
