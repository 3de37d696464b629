//! The program in the guest. As `/init` of the initramfs it starts the guest. `holdfast-guest run` runs the scenario, and
//! `holdfast-guest act ID PATH` performs a vector. `holdfast-guest measure` is the bench's measuring process.

use anyhow::Result;
use vm_tests::{act, bench::operations, guest, run};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((verb, rest)) if verb == operations::ARGUMENT => operations::main(rest),
        Some((verb, rest)) if verb == "act" => std::process::exit(act::perform(rest)?),
        _ if std::process::id() == 1 => guest::boot::init(),
        _ => run::run_and_power_off(),
    }
}
