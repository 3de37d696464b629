//! The watch on the own Node.
//!
//! In: the API server. Out: the Node's uid, its labels and the annotations that lead an update, whenever they change. It reads the Node's
//! metadata once, and then watches this Node alone from that version on. A watch that ends is resumed at the last version. There is a
//! pause between two watches, which grows while they end early.
//! After a watch that broke ([`watch_age`]), the Node is read again at the last version or a later one.

use crate::backoff::Backoff;
use crate::publish::{NodeMetadata, PublishError, limited};
use crate::reads::Reads;
use crate::watch_age::{self, LONGEST_WATCH, WATCH_SECONDS};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PartialObjectMeta, WatchEvent, WatchParams};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// First pause between two watches.
const FIRST_PAUSE: Duration = Duration::from_millis(800);
/// Longest pause between two watches.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The status codes of a version that the API server no longer has, and of one that is newer than all that it has, as after a restored
/// backup.
const OTHER_VERSIONS: [u16; 2] = [410, 504];

/// Hands on each change of the Node's metadata. Ends when nothing takes it any more.
pub(crate) async fn follow(reads: Reads, name: String, newest: watch::Sender<Option<NodeMetadata>>) {
    let mut watched = WatchedNode { reads, name, newest, version: None, is_doubtful: true, begun_at: None };
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut is_failing = false;
    while !watched.newest.is_closed() {
        let end = watched.watch().await;
        let lived = watched.begun_at.take().map(|begun_at| begun_at.elapsed());
        if watch_age::is_long(lived) {
            backoff.reset();
            is_failing = false;
        }
        watched.is_doubtful |= watch_age::is_broken(lived, end.is_err());
        match end {
            Ok(()) => {}
            Err(error) => {
                if error.is_missing() || error.code().is_some_and(|code| OTHER_VERSIONS.contains(&code)) {
                    watched.version = None;
                }
                if error.is_missing() {
                    watched.newest.send_replace(None);
                }
                let error = anyhow::Error::from(error);
                if is_failing {
                    tracing::debug!(error = format!("{error:#}"), "the watch on the Node fails again");
                } else {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "The watch on the Node failed; trying again."
                    );
                }
                is_failing = true;
            }
        }
        sleep(backoff.next_pause()).await;
    }
}

/// The Node, and the version from which the next watch goes on.
struct WatchedNode {
    reads: Reads,
    name: String,
    newest: watch::Sender<Option<NodeMetadata>>,
    version: Option<String>,
    /// The API server may not have that version: there was none yet, or it may have been restored to an earlier one since the last watch.
    is_doubtful: bool,
    /// When the API server accepted the present watch.
    begun_at: Option<Instant>,
}

impl WatchedNode {
    /// Reads the Node if it is doubtful whether a watch can go on from the last version, and watches it until the watch ends.
    async fn watch(&mut self) -> Result<(), PublishError> {
        if self.is_doubtful || self.version.is_none() {
            let read = self.reads.node_metadata(&self.name, self.version.as_deref());
            let node = limited("Node", read).await?;
            let known = self.version.clone();
            self.take(&node);
            // A bookmark may have had a later version than the Node itself.
            let versions = [self.version.take(), known].into_iter().flatten();
            self.version = versions.max_by_key(|version| version.parse::<u64>().ok());
            self.is_doubtful = false;
        }
        let version = self.version.clone().unwrap_or_default();
        let here = WatchParams {
            field_selector: Some(format!("metadata.name={}", self.name)),
            timeout: Some(WATCH_SECONDS),
            ..WatchParams::default()
        };
        let end = Instant::now() + LONGEST_WATCH;
        let (here, version) = (&here, &version);
        let begun = self.reads.read(|client| async move {
            let nodes = Api::<Node>::all(client);
            nodes.watch_metadata(here, version).await.map(Box::pin)
        });
        let mut events = limited("watch on the Node", begun).await?;
        self.begun_at = Some(Instant::now());
        while let Ok(event) = timeout_at(end, events.next()).await {
            let Some(event) = event else { return Ok(()) };
            match event.map_err(|error| PublishError::of("watch on the Node", error))? {
                WatchEvent::Added(node) | WatchEvent::Modified(node) => self.take(&node),
                WatchEvent::Deleted(_) => {
                    self.version = None;
                    self.newest.send_replace(None);
                    return Ok(());
                }
                WatchEvent::Bookmark(mark) => self.version = Some(mark.metadata.resource_version),
                WatchEvent::Error(status) => {
                    return Err(PublishError::Refused { object: "watch on the Node", status });
                }
            }
        }
        Err(PublishError::TimedOut { object: "watch on the Node" })
    }

    /// A new state of the Node.
    fn take(&mut self, node: &PartialObjectMeta<Node>) {
        self.version.clone_from(&node.metadata.resource_version);
        let node = NodeMetadata::of(&node.metadata);
        self.newest.send_if_modified(|known| {
            let is_other = known.as_ref().is_none_or(|known| {
                known.annotations != node.annotations
                    || known.labels != node.labels
                    || known.uid != node.uid
                    // A backup was restored.
                    || known.resource_version > node.resource_version
            });
            *known = Some(node);
            is_other
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest, played};
    use serde_json::{Value, json};
    use tokio::time::timeout;

    const CONFIG: &str = "machineconfiguration.openshift.io/desiredConfig";

    fn node(version: &str, desired: &str) -> Value {
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata":
            {"name": "n1", "resourceVersion": version, "annotations": {CONFIG: desired}}})
    }

    fn is_watch(asked: &PlayedRequest) -> bool {
        asked.uri.contains("watch=true")
    }

