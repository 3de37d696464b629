//! Why the sensor gave no answer.

use sensor_model::socket::{SocketError, SocketErrorReason};
use std::path::PathBuf;
use thiserror::Error;

/// Why the sensor gave no answer that can be used.
#[derive(Debug, Error)]
pub enum SensorError {
    /// There is no socket, or nothing accepts its connections.
    #[error("cannot connect to the sensor's socket {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        #[source]
        error: std::io::Error,
    },
    /// The connection ended before the answer did. The sensor closes connections of other users than its `--reporter-uid`.
    #[error("the connection to the sensor broke off")]
    Broken {
        /// The reason.
        #[from]
        error: hyper::Error,
    },
    /// The sensor is slower than it may be.
    #[error("{}: the sensor did not answer in time", path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
    },
    /// The answer is larger than it may be.
    #[error("{request}: the sensor's answer has more than {limit} bytes")]
    TooLong {
        /// The request.
        request: String,
        /// Most bytes of its answer.
        limit: usize,
    },
    /// The answer is not what the contract says.
    #[error("{request}: the sensor's answer is not valid")]
    Invalid {
        /// The request.
        request: &'static str,
        /// The reason.
        #[source]
        error: serde_json::Error,
    },
    /// The answer has bytes that are no text.
    #[error("{request}: the sensor's answer is no UTF-8 text")]
    NoText {
        /// The request.
        request: &'static str,
        /// The reason.
        #[source]
        error: std::str::Utf8Error,
    },
    /// The answer follows another contract.
    #[error("{request}: this version of holdfast-cluster does not know the schema `{schema}`")]
    Schema {
        /// The request.
        request: &'static str,
        /// The schema that the answer names.
        schema: String,
    },
    /// The sensor refuses the request, with its reason.
    #[error("{request}: the sensor refuses the request: {}", error.error)]
    Refused {
        /// The request.
        request: String,
        /// The sensor's reason.
        error: SocketError,
    },
    /// The sensor answers with an error that has no reason.
    #[error("{request}: the sensor answers with the status code {code}")]
    Code {
        /// The request.
        request: String,
        /// The status code.
        code: u16,
    },
    /// The sensor gave a tag that no request can have.
    #[error("the tag of the sensor's status is not valid")]
    Tag,
}

impl SensorError {
    /// The sensor would refuse this body, because it has more than so many bytes.
    pub(super) fn too_large(request: &str, what: &str, body: &[u8], limit: usize) -> Self {
        let error = format!(
            "{what}: {} bytes as JSON, but the sensor takes at most {limit} bytes: remove some",
            body.len()
        );
        let reason = SocketErrorReason::TooLarge;
        Self::Refused { request: request.to_owned(), error: SocketError { reason, error, oldest: None } }
    }

    /// Whether the sensor runs and has no current status: it has just started, or its loop hangs.
    pub fn is_not_ready(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if error.reason == SocketErrorReason::NotReady)
    }

    /// Whether the sensor answers, but not with anything that can be used. Otherwise it does not run, or does not accept us.
    pub fn is_unusable_answer(&self) -> bool {
        match self {
            Self::Refused { .. } => !self.is_not_ready(),
            Self::TooLong { .. }
            | Self::Invalid { .. }
            | Self::NoText { .. }
            | Self::Schema { .. }
            | Self::Code { .. }
            | Self::Tag => true,
            Self::Connect { .. } | Self::Broken { .. } | Self::NoAnswer { .. } => false,
        }
    }
}
