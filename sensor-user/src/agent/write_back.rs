//! Writing declared state back: a trait that the room `repair` implements.
//!
//! In: nothing. Out: the trait. The loop decides what is written back and when; it writes nothing itself.

use crate::observation::Observer;
use sensor_model::compare::Ids;
use sensor_model::difference::Difference;
use sensor_model::expectation::Expectation;
use sensor_model::merge::Rendered;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;

/// What was done to one thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenBack {
    /// How it differed before; empty if nothing was written.
    pub before: Vec<Difference>,
    /// Each step in a few words, without contents.
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

/// What is to be written back.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The host's files.
    pub observer: &'a Arc<Observer>,
    /// The config, with contents.
    pub config: &'a Rendered,
    /// What the thing should be.
    pub expectation: &'a Expectation,
    /// Users and groups that expectations name.
    pub ids: &'a Ids,
}

/// Writes declared state back.
pub trait WriteBack {
    /// Makes a thing what it should be.
    ///
    /// # Errors
    /// Why it is not, or not entirely.
    fn write_back<'a>(
        &'a mut self,
        wanted: Wanted<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<WrittenBack, WriteBackError>> + 'a>>;
}
