//! Acts against a bus that this test plays, at the place of the host's own.

#![expect(clippy::used_underscore_binding, reason = "the interface macro passes on what a signature names")]

use super::*;
use sensor_model::journal::Fallback;
use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinHandle};
use zbus::{
    Guid, ObjectPath, ObjectServer, OwnedObjectPath, connection::Builder, fdo, interface,
    object_server::SignalEmitter,
};

/// The part of a bus that a client greets.
struct Bus;

#[interface(name = "org.freedesktop.DBus")]
#[expect(clippy::unused_self, reason = "the signature that the interface macro asks for")]
impl Bus {
    fn hello(&self) -> String {
        ":1.7".to_owned()
    }

    fn add_match(&self, _rule: &str) {}

    fn remove_match(&self, _rule: &str) {}
}

/// What systemd does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plays {
    /// Everything succeeds.
    Well,
    /// It never answers.
    Frozen,
    /// It takes jobs and never ends one.
    Busy,
    /// What was started dies a moment after.
    DyingUnits,
    /// What was started is started over and over again.
    RestartingUnits,
    /// Units had failed before.
    FailedUnits,
    /// Units run.
    RunningUnits,
}

struct Manager {
    plays: Plays,
    called: &'static Mutex<Vec<&'static str>>,
    cancelled: &'static Mutex<Vec<u32>>,
}

impl Manager {
    async fn job(&self, server: &ObjectServer, emitter: SignalEmitter<'_>, name: &str) -> OwnedObjectPath {
        let job = OwnedObjectPath::try_from("/org/freedesktop/systemd1/job/5").unwrap();
        let unit = server.interface::<_, Unit>(path_of(name)).await.unwrap();
        unit.get_mut().await.started = Some(self.plays);
        if self.plays != Plays::Busy {
            Self::job_removed(&emitter, 5, job.clone(), name, "done").await.unwrap();
        }
        job
    }
}

fn path_of(name: &str) -> ObjectPath<'static> {
    let name: String = name.chars().filter(char::is_ascii_alphabetic).collect();
    ObjectPath::try_from(format!("/org/freedesktop/systemd1/unit/{name}")).unwrap()
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    async fn subscribe(&self) {
        if self.plays == Plays::Frozen {
            std::future::pending::<()>().await;
        }
    }

    async fn reload(&self) {
        if self.plays == Plays::Frozen {
            std::future::pending::<()>().await;
        }
    }

    async fn load_unit(&self, #[zbus(object_server)] server: &ObjectServer, name: &str) -> OwnedObjectPath {
        let load = if name.starts_with("there") { "loaded" } else { "not-found" };
        let before = match self.plays {
            Plays::FailedUnits => "failed",
            Plays::RunningUnits => "active",
            _ => "inactive",
        };
        let unit = Unit { load, before, started: None, looks: AtomicU32::new(0) };
        server.at(path_of(name), unit).await.unwrap();
        server.at(path_of(name), Service).await.unwrap();
        path_of(name).into()
    }

    async fn restart_unit(
        &self,
        #[zbus(object_server)] server: &ObjectServer,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
        name: &str,
        _mode: &str,
    ) -> OwnedObjectPath {
        self.job(server, emitter, name).await
    }

    async fn reload_unit(
        &self,
        #[zbus(object_server)] server: &ObjectServer,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
        name: &str,
        _mode: &str,
    ) -> OwnedObjectPath {
        self.called.lock().unwrap().push("reload");
        self.job(server, emitter, name).await
    }

    async fn stop_unit(
        &self,
        #[zbus(object_server)] server: &ObjectServer,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
        name: &str,
        _mode: &str,
    ) -> OwnedObjectPath {
        self.called.lock().unwrap().push("stop");
        self.job(server, emitter, name).await
    }

    fn cancel_job(&self, id: u32) {
        self.cancelled.lock().unwrap().push(id);
    }

    #[zbus(signal)]
    async fn job_removed(
        emitter: &SignalEmitter<'_>,
        id: u32,
        job: OwnedObjectPath,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

struct Unit {
    load: &'static str,
    /// Its state before anything was asked of it.
    before: &'static str,
    started: Option<Plays>,
    looks: AtomicU32,
}

#[interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn load_state(&self) -> String {
        self.load.to_owned()
    }

    #[zbus(property)]
    fn active_state(&self) -> String {
        let is_late = self.looks.fetch_add(1, Ordering::Relaxed) > 2;
        match self.started {
            Some(Plays::DyingUnits) if is_late => "failed",
            Some(Plays::RestartingUnits) if is_late => "activating",
            Some(_) => "active",
            None => self.before,
        }
        .to_owned()
    }

    #[zbus(property)]
    fn sub_state(&self) -> String {
        let restarts = self.started == Some(Plays::RestartingUnits);
        if restarts { "auto-restart" } else { "running" }.to_owned()
    }
}

