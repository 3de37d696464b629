//! Rules about what the image has: a change of a program that no config declares is drift live, with its actor and the layer that put the
//! program there; so is its execution.

mod packaged;
mod root_image;
mod sealed;
pub(super) mod sealed_usr;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use sensor_common::limits::EXECUTIONS_AFTER_CHANGE_NS;
use serde_json::{Value, json};

use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{Context, files, page, run, shell, status, wait};

const LIMIT: Duration = Duration::from_mins(1);

const CONFIG: &str = machine_config!(
    "99-worker-image",
    r#"      - {path: /usr/libexec/os/declared, mode: 493, contents: {source: "data:,declared"}}
"#
);

const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: image}
spec:
  rules:
  - {path: /usr/libexec/os/, image: true, action: degrade}
  - {path: /usr/libexec/os/sealed, image: true, action: deny}
  - {path: /usr/libexec/os/data/, image: true, action: ignore}
";

const PROGRAM: &str = "/usr/libexec/os/agent";

/// The layers: what each line of history does in the root of a build, and the paths that its layer has.
const LAYERS: [(&str, &str, &str); 2] = [
    (
        "ADD base /",
        "mkdir -p usr/libexec/os && cp /bin/busybox usr/libexec/os/agent && echo base > usr/libexec/os/declared && \
         echo sealed > usr/libexec/os/sealed && mkdir -p usr/libexec/os/data && echo data > usr/libexec/os/data/scanned && ln -s agent usr/libexec/os/link && chmod 755 usr/libexec/os/*",
        "usr/libexec/os",
    ),
    (
        "RUN install-agent --version 2",
        "printf '#!/bin/sh\\necho agent 2\\n' > usr/libexec/os/agent",
        "usr/libexec/os/agent",
    ),
];

/// Boots an image as far as the host's files show it, and changes what the image has.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    let digest = layout()?;
    boot(&digest)?;
    fs::write("/run/image.yaml", CONFIG)?;
    fs::write("/run/image-policy.yaml", POLICY)?;
    let configs = ["--standalone", "--config", "/run/image.yaml", "--policy", "/run/image-policy.yaml"];
    // The daemon finds a new index, and takes the result of a scan, with a beat of the canary.
    let arguments = [&configs[..], &["--canary-every", "1"]].concat();
    let mut agent = RunningDaemon::start(&arguments)?;
    context.check("without_an_index_it_is_unknown", unknown(&mut agent));
    context.check("a_new_index_is_read_without_a_reload", indexed(&mut agent));
    for (name, command) in [
        ("written", format!("echo evil >> {PROGRAM}")),
        ("replaced", format!("cp {PROGRAM} /run/evil && echo evil >> /run/evil && mv /run/evil {PROGRAM}")),
        ("removed", format!("rm {PROGRAM}")),
        ("mode", format!("chmod u+s {PROGRAM}")),
        ("moved_away", format!("mv {PROGRAM} /usr/libexec/agent")),
        ("replaced_by_a_link", format!("ln -s /bin/busybox /run/link && mv /run/link {PROGRAM}")),
    ] {
        context.check(name, changed(&mut agent, &command));
    }
    context.check("an_execution_of_what_differs", executed(&mut agent));
    context.check("a_load_of_what_differs", loaded(&mut agent));
    context.check("an_execution_of_what_the_image_has_not", executed_unknown(&mut agent));
    context.check("what_the_config_declares", declared(&mut agent));
    context.check("refused", refused(&mut agent));
    context.check("explained", explained());
    context.check("a_scan_finds_what_nothing_watched", scanned(&mut agent));
    context.check("an_index_that_goes_away_closes_no_drift", unindexed(&mut agent));
    agent.stop()?;
    context.check("a_program_of_a_package_of_dpkg", packaged::program(&arguments));
    context.check("a_sealed_file_is_read_once", sealed::file());
    context.check("a_file_of_a_sealed_root_is_read_once", sealed::root(&digest, PROGRAM));
    context.check("the_etc_of_a_root_image_is_found_below_the_present_one", root_image::root_image());
    Ok(())
}

