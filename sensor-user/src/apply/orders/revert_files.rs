//! The files of an order to write back, below the state directory.
//!
//! In: the things that the daemon names, and the results of the process that writes back. Out: two files that a crash leaves whole.
//! Both name things and have no contents. Only root can open their directory.

use super::durable;
use crate::{
    agent::{ordered_reverts::OrderedRevert, write_back::Quarantined},
    bounded,
};
use sensor_model::{difference::Difference, expectation::Thing};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The file with a [`RevertRequest`].
const REQUEST: &str = "revert.json";
/// The file with the [`RevertedThings`].
const RESULTS: &str = "reverted.json";
/// Most bytes of either.
const BYTES: u64 = 64 << 20;

/// The things to write back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevertRequest {
    /// The time of the order. The results have the same.
    pub(super) id: String,
    /// The daemon uses the last usable configs and policies, so the process has to use them too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) last_usable: bool,
    /// The things.
    pub(super) things: Vec<OrderedRevert>,
}

/// The results of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevertedThings {
    /// That of the request.
    pub(super) id: String,
    /// One result for each thing.
    pub(super) things: Vec<RevertedThing>,
}

/// The result for one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevertedThing {
    /// The thing.
    pub(super) thing: Thing,
    /// How it differed before; empty if it did not, or if nothing was written.
    #[serde(default)]
    pub(super) before: Vec<Difference>,
    /// Each change in a few words, without contents.
    #[serde(default)]
    pub(super) actions: Vec<String>,
    /// Undeclared objects that were moved to the quarantine.
    #[serde(default)]
    pub(super) quarantined: Vec<Quarantined>,
    /// Why the thing is not as declared, or only partly.
    #[serde(default)]
    pub(super) error: Option<String>,
}

impl RevertedThing {
    /// A thing that was not written.
    pub(super) fn failed(thing: Thing, error: &dyn std::error::Error) -> Self {
        let error = Some(error.to_string());
        Self { thing, before: Vec::new(), actions: Vec::new(), quarantined: Vec::new(), error }
    }
}

/// The directory of both files.
#[derive(Debug, Clone)]
pub(super) struct RevertFiles {
    path: PathBuf,
}

impl RevertFiles {
    /// Below the state directory. Nothing is made yet.
    pub(super) fn new(state: &Path) -> Self {
        Self { path: state.join("order") }
    }

    /// Keeps a request. The results of an earlier one are removed.
    pub(super) fn set_request(&self, request: &RevertRequest) -> io::Result<()> {
        durable::make_directory(&self.path)?;
        durable::remove(&self.path.join(RESULTS))?;
        self.keep(REQUEST, request)
    }

    /// The request; `None` without one.
    ///
    /// # Errors
    /// The file cannot be read, or is none of this version.
    pub(super) fn request(&self) -> io::Result<Option<RevertRequest>> {
        self.read(REQUEST)
    }

    /// Keeps the results.
    pub(super) fn set_results(&self, results: &RevertedThings) -> io::Result<()> {
        self.keep(RESULTS, results)
    }

    /// Whether there are results.
    pub(super) fn have_results(&self) -> bool {
        self.path.join(RESULTS).exists()
    }

    /// The results; `None` without any.
    ///
    /// # Errors
    /// The file cannot be read, or is none of this version.
    pub(super) fn results(&self) -> io::Result<Option<RevertedThings>> {
        self.read(RESULTS)
    }

    /// Removes the request and the results.
    pub(super) fn remove(&self) -> io::Result<()> {
        [REQUEST, RESULTS].iter().try_for_each(|name| durable::remove(&self.path.join(name)))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        match bounded::read(&self.path.join(name), BYTES) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn keep(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        durable::replace(&self.path.join(name), &serde_json::to_vec(value)?)
    }
}