struct Service;

#[interface(name = "org.freedesktop.systemd1.Service")]
#[expect(clippy::unused_self, reason = "the signature that the interface macro asks for")]
impl Service {
    #[zbus(property, name = "NRestarts")]
    fn n_restarts(&self) -> u32 {
        0
    }
}

struct Login {
    called: &'static Mutex<Vec<&'static str>>,
    frozen: bool,
}

#[interface(name = "org.freedesktop.login1.Manager")]
impl Login {
    async fn reboot(&self, _interactive: bool) {
        self.called.lock().unwrap().push("reboot");
        if self.frozen {
            std::future::pending::<()>().await;
        }
    }

    async fn inhibit(&self, _what: &str, _who: &str, _why: &str, _mode: &str) -> fdo::Result<zbus::OwnedFd> {
        self.called.lock().unwrap().push("inhibit");
        if self.frozen {
            std::future::pending::<()>().await;
        }
        Err(fdo::Error::NotSupported("no lock".to_owned()))
    }
}

struct Host {
    root: TempDir,
    bus: JoinHandle<()>,
    called: &'static Mutex<Vec<&'static str>>,
    cancelled: &'static Mutex<Vec<u32>>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.bus.abort();
    }
}

impl Host {
    fn new(plays: Plays) -> Self {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("run/dbus/system_bus_socket");
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let called: &'static Mutex<Vec<_>> = Box::leak(Box::default());
        let cancelled: &'static Mutex<Vec<_>> = Box::leak(Box::default());
        let bus = tokio::spawn(async move {
            let mut connections = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let builder = Builder::unix_stream(stream.into_std().unwrap()).server(Guid::generate()).p2p();
                let login = Login { called, frozen: plays == Plays::Frozen };
                let builder = builder
                    .serve_at("/org/freedesktop/DBus", Bus)
                    .serve_at("/org/freedesktop/login1", login)
                    .serve_at("/org/freedesktop/systemd1", Manager { plays, called, cancelled });
                connections.push(builder.build().await.unwrap());
            }
        });
        Self { root, bus, called, cancelled }
    }

    fn systemd(&self) -> Systemd {
        let mut systemd = Systemd::new(self.root.path());
        systemd.answer = Duration::from_millis(300);
        systemd
    }

    /// What became of an act; a test that waits for ever has failed.
    async fn act(&self, act: &Act, begin: &Begin) -> Result<(), String> {
        let mut systemd = self.systemd();
        let acted = tokio::time::timeout(Duration::from_mins(1), systemd.act(act, begin));
        acted.await.expect("it has a limit")
    }
}

fn begin() -> Begin {
    Begin {
        id: 1,
        previous: None,
        rollback_to: None,
        time: String::new(),
        boot_id: boot_id(Path::new("/proc")).unwrap(),
        old: String::new(),
        new: String::new(),
        targets: Vec::new(),
        unmanaged: Vec::new(),
        released: Vec::new(),
        units: Vec::new(),
        os: None,
        acts: Vec::new(),
        reboot: false,
    }
}

fn act(kind: ActKind, unit: &str, timeout_s: u64) -> Act {
    let unit = Some(unit.to_owned()).filter(|unit| !unit.is_empty());
    Act { kind, unit, timeout_s, fallback: Fallback::Reboot, because: Vec::new() }
}

#[tokio::test]
async fn a_unit_that_was_restarted_and_stays_is_a_success() {
    let host = Host::new(Plays::Well);
    assert_eq!(host.act(&act(ActKind::Restart, "there.service", 30), &begin()).await, Ok(()));
    assert_eq!(host.act(&act(ActKind::DaemonReload, "", 30), &begin()).await, Ok(()));
}

#[tokio::test]
async fn a_unit_that_does_not_exist_is_a_failure_unless_the_apply_takes_it_away() {
    let host = Host::new(Plays::Well);
    let restart = act(ActKind::Restart, "chronyd.servce", 30);
    let refused = host.act(&restart, &begin()).await;
    assert_eq!(refused, Err("restart chronyd.servce: there is no such unit".to_owned()));
    let gone = Begin { units: vec!["gone.service".to_owned(), "gone@.service".to_owned()], ..begin() };
    for unit in ["gone.service", "gone@1.service"] {
        assert_eq!(host.act(&act(ActKind::Restart, unit, 30), &gone).await, Ok(()), "{unit}");
    }
}

