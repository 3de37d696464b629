//! Configs and orders.

use super::*;
use sensor_model::node_disruption::DisruptionPolicy;
use sensor_model::plan::plan;
use sensor_model::socket::{
    ApplyOrder, ApplyPhase, ApplyProgress, CONFIG_BYTES, PLANNED_CONFIG_SCHEMA, POLICIES_BYTES,
    PlannedConfig, TAKEN_POLICIES_SCHEMA, TakenPolicies,
};
use std::sync::{Condvar, Mutex};

/// Accepts every config, names it by its size, and applies at once.
#[derive(Debug, Default)]
struct Played {
    newest: Mutex<Option<String>>,
    ordered: Mutex<Option<String>>,
}

impl ConfigOrders for Played {
    fn plan(&self, config: &[u8]) -> Result<PlannedConfig, SocketError> {
        if config.is_empty() {
            let error = "empty".to_owned();
            return Err(SocketError { reason: SocketErrorReason::Refused, error, oldest: None });
        }
        *self.newest.lock().unwrap() = Some(config.len().to_string());
        self.newest_plan()
    }

    fn newest_plan(&self) -> Result<PlannedConfig, SocketError> {
        let none = || SocketError {
            reason: SocketErrorReason::NotPlanned,
            error: "no plan".to_owned(),
            oldest: None,
        };
        let id = self.newest.lock().unwrap().clone().ok_or_else(none)?;
        Ok(PlannedConfig {
            schema: PLANNED_CONFIG_SCHEMA.to_owned(),
            id,
            config: "played".to_owned(),
            plan: plan(None, None, &DisruptionPolicy::default()).unwrap(),
            drains: false,
            reboots: false,
            has_nothing_to_do: true,
            changes_left_out: 0,
            is_shortened: false,
        })
    }

    fn begin(&self, order: &ApplyOrder) -> Result<ApplyProgress, SocketError> {
        if self.newest.lock().unwrap().as_ref() != Some(&order.id) {
            let error = "another id".to_owned();
            return Err(SocketError { reason: SocketErrorReason::NotPlanned, error, oldest: None });
        }
        *self.ordered.lock().unwrap() = Some(order.id.clone());
        Ok(self.progress())
    }

    fn progress(&self) -> ApplyProgress {
        let id = self.ordered.lock().unwrap().clone();
        ApplyProgress {
            phase: if id.is_some() { ApplyPhase::Done } else { ApplyPhase::Idle },
            id,
            ..ApplyProgress::idle()
        }
    }
}

/// Takes every body that is not empty.
impl PolicyOrders for Played {
    fn take(&self, policies: &[u8]) -> Result<TakenPolicies, SocketError> {
        if policies.is_empty() {
            let error = "empty".to_owned();
            return Err(SocketError { reason: SocketErrorReason::Refused, error, oldest: None });
        }
        Ok(TakenPolicies { schema: TAKEN_POLICIES_SCHEMA.to_owned(), limited: Vec::new() })
    }
}

fn managed() -> Served {
    let played = Arc::new(Played::default());
    let orders = ReporterOrders { policies: Some(Arc::clone(&played) as _), configs: Some(played) };
    Served::serving(&Everybody(true), LogLimits::default(), orders)
}

async fn put(served: &Served, body: &str) -> Got {
    served.send("PUT /v1/config", &format!("content-length: {}\r\n", body.len()), body).await
}

async fn put_policies(served: &Served, body: &str) -> Got {
    served.send("PUT /v1/policies", &format!("content-length: {}\r\n", body.len()), body).await
}

async fn order(served: &Served, id: &str) -> Got {
    let body = format!("{{\"id\":\"{id}\"}}");
    served.send("POST /v1/apply", &format!("content-length: {}\r\n", body.len()), &body).await
}

#[tokio::test]
async fn without_the_mode_manage_no_config_and_no_order_is_taken() {
    let served = Served::new();
    let plan = served.get("/v1/config").await;
    for got in [plan, put(&served, "{}").await, order(&served, "2").await, served.get("/v1/apply").await] {
        assert_eq!((got.code, got.reason()), (403, SocketErrorReason::NotManaged));
    }
}

#[tokio::test]
async fn only_the_newest_planned_config_can_be_ordered() {
    let served = managed();
    assert_eq!(order(&served, "2").await.reason(), SocketErrorReason::NotPlanned);
    let first = put(&served, "{}").await;
    assert_eq!(first.code, 200, "{first:?}");
    assert_eq!(put(&served, "{ }").await.json::<PlannedConfig>().id, "3");
    assert_eq!(order(&served, &first.json::<PlannedConfig>().id).await.code, 409);
    let ordered = order(&served, "3").await;
    assert_eq!((ordered.code, ordered.json::<ApplyProgress>().phase), (202, ApplyPhase::Done));
}

#[tokio::test]
async fn the_plan_of_the_newest_config_can_be_read_again() {
    let served = managed();
    let none = served.get("/v1/config").await;
    assert_eq!((none.code, none.reason()), (409, SocketErrorReason::NotPlanned));
    let planned = put(&served, "{ }").await.json::<PlannedConfig>();
    let got = served.get("/v1/config").await;
    assert_eq!((got.code, got.json::<PlannedConfig>()), (200, planned));
}

