//! A comparison of sealed files, for which the kernel proves the content.
//!
//! In: a bare guest with one CPU whose nanoseconds are executed instructions, and AIDE. Out: processor time of `holdfast image verify` and of
//! `aide --check` on the same files with fs-verity, in one boot. A scan has read each file once before.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;

use super::stage::{SETTLE, one, prepare};
use crate::guest::agent::HOLDFAST;
use crate::guest::disks::FileSystem;
use crate::guest::{Context, files, run, shell, shell_time, wait};
use crate::scenario::Scenario;

/// The scenario. No test runs it.
pub const SCENARIO: Scenario = Scenario {
    name: "bench-sealed",
    shows: "the processor time of a comparison of sealed files, beside that of AIDE",
    limit: 900,
    run: measure,
    ..Scenario::USUAL
};

/// The measurement's name.
pub const SEALED: &str = "sealed files";
/// Where the guest has AIDE.
pub const AIDE: &str = "/usr/bin/aide";

const PLACE: &str = "/mnt/sealed";
/// Files, and their bytes. A file of a Debian's `/usr` has about as many.
const FILES: usize = 600;
const BYTES: usize = 64 << 10;

/// The same fields as in the bench of whole trees.
const AIDE_CONFIG: &str = "database_in=file:/run/aide.db\ndatabase_out=file:/run/aide.db\ngzip_dbout=no\nreport_url=file:/run/aide.report\n\
                           /mnt/sealed p+u+g+s+ftype+l+sha256+xattrs\n";

const CONFIG: &str = r"apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 99-worker-sealed, labels: {machineconfiguration.openshift.io/role: worker}}
spec: {config: {ignition: {version: 3.4.0}}}
";

const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: sealed}
spec:
  rules:
  - {path: /mnt/sealed/, image: true, scan: true, action: observe}
";

fn measure(context: &mut Context) -> Result<()> {
    prepare()?;
    FileSystem::Ext4.mount(Path::new(PLACE))?;
    context.note("writing and sealing the files");
    let mut random = File::open("/dev/urandom")?;
    for number in 0..FILES {
        let path = Path::new(PLACE).join(number.to_string());
        let mut bytes = vec![0; BYTES];
        random.read_exact(&mut bytes)?;
        fs::write(&path, bytes)?;
        files::seal(&path)?;
    }
    shell(&format!("{HOLDFAST} baseline {PLACE} > /run/baseline.json"))?;
    run(HOLDFAST, &["image", "index", "--baseline", "/run/baseline.json"])?;
    fs::write("/run/config.yaml", CONFIG)?;
    fs::write("/run/policy.yaml", POLICY)?;
    let scan = "--host-root / --state /var/lib/holdfast --allow-empty --config /run/config.yaml --policy /run/policy.yaml";
    shell(&format!("{HOLDFAST} scan {scan} --every-hours 0 --processor 100 --read-mebibytes 10000"))?;
    fs::write("/run/aide.conf", AIDE_CONFIG)?;
    shell(&format!("{AIDE} --config=/run/aide.conf --init"))?;
    wait::pause(SETTLE);
    let (said, ours) = shell_time(&format!("{HOLDFAST} image verify --image baseline {PLACE}"))?;
    ensure!(said.contains(&format!("sealed: {FILES} of these files")), "{said}");
    let (_, aide) = shell_time(&format!("{AIDE} --config=/run/aide.conf --check"))?;
    one(context, SEALED, json!({ "files": FILES, "ours_ms": ours, "aide_ms": aide }));
    Ok(())
}
