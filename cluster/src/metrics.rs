//! The reporter's own metrics.
//!
//! In: each write and each answer of the sensor. Out: their page in OpenMetrics text. Labels are words from closed lists, so the
//! number of series is limited. The sensor's own metrics are not here.

use crate::api::ConfigState;
use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};
use std::fmt;

/// The media type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The last line of every page.
pub const END: &str = "# EOF\n";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    object: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

/// An object that the reporter writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenObject {
    /// The `DriftReport`, with its status.
    Report,
    /// The Node's conditions.
    Conditions,
    /// An Event.
    Event,
    /// The Lease.
    Lease,
    /// The Node's taint.
    Taint,
    /// The Node's annotations, in the mode `manage`.
    Annotations,
}

impl WrittenObject {
    /// Every object.
    const ALL: [Self; 6] =
        [Self::Report, Self::Conditions, Self::Event, Self::Lease, Self::Taint, Self::Annotations];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Conditions => "conditions",
            Self::Event => "event",
            Self::Lease => "lease",
            Self::Taint => "taint",
            Self::Annotations => "annotations",
        }
    }
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteResult {
    /// The API server has taken it.
    Success,
    /// The API server refused it.
    Refused,
    /// The API server did not get it, or its answer cannot be used.
    Unanswered,
    /// The API server did not answer in time.
    TimedOut,
}

impl WriteResult {
    /// Every result.
    const ALL: [Self; 4] = [Self::Success, Self::Refused, Self::Unanswered, Self::TimedOut];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Refused => "refused",
            Self::Unanswered => "unanswered",
            Self::TimedOut => "timed_out",
        }
    }
}

/// The states of the node's config, by their names in the metric.
const CONFIG_STATES: [(ConfigState, &str); 5] = [
    (ConfigState::Same, "same"),
    (ConfigState::Differs, "differs"),
    (ConfigState::Other, "other"),
    (ConfigState::Updating, "updating"),
    (ConfigState::Unknown, "unknown"),
];

/// A request to the API server about a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewKind {
    /// Whose token it is.
    Token,
    /// Whether its owner has a right.
    Access,
}

impl ReviewKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Access => "access",
        }
    }
}

/// The counters. A clone counts into the same ones.
#[derive(Clone)]
pub struct ReporterMetrics {
    writes: Family<WriteLabels, Counter>,
    last_write: Gauge,
    answers: Family<ResultLabels, Counter>,
    last_answer: Gauge,
    up: Gauge,
    updating: Gauge,
    os_image_out_of_step: Gauge,
    config: Family<StateLabels, Gauge>,
    log_rewritten: Gauge,
    reviews: Family<ReviewLabels, Counter>,
}

impl Default for ReporterMetrics {
    fn default() -> Self {
        let metrics = Self {
            writes: Family::default(),
            last_write: Gauge::default(),
            answers: Family::default(),
            last_answer: Gauge::default(),
            up: Gauge::default(),
            updating: Gauge::default(),
            os_image_out_of_step: Gauge::default(),
            config: Family::default(),
            log_rewritten: Gauge::default(),
            reviews: Family::default(),
        };
        // Prometheus sees no increase in a series that begins with the first failure.
        for object in WrittenObject::ALL {
            for result in WriteResult::ALL {
                metrics.writes_of(object, result).inc_by(0);
            }
        }
        metrics
    }
}

impl fmt::Debug for ReporterMetrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ReporterMetrics").finish_non_exhaustive()
    }
}

impl ReporterMetrics {
    /// Counts a write by its result.
    pub fn wrote(&self, object: WrittenObject, result: WriteResult) {
        if result == WriteResult::Success {
            self.last_write.set(Timestamp::now().as_second());
        }
        self.writes_of(object, result).inc();
    }

    fn writes_of(&self, object: WrittenObject, result: WriteResult) -> Counter {
        let labels = WriteLabels { object: object.as_str(), result: result.as_str() };
        self.writes.get_or_create(&labels).clone()
    }

    /// Counts an answer of the sensor to the question for its status, or its failure.
    pub fn sensor_answered(&self, is_answer: bool) {
        if is_answer {
            self.last_answer.set(Timestamp::now().as_second());
        }
        self.up.set(is_answer.into());
        let result = if is_answer { "success" } else { "failure" };
        self.answers.get_or_create(&ResultLabels { result }).inc();
    }

    /// Notes whether everything that differs belongs to an update by another program.
    pub fn node_is_updating(&self, is_updating: bool) {
        self.updating.set(is_updating.into());
    }

    /// Notes whether an opinion about the booted image is out of step.
    pub fn os_image_is_out_of_step(&self, is_out_of_step: bool) {
        self.os_image_out_of_step.set(is_out_of_step.into());
    }

