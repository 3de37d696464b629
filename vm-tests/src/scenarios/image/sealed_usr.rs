//! A `/usr` on a real device of dm-verity, whose root hash the kernel's arguments name: the scan and the commands need not read its files again,
//! as long as the kernel has this root hash in the table of the device.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::sealed::policy;
use super::{blob, boot, written};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::device_mapper::Verity;
use crate::guest::disks::{find, unmount};
use crate::guest::{Context, files, parameter, run, shell, status, wait};
use crate::scenario::SEALED_USR_BYTES;

const LIMIT: Duration = Duration::from_mins(1);

/// The config of the scans, and a file that only it declares.
const CONFIG: &str = machine_config!(
    "99-worker-sealed",
    r#"      - {path: /etc/declared, mode: 420, contents: {source: "data:,declared"}}
"#
);

/// Files of the image: a program and others.
const FILES: u64 = 41;
const PROGRAM: &str = "/usr/libexec/os/agent";

pub(in super::super) fn bare(context: &mut Context) -> Result<()> {
    let usr = mount_usr()?;
    fs::write("/run/image.yaml", CONFIG)?;
    fs::write("/etc/declared", "declared")?;
    boot(&layout()?)?;
    run(HOLDFAST, &["image", "index", "/run/layout"])?;
    context.check("the_daemon_and_its_scan_read_each_file_once", read_once(&usr));
    context.check("a_sealed_tree_is_one_thing", one_thing(&usr));
    Ok(())
}

/// The parameters of the table: the file system, its hashes behind it on the same disk, and this root hash.
fn parameters(root_hash: &str) -> Result<String> {
    let (disk, blocks) = (find("usr")?, SEALED_USR_BYTES / 4096);
    let disk = disk.display();
    Ok(format!("1 {disk} {disk} 4096 4096 {blocks} {blocks} sha256 {root_hash} -"))
}

/// The root hash that the kernel's arguments name.
fn root_hash() -> Result<String> {
    parameter("usrhash").context("the kernel's arguments name no root hash")
}

/// Mounts `/usr` as the initial RAM disk of such a host does. The guest's own program stays where it is.
fn mount_usr() -> Result<Verity> {
    let usr = Verity::create("usr", SEALED_USR_BYTES, &parameters(&root_hash()?)?)?;
    let device = usr.path()?;
    shell(&format!(
        "mkdir -p /run/own && mount --bind /usr/local /run/own && mount -t ext4 -o ro {} /usr && mount --bind /run/own /usr/local",
        device.display()
    ))?;
    ensure!(fs::write(PROGRAM, "x").is_err(), "the sealed /usr is writable");
    Ok(usr)
}

/// Makes a layout whose only layer is the mounted `/usr`.
fn layout() -> Result<String> {
    shell("mkdir -p /run/layout/blobs/sha256 && tar -c -f /run/layer -C / usr/libexec usr/bin usr/sbin")?;
    let layer = blob(Path::new("/run/layer"))?;
    let described = |blob: &(String, u64), kind: &str| json!({ "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": format!("sha256:{}", blob.0), "size": blob.1 });
    let config = written(&json!({
        "architecture": "amd64", "os": "linux", "history": [{ "created_by": "COPY usr /usr" }],
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", layer.0)] },
    }))?;
    let manifest = written(&json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": described(&config, "config.v1+json"),
        "layers": [described(&layer, "layer.v1.tar")],
    }))?;
    let index = json!({ "schemaVersion": 2, "manifests": [described(&manifest, "manifest.v1+json")] });
    fs::write("/run/layout/index.json", index.to_string())?;
    fs::write("/run/layout/oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)?;
    Ok(format!("sha256:{}", manifest.0))
}

/// The daemon gives up the right to ask for a table. It hands what it asked before over to its scan, until an event of a mapped device may have
/// been another table. Then each file is read again.
fn read_once(usr: &Verity) -> Result<String> {
    let path = "/run/sealed-usr-policy.yaml";
    let scans = |action: &str, directory: &str| {
        let rule = format!("path: {directory}, image: true, scan: true, action: {action}");
        fs::write(path, policy(&rule))
    };
    let last = || -> Result<Value> {
        let read = fs::read("/var/lib/holdfast/scan/progress.json").unwrap_or_else(|_| b"{}".to_vec());
        Ok(serde_json::from_slice::<Value>(&read)?["last"].clone())
    };
    let next = |before: &Value| {
        wait::until("the next round of the scan", LIMIT, || {
            let last = last()?;
            Ok((last["of"] != before["of"]).then_some(last))
        })
    };
    scans("observe", "/usr/libexec/")?;
    let agent = start(path, "1")?;
    status::wait_for("compliant", LIMIT)?;
    let first = next(&Value::Null)?;
    ensure!(first["sealed"] == 0 && first["differing"] == 0, "{first}");
    scans("degrade", "/usr/libexec/")?;
    agent.signal(Signal::SIGHUP)?;
    let second = next(&first)?;
    ensure!(second["sealed"] == FILES && second["differing"] == 0, "{second}");
    usr.set_table(&parameters(&root_hash()?)?)?;
    scans("observe", "/usr/libexec/os/")?;
    agent.signal(Signal::SIGHUP)?;
    let third = next(&second)?;
    ensure!(third["sealed"] == 0 && third["differing"] == 0, "{third}");
    agent.stop()?;
    Ok(format!("{first}\n{second}\n{third}"))
}

