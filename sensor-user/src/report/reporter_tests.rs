//! When the reporter gets a status.

use super::*;
use crate::clock::SystemClock;
use crate::report::metrics::BuildInfo;
use crate::report::socket::Published;
use sensor_model::record::RecordKind;
use sensor_model::verdict::VerdictKind;
use std::future::poll_fn;
use std::time::Duration;
use tempfile::TempDir;

struct Reporting {
    reporter: Reporter,
    published: Published,
    directory: TempDir,
}

impl Reporting {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let places = Places {
            log: directory.path().join("log"),
            state: directory.path().join("state"),
            run: directory.path().join("run"),
            listen: None,
            reporter: None,
            orders: ReporterOrders::default(),
        };
        for made in [&places.state, &places.run] {
            std::fs::create_dir(made).unwrap();
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let build = BuildInfo {
            version: "1".to_owned(),
            commit: "c".to_owned(),
            object: "o".to_owned(),
            kernel: "k".to_owned(),
        };
        let metrics = Arc::new(Metrics::new(build, clock.now()));
        let mut reporter = Reporter::new(places, Arc::clone(&clock), metrics);
        reporter.open(DaemonFacts { boot_id: "boot".to_owned(), ..DaemonFacts::default() }).unwrap();
        let (publisher, view) = socket::channel(clock, Duration::from_secs(5));
        reporter.publisher = Some(publisher);
        Self { reporter, published: view, directory }
    }

    /// Ends a turn with a record, after which so many things are drifted.
    fn turn(&mut self, drifted: usize) {
        let mut records = vec![Record::new(RecordKind::Start, String::new(), "boot".to_owned(), 1)];
        self.reporter.end_turn(&mut records, &counts(drifted));
    }

    /// The kinds of the log's records.
    fn logged(&self) -> Vec<RecordKind> {
        let log = self.directory.path().join("log");
        let entries = forensic::tail(&log, usize::MAX, &forensic::Filter::default()).unwrap();
        entries.into_iter().map(|entry| entry.record.kind).collect()
    }
}

fn counts(drifted: usize) -> NodeCounts {
    NodeCounts {
        verdict: VerdictKind::Drifted,
        managed: 10,
        compliant: 10 - drifted,
        drifted,
        unknown: 0,
        records_lost: 0,
        is_verifying: false,
    }
}

#[tokio::test]
async fn a_status_is_published_once_the_log_has_the_records_of_its_turn() {
    let mut reporting = Reporting::new();
    reporting.turn(1);
    assert_eq!(reporting.published.newest(), None);
    poll_fn(|context| reporting.reporter.poll_progress(context)).await.unwrap();
    assert!(reporting.published.newest().is_some());
    assert_eq!(reporting.logged(), [RecordKind::Start]);
}

#[tokio::test]
async fn a_status_of_a_turn_during_a_write_waits_for_the_write_of_its_own_records() {
    let mut reporting = Reporting::new();
    reporting.turn(1);
    reporting.turn(2);
    poll_fn(|context| reporting.reporter.poll_progress(context)).await.unwrap();
    assert_eq!(reporting.published.newest(), None);
    poll_fn(|context| reporting.reporter.poll_progress(context)).await.unwrap();
    assert!(reporting.published.newest().is_some());
    assert_eq!(reporting.logged(), [RecordKind::Start, RecordKind::Start]);
}

#[tokio::test]
async fn a_status_without_records_is_published_at_once() {
    let mut reporting = Reporting::new();
    reporting.reporter.end_turn(&mut Vec::new(), &counts(2));
    assert!(reporting.published.newest().is_some());
}

#[tokio::test]
async fn a_log_that_hangs_keeps_a_status_from_the_reporter_until_the_next_beat_only() {
    let mut reporting = Reporting::new();
    reporting.turn(1);
    // Nothing asks for the end of the write, as if it did not end.
    reporting.reporter.beat(&counts(1));
    let first = reporting.published.newest();
    assert!(first.is_some());
    reporting.reporter.beat(&counts(1));
    assert_eq!(reporting.published.newest(), first, "one status is published once");
}
