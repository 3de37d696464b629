use super::*;
use crate::metrics::ReporterMetrics;
use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest, played};
use http_body_util::BodyExt as _;
use hyper::header::{AUTHORIZATION, IF_NONE_MATCH, WWW_AUTHENTICATE};
use serde_json::{Value, json};
use std::path::Path;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

/// Pages with an API server that knows the token `good` and allows its owner one of the two.
fn pages(socket: &Path, allowed: Access) -> (Pages, PlayedLog) {
    let (client, log) = played(move |asked: &PlayedRequest| {
        let mut answer = asked.body.clone();
        if asked.line().ends_with("/tokenreviews") {
            let is_known = asked.body["spec"]["token"] == "good";
            let user = json!({ "username": "alice", "groups": ["ops"], "uid": "7" });
            answer["status"] = json!({ "authenticated": is_known, "user": user });
        } else {
            assert_eq!(asked.line(), "POST /apis/authorization.k8s.io/v1/subjectaccessreviews");
            let spec = &asked.body["spec"];
            assert_eq!((&spec["user"], &spec["groups"]), (&json!("alice"), &json!(["ops"])));
            let wanted = match allowed {
                Access::Metrics => {
                    spec["nonResourceAttributes"] == json!({ "path": "/metrics", "verb": "get" })
                }
                Access::Log => {
                    spec["resourceAttributes"]
                        == json!({ "group": "holdfast.dev", "resource": "driftreports", "subresource": "log",
                                   "name": "n1", "verb": "get" })
                }
            };
            answer["status"] = json!({ "allowed": wanted });
        }
        PlayedAnswer::Json(answer)
    });
    let metrics = ReporterMetrics::default();
    (Pages::new(Authorizer::new(&client, "n1", metrics.clone()), metrics, socket.to_path_buf()), log)
}

/// The code, a header and the body of the answer to one request.
async fn ask(pages: &Pages, method: &str, path: &str, token: Option<&str>) -> (u16, bool, String) {
    let mut request = Request::builder().method(method).uri(path).header(IF_NONE_MATCH, "\"1\"");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    let answer = pages.answer(&head).await;
    let (code, asks) = (answer.status().as_u16(), answer.headers().contains_key(WWW_AUTHENTICATE));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, asks, String::from_utf8(body.to_vec()).unwrap())
}

fn reason(body: &str) -> Value {
    serde_json::from_str::<Value>(body).unwrap()["reason"].clone()
}

/// A sensor that answers each request with its first line.
fn sensor(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let line = format!("{}\n", head.lines().next().unwrap());
            let answer =
                format!("HTTP/1.1 200 OK\r\nETag: \"2\"\r\nContent-Length: {}\r\n\r\n{line}", line.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_caller_gets_what_the_api_server_allows_and_is_asked_about_once_in_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let (pages, log) = pages(&folder.path().join("none.sock"), Access::Metrics);
    let (code, asks, body) = ask(&pages, "GET", "/metrics", None).await;
    assert_eq!((code, asks, reason(&body)), (401, true, json!("Unauthenticated")));
    assert_eq!(log.take().len(), 0, "without a token nothing is asked");

    for _ in 0..5 {
        let (code, _, body) = ask(&pages, "GET", "/metrics", Some("good")).await;
        assert_eq!(code, 200, "{body}");
        assert!(body.contains("holdfast_reporter_sensor_up 0") && body.ends_with("# EOF\n"), "{body}");
        let (code, asks, _) = ask(&pages, "GET", "/metrics", Some("bad")).await;
        assert_eq!((code, asks), (401, true));
        let (code, _, body) = ask(&pages, "GET", "/v1/log", Some("good")).await;
        assert_eq!((code, reason(&body)), (403, json!("Forbidden")));
        assert!(body.contains("driftreports/log"), "{body}");
    }
    assert_eq!(log.take().len(), 2 + 1 + 2);
    tokio::time::advance(Duration::from_secs(11)).await;
    ask(&pages, "GET", "/metrics", Some("bad")).await;
    ask(&pages, "GET", "/metrics", Some("good")).await;
    assert_eq!(log.take().len(), 1, "a refusal is believed for 10 s, a permission for longer");
    tokio::time::advance(Duration::from_mins(3)).await;
    ask(&pages, "GET", "/metrics", Some("good")).await;
    assert_eq!(log.take().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_scrape_every_30_s_causes_at_most_two_requests_in_three_minutes() {
    let (pages, log) = pages(Path::new("/nonexistent"), Access::Metrics);
    for _ in 0..120 {
        assert_eq!(ask(&pages, "GET", "/metrics", Some("good")).await.0, 200);
        tokio::time::advance(Duration::from_secs(30)).await;
    }
    let requests = log.take().len();
    assert!((2..=40).contains(&requests), "{requests} requests in an hour");
}

#[tokio::test]
async fn the_sensors_answers_pass_with_their_tag_and_nothing_else_reaches_the_sensor() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("reporter.sock");
    sensor(&socket);
    let (pages, log) = pages(&socket, Access::Log);
    let asked = |path: &'static str| ask(&pages, "GET", path, Some("good"));
    assert_eq!(asked("/v1/status?x=y").await.2, "GET /v1/status HTTP/1.1\n");
    assert_eq!(asked("/v1/records?from=12&x=y").await.2, "GET /v1/records?from=12 HTTP/1.1\n");
    assert_eq!(asked("/metrics").await.0, 403);
    log.take();
    assert_eq!(asked("/v1/config").await.0, 404);
    assert_eq!(ask(&pages, "PUT", "/v1/status", Some("good")).await.0, 405);
    assert_eq!(log.take().len(), 0, "an unknown page is not asked about");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_decide_allows_nothing_and_is_asked_again() {
    let (client, log) = played(|_| PlayedAnswer::Code(403));
    let metrics = ReporterMetrics::default();
    let authorizer = Authorizer::new(&client, "n1", metrics.clone());
    let pages = Pages::new(authorizer, metrics.clone(), "/nonexistent".into());
    for _ in 0..2 {
        let (code, _, body) = ask(&pages, "GET", "/metrics", Some("good")).await;
        assert_eq!((code, reason(&body)), (503, json!("Undecided")));
    }
    assert_eq!(log.take().len(), 2);
    assert!(metrics.page().contains("token_reviews_total{kind=\"token\",result=\"failed\"} 2"));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_wrong_tokens_neither_grows_without_limit_nor_displaces_a_right_one() {
    let (pages, log) = pages(Path::new("/nonexistent"), Access::Metrics);
    ask(&pages, "GET", "/metrics", Some("good")).await;
    for number in 0..600 {
        ask(&pages, "GET", "/metrics", Some(&format!("bad{number}"))).await;
    }
    log.take();
    assert_eq!(ask(&pages, "GET", "/metrics", Some("good")).await.0, 200);
    assert_eq!(log.take().len(), 0);
}
