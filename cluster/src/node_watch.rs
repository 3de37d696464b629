//! The watch on the own Node.
//!
//! In: the API server. Out: the Node's uid, its labels and the annotations that lead an update, whenever they change. It reads the Node's metadata once, and then
//! watches this Node alone from that version on. A watch that ends is resumed at the last version, and the Node is read again only
//! if the API server no longer has that version. There is a pause between two watches, which grows while they end early.

use crate::backoff::Backoff;
use crate::publish::{NodeMetadata, PublishError, limited};
use crate::reads::Reads;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PartialObjectMeta, WatchEvent, WatchParams};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// After this time the API server ends a watch.
const WATCH_SECONDS: u32 = 290;
/// A watch that is older gets no answer any more.
const LONGEST_WATCH: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
/// A watch that lived this long did not end early.
const LONG: Duration = Duration::from_secs(10);
/// First pause between two watches.
const FIRST_PAUSE: Duration = Duration::from_millis(800);
/// Longest pause between two watches.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The status codes of a version that the API server no longer has, and of one that is newer than all that it has, as after a restored
/// backup.
const OTHER_VERSIONS: [u16; 2] = [410, 504];

/// Hands on each change of the Node's metadata. Ends when nothing takes it any more.
pub(crate) async fn follow(reads: Reads, name: String, newest: watch::Sender<Option<NodeMetadata>>) {
    let mut watched = WatchedNode { reads, name, newest, version: None, begun_at: None };
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut is_failing = false;
    while !watched.newest.is_closed() {
        let end = watched.watch().await;
        if watched.begun_at.take().is_some_and(|begun_at| begun_at.elapsed() >= LONG) {
            backoff.reset();
            is_failing = false;
        }
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
    /// When the API server accepted the present watch.
    begun_at: Option<Instant>,
}

impl WatchedNode {
    /// Reads the Node if no version is known, and watches it until the watch ends.
    async fn watch(&mut self) -> Result<(), PublishError> {
        let name = &self.name;
        let version = if let Some(version) = &self.version {
            version.clone()
        } else {
            let node = limited("Node", self.reads.node_metadata(name)).await?;
            self.take(&node);
            self.version.clone().unwrap_or_default()
        };
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
                known.annotations != node.annotations || known.labels != node.labels || known.uid != node.uid
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
        let (client, log) =
            played(
                move |asked| {
                    if is_watch(asked) { watch(asked) } else { PlayedAnswer::Json(node("7", "a")) }
                },
            );
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
    async fn a_watch_is_resumed_at_the_last_version_and_the_node_is_read_once() {
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
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert!(last.uri.contains("resourceVersion=8"), "{last:?}");
        assert!(last.uri.contains("fieldSelector=metadata.name%3Dn1"), "{last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_ends_each_watch_at_once_is_asked_less_and_less() {
        let (_seen, log) =
            following(|_| PlayedAnswer::Json(json!({"type": "ADDED", "object": node("7", "a")})));
        let (reads, watches) = requests(&log).await;
        assert_eq!(reads, 1);
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
    async fn a_server_that_fails_is_asked_less_and_less_and_never_for_the_node_again() {
        for answer in [gone(500), PlayedAnswer::Code(401), PlayedAnswer::Code(429), PlayedAnswer::Never] {
            let (_seen, log) = following(move |_| answer.clone());
            let (reads, watches) = requests(&log).await;
            assert_eq!(reads, 1);
            assert!((30..=90).contains(&watches), "{watches} watches in half an hour");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_does_not_exist_any_more_is_no_node() {
        let (client, _log) = played(|_| PlayedAnswer::Code(404));
        let (newest, mut seen) = watch::channel(Some(NodeMetadata::default()));
        tokio::spawn(follow(Reads::with(client.clone(), client), "n1".to_owned(), newest));
        seen.wait_for(Option::is_none).await.unwrap();
    }
}
