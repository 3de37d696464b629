//! Whether a caller may have an answer: the API server decides.
//!
//! In: a bearer token and what its owner wants. Out: yes, or why not. A `TokenReview` tells whose token it is, and a
//! `SubjectAccessReview` whether its owner has the right. Decisions are kept for a short time under a hash of the token; the token
//! itself is neither kept nor logged. Each of the two answers has a time of its own, and is asked for again alone. One pair of requests
//! is under way at a time, and ten pairs a second at most, so a flood of tokens does not reach the API server as one.

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
use tokio::time::{Instant, sleep_until, timeout};

/// How long a token is believed. The kubelet believes one for two minutes; one more keeps a reporter with a scraper below two requests
/// a minute.
const TOKEN_FOR: Duration = Duration::from_mins(3);
/// How long a right of a token's owner is believed: as long as the kubelet believes one.
const RIGHT_FOR: Duration = Duration::from_mins(5);
/// How long a refusal is believed.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Most decisions of each kind that are kept. Refusals cannot displace permissions.
const KEPT: usize = 256;
/// Longest time of a decision, with the wait for another one.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest time between two decisions: anybody who reaches the port can send tokens that are not known, and each of them is a request.
const SPACING: Duration = Duration::from_millis(100);
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

/// What the API server has answered about a caller that may have what it wants.
#[derive(Debug, Clone)]
struct Permission {
    /// Whose token it is.
    owner: UserInfo,
    /// How long the token is believed.
    token_until: Instant,
    /// How long the owner's right is believed.
    right_until: Instant,
}

impl Permission {
    /// How long both are believed.
    fn until(&self) -> Instant {
        self.token_until.min(self.right_until)
    }
}

#[derive(Debug, Clone, Copy)]
struct Refusal {
    reason: Denial,
    until: Instant,
}

#[derive(Debug, Default)]
struct Decisions {
    allowed: HashMap<Key, Permission>,
    refused: HashMap<Key, Refusal>,
}

/// Asks the API server, and keeps its decisions.
#[derive(Debug)]
pub struct Authorizer {
    tokens: Api<TokenReview>,
    accesses: Api<SubjectAccessReview>,
    node: String,
    metrics: ReporterMetrics,
    decisions: Mutex<Decisions>,
    /// Held while the API server is asked. It has the time of the next question.
    asking: tokio::sync::Mutex<Instant>,
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
            asking: tokio::sync::Mutex::new(Instant::now()),
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
            let mut next = self.asking.lock().await;
            // Another request with the same token may have been decided meanwhile.
            if let Some(result) = self.known(&key) {
                return result;
            }
            sleep_until(*next).await;
            *next = Instant::now() + SPACING;
            let answer = self.ask(token, access, self.permission(&key)).await;
            let result = answer.as_ref().map(|_| ()).map_err(|denial| *denial);
            self.keep(key, answer);
            result
        });
        asked.await.unwrap_or_else(|_| {
            self.warn("The API server did not decide in time about a token.", None);
            Err(Denial::Undecided)
        })
    }

    fn known(&self, key: &Key) -> Option<Result<(), Denial>> {
        let now = Instant::now();
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        if decisions.allowed.get(key).is_some_and(|permission| permission.until() > now) {
            return Some(Ok(()));
        }
        let refusal = decisions.refused.get(key).filter(|refusal| refusal.until > now)?;
        Some(Err(refusal.reason))
    }

    /// The permission that was kept, of which a part may be too old.
    fn permission(&self, key: &Key) -> Option<Permission> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner).allowed.get(key).cloned()
    }

    fn keep(&self, key: Key, answer: Result<Permission, Denial>) {
        let now = Instant::now();
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let Decisions { allowed, refused } = &mut *decisions;
        allowed.remove(&key);
        refused.remove(&key);
        match answer {
            Ok(permission) => {
                make_room(allowed, now, Permission::until);
                allowed.insert(key, permission);
            }
            // The next request asks again.
            Err(Denial::Undecided) => {}
            Err(reason) => {
                make_room(refused, now, |refusal| refusal.until);
                refused.insert(key, Refusal { reason, until: now + REFUSED_FOR });
            }
        }
    }

    /// Asks for what is not believed any more.
    async fn ask(&self, token: &str, access: Access, kept: Option<Permission>) -> Result<Permission, Denial> {
        let now = Instant::now();
        let (owner, token_until) = match &kept {
            Some(kept) if kept.token_until > now => (kept.owner.clone(), kept.token_until),
            _ => (self.owner(token).await?, Instant::now() + TOKEN_FOR),
        };
        // A right that is believed is that of the same owner, with the same groups.
        let right_until = match kept {
            Some(kept) if kept.right_until > now && kept.owner == owner => kept.right_until,
            _ => {
                self.may(owner.clone(), access).await?;
                Instant::now() + RIGHT_FOR
            }
        };
        Ok(Permission { owner, token_until, right_until })
    }

    /// Asks whether a user may have this.
    async fn may(&self, user: UserInfo, access: Access) -> Result<(), Denial> {
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

/// Makes room for one more entry: what is too old goes, else the one that is the first to be so.
fn make_room<T>(kept: &mut HashMap<Key, T>, now: Instant, until: impl Fn(&T) -> Instant) {
    if kept.len() >= KEPT {
        kept.retain(|_, entry| until(entry) > now);
    }
    if kept.len() >= KEPT
        && let Some(oldest) = kept.iter().min_by_key(|(_, entry)| until(entry)).map(|(oldest, _)| *oldest)
    {
        kept.remove(&oldest);
    }
}