/// Makes the image's layout from what the layers do, and puts the result on the disk. Gives the digest of the manifest.
fn layout() -> Result<String> {
    shell("mkdir -p /run/layout/blobs/sha256 /run/build")?;
    let mut layers = Vec::new();
    let mut history = Vec::new();
    for (line, does, paths) in LAYERS {
        shell(&format!(
            "cd /run/build && {does} && tar -c -f /run/layer {paths} && cp -a usr/libexec/os /usr/libexec.new && \
             rm -rf /usr/libexec/os && mkdir -p /usr/libexec && mv /usr/libexec.new /usr/libexec/os"
        ))?;
        layers.push(blob(Path::new("/run/layer"))?);
        history.push(json!({ "created_by": line }));
    }
    shell("printf declared > /usr/libexec/os/declared")?;
    let described = |blob: &(String, u64), kind: &str| json!({ "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": format!("sha256:{}", blob.0), "size": blob.1 });
    let digests: Vec<String> = layers.iter().map(|(digest, _)| format!("sha256:{digest}")).collect();
    let config = written(&json!({
        "architecture": "amd64", "os": "linux", "history": history, "rootfs": { "type": "layers", "diff_ids": digests },
    }))?;
    let manifest = written(&json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": described(&config, "config.v1+json"),
        "layers": layers.iter().map(|layer| described(layer, "layer.v1.tar")).collect::<Vec<_>>(),
    }))?;
    let index = json!({ "schemaVersion": 2, "manifests": [described(&manifest, "manifest.v1+json")] });
    fs::write("/run/layout/index.json", index.to_string())?;
    fs::write("/run/layout/oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)?;
    Ok(format!("sha256:{}", manifest.0))
}

fn written(value: &Value) -> Result<(String, u64)> {
    fs::write("/run/blob", value.to_string())?;
    blob(Path::new("/run/blob"))
}

/// Puts a file into the layout. Gives its digest and size.
fn blob(file: &Path) -> Result<(String, u64)> {
    let file = file.display();
    let printed = shell(&format!("sha256sum {file}"))?;
    let digest = printed.split_whitespace().next().context("no digest")?.to_owned();
    let place = format!("/run/layout/blobs/sha256/{digest}");
    shell(&format!("cp {file} {place}"))?;
    let size = fs::metadata(&place)?.len();
    Ok((digest, size))
}

/// Makes the root the deployment of an image: as on an ostree host, a directory of deployments leads to it, and a file beside it names the
/// image.
fn boot(digest: &str) -> Result<()> {
    let deployments = "/ostree/deploy/os/deploy";
    shell(&format!(
        "mkdir -p {deployments}/abc.0 && mount --bind / {deployments}/abc.0 && touch /run/ostree-booted"
    ))?;
    fs::write(
        format!("{deployments}/abc.0.origin"),
        format!("[origin]\ncontainer-image-reference=ostree-unverified-registry:os.example/os@{digest}\n"),
    )?;
    Ok(())
}

/// The gap that opens after `before` records. One gap covers the paths of all rules. It ends with the daemon's run when an index exists.
fn gap(agent: &mut RunningDaemon, before: usize) -> Result<Value> {
    agent.wait_for("the gap", before, |record| {
        record["kind"] == "gap" && record["detail"]["reason"] == "image-not-indexed"
    })
}

/// The gap stays open after everything is verified. What the config declares in the same directory is still watched.
fn unknown(agent: &mut RunningDaemon) -> Result<String> {
    let record = gap(agent, 0)?;
    status::wait_until("the gap after the first verification", LIMIT, |status| {
        let gaps = status["gaps"].as_array();
        status["verdict"] == "unknown"
            && gaps.is_some_and(|gaps| gaps.iter().all(|gap| gap["reason"] == "image-not-indexed"))
    })?;
    declared(agent)?;
    Ok(record.to_string())
}

fn indexed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let printed = run(HOLDFAST, &["image", "index", "/run/layout"])?;
    status::wait_for("compliant", LIMIT)?;
    let drifts = agent.records()?.iter().skip(before).filter(|record| record["kind"] == "drift").count();
    ensure!(drifts == 0, "{drifts} drifts");
    Ok(printed)
}

