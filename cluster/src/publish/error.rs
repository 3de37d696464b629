//! Why an object was not written.

use crate::metrics::WriteResult;
use kube::core::Status;
use std::time::Duration;
use thiserror::Error;

/// The status code of an object or a kind that does not exist.
const NOT_FOUND: u16 = 404;
/// The status code of an object that exists already, or that another writer owns.
const CONFLICT: u16 = 409;
/// Status codes of answers that another attempt may change, below those of the server's own errors.
const TEMPORARY: [u16; 3] = [401, 408, 429];
/// The first status code of the server's own errors.
const SERVER_ERRORS: u16 = 500;

/// Why an object was not written or read.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The API server refuses the request.
    #[error("{object}: the API server refuses it: {} ({} {})", status.message, status.code, status.reason)]
    Refused {
        /// The object.
        object: &'static str,
        /// The API server's reason.
        status: Box<Status>,
    },
    /// The API server did not get the request, or its answer cannot be used.
    #[error("{object}: the API server does not answer")]
    Unanswered {
        /// The object.
        object: &'static str,
        /// The reason.
        #[source]
        error: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("{object}: the API server did not answer in time")]
    TimedOut {
        /// The object.
        object: &'static str,
    },
    /// The Node that the API server answered with has no uid.
    #[error("the Node has no uid")]
    NoUid,
}

impl PublishError {
    /// The error of a request about this object.
    pub(crate) fn of(object: &'static str, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused { object, status },
            error => Self::Unanswered { object, error: Box::new(error) },
        }
    }

    /// How a write ended that gave this.
    pub(super) const fn write_result<T>(result: &Result<T, Self>) -> WriteResult {
        match result {
            Ok(_) => WriteResult::Success,
            Err(Self::Refused { .. } | Self::NoUid) => WriteResult::Refused,
            Err(Self::Unanswered { .. }) => WriteResult::Unanswered,
            Err(Self::TimedOut { .. }) => WriteResult::TimedOut,
        }
    }

    /// Whether the object, or its kind, does not exist.
    pub fn is_missing(&self) -> bool {
        // By the code: the API server's answer about an unknown kind is no Status, so it has no reason.
        self.code() == Some(NOT_FOUND)
    }

    /// Whether the object exists already.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(CONFLICT)
    }

    /// Whether another attempt may have another result.
    pub fn is_temporary(&self) -> bool {
        self.code().is_none_or(|code| TEMPORARY.contains(&code) || code >= SERVER_ERRORS)
    }

    /// Whether the API server may have done what was asked.
    pub fn may_have_happened(&self) -> bool {
        self.code().is_none_or(|code| code >= SERVER_ERRORS)
    }

    /// The status code of the API server's answer.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.code),
            Self::Unanswered { .. } | Self::TimedOut { .. } | Self::NoUid => None,
        }
    }

    /// How long the API server asks to wait.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { status, .. } => {
                let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                Duration::from_secs(seconds.into())
            }
            Self::Unanswered { .. } | Self::TimedOut { .. } | Self::NoUid => Duration::ZERO,
        }
    }
}