#[tokio::test]
async fn a_body_that_is_too_large_or_no_order_is_refused_with_its_reason() {
    let served = managed();
    let got = put(&served, &" ".repeat(CONFIG_BYTES + 1)).await;
    assert_eq!((got.code, got.reason()), (413, SocketErrorReason::TooLarge));
    assert_eq!(put(&served, "").await.reason(), SocketErrorReason::Refused);
    let got = served.send("POST /v1/apply", "content-length: 2\r\n", "[]").await;
    assert_eq!((got.code, got.reason()), (400, SocketErrorReason::InvalidRequest));
    let got = served.ask("DELETE /v1/config", "").await;
    assert_eq!((got.code, got.header("allow")), (405, Some("GET, HEAD, PUT")));
}

#[tokio::test]
async fn a_peer_that_sends_far_too_much_or_what_the_mode_does_not_take_reads_why_it_is_refused() {
    let much = " ".repeat(8 << 20);
    let got = put_policies(&managed(), &much).await;
    assert_eq!((got.code, got.reason()), (413, SocketErrorReason::TooLarge));
    let got = put(&managed(), &much).await;
    assert_eq!((got.code, got.reason()), (413, SocketErrorReason::TooLarge));
    for got in [put(&Served::new(), &much).await, put_policies(&Served::new(), &much).await] {
        assert_eq!((got.code, got.reason()), (403, SocketErrorReason::NotManaged));
    }
    let got =
        managed().send("DELETE /v1/policies", &format!("content-length: {}\r\n", much.len()), &much).await;
    assert_eq!(got.code, 405);
}

#[tokio::test]
async fn progress_that_is_known_is_waited_for_until_it_changes() {
    let served = managed();
    let idle = served.get("/v1/apply").await;
    let known = format!("if-none-match: {}\r\n", idle.header("etag").unwrap());
    assert_eq!(served.ask("GET /v1/apply", &known).await.code, 304);
    let waiting = served.ask("GET /v1/apply", &format!("{known}prefer: wait=60\r\n"));
    let changed = async {
        put(&served, "{}").await;
        order(&served, "2").await
    };
    let (got, _) = tokio::join!(waiting, changed);
    assert_eq!((got.code, got.json::<ApplyProgress>().phase), (200, ApplyPhase::Done));
}

#[tokio::test]
async fn policies_of_the_cluster_are_taken_where_the_mode_allows_it_and_within_their_limit() {
    let standalone = Served::new();
    let got = put_policies(&standalone, "{}").await;
    assert_eq!((got.code, got.reason()), (403, SocketErrorReason::NotManaged));
    let served = managed();
    assert_eq!(put_policies(&served, "{}").await.code, 200);
    let got = put_policies(&served, "").await;
    assert_eq!((got.code, got.reason()), (422, SocketErrorReason::Refused));
    let got = put_policies(&served, &" ".repeat(POLICIES_BYTES + 1)).await;
    assert_eq!((got.code, got.reason()), (413, SocketErrorReason::TooLarge));
    assert_eq!(served.ask("GET /v1/policies", "").await.header("allow"), Some("PUT"));
}

/// Takes policies only when a test lets it.
#[derive(Debug, Default)]
struct Slow {
    begun: AtomicU64,
    may_end: Mutex<bool>,
    changed: Condvar,
}

impl PolicyOrders for Slow {
    fn take(&self, _: &[u8]) -> Result<TakenPolicies, SocketError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let end = self.may_end.lock().unwrap();
        drop(self.changed.wait_while(end, |may_end| !*may_end).unwrap());
        Ok(TakenPolicies { schema: TAKEN_POLICIES_SCHEMA.to_owned(), limited: Vec::new() })
    }
}

#[tokio::test]
async fn a_peer_that_closes_each_connection_at_once_has_a_few_requests_worked_on_and_no_more() {
    let slow = Arc::new(Slow::default());
    let configs = Some(Arc::new(Played::default()) as _);
    let orders = ReporterOrders { policies: Some(Arc::clone(&slow) as _), configs };
    let served = Served::serving(&Everybody(true), LogLimits::default(), orders);
    for _ in 0..40 {
        let mut stream = served.connect().await;
        let request = b"PUT /v1/policies HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(request).await.unwrap();
        // The server reads the request meanwhile. Its answer does not come.
        assert!(timeout(Duration::from_millis(20), stream.read(&mut [0; 512])).await.is_err());
        drop(stream);
        tokio::task::yield_now().await;
    }
    let begun = slow.begun.load(Ordering::SeqCst);
    assert_eq!(served.get("/v1/apply").await.code, 200, "a question has a place of its own");
    *slow.may_end.lock().unwrap() = true;
    slow.changed.notify_all();
    assert!((1..=4).contains(&begun), "{begun} requests of closed connections are worked on");
    assert_eq!(put_policies(&served, "{}").await.code, 200);
}
