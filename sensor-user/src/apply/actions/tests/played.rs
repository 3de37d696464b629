//! systemd and logind for tests, on a bus of their own.
//!
//! In: their behaviour. Out: a root with the bus in it, and the calls that they received.

#![expect(clippy::used_underscore_binding, reason = "the interface macro passes on what a signature names")]

use super::*;
use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};
use tempfile::TempDir;
use tokio::{io::AsyncReadExt as _, net::UnixStream, task::JoinHandle};
use zbus::{
    Guid, Message, ObjectPath, ObjectServer, OwnedObjectPath, connection::Builder, fdo, interface,
    object_server::SignalEmitter,
};

/// The part of a bus that a client greets.
struct Bus {
    plays: Plays,
    /// How often it was asked who systemd is.
    asked: AtomicU32,
}

#[interface(name = "org.freedesktop.DBus")]
#[expect(clippy::unused_self, reason = "the signature that the interface macro asks for")]
impl Bus {
    fn hello(&self) -> String {
        ":1.7".to_owned()
    }

    fn add_match(&self, _rule: &str) {}

    fn remove_match(&self, _rule: &str) {}

    fn get_name_owner(&self, name: &str) -> String {
        assert_eq!(name, "org.freedesktop.systemd1");
        let is_first = self.asked.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first || self.plays != Plays::ConnectedAnew { SYSTEMD } else { SYSTEMD_ANEW }.to_owned()
    }
}

/// systemd's connection to the bus.
const SYSTEMD: &str = ":1.0";

/// Its next connection.
const SYSTEMD_ANEW: &str = ":1.900";

/// Connections of a user without rights.
const STRANGERS: [&str; 2] = [":1.666", ":1.01"];

/// Forged signals before the answer that a job is queued: more than any queue takes.
const FLOOD: usize = 5000;

/// Sends the signal that a job of a unit has ended. The bus writes the sender; the sender chooses all other fields.
async fn job_removed(
    to: &zbus::Connection,
    sender: &str,
    from: &str,
    (job, unit, result): (&str, &str, &str),
) {
    let job = ObjectPath::try_from(job).unwrap();
    let signal = Message::signal(from, "org.freedesktop.systemd1.Manager", "JobRemoved");
    let signal = signal.sender(sender).build(&(5_u32, job, unit, result)).unwrap();
    to.send(&signal).await.unwrap();
}

const MANAGER: &str = "/org/freedesktop/systemd1";

/// The behaviour of systemd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::apply) enum Plays {
    /// Everything succeeds.
    Well,
    /// It never answers.
    Frozen,
    /// It takes jobs and never ends one.
    Busy,
    /// A started unit fails a moment later.
    DyingUnits,
    /// A started unit fails and is started again and again.
    RestartingUnits,
    /// Units have failed before the act.
    FailedUnits,
    /// Units run before the act.
    RunningUnits,
    /// Everything succeeds, and another user sends signals of failures.
    WellBesideForger,
    /// Jobs fail, and another user sends signals of success.
    FailingBesideForger,
    /// systemd reconnects to the bus during a job.
    ConnectedAnew,
    /// It forgets a job and sends no signal.
    Forgetful,
    /// The boot starts its units after a while, and they run.
    Booting,
    /// The boot starts its units after a while, and they fail.
    BootingInVain,
    /// It has made three soft reboots.
    RebootedSoftly,
    /// The host shuts down.
    Stopping,
}

struct Manager {
    plays: Plays,
    called: &'static Mutex<Vec<&'static str>>,
    cancelled: &'static Mutex<Vec<u32>>,
    queued: &'static Mutex<Vec<String>>,
}

/// A job that waits in the queue of the boot.
struct Queued;

#[interface(name = "org.freedesktop.systemd1.Job")]
#[expect(clippy::unused_self, reason = "the signature that the interface macro asks for")]
impl Queued {
    #[zbus(property)]
    fn state(&self) -> String {
        "waiting".to_owned()
    }
}

/// The error of systemd for a job that it does not have.
#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum Gone {
    #[zbus(error)]
    ZBus(zbus::Error),
    NoSuchJob(String),
}

const JOB: &str = "/org/freedesktop/systemd1/job/5";

