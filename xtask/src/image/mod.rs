//! The image of the product: nothing but the two programs, as an OCI archive with a list of what is in it.
//!
//! In: the working tree. Out, in `target/dist`: the archive, the list of components (`CycloneDX`), and a file with the digest. Equal
//! sources give equal files, whatever the folder of the checkout.

mod build;
mod buildah;
#[cfg(test)]
mod registry_tests;
mod reproducible;
mod sbom;

pub(crate) use build::{build, of_programs};
pub(crate) use buildah::{Buildah, Step};
pub(crate) use reproducible::check as check_reproducible;
