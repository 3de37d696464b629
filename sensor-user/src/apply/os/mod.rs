//! The operating system itself: image, kernel arguments, kernel type, extensions.
//!
//! In: a change. Out: a deployment staged for the next boot, read back and found to be what was asked for; or, on the
//! way back, dropped again. It is done by the tool that the host has; commands are run by their arguments, never through
//! a shell, each within a time limit.

mod bootc;
mod change;
mod ostree;
mod rpm_ostree;
mod run;

#[cfg(test)]
mod tests;

pub(super) use crate::desired::kernel_arguments as declared;
use crate::{clock::boot_id, observation::Observer};
use change::{arguments_differ, changed_image};
use run::Tools;
use sensor_model::{
    compare::{Ids, compare},
    expectation::{
        Expectation, Expected, KernelArgumentsExpectation, OSTREE_BOOTED, OsImageExpectation, Source, Thing,
    },
    journal::OsChange,
    merge::{Rendered, Sourced},
    observation::Observation,
    os::{DeploymentStatus, arguments},
    waiting::WaitingArgument,
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// What changes an image-based host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The host is not image-based: nothing of its OS can be changed.
    None,
    /// `rpm-ostree`.
    RpmOstree,
    /// `bootc`.
    Bootc,
    /// `ostree` alone.
    Ostree,
}

impl Backend {
    /// The one that this host has. Only the host that runs can be changed.
    pub fn find(root: &Path) -> Self {
        if root != Path::new("/") || !Path::new(OSTREE_BOOTED).exists() {
            return Self::None;
        }
        let has = |program: &str| Path::new(PROGRAMS).join(program).exists();
        match () {
            () if has("rpm-ostree") => Self::RpmOstree,
            () if has("bootc") => Self::Bootc,
            () if has("ostree") => Self::Ostree,
            () => Self::None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RpmOstree => "rpm-ostree",
            Self::Bootc => "bootc",
            Self::Ostree => "ostree",
        }
    }

    /// Why a change cannot be made here; `None` when it can.
    pub fn refuses(self, change: &OsChange) -> Option<String> {
        let planned = match self {
            Self::None => Err(NO_BACKEND.to_owned()),
            Self::RpmOstree => rpm_ostree::commands(change),
            Self::Bootc => bootc::commands(change),
            // Which deployment is booted does not decide whether it can.
            Self::Ostree => ostree::commands(change, &ostree::Booted::default()),
        };
        planned.err()
    }
}

/// Where the tools are.
const PROGRAMS: &str = "/usr/bin";

const NO_BACKEND: &str = "the host has no OS that can be changed as a whole (no rpm-ostree, bootc or ostree); kernel \
                          arguments, kernel type, extensions and OS image cannot be applied";

/// Changes the OS of one host.
#[derive(Debug)]
pub struct Host {
    backend: Backend,
    /// Its root, for what is booted.
    root: PathBuf,
    programs: PathBuf,
    /// Another first pause between two tries of a download.
    #[cfg(test)]
    pause: Option<Duration>,
}

