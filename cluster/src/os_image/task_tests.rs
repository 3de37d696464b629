use super::*;
use crate::api::{DriftReportStatus, ReportedOsImage};
use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest, played};
use crate::publish::NodeMetadata;
use crate::reads::Reads;
use crate::reports::{NodeFinding, SensorState};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const A: &str = "quay.io/os@sha256:aa";
const B: &str = "quay.io/os@sha256:bb";
const BUILDS: &str = "GET /apis/machineconfiguration.openshift.io/v1/machineosbuilds";
const BOOTC: &str = "GET /apis/node.bootc.dev/v1alpha1/bootcnodes/n1";
const CONFIG: &str = "GET /apis/machineconfiguration.openshift.io/v1/machineconfigs/";

/// The objects of a cluster, which a test may change.
#[derive(Clone, Default)]
struct Objects(Arc<Mutex<Vec<(String, PlayedAnswer)>>>);

impl Objects {
    fn set(&self, line: &str, answer: PlayedAnswer) {
        let mut all = self.0.lock().unwrap();
        all.retain(|(known, _)| known != line);
        all.push((line.to_owned(), answer));
    }

    fn answer(&self, asked: &PlayedRequest) -> PlayedAnswer {
        let all = self.0.lock().unwrap();
        let known = all.iter().find(|(line, _)| *line == asked.line());
        known.map_or(PlayedAnswer::Code(404), |(_, answer)| answer.clone())
    }
}

struct Following {
    objects: Objects,
    log: PlayedLog,
    findings: watch::Sender<Option<NodeFinding>>,
    nodes: watch::Sender<Option<NodeMetadata>>,
    found: watch::Receiver<Option<ReportedOsImage>>,
}

impl Following {
    /// A node that booted this image.
    fn start(booted: &str) -> Self {
        let objects = Objects::default();
        let server = objects.clone();
        let (client, log) = played(move |asked| server.answer(asked));
        let (findings, newest) = watch::channel(Some(finding(Some(booted))));
        let (nodes, node) = watch::channel(None);
        let (sender, found) = watch::channel(None);
        let follower = OsImageFollower::new(&Reads::with(client.clone(), client), "n1", sender);
        tokio::spawn(follower.run(newest, node));
        Self { objects, log, findings, nodes, found }
    }

    fn annotate(&self, annotations: &[(&str, &str)]) {
        let named = |(name, value): &(&str, &str)| {
            (format!("machineconfiguration.openshift.io/{name}"), (*value).to_owned())
        };
        let annotations = annotations.iter().map(named).collect();
        self.nodes.send_replace(Some(NodeMetadata { annotations, ..NodeMetadata::default() }));
    }

    fn done(&self, image: &str) {
        let config = "rendered-2";
        self.annotate(&[
            ("currentConfig", config),
            ("desiredConfig", config),
            ("currentImage", image),
            ("desiredImage", image),
            ("state", "Done"),
        ]);
    }

    fn bootc(&self, desired: &str) {
        self.objects.set(
            BOOTC,
            PlayedAnswer::Json(json!({
                "apiVersion": "node.bootc.dev/v1alpha1", "kind": "BootcNode",
                "metadata": {"name": "n1", "generation": 1},
                "spec": {"desiredImage": desired, "desiredImageState": "Booted"},
                "status": {"observedGeneration": 1, "conditions": [{"type": "Idle", "status": "True"}]},
            })),
        );
    }

