//! The host on which `apply` or `rollback` runs.

use super::options::{ApplyFlags, HostOptions};
use crate::{
    apply::{HostApply, HostApplyError, Interrupts},
    cli::{
        exit::{BadInput, runtime},
        output::{Screen, say},
    },
};
use anyhow::Context as _;
use tokio::runtime::Runtime;

/// One run of `apply` or `rollback`.
pub(in crate::cli) struct ApplyRun<'a> {
    pub(super) host: HostApply,
    pub(super) options: &'a ApplyFlags,
    pub(super) host_options: &'a HostOptions,
    pub(super) runtime: Runtime,
}

/// An error of the room that applies, with the exit code of an input error if it is one.
pub(super) fn failed(error: HostApplyError) -> anyhow::Error {
    BadInput::wrap_if(error.is_input(), error)
}

impl<'a> ApplyRun<'a> {
    pub(in crate::cli) fn open(
        host_options: &'a HostOptions,
        options: &'a ApplyFlags,
        screen: &mut Screen,
    ) -> anyhow::Result<Self> {
        // A reader that closes standard output does not change the exit code of the apply.
        screen.outlive_readers();
        let interrupts = Interrupts::heed(say).context("take signals")?;
        let host = HostApply::open(options.for_host(host_options), interrupts).map_err(failed)?;
        Ok(Self { host, options, host_options, runtime: runtime()? })
    }
}
