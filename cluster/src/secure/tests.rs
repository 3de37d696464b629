use super::*;
use crate::metrics::ReporterMetrics;
use crate::played_server::{PlayedAnswer, PlayedLog, PlayedRequest, played};
use http_body_util::BodyExt as _;
use hyper::header::{AUTHORIZATION, IF_NONE_MATCH, WWW_AUTHENTICATE};
use serde_json::{Value, json};
use std::path::Path;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

const TOKEN_REVIEW: &str = "POST /apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEW: &str = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Pages with an API server that knows the token `good` and allows its owner one of the two.
fn pages(socket: &Path, allowed: Access) -> (Pages, PlayedLog) {
    let (client, log) = played(move |asked: &PlayedRequest| {
        let mut answer = asked.body.clone();
        if asked.line().ends_with("/tokenreviews") {
            let is_known = asked.body["spec"]["token"] == "good";
            let user = json!({ "username": "alice", "groups": ["ops"], "uid": "7" });
            answer["status"] = json!({ "authenticated": is_known, "user": user });
        } else {
            assert_eq!(asked.line(), ACCESS_REVIEW);
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
    assert_eq!(log.lines(), [TOKEN_REVIEW], "the right is believed for longer than the token");
    tokio::time::advance(Duration::from_mins(2)).await;
    ask(&pages, "GET", "/metrics", Some("good")).await;
    assert_eq!(log.lines(), [ACCESS_REVIEW], "and is asked for alone");
}

#[tokio::test(start_paused = true)]
async fn a_scrape_every_30_s_causes_at_most_32_requests_in_an_hour() {
    let (pages, log) = pages(Path::new("/nonexistent"), Access::Metrics);
    for _ in 0..120 {
        assert_eq!(ask(&pages, "GET", "/metrics", Some("good")).await.0, 200);
        tokio::time::advance(Duration::from_secs(30)).await;
    }
    let requests = log.lines();
    let of = |line: &str| requests.iter().filter(|asked| *asked == line).count();
    // The times are those of the table in docs/performance.md.
    assert!((1..=20).contains(&of(TOKEN_REVIEW)) && (1..=12).contains(&of(ACCESS_REVIEW)), "{requests:?}");
}

/// What an API server answers whose admin takes something away.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    token: bool,
    right: bool,
    group: bool,
}

/// The answers to scrapes three and five minutes after the first one, before which something was taken away; and the requests of the
/// first of them.
async fn after(taken: Taken) -> ([u16; 2], Vec<String>) {
    let (set, now) = tokio::sync::watch::channel(Taken::default());
    let (client, log) = played(move |asked: &PlayedRequest| {
        let (now, mut answer) = (*now.borrow(), asked.body.clone());
        let groups = if now.group { json!([]) } else { json!(["ops"]) };
        answer["status"] = if asked.line() == TOKEN_REVIEW {
            json!({ "authenticated": !now.token, "user": { "username": "alice", "groups": groups } })
        } else {
            json!({ "allowed": !now.right && asked.body["spec"]["groups"] == json!(["ops"]) })
        };
        PlayedAnswer::Json(answer)
    });
    let metrics = ReporterMetrics::default();
    let authorizer = Authorizer::new(&client, "n1", metrics.clone());
    let pages = Pages::new(authorizer, metrics, "/nonexistent".into());
    assert_eq!(ask(&pages, "GET", "/metrics", Some("good")).await.0, 200);
    set.send_replace(taken);
    log.take();
    tokio::time::advance(Duration::from_mins(3)).await;
    let first = ask(&pages, "GET", "/metrics", Some("good")).await.0;
    let asked = log.lines();
    tokio::time::advance(Duration::from_mins(2)).await;
    ([first, ask(&pages, "GET", "/metrics", Some("good")).await.0], asked)
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_taken_away_ends_after_three_minutes_and_a_right_after_five() {
    let (codes, asked) = after(Taken { token: true, ..Taken::default() }).await;
    assert_eq!((codes, asked), ([401, 401], vec![TOKEN_REVIEW.to_owned()]));
    let (codes, asked) = after(Taken { right: true, ..Taken::default() }).await;
    assert_eq!((codes, asked), ([200, 403], vec![TOKEN_REVIEW.to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_owner_with_other_groups_has_no_right_of_before() {
    let (codes, asked) = after(Taken { group: true, ..Taken::default() }).await;
    assert_eq!((codes, asked), ([403, 403], vec![TOKEN_REVIEW.to_owned(), ACCESS_REVIEW.to_owned()]));
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
    for path in ["/v1/config", "/v1/apply"] {
        assert_eq!(asked(path).await.2, format!("GET {path} HTTP/1.1\n"));
    }
    assert_eq!(asked("/metrics").await.0, 403);
    log.take();
    assert_eq!(asked("/v1/policies").await.0, 404);
    for order in
        [("PUT", "/v1/status"), ("PUT", "/v1/config"), ("POST", "/v1/apply"), ("PUT", "/v1/policies")]
    {
        assert_eq!(ask(&pages, order.0, order.1, Some("good")).await.0, 405, "{order:?}");
    }
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
    let begin = tokio::time::Instant::now();
    for number in 0..600 {
        ask(&pages, "GET", "/metrics", Some(&format!("bad{number}"))).await;
    }
    assert!(begin.elapsed() >= Duration::from_mins(1), "ten questions a second at most");
    log.take();
    assert_eq!(ask(&pages, "GET", "/metrics", Some("good")).await.0, 200);
    assert_eq!(log.take().len(), 0);
}
