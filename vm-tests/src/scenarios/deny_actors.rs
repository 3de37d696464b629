//! The actors that a deny rule allows: units, pods, logins and executables, and forged ones.
//!
//! In: the state that the scenario `deny` left. Out: an error if a forged actor passed, or an allowed one did not.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::deny_node::{FILE, POLICY, refused};
use crate::guest::agent::RunningDaemon;
use crate::guest::pod::group;
use crate::guest::{shell, status, wait};

/// The uid of an allowed pod.
const POD: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";

/// The kernel identifies allowed units, pods and users. The programs report a unit's control group when it is created. Meanwhile no canary
/// event arrives that would make the daemon look for it.
pub(super) fn by_group_and_login() -> Result<String> {
    const SLICE: &str = "/sys/fs/cgroup/system.slice";
    const MADE_BY_USER: &str = "user.slice/user-1000.slice/user@1000.service/app.slice/allowed.service";
    let policy = POLICY.replacen(
        "exes: [/run/allowed/busybox]",
        &format!(
            "units: [allowed.service]\n      pods: [{POD}]\n      users: [keeper]\n      exes: [/srv/first/busybox]"
        ),
        1,
    );
    fs::write("/run/policy.yaml", policy)?;
    shell("cp /bin/busybox /srv/first/busybox")?;
    shell("echo 'keeper:x:4321:4321::/:/bin/sh' >> /etc/passwd")?;
    let mut agent = RunningDaemon::start(&[
        "--standalone",
        "--config",
        "/run/deny.yaml",
        "--policy",
        "/run/policy.yaml",
        "--canary-every",
        "3600",
    ])?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    refused(&mut agent, &format!("chmod 600 {FILE}"), "set-attributes")?;
    shell(&format!("mkdir -p {SLICE}/allowed.service"))?;
    wait::until("the unit to be allowed", Duration::from_secs(30), || {
        let changed = shell(&format!("echo $$ > {SLICE}/allowed.service/cgroup.procs && chmod 644 {FILE}"));
        Ok(changed.is_ok().then_some(()))
    })?;
    let by_pod = |pod: &str| {
        let group = group(pod, "editor");
        format!("mkdir -p {group} && echo $$ > {group}/cgroup.procs && chmod 644 {FILE}")
    };
    wait::until("the pod to be allowed", Duration::from_secs(30), || {
        Ok(shell(&by_pod(POD)).is_ok().then_some(()))
    })?;
    refused(&mut agent, &by_pod(&POD.replace('0', "1")), "set-attributes")?;
    // The last two have the allowed unit's name below a group that may belong to any user.
    for other in ["system.slice/other.service", "system.slice/other.service/allowed.service", MADE_BY_USER] {
        let group = format!("/sys/fs/cgroup/{other}");
        let other = format!("mkdir -p {group} && echo $$ > {group}/cgroup.procs && chmod 600 {FILE}");
        refused(&mut agent, &other, "set-attributes")?;
    }
    let in_group = |login: u32, group: &str, mode: &str| {
        format!(
            "echo {login} > /proc/self/loginuid && n=$(cat /proc/self/sessionid) && g=/sys/fs/cgroup/{group} && \
             mkdir -p $g && echo $$ > $g/cgroup.procs && chmod {mode} {FILE}"
        )
    };
    // A process without a login uid can set any. The kernel then gives it a session, and a scope for that session
    // exists only if logind created one.
    refused(&mut agent, &format!("echo 4321 > /proc/self/loginuid && chmod 600 {FILE}"), "set-attributes")?;
    for forged in [
        "user.slice/user-4321.slice/session-1$n.scope",
        "user.slice/user-4321.slice/session-$n.scope.d",
        "user.slice/user-4322.slice/session-$n.scope",
        "user.slice/user-4321.slice/user@4321.service/user.slice/user-4321.slice/session-$n.scope",
        "system.slice/user-4321.slice/session-$n.scope",
    ] {
        refused(&mut agent, &in_group(4321, forged, "600"), "set-attributes").context(forged)?;
    }
    let scope = "user.slice/user-4321.slice/session-$n.scope";
    refused(&mut agent, &in_group(4322, &scope.replace("4321", "4322"), "600"), "set-attributes")?;
    shell(&in_group(4321, scope, "644"))?;
    updated_program(&mut agent)?;
    agent.stop()?;
    // The scope's name is enough for the kernel programs; no daemon has to have seen it.
    shell(&in_group(4321, scope, "600"))?;
    ensure!(shell(&in_group(4321, "system.slice/session-$n.scope", "644")).is_err(), "no session, no daemon");
    Ok(String::new())
}

/// After an update of the allowed program, the rule refuses processes that still run the old one. It also refuses a file that gets
/// the old one's inode number. Meanwhile no canary event arrives that would make the daemon look for it.
fn updated_program(agent: &mut RunningDaemon) -> Result<()> {
    const PROGRAM: &str = "/srv/first/busybox";
    shell(&format!("{PROGRAM} chmod 644 {FILE}"))?;
    let old = fs::metadata(PROGRAM)?.ino();
    shell(&format!("cp {PROGRAM} {PROGRAM}.new && mkfifo /run/go"))?;
    // The shell itself opens the file when it gets a line. Both ends stay open: when the last end closes, a line that was not
    // read is gone.
    let running = format!(
        "{PROGRAM} ash -c \"exec 3< /run/go; read go <&3; read go <&3; echo drift >> {FILE}\" & p=$!"
    );
    let line = format!(
        "{running}; exec 4> /run/go; echo go >&4; mv -f {PROGRAM}.new {PROGRAM}; echo go >&4; wait $p"
    );
    refused(agent, &line, "open-write")?;
    // The number is free now, because no process runs the old program.
    for number in 0..4096 {
        let path = format!("/srv/first/busybox{number}");
        fs::write(&path, "")?;
        if fs::metadata(&path)?.ino() == old {
            shell(&format!("cp /bin/busybox {path} && chmod 755 {path}"))?;
            ensure!(fs::metadata(&path)?.ino() == old, "the copy is another file");
            return refused(agent, &format!("{path} chmod 600 {FILE}"), "set-attributes").map(drop);
        }
    }
    bail!("the file system did not give the number {old} again")
}

/// In its own mount namespace a process can put any program at the allowed path. The rule still treats it as another
/// program.
pub(super) fn mounted_over(agent: &mut RunningDaemon) -> Result<String> {
    const PROGRAMS: &str = "/etc/deny/program.conf";
    shell("cp /bin/busybox /run/other-busybox")?;
    let change = |path: &str| format!("/run/allowed/busybox chmod 600 {path}");
    let forged = |path: &str| {
        let mounted = "mount --bind /run/other-busybox /run/allowed/busybox";
        format!("unshare -m sh -c '{mounted} && {}'", change(path))
    };
    for (line, allowed) in [(forged(PROGRAMS), false), (change(PROGRAMS), true)] {
        let before = agent.records()?.len();
        shell(&line)?;
        let record = agent
            .wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == PROGRAMS)?;
        ensure!(record["actor"]["exe"] == "/run/allowed/busybox", "{record}");
        ensure!((record["detail"]["allowed"] == true) == allowed, "{record}");
        shell(&format!("chmod 644 {PROGRAMS}"))?;
        agent.wait_for("recovery", before, |record| {
            record["kind"] == "recovered" && record["path"] == PROGRAMS
        })?;
    }
    refused(agent, &forged(FILE), "set-attributes")
}
