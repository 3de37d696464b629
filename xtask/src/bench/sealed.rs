//! The cost of comparing sealed files.
//!
//! In: AIDE, and a kernel with fs-verity, which this machine's kernel may lack. Out: processor time of Holdfast and of AIDE on the same files,
//! from one boot of a guest that counts instructions.

use anyhow::Result;
use serde::Serialize;
use vm_tests::bench::sealed::{AIDE, SCENARIO, SEALED};
use vm_tests::guest::agent::HOLDFAST;

use super::rows::Measured;
use super::scans;
use super::{boot, program};
use crate::cache::Cache;
use crate::dist::Profile;
use crate::kernels;
use crate::qemu::Qemu;
use crate::vm::{GuestParts, Vm};

/// Kernel series of the guest.
const KERNEL: &str = "6.12";
/// The part of AIDE's CPU time that Holdfast may take.
const SHARE: f64 = 0.1;

/// Processor time on the same files.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct SealedFiles {
    files: f64,
    ours_ms: f64,
    aide_ms: f64,
}

/// Boots a guest and compares the files.
pub(super) fn measure() -> Result<SealedFiles> {
    let (parts, kernel, aide) = {
        let cache = Cache::open()?;
        Qemu::ensure(&cache)?;
        let (kernel, aide) = (kernels::ensure(&cache, KERNEL)?, scans::aide(&cache)?);
        (GuestParts::ensure_with(cache, &[], Profile::Release)?, kernel, aide)
    };
    let mut vm = Vm::new(kernel, &SCENARIO);
    vm.icount = true;
    vm.add_file(program()?, HOLDFAST)?;
    vm.add_program(&aide, "aide", AIDE)?;
    let mut measured = Measured::default();
    boot(&vm, &parts, &mut measured)?;
    let number = |field| measured.number(SEALED, field);
    Ok(SealedFiles { files: number("files")?, ours_ms: number("ours_ms")?, aide_ms: number("aide_ms")? })
}

impl SealedFiles {
    fn share(&self) -> f64 {
        self.ours_ms / self.aide_ms
    }

    /// The budget that was missed.
    pub(super) fn missed(&self) -> Option<String> {
        let share = self.share();
        (share > SHARE).then(|| {
            format!("`image verify` of sealed files: {share:.3} of AIDE's CPU time, at most {SHARE}")
        })
    }

    /// What was measured, its value, and its limit.
    pub(super) fn row(&self) -> (String, String, String) {
        (
            format!(
                "`image verify` of {} files with fs-verity, for each CPU second of `aide --check`",
                self.files
            ),
            format!("{:.3}", self.share()),
            format!("{SHARE:.3}"),
        )
    }
}
