//! The order of the modules.
//!
//! In: the table of `docs/architecture.md` and the sources of all crates. Out: every import from a module to one below it in
//! the table, and every circle between files.

mod circles;
mod source;
mod table;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::dist;
use crate::run::say;
use source::{Crate, Import};

/// The document with the tables.
const DOCUMENT: &str = "docs/architecture.md";

/// Root files of the crates, by the crates' folders.
const CRATES: [(&str, &str); 8] = [
    ("cluster", "src/lib.rs"),
    ("sensor-common", "src/lib.rs"),
    ("sensor-ebpf", "src/main.rs"),
    ("sensor-model", "src/lib.rs"),
    ("sensor-model/protocol", "src/lib.rs"),
    ("sensor-user", "src/lib.rs"),
    ("vm-tests", "src/lib.rs"),
    ("xtask", "src/main.rs"),
];

/// What is wrong with the modules of a crate.
#[derive(Debug, PartialEq, Eq)]
enum LayerFault {
    /// A module takes something from one below it.
    Back { file: PathBuf, from: String, to: String, name: String },
    /// Files take from each other in a circle: each file with what it takes from the next.
    Circle(Vec<(PathBuf, String)>),
    /// The crate's root file defines something that a module takes.
    Root { file: PathBuf, name: String },
    /// The crate has a module that the table does not name.
    Unnamed(String),
    /// The table names a module that the crate does not have.
    Missing(String),
}

impl fmt::Display for LayerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Back { file, from, to, name } => {
                write!(
                    f,
                    "{}: `{from}` takes {} from `{to}`, which stands below it",
                    file.display(),
                    shown(name)
                )
            }
            Self::Circle(files) => {
                write!(f, "a circle:")?;
                for (file, name) in files {
                    write!(f, "\n      {} takes {} from the next", file.display(), shown(name))?;
                }
                Ok(())
            }
            Self::Root { file, name } => {
                write!(f, "{}: takes {} from the crate's root file", file.display(), shown(name))
            }
            Self::Unnamed(module) => write!(f, "the module `{module}` is not in the table"),
            Self::Missing(module) => write!(f, "the table names `{module}`, which the crate does not have"),
        }
    }
}

fn shown(name: &str) -> String {
    if name.is_empty() { "everything".to_owned() } else { format!("`{name}`") }
}

/// Checks all crates.
pub(crate) fn check() -> Result<()> {
    let root = dist::root();
    let document = root.join(DOCUMENT);
    let text = std::fs::read_to_string(&document).with_context(|| format!("read {}", document.display()))?;
    let mut count = 0;
    for (name, file) in CRATES {
        let order =
            table::order(&text, name).with_context(|| format!("{DOCUMENT}: the modules of `{name}`"))?;
        for fault in faults(&root.join(name).join(file), &order)? {
            say(name, &fault.to_string());
            count += 1;
        }
    }
    if count > 0 {
        bail!(
            "{count} imports run back or in a circle; move what both need to a module above both, \
             or correct the order in {DOCUMENT}"
        );
    }
    Ok(())
}

/// The faults of one crate, whose modules must have this order.
fn faults(root: &Path, order: &[String]) -> Result<Vec<LayerFault>> {
    let modules = Crate::read(root)?;
    let imports = modules.imports();
    let mut faults = Vec::new();
    let present = modules.top_level();
    faults.extend(
        present
            .iter()
            .filter(|m| !order.iter().any(|o| o == *m))
            .map(|m| LayerFault::Unnamed((*m).to_owned())),
    );
    faults.extend(order.iter().filter(|o| !present.contains(&o.as_str())).cloned().map(LayerFault::Missing));
    faults.extend(imports.iter().filter_map(|import| back(&modules, import, order)));
    faults.extend(circles::circles(&modules, &imports).into_iter().map(LayerFault::Circle));
    Ok(faults)
}

/// An import from a module below.
fn back(modules: &Crate, import: &Import, order: &[String]) -> Option<LayerFault> {
    let file = modules.file(&import.from)?.to_owned();
    // The root names its modules and re-exports them.
    let from = import.from.first()?;
    let Some(to) = import.to.first() else {
        return Some(LayerFault::Root { file, name: import.name.clone() });
    };
    let place = |module: &String| order.iter().position(|name| name == module);
    match (place(from), place(to)) {
        (Some(from_place), Some(to_place)) if from_place < to_place => {
            Some(LayerFault::Back { file, from: from.clone(), to: to.clone(), name: import.name.clone() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