/// Starts the daemon with a policy. It looks for changes that have no event with each beat of the canary, each so many seconds.
fn start(policy: &str, canary_every: &str) -> Result<RunningDaemon> {
    let configs = ["--standalone", "--config", "/run/image.yaml", "--policy", policy];
    RunningDaemon::start(&[&configs[..], &["--canary-every", canary_every]].concat())
}

/// A rule about the image: what a sealed tree has is one thing of the daemon, until something hides a part of it or it is not sealed any more.
fn one_thing(usr: &Verity) -> Result<String> {
    let path = "/run/sealed-usr-policy.yaml";
    fs::write(path, policy("path: /usr/libexec/, image: true, action: degrade"))?;
    let things = |what: &str, wanted: &dyn Fn(u64) -> bool| -> Result<u64> {
        let is_wanted = |status: &Value| {
            status["verdict"] == "compliant" && status["counters"]["managed"].as_u64().is_some_and(wanted)
        };
        let status = status::wait_until(what, LIMIT, is_wanted)?;
        status["counters"]["managed"].as_u64().context("no number of things")
    };
    // Another root hash than the one that the kernel's arguments name. The blocks that were read before are in memory.
    let own = root_hash()?;
    let other: String = own.chars().map(|digit| if digit == '0' { '1' } else { '0' }).collect();
    usr.set_table(&parameters(&other)?)?;
    let agent = start(path, "1")?;
    let unsealed = things("a thing for each file", &|managed| managed > FILES)?;
    agent.stop()?;
    usr.set_table(&parameters(&own)?)?;
    // No beat of the canary comes while this daemon runs: what follows a mount follows from the mount alone.
    let mut agent = start(path, "3600")?;
    let sealed = things("one thing for the tree", &|managed| managed < FILES)?;
    let explained = run(HOLDFAST, &["explain", PROGRAM, "--config", "/run/image.yaml"])?;
    ensure!(explained.contains("/usr is sealed: the daemon has one thing for it"), "{explained}");
    ensure!(explained.contains("COPY usr /usr"), "no layer: {explained}");

    let hidden = hidden(&mut agent)?;
    things("one thing for the tree again", &|managed| managed == sealed)?;
    // What another mount shows at each path is no part of the tree.
    shell("mkdir -p /run/upper /run/work && mount -t tmpfs t /run/upper && mkdir /run/upper/u /run/upper/w")?;
    files::load_module("overlay")?;
    shell(
        "mount -t overlay -o lowerdir=/usr,upperdir=/run/upper/u,workdir=/run/upper/w usr /usr && mount --bind /run/own /usr/local",
    )?;
    status::wait_until("a thing for each file below the overlay", LIMIT, |status| {
        status["counters"]["managed"].as_u64().is_some_and(|managed| managed >= unsealed)
    })?;
    shell("umount /usr/local && umount /usr")?;
    things("one thing for the tree without the overlay", &|managed| managed == sealed)?;
    agent.stop()?;
    let agent = start(path, "1")?;
    things("one thing for the tree after a restart", &|managed| managed == sealed)?;
    // Another table may be in the device after this event.
    usr.set_table(&parameters(&own)?)?;
    things("a thing for each file after an event of the device", &|managed| managed == unsealed)?;
    agent.stop()?;
    Ok(format!("{unsealed} things with a watch for each file, {sealed} with one for the tree\n{hidden}"))
}

/// A file is mounted over a program of the tree: a record has the actor and the mount point, another one the difference of the program, and an
/// execution has one, too.
fn hidden(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(&format!(
        "printf '#!/bin/sh\\necho evil\\n' > /run/evil && chmod 755 /run/evil && mount --bind /run/evil {PROGRAM}"
    ))?;
    let tree = agent.wait_for("the mount in the tree", before, |record| {
        record["kind"] == "drift" && record["path"] == "/usr" && record["thing"] == "tree"
    })?;
    ensure!(tree["differences"].to_string().contains(PROGRAM), "{tree}");
    ensure!(tree["actor"]["argv"].to_string().contains("mount"), "{tree}");
    let program = agent.wait_for("the drift of the program", before, |record| {
        record["kind"] == "drift" && record["path"] == PROGRAM
    })?;
    ensure!(shell(PROGRAM)?.contains("evil"), "the program is as before");
    let executed = agent.wait_for("the execution", before, |record| {
        record["kind"] == "exec" && record["path"] == PROGRAM && record["verdict"] == "drifted"
    })?;
    unmount(Path::new(PROGRAM))?;
    for path in ["/usr", PROGRAM] {
        agent.wait_for("the recovery", before, |record| {
            record["kind"] == "recovered" && record["path"] == path
        })?;
    }
    Ok(format!("{tree}\n{program}\n{executed}"))
}