impl Host {
    /// The host at `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            backend: Backend::find(root),
            root: root.to_owned(),
            programs: PathBuf::from(PROGRAMS),
            #[cfg(test)]
            pause: None,
        }
    }

    /// Stages a change for the next boot. What waits for the next boot already is dropped, and so is what is staged
    /// and not what was asked for. A change that is there already stages nothing.
    ///
    /// # Errors
    /// What a command said, or what the staged deployment is instead.
    pub async fn stage(&self, change: &OsChange, limit: Duration) -> Result<(), String> {
        if let Some(reason) = self.backend.refuses(change) {
            return Err(reason);
        }
        let tools = self.tools(limit);
        let status = self.forget(&tools).await?;
        // What waits still could not be dropped, and has to be replaced.
        if status.next.is_none() && self.differs(change, &[])?.is_some_and(|problems| problems.is_empty()) {
            return Ok(());
        }
        let staged = async {
            match self.backend {
                Backend::None => return Err(NO_BACKEND.to_owned()),
                Backend::RpmOstree => rpm_ostree::stage(&tools, change).await?,
                Backend::Bootc => bootc::stage(&tools, change).await?,
                Backend::Ostree => ostree::stage(&tools, change, &status, &self.root).await?,
            }
            self.read_back(&tools, change).await
        };
        let Err(error) = staged.await else { return Ok(()) };
        match self.forget(&tools).await {
            Ok(_) => Err(error),
            Err(also) => Err(format!("{error}; and what was staged could not be dropped: {also}")),
        }
    }

    /// Undoes a change: what is staged is dropped, and where the changed OS is booted the old one is staged. `true`
    /// when it comes back only with the next boot. What waited for that before waits again.
    ///
    /// # Errors
    /// What a command said.
    pub async fn unstage(&self, change: &OsChange, limit: Duration) -> Result<bool, String> {
        let back = change.reversed();
        if self.backend != Backend::Bootc {
            self.forget(&self.tools(limit)).await?;
            if self.is_back(change)?.is_empty() {
                if !waits(change)?.is_empty() {
                    self.stage(&change.waiting_again(), limit).await?;
                }
                return Ok(false);
            }
        }
        self.stage(&back, limit).await?;
        Ok(!self.is_back(change)?.is_empty())
    }

    /// How the booted OS departs from what it was before a change; empty when it is that again. Arguments that waited in
    /// this boot need not be there.
    ///
    /// # Errors
    /// What is booted cannot be told.
    pub fn is_back(&self, change: &OsChange) -> Result<Vec<String>, String> {
        let (back, waits) = (change.reversed(), waits(change)?);
        if let Some(problems) = self.differs(&back, waits)? {
            return Ok(problems);
        }
        // Kernel type and extensions make another commit.
        let mut problems = self.arguments(&back, waits)?;
        let booted = self.booted()?;
        if change.booted.is_none() || booted.checksum != change.booted {
            problems.push(format!(
                "expected the OS that was booted before ({}), have {}",
                change.booted.as_deref().unwrap_or("unknown"),
                booted.name()
            ));
        }
        Ok(problems)
    }

    /// How the booted OS departs from a change; `None` where that cannot be told from what is booted.
    fn differs(&self, change: &OsChange, waits: &[WaitingArgument]) -> Result<Option<Vec<String>>, String> {
        let told = change.old_kernel == change.new_kernel
            && change.add_extensions.is_empty()
            && change.remove_extensions.is_empty();
        if !told {
            return Ok(None);
        }
        let mut problems = self.arguments(change, waits)?;
        if change.old_image != change.new_image
            && let Some(image) = &change.new_image
        {
            let expected = Expected::OsImage(OsImageExpectation { image: image.clone() });
            let booted = Observation::Os(self.booted()?);
            let expectation = expectation(Thing::OsImage, expected);
            problems
                .extend(compare(&expectation, &booted, &Ids::default()).into_iter().map(|found| found.text));
        }
        Ok(Some(problems))
    }

    fn arguments(&self, change: &OsChange, waits: &[WaitingArgument]) -> Result<Vec<String>, String> {
        if !change.has_arguments() {
            return Ok(Vec::new());
        }
        let found = running(&self.observer()?)?;
        Ok(arguments_differ(change, &found, "there", waits))
    }

    fn booted(&self) -> Result<sensor_model::os::Deployment, String> {
        booted(&self.observer()?)
    }

    fn observer(&self) -> Result<Observer, String> {
        Observer::new(&self.root).map_err(|error| error.to_string())
    }

    fn tools(&self, limit: Duration) -> Tools {
        let tools = Tools::new(self.programs.clone(), limit);
        #[cfg(test)]
        let tools = match self.pause {
            Some(pause) => tools.pausing(pause),
            None => tools,
        };
        tools
    }

    async fn status(&self, tools: &Tools) -> Result<DeploymentStatus, String> {
        match self.backend {
            Backend::None => Err(NO_BACKEND.to_owned()),
            Backend::RpmOstree => rpm_ostree::status(tools).await,
            Backend::Bootc => bootc::status(tools).await,
            Backend::Ostree => ostree::status(tools).await,
        }
    }

    /// Drops what waits for the next boot, where the tool can.
    async fn forget(&self, tools: &Tools) -> Result<DeploymentStatus, String> {
        let status = self.status(tools).await?;
        if status.next.is_none() {
            return Ok(status);
        }
        match self.backend {
            Backend::RpmOstree => rpm_ostree::forget(tools).await?,
            Backend::Ostree => ostree::forget(tools).await?,
            // A further switch takes the place of the first.
            Backend::Bootc | Backend::None => return Ok(status),
        }
        self.status(tools).await
    }

    /// Looks whether the next boot takes what was asked for.
    async fn read_back(&self, tools: &Tools, change: &OsChange) -> Result<(), String> {
        let status = self.status(tools).await?;
        let Some(next) = status.next.as_ref().or(status.booted.as_ref()) else {
            return Err(format!("{} names no deployment at all", self.backend.name()));
        };
        let mut problems = Vec::new();
        match changed_image(change)? {
            Some(image) if !next.is(image) => {
                problems.push(format!("the next boot would be {}, not {image}", next.name()));
            }
            // An image that stays must not change on the way.
            None => {
                let kept = match (&status.booted, &change.new_image) {
                    (Some(booted), _) => next.image == booted.image,
                    (None, image) => image.as_deref().is_none_or(|image| next.is(image)),
                };
                if !kept {
                    problems.push(format!("the next boot would be another image: {}", next.name()));
                }
            }
            Some(_) => {}
        }
        if self.backend == Backend::RpmOstree {
            problems.extend(rpm_ostree::missing(tools, change, next).await?);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }
}