    /// Follows the Node of a server that answers each watch by this function.
    fn following(
        mut watch: impl FnMut(&PlayedRequest) -> PlayedAnswer + Send + 'static,
    ) -> (watch::Receiver<Option<NodeMetadata>>, PlayedLog) {
        let (client, log) = played(move |asked| {
            if is_watch(asked) {
                watch(asked)
            } else if asked.uri.contains("resourceVersion=8") {
                PlayedAnswer::Json(node("8", "b"))
            } else {
                PlayedAnswer::Json(node("7", "a"))
            }
        });
        let (newest, seen) = watch::channel(None);
        tokio::spawn(follow(Reads::with(client.clone(), client), "n1".to_owned(), newest));
        (seen, log)
    }

    fn gone(code: u16) -> PlayedAnswer {
        PlayedAnswer::Json(
            json!({"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": "Expired", "message": "old"}}),
        )
    }

    /// How many reads and watches there were in half an hour.
    async fn requests(log: &PlayedLog) -> (usize, usize) {
        sleep(Duration::from_mins(30)).await;
        let asked = log.take();
        let watches = asked.iter().filter(|asked| is_watch(asked)).count();
        (asked.len() - watches, watches)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_resumed_at_the_last_version_after_a_read_of_no_earlier_one() {
        let (mut seen, log) = following(|asked| {
            if asked.uri.contains("resourceVersion=7") {
                PlayedAnswer::Json(json!({"type": "MODIFIED", "object": node("8", "b")}))
            } else {
                PlayedAnswer::Never
            }
        });
        let has = |desired: &'static str| {
            move |node: &Option<NodeMetadata>| {
                node.as_ref().is_some_and(|node| node.annotations[CONFIG] == desired)
            }
        };
        // The first state may be replaced before this task sees it.
        seen.wait_for(has("b")).await.unwrap();
        sleep(Duration::from_secs(5)).await;
        let asked = log.take();
        let last = &asked[asked.len() - 1];
        assert_eq!(asked.len(), 4, "{asked:?}");
        assert!(
            asked[2].line().ends_with("/nodes/n1") && asked[2].uri.contains("resourceVersion=8"),
            "{asked:?}"
        );
        assert!(last.uri.contains("resourceVersion=8"), "{last:?}");
        assert!(last.uri.contains("fieldSelector=metadata.name%3Dn1"), "{last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_ends_each_watch_at_once_is_asked_less_and_less() {
        let (_seen, log) =
            following(|_| PlayedAnswer::Json(json!({"type": "ADDED", "object": node("7", "a")})));
        let (reads, watches) = requests(&log).await;
        assert_eq!(reads, watches);
        assert!((60..=90).contains(&watches), "{watches} watches in half an hour");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_no_version_any_more_is_asked_for_the_node_less_and_less() {
        for answer in [gone(410), PlayedAnswer::Code(410), gone(504), PlayedAnswer::Code(504)] {
            let (_seen, log) = following(move |_| answer.clone());
            let (reads, watches) = requests(&log).await;
            assert_eq!(reads, watches, "each failed watch is followed by one read");
            assert!((60..=90).contains(&reads), "{reads} reads in half an hour");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_is_asked_less_and_less_and_for_no_earlier_version() {
        for answer in [gone(500), PlayedAnswer::Code(401), PlayedAnswer::Code(429), PlayedAnswer::Never] {
            let (_seen, log) = following(move |_| answer.clone());
            sleep(Duration::from_mins(30)).await;
            let asked = log.take();
            assert!((60..=180).contains(&asked.len()), "{} requests in half an hour", asked.len());
            let newest = asked.iter().filter(|asked| !asked.uri.contains("resourceVersion=7")).count();
            assert_eq!(newest, 1, "only the first read asks for any version: {asked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_ends_each_watch_at_its_age_is_not_asked_for_the_node_again() {
        let (_seen, log) = following(|_| PlayedAnswer::Watch);
        let (reads, watches) = requests(&log).await;
        assert_eq!(reads, 1);
        assert!((6..=7).contains(&watches), "{watches} watches in half an hour");
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_outage_the_node_of_a_restored_server_is_read_although_its_version_is_earlier() {
        let mut is_up = true;
        let (client, log) = played(move |asked| {
            let is_of_before = asked.uri.contains("resourceVersion=7");
            if is_of_before && is_watch(asked) && is_up {
                is_up = false;
                return PlayedAnswer::Code(503);
            }
            // A server without the version accepts the watch, and sends nothing.
            if is_watch(asked) {
                return PlayedAnswer::Watch;
            }
            match (is_of_before, is_up) {
                (true, _) => PlayedAnswer::Code(504),
                (false, true) => PlayedAnswer::Json(node("7", "b")),
                (false, false) => PlayedAnswer::Json(node("3", "a")),
            }
        });
        let (newest, mut seen) = watch::channel(None);
        tokio::spawn(follow(Reads::with(client.clone(), client), "n1".to_owned(), newest));
        let is_restored =
            |node: &Option<NodeMetadata>| node.as_ref().is_some_and(|node| node.annotations[CONFIG] == "a");
        timeout(Duration::from_mins(5), seen.wait_for(is_restored))
            .await
            .expect("the watch is silent")
            .unwrap();
        sleep(Duration::from_mins(30)).await;
        let reads = log.take().iter().filter(|asked| !is_watch(asked)).count();
        assert_eq!(reads, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_does_not_exist_any_more_is_no_node() {
        let (client, _log) = played(|_| PlayedAnswer::Code(404));
        let (newest, mut seen) = watch::channel(Some(NodeMetadata::default()));
        tokio::spawn(follow(Reads::with(client.clone(), client), "n1".to_owned(), newest));
        seen.wait_for(Option::is_none).await.unwrap();
    }
}
