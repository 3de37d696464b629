//! The task that compares the sensor's config with the MachineConfigs of the cluster.
//!
//! In: the newest finding and the newest Node. Out: the part of the report, whenever it changes. It reads a MachineConfig when the sensor's
//! config or the annotation changes, and else rarely. What it has found stays while the API server or the sensor does not answer.

use super::compare::{Known, Object, Subject, compared};
use crate::api::ConfigState;
use crate::backoff::Backoff;
use crate::publish::{NodeMetadata, PREFIX, STATE, limited};
use crate::reads::Reads;
use crate::reports::{ComparedConfig, NodeFinding, SensorState};
use kube::api::{Api, DynamicObject};
use sensor_model::config_digest::digest_of_object;
use sensor_model::status::ExpectedConfig;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The objects are read again after this time.
const EVERY: Duration = Duration::from_mins(30);
/// The same while the configs differ, so that the end of it is seen.
const NOT_SAME: Duration = Duration::from_mins(5);
/// Shortest time between two reads.
const SHORTEST: Duration = Duration::from_secs(30);
/// Changes that come within this time are one.
const TOGETHER: Duration = Duration::from_secs(2);
/// First pause after a read that failed.
const FIRST_PAUSE: Duration = Duration::from_mins(1);
/// The status codes of an object that the reporter may not read, and of one that does not exist.
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;

/// Follows whether the config of one node is the one of the cluster.
#[derive(Debug)]
pub struct ConfigFollower {
    configs: Api<DynamicObject>,
    subject: Option<Subject>,
    known: Known,
    /// What was found last, for the subject of then.
    last: ComparedConfig,
    due: Instant,
    /// When the objects were last read.
    read_at: Option<Instant>,
    backoff: Backoff,
    /// It is logged that the last read had an error.
    is_noted: bool,
    /// The MachineConfigs of which the last answer was a refusal. An API server that has just started refuses what it gives a moment later, so
    /// the first refusal proves nothing.
    refused: BTreeSet<String>,
    /// The last read had such a first refusal.
    is_doubted: bool,
    found: watch::Sender<ComparedConfig>,
}

impl ConfigFollower {
    /// Nothing is asked yet.
    pub fn new(reads: &Reads, found: watch::Sender<ComparedConfig>) -> Self {
        Self {
            configs: reads.machine_configs(),
            subject: None,
            known: Known::new(),
            last: ComparedConfig::default(),
            due: Instant::now(),
            read_at: None,
            backoff: Backoff::new(FIRST_PAUSE, EVERY),
            is_noted: false,
            refused: BTreeSet::new(),
            is_doubted: false,
            found,
        }
    }

    /// Follows it until nothing takes or gives anything any more.
    pub async fn run(
        mut self,
        mut findings: watch::Receiver<Option<NodeFinding>>,
        mut nodes: watch::Receiver<Option<NodeMetadata>>,
    ) {
        while !self.found.is_closed() {
            let answer = findings.borrow_and_update().as_ref().and_then(|finding| {
                let answers = matches!(finding.sensor, SensorState::Answers { .. });
                answers.then(|| finding.config.clone())
            });
            let node = nodes.borrow_and_update().clone();
            // A sensor that is silent for a while comes back with the same config, mostly.
            let again = match answer.zip(node) {
                Some((config, node)) => self.step(config.and_then(|config| subject(config, &node))).await,
                None => Instant::now() + EVERY,
            };
            tokio::select! {
                changed = findings.changed() => if changed.is_err() { return },
                changed = nodes.changed() => if changed.is_err() { return },
                () = sleep_until(again) => {}
            }
        }
    }