fn expectation(thing: Thing, expected: Expected) -> Expectation {
    let source = Source::new(String::new(), String::new()).into();
    Expectation { thing, expected, ssh_keys: false, label: None, source }
}

/// The deployment that a host booted.
fn booted(observer: &Observer) -> Result<sensor_model::os::Deployment, String> {
    let expected = Expected::OsImage(OsImageExpectation { image: String::new() });
    match observer.observe(&expectation(Thing::OsImage, expected)).observation {
        Observation::Os(deployment) => Ok(deployment),
        Observation::Unreadable { error } => Err(error),
        _ => Err("what is booted cannot be read".to_owned()),
    }
}

/// The commit that a host booted; `None` where it booted none, or what it booted cannot be told.
pub fn deployment(observer: &Observer) -> Option<String> {
    booted(observer).ok()?.checksum
}

/// What the running kernel was told.
///
/// # Errors
/// It cannot be read.
pub fn running(observer: &Observer) -> Result<Vec<String>, String> {
    let expected = Expected::KernelArguments(KernelArgumentsExpectation::default());
    match observer.observe(&expectation(Thing::KernelArguments, expected)).observation {
        Observation::KernelArguments { arguments } => Ok(arguments),
        Observation::Unreadable { error } => Err(error),
        _ => Err("the kernel's arguments cannot be read".to_owned()),
    }
}

/// What waited in this boot when a change began.
fn waits(change: &OsChange) -> Result<&[WaitingArgument], String> {
    let proc = Path::new("/proc");
    let boot_id = boot_id(proc).map_err(|error| format!("the boot id cannot be read: {error}"))?;
    Ok(change.waits(&boot_id))
}

