//! The operating system itself: image, kernel arguments, kernel type, extensions.
//!
//! In: a change. Out: a deployment that is staged for the next boot, after a comparison with the change. In a rollback: no
//! staged deployment, or one with the old OS. The host's own tool does the work. No shell runs it, and each command has a time limit.

mod bootc;
mod change;
mod error;
mod ostree;
mod rpm_ostree;
mod run;

#[cfg(test)]
mod tests;

pub(super) use crate::desired::kernel_arguments as declared;
use crate::{clock::boot_id, observation::Observer};
use change::{arguments_differ, changed_image};
pub use error::{OsError, ToolError, UnsupportedChange};
use run::Tools;
use sensor_model::{
    compare::{Ids, compare},
    expectation::{
        Expectation, Expected, KernelArgumentsExpectation, OSTREE_BOOTED, OsImageExpectation, Source, Thing,
    },
    journal::OsChange,
    merge::{Rendered, Sourced},
    observation::Observation,
    os::{Deployment, DeploymentStatus, arguments},
    waiting::WaitingArgument,
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// The tool that changes the OS of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OsTool {
    /// The host is not image-based, so no tool can change its OS.
    None,
    /// `rpm-ostree`.
    RpmOstree,
    /// `bootc`.
    Bootc,
    /// `ostree` alone.
    Ostree,
}

impl OsTool {
    /// The tool of this host. Only the OS of the running host can be changed.
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

    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RpmOstree => "rpm-ostree",
            Self::Bootc => "bootc",
            Self::Ostree => "ostree",
        }
    }

    /// Checks that the tool can make a change.
    ///
    /// # Errors
    /// Which part of the change it cannot make.
    pub fn check(self, change: &OsChange) -> Result<(), UnsupportedChange> {
        match self {
            Self::None => Err(UnsupportedChange::NoTool),
            Self::RpmOstree => rpm_ostree::commands(change).map(drop),
            Self::Bootc => bootc::commands(change).map(drop),
            // The booted deployment does not matter here.
            Self::Ostree => ostree::commands(change, &ostree::Booted::default()).map(drop),
        }
    }
}

/// Where the tools are.
const PROGRAMS: &str = "/usr/bin";

/// Changes the OS of one host.
#[derive(Debug)]
pub struct OsHost {
    tool: OsTool,
    /// Its root directory.
    root: PathBuf,
    /// The directory of the tools.
    programs: PathBuf,
    /// Another first pause between two attempts of a download.
    #[cfg(test)]
    pause: Option<Duration>,
}

