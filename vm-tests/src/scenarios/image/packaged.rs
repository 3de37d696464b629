//! A program of a package of dpkg, whose database has the MD5 alone: the index of the packages has the daemon watch it.

use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{run, shell, status};
use anyhow::{Result, ensure};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);
const PROGRAM: &str = "/usr/libexec/os/packaged";
const PACKAGE: &str = "package tool 2.0-1 (amd64)";

/// Makes a database of dpkg with one package, which has the program, and its index. Then changes content and mode of the program.
pub(super) fn program(daemon: &[&str]) -> Result<String> {
    shell(&format!(
        "mkdir -p /var/lib/dpkg/info && printf '#!/bin/sh\\necho packaged\\n' > {PROGRAM} && chmod 755 {PROGRAM} && \
         cp -a {PROGRAM} /run/packaged && printf '/.\\n{PROGRAM}\\n' > /var/lib/dpkg/info/tool.list && \
         (cd / && md5sum {}) > /var/lib/dpkg/info/tool.md5sums && \
         printf 'Package: tool\\nStatus: install ok installed\\nArchitecture: amd64\\nVersion: 2.0-1\\n' > /var/lib/dpkg/status",
        PROGRAM.trim_start_matches('/')
    ))?;
    let printed = run(HOLDFAST, &["image", "index", "--packages"])?;
    ensure!(printed.contains("indexed 1 package of dpkg") && !printed.contains("differs"), "{printed}");
    let mut agent = RunningDaemon::start(daemon)?;
    status::wait_for("compliant", LIMIT)?;
    let mut differences = Vec::new();
    for (kind, change) in
        [("content", format!("echo echo evil >> {PROGRAM}")), ("mode", format!("chmod u+s {PROGRAM}"))]
    {
        let before = agent.records()?.len();
        shell(&change)?;
        let record = agent
            .wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == PROGRAM)?;
        ensure!(
            record["source"] == PACKAGE && record["detail"]["strength"] == "md5 of a package",
            "{record}"
        );
        ensure!(record["differences"][0]["kind"] == kind && record["actor"]["argv"].is_array(), "{record}");
        differences.push(record["differences"].to_string());
        let before = agent.records()?.len();
        shell(&format!("rm {PROGRAM} && cp -a /run/packaged {PROGRAM}"))?;
        agent.wait_for("the recovery", before, |record| {
            record["kind"] == "recovered" && record["path"] == PROGRAM
        })?;
        status::wait_for("compliant", LIMIT)?;
    }
    agent.stop()?;
    shell(&format!("rm -r /var/lib/dpkg /var/lib/holdfast/images/packages.index {PROGRAM}"))?;
    Ok(differences.join(" "))
}