/// What differs of the OS between two configs; `None` when nothing does.
pub fn change(old: &Rendered, new: &Rendered) -> Option<OsChange> {
    let value = |part: &Option<Sourced<String>>| part.as_ref().map(|part| part.value.clone());
    let values = |parts: &[Sourced<String>]| parts.iter().map(|part| part.value.clone()).collect::<Vec<_>>();
    let kernel = |rendered: &Rendered| value(&rendered.kernel_type).unwrap_or_else(|| "default".to_owned());
    let missing = |from: &[String], of: &[String]| -> Vec<String> {
        of.iter().filter(|word| !from.contains(word)).cloned().collect()
    };
    let (old_words, new_words) = (declared(old), declared(new));
    let (old_extensions, new_extensions) = (values(&old.extensions), values(&new.extensions));
    // Order and repetition of arguments count: all old ones go, all new ones come.
    let (remove_arguments, add_arguments) =
        if old_words == new_words { (Vec::new(), Vec::new()) } else { (old_words, new_words) };
    let change = OsChange {
        old_image: value(&old.os_image_url),
        new_image: value(&new.os_image_url),
        remove_arguments,
        add_arguments,
        old_kernel: kernel(old),
        new_kernel: kernel(new),
        remove_extensions: missing(&new_extensions, &old_extensions),
        add_extensions: missing(&old_extensions, &new_extensions),
        booted: None,
        booted_arguments: Vec::new(),
        waited: None,
    };
    let same = change.old_image == change.new_image
        && change.old_kernel == change.new_kernel
        && change.remove_arguments.is_empty()
        && change.add_arguments.is_empty()
        && change.remove_extensions.is_empty()
        && change.add_extensions.is_empty();
    (!same).then_some(change)
}

/// What brings back an OS that is not what a config says; `None` when it is, or cannot be told.
pub fn restoring(new: &Rendered, observer: &Observer) -> Option<OsChange> {
    let booted = booted(observer).ok()?;
    let image = new.os_image_url.as_ref().map(|image| image.value.clone());
    let new_image = image.filter(|image| !booted.is(image)).or_else(|| booted.image.clone());
    let words = declared(new);
    let found = running(observer).ok()?;
    // All of them: one that comes alone would come last.
    let are_there = arguments::missing(&words, &found).is_empty() && arguments::in_order(&words, &found);
    let add_arguments = if are_there { Vec::new() } else { words };
    let kernel = new.kernel_type.as_ref().map_or_else(|| "default".to_owned(), |kernel| kernel.value.clone());
    let change = OsChange {
        old_image: booted.image,
        new_image,
        add_arguments,
        old_kernel: kernel.clone(),
        new_kernel: kernel,
        ..OsChange::default()
    };
    (change.old_image != change.new_image || !change.add_arguments.is_empty()).then_some(change)
}

/// Whether the OS that is booted is what a config says of it: image and arguments. Of another kernel type and of extensions a
/// boot does not tell.
pub fn is_there(rendered: &Rendered, observer: &Observer) -> bool {
    let is_default = rendered.kernel_type.as_ref().is_none_or(|kernel| kernel.value == "default");
    let is_told = is_default && rendered.extensions.is_empty() && booted(observer).is_ok();
    is_told && running(observer).is_ok() && restoring(rendered, observer).is_none()
}

/// What a forced apply does about the OS: what differs between two configs, from what is booted and not from what the old
/// one says is. Somebody may have booted something else.
pub fn forced(old: &Rendered, new: &Rendered, observer: &Observer) -> Option<OsChange> {
    let restoring = restoring(new, observer);
    let Some(change) = change(old, new) else { return restoring };
    let Some(restoring) = restoring else { return Some(change) };
    let (old_image, new_image) = (restoring.old_image, restoring.new_image);
    if change.has_arguments() {
        return Some(OsChange { old_image, new_image, ..change });
    }
    // The kernel lacks some of those that both declare.
    let add_arguments = restoring.add_arguments;
    Some(OsChange { old_image, new_image, add_arguments, ..change })
}

/// A change with what is booted now, so that there is something to go back to also where the old config named none.
pub fn from_here(change: OsChange, observer: &Observer) -> OsChange {
    let Ok(booted) = booted(observer) else { return change };
    let old_image = match (&change.old_image, &change.new_image) {
        (None, Some(_)) => booted.image.clone().or_else(|| booted.checksum.clone()),
        (old, _) => old.clone(),
    };
    let booted_arguments = running(observer).unwrap_or_default();
    OsChange { old_image, booted: booted.checksum, booted_arguments, ..change }
}
