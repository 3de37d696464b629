//! Acts after the files are written: jobs of systemd, through D-Bus, and changes of the OS.
//!
//! In: an act. Out: whether it succeeded, after its job ended and the unit's state was read. No shell is used, and only acts of the
//! plan run.

mod bus;
mod jobs;
mod results;
pub(super) mod transient;
mod unit_after_boot;

#[cfg(test)]
pub(super) mod tests;

pub(super) use bus::check as check_bus;

use super::{
    act_error::{ActError, SystemdError, UNDO_OS, describe},
    act_runner::{ActFuture, ActResult, ActRunner, UndoResult, UnitAfterBoot},
    os,
};
use jobs::{Job, JobEnd, WhenMasked};
use sensor_model::{
    host::unit_name::template_of,
    journal::{Act, Action, Begin, OsChange, PathState},
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use zbus_systemd::{login1, systemd1::ManagerProxy};

/// The limit for an answer of systemd.
const ANSWER: Duration = Duration::from_secs(30);

/// The error of the bus if logind does not run.
const NO_LOGIND: &str = "org.freedesktop.DBus.Error.ServiceUnknown";

/// The running systemd, and the host's OS tool.
#[derive(Debug)]
pub struct Systemd {
    root: PathBuf,
    manager: Option<ManagerProxy<'static>>,
    os: os::OsHost,
    /// Delays the shutdowns of other processes; released before Holdfast's own reboot.
    inhibitor: Option<zbus::OwnedFd>,
    /// The limit for one answer.
    answer: Duration,
}

impl Systemd {
    /// For the host at `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            manager: None,
            os: os::OsHost::new(root),
            inhibitor: None,
            answer: ANSWER,
        }
    }

    /// Asks logind, if it runs, to delay shutdowns.
    pub async fn inhibit(&mut self, why: &str) {
        let Ok(login) = self.login().await else { return };
        let word = |text: &str| text.to_owned();
        match login.inhibit(word("shutdown"), word("holdfast"), word(why), word("block")).await {
            Ok(lock) => self.inhibitor = Some(lock),
            Err(zbus::Error::MethodError(name, ..)) if name.as_str() == NO_LOGIND => {}
            Err(error) => {
                tracing::warn!(%error, "logind does not delay shutdowns while a config is applied.");
            }
        }
    }

    async fn login(&self) -> Result<login1::ManagerProxy<'static>, SystemdError> {
        let connection = bus::connect(&self.root, self.answer).await?;
        login1::ManagerProxy::new(&connection).await.map_err(SystemdError::Logind)
    }

    // Not through systemd's own socket: zbus rejects the sender's name in the signals that systemd sends there.
    async fn manager(&mut self) -> Result<ManagerProxy<'static>, SystemdError> {
        if let Some(manager) = &self.manager {
            return Ok(manager.clone());
        }
        let manager = manager(&bus::connect(&self.root, self.answer).await?).await?;
        self.manager = Some(manager.clone());
        Ok(manager)
    }

    async fn run(&mut self, act: &Act, begin: &Begin, masked: WhenMasked) -> Result<ActResult, ActError> {
        let limit = Duration::from_secs(act.timeout_s);
        let what = describe(act);
        if act.kind == Action::Os {
            let Some(change) = &begin.os else { return Err(ActError::NoOsChange(what)) };
            let staged = self.os.stage(change, limit).await;
            return staged.map(|()| ActResult::Done).map_err(|error| ActError::Os { act: what, error });
        }
        if act.kind == Action::DaemonReload {
            let reloaded = self.daemon_reload(act).await;
            return reloaded
                .map(|()| ActResult::Done)
                .map_err(|error| ActError::Systemd { act: what, error });
        }
        let Some(unit) = act.unit.as_deref() else { return Err(ActError::NoUnit(what)) };
        let job = Job { kind: act.kind, unit, may_be_gone: concerns(begin, unit), masked, limit };
        let ended = match self.manager().await {
            Ok(manager) => jobs::run(&manager, job).await,
            Err(error) => Err(error),
        };
        let now = match ended {
            Ok(JobEnd::Done) => return Ok(ActResult::Done),
            Ok(JobEnd::Masked { runs: true }) => "it runs on until it is stopped",
            Ok(JobEnd::Masked { runs: false }) => "it does not run",
            Err(error) => return Err(ActError::Systemd { act: what, error }),
        };
        Ok(ActResult::Skipped(format!("{what}: skipped: the config masks the unit, and {now}")))
    }

    /// systemd answers after the reload, so the limit of the act is that of the answer.
    async fn daemon_reload(&self, act: &Act) -> Result<(), SystemdError> {
        let connection = bus::connect(&self.root, Duration::from_secs(act.timeout_s)).await?;
        manager(&connection).await?.reload().await.map_err(|error| match error {
            zbus::Error::InputOutput(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                SystemdError::ReloadTimeout(act.timeout_s)
            }
            error => error.into(),
        })
    }
}