/// A record about the program names the second layer by number, digest and line, and the actor by its arguments.
fn is_blamed(record: &Value) -> Result<()> {
    // The archive of the last layer is left from the build.
    let digest = shell("sha256sum /run/layer")?;
    let digest = digest.get(..12).context("no digest")?;
    let source = format!("layer 2 of 2, sha256:{digest}…, `RUN install-agent --version 2`");
    ensure!(record["source"] == source, "{record}");
    ensure!(record["actor"]["argv"].is_array(), "{record}");
    Ok(())
}

/// A drift of the program after `before` records, which names the second layer.
fn drift(agent: &mut RunningDaemon, before: usize) -> Result<Value> {
    let record =
        agent.wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == PROGRAM)?;
    is_blamed(&record)?;
    ensure!(record["detail"]["policy"] == "degrade", "{record}");
    Ok(record)
}

/// Puts the program of the second layer back.
fn put_back(agent: &mut RunningDaemon) -> Result<()> {
    let before = agent.records()?.len();
    shell(&format!("rm -f {PROGRAM} /usr/libexec/agent && cp -a /run/build{PROGRAM} {PROGRAM}"))?;
    agent.wait_for("the recovery", before, |record| {
        record["kind"] == "recovered" && record["path"] == PROGRAM
    })?;
    status::wait_for("compliant", LIMIT)?;
    Ok(())
}

fn changed(agent: &mut RunningDaemon, command: &str) -> Result<String> {
    let before = agent.records()?.len();
    shell(command)?;
    let record = drift(agent, before)?;
    put_back(agent)?;
    Ok(record["differences"].to_string())
}

/// A tampered program is run: the record names who ran it, and that it differs.
fn executed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    // As the image has it: no record.
    shell(PROGRAM)?;
    shell(&format!("echo echo evil >> {PROGRAM}"))?;
    drift(agent, before)?;
    let ran = shell(PROGRAM)?;
    ensure!(ran.contains("evil"), "{ran}");
    let record = agent.wait_for("the execution", before, |record| {
        record["kind"] == "exec" && record["path"] == PROGRAM && record["verdict"] == "drifted"
    })?;
    is_blamed(&record)?;
    ensure!(record["actor"]["argv"][0] == "/bin/sh" && record["actor"]["uid"] == 0, "{record}");
    put_back(agent)?;
    let records = agent.records()?;
    let executions = records.iter().skip(before).filter(|record| record["kind"] == "exec").count();
    ensure!(executions == 1, "{executions} executions");
    Ok(record.to_string())
}

/// A process maps a tampered file to run code of it, as a loader does with a library: the record names the process. An intact file has none.
fn loaded(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    files::map_as_library(PROGRAM)?;
    shell(&format!("echo echo evil >> {PROGRAM}"))?;
    drift(agent, before)?;
    // For a minute after a change the kernel programs report each load. Later they report only those of files that differ.
    wait::pause(Duration::from_nanos(EXECUTIONS_AFTER_CHANGE_NS) + Duration::from_secs(1));
    files::map_as_library(PROGRAM)?;
    let record = agent.wait_for("the load", before, |record| record["kind"] == "exec")?;
    ensure!(record["operation"] == "load" && record["path"] == PROGRAM, "{record}");
    ensure!(record["verdict"] == "drifted" && record["actor"]["pid"] == std::process::id(), "{record}");
    is_blamed(&record)?;
    put_back(agent)?;
    Ok(record.to_string())
}

/// A program that the image does not have is run in a directory of the image: the record names who ran it. Where the policy ignores what
/// the image has, no execution and no load has a record.
fn executed_unknown(agent: &mut RunningDaemon) -> Result<String> {
    const LATE: &str = "/usr/libexec/os/busybox";
    let before = agent.records()?.len();
    shell(
        "cd /usr/libexec/os && cp /bin/busybox data/busybox && data/busybox true && cp data/busybox busybox",
    )?;
    files::map_as_library("/usr/libexec/os/data/busybox")?;
    shell(&format!("{LATE} true"))?;
    let record = agent.wait_for("the execution", before, |record| record["kind"] == "exec")?;
    ensure!(record["path"] == LATE && record["detail"]["reason"] == "unknown-executable", "{record}");
    ensure!(record["actor"]["argv"][0] == "/bin/sh", "{record}");
    shell(&format!("rm {LATE} /usr/libexec/os/data/busybox"))?;
    Ok(record.to_string())
}

