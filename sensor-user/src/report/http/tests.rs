//! The server, over a real socket.

use super::*;
use crate::report::metrics::BuildInfo;
use jiff::Timestamp;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};

struct Server {
    address: SocketAddr,
    readiness: Readiness,
    stop: oneshot::Sender<()>,
    task: JoinHandle<io::Result<()>>,
}

async fn server() -> Server {
    server_for(CONNECTION_TIMEOUT).await
}

async fn server_for(limit: Duration) -> Server {
    let build = BuildInfo {
        version: "1".to_owned(),
        commit: "c".to_owned(),
        object: "o".to_owned(),
        kernel: "k".to_owned(),
    };
    let metrics = Arc::new(Metrics::new(build, Timestamp::UNIX_EPOCH));
    let readiness = Readiness::default();
    let pages = Pages { metrics, readiness: readiness.clone() };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(serve_for(limit, listener, pages, async { drop(stopped.await) }));
    Server { address, readiness, stop, task }
}

async fn ask(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(format!("{request}\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn get(server: &Server, path: &str) -> String {
    ask(server, &format!("GET {path} HTTP/1.1")).await
}

#[tokio::test]
async fn the_metrics_have_the_format_of_prometheus() {
    let server = server().await;
    let answer = get(&server, "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains(&format!("content-type: {CONTENT_TYPE}\r\n")), "{answer}");
    assert!(answer.contains("\nmcd_config_drift 0\n") && answer.ends_with("# EOF\n"), "{answer}");
}

#[tokio::test]
async fn readyz_lists_every_reason_until_there_is_none() {
    let server = server().await;
    server.readiness.not_ready("verification", "0 of 12 things verified");
    server.readiness.not_ready("kernel", "no hook fires");
    let answer = get(&server, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("kernel: no hook fires\nverification: 0 of 12 things verified\n"), "{answer}");
    assert!(get(&server, "/healthz").await.starts_with("HTTP/1.1 200 "));
    server.readiness.ready("kernel");
    server.readiness.ready("verification");
    assert!(get(&server, "/readyz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let server = server().await;
    assert!(get(&server, "/").await.starts_with("HTTP/1.1 404 "));
    assert!(get(&server, "/metrics/../metrics").await.starts_with("HTTP/1.1 404 "));
    let posted = ask(&server, "POST /metrics HTTP/1.1").await;
    assert!(posted.starts_with("HTTP/1.1 405 ") && posted.contains("allow: GET, HEAD"), "{posted}");
    let head = ask(&server, "HEAD /metrics HTTP/1.1").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(ask(&server, "nonsense").await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn idle_connections_do_not_block_other_readers() {
    let server = server().await;
    let mut stalled = Vec::new();
    for _ in 0..3 * MAXIMUM_CONNECTIONS {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /healthz").await.unwrap();
        stalled.push(stream);
    }
    assert!(get(&server, "/healthz").await.starts_with("HTTP/1.1 200 "));
    // The oldest made room.
    assert!(matches!(stalled[0].read(&mut [0]).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn a_connection_ends_after_its_time_also_if_it_is_busy() {
    let server = server_for(Duration::from_millis(200)).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut answer = [0; 4096];
    // This loop ends when the server closes the connection.
    while stream.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.is_ok_and(|count| count > 0)
        && matches!(stream.read(&mut answer).await, Ok(1..))
    {}
    assert!(get(&server, "/healthz").await.starts_with("HTTP/1.1 200 "));
}

#[test]
fn the_oldest_connection_of_the_peer_with_most_connections_is_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut connections = JoinSet::new();
        let mut peers = Peers::default();
        let peer = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        let first = connections.spawn(std::future::pending::<()>());
        peers.add(peer(1), first.clone());
        for _ in 1..MAXIMUM_CONNECTIONS {
            peers.add(peer(2), connections.spawn(std::future::pending()));
        }
        peers.make_room();
        let ended = connections.join_next_with_id().await.unwrap().unwrap_err();
        assert!(ended.is_cancelled() && ended.id() != first.id());
        assert_eq!(peers.0.len(), MAXIMUM_CONNECTIONS - 1);
        peers.make_room();
        assert_eq!(peers.0.len(), MAXIMUM_CONNECTIONS - 1, "there is room");
    });
}

#[test]
fn of_peers_with_equally_many_connections_the_first_one_loses_its_oldest() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut connections = JoinSet::new();
        let mut peers = Peers::default();
        let mut first = None;
        for last in 0..u8::try_from(MAXIMUM_CONNECTIONS).unwrap() {
            let connection = connections.spawn(std::future::pending::<()>());
            first.get_or_insert(connection.id());
            peers.add(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)), connection);
        }
        peers.make_room();
        let ended = connections.join_next_with_id().await.unwrap().unwrap_err();
        assert_eq!(Some(ended.id()), first);
    });
}

#[tokio::test]
async fn a_shutdown_closes_idle_connections_and_the_listener() {
    let server = server().await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    server.stop.send(()).unwrap();
    server.task.await.unwrap().unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}
