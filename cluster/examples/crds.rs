//! Writes the CustomResourceDefinitions, which are generated from the types of `holdfast_cluster::api`.
//!
//! In: a directory. Out: one YAML file for each definition in it. `cargo xtask generate` runs it. It is an example, so that the
//! product does not contain it.

use std::{error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = PathBuf::from(std::env::args_os().nth(1).ok_or("give a directory to write to")?);
    fs::create_dir_all(&directory)?;
    for (name, definition) in holdfast_cluster::api::definitions() {
        let text = serde_saphyr::to_string(&definition)?;
        fs::write(
            directory.join(name),
            format!("# Made by `cargo xtask generate`; not edited by hand.\n{text}"),
        )?;
    }
    Ok(())
}
