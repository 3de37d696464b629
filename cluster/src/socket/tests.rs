use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

/// A sensor that answers with these texts, and what it was asked. After each answer with `Connection: close` it accepts again.
fn sensor(answers: Vec<String>) -> (tempfile::TempDir, SensorSocket, JoinHandle<Vec<String>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reporter.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let asked = tokio::spawn(async move {
        let mut asked = Vec::new();
        let mut stream = None;
        for answer in answers {
            if stream.is_none() {
                stream = Some(listener.accept().await.unwrap().0);
            }
            let open = stream.as_mut().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(open.read_u8().await.unwrap());
            }
            asked.push(String::from_utf8(head).unwrap().to_lowercase());
            open.write_all(answer.as_bytes()).await.unwrap();
            if answer.contains("Connection: close") || answer.is_empty() {
                stream = None;
            }
        }
        // The connection stays open until the client has read.
        drop((stream, listener));
        asked
    });
    (folder, SensorSocket::new(path), asked)
}

fn answer(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn status(verdict: &str) -> String {
    format!(
        r#"{{"schema":"holdfast.status/v1","verdict":"{verdict}","degraded":false,"backend":"lsm","time":"","pid":1,
        "boot_id":"","sources":[],"drifted":[],"gaps":[],"counters":{{}}}}"#
    )
}

#[tokio::test]
async fn a_status_has_its_tag_and_the_next_request_waits_for_another_one() {
    let answers = vec![
        answer("200 OK\r\nETag: \"7\"", &status("compliant")),
        "HTTP/1.1 304 Not Modified\r\nETag: \"7\"\r\n\r\n".to_owned(),
        answer("200 OK\r\nETag: \"8\"", &status("drifted")),
    ];
    let (_folder, mut socket, asked) = sensor(answers);
    let first = socket.status(None, Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(first.tag, "\"7\"");
    assert_eq!(socket.status(Some(&first.tag), Duration::from_secs(30)).await.unwrap(), None);
    let second = socket.status(Some(&first.tag), Duration::from_secs(99)).await.unwrap().unwrap();
    assert_eq!(second.body.verdict, sensor_model::verdict::VerdictKind::Drifted);
    let asked = asked.await.unwrap();
    assert!(asked[0].starts_with("get /v1/status http/1.1") && !asked[0].contains("prefer"), "{asked:?}");
    assert!(asked[1].contains("if-none-match: \"7\"") && asked[1].contains("prefer: wait=30"), "{asked:?}");
    assert!(asked[2].contains("prefer: wait=60"), "a wait has the contract's limit: {asked:?}");
}

#[tokio::test]
async fn a_connection_that_the_sensor_closed_meanwhile_is_made_anew() {
    let answers = vec![
        answer("200 OK\r\nConnection: close\r\nETag: \"1\"", &status("compliant")),
        answer("200 OK\r\nETag: \"2\"", &status("compliant")),
        // A sensor that dies before it answers.
        String::new(),
        answer("200 OK\r\nETag: \"3\"", &status("compliant")),
    ];
    let (_folder, mut socket, _asked) = sensor(answers);
    for tag in ["\"1\"", "\"2\"", "\"3\""] {
        assert_eq!(socket.status(None, Duration::ZERO).await.unwrap().unwrap().tag, tag);
    }
}

#[tokio::test]
async fn an_error_of_the_sensor_has_its_reason_and_a_log_without_entries_is_none() {
    let gone = r#"{"reason":"Gone","error":"rotated away","oldest":40}"#;
    let none = r#"{"reason":"NoEntry","error":"the log is empty"}"#;
    let checkpoint =
        r#"{"schema":"holdfast.log-checkpoint/v1","sequence":9,"hash":"ab","time":"2026-01-01T00:00:00Z"}"#;
    let answers = vec![
        answer("410 Gone", gone),
        answer("404 Not Found", none),
        answer("200 OK", checkpoint),
        answer("200 OK", "{\"seq\":40}\n{\"seq\":41}\n"),
        answer("500 Oops", "not json"),
    ];
    let (_folder, mut socket, asked) = sensor(answers);
    match socket.records(3, Duration::ZERO).await {
        Err(SensorError::Refused { error, .. }) => assert_eq!(error.oldest, Some(40)),
        other => panic!("{other:?}"),
    }
    assert_eq!(socket.log().await.unwrap(), None);
    assert_eq!(socket.log().await.unwrap().unwrap().sequence, 9);
    assert_eq!(socket.records(40, Duration::ZERO).await.unwrap().len(), 2);
    assert!(matches!(socket.log().await, Err(SensorError::Code { code: 500, .. })));
    assert!(asked.await.unwrap()[0].starts_with("get /v1/records?from=3 "));
}

#[tokio::test]
async fn an_answer_that_is_too_long_or_of_another_contract_is_an_error_and_no_status() {
    let long = answer("404 Not Found", &" ".repeat(SMALL_BYTES + 1));
    let other = status("compliant").replace("status/v1", "status/v9");
    let answers = vec![long, answer("200 OK", &other), answer("200 OK", "{}")];
    // The client drops the first connection with the rest of the answer in it.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reporter.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await.unwrap();
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let mut socket = SensorSocket::new(path);
    assert!(matches!(socket.status(None, Duration::ZERO).await, Err(SensorError::TooLong { .. })));
    for _ in 0..2 {
        let error = socket.status(None, Duration::ZERO).await.unwrap_err();
        assert!(matches!(error, SensorError::Schema { .. } | SensorError::Invalid { .. }), "{error:?}");
        assert!(error.is_unusable_answer());
    }
}

#[tokio::test(start_paused = true)]
async fn a_sensor_that_accepts_and_never_answers_costs_a_limited_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reporter.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        loop {
            kept.push(listener.accept().await.unwrap());
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut socket = SensorSocket::new(path);
    assert!(matches!(socket.log().await, Err(SensorError::NoAnswer { .. })));
    assert!(socket.connection.is_none());
    assert!(accepted.load(Ordering::Relaxed) <= 1);
}

#[tokio::test]
async fn without_a_socket_the_error_names_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reporter.sock");
    let error = SensorSocket::new(&path).log().await.unwrap_err();
    assert!(error.to_string().contains("reporter.sock"), "{error}");
    assert!(!error.is_unusable_answer());
}