    /// Notes whether the config that the sensor expects is the one of the cluster; `None` while nothing is to be compared.
    pub fn config_is(&self, found: Option<ConfigState>) {
        for (state, name) in CONFIG_STATES {
            self.config.get_or_create(&StateLabels { state: name }).set((found == Some(state)).into());
        }
    }

    /// Notes whether the node's forensic log was written anew, as the report says.
    pub fn log_is_rewritten(&self, is_rewritten: bool) {
        self.log_rewritten.set(is_rewritten.into());
    }

    /// Counts a request to the API server about a token.
    pub fn reviewed(&self, kind: ReviewKind, is_answered: bool) {
        let result = if is_answered { "answered" } else { "failed" };
        self.reviews.get_or_create(&ReviewLabels { kind: kind.as_str(), result }).inc();
    }

    /// The page, with [`END`]. Formatting into a text does not fail; if it did, the page would be empty.
    pub fn page(&self) -> String {
        let mut registry = Registry::with_prefix("holdfast_reporter");
        registry.register(
            "build",
            "Version of the reporter",
            Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION") }),
        );
        registry.register("writes", "Writes to the API server by object and result", self.writes.clone());
        registry.register_with_unit(
            "last_write_timestamp",
            "Unix time of the last successful write; 0 before the first one",
            Unit::Seconds,
            self.last_write.clone(),
        );
        registry.register(
            "sensor_answers",
            "Questions for the sensor's status by result",
            self.answers.clone(),
        );
        registry.register_with_unit(
            "sensor_last_answer_timestamp",
            "Unix time of the sensor's last answer; 0 before the first one",
            Unit::Seconds,
            self.last_answer.clone(),
        );
        registry.register(
            "sensor_up",
            "1 if the sensor answered the last question for its status",
            self.up.clone(),
        );
        registry.register(
            "node_updating",
            "1 while the Machine Config Operator's daemon updates the node and made every difference",
            self.updating.clone(),
        );
        registry.register(
            "os_image_out_of_step",
            "1 while the booted image, the image that the cluster wants and the rendered config do not agree",
            self.os_image_out_of_step.clone(),
        );
        registry.register(
            "config_state",
            "1 for the state of the config that the sensor expects, compared with the one of the cluster",
            self.config.clone(),
        );
        registry.register(
            "log_rewritten",
            "1 while the DriftReport says that the node's forensic log was written anew",
            self.log_rewritten.clone(),
        );
        registry.register(
            "token_reviews",
            "Requests to the API server about callers' tokens by kind and result",
            self.reviews.clone(),
        );
        let mut page = String::new();
        if text::encode(&mut page, &registry).is_err() {
            page.clear();
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_counts_writes_and_answers_and_ends_as_openmetrics_asks() {
        let metrics = ReporterMetrics::default();
        metrics.wrote(WrittenObject::Lease, WriteResult::Success);
        metrics.wrote(WrittenObject::Report, WriteResult::TimedOut);
        metrics.sensor_answered(true);
        metrics.sensor_answered(false);
        metrics.node_is_updating(true);
        metrics.os_image_is_out_of_step(true);
        metrics.config_is(Some(ConfigState::Same));
        metrics.config_is(Some(ConfigState::Differs));
        metrics.log_is_rewritten(true);
        metrics.reviewed(ReviewKind::Token, true);
        let page = metrics.page();
        for line in [
            "holdfast_reporter_writes_total{object=\"lease\",result=\"success\"} 1",
            "holdfast_reporter_writes_total{object=\"report\",result=\"timed_out\"} 1",
            "holdfast_reporter_writes_total{object=\"annotations\",result=\"refused\"} 0",
            "holdfast_reporter_writes_total{object=\"taint\",result=\"unanswered\"} 0",
            "holdfast_reporter_sensor_answers_total{result=\"failure\"} 1",
            "holdfast_reporter_sensor_up 0",
            "holdfast_reporter_node_updating 1",
            "holdfast_reporter_os_image_out_of_step 1",
            "holdfast_reporter_config_state{state=\"differs\"} 1",
            "holdfast_reporter_config_state{state=\"same\"} 0",
            "holdfast_reporter_log_rewritten 1",
            "holdfast_reporter_token_reviews_total{kind=\"token\",result=\"answered\"} 1",
        ] {
            assert!(page.contains(line), "{line} is missing:\n{page}");
        }
        assert!(page.contains("holdfast_reporter_build_info{version="), "{page}");
        assert!(!page.contains("last_write_timestamp_seconds 0\n"), "{page}");
        assert!(page.ends_with(END), "{page}");
    }
}