/// The config's content is expected and not the image's.
fn declared(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell("cp -a /run/build/usr/libexec/os/declared /usr/libexec/os/declared")?;
    let record = agent.wait_for("drift", before, |record| {
        record["kind"] == "drift" && record["path"] == "/usr/libexec/os/declared"
    })?;
    ensure!(record["source"] == "99-worker-image", "{record}");
    let before = agent.records()?.len();
    shell("printf declared > /usr/libexec/os/declared")?;
    agent.wait_for("the recovery", before, |record| record["kind"] == "recovered")?;
    Ok(record["differences"].to_string())
}

fn refused(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    for command in ["echo x > /usr/libexec/os/sealed", "rm /usr/libexec/os/sealed"] {
        ensure!(shell(command).is_err(), "`{command}` was not refused");
    }
    let record = agent.wait_for("the refusal", before, |record| record["kind"] == "denied")?;
    Ok(record["path"].to_string())
}

fn explained() -> Result<String> {
    let arguments = "--config /run/image.yaml --policy /run/image-policy.yaml";
    let printed = shell(&format!("{HOLDFAST} explain {PROGRAM} {arguments}"))?;
    for part in ["as declared", "layer 2 of 2", "RUN install-agent --version 2", "degrade"] {
        ensure!(printed.contains(part), "no {part}: {printed}");
    }
    Ok(printed)
}

/// A file that nothing watched was changed. A rule has such files scanned: from then on the file is watched, and its drift ends when it is
/// as in the image again.
fn scanned(agent: &mut RunningDaemon) -> Result<String> {
    const SCANNED: &str = "/usr/libexec/os/data/scanned";
    let before = agent.records()?.len();
    shell(&format!("echo evil > {SCANNED}"))?;
    fs::write("/run/image-policy.yaml", POLICY.replace("action: ignore", "scan: true, action: observe"))?;
    agent.signal(Signal::SIGHUP)?;
    let record =
        agent.wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == SCANNED)?;
    let source = record["source"].as_str().unwrap_or_default();
    ensure!(source.starts_with("layer 1 of 2, sha256:") && source.ends_with("`ADD base /`"), "{record}");
    ensure!(record["detail"]["policy"] == "observe", "{record}");
    let layer_of = |drifted: f64| {
        wait::until("the metric of the layer", LIMIT, || {
            let is_layer = |line: &str| line.contains(r#"source="image",name="layer 1 of 2, sha256:"#);
            let found = page::sum("holdfast_source_drifted_things", is_layer)?;
            Ok(((found - drifted).abs() < 0.5).then_some(()))
        })
    };
    layer_of(1.0)?;
    wait::until("the metrics of the scan", LIMIT, || {
        Ok((page::sum("holdfast_image_scan_differing", |_| true)? >= 1.0).then_some(()))
    })?;
    let before = agent.records()?.len();
    shell(&format!("echo data > {SCANNED}"))?;
    let recovered = agent.wait_for("the recovery", before, |record| {
        record["kind"] == "recovered" && record["path"] == SCANNED
    })?;
    layer_of(0.0)?;
    Ok(recovered.to_string())
}

/// Removing the index closes no drift, so the actor of a drift cannot hide it that way.
fn unindexed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(&format!("echo evil >> {PROGRAM}"))?;
    drift(agent, before)?;
    let before = agent.records()?.len();
    shell("rm -r /var/lib/holdfast/images")?;
    gap(agent, before)?;
    let is_open = |status: &Value| {
        status["drifted"].as_array().is_some_and(|all| all.iter().any(|thing| thing["path"] == PROGRAM))
    };
    status::wait_until("the drift without an index", LIMIT, |status| {
        status["gaps"][0]["reason"] == "image-not-indexed" && is_open(status)
    })?;
    run(HOLDFAST, &["image", "index", "/run/layout"])?;
    status::wait_until("the drift with an index again", LIMIT, |status| {
        status["gaps"].as_array().is_some_and(Vec::is_empty) && is_open(status)
    })?;
    let recovered = agent.records()?.into_iter().skip(before).find(|record| record["kind"] == "recovered");
    ensure!(recovered.is_none(), "{recovered:?}");
    put_back(agent)?;
    Ok(String::new())
}