impl Manager {
    async fn job(&self, server: &ObjectServer, emitter: SignalEmitter<'_>, name: &str) -> OwnedObjectPath {
        let job = OwnedObjectPath::try_from(JOB).unwrap();
        self.queued.lock().unwrap().push(name.to_owned());
        let unit = server.interface::<_, Unit>(path_of(name)).await.unwrap();
        unit.get_mut().await.started = Some(self.plays);
        let (to, removed) = (emitter.connection(), (JOB, name, "done"));
        match self.plays {
            Plays::Busy | Plays::Forgetful | Plays::ConnectedAnew => {}
            Plays::WellBesideForger | Plays::FailingBesideForger => {
                let (forged, result) = if self.plays == Plays::WellBesideForger {
                    ("failed", "done")
                } else {
                    ("done", "failed")
                };
                for _ in 0..FLOOD {
                    job_removed(to, STRANGERS[0], MANAGER, (JOB, name, forged)).await;
                }
                for sender in STRANGERS {
                    job_removed(to, sender, MANAGER, (JOB, name, forged)).await;
                }
                // From systemd itself, but about another object, another job and another unit.
                job_removed(to, SYSTEMD, "/org/freedesktop/systemd1/job/5", (JOB, name, forged)).await;
                job_removed(to, SYSTEMD, MANAGER, ("/org/freedesktop/systemd1/job/55", name, forged)).await;
                job_removed(to, SYSTEMD, MANAGER, (JOB, "another.service", forged)).await;
                job_removed(to, SYSTEMD, MANAGER, (JOB, name, result)).await;
            }
            _ => job_removed(to, SYSTEMD, MANAGER, removed).await,
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
        let load = match name {
            name if name.starts_with("there") => "loaded",
            name if name.starts_with("masked") => "masked",
            _ => "not-found",
        };
        let before = match self.plays {
            Plays::FailedUnits => "failed",
            Plays::RunningUnits => "active",
            _ => "inactive",
        };
        let (looks, jobs) = (AtomicU32::new(0), AtomicU32::new(0));
        let unit =
            Unit { name: name.to_owned(), load, before, started: None, plays: self.plays, looks, jobs };
        server.at(JOB, Queued).await.unwrap();
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

    async fn reload_or_restart_unit(
        &self,
        #[zbus(object_server)] server: &ObjectServer,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
        name: &str,
        _mode: &str,
    ) -> OwnedObjectPath {
        self.called.lock().unwrap().push("reload-or-restart");
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

    #[zbus(property)]
    async fn soft_reboots_count(&self) -> fdo::Result<u32> {
        match self.plays {
            Plays::Frozen => std::future::pending().await,
            Plays::RebootedSoftly => Ok(3),
            Plays::Busy => Err(fdo::Error::AccessDenied("not for you".to_owned())),
            // One that is older than the property.
            _ => Err(fdo::Error::UnknownProperty("SoftRebootsCount".to_owned())),
        }
    }

    #[zbus(property)]
    fn system_state(&self) -> String {
        if self.plays == Plays::Stopping { "stopping" } else { "running" }.to_owned()
    }

    async fn get_job(
        &self,
        #[zbus(connection)] to: &zbus::Connection,
        id: u32,
    ) -> Result<OwnedObjectPath, Gone> {
        match self.plays {
            Plays::Forgetful => return Err(Gone::NoSuchJob(format!("Job {id} does not exist."))),
            Plays::ConnectedAnew => {
                job_removed(to, SYSTEMD, MANAGER, (JOB, "there.service", "failed")).await;
                job_removed(to, SYSTEMD_ANEW, MANAGER, (JOB, "there.service", "done")).await;
            }
            _ => {}
        }
        Ok(OwnedObjectPath::try_from(JOB).unwrap())
    }
}

struct Unit {
    name: String,
    load: &'static str,
    /// Its state before anything was asked of it.
    before: &'static str,
    started: Option<Plays>,
    plays: Plays,
    looks: AtomicU32,
    jobs: AtomicU32,
}

impl Unit {
    /// Its state after a boot that may start it.
    fn booted(&self) -> &'static str {
        let is_queued = self.jobs.load(Ordering::Relaxed) <= QUEUED;
        match self.plays {
            Plays::Booting if !is_queued => "active",
            Plays::BootingInVain if !is_queued => "failed",
            Plays::RestartingUnits => "activating",
            _ => "inactive",
        }
    }
}

/// How often a boot is seen that has not come to a unit.
const QUEUED: u32 = 3;

#[interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn id(&self) -> String {
        self.name.clone()
    }

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
            None if self.before != "inactive" => self.before,
            None => self.booted(),
        }
        .to_owned()
    }

    #[zbus(property)]
    fn job(&self) -> (u32, OwnedObjectPath) {
        let boots = matches!(self.plays, Plays::Booting | Plays::BootingInVain);
        if boots && self.jobs.fetch_add(1, Ordering::Relaxed) < QUEUED {
            return (5, OwnedObjectPath::try_from(JOB).unwrap());
        }
        (0, OwnedObjectPath::try_from("/").unwrap())
    }

    #[zbus(property)]
    fn sub_state(&self) -> String {
        let restarts = self.plays == Plays::RestartingUnits;
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
    plays: Plays,
    /// The other end of the lock that was given.
    lock: &'static Mutex<Option<UnixStream>>,
}