#[tokio::test]
async fn a_config_is_planned_and_ordered_by_its_id_and_its_progress_is_followed() {
    let plan = r#"{"schema":"holdfast.plan/v1","reconcilable":true,"reasons":[],"changes":[],"steps":[],"drain":false,"reboot":true}"#;
    let planned = format!(
        r#"{{"schema":"holdfast.planned-config/v1","id":"ab","config":"b","plan":{plan},"drains":false,"reboots":true,"has_nothing_to_do":false}}"#
    );
    let progress = |phase: &str| {
        format!(
            r#"{{"schema":"holdfast.apply-progress/v1","phase":"{phase}","id":"ab","config":"b","message":null,"drifted":false,
            "unreconcilable":false,"rolled_back":false,"current":"a"}}"#
        )
    };
    let busy = r#"{"reason":"Busy","error":"an apply is under way"}"#;
    // Each answer ends its connection, so that no body of a request is read as the next head.
    let answers = vec![
        answer("200 OK\r\nConnection: close", &planned),
        answer("202 Accepted\r\nConnection: close", &progress("Running")),
        answer("409 Conflict\r\nConnection: close", busy),
        answer("200 OK\r\nETag: \"5\"", &progress("Done")),
        "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned(),
    ];
    let (_folder, mut socket, asked) = sensor(answers);
    let config = DesiredConfig { machine_config: serde_json::json!({}), node_disruption: None };
    let planned = socket.put_config(&config).await.unwrap();
    assert!(planned.reboots && planned.plan.reboot);
    assert_eq!(socket.apply(&planned.id).await.unwrap().phase, contract::ApplyPhase::Running);
    match socket.apply(&planned.id).await {
        Err(SensorError::Refused { error, .. }) => assert_eq!(error.reason, SocketErrorReason::Busy),
        other => panic!("{other:?}"),
    }
    let done = socket.progress(None, Duration::ZERO).await.unwrap().unwrap();
    assert_eq!((done.body.phase, done.tag.as_str()), (contract::ApplyPhase::Done, "\"5\""));
    assert_eq!(socket.progress(Some(&done.tag), Duration::from_secs(9)).await.unwrap(), None);
    let asked = asked.await.unwrap();
    assert!(asked[0].starts_with("put /v1/config ") && asked[0].contains("application/json"), "{asked:?}");
    assert!(asked[1].starts_with("post /v1/apply "), "{asked:?}");
    assert!(asked[4].contains("if-none-match: \"5\"") && asked[4].contains("prefer: wait=9"), "{asked:?}");
}

#[tokio::test]
async fn what_the_sensor_would_refuse_for_its_size_is_not_sent_and_the_reason_has_both_sizes() {
    // Nothing listens there.
    let mut socket = SensorSocket::new("/nonexistent/reporter.sock");
    let large = |bytes: usize| serde_json::json!({"a": "x".repeat(bytes)});
    let policies = ClusterPolicies { policies: vec![large(contract::POLICIES_BYTES)], present_pods: None };
    let config = DesiredConfig { machine_config: large(contract::CONFIG_BYTES), node_disruption: None };
    let errors = [
        (socket.put_policies(&policies).await.unwrap_err(), contract::POLICIES_BYTES),
        (socket.put_config(&config).await.unwrap_err(), contract::CONFIG_BYTES),
    ];
    for (error, limit) in errors {
        let SensorError::Refused { error, .. } = error else { panic!("{error:?}") };
        assert_eq!(error.reason, SocketErrorReason::TooLarge);
        assert!(error.error.contains(&format!("at most {limit} bytes")), "{}", error.error);
    }
}
