//! Acts after the files are written: systemd's, through D-Bus, and the operating system's.
//!
//! In: an act. Out: whether it succeeded, after its job was waited for and the unit's state was looked at. Nothing is
//! ever run by a shell, and nothing but the declared set of acts.

use super::os;
use sensor_model::journal::{Act, ActKind, OsChange};
use std::{
    future::Future,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};
use tokio::time::{sleep, timeout};
use zbus::{MatchRule, MessageStream, OwnedObjectPath, export::futures_core::Stream};
use zbus_systemd::{
    login1,
    systemd1::{ManagerProxy, UnitProxy},
};

/// How long an act may take where nobody says.
pub(super) const TIMEOUT_S: u64 = 90;

/// How long systemd may take to answer at all.
const ANSWER: Duration = Duration::from_secs(30);

/// Signals that may wait while a job is queued: more than a host has units that start at once.
const SIGNALS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4095);

type Answer<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T, String>> + 'a>>;

/// When what was undone takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undone {
    /// It has.
    Now,
    /// With the next boot.
    WithTheNextBoot,
}

/// Who carries acts out.
pub trait Actor {
    /// Does an act and awaits its end.
    fn act<'a>(&'a mut self, act: &'a Act, os: Option<&'a OsChange>) -> Answer<'a>;
    /// The files are the old ones again: does it again, or reverts it.
    fn undo<'a>(&'a mut self, act: &'a Act, os: Option<&'a OsChange>) -> Answer<'a, Undone>;
    /// After the reboot of a way back: whether the OS is what it was before a change.
    ///
    /// # Errors
    /// What it is instead.
    fn is_back(&mut self, os: &OsChange) -> Result<(), String>;
    /// Syncs and asks for a reboot.
    fn reboot(&mut self) -> Answer<'_>;
}

/// Carries out nothing, for a root that is not running: what is written takes effect at its next boot.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoActs;

impl Actor for NoActs {
    fn act<'a>(&'a mut self, _: &'a Act, _: Option<&'a OsChange>) -> Answer<'a> {
        Box::pin(async { Ok(()) })
    }

    fn undo<'a>(&'a mut self, _: &'a Act, _: Option<&'a OsChange>) -> Answer<'a, Undone> {
        Box::pin(async { Ok(Undone::Now) })
    }

    fn is_back(&mut self, _: &OsChange) -> Result<(), String> {
        Ok(())
    }

    fn reboot(&mut self) -> Answer<'_> {
        Box::pin(async { Err("no act is run in this root, so no reboot either".to_owned()) })
    }
}

/// The running systemd, and the host's OS backend.
#[derive(Debug)]
pub struct Systemd {
    root: PathBuf,
    manager: Option<ManagerProxy<'static>>,
    os: os::Host,
    /// Keeps others from shutting the host down meanwhile; given up before our own reboot.
    inhibitor: Option<zbus::OwnedFd>,
}

impl Systemd {
    /// For the host at `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), manager: None, os: os::Host::new(root), inhibitor: None }
    }

    /// Asks logind to hold back shutdowns. Without logind there is nobody to ask.
    pub async fn inhibit(&mut self, why: &str) {
        let Ok(Ok(connection)) = timeout(ANSWER, zbus::Connection::system()).await else { return };
        let Ok(login) = login1::ManagerProxy::new(&connection).await else { return };
        let word = |text: &str| text.to_owned();
        match login.inhibit(word("shutdown"), word("holdfast"), word(why), word("block")).await {
            Ok(lock) => self.inhibitor = Some(lock),
            Err(error) => tracing::info!(%error, "No lock against a shutdown."),
        }
    }

    async fn manager(&mut self) -> Result<ManagerProxy<'static>, String> {
        if let Some(manager) = &self.manager {
            return Ok(manager.clone());
        }
        // Not systemd's own socket: the signals that it sends there name a sender that zbus takes for no name.
        let text = |error: zbus::Error| format!("systemd does not answer: {error}");
        let address = format!("unix:path={}", self.root.join("run/dbus/system_bus_socket").display());
        let building = zbus::connection::Builder::address(address.as_str()).build();
        let connection = timeout(ANSWER, building).await.map_err(|_| "the system bus does not answer")?;
        let manager = ManagerProxy::new(&connection.map_err(text)?).await.map_err(text)?;
        self.manager = Some(manager.clone());
        Ok(manager)
    }

    async fn run(&mut self, act: &Act, os: Option<&OsChange>) -> Result<(), String> {
        let limit = Duration::from_secs(act.timeout_s);
        let what = describe(act);
        if act.kind == ActKind::Os {
            let change = os.ok_or("nothing is said of the OS change")?;
            return self.os.stage(change, limit).await.map_err(|error| format!("{what}: {error}"));
        }
        let manager = self.manager().await?;
        if act.kind == ActKind::DaemonReload {
            return match timeout(limit, manager.reload()).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(format!("{what}: {error}")),
                Err(_) => Err(format!("{what}: no answer within {} s", act.timeout_s)),
            };
        }
        let unit = act.unit.as_deref().ok_or_else(|| format!("{what}: no unit is named"))?;
        job(&manager, act.kind, unit, limit).await.map_err(|reason| format!("{what}: {reason}"))
    }
}

