use super::*;
use crate::api::{ConfigState, DriftReportStatus};
use crate::played_server::{PlayedAnswer, PlayedLog, played};
use crate::publish::NodeMetadata;
use crate::reads::Reads;
use crate::reports::{ComparedConfig, NodeFinding, SensorState};
use sensor_model::config_digest::digest_of_object;
use sensor_model::status::{ConfigOrigin, ExpectedConfig};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

const A: &str = "rendered-a";
const B: &str = "rendered-b";
const READ: &str = "GET /apis/machineconfiguration.openshift.io/v1/machineconfigs/";

fn object(name: &str, argument: &str) -> Value {
    json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": name, "resourceVersion": "7"}, "spec": {"kernelArguments": [argument]}})
}

/// What the sensor says about its copy of an object.
fn finding(copy: &Value) -> NodeFinding {
    let config = ExpectedConfig {
        origin: ConfigOrigin::Operator,
        name: copy["metadata"]["name"].as_str().map(str::to_owned),
        digest: digest_of_object("copy", copy.to_string().as_bytes()).unwrap(),
    };
    NodeFinding {
        status: DriftReportStatus::default(),
        sensor: SensorState::Answers { refuses_config: false },
        text: None,
        config: Some(config),
    }
}

struct Following {
    /// The answer to each read.
    answer: Arc<Mutex<PlayedAnswer>>,
    log: PlayedLog,
    findings: watch::Sender<Option<NodeFinding>>,
    nodes: watch::Sender<Option<NodeMetadata>>,
    found: watch::Receiver<ComparedConfig>,
}

impl Following {
    /// A node whose annotation names A, of which the cluster has this object.
    fn start(answer: PlayedAnswer) -> Self {
        let answer = Arc::new(Mutex::new(answer));
        let server = Arc::clone(&answer);
        let (client, log) = played(move |_| server.lock().unwrap().clone());
        let (findings, newest) = watch::channel(None);
        let (nodes, node) = watch::channel(None);
        let (sender, found) = watch::channel(ComparedConfig::default());
        let follower = ConfigFollower::new(&Reads::with(client.clone(), client), sender);
        tokio::spawn(follower.run(newest, node));
        let following = Self { answer, log, findings, nodes, found };
        following.annotate(&[("currentConfig", A), ("desiredConfig", A), ("state", "Done")]);
        following
    }

    fn annotate(&self, annotations: &[(&str, &str)]) {
        let named = |(name, value): &(&str, &str)| {
            (format!("machineconfiguration.openshift.io/{name}"), (*value).to_owned())
        };
        let annotations = annotations.iter().map(named).collect();
        self.nodes.send_replace(Some(NodeMetadata { annotations, ..NodeMetadata::default() }));
    }

    fn expect(&self, copy: &Value) {
        self.findings.send_replace(Some(finding(copy)));
    }

    fn set(&self, answer: PlayedAnswer) {
        *self.answer.lock().unwrap() = answer;
    }

    async fn until(&mut self, state: ConfigState) -> Duration {
        let begin = Instant::now();
        let wanted = |found: &ComparedConfig| found.config.as_ref().is_some_and(|found| found.state == state);
        timeout(Duration::from_mins(31), self.found.wait_for(wanted)).await.unwrap().unwrap();
        begin.elapsed()
    }

