//! The task that follows the sensor's progress.

use crate::backoff::Backoff;
use crate::socket::{SensorError, SensorSocket, Tagged};
use sensor_model::socket::{ApplyProgress, SocketErrorReason};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How long one request waits for news.
const WAIT: Duration = Duration::from_secs(30);
/// First pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Pause if the sensor's own mode is another one. Only a restart of the sensor changes it.
const OTHER_MODE_PAUSE: Duration = Duration::from_secs(30);

/// Hands on each progress; `None` while the sensor gives none. Ends when nothing takes it any more.
pub(crate) async fn follow(mut socket: SensorSocket, newest: watch::Sender<Option<ApplyProgress>>) {
    let mut tag: Option<String> = None;
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut has_other_mode = false;
    while !newest.is_closed() {
        match socket.progress(tag.as_deref(), WAIT).await {
            Ok(None) => backoff.reset(),
            Ok(Some(Tagged { body, tag: new })) => {
                backoff.reset();
                has_other_mode = false;
                newest.send_replace(Some(body));
                tag = Some(new).filter(|tag| !tag.is_empty());
                // Without a tag the sensor answers at once, so the pause limits the requests.
                if tag.is_none() {
                    sleep(LONGEST_PAUSE).await;
                }
            }
            Err(error) => {
                tag = None;
                newest.send_if_modified(|known| known.take().is_some());
                if is_other_mode(&error) {
                    if !has_other_mode {
                        tracing::warn!("The sensor's own mode is not `manage`: the node is only observed.");
                    }
                    has_other_mode = true;
                    sleep(OTHER_MODE_PAUSE).await;
                } else {
                    tracing::debug!(%error, "the sensor gives no progress");
                    sleep(backoff.next_pause()).await;
                }
            }
        }
    }
}

/// Whether the sensor refuses because its own mode is another one.
pub(super) fn is_other_mode(error: &SensorError) -> bool {
    matches!(error, SensorError::Refused { error, .. } if error.reason == SocketErrorReason::NotManaged)
}
