//! A watch that pauses between attempts that fail.
//!
//! In: the objects to watch. Out: their events, a list first. The watcher of the client library resumes a watch that fails at the last
//! version. The objects are listed again only if the API server no longer has that version, or if another client may be allowed to read
//! them: after an outage thousands of nodes would otherwise list at the same time.
//!
//! The pauses are not those of the client library (`default_backoff`). Its watcher begins each list with an event, after which its pauses
//! are short again, so a server that refuses each list would be asked every second, by each node. Here only an object or the end of a
//! list ends the pauses.

use crate::backoff::Backoff;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::{Config, Error, Event, Result, watcher};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::sleep;

/// First pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Status codes after which a watch does not go on from its last version: the client may not read, the version is too old, or it is
/// newer than all that the API server has, as after a restored backup.
const NOT_RESUMED: [u16; 3] = [403, 410, 504];

/// A watch and its pauses.
struct Watching<K: Resource + 'static> {
    api: Box<dyn Fn() -> Api<K> + Send>,
    config: Config,
    /// What is watched, for the log.
    what: &'static str,
    events: Option<BoxStream<'static, Result<Event<K>>>>,
    backoff: Backoff,
    is_failing: bool,
}

/// The events of these objects, for ever. After a failure that no watch can go on from, `api` gives the client anew, which may be
/// another one. The first of failures that follow each other is logged.
pub(crate) fn watched<K>(
    api: impl Fn() -> Api<K> + Send + 'static,
    config: Config,
    what: &'static str,
) -> BoxStream<'static, Event<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Clone + Send,
{
    let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let watching = Watching { api: Box::new(api), config, what, events: None, backoff, is_failing: false };
    stream::unfold(watching, |mut watching| async move {
        let event = watching.next().await;
        Some((event, watching))
    })
    .boxed()
}

impl<K> Watching<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Clone + Send,
{
    async fn next(&mut self) -> Event<K> {
        loop {
            let (api, config) = (&self.api, &self.config);
            let events = self.events.get_or_insert_with(|| watcher(api(), config.clone()).boxed());
            match events.next().await {
                Some(Ok(event)) => {
                    if !matches!(event, Event::Init) {
                        self.backoff.reset();
                        self.is_failing = false;
                    }
                    return event;
                }
                Some(Err(error)) => {
                    self.note(&error);
                    if !is_resumed(&error) {
                        self.events = None;
                    }
                }
                None => self.events = None,
            }
            sleep(self.backoff.next_pause()).await;
        }
    }

    fn note(&mut self, error: &(impl std::error::Error + ?Sized)) {
        let (what, error) = (self.what, error.to_string());
        if std::mem::replace(&mut self.is_failing, true) {
            tracing::debug!(error, what, "a watch fails again");
        } else {
            tracing::warn!(error, what, "A watch failed; trying again.");
        }
    }
}

/// Whether the watcher may go on after this error. Without a list it then resumes the watch.
fn is_resumed(error: &Error) -> bool {
    let code = match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status))
        | Error::WatchError(status) => status.code,
        _ => return true,
    };
    !NOT_RESUMED.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played_server::{PlayedAnswer, PlayedRequest, played};
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_each_list_is_asked_less_and_less() {
        for code in [401, 403, 404, 429, 500] {
            let (client, log) = played(move |_| PlayedAnswer::Code(code));
            let mut events = watched(move || Api::<Node>::all(client.clone()), Config::default(), "nodes");
            let all = async { while events.next().await.is_some() {} };
            assert!(timeout(Duration::from_mins(30), all).await.is_err(), "it never ends");
            let requests = log.take().len();
            assert!((30..=45).contains(&requests), "{requests} requests in half an hour after {code}");
        }
    }

    /// A list with one Node, at version 7.
    fn list() -> serde_json::Value {
        json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "7"},
            "items": [{"metadata": {"name": "n1"}}]})
    }

    /// An answer to a watch that has one event, and then ends.
    fn event(kind: &str, object: &serde_json::Value) -> PlayedAnswer {
        PlayedAnswer::Json(json!({ "type": kind, "object": object }))
    }

    fn status(code: u16) -> serde_json::Value {
        json!({"kind": "Status", "code": code, "reason": "X", "message": "x"})
    }

    /// Lists and watches of a server that gives these answers to the first watches, and none to those after them.
    async fn requests(answers: Vec<PlayedAnswer>) -> (usize, Vec<PlayedRequest>) {
        let mut answers = answers.into_iter();
        let (client, log) = played(move |asked| {
            if asked.uri.contains("watch=true") {
                answers.next().unwrap_or(PlayedAnswer::Never)
            } else {
                PlayedAnswer::Json(list())
            }
        });
        let mut events = watched(move || Api::<Node>::all(client.clone()), Config::default(), "nodes");
        let all = async { while events.next().await.is_some() {} };
        assert!(timeout(Duration::from_mins(5), all).await.is_err(), "it never ends");
        let (watches, lists): (Vec<_>, Vec<_>) =
            log.take().into_iter().partition(|asked| asked.uri.contains("watch=true"));
        (lists.len(), watches)
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_watch_is_resumed_at_its_last_version_without_another_list() {
        let node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "resourceVersion": "8"}});
        let broken = [
            PlayedAnswer::Code(500),
            PlayedAnswer::Code(429),
            PlayedAnswer::Code(401),
            event("MODIFIED", &node),
            event("ERROR", &status(500)),
            // The connection breaks in the middle of an event.
            PlayedAnswer::Json(json!("no event")),
        ];
        let (lists, watches) = requests(broken.to_vec()).await;
        assert_eq!(lists, 1);
        let versions: Vec<&str> = watches
            .iter()
            .map(|asked| if asked.uri.contains("resourceVersion=8") { "8" } else { "7" })
            .collect();
        assert_eq!(versions, ["7", "7", "7", "7", "8", "8", "8"], "{watches:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_the_server_does_not_have_is_followed_by_one_list() {
        for answer in [
            PlayedAnswer::Code(410),
            event("ERROR", &status(410)),
            PlayedAnswer::Code(504),
            event("ERROR", &status(504)),
            PlayedAnswer::Code(403),
        ] {
            let (lists, watches) = requests(vec![answer.clone()]).await;
            assert_eq!((lists, watches.len()), (2, 2), "{answer:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_succeeds_is_given_whole() {
        let (client, _log) = played(move |asked| {
            if asked.uri.contains("watch=true") { PlayedAnswer::Never } else { PlayedAnswer::Json(list()) }
        });
        let mut events = watched(move || Api::<Node>::all(client.clone()), Config::default(), "nodes");
        assert!(matches!(events.next().await, Some(Event::Init)));
        assert!(matches!(events.next().await, Some(Event::InitApply(_))));
        assert!(matches!(events.next().await, Some(Event::InitDone)));
    }
}
