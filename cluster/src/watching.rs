//! A watch that pauses between attempts that fail.
//!
//! In: the objects to watch. Out: their events, a list first. The watcher of the client library begins each list with an event, after
//! which its own pauses are short again. So a server that refuses each list would be asked every second, by each node. Here only an
//! object or the end of a list ends the pauses.

use crate::backoff::Backoff;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher::{Config, Event, Result, watcher};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::sleep;

/// First pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

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

/// The events of these objects, for ever. After a failure `api` gives the client anew, which may be another one. The first of failures that follow each other is logged.
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
                Some(Err(error)) => self.note(&error),
                None => {}
            }
            // The next watch begins with a list.
            self.events = None;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played_server::{PlayedAnswer, played};
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

    #[tokio::test(start_paused = true)]
    async fn a_list_that_succeeds_is_given_whole() {
        let list = json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "7"},
            "items": [{"metadata": {"name": "n1"}}]});
        let (client, _log) = played(move |asked| {
            if asked.uri.contains("watch=true") {
                PlayedAnswer::Never
            } else {
                PlayedAnswer::Json(list.clone())
            }
        });
        let mut events = watched(move || Api::<Node>::all(client.clone()), Config::default(), "nodes");
        assert!(matches!(events.next().await, Some(Event::Init)));
        assert!(matches!(events.next().await, Some(Event::InitApply(_))));
        assert!(matches!(events.next().await, Some(Event::InitDone)));
    }
}
