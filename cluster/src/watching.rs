//! A watch that pauses between attempts that fail, and between watches that end early.
//!
//! In: the objects to watch. Out: their events, a list first. A watch that ends is resumed at its last version. The objects are listed
//! again only if the API server no longer has that version, or if another client may be allowed to read them: after an outage thousands
//! of nodes would otherwise list at the same time.
//!
//! Before a watch that follows a broken one ([`watch_age`]), a list without objects asks whether the server has the last version.
//!
//! The watcher of the client library is not used: it begins the next watch at once when one ends without an error, so each node would ask
//! a server that ends each watch at once hundreds of times a second. Here only a watch that lived for a while ends the pauses.

use crate::backoff::Backoff;
use crate::watch_age::{self, LONGEST_WATCH, WATCH_SECONDS};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use kube::api::{Api, ListParams, VersionMatch, WatchEvent, WatchParams};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// First pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Objects in one answer to a list, and the longest time of such an answer.
const PAGE: u32 = 500;
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The field that no object has, for lists without objects.
const NO_NAME: &str = "metadata.name=holdfast-none";

/// Status codes after which a watch does not go on from its last version: the client may not read, the version is too old, or it is
/// newer than all that the API server has, as after a restored backup.
const NOT_RESUMED: [u16; 3] = [403, 410, 504];

type WatchEvents<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;

/// A watch and its pauses.
struct Watching<K: Resource + 'static> {
    api: Box<dyn Fn() -> Api<K> + Send>,
    /// The field selector of the objects.
    fields: Option<String>,
    /// What is watched, for the log.
    what: &'static str,
    /// The client, and the version from which the next watch goes on; `None` before a list.
    place: Option<(Api<K>, String)>,
    /// The present watch, when the API server accepted it, and when it is too old.
    watch: Option<(WatchEvents<K>, Instant, Instant)>,
    /// Events of a list that were not given yet.
    listed: VecDeque<Event<K>>,
    backoff: Backoff,
    is_failing: bool,
    /// The API server may have been restored to an earlier version since the last watch.
    is_doubtful: bool,
}

/// The events of these objects, for ever. After a failure that no watch can go on from, `api` gives the client anew, which may be
/// another one. The first of failures that follow each other is logged.
pub(crate) fn watched<K>(
    api: impl Fn() -> Api<K> + Send + 'static,
    fields: Option<String>,
    what: &'static str,
) -> BoxStream<'static, Event<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Clone + Send + Sync,
{
    let watching = Watching {
        api: Box::new(api),
        fields,
        what,
        place: None,
        watch: None,
        listed: VecDeque::new(),
        backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
        is_failing: false,
        is_doubtful: false,
    };
    stream::unfold(watching, |mut watching| async move {
        let event = watching.next().await;
        Some((event, watching))
    })
    .boxed()
}

impl<K> Watching<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Clone + Send + Sync,
{
    async fn next(&mut self) -> Event<K> {
        loop {
            if let Some(event) = self.listed.pop_front() {
                return event;
            }
            let failed = match self.step().await {
                Ok(Some(event)) => return event,
                Ok(None) => continue,
                Err(failed) => failed,
            };
            let lived = self.watch.take().map(|(_, begun_at, _)| begun_at.elapsed());
            if watch_age::is_long(lived) {
                self.backoff.reset();
                self.is_failing = false;
            }
            self.is_doubtful |= watch_age::is_broken(lived, failed.is_some());
            if let Some(error) = failed {
                self.note(&error);
                if matches!(&error, kube::Error::Api(status) if NOT_RESUMED.contains(&status.code)) {
                    self.place = None;
                }
            }
            sleep(self.backoff.next_pause()).await;
        }
    }

    /// Lists, begins a watch, or waits for its next event. `Err(None)` if the watch ended without an error.
    async fn step(&mut self) -> Result<Option<Event<K>>, Option<kube::Error>> {
        let Some((api, version)) = &mut self.place else {
            self.list().await?;
            return Ok(None);
        };
        if self.watch.is_none() && self.is_doubtful {
            let known = has_version(api, self.fields.as_deref(), version);
            timeout(PAGE_TIMEOUT, known).await.map_err(|_| None)??;
            self.is_doubtful = false;
        }
        let Some((events, _, end)) = &mut self.watch else {
            let end = Instant::now() + LONGEST_WATCH;
            let fields = self.fields.clone();
            let here = WatchParams {
                field_selector: fields,
                timeout: Some(WATCH_SECONDS),
                ..WatchParams::default()
            };
            let begun = timeout_at(end, api.watch(&here, version)).await.map_err(|_| None)?;
            self.watch = Some((begun?.boxed(), Instant::now(), end));
            return Ok(None);
        };
        let Some(event) = timeout_at(*end, events.next()).await.map_err(|_| None)? else { return Err(None) };
        let event = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Event::Apply(object),
            WatchEvent::Deleted(object) => Event::Delete(object),
            WatchEvent::Bookmark(mark) => {
                *version = mark.metadata.resource_version;
                return Ok(None);
            }
            WatchEvent::Error(status) => return Err(Some(kube::Error::Api(status))),
        };
        if let Event::Apply(object) | Event::Delete(object) = &event
            && let Some(new) = object.resource_version()
        {
            *version = new;
        }
        Ok(Some(event))
    }

    /// Lists the objects, page by page.
    async fn list(&mut self) -> Result<(), Option<kube::Error>> {
        let api = (self.api)();
        let mut page =
            ListParams { field_selector: self.fields.clone(), ..ListParams::default() }.limit(PAGE);
        let mut listed = VecDeque::from([Event::Init]);
        let version = loop {
            let answer = timeout(PAGE_TIMEOUT, api.list(&page)).await.map_err(|_| None)??;
            listed.extend(answer.items.into_iter().map(Event::InitApply));
            match answer.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break answer.metadata.resource_version.unwrap_or_default(),
            }
        };
        listed.push_back(Event::InitDone);
        (self.listed, self.place) = (listed, Some((api, version)));
        self.is_doubtful = false;
        Ok(())
    }

    fn note(&mut self, error: &kube::Error) {
        let (what, error) = (self.what, error.to_string());
        if std::mem::replace(&mut self.is_failing, true) {
            tracing::debug!(error, what, "a watch fails again");
        } else {
            tracing::warn!(error, what, "A watch failed; trying again.");
        }
    }
}