    /// Takes the state of now, and reads what is due. Gives the time of the next step if nothing changes.
    async fn step(&mut self, subject: Option<Subject>) -> Instant {
        let now = Instant::now();
        let is_other = self.subject.as_ref().map(Subject::key) != subject.as_ref().map(Subject::key);
        self.subject.clone_from(&subject);
        let Some(subject) = subject else {
            self.known.clear();
            self.last = ComparedConfig { config: None, is_final: true };
            self.hand_on();
            return now + EVERY;
        };
        if is_other {
            let soonest = self.read_at.map_or(now, |read_at| read_at + SHORTEST);
            // A config that changes all the time does not put the read off.
            self.due = self.due.min(soonest.max(now + TOGETHER));
            // The objects of now are compared, not those that an earlier config was compared with.
            self.known.clear();
        }
        if now >= self.due {
            self.read(&subject).await;
        }
        let differed = self.last.config.as_ref().is_some_and(|last| last.state == ConfigState::Differs);
        // What was found about another config is not given up for want of a read, nor is a difference for a refusal.
        let keeps_last = self.known.is_empty() || differed && self.is_doubted;
        if !keeps_last || self.backoff.is_failing() && self.last.config.is_none() {
            let config = compared(&subject, &self.known);
            let again = self.read_at.map_or(self.due, |read_at| read_at + NOT_SAME);
            let is_other = matches!(config.state, ConfigState::Differs | ConfigState::Other);
            let is_whole = subject.names().iter().all(|name| self.known.contains_key(name));
            self.last.is_final |= is_whole && !self.is_doubted;
            self.last.config = Some(config);
            if is_other && !self.backoff.is_failing() {
                self.due = self.due.min(again);
            }
        }
        self.hand_on();
        self.due
    }

    /// Reads the MachineConfigs. What cannot be read, or is refused for the first time, stays as it was known.
    async fn read(&mut self, subject: &Subject) {
        let (mut is_whole, mut has_error) = (true, false);
        let names = subject.names();
        self.refused.retain(|name| names.contains(name));
        self.is_doubted = false;
        for name in names {
            match limited("MachineConfig", self.configs.get(&name)).await {
                Ok(config) => {
                    let object = digest(&name, &config);
                    if let Object::Unusable(reason) = &object {
                        tracing::warn!(
                            machine_config = name,
                            reason,
                            "The MachineConfig cannot be compared."
                        );
                    }
                    self.refused.remove(&name);
                    self.known.insert(name, object);
                }
                Err(error) => {
                    let object = match error.code() {
                        Some(FORBIDDEN) => Some(Object::Forbidden),
                        Some(NOT_FOUND) => Some(Object::Absent),
                        _ => None,
                    };
                    let is_doubted = object.is_some() && self.refused.insert(name.clone());
                    if is_doubted || object.is_none() {
                        is_whole = false;
                    }
                    self.is_doubted |= is_doubted;
                    has_error = true;
                    let is_new = !std::mem::replace(&mut self.is_noted, true);
                    let error = format!("{:#}", anyhow::Error::from(error));
                    match &object {
                        Some(_) if is_new => {
                            tracing::info!(
                                error,
                                "The node's config is not compared with the MachineConfig of the cluster."
                            );
                        }
                        None if is_new => {
                            tracing::warn!(
                                error,
                                "Cannot compare the node's config with the cluster; trying again."
                            );
                        }
                        _ => tracing::debug!(error, "not read again"),
                    }
                    if let Some(object) = object.filter(|_| !(is_doubted && self.known.contains_key(&name))) {
                        self.known.insert(name, object);
                    }
                }
            }
        }
        self.is_noted = has_error;
        let pause = if is_whole {
            self.backoff.reset();
            EVERY
        } else {
            self.backoff.next_pause()
        };
        let now = Instant::now();
        self.read_at = Some(now);
        self.due = now + pause;
    }

    fn hand_on(&self) {
        self.found.send_if_modified(|known| {
            let is_other = *known != self.last;
            known.clone_from(&self.last);
            is_other
        });
    }
}

fn digest(name: &str, config: &DynamicObject) -> Object {
    let digest = serde_json::to_vec(config).map_err(|error| error.to_string());
    let digest = digest.and_then(|bytes| digest_of_object(name, &bytes).map_err(|error| error.to_string()));
    digest.map_or_else(Object::Unusable, Object::Digest)
}

/// What is compared, of a sensor's config and a Node; `None` if the Node's annotations name no config.
fn subject(expected: ExpectedConfig, metadata: &NodeMetadata) -> Option<Subject> {
    let value = |name: &str| metadata.annotations.get(name).filter(|value| !value.is_empty()).cloned();
    Some(Subject {
        expected,
        current: value(&format!("{PREFIX}currentConfig"))?,
        desired: value(&format!("{PREFIX}desiredConfig")),
        state: value(STATE),
    })
}
