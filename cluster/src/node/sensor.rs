//! The task that asks the sensor.

use crate::api::{DriftReportStatus, DriftState};
use crate::backoff::Backoff;
use crate::metrics::ReporterMetrics;
use crate::reports::{NodeFinding, SensorState, drift_text, status_of};
use crate::socket::{SensorError, SensorSocket, Tagged};
use jiff::{Timestamp, Unit};
use sensor_model::status::NodeStatus;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// How long one request waits for another status.
const WAIT: Duration = Duration::from_secs(30);
/// How long a finding waits for the log's newest entry.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);
/// First pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A sensor that gives no status.
#[derive(Debug)]
struct Silence {
    from: Instant,
    since: Timestamp,
    /// What the newest finding says about the sensor; `None` within the grace time.
    reported: Option<SensorState>,
}

/// Asks for the node's status again and again, and hands on each finding. A sensor that gives none for longer than the grace
/// time is a finding, too. Ends when nothing takes findings any more.
pub(super) async fn follow(
    mut socket: SensorSocket,
    grace: Duration,
    findings: watch::Sender<Option<NodeFinding>>,
    not_ready: watch::Sender<Option<&'static str>>,
    metrics: ReporterMetrics,
) {
    let mut tag: Option<String> = None;
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut silence: Option<Silence> = None;
    while !findings.is_closed() {
        let answer = socket.status(tag.as_deref(), WAIT).await;
        metrics.sensor_answered(answer.is_ok());
        match answer {
            Ok(answer) => {
                if silence.take().is_some_and(|silence| silence.reported.is_some()) {
                    tracing::info!("The sensor answers again.");
                }
                backoff.reset();
                not_ready.send_replace(None);
                if let Some(Tagged { body, tag: new }) = answer {
                    findings.send_replace(Some(found(&mut socket, &body).await));
                    tag = Some(new).filter(|tag| !tag.is_empty());
                    // Without a tag the sensor answers at once, so the pause limits the requests.
                    if tag.is_none() {
                        sleep(LONGEST_PAUSE).await;
                    }
                }
            }
            Err(error) => {
                // The next answer has the whole status, which the last finding may hide.
                tag = None;
                let silence = silence.get_or_insert_with(|| Silence {
                    from: Instant::now(),
                    since: now(),
                    reported: None,
                });
                let sensor = without_status(&error, silence.since);
                if silence.from.elapsed() >= grace && silence.reported.as_ref() != Some(&sensor) {
                    not_ready.send_replace(Some(if error.is_not_ready() {
                        "the sensor has no current status"
                    } else {
                        "the sensor does not answer"
                    }));
                    findings.send_modify(|last| *last = Some(silent(last.take(), &sensor, silence.since)));
                    silence.reported = Some(sensor);
                    let error = anyhow::Error::from(error);
                    tracing::warn!(error = format!("{error:#}"), "The sensor gives no status.");
                } else {
                    tracing::debug!(%error, "the sensor gives no status");
                }
                sleep(backoff.next_pause()).await;
            }
        }
    }
}

/// The finding of a status, with the log's newest entry if the sensor gives it in time.
async fn found(socket: &mut SensorSocket, status: &NodeStatus) -> NodeFinding {
    let log = match timeout(LOG_TIMEOUT, socket.log()).await {
        Ok(Ok(log)) => log,
        Ok(Err(error)) => {
            tracing::debug!(%error, "the sensor does not give the log's newest entry");
            None
        }
        Err(_) => None,
    };
    NodeFinding {
        status: status_of(status, log.as_ref()),
        sensor: SensorState::Answers { refuses_config: status.config_refused.is_some() },
        text: drift_text(status),
        config: status.config.clone(),
    }
}

/// What an error says about the sensor.
fn without_status(error: &SensorError, since: Timestamp) -> SensorState {
    let since = since.to_string();
    if error.is_not_ready() {
        SensorState::NotReady { since }
    } else if error.is_unusable_answer() {
        SensorState::Unusable { since }
    } else {
        SensorState::Silent { since }
    }
}

/// The finding of a sensor that gives no status: nothing is proved, and the last drifts and the last config stay.
pub(super) fn silent(last: Option<NodeFinding>, sensor: &SensorState, since: Timestamp) -> NodeFinding {
    let (last, config) = last.map(|last| (last.status, last.config)).unwrap_or_default();
    let observed_at = Some(since.to_string());
    NodeFinding {
        status: DriftReportStatus { state: DriftState::Unknown, observed_at, ..last },
        sensor: sensor.clone(),
        text: None,
        config,
    }
}

/// The time to the second.
fn now() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now)
}
