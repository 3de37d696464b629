//! The database of dpkg: packages, and what each has at its paths.
//!
//! In: the texts of `/var/lib/dpkg`, and of dpkg's configuration. Out: packages with their configuration files, MD5 sums, diversions, rules for
//! paths that are not unpacked. A line that cannot be read is
//! left out: dpkg itself writes these files, and a name without a sum is still the package's.

mod diversions;
mod excludes;
mod status;
mod sums;
#[cfg(test)]
mod tests;

pub use diversions::Diversions;
pub use excludes::PathFilters;
pub use status::{DpkgPackage, packages};
pub use sums::sums;

/// An MD5 sum in hexadecimal digits.
fn md5(text: &[u8]) -> Option<[u8; 16]> {
    let mut sum = [0; 16];
    hex::decode_to_slice(text, &mut sum).ok()?;
    Some(sum)
}