impl Actor for Systemd {
    fn act<'a>(&'a mut self, act: &'a Act, os: Option<&'a OsChange>) -> Answer<'a> {
        Box::pin(self.run(act, os))
    }

    fn undo<'a>(&'a mut self, act: &'a Act, os: Option<&'a OsChange>) -> Answer<'a, Undone> {
        Box::pin(async move {
            match os.filter(|_| act.kind == ActKind::Os) {
                Some(change) => {
                    let limit = Duration::from_secs(act.timeout_s);
                    let undone = self.os.unstage(change, limit).await;
                    let undone = undone.map_err(|error| format!("the way back of the OS: {error}"))?;
                    Ok(if undone { Undone::WithTheNextBoot } else { Undone::Now })
                }
                None => self.run(act, os).await.map(|()| Undone::Now),
            }
        })
    }

    fn is_back(&mut self, change: &OsChange) -> Result<(), String> {
        match self.os.is_back(change)? {
            problems if problems.is_empty() => Ok(()),
            problems => Err(format!("the old OS is not back: {}", problems.join("; "))),
        }
    }

    fn reboot(&mut self) -> Answer<'_> {
        Box::pin(async {
            self.inhibitor = None;
            nix::unistd::sync();
            let text = |error: zbus::Error| format!("reboot: {error}");
            let connection = zbus::Connection::system().await.map_err(text)?;
            let login = login1::ManagerProxy::new(&connection).await.map_err(text)?;
            login.reboot(false).await.map_err(text)
        })
    }
}

/// `reload chronyd.service`.
pub(super) fn describe(act: &Act) -> String {
    let verb = match act.kind {
        ActKind::DaemonReload => "daemon-reload",
        ActKind::Reload => "reload",
        ActKind::Restart => "restart",
        ActKind::ReloadOrRestart => "reload-or-restart",
        ActKind::Stop => "stop",
        ActKind::Os => "the change of the OS",
    };
    match &act.unit {
        Some(unit) => format!("{verb} {unit}"),
        None => verb.to_owned(),
    }
}

/// Queues a job, waits until it is removed, and looks at the unit.
async fn job(manager: &ManagerProxy<'_>, kind: ActKind, name: &str, limit: Duration) -> Result<(), String> {
    let text = |error: zbus::Error| error.to_string();
    // Signals come only to those who asked, and are asked for before the job is queued.
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .interface("org.freedesktop.systemd1.Manager")
        .member("JobRemoved")
        .build()
        .map_err(text)?;
    let connection = manager.inner().connection();
    let mut removed = MessageStream::for_match_rule(rule, connection, Some(SIGNALS)).await.map_err(text)?;
    // Subscribed already is as good.
    let _ = manager.subscribe().await;
    let unit = unit_of(manager, name).await?;
    let (load, active) = states(&unit).await?;
    // A unit that is masked or has no file any more can only be stopped.
    let kind = if matches!(load.as_str(), "masked" | "not-found") { ActKind::Stop } else { kind };
    let is_running = matches!(active.as_str(), "active" | "reloading" | "activating");
    if !is_running && matches!(kind, ActKind::Reload | ActKind::Stop) {
        return Ok(());
    }
    let (name, mode) = (name.to_owned(), "replace".to_owned());
    let queued = match kind {
        ActKind::Reload => manager.reload_unit(name, mode).await,
        ActKind::Restart => manager.restart_unit(name, mode).await,
        ActKind::ReloadOrRestart => manager.reload_or_restart_unit(name, mode).await,
        ActKind::Stop => manager.stop_unit(name, mode).await,
        ActKind::DaemonReload | ActKind::Os => return Ok(()),
    };
    let queued = queued.map_err(text)?;
    let Ok(result) = timeout(limit, result_of(&mut removed, queued.as_str())).await else {
        // Nobody waits for it any more; left alone it could still happen after the fallback.
        if let Some(id) = queued.rsplit('/').next().and_then(|id| id.parse().ok()) {
            let _ = manager.cancel_job(id).await;
        }
        return Err(format!("not done within {} s", limit.as_secs()));
    };
    let result = result?;
    if result != "done" {
        return Err(format!("the job ended as `{result}`"));
    }
    settled(&unit, kind).await
}

async fn unit_of(manager: &ManagerProxy<'_>, name: &str) -> Result<UnitProxy<'static>, String> {
    let text = |error: zbus::Error| error.to_string();
    let path = manager.load_unit(name.to_owned()).await.map_err(text)?;
    let connection = manager.inner().connection().clone();
    UnitProxy::builder(&connection)
        .destination("org.freedesktop.systemd1")
        .path(path)
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await
        .map_err(text)
}

async fn states(unit: &UnitProxy<'_>) -> Result<(String, String), String> {
    let text = |error: zbus::Error| error.to_string();
    Ok((unit.load_state().await.map_err(text)?, unit.active_state().await.map_err(text)?))
}

/// The result of the job with this path.
async fn result_of(removed: &mut MessageStream, job: &str) -> Result<String, String> {
    let text = |error: zbus::Error| error.to_string();
    loop {
        let signal = std::future::poll_fn(|context| Pin::new(&mut *removed).poll_next(context)).await;
        let signal = signal.ok_or("the connection to systemd is gone")?.map_err(text)?;
        let body = signal.body();
        let (_, path, _, result): (u32, OwnedObjectPath, String, String) =
            body.deserialize().map_err(text)?;
        if path.as_str() == job {
            return Ok(result);
        }
    }
}

/// A job that is done may leave a unit that failed right after.
async fn settled(unit: &UnitProxy<'_>, kind: ActKind) -> Result<(), String> {
    for _ in 0..50 {
        let (_, active) = states(unit).await?;
        match active.as_str() {
            "failed" if kind != ActKind::Stop => return Err("the unit failed".to_owned()),
            "reloading" | "deactivating" => sleep(Duration::from_millis(100)).await,
            _ => return Ok(()),
        }
    }
    Err("the unit does not come to rest".to_owned())
}
