//! `holdfast adopt`: the present state as a MachineConfig.

use super::{
    exit::{BadInput, DRIFT, IN_SYNC, runtime},
    output::{Screen, say},
    sources::{Loaded, Sources, host_path},
};
use crate::{bounded, repair::Restorer};
use anyhow::Context as _;
use sensor_model::{
    adopt::{Adoption, adopt},
    data_url::MAXIMUM_CONTENT,
    expectation::{Expectation, Expected, FileExpectation, Owner, Source, Thing},
    observation::{FileType, Observation},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Adopt {
    /// Paths on the host; for a unit, the path of its file.
    #[arg(value_parser = host_path, required = true)]
    path: Vec<PathBuf>,
    /// Name of the MachineConfig; MachineConfigs are merged by name, and the last one wins. [default: 99-<ROLE>-adopted]
    #[arg(long, value_parser = name)]
    name: Option<String>,
    /// Role of the pools that select it.
    #[arg(long, default_value = "worker", value_parser = name)]
    role: String,
    /// Print contents that the drift policy marks as secret, too.
    #[arg(long)]
    secrets: bool,
    #[command(flatten)]
    sources: Sources,
}

/// What is at a path, and what declares it.
#[derive(Debug)]
struct Seen {
    path: PathBuf,
    expectation: Option<Expectation>,
    observation: Observation,
    bytes: Option<Vec<u8>>,
}

/// A name that Kubernetes accepts for an object.
fn name(text: &str) -> Result<String, String> {
    let fine = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let inside = |character: char| fine(character) || matches!(character, '-' | '.');
    if text.len() <= 253 && text.chars().all(inside) && text.starts_with(fine) && text.ends_with(fine) {
        return Ok(text.to_owned());
    }
    Err("not a Kubernetes name: lower-case letters, digits, `-` and `.`, a letter or digit at both ends"
        .to_owned())
}

impl Adopt {
    /// Looks and prints the manifest. Standard error names what the manifest cannot declare.
    ///
    /// # Errors
    /// Bad input, and a file that changes while it is read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let loaded = self.sources.load()?;
        let mut restorer = Restorer::new(Arc::clone(&loaded.observer), &loaded.root);
        let runtime = runtime()?;
        let mut seen = Vec::new();
        for path in &self.path {
            let mut expectations: Vec<Option<Expectation>> = loaded
                .things_at(path)?
                .into_iter()
                .filter(|expectation| *expectation.thing.path() == **path)
                .map(Some)
                .collect();
            if expectations.is_empty() {
                expectations.push(None);
            }
            for expectation in expectations {
                let unmanaged = unmanaged(path);
                let (observation, _) = runtime.block_on(
                    restorer.look(expectation.as_ref().unwrap_or(&unmanaged), &loaded.desired().ids),
                );
                let bytes = self.bytes(&loaded, path, &observation)?;
                seen.push(Seen { path: path.clone(), expectation, observation, bytes });
            }
        }
        let adoptions: Vec<Adoption<'_>> = seen
            .iter()
            .map(|seen| Adoption {
                path: &seen.path,
                expectation: seen.expectation.as_ref(),
                observation: &seen.observation,
                bytes: seen.bytes.as_deref(),
            })
            .collect();
        let name = self.name.clone().unwrap_or_else(|| format!("99-{}-adopted", self.role));
        let fragment = adopt(&name, &self.role, &adoptions)?;
        screen.writer().write_all(fragment.yaml.as_bytes())?;
        screen.flush()?;
        for left_out in &fragment.left_out {
            let path = left_out.path.to_string_lossy();
            say(&format!("left out: {path}: {}", left_out.reason));
        }
        let withheld = seen.iter().any(|seen| match &seen.observation {
            Observation::Object(object) => object.file_type == FileType::Regular && seen.bytes.is_none(),
            _ => false,
        });
        if withheld {
            say("hint: `--secrets` prints contents that the drift policy marks as secret");
        }
        Ok(if fragment.left_out.is_empty() { IN_SYNC } else { DRIFT })
    }

    /// A file's content, unless a rule of the policy marks it as secret.
    fn bytes(
        &self,
        loaded: &Loaded,
        path: &Path,
        observation: &Observation,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let Observation::Object(object) = observation else { return Ok(None) };
        let secret = loaded.decision(path).rule.is_some_and(|(rule, _)| rule.secret);
        if object.file_type != FileType::Regular || (secret && !self.secrets) {
            return Ok(None);
        }
        if object.size > MAXIMUM_CONTENT as u64 {
            let reason = format!("{}: larger than a MachineConfig may be", path.display());
            return Err(BadInput::because(reason));
        }
        let file = loaded.observer.open_file(path).with_context(|| format!("read {}", path.display()))?;
        let bytes = bounded::read_open(file, MAXIMUM_CONTENT as u64);
        bytes.map(Some).with_context(|| format!("read {}", path.display()))
    }
}

/// The expectation by which a path without a declaration is looked at.
fn unmanaged(path: &Path) -> Expectation {
    Expectation {
        thing: Thing::file(path),
        expected: Expected::File(FileExpectation {
            content: None,
            keys: Vec::new(),
            layout_free: false,
            mode: 0,
            user: Owner::Undeclared,
            group: Owner::Undeclared,
            may_be_missing: true,
        }),
        ssh_keys: false,
        label: None,
        source: Source::new(String::new(), String::new()).into(),
    }
}
