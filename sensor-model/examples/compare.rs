//! Measures the cost of comparing two rendered configs, for `cargo xtask bench --compare`.
//!
//! In: nothing. Out: one JSON line for each case and size, with the CPU time of the cheapest of many runs. Other processes on the
//! machine make a run dearer, never cheaper.

use sensor_model::{
    machine_config,
    merge::{self, Rendered},
    node_disruption::DisruptionPolicy,
    plan::plan,
    reconcile::Overrides,
};
use serde_json::json;
use std::{fs, hint::black_box};

/// Bytes of each file.
const FILE: usize = 4096;
/// Runs, of which the cheapest is reported.
const RUNS: usize = 25;
/// Files on each side.
const SIZES: [usize; 4] = [1_250, 2_500, 5_000, 10_000];

/// How the new side differs.
#[derive(Debug, Clone, Copy)]
enum Case {
    Identical,
    OneInAHundred,
    AllChanged,
    AllEncodedOtherwise,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = DisruptionPolicy::shipped()?;
    for (name, case) in [
        ("identical", Case::Identical),
        ("one in a hundred differs", Case::OneInAHundred),
        ("all differ", Case::AllChanged),
        ("all are encoded otherwise, and the same", Case::AllEncodedOtherwise),
    ] {
        for size in SIZES {
            let (old, new) = (config(size, None)?, config(size, Some(case))?);
            let compare = || sensor_model::changes::compare(Some(&old), Some(&new), Overrides::default());
            let changes = compare()?.changes.len();
            let compared = cheapest(|| drop(black_box(compare())))?;
            let planned = cheapest(|| drop(black_box(plan(Some(&old), Some(&new), &policy))))?;
            let row = json!({
                "case": name, "files": size, "changes": changes,
                "compare_nanoseconds": compared, "plan_nanoseconds": planned,
            });
            println!("{row}");
        }
    }
    Ok(())
}

fn cheapest(run: impl Fn()) -> Result<u64, Box<dyn std::error::Error>> {
    let mut best = u64::MAX;
    for _ in 0..RUNS {
        let before = cpu_time()?;
        run();
        best = best.min(cpu_time()? - before);
    }
    Ok(best)
}

/// Nanoseconds that this thread was on a CPU.
fn cpu_time() -> Result<u64, Box<dyn std::error::Error>> {
    // Only a thread that leaves the CPU has its time brought up to date.
    std::thread::yield_now();
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_ascii_whitespace().next().ok_or("schedstat is empty")?.parse()?)
}

/// Files of 4 KiB; without a case the old side.
fn config(size: usize, case: Option<Case>) -> Result<Rendered, Box<dyn std::error::Error>> {
    let files: Vec<_> = (0..size)
        .map(|number| {
            let differs = match case {
                Some(Case::OneInAHundred) => number % 100 == 0,
                Some(Case::AllChanged) => true,
                _ => false,
            };
            let mut content: Vec<u8> =
                format!("file {number}\n").bytes().cycle().take(FILE).collect();
            if differs {
                content[FILE / 2] ^= 1;
            }
            let source = if matches!(case, Some(Case::AllEncodedOtherwise)) {
                let mut escaped = String::with_capacity(FILE * 2);
                for byte in &content {
                    if byte.is_ascii_alphanumeric() {
                        escaped.push(char::from(*byte));
                    } else {
                        escaped.push('%');
                        escaped.push_str(&hex::encode([*byte]));
                    }
                }
                format!("data:,{escaped}")
            } else {
                sensor_model::data_url::encode(&content)
            };
            json!({ "path": format!("/etc/files/{:03}/{number}.conf", number % 997), "contents": { "source": source } })
        })
        .collect();
    let object = json!({
        "apiVersion": machine_config::API_VERSION, "kind": "MachineConfig", "metadata": { "name": "rendered" },
        "spec": { "config": { "ignition": { "version": "3.4.0" }, "storage": { "files": files } } },
    });
    let mut parsed = machine_config::parse("rendered", &serde_json::to_vec(&object)?)?.machine_configs;
    Ok(merge::rendered(parsed.remove(0))?)
}
