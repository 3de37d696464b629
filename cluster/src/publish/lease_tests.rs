//! The Lease is renewed only while the report and the conditions may be believed.

use super::tests::{LEASE, NODE, REPORT, finding, good, publisher};
use super::*;
use crate::played_server::{PlayedAnswer, PlayedLog};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Each round that is due in this time. Gives how often the Lease was renewed.
async fn renewals(
    publisher: &mut Publisher,
    log: &PlayedLog,
    finding: &NodeFinding,
    time: Duration,
) -> usize {
    log.take();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let next = publisher.round(Some(finding), None).await;
        tokio::time::sleep_until(next.min(end)).await;
    }
    let renewal = format!("PATCH {LEASE}");
    log.lines().iter().filter(|line| **line == renewal).count()
}

/// A publisher that has written that its node is in sync, and the code with which the API server then answers writes of an object.
async fn in_sync(object: String) -> (Publisher, PlayedLog, Arc<AtomicU16>) {
    let code = Arc::new(AtomicU16::new(200));
    let now = Arc::clone(&code);
    let (mut publisher, log) = publisher(move |asked| match now.load(Ordering::Relaxed) {
        200 => good(asked),
        code if asked.line() == format!("PATCH {object}") => PlayedAnswer::Code(code),
        _ => good(asked),
    });
    publisher.round(Some(&finding(&[])), None).await;
    (publisher, log, code)
}

#[tokio::test(start_paused = true)]
async fn the_lease_grows_old_while_the_api_server_does_not_take_the_report_or_the_conditions() {
    for object in [format!("{REPORT}/status"), format!("{NODE}/status")] {
        for refusal in [403, 422, 503] {
            let (mut publisher, log, code) = in_sync(object.clone()).await;
            code.store(refusal, Ordering::Relaxed);
            let drifted = finding(&["/etc/a"]);
            let first = renewals(&mut publisher, &log, &drifted, LEASE_DURATION).await;
            assert!(first >= 2, "a short time without a right changes nothing: {first}");
            // One that was due at the end of that time may still come.
            renewals(&mut publisher, &log, &drifted, Duration::from_mins(1)).await;
            let later = renewals(&mut publisher, &log, &drifted, Duration::from_mins(20)).await;
            assert_eq!(later, 0, "{object} {refusal}");
            code.store(200, Ordering::Relaxed);
            let again = renewals(&mut publisher, &log, &drifted, Duration::from_mins(10)).await;
            assert!(again >= 4, "{object} {refusal}: {again}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_kind_of_reports_has_a_lease_all_the_same() {
    let (mut publisher, log, code) = in_sync(format!("{REPORT}/status")).await;
    code.store(404, Ordering::Relaxed);
    let renewed = renewals(&mut publisher, &log, &finding(&["/etc/a"]), Duration::from_mins(30)).await;
    assert!(renewed >= 13, "{renewed}");
}

#[tokio::test(start_paused = true)]
async fn a_report_that_was_not_taken_and_is_the_one_of_before_again_keeps_no_lease_from_its_renewal() {
    let (mut publisher, log, code) = in_sync(format!("{REPORT}/status")).await;
    code.store(403, Ordering::Relaxed);
    renewals(&mut publisher, &log, &finding(&["/etc/a"]), Duration::from_secs(5)).await;
    // The next write of the same report is due after ten minutes.
    let renewed = renewals(&mut publisher, &log, &finding(&[]), Duration::from_mins(9)).await;
    assert!(renewed >= 4, "{renewed}");
}