    fn builds(&self, builds: &[(&str, &str, &str)], more: &str) {
        let items: Vec<Value> = builds
            .iter()
            .map(|(name, config, image)| {
                json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineOSBuild",
                    "metadata": {"name": name}, "spec": {"machineConfig": {"name": config}},
                    "status": {"digestedImagePushSpec": image}})
            })
            .collect();
        let list = json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineOSBuildList",
            "metadata": {"continue": more}, "items": items});
        self.objects.set(BUILDS, PlayedAnswer::Json(list));
    }

    fn config(&self, name: &str, kernel: &str) {
        let config = json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": {"name": name}, "spec": {"kernelType": kernel}});
        self.objects.set(&format!("{CONFIG}{name}"), PlayedAnswer::Json(config));
    }

    /// Waits until the report has a sentence, or none, and gives the report.
    async fn until(&mut self, is_out_of_step: bool) -> ReportedOsImage {
        let wanted = |found: &Option<ReportedOsImage>| {
            found.as_ref().is_some_and(|found| found.out_of_step.is_some() == is_out_of_step)
        };
        let found = timeout(Duration::from_mins(31), self.found.wait_for(wanted)).await;
        found.unwrap().unwrap().clone().unwrap()
    }
}

fn finding(booted: Option<&str>) -> NodeFinding {
    let image =
        |image: &str| ReportedOsImage { booted: Some(image.to_owned()), ..ReportedOsImage::default() };
    let status = DriftReportStatus { os_image: booted.map(image), ..DriftReportStatus::default() };
    NodeFinding { status, sensor: SensorState::Answers { refuses_config: false }, text: None, config: None }
}

