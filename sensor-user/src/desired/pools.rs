//! The rendered config of a pool.

use super::{error::DesiredError, manifests::objects, unknown::Unknown};
use sensor_model::pool::{self, Pool, RenderedMachineConfig};
use std::path::PathBuf;

/// The name of this program in rendered configs.
const VERSION: &str = concat!("holdfast-", env!("CARGO_PKG_VERSION"));

/// Renders a pool from MachineConfigs and MachineConfigPools.
///
/// # Errors
/// A file that cannot be read or used, no such pool, and a pool that cannot be rendered.
pub fn render_pool(
    paths: &[PathBuf],
    name: Option<&str>,
    unknown: Unknown,
) -> Result<RenderedMachineConfig, DesiredError> {
    let manifest = objects(paths, unknown)?;
    let pools = pool::pools(&manifest.others)?;
    let chosen = choose(&pools, name)?;
    let images = pool::cluster_images(&manifest.others);
    Ok(pool::render(chosen, &manifest.machine_configs, &images, VERSION)?)
}

fn choose<'a>(pools: &'a [Pool], name: Option<&str>) -> Result<&'a Pool, DesiredError> {
    let mut names: Vec<String> = pools.iter().map(|pool| pool.name.clone()).collect();
    names.sort_unstable();
    match (name, pools) {
        (_, []) => Err(DesiredError::NoPool),
        (None, [pool]) => Ok(pool),
        (None, _) => Err(DesiredError::SeveralPools(names)),
        (Some(name), _) => pools
            .iter()
            .find(|pool| pool.name == *name)
            .ok_or_else(|| DesiredError::OtherPools { name: name.to_owned(), pools: names }),
    }
}
