//! The task that reads what the cluster says about the node's OS image.
//!
//! In: the newest finding and the newest Node. Out: the opinions for the report, whenever they change. It reads the other objects when the
//! booted image or an annotation changes, and else rarely. A sentence is handed on only if a read half a minute later confirms it: the
//! objects are read one after the other, and their writers are not at once. Nothing at all is handed on before the first read of all objects,
//! and before a first difference is confirmed: until then what an earlier reporter found holds.

use super::objects;
use super::opinions::{Opinions, Subject};
use super::verdict::{Verdict, verdict};
use crate::api::ReportedOsImage;
use crate::backoff::Backoff;
use crate::publish::{NodeMetadata, PREFIX, PublishError, STATE, limited};
use crate::reads::Reads;
use crate::reports::NodeFinding;
use crate::text::fit;
use kube::api::{Api, DynamicObject, ListParams};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The objects are read again after this time.
const EVERY: Duration = Duration::from_mins(30);
/// The same while an opinion is out of step, so that the end of it is seen.
const OUT_OF_STEP: Duration = Duration::from_mins(5);
/// The wait until the read that confirms a difference, and the shortest time between two reads.
const CONFIRM: Duration = Duration::from_secs(30);
/// Changes that come within this time are one.
const TOGETHER: Duration = Duration::from_secs(2);
/// First pause after a read that failed.
const FIRST_PAUSE: Duration = Duration::from_mins(1);
/// Most builds that are read. With more of them nothing is known of them.
const BUILDS: u32 = 500;
/// What messages call the kinds.
const MACHINE_OS_BUILDS: &str = "MachineOSBuilds";
const BOOTC_NODE: &str = "BootcNode";
const MACHINE_CONFIG: &str = "MachineConfig";
/// Longest name of an image or an object in the report.
const NAME_BYTES: usize = 512;
/// Longest sentence.
const SENTENCE_BYTES: usize = 800;
/// The status codes of an object that the reporter may not read, and of an object or a kind that does not exist.
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;

/// Follows what the cluster says about one node's OS image.
#[derive(Debug)]
pub struct OsImageFollower {
    node: String,
    builds: Api<DynamicObject>,
    bootc_nodes: Api<DynamicObject>,
    configs: Api<DynamicObject>,
    subject: Option<Subject>,
    opinions: Opinions,
    due: Instant,
    /// When all objects were last read.
    read_at: Option<Instant>,
    backoff: Backoff,
    /// Since when an opinion is out of step.
    differs_since: Option<Instant>,
    /// The kinds of objects of which it is logged that they cannot be read.
    noted: BTreeSet<&'static str>,
    /// The kinds, and the names of MachineConfigs, whose last answer was a refusal that is not believed before the second one.
    refused: BTreeSet<String>,
    /// The reporter has the right to read MachineConfigs, which not every overlay gives it.
    has_read_config: bool,
    found: watch::Sender<Option<ReportedOsImage>>,
}

impl OsImageFollower {
    /// Nothing is asked yet.
    pub fn new(reads: &Reads, node: &str, found: watch::Sender<Option<ReportedOsImage>>) -> Self {
        let operator = "machineconfiguration.openshift.io";
        let api = |group, version, kind, plural| reads.objects(group, version, kind, plural);
        Self {
            node: node.to_owned(),
            builds: api(operator, "v1", "MachineOSBuild", "machineosbuilds"),
            bootc_nodes: api("node.bootc.dev", "v1alpha1", "BootcNode", "bootcnodes"),
            configs: reads.machine_configs(),
            subject: None,
            opinions: Opinions::default(),
            due: Instant::now(),
            read_at: None,
            backoff: Backoff::new(FIRST_PAUSE, EVERY),
            differs_since: None,
            noted: BTreeSet::new(),
            refused: BTreeSet::new(),
            has_read_config: false,
            found,
        }
    }