#[interface(name = "org.freedesktop.login1.Manager")]
impl Login {
    async fn reboot(&self, _interactive: bool) {
        self.called.lock().unwrap().push("reboot");
        if self.plays == Plays::Frozen {
            std::future::pending::<()>().await;
        }
        let lock = self.lock.lock().unwrap().take();
        if let Some(mut lock) = lock {
            // As long as anybody holds the other end there is nothing to read, not even an end.
            lock.read_to_end(&mut Vec::new()).await.unwrap();
            self.called.lock().unwrap().push("released");
        }
    }

    async fn inhibit(&self, _what: &str, _who: &str, _why: &str, _mode: &str) -> fdo::Result<zbus::OwnedFd> {
        self.called.lock().unwrap().push("inhibit");
        match self.plays {
            Plays::Frozen => std::future::pending().await,
            Plays::Busy => return Err(fdo::Error::AccessDenied("another block is there".to_owned())),
            _ => {}
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        *self.lock.lock().unwrap() = Some(UnixStream::from_std(ours).unwrap());
        Ok(std::os::fd::OwnedFd::from(theirs).into())
    }
}

/// A host with such a bus.
pub(in crate::apply) struct PlayedHost {
    pub(in crate::apply) root: TempDir,
    plays: Plays,
    bus: JoinHandle<()>,
    /// What was asked of systemd and logind, in its order.
    pub(super) called: &'static Mutex<Vec<&'static str>>,
    /// Jobs that were taken back.
    pub(super) cancelled: &'static Mutex<Vec<u32>>,
    /// Units for which a job was queued.
    pub(super) queued: &'static Mutex<Vec<String>>,
}

impl Drop for PlayedHost {
    fn drop(&mut self) {
        self.bus.abort();
    }
}

impl PlayedHost {
    pub(in crate::apply) fn new(plays: Plays) -> Self {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("run/dbus/system_bus_socket");
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let called: &'static Mutex<Vec<_>> = Box::leak(Box::default());
        let cancelled: &'static Mutex<Vec<_>> = Box::leak(Box::default());
        let queued: &'static Mutex<Vec<_>> = Box::leak(Box::default());
        let lock: &'static Mutex<Option<_>> = Box::leak(Box::default());
        let bus = tokio::spawn(async move {
            let mut connections = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let builder = Builder::unix_stream(stream.into_std().unwrap()).server(Guid::generate()).p2p();
                let login = Login { called, plays, lock };
                let builder = builder
                    .serve_at("/org/freedesktop/DBus", Bus { plays, asked: AtomicU32::new(0) })
                    .serve_at("/org/freedesktop/login1", login)
                    .serve_at("/org/freedesktop/systemd1", Manager { plays, called, cancelled, queued });
                connections.push(builder.build().await.unwrap());
            }
        });
        Self { root, plays, bus, called, cancelled, queued }
    }

    pub(super) fn systemd(&self) -> Systemd {
        let mut systemd = Systemd::new(self.root.path());
        // Only an answer that never comes is not waited for.
        let answer =
            if self.plays == Plays::Frozen { Duration::from_millis(300) } else { Duration::from_secs(30) };
        systemd.answer = answer;
        systemd
    }

    /// The result of an act. A test that waits for ever fails.
    pub(super) async fn acted(&self, act: &Act, begin: &Begin) -> Result<ActResult, ActError> {
        let mut systemd = self.systemd();
        let acted = tokio::time::timeout(Duration::from_mins(1), systemd.act(act, begin));
        acted.await.expect("it has a limit")
    }

    /// Why an act failed; empty if it did not.
    pub(super) async fn failure(&self, act: &Act, begin: &Begin) -> String {
        self.acted(act, begin).await.map_or_else(|error| error.to_string(), |_| String::new())
    }
}
