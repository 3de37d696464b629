//! Writing declared state back: a trait that the room `repair` implements.
//!
//! In: nothing. Out: the trait. No state: the loop decides what is written back and when, and writes nothing itself.

use crate::observation::Observer;
use sensor_model::compare::Ids;
use sensor_model::difference::Difference;
use sensor_model::expectation::Expectation;
use sensor_model::merge::Rendered;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;

/// The result for one thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenBack {
    /// The differences before; empty if nothing was written.
    pub before: Vec<Difference>,
    /// Each change in a few words, without contents.
    pub actions: Vec<String>,
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
}