impl OsHost {
    /// The host at `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            tool: OsTool::find(root),
            root: root.to_owned(),
            programs: PathBuf::from(PROGRAMS),
            #[cfg(test)]
            pause: None,
        }
    }

    /// Stages a change for the next boot. It first drops a deployment that waits for the next boot, and afterwards one that is
    /// not as asked for. If the booted OS has the change already, it stages nothing.
    ///
    /// # Errors
    /// A tool failed, or the staged deployment differs from the change.
    pub async fn stage(&self, change: &OsChange, limit: Duration) -> Result<(), OsError> {
        self.tool.check(change)?;
        let tools = self.tools(limit);
        let status = self.forget(&tools).await?;
        // A deployment that still waits could not be dropped, so this change has to replace it.
        if status.next.is_none() && self.differs(change, &[])?.is_some_and(|problems| problems.is_empty()) {
            return Ok(());
        }
        let staged = async {
            match self.tool {
                OsTool::None => return Err(UnsupportedChange::NoTool.into()),
                OsTool::RpmOstree => rpm_ostree::stage(&tools, change).await?,
                OsTool::Bootc => bootc::stage(&tools, change).await?,
                OsTool::Ostree => ostree::stage(&tools, change, &status, &self.root).await?,
            }
            self.read_back(&tools, change).await
        };
        let Err(error) = staged.await else { return Ok(()) };
        match self.forget(&tools).await {
            Ok(_) => Err(error),
            Err(removal) => Err(OsError::NotDropped { error: Box::new(error), removal: Box::new(removal) }),
        }
    }

    /// Undoes a change: drops the staged deployment, and if the changed OS is booted, stages the old one. Arguments that waited
    /// for the next boot before the change wait again. Returns whether the old OS needs a boot.
    ///
    /// # Errors
    /// A tool failed.
    pub async fn unstage(&self, change: &OsChange, limit: Duration) -> Result<bool, OsError> {
        let back = change.reversed();
        if self.tool != OsTool::Bootc {
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

    /// How the booted OS differs from the OS before a change. Arguments that waited in this boot may be missing.
    ///
    /// # Errors
    /// The booted OS cannot be read.
    pub fn is_back(&self, change: &OsChange) -> Result<Vec<String>, OsError> {
        let (back, waits) = (change.reversed(), waits(change)?);
        if let Some(problems) = self.differs(&back, waits)? {
            return Ok(problems);
        }
        // Another kernel type or extension makes another commit.
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

    /// How the booted OS differs from a change; `None` if the change has parts that cannot be read from a booted OS.
    fn differs(&self, change: &OsChange, waits: &[WaitingArgument]) -> Result<Option<Vec<String>>, OsError> {
        let is_readable = change.old_kernel == change.new_kernel
            && change.add_extensions.is_empty()
            && change.remove_extensions.is_empty();
        if !is_readable {
            return Ok(None);
        }
        let mut problems = self.arguments(change, waits)?;
        if change.old_image != change.new_image
            && let Some(image) = &change.new_image
        {
            let expected = Expected::OsImage(OsImageExpectation::of(image.clone()));
            // The change was to boot the config's image, whatever the cluster built.
            let booted = Observation::Os(Deployment { cluster_image: None, ..self.booted()? });
            let expectation = expectation(Thing::OsImage, expected);
            problems
                .extend(compare(&expectation, &booted, &Ids::default()).into_iter().map(|found| found.text));
        }
        Ok(Some(problems))
    }

    fn arguments(&self, change: &OsChange, waits: &[WaitingArgument]) -> Result<Vec<String>, OsError> {
        if !change.has_arguments() {
            return Ok(Vec::new());
        }
        let found = running(&self.observer()?)?;
        Ok(arguments_differ(change, &found, "there", waits))
    }

    fn booted(&self) -> Result<Deployment, OsError> {
        booted(&self.observer()?)
    }

    fn observer(&self) -> Result<Observer, OsError> {
        Ok(Observer::new(&self.root)?)
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

    async fn status(&self, tools: &Tools) -> Result<DeploymentStatus, OsError> {
        match self.tool {
            OsTool::None => Err(UnsupportedChange::NoTool.into()),
            OsTool::RpmOstree => rpm_ostree::status(tools).await,
            OsTool::Bootc => bootc::status(tools).await,
            OsTool::Ostree => ostree::status(tools).await,
        }
    }

    /// Drops the deployment that waits for the next boot, if the tool can do that.
    async fn forget(&self, tools: &Tools) -> Result<DeploymentStatus, OsError> {
        let status = self.status(tools).await?;
        if status.next.is_none() {
            return Ok(status);
        }
        match self.tool {
            OsTool::RpmOstree => rpm_ostree::forget(tools).await?,
            OsTool::Ostree => ostree::forget(tools).await?,
            // bootc replaces it at the next switch.
            OsTool::Bootc | OsTool::None => return Ok(status),
        }
        self.status(tools).await
    }

    /// Checks that the next boot has the change.
    async fn read_back(&self, tools: &Tools, change: &OsChange) -> Result<(), OsError> {
        let status = self.status(tools).await?;
        let Some(next) = status.next.as_ref().or(status.booted.as_ref()) else {
            return Err(OsError::NoDeployment(self.tool.name()));
        };
        let mut problems = Vec::new();
        match changed_image(change)? {
            Some(image) if !next.is(image) => {
                problems.push(format!("the next boot would be {}, not {image}", next.name()));
            }
            // The change leaves the image as it is, so the staged one must be the same.
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
        if self.tool == OsTool::RpmOstree {
            problems.extend(rpm_ostree::missing(tools, change, next).await?);
        }
        if problems.is_empty() { Ok(()) } else { Err(OsError::NotStaged(problems)) }
    }
}

fn expectation(thing: Thing, expected: Expected) -> Expectation {
    let source = Source::new(String::new(), String::new()).into();
    Expectation { thing, expected, ssh_keys: false, label: None, source }
}

/// The deployment that a host booted.
fn booted(observer: &Observer) -> Result<Deployment, OsError> {
    let expected = Expected::OsImage(OsImageExpectation::of(""));
    match observer.observe(&expectation(Thing::OsImage, expected)).observation {
        Observation::Os(deployment) => Ok(deployment),
        other => Err(OsError::NoDeploymentRead(other.summary())),
    }
}

/// The commit that a host booted; `None` if it booted no deployment, or the deployment cannot be read.
pub fn deployment(observer: &Observer) -> Option<String> {
    booted(observer).ok()?.checksum
}

/// The arguments of the running kernel.
///
/// # Errors
/// They cannot be read.
pub fn running(observer: &Observer) -> Result<Vec<String>, OsError> {
    let expected = Expected::KernelArguments(KernelArgumentsExpectation::default());
    match observer.observe(&expectation(Thing::KernelArguments, expected)).observation {
        Observation::KernelArguments { arguments } => Ok(arguments),
        other => Err(OsError::NoArgumentsRead(other.summary())),
    }
}

/// The arguments that waited in this boot when a change began.
fn waits(change: &OsChange) -> Result<&[WaitingArgument], OsError> {
    let boot_id = boot_id(Path::new("/proc")).map_err(OsError::BootId)?;
    Ok(change.waits(&boot_id))
}

/// How two configs differ in the OS; `None` if they do not.
pub fn change(old: &Rendered, new: &Rendered) -> Option<OsChange> {
    let value = |part: &Option<Sourced<String>>| part.as_ref().map(|part| part.value.clone());
    let values = |parts: &[Sourced<String>]| parts.iter().map(|part| part.value.clone()).collect::<Vec<_>>();
    let kernel = |rendered: &Rendered| value(&rendered.kernel_type).unwrap_or_else(|| "default".to_owned());
    let missing = |from: &[String], of: &[String]| -> Vec<String> {
        of.iter().filter(|word| !from.contains(word)).cloned().collect()
    };
    let (old_words, new_words) = (declared(old), declared(new));
    let (old_extensions, new_extensions) = (values(&old.extensions), values(&new.extensions));
    // The order and the repetition of arguments matter, so all old ones are removed and all new ones are added.
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

/// The change that makes the booted OS as a config declares it; `None` if it is already, or cannot be read.
pub fn restoring(new: &Rendered, observer: &Observer) -> Option<OsChange> {
    let booted = booted(observer).ok()?;
    let image = new.os_image_url.as_ref().map(|image| image.value.clone());
    let new_image = image.filter(|image| !booted.is(image)).or_else(|| booted.image.clone());
    let words = declared(new);
    let found = running(observer).ok()?;
    // All arguments: one that is added alone would be the last one.
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

/// Whether the booted OS has the image and the arguments of a config. `false` if the config declares a kernel type or extensions,
/// because a booted OS does not show these.
pub fn is_there(rendered: &Rendered, observer: &Observer) -> bool {
    let is_default = rendered.kernel_type.as_ref().is_none_or(|kernel| kernel.value == "default");
    let is_readable = is_default && rendered.extensions.is_empty() && booted(observer).is_ok();
    is_readable && running(observer).is_ok() && restoring(rendered, observer).is_none()
}

/// The change of the OS in a forced apply: the difference of two configs, but from the booted OS. A person may have booted
/// another one than the old config declares.
pub fn forced(old: &Rendered, new: &Rendered, observer: &Observer) -> Option<OsChange> {
    let restoring = restoring(new, observer);
    let Some(change) = change(old, new) else { return restoring };
    let Some(restoring) = restoring else { return Some(change) };
    let (old_image, new_image) = (restoring.old_image, restoring.new_image);
    if change.has_arguments() {
        return Some(OsChange { old_image, new_image, ..change });
    }
    // Both configs declare the same arguments, and the kernel lacks some.
    let add_arguments = restoring.add_arguments;
    Some(OsChange { old_image, new_image, add_arguments, ..change })
}

/// A change with the booted OS, so that a rollback knows the old image also if no config declares it.
pub fn from_here(change: OsChange, observer: &Observer) -> OsChange {
    let Ok(booted) = booted(observer) else { return change };
    let old_image = match (&change.old_image, &change.new_image) {
        (None, Some(_)) => booted.image.clone().or_else(|| booted.checksum.clone()),
        (old, _) => old.clone(),
    };
    let booted_arguments = running(observer).unwrap_or_default();
    OsChange { old_image, booted: booted.checksum, booted_arguments, ..change }
}