#[tokio::test]
async fn only_a_unit_that_runs_is_reloaded_and_one_that_had_failed_is_a_failure() {
    let reload = act(ActKind::Reload, "there.service", 30);
    let refused = "reload there.service: the unit has failed, so there is nothing to reload".to_owned();
    for (plays, wanted, called) in [
        (Plays::RunningUnits, Ok(()), &["reload"][..]),
        (Plays::Well, Ok(()), &[]),
        (Plays::FailedUnits, Err(refused), &[]),
    ] {
        let host = Host::new(plays);
        assert_eq!(host.act(&reload, &begin()).await, wanted, "{plays:?}");
        assert_eq!(*host.called.lock().unwrap(), called, "{plays:?}");
    }
}

#[tokio::test]
async fn a_unit_that_the_apply_takes_away_is_stopped_where_it_runs() {
    let gone = Begin { units: vec!["gone.service".to_owned()], ..begin() };
    for kind in [ActKind::Reload, ActKind::Restart] {
        for (plays, called) in
            [(Plays::RunningUnits, &["stop"][..]), (Plays::Well, &[]), (Plays::FailedUnits, &[])]
        {
            let host = Host::new(plays);
            assert_eq!(host.act(&act(kind, "gone.service", 30), &gone).await, Ok(()), "{plays:?}");
            assert_eq!(*host.called.lock().unwrap(), called, "{plays:?}");
        }
    }
}

#[tokio::test]
async fn a_unit_that_fails_a_moment_after_its_start_is_a_failure() {
    for (plays, wanted) in [
        (Plays::DyingUnits, "restart there.service: the unit failed"),
        (
            Plays::RestartingUnits,
            "restart there.service: the unit failed, and systemd starts it again and again",
        ),
    ] {
        let host = Host::new(plays);
        let acted = host.act(&act(ActKind::Restart, "there.service", 30), &begin()).await;
        assert_eq!(acted, Err(wanted.to_owned()));
    }
}

#[tokio::test]
async fn a_manager_that_never_answers_is_not_waited_for_longer_than_the_limit() {
    let host = Host::new(Plays::Frozen);
    for kind in [ActKind::DaemonReload, ActKind::Restart] {
        let unit = if kind == ActKind::Restart { "there.service" } else { "" };
        host.act(&act(kind, unit, 1), &begin()).await.unwrap_err();
    }
    let mut systemd = host.systemd();
    tokio::time::timeout(Duration::from_mins(1), async {
        systemd.inhibit("a test").await;
        assert!(systemd.reboot().await.unwrap_err().starts_with("reboot: "));
    })
    .await
    .expect("they have a limit");
    assert_eq!(*host.called.lock().unwrap(), ["inhibit", "reboot"]);
}

#[tokio::test]
async fn a_bus_that_does_not_even_greet_is_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("run/dbus/system_bus_socket");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _listener = UnixListener::bind(socket).unwrap();
    let connected = bus::connect(root.path(), Duration::from_millis(50));
    let connected = tokio::time::timeout(Duration::from_mins(1), connected).await.expect("it has a limit");
    assert!(connected.unwrap_err().contains("gave no answer"));
}

#[tokio::test]
async fn a_job_that_takes_too_long_is_taken_back() {
    let host = Host::new(Plays::Busy);
    let acted = host.act(&act(ActKind::Restart, "there.service", 1), &begin()).await;
    assert_eq!(acted, Err("restart there.service: not done within 1 s".to_owned()));
    assert_eq!(*host.cancelled.lock().unwrap(), [5]);
}

#[tokio::test]
async fn all_that_is_asked_of_the_host_is_asked_on_its_own_bus() {
    let host = Host::new(Plays::Well);
    assert_eq!(bus::missing(host.root.path()), None);
    let mut systemd = host.systemd();
    systemd.inhibit("a test").await;
    systemd.reboot().await.unwrap();
    assert_eq!(*host.called.lock().unwrap(), ["inhibit", "reboot"]);
}

#[tokio::test]
async fn in_a_root_without_a_bus_nothing_is_asked_of_any_other() {
    let root = tempfile::tempdir().unwrap();
    let mut systemd = Systemd::new(root.path());
    assert!(systemd.reboot().await.unwrap_err().contains("the system bus does not answer"));
    systemd.inhibit("a test").await;
    assert!(systemd.inhibitor.is_none());
    assert!(bus::missing(root.path()).unwrap().contains("--no-acts"));
}

#[tokio::test]
async fn after_another_boot_nothing_is_reloaded_or_restarted_again() {
    let host = Host::new(Plays::Well);
    let before = Begin { boot_id: "another".to_owned(), ..begin() };
    let restart = act(ActKind::Restart, "nowhere.service", 30);
    assert_eq!(host.act(&restart, &before).await, Ok(()));
    host.act(&restart, &begin()).await.unwrap_err();
}
