//! Writing declared state back: a trait that the room `repair` implements.
//!
//! In: nothing. Out: the trait. No state: the loop decides what is written back and when, and writes nothing itself.

use crate::observation::Observer;
use sensor_model::compare::Ids;
use sensor_model::difference::Difference;
use sensor_model::expectation::Expectation;
use sensor_model::merge::Rendered;
use sensor_model::record::Actor;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;

/// The result for one thing.
#[derive(Debug, Default)]
pub struct WrittenBack {
    /// The differences before; empty if nothing was written.
    pub before: Vec<Difference>,
    /// Each change in a few words, without contents.
    pub actions: Vec<String>,
    /// Undeclared objects that were moved to the quarantine.
    pub quarantined: Vec<Quarantined>,
    /// Why the thing is only partly as declared; `None` if nothing failed.
    pub left: Option<WriteBackError>,
}

/// An object that was moved to the quarantine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Quarantined {
    /// Where it was. What is not printable is an escape.
    pub path: String,
    /// The id of the item.
    pub item: String,
}

/// A thing was not written back, or not entirely.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct WriteBackError(Box<dyn Error + Send + Sync>);

impl WriteBackError {
    /// With the error of an implementation of [`WriteBack`].
    pub fn new(source: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(source))
    }
}

/// The thing to write back.
#[derive(Debug, Clone, Copy)]
pub struct WriteBackRequest<'a> {
    /// The host's files.
    pub observer: &'a Arc<Observer>,
    /// The config, with contents.
    pub config: &'a Rendered,
    /// The thing and its expected state.
    pub expectation: &'a Expectation,
    /// Users and groups that expectations name.
    pub ids: &'a Ids,
    /// The actors that may have caused the drift, the one of the last change first.
    pub actors: &'a [Actor],
    /// The numbers of other processes of Holdfast that write now.
    pub writers: &'a [u32],
}

/// Writes declared state back.
pub trait WriteBack {
    /// Writes a thing's declared state.
    ///
    /// # Errors
    /// The state was not written, or only a part of it.
    fn write_back<'a>(
        &'a mut self,
        wanted: WriteBackRequest<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<WrittenBack, WriteBackError>> + 'a>>;

    /// Completes or undoes what a killed daemon left half done. The log has what cannot be.
    fn recover(&mut self, observer: &Observer);
}
