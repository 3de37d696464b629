//! The program in the guest: `/init` of the initramfs, and `holdfast-guest run` to run the scenario.

use anyhow::Result;
use vm_tests::guest;

fn main() -> Result<()> {
    if std::process::id() == 1 { guest::boot::init() } else { guest::run_and_power_off() }
}