    fn state(&self) -> Option<ConfigState> {
        self.found.borrow().config.as_ref().map(|found| found.state)
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_copy_is_found_within_seconds_and_so_is_its_end() {
    let mut following = Following::start(PlayedAnswer::Json(object(A, "audit=1")));
    following.expect(&object(A, "audit=1"));
    assert!(following.until(ConfigState::Same).await <= Duration::from_secs(3));
    sleep(Duration::from_mins(1)).await;
    following.expect(&object(A, "audit=0"));
    assert!(following.until(ConfigState::Differs).await <= Duration::from_secs(3));
    sleep(Duration::from_mins(1)).await;
    following.expect(&object(A, "audit=1"));
    assert!(following.until(ConfigState::Same).await <= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_changed_object_is_found_within_half_an_hour_and_its_end_within_minutes() {
    let mut following = Following::start(PlayedAnswer::Json(object(A, "audit=1")));
    following.expect(&object(A, "audit=1"));
    following.until(ConfigState::Same).await;
    following.set(PlayedAnswer::Json(object(A, "audit=0")));
    following.until(ConfigState::Differs).await;
    following.set(PlayedAnswer::Json(object(A, "audit=1")));
    assert!(following.until(ConfigState::Same).await <= Duration::from_mins(5));
}

#[tokio::test(start_paused = true)]
async fn a_node_in_its_usual_state_costs_two_reads_an_hour_whatever_else_changes() {
    for (answer, state) in [
        (PlayedAnswer::Json(object(A, "audit=1")), ConfigState::Same),
        (PlayedAnswer::Code(403), ConfigState::Unknown),
        (PlayedAnswer::Code(404), ConfigState::Unknown),
    ] {
        let mut following = Following::start(answer);
        following.expect(&object(A, "audit=1"));
        following.until(state).await;
        assert_eq!(following.log.lines(), [format!("{READ}{A}")]);
        for number in 0..100 {
            following.expect(&object(A, "audit=1"));
            let state = if number % 2 == 0 { "Working" } else { "Done" };
            following.annotate(&[("currentConfig", A), ("desiredConfig", A), ("state", state)]);
            sleep(Duration::from_secs(6)).await;
        }
        // A refusal is asked for once more after a minute.
        assert_eq!(following.log.lines().len(), usize::from(state == ConfigState::Unknown));
        sleep(Duration::from_hours(1)).await;
        assert_eq!(following.log.lines().len(), 2);
        assert_eq!(following.state(), Some(state));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_asked_less_and_less_and_changes_nothing_that_was_found() {
    let mut following = Following::start(PlayedAnswer::Json(object(A, "audit=1")));
    following.expect(&object(A, "audit=0"));
    following.until(ConfigState::Differs).await;
    following.log.take();
    following.set(PlayedAnswer::Code(500));
    sleep(Duration::from_hours(1)).await;
    let requests = following.log.lines().len();
    assert!((4..=8).contains(&requests), "{requests}");
    assert_eq!(following.state(), Some(ConfigState::Differs));
    let mut new = Following::start(PlayedAnswer::Code(500));
    new.expect(&object(A, "audit=0"));
    new.until(ConfigState::Unknown).await;
    assert!(!new.found.borrow().is_final, "an earlier reporter may know it");
    new.set(PlayedAnswer::Code(403));
    new.found.wait_for(|found| found.is_final).await.unwrap();
    assert_eq!(new.state(), Some(ConfigState::Unknown), "the object may not be read");
}

#[tokio::test(start_paused = true)]
async fn one_refused_read_changes_nothing_that_was_found_and_the_second_one_is_believed() {
    for code in [403, 404] {
        let mut following = Following::start(PlayedAnswer::Json(object(A, "audit=1")));
        following.expect(&object(A, "audit=0"));
        following.until(ConfigState::Differs).await;
        for _ in 0..3 {
            following.log.take();
            following.set(PlayedAnswer::Code(code));
            while following.log.take().is_empty() {
                sleep(Duration::from_secs(1)).await;
            }
            following.set(PlayedAnswer::Json(object(A, "audit=1")));
            sleep(Duration::from_secs(70)).await;
            assert_eq!(following.state(), Some(ConfigState::Differs), "{code}");
            assert!(!following.log.take().is_empty(), "it is read again after a minute");
        }
        // A read of another copy is refused.
        following.set(PlayedAnswer::Code(code));
        following.expect(&object(A, "audit=2"));
        sleep(Duration::from_secs(35)).await;
        assert!(!following.log.take().is_empty());
        assert_eq!(following.state(), Some(ConfigState::Differs), "{code}");
        assert!(following.until(ConfigState::Unknown).await <= Duration::from_mins(7));

        // An earlier reporter may know it.
        let mut new = Following::start(PlayedAnswer::Code(code));
        new.expect(&object(A, "audit=0"));
        new.until(ConfigState::Unknown).await;
        assert!(!new.found.borrow().is_final, "{code}");
        new.set(PlayedAnswer::Json(object(A, "audit=1")));
        new.until(ConfigState::Differs).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sensor_or_a_node_that_is_away_for_a_while_changes_nothing_that_was_found() {
    let mut following = Following::start(PlayedAnswer::Json(object(A, "audit=1")));
    following.expect(&object(A, "audit=0"));
    following.until(ConfigState::Differs).await;
    following.found.mark_unchanged();
    let sensor = SensorState::Silent { since: String::new() };
    let finding = NodeFinding { config: None, sensor, ..finding(&object(A, "audit=0")) };
    following.findings.send_replace(Some(finding));
    let node = following.nodes.send_replace(None);
    sleep(Duration::from_hours(1)).await;
    following.expect(&object(A, "audit=0"));
    following.nodes.send_replace(node);
    sleep(Duration::from_mins(1)).await;
    assert!(!following.found.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_another_name_is_compared_with_the_object_of_its_own_name() {
    let mut following = Following::start(PlayedAnswer::Json(object(B, "audit=1")));
    following.expect(&object(B, "audit=0"));
    following.until(ConfigState::Differs).await;
    let mut lines = following.log.lines();
    lines.sort_unstable();
    assert_eq!(lines, [format!("{READ}{A}"), format!("{READ}{B}")]);
}

#[tokio::test(start_paused = true)]
async fn without_an_annotation_or_an_answer_of_the_sensor_nothing_is_read_and_nothing_is_said() {
    let mut following = Following::start(PlayedAnswer::Json(object(A, "audit=1")));
    sleep(Duration::from_hours(1)).await;
    following.annotate(&[]);
    following.expect(&object(A, "audit=1"));
    sleep(Duration::from_hours(1)).await;
    assert_eq!(following.log.lines(), [""; 0]);
    let nothing = ComparedConfig { config: None, is_final: true };
    assert_eq!(*following.found.borrow(), nothing, "what an earlier reporter found is over");
    following.annotate(&[("currentConfig", A)]);
    following.until(ConfigState::Same).await;
    following.findings.send_replace(Some(NodeFinding { config: None, ..finding(&object(A, "audit=1")) }));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(*following.found.borrow(), nothing, "the sensor expects nothing");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_changes_all_the_time_is_at_most_two_reads_a_minute() {
    let following = Following::start(PlayedAnswer::Json(object(A, "audit=1")));
    for number in 0..600 {
        following.expect(&object(A, &format!("audit={number}")));
        sleep(Duration::from_secs(1)).await;
    }
    let requests = following.log.lines().len();
    assert!(requests <= 21, "{requests} in ten minutes");
}
