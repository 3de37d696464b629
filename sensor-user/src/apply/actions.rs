//! Acts that follow the writing of files: systemd's jobs, through D-Bus, and changes of the OS.
//!
//! In: an act. Out: whether it succeeded, after its job ended and the unit's state was read. No shell runs anything, and only the
//! plan's acts are run.

mod boot;
mod bus;
mod jobs;
mod results;

#[cfg(test)]
mod tests;

pub(super) use bus::missing as missing_bus;

use super::{
    act_runner::{ActResult, ActRunner, Answer, UndoResult, UnitAfterBoot, describe},
    os,
};
use jobs::{Job, WhenMasked};
use sensor_model::{
    host::unit_name::template_of,
    journal::{Act, Action, Begin, Image, OsChange},
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use zbus_systemd::{login1, systemd1::ManagerProxy};

/// The limit for an answer of systemd's.
const ANSWER: Duration = Duration::from_secs(30);

/// The error of the bus where logind does not run.
const NO_LOGIND: &str = "org.freedesktop.DBus.Error.ServiceUnknown";

/// The running systemd, and the host's OS backend.
#[derive(Debug)]
pub struct Systemd {
    root: PathBuf,
    manager: Option<ManagerProxy<'static>>,
    os: os::Host,
    /// Delays shutdowns by others; released before Holdfast's own reboot.
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
            os: os::Host::new(root),
            inhibitor: None,
            answer: ANSWER,
        }
    }

    /// Asks logind to delay shutdowns. Without logind nothing is asked.
    pub async fn inhibit(&mut self, why: &str) {
        let Ok(login) = self.login().await else { return };
        let word = |text: &str| text.to_owned();
        match login.inhibit(word("shutdown"), word("holdfast"), word(why), word("block")).await {
            Ok(lock) => self.inhibitor = Some(lock),
            Err(zbus::Error::MethodError(name, ..)) if name.as_str() == NO_LOGIND => {}
            Err(error) => tracing::warn!(%error, "logind holds back no shutdown while a config is applied."),
        }
    }

    async fn login(&self) -> Result<login1::ManagerProxy<'static>, String> {
        let connection = bus::connect(&self.root, self.answer).await?;
        login1::ManagerProxy::new(&connection).await.map_err(|error| format!("logind: {error}"))
    }

    // Not systemd's own socket: zbus rejects the sender's name in the signals that systemd sends there.
    async fn manager(&mut self) -> Result<ManagerProxy<'static>, String> {
        if let Some(manager) = &self.manager {
            return Ok(manager.clone());
        }
        let manager = manager(&bus::connect(&self.root, self.answer).await?).await?;
        self.manager = Some(manager.clone());
        Ok(manager)
    }

    async fn run(&mut self, act: &Act, begin: &Begin, masked: WhenMasked) -> Result<ActResult, String> {
        let limit = Duration::from_secs(act.timeout_s);
        let what = describe(act);
        if act.kind == Action::Os {
            let change = begin.os.as_ref().ok_or("nothing is said of the OS change")?;
            let staged = self.os.stage(change, limit).await;
            return staged.map(|()| ActResult::Done).map_err(|error| format!("{what}: {error}"));
        }
        let told = |reason: String| format!("{what}: {reason}");
        if act.kind == Action::DaemonReload {
            // systemd answers after the reload, so the act's limit is that of the answer.
            let connection = bus::connect(&self.root, limit).await.map_err(told)?;
            let reloaded = manager(&connection).await.map_err(told)?.reload().await;
            return reloaded.map(|()| ActResult::Done).map_err(|error| match error {
                zbus::Error::InputOutput(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    told(format!("no answer within {} s", act.timeout_s))
                }
                error => told(error.to_string()),
            });
        }
        let unit = act.unit.as_deref().ok_or_else(|| format!("{what}: no unit is named"))?;
        let manager = self.manager().await.map_err(told)?;
        let job = Job { kind: act.kind, unit, may_be_gone: concerns(begin, unit), masked, limit };
        match jobs::run(&manager, job).await.map_err(told)? {
            ActResult::Skipped(reason) => Ok(ActResult::Skipped(told(reason))),
            ActResult::Done => Ok(ActResult::Done),
        }
    }
}

async fn manager(connection: &zbus::Connection) -> Result<ManagerProxy<'static>, String> {
    ManagerProxy::new(connection).await.map_err(|error| format!("systemd does not answer: {error}"))
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
    let is_mask = |image: &Image| matches!(image, Image::Link(link) if link.target == Path::new("/dev/null"));
    begin.targets.iter().any(|target| is_mask(&target.before) && is_named(&target.path))
}

impl ActRunner for Systemd {
    fn act<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> Answer<'a, ActResult> {
        let masked = if act.masked { WhenMasked::Skip } else { WhenMasked::Fail };
        Box::pin(async move { self.run(act, begin, masked).await })
    }

    fn unit_after_boot<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> Answer<'a, UnitAfterBoot> {
        Box::pin(async move {
            let Some(unit) = act.unit.as_deref().filter(|_| act.kind.needs_unit()) else {
                return Ok(UnitAfterBoot::Settled);
            };
            let manager = self.manager().await?;
            let limit = Duration::from_secs(act.timeout_s);
            boot::unit_after_boot(&manager, unit, concerns(begin, unit), limit).await
        })
    }

    fn undo<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> Answer<'a, UndoResult> {
        Box::pin(async move {
            let Some(change) = begin.os.as_ref().filter(|_| act.kind == Action::Os) else {
                let again = act.unit.as_deref().is_some_and(|unit| masks_again(begin, unit));
                let masked = match (again, act.masked) {
                    // Under the old config nothing could start the unit, and this apply did.
                    (true, _) => WhenMasked::Stop,
                    (false, true) => WhenMasked::Skip,
                    (false, false) => WhenMasked::Fail,
                };
                return self.run(act, begin, masked).await.map(|_| UndoResult::Done);
            };
            let limit = Duration::from_secs(act.timeout_s);
            let undone = self.os.unstage(change, limit).await;
            let undone = undone.map_err(|error| format!("the way back of the OS: {error}"))?;
            Ok(if undone { UndoResult::NeedsReboot } else { UndoResult::Done })
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
            let login = self.login().await.map_err(|reason| format!("reboot: {reason}"))?;
            login.reboot(false).await.map_err(|error| format!("reboot: {error}"))
        })
    }

    fn soft_reboots(&mut self) -> Answer<'_, Option<u32>> {
        Box::pin(async {
            // A root that is not booted has no systemd.
            if bus::missing(&self.root).is_some() {
                return Ok(None);
            }
            let connection = bus::connect(&self.root, self.answer).await?;
            boot::soft_reboots(&connection).await
        })
    }
}