    /// Follows them until nothing takes or gives anything any more.
    pub async fn run(
        mut self,
        mut findings: watch::Receiver<Option<NodeFinding>>,
        mut nodes: watch::Receiver<Option<NodeMetadata>>,
    ) {
        while !self.found.is_closed() {
            let image =
                findings.borrow_and_update().as_ref().and_then(|finding| finding.status.os_image.clone());
            let node = nodes.borrow_and_update().clone();
            // Without the Node nothing says whether an update is under way.
            let subject = image.zip(node).map(|(image, node)| subject(&self.node, &image, &node));
            let again = self.step(subject).await;
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
        if self.subject != subject {
            let soonest = self.read_at.map_or(now, |read_at| read_at + CONFIRM);
            self.due = self.due.min(soonest.max(now + TOGETHER));
            self.subject.clone_from(&subject);
        }
        // Without a booted image or a Node there is nothing new to say.
        let Some(subject) = subject else { return now + EVERY };
        // Whatever the objects say, nothing is out of step now.
        let is_updating = subject.is_updating();
        if !is_updating && now >= self.due {
            let is_whole = self.read(&subject).await;
            let pause = if is_whole { EVERY } else { self.backoff.next_pause() };
            self.due = Instant::now() + pause;
            if is_whole {
                self.backoff.reset();
                self.read_at = Some(Instant::now());
            }
        }
        let out_of_step = self.confirmed(verdict(&subject, &self.opinions));
        let waits_for_confirmation = out_of_step.is_none() && self.differs_since.is_some();
        let is_decided = is_updating || self.read_at.is_some() && !waits_for_confirmation;
        if is_decided || self.found.borrow().is_some() {
            self.hand_on(self.report(&subject, out_of_step));
        }
        if is_updating { now + EVERY } else { self.due }
    }

    /// The sentence of a verdict, if a read some time after the first one confirms that an opinion is out of step.
    fn confirmed(&mut self, verdict: Verdict) -> Option<String> {
        let Verdict::OutOfStep(sentence) = verdict else {
            self.differs_since = None;
            return None;
        };
        let confirmed_at = *self.differs_since.get_or_insert_with(Instant::now) + CONFIRM;
        let is_confirmed = self.read_at.is_some_and(|read_at| read_at >= confirmed_at);
        let again = if is_confirmed { Instant::now() + OUT_OF_STEP } else { confirmed_at };
        // After a read that failed the next one waits for longer and longer.
        if !self.backoff.is_failing() {
            self.due = self.due.min(again);
        }
        is_confirmed.then_some(sentence)
    }

    fn report(&self, subject: &Subject, out_of_step: Option<String>) -> ReportedOsImage {
        let text = |text: &str| fit(text, NAME_BYTES);
        ReportedOsImage {
            booted: subject.booted.clone(),
            booted_digest: subject.booted_digest.clone(),
            built_from: subject.built_from.clone(),
            desired: subject.desired_image.as_deref().map(text),
            config: subject.current_config.as_deref().map(text),
            build: self.opinions.builds_of(subject).first().map(|build| text(&build.name)),
            bootc_node: self.opinions.bootc_node.as_ref().map(|bootc_node| text(&bootc_node.desired)),
            out_of_step: out_of_step.map(|sentence| fit(&sentence, SENTENCE_BYTES)),
        }
    }

    fn hand_on(&self, report: ReportedOsImage) {
        self.found.send_if_modified(|known| {
            let is_other = known.as_ref() != Some(&report);
            *known = Some(report);
            is_other
        });
    }

    /// Reads the objects. Gives whether each of them was read or is absent. What fails otherwise keeps the opinion of before.
    async fn read(&mut self, subject: &Subject) -> bool {
        let mut is_whole = true;
        if subject.current_config.is_none() {
            self.opinions.builds.clear();
        } else {
            let list = ListParams::default().limit(BUILDS);
            let answer = limited(MACHINE_OS_BUILDS, self.builds.list(&list)).await;
            let is_known = !self.opinions.builds.is_empty();
            match self.present(MACHINE_OS_BUILDS, MACHINE_OS_BUILDS, is_known, answer) {
                Ok(list) => {
                    // The build that is missing might be the one that agrees.
                    let list =
                        list.filter(|list| list.metadata.continue_.as_deref().unwrap_or_default().is_empty());
                    let builds = list.into_iter().flat_map(|list| list.items);
                    self.opinions.builds = builds.filter_map(|build| objects::build(&build)).collect();
                }
                Err(()) => is_whole = false,
            }
        }
        let answer = limited(BOOTC_NODE, self.bootc_nodes.get(&self.node)).await;
        let is_known = self.opinions.bootc_node.is_some();
        match self.present(BOOTC_NODE, BOOTC_NODE, is_known, answer) {
            Ok(bootc_node) => {
                self.opinions.bootc_node = bootc_node.as_ref().and_then(objects::bootc_node);
            }
            Err(()) => is_whole = false,
        }
        let wanted = self.opinions.configs_wanted(subject);
        self.refused
            .retain(|name| [MACHINE_OS_BUILDS, BOOTC_NODE].contains(&name.as_str()) || wanted.contains(name));
        // A rendered config of one name never changes.
        self.opinions.configs.retain(|name, _| wanted.contains(name));
        for name in wanted {
            if self.opinions.configs.contains_key(&name) {
                continue;
            }
            let answer = limited(MACHINE_CONFIG, self.configs.get(&name)).await;
            match self.present(MACHINE_CONFIG, &name, self.has_read_config, answer) {
                Ok(Some(config)) => {
                    self.has_read_config = true;
                    self.opinions.configs.insert(name, objects::os_fields(&config));
                }
                // Nothing is known without one of them.
                Ok(None) => break,
                Err(()) => is_whole = false,
            }
        }
        is_whole
    }

    /// The object; `None` if it does not exist, or may not be read. An API server that has just started refuses what it gives a moment later. So
    /// the first refusal is a read that failed, and so is the first answer that an object does not exist of which something is known.
    fn present<T>(
        &mut self,
        what: &'static str,
        name: &str,
        is_known: bool,
        answer: Result<T, PublishError>,
    ) -> Result<Option<T>, ()> {
        let error = match answer {
            Ok(object) => {
                self.noted.remove(what);
                self.refused.remove(name);
                return Ok(Some(object));
            }
            Err(error) => error,
        };
        let is_doubted = match error.code() {
            Some(FORBIDDEN) => is_known || what != MACHINE_CONFIG,
            Some(NOT_FOUND) => is_known,
            _ => true,
        };
        let is_refusal = matches!(error.code(), Some(FORBIDDEN | NOT_FOUND));
        let is_absent = is_refusal && !(is_doubted && self.refused.insert(name.to_owned()));
        let is_new = self.noted.insert(what);
        let error = anyhow::Error::from(error);
        if is_new && !is_absent {
            tracing::warn!(
                error = format!("{error:#}"),
                "Cannot compare the OS image with {what}; trying again."
            );
        } else if is_new {
            tracing::info!(error = format!("{error:#}"), "The OS image is compared without {what}.");
        } else {
            tracing::debug!(error = format!("{error:#}"), what, "not read again");
        }
        if is_absent { Ok(None) } else { Err(()) }
    }
}

/// What is compared, of a booted image and a Node.
fn subject(node: &str, image: &ReportedOsImage, metadata: &NodeMetadata) -> Subject {
    let annotation = |name: &str| {
        let value = metadata.annotations.get(&format!("{PREFIX}{name}"))?;
        (!value.is_empty()).then(|| value.clone())
    };
    Subject {
        node: node.to_owned(),
        booted: image.booted.clone(),
        booted_digest: image.booted_digest.clone(),
        built_from: image.built_from.clone(),
        current_config: annotation("currentConfig"),
        desired_config: annotation("desiredConfig"),
        current_image: annotation("currentImage"),
        desired_image: annotation("desiredImage"),
        state: metadata.annotations.get(STATE).filter(|state| !state.is_empty()).cloned(),
    }
}
