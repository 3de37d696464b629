//! One run of the guest's program: the scenario that the host names.
//!
//! In: the scenario's name, on the second serial port. Out: its results there, and the end of the guest. The program changes nothing
//! between the message `Hello` and the name. So the host can save the guest then, and start each scenario from the saved state.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use anyhow::Result;

use crate::guest::{Context, boot, hang, parameter};
use crate::protocol::Message;
use crate::scenarios;

/// The time between the diagnosis of a guest whose scenario takes too long and the guest's end.
const DIAGNOSIS: Duration = Duration::from_secs(45);

/// Runs the scenario that the host names, reports it, and powers off.
pub fn run_and_power_off() -> Result<()> {
    let mut context = Context::open()?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    context.send(&Message::Hello { release });
    let guest = parameter("hf.guest").unwrap_or_default();
    let name = context.scenario()?;
    context.send(&Message::Begun);
    let result = match scenarios::find(&guest, &name) {
        None => Err(anyhow::anyhow!("no scenario {name} for the guest {guest}")),
        Some(scenario) => {
            // The host counts from the start of the emulator.
            hang::print_after(scenario.longest().saturating_sub(DIAGNOSIS + hang::uptime()));
            catch_unwind(AssertUnwindSafe(|| (scenario.run)(&mut context)))
                .unwrap_or_else(|cause| Err(anyhow::anyhow!("panic: {}", panic_text(&*cause))))
        }
    };
    if let Err(error) = result {
        context.check(&name, Err(error));
    }
    context.finish();
    nix::unistd::sync();
    boot::power_off()
}

fn panic_text(cause: &(dyn std::any::Any + Send)) -> &str {
    let text = cause.downcast_ref::<&str>().copied();
    text.or_else(|| cause.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