async fn manager(connection: &zbus::Connection) -> Result<ManagerProxy<'static>, SystemdError> {
    ManagerProxy::new(connection).await.map_err(SystemdError::Manager)
}

/// Whether an apply changes a unit or its template, so that the unit may exist under only one of the two configs.
fn concerns(begin: &Begin, unit: &str) -> bool {
    let template = template_of(unit);
    [Some(unit), template.as_deref()].into_iter().flatten().any(|name| {
        begin.units.iter().any(|changed| changed == name)
            || begin.targets.iter().any(|target| target.path.file_name().is_some_and(|file| file == name))
    })
}

/// Whether the rollback of an apply masks a unit or its template again.
fn masks_again(begin: &Begin, unit: &str) -> bool {
    let template = template_of(unit);
    let is_named = |path: &Path| {
        [Some(unit), template.as_deref()]
            .into_iter()
            .flatten()
            .any(|name| path.file_name().is_some_and(|file| file == name))
    };
    let is_mask =
        |state: &PathState| matches!(state, PathState::Link(link) if link.target == Path::new("/dev/null"));
    begin.targets.iter().any(|target| is_mask(&target.before) && is_named(&target.path))
}

impl ActRunner for Systemd {
    fn act<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> ActFuture<'a, ActResult> {
        let masked = if act.masked { WhenMasked::Skip } else { WhenMasked::Fail };
        Box::pin(async move { self.run(act, begin, masked).await })
    }

    fn unit_after_boot<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> ActFuture<'a, UnitAfterBoot> {
        Box::pin(async move {
            let Some(unit) = act.unit.as_deref().filter(|_| act.kind.needs_unit()) else {
                return Ok(UnitAfterBoot::Settled);
            };
            let limit = Duration::from_secs(act.timeout_s);
            let state = match self.manager().await {
                Ok(manager) => {
                    unit_after_boot::unit_after_boot(&manager, unit, concerns(begin, unit), limit).await
                }
                Err(error) => Err(error),
            };
            state.map_err(|error| ActError::Unit { unit: unit.to_owned(), error })
        })
    }

    fn undo<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> ActFuture<'a, UndoResult> {
        Box::pin(async move {
            let Some(change) = begin.os.as_ref().filter(|_| act.kind == Action::Os) else {
                let again = act.unit.as_deref().is_some_and(|unit| masks_again(begin, unit));
                let masked = match (again, act.masked) {
                    // The old config masks the unit, and this apply started it.
                    (true, _) => WhenMasked::Stop,
                    (false, true) => WhenMasked::Skip,
                    (false, false) => WhenMasked::Fail,
                };
                return self.run(act, begin, masked).await.map(|_| UndoResult::Done);
            };
            let limit = Duration::from_secs(act.timeout_s);
            let undone = self.os.unstage(change, limit).await;
            let needs_reboot = undone.map_err(|error| ActError::Os { act: UNDO_OS.to_owned(), error })?;
            Ok(if needs_reboot { UndoResult::NeedsReboot } else { UndoResult::Done })
        })
    }

    fn is_back(&mut self, change: &OsChange) -> Result<(), ActError> {
        match self.os.is_back(change)? {
            problems if problems.is_empty() => Ok(()),
            problems => Err(ActError::OtherOs(problems)),
        }
    }

    fn reboot(&mut self) -> ActFuture<'_> {
        Box::pin(async {
            self.inhibitor = None;
            nix::unistd::sync();
            let login = self.login().await.map_err(ActError::Reboot)?;
            login.reboot(false).await.map_err(|error| ActError::Reboot(error.into()))
        })
    }

    fn soft_reboots(&mut self) -> ActFuture<'_, Option<u32>> {
        Box::pin(async {
            // systemd does not run in a root that is not booted.
            if bus::check(&self.root).is_err() {
                return Ok(None);
            }
            let connection = bus::connect(&self.root, self.answer).await.map_err(ActError::SoftReboots)?;
            unit_after_boot::soft_reboots(&connection).await.map_err(ActError::SoftReboots)
        })
    }
}