#[tokio::test(start_paused = true)]
async fn a_difference_is_handed_on_after_a_second_read_and_ends_with_the_annotation() {
    let mut following = Following::start(A);
    following.done(B);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(following.log.lines(), [BUILDS, BOOTC]);
    assert_eq!(*following.found.borrow(), None, "an earlier reporter may have found the same");
    let found = following.until(true).await;
    assert_eq!(found.desired.as_deref(), Some(B));
    assert_eq!(
        found.out_of_step.as_deref(),
        Some("the node booted quay.io/os@sha256:aa; the annotation desiredImage names quay.io/os@sha256:bb")
    );
    assert_eq!(following.log.lines(), [BUILDS, BOOTC]);
    following.done(A);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(following.found.borrow().as_ref().unwrap().out_of_step, None, "without another read");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_handed_on_before_each_object_was_read_unless_an_update_is_under_way() {
    let mut following = Following::start(A);
    following.objects.set(BUILDS, PlayedAnswer::Code(500));
    following.done(A);
    sleep(Duration::from_hours(1)).await;
    assert_eq!(*following.found.borrow(), None);
    following.objects.set(BUILDS, PlayedAnswer::Code(404));
    following.until(false).await;
    let mut updating = Following::start(A);
    updating.annotate(&[("state", "Working")]);
    updating.until(false).await;
    assert_eq!(updating.log.lines(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_known_for_a_while_ends_no_difference() {
    let mut following = Following::start(A);
    following.done(B);
    following.until(true).await;
    following.found.mark_unchanged();
    following.nodes.send_replace(None);
    sleep(Duration::from_mins(1)).await;
    following.done(B);
    sleep(Duration::from_mins(10)).await;
    assert!(!following.found.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_bootc_node_that_agrees_again_ends_the_difference_within_minutes() {
    let mut following = Following::start(A);
    following.bootc(B);
    following.annotate(&[]);
    let found = following.until(true).await;
    assert_eq!(found.bootc_node.as_deref(), Some(B));
    assert!(found.out_of_step.unwrap().contains("BootcNode n1 wants"));
    following.bootc(A);
    let begin = tokio::time::Instant::now();
    following.until(false).await;
    assert!(begin.elapsed() <= Duration::from_mins(5));
    assert!(following.log.lines().iter().all(|line| line == BOOTC), "without a config no build is read");
}

#[tokio::test(start_paused = true)]
async fn the_configs_of_the_booted_images_build_are_read_once_and_decide() {
    let mut following = Following::start(A);
    following.builds(&[("old", "rendered-1", A)], "");
    following.config("rendered-1", "default");
    following.config("rendered-2", "realtime");
    following.done(A);
    let found = following.until(true).await;
    assert_eq!((found.build.as_deref(), found.config.as_deref()), (Some("old"), Some("rendered-2")));
    assert!(found.out_of_step.unwrap().ends_with("which differs in kernelType"));
    let lines = following.log.lines();
    assert_eq!(lines.iter().filter(|line| line.starts_with(CONFIG)).count(), 2, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_goes_on_is_no_opinion() {
    let following = Following::start(A);
    following.builds(&[("old", "rendered-1", A), ("new", "rendered-2", B)], "more");
    following.done(A);
    sleep(Duration::from_mins(2)).await;
    let found = following.found.borrow().clone().unwrap();
    assert_eq!((found.build, found.out_of_step), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_node_in_step_costs_two_reads_in_half_an_hour_and_one_without_an_image_none() {
    for code in [403, 404] {
        let following = Following::start(A);
        following.objects.set(BUILDS, PlayedAnswer::Code(code));
        following.objects.set(BOOTC, PlayedAnswer::Code(code));
        following.done(A);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(following.log.lines(), [BUILDS, BOOTC]);
        // Other findings are no reason to read.
        for _ in 0..100 {
            following.findings.send_replace(Some(finding(Some(A))));
            sleep(Duration::from_secs(6)).await;
        }
        // A refusal is asked for once more after a minute.
        assert_eq!(following.log.lines().len(), if code == 403 { 2 } else { 0 });
        sleep(Duration::from_hours(1)).await;
        assert_eq!(following.log.lines().len(), 4);
    }
    let following = Following::start(A);
    following.findings.send_replace(Some(finding(None)));
    following.done(A);
    sleep(Duration::from_hours(1)).await;
    assert_eq!(following.log.lines(), [""; 0]);
    assert_eq!(*following.found.borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_asked_less_and_less_and_changes_no_opinion() {
    let mut following = Following::start(A);
    following.bootc(B);
    following.annotate(&[]);
    following.until(true).await;
    following.log.take();
    following.objects.set(BOOTC, PlayedAnswer::Code(500));
    sleep(Duration::from_hours(1)).await;
    let requests = following.log.lines().len();
    assert!((5..=8).contains(&requests), "{requests}");
    assert!(following.found.borrow().as_ref().unwrap().out_of_step.is_some());
}

#[tokio::test(start_paused = true)]
async fn one_refused_read_changes_no_opinion_and_the_second_one_is_believed() {
    for code in [403, 404] {
        let mut following = Following::start(A);
        following.bootc(B);
        following.annotate(&[]);
        following.until(true).await;
        for _ in 0..3 {
            following.log.take();
            following.objects.set(BOOTC, PlayedAnswer::Code(code));
            while following.log.take().is_empty() {
                sleep(Duration::from_secs(1)).await;
            }
            following.bootc(B);
            sleep(Duration::from_secs(70)).await;
            assert!(following.found.borrow().as_ref().unwrap().out_of_step.is_some(), "{code}");
            assert!(!following.log.take().is_empty(), "it is read again after a minute");
        }
        following.objects.set(BOOTC, PlayedAnswer::Code(code));
        let begin = tokio::time::Instant::now();
        following.until(false).await;
        assert!(begin.elapsed() <= Duration::from_mins(7));
    }
    // An earlier reporter may know that the image is out of step.
    let mut new = Following::start(A);
    new.objects.set(BOOTC, PlayedAnswer::Code(403));
    new.annotate(&[]);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(*new.found.borrow(), None);
    new.bootc(B);
    new.until(true).await;
}

#[tokio::test(start_paused = true)]
async fn annotations_that_change_all_the_time_are_at_most_four_reads_a_minute() {
    let following = Following::start(A);
    for number in 0..600 {
        following.done(if number % 2 == 0 { A } else { B });
        sleep(Duration::from_secs(1)).await;
    }
    let requests = following.log.lines().len();
    assert!(requests <= 42, "{requests} in ten minutes");
}