/// Asks whether the API server has this version. Its answer is an error with the code 504 if it has only earlier ones.
async fn has_version<K>(api: &Api<K>, fields: Option<&str>, version: &str) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let none = match fields {
        None => NO_NAME.to_owned(),
        Some(fields) => format!("{fields},{NO_NAME}"),
    };
    let asked = ListParams::default().fields(&none).at(version).matching(VersionMatch::NotOlderThan);
    api.list_metadata(&asked).await.map(drop)
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
            let mut events = watched(move || Api::<Node>::all(client.clone()), None, "nodes");
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

    /// Whether a request only asks for a version.
    fn asks_for_version(asked: &PlayedRequest) -> bool {
        asked.uri.contains("fieldSelector=metadata.name%3Dholdfast-none")
            && asked.uri.contains("resourceVersionMatch=NotOlderThan")
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
        let mut events = watched(move || Api::<Node>::all(client.clone()), None, "nodes");
        let all = async { while events.next().await.is_some() {} };
        assert!(timeout(Duration::from_mins(5), all).await.is_err(), "it never ends");
        let (watches, lists): (Vec<_>, Vec<_>) =
            log.take().into_iter().partition(|asked| asked.uri.contains("watch=true"));
        (lists.iter().filter(|asked| !asks_for_version(asked)).count(), watches)
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
    async fn a_server_that_ends_each_watch_at_once_is_asked_less_and_less_and_lists_once() {
        let mark = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}});
        let (client, log) = played(move |asked| {
            let is_watch = asked.uri.contains("watch=true");
            if is_watch { event("BOOKMARK", &mark) } else { PlayedAnswer::Json(list()) }
        });
        let mut events = watched(move || Api::<Node>::all(client.clone()), None, "nodes");
        let all = async { while events.next().await.is_some() {} };
        assert!(timeout(Duration::from_mins(30), all).await.is_err(), "it never ends");
        let (watches, lists): (Vec<_>, Vec<_>) =
            log.take().into_iter().partition(|asked| asked.uri.contains("watch=true"));
        assert_eq!(lists.iter().filter(|asked| !asks_for_version(asked)).count(), 1);
        assert!((30..=45).contains(&watches.len()), "{} watches in half an hour", watches.len());
        assert!(lists.len() <= watches.len() + 1, "{} questions for the version", lists.len());
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_outage_the_objects_of_a_restored_server_are_listed_once_and_those_of_the_same_one_are_not()
     {
        for is_restored in [true, false] {
            let mut watches = 0;
            let (client, log) = played(move |asked| {
                if asked.uri.contains("watch=true") {
                    watches += 1;
                    // A server without the version accepts the watch, and sends nothing.
                    if watches == 2 { PlayedAnswer::Code(503) } else { PlayedAnswer::Watch }
                } else if asks_for_version(asked) && is_restored && watches == 2 {
                    watches += 1;
                    PlayedAnswer::Status(status(504))
                } else {
                    PlayedAnswer::Json(list())
                }
            });
            let mut events = watched(move || Api::<Node>::all(client.clone()), None, "nodes");
            let all = async { while events.next().await.is_some() {} };
            assert!(timeout(Duration::from_hours(2), all).await.is_err(), "it never ends");
            let (questions, others): (Vec<_>, Vec<_>) = log.take().into_iter().partition(asks_for_version);
            assert_eq!(questions.len(), 1, "a watch that ends at its age is not followed by a question");
            let lists = others.iter().filter(|asked| !asked.uri.contains("watch=true")).count();
            assert_eq!(lists, 1 + usize::from(is_restored));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_succeeds_is_given_whole() {
        let (client, _log) = played(move |asked| {
            if asked.uri.contains("watch=true") { PlayedAnswer::Never } else { PlayedAnswer::Json(list()) }
        });
        let mut events = watched(move || Api::<Node>::all(client.clone()), None, "nodes");
        assert!(matches!(events.next().await, Some(Event::Init)));
        assert!(matches!(events.next().await, Some(Event::InitApply(_))));
        assert!(matches!(events.next().await, Some(Event::InitDone)));
    }
}
