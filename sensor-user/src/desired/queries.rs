//! What commands ask of the desired state.
//!
//! In: the desired state with its config, and paths. Out: the expectations of the paths, or the fields that are not compared.

use super::{error::DesiredError, facts::HostFacts, load::DesiredWithConfig};
use sensor_model::{
    expectation::{Expectation, ExpectationSource, Expected, Thing},
    expectations::expectations,
    merge::Rendered,
    waiting::note,
};
use std::path::{Path, PathBuf};

/// Every expectation of the config, also one that the policy ignores.
///
/// # Errors
/// Contents that cannot be decoded.
pub fn declared(rendered: &Rendered) -> Result<Vec<Expectation>, DesiredError> {
    Ok(expectations(rendered)?)
}

/// Every expectation of a path, also one that the policy ignores, and that of the closed directory that the path is in.
///
/// # Errors
/// Contents that cannot be decoded.
pub fn things_at(
    whole: &DesiredWithConfig,
    path: &Path,
    host: &dyn HostFacts,
) -> Result<Vec<Expectation>, DesiredError> {
    let mut all = declared(&whole.rendered)?;
    // A closed directory has the path on the disk, and its rule and the question may have one with links.
    let place = host.place(path);
    // Reading the packages and the image again for each path would take long.
    let loaded = whole.desired.expectations.iter();
    all.extend(loaded.filter(|one| !matches!(one.source, ExpectationSource::MachineConfig(_))).cloned());
    note(&mut all, &whole.desired.waiting);
    all.retain(|expectation| {
        let thing = &expectation.thing;
        if host.unchecked(thing).is_some() {
            return false;
        }
        let is_closed = matches!(thing, Thing::ClosedDirectory { .. });
        let is_above = |path: &Path| path.parent() == Some(&*thing.path());
        let within = is_closed && (is_above(path) || is_above(&place));
        *thing.path() == *path || within || is_closed && *thing.path() == *place
    });
    // The expectation of a declared name is more precise than that of its closed directory. Where nothing may be, both report an object.
    let is_declared = |one: &Expectation| *one.thing.path() == *path && one.expected != Expected::Absent;
    if all.iter().any(is_declared) {
        all.retain(|expectation| *expectation.thing.path() == *path);
    }
    host.label(&mut all, &whole.desired.policy);
    Ok(all)
}

/// Every expectation of paths, but not that of a closed directory above a path.
///
/// # Errors
/// A path without an expectation of its own, and contents that cannot be decoded.
pub fn declared_things(
    whole: &DesiredWithConfig,
    paths: &[PathBuf],
    host: &dyn HostFacts,
) -> Result<Vec<Expectation>, DesiredError> {
    let mut things = Vec::new();
    for path in paths {
        let (own, above): (Vec<Expectation>, Vec<Expectation>) =
            things_at(whole, path, host)?.into_iter().partition(|one| *one.thing.path() == **path);
        if own.is_empty() {
            return Err(match above.first() {
                None => DesiredError::NotDeclared(path.clone()),
                Some(closed) => DesiredError::OnlyItsDirectory {
                    path: path.clone(),
                    directory: closed.thing.path().to_path_buf(),
                },
            });
        }
        things.extend(own);
    }
    Ok(things)
}

/// A field of a MachineConfig that is declared and that Holdfast does not compare.
#[derive(Debug)]
pub struct NotChecked {
    /// Its name in a MachineConfig.
    pub field: &'static str,
    /// Why it does not.
    pub reason: String,
}

/// The declared fields that Holdfast does not compare on this host.
pub fn not_checked(rendered: &Rendered, host: &dyn HostFacts) -> Vec<NotChecked> {
    let never = |what: &str| Some(format!("{what} are not compared with what runs"));
    let unless = |thing: &Thing| host.unchecked(thing);
    let declared = [
        ("kernelArguments", !rendered.kernel_arguments.is_empty(), unless(&Thing::KernelArguments)),
        ("kernelType", rendered.kernel_type.is_some(), never("kernel packages")),
        ("extensions", !rendered.extensions.is_empty(), never("packages")),
        ("fips", rendered.fips.is_some(), never("FIPS modes")),
        ("osImageURL", rendered.os_image_url.is_some(), unless(&Thing::OsImage)),
    ];
    let declared = declared.into_iter().filter(|(_, is_declared, _)| *is_declared);
    declared.filter_map(|(field, _, reason)| reason.map(|reason| NotChecked { field, reason })).collect()
}
