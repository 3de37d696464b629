//! Whether a caller may have an answer: the API server decides.
//!
//! In: a bearer token and what its owner wants. Out: yes, or why not. A `TokenReview` tells whose token it is, and a
//! `SubjectAccessReview` whether its owner has the right. Decisions are kept for a short time under a hash of the token; the token
//! itself is neither kept nor logged. One pair of requests is under way at a time, so a flood of tokens does not reach the API
//! server as one.

use crate::metrics::{ReporterMetrics, ReviewKind};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use sensor_model::socket::METRICS;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, timeout};

/// How long a permission is believed: between the two minutes for which the kubelet believes a token, and its five minutes for a
/// permission. A scraper then causes one pair of requests in this time.
const ALLOWED_FOR: Duration = Duration::from_mins(3);
/// How long a refusal is believed.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Most decisions of each kind that are kept. Refusals cannot displace permissions.
const KEPT: usize = 256;
/// Longest time of a decision, with the wait for another one.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest time between two warnings about an API server that does not decide.
const WARN_AGAIN: Duration = Duration::from_mins(5);

/// What a caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The page of metrics: verb `get` on the URL `/metrics`.
    Metrics,
    /// The node's status and log: verb `get` on `driftreports/log` of `holdfast.dev`, by the node's name.
    Log,
}

/// Why a caller gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Denial {
    /// The API server does not know the token.
    #[error("the API server does not accept the bearer token")]
    Unauthenticated,
    /// The token's owner has no right to the page of metrics.
    #[error(
        "the owner of the token may not `get` the URL /metrics; the ClusterRole holdfast-metrics-reader has this right"
    )]
    NoMetrics,
    /// The token's owner has no right to this node's log.
    #[error(
        "the owner of the token may not `get` driftreports/log of holdfast.dev with this node's name; \
         the ClusterRole holdfast-log-reader has this right"
    )]
    NoLog,
    /// The API server did not decide.
    #[error("the API server did not decide about the token; see the log of the reporter")]
    Undecided,
}

type Key = ([u8; 32], Access);

#[derive(Debug, Clone, Copy)]
struct Decision {
    result: Result<(), Denial>,
    until: Instant,
}

#[derive(Debug, Default)]
struct Decisions {
    allowed: HashMap<Key, Decision>,
    refused: HashMap<Key, Decision>,
}

/// Asks the API server, and keeps its decisions.
#[derive(Debug)]
pub struct Authorizer {
    tokens: Api<TokenReview>,
    accesses: Api<SubjectAccessReview>,
    node: String,
    metrics: ReporterMetrics,
    decisions: Mutex<Decisions>,
    /// Held while the API server is asked.
    asking: tokio::sync::Mutex<()>,
    warned_at: Mutex<Option<Instant>>,
}

impl Authorizer {
    /// Decides about the pages of this node. Nothing is asked yet.
    pub fn new(client: &Client, node: &str, metrics: ReporterMetrics) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            accesses: Api::all(client.clone()),
            node: node.to_owned(),
            metrics,
            decisions: Mutex::default(),
            asking: tokio::sync::Mutex::new(()),
            warned_at: Mutex::new(None),
        }
    }

    /// Whether the owner of the token may have this.
    ///
    /// # Errors
    /// Why not.
    pub async fn decide(&self, token: &str, access: Access) -> Result<(), Denial> {
        let key = (Sha256::digest(token.as_bytes()).into(), access);
        if let Some(result) = self.known(&key) {
            return result;
        }
        let asked = timeout(DECISION_TIMEOUT, async {
            let _one = self.asking.lock().await;
            // Another request with the same token may have been decided meanwhile.
            if let Some(result) = self.known(&key) {
                return result;
            }
            let result = self.ask(token, access).await;
            self.keep(key, result);
            result
        });
        asked.await.unwrap_or_else(|_| {
            self.warn("The API server did not decide in time about a token.", None);
            Err(Denial::Undecided)
        })
    }

    fn known(&self, key: &Key) -> Option<Result<(), Denial>> {
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = decisions.allowed.get(key).or_else(|| decisions.refused.get(key))?;
        (kept.until > Instant::now()).then_some(kept.result)
    }

    fn keep(&self, key: Key, result: Result<(), Denial>) {
        let now = Instant::now();
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        decisions.allowed.remove(&key);
        decisions.refused.remove(&key);
        let (kept, time) = match result {
            Ok(()) => (&mut decisions.allowed, ALLOWED_FOR),
            // The next request asks again.
            Err(Denial::Undecided) => return,
            Err(_) => (&mut decisions.refused, REFUSED_FOR),
        };
        if kept.len() >= KEPT {
            kept.retain(|_, decision| decision.until > now);
        }
        if kept.len() >= KEPT
            && let Some(oldest) =
                kept.iter().min_by_key(|(_, decision)| decision.until).map(|(oldest, _)| *oldest)
        {
            kept.remove(&oldest);
        }
        kept.insert(key, Decision { result, until: now + time });
    }

    async fn ask(&self, token: &str, access: Access) -> Result<(), Denial> {
        let user = self.owner(token).await?;
        let (resource, url) = match access {
            Access::Metrics => (
                None,
                Some(NonResourceAttributes { path: Some(METRICS.to_owned()), verb: Some("get".to_owned()) }),
            ),
            Access::Log => (
                Some(ResourceAttributes {
                    group: Some("holdfast.dev".to_owned()),
                    resource: Some("driftreports".to_owned()),
                    subresource: Some("log".to_owned()),
                    name: Some(self.node.clone()),
                    verb: Some("get".to_owned()),
                    ..ResourceAttributes::default()
                }),
                None,
            ),
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                groups: user.groups,
                uid: user.uid,
                extra: user.extra,
                resource_attributes: resource,
                non_resource_attributes: url,
            },
            ..SubjectAccessReview::default()
        };
        let answer = self.accesses.create(&PostParams::default(), &review).await;
        self.metrics.reviewed(ReviewKind::Access, answer.is_ok());
        match answer {
            Ok(review) if review.status.as_ref().is_some_and(|status| status.allowed) => Ok(()),
            Ok(_) => Err(match access {
                Access::Metrics => Denial::NoMetrics,
                Access::Log => Denial::NoLog,
            }),
            Err(error) => {
                self.warn(
                    "The API server decides about no right of a caller. The reporter needs `create` on \
                     subjectaccessreviews of authorization.k8s.io.",
                    Some(&error),
                );
                Err(Denial::Undecided)
            }
        }
    }

    async fn owner(&self, token: &str) -> Result<UserInfo, Denial> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: None },
            ..TokenReview::default()
        };
        let answer = self.tokens.create(&PostParams::default(), &review).await;
        self.metrics.reviewed(ReviewKind::Token, answer.is_ok());
        match answer {
            Ok(review) => review
                .status
                .filter(|status| status.authenticated == Some(true))
                .and_then(|status| status.user)
                .ok_or(Denial::Unauthenticated),
            Err(error) => {
                self.warn(
                    "The API server does not say whose a token is. The reporter needs `create` on \
                     tokenreviews of authentication.k8s.io.",
                    Some(&error),
                );
                Err(Denial::Undecided)
            }
        }
    }

    /// Logs a failure, but not one for each request of a caller.
    fn warn(&self, message: &'static str, error: Option<&kube::Error>) {
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        if warned_at.is_some_and(|at| at.elapsed() < WARN_AGAIN) {
            return;
        }
        *warned_at = Some(Instant::now());
        // The API server's text has no token: it answers about the right of the reporter, or not at all.
        let error = error.map(ToString::to_string).unwrap_or_default();
        tracing::error!(error, "{message}");
    }
}
