//! Unit states from a manager that these tests run at the path of systemd's own socket.

use super::*;
use crate::systemd::PRIVATE_SOCKET;
use sensor_model::expectation::{Expected, Source, UnitExpectation};
use std::fs;
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinHandle};
use zbus::{Guid, connection::Builder, fdo, interface};

struct Manager;

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    #[expect(clippy::unused_self, reason = "the signature that the interface macro asks for")]
    fn get_unit_file_state(&self, file: &str) -> fdo::Result<String> {
        match file {
            "a.service" => Ok("enabled-by-the-manager".to_owned()),
            "gone.service" => Err(fdo::Error::FileNotFound("no such file".to_owned())),
            _ => Err(fdo::Error::Failed("too many levels of symbolic links".to_owned())),
        }
    }
}

struct Host {
    root: TempDir,
    units: HostObserver,
}

fn host() -> Host {
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("etc/systemd/system");
    fs::create_dir_all(&units).unwrap();
    for name in ["a.service", "gone.service", "loop.service"] {
        fs::write(units.join(name), "[Install]\nWantedBy=x.target\n").unwrap();
    }
    let observer = Arc::new(Observer::new(root.path()).unwrap());
    let units = HostObserver::new(observer, root.path());
    Host { root, units }
}

/// Runs a manager that answers one connection after another at systemd's private socket below the root.
fn play_manager(root: &TempDir) -> JoinHandle<()> {
    let socket = root.path().join(PRIVATE_SOCKET);
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        let mut connections = Vec::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let builder = Builder::unix_stream(stream.into_std().unwrap()).server(Guid::generate()).p2p();
            let builder = builder.serve_at("/org/freedesktop/systemd1", Manager);
            connections.push(builder.build().await.unwrap());
        }
    })
}

async fn seen(host: &mut Host, name: &str) -> (Option<String>, UnitSource) {
    let unit = UnitExpectation { enabled: Some(true), masked: None, install_directories: Vec::new() };
    let expectation = Expectation {
        thing: Thing::Unit { name: name.to_owned() },
        expected: Expected::Unit(unit),
        ssh_keys: false,
        label: None,
        source: Source::new("50-test", "test.yaml").into(),
    };
    let (observed, source) = host.units.observe(&expectation).await;
    match observed.observation {
        Observation::Unit(unit) => (unit.file_state, source),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_state_comes_from_the_manager_if_it_answers() {
    let mut host = host();
    let manager = play_manager(&host.root);
    let state = Some("enabled-by-the-manager".to_owned());
    assert_eq!(seen(&mut host, "a.service").await, (state, UnitSource::Manager));
    assert_eq!(seen(&mut host, "gone.service").await, (None, UnitSource::Manager));
    manager.abort();
}

#[tokio::test]
async fn if_the_manager_has_no_answer_the_state_comes_from_the_links_and_the_manager_is_asked_again() {
    let mut host = host();
    let manager = play_manager(&host.root);
    assert_eq!(seen(&mut host, "loop.service").await, (Some("disabled".to_owned()), UnitSource::Links));
    assert_eq!(seen(&mut host, "a.service").await.1, UnitSource::Manager);
    manager.abort();
}

#[tokio::test]
async fn without_a_manager_the_state_comes_from_the_links() {
    let mut host = host();
    assert_eq!(seen(&mut host, "a.service").await, (Some("disabled".to_owned()), UnitSource::Links));
}

#[tokio::test]
async fn an_observation_does_not_wait_for_a_manager_that_has_ended() {
    let mut host = host();
    let manager = play_manager(&host.root);
    assert_eq!(seen(&mut host, "a.service").await.1, UnitSource::Manager);
    manager.abort();
    assert!(manager.await.unwrap_err().is_cancelled());
    fs::remove_file(host.root.path().join(PRIVATE_SOCKET)).unwrap();
    assert_eq!(seen(&mut host, "a.service").await, (Some("disabled".to_owned()), UnitSource::Links));
}

#[tokio::test]
async fn a_closed_connection_is_opened_again_at_once() {
    let mut host = host();
    let first = play_manager(&host.root);
    assert_eq!(seen(&mut host, "a.service").await.1, UnitSource::Manager);
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    fs::remove_file(host.root.path().join(PRIVATE_SOCKET)).unwrap();
    let second = play_manager(&host.root);
    assert_eq!(seen(&mut host, "a.service").await.1, UnitSource::Manager);
    second.abort();
}
