//! SELinux labels, on a host whose files have the labels of its policy.
//!
//! In: a guest that runs SELinux, first permissive. Out: a check for each way in which a label is found, compared,
//! restored or set. At the end the daemon works while the policy is enforced.

use std::fs::{self, OpenOptions};
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::node::{by_alice, drift, recovery};
use crate::guest::service::{CONFIG, Node, as_alice};
use crate::guest::{Context, run, shell};

const CHRONY: &str = "/etc/chrony.conf";
const SSHD: &str = "/etc/ssh/sshd_config.d/40-baseline.conf";
const SYSCTL: &str = "/etc/sysctl.d/90-baseline.conf";
const KEYS: &str = "/home/core/.ssh/authorized_keys.d/ignition";
const DIRECTORY: &str = "/etc/labelled";
const LINK: &str = "/etc/labelled/link";
const POLICY: &str = "/etc/holdfast/policies/selinux.yaml";
const DISRUPTION: &str = "/root/policy.yaml";
const NEW: &str = "/root/new.yaml";
/// The file that an administrator's `semanage fcontext` writes.
const LOCAL: &str = "/etc/selinux/default/contexts/files/file_contexts.local";

/// A directory and a link beside the example's declarations.
const MORE: &str = "apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker-labelled
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      directories: [{path: /etc/labelled, mode: 493}]
      links: [{path: /etc/labelled/link, target: /etc/hosts}]
";

/// No change of these needs a reboot.
const ALL: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: all}\nspec:\n  \
    files: [{path: /etc, actions: [{type: None}]}, {path: /srv, actions: [{type: None}]}]\n  \
    units: [{name: '*.service', actions: [{type: DaemonReload}]}]\n  \
    sshkey: {actions: [{type: None}]}\n";

/// Objects that an apply creates, none of which gets its label from its directory. They are a name with its own type, a
/// directory with its content, a link, a unit with a drop-in, and its link.
const APPLIED: [&str; 7] = [
    "/etc/resolv.conf.spare",
    "/etc/cron.d/labelled",
    "/srv/www",
    "/srv/rsync",
    "/srv/rsync/deep/file",
    "/etc/systemd/system/chronyd-labelled.service",
    "/etc/systemd/system/chronyd-labelled.service.d/10-nice.conf",
];

/// The scenario.
pub(super) fn labels(context: &mut Context) -> Result<()> {
    // The programs were installed after everything was labelled.
    shell("restorecon -RF /usr/local /opt")?;
    shell(&format!("mkdir -p {DIRECTORY} && chmod 755 {DIRECTORY} && ln -s /etc/hosts {LINK}"))?;
    let node = Node::start(&[("99-worker-labelled", MORE)])?;
    context.check("first_look", first_look(&node));
    context.check("chcon", chcon(&node));
    context.check("user_range_and_customizable_types", as_good(&node));
    context.check("repair", repair(&node));
    context.check("policy_changes", policy_changes(&node));
    context.check("ignored", ignored(&node));
    context.check("revert", revert(&node));
    context.check("enforcing", enforcing(&node));
    context.check("apply", apply(&node));
    context.check("ordered", ordered(&node));
    context.check("denials", denials());
    Ok(())
}

/// The type of an object; for a link its own.
fn type_of(path: &str) -> Result<String> {
    let label = run("stat", &["-c", "%C", path])?;
    Ok(label.trim().split(':').nth(2).with_context(|| format!("{path} has the label {label}"))?.to_owned())
}

/// Expects that the policy's own tool agrees.
fn labelled(paths: &[&str]) -> Result<()> {
    for path in paths {
        run("matchpathcon", &["-V", path])?;
    }
    Ok(())
}

/// The first boot wrote files with the labels of their writers. The commands report this, and the documented fix works.
fn first_look(node: &Node) -> Result<String> {
    let modules = fs::read_to_string("/sys/kernel/security/lsm")?;
    ensure!(modules.split(',').any(|name| name == "selinux"), "{modules}");
    let status = node.status()?;
    ensure!(status["backend"] == "lsm", "{status}");
    let printed = node.holdfast(1, &["check"])?;
    for path in [CHRONY, SSHD, SYSCTL] {
        let wanted = format!("label mismatch for file: \"{path}\"; expected: system_u:object_r:");
        ensure!(printed.contains(&wanted), "{path}: {printed}");
    }
    shell("restorecon -R /etc /home")?;
    node.wait_for_verdict("compliant")?;
    node.holdfast(0, &["check"])?;
    let printed = node.holdfast(0, &["explain", CHRONY])?;
    ensure!(printed.contains("system_u:object_r:chronyd_conf_t:s0"), "{printed}");
    Ok(modules)
}

fn chcon(node: &Node) -> Result<String> {
    let record = drift(node, CHRONY, "label", || as_alice(&format!("sudo chcon -t tmp_t {CHRONY}")))?;
    let who = by_alice(&record)?;
    let difference = &record["differences"][0];
    ensure!(
        difference["expected"] == "system_u:object_r:chronyd_conf_t:s0"
            && difference["found"].as_str().is_some_and(|label| label.contains(":tmp_t:")),
        "{record}"
    );
    recovery(node, CHRONY, || as_alice(&format!("sudo restorecon {CHRONY}")))?;
    let text = difference["text"].to_string();
    for (path, flag) in [(DIRECTORY, "-t"), (LINK, "-ht"), (KEYS, "-t")] {
        let record = drift(node, path, "label", || as_alice(&format!("sudo chcon {flag} tmp_t {path}")))?;
        by_alice(&record)?;
        recovery(node, path, || as_alice(&format!("sudo restorecon {path}")))?;
    }
    Ok(format!("{text}: {who}"))
}

/// `restorecon` leaves another user or range, and a customizable type. So these are no drift.
fn as_good(node: &Node) -> Result<String> {
    let first = node.records()?.len();
    for change in ["-u unconfined_u", "-l s0:c3", "-t public_content_t"] {
        let skip = node.records()?.len();
        as_alice(&format!("sudo chcon {change} {CHRONY}"))?;
        node.wait_for(&format!("the touch of chcon {change}"), skip, |record| {
            record["kind"] == "touched" && record["path"] == CHRONY
        })?;
    }
    let before = type_of(CHRONY)?;
    shell(&format!("restorecon {CHRONY}"))?;
    ensure!(before == "public_content_t" && type_of(CHRONY)? == before, "restorecon sees it otherwise");
    shell(&format!("restorecon -F {CHRONY}"))?;
    let drifted = node.records()?.into_iter().skip(first).find(|record| record["kind"] == "drift");
    ensure!(drifted.is_none(), "{drifted:?}");
    Ok("touched, no drift".to_owned())
}

/// The type is restored. What Holdfast does not compare stays.
fn repair(node: &Node) -> Result<String> {
    let things = [
        (CHRONY, "-t", "chronyd_conf_t"),
        (DIRECTORY, "-t", "etc_t"),
        (LINK, "-ht", "etc_t"),
        (KEYS, "-t", "ssh_home_t"),
    ];
    for (path, flag, _) in things {
        drift(node, path, "label", || {
            shell(&format!("chcon -h -l s0:c3 {path}; chcon {flag} tmp_t {path}"))
        })?;
    }
    let printed = node.holdfast(0, &["repair", "--all", "--yes"])?;
    node.wait_for_verdict("compliant")?;
    for (path, _, wanted) in things {
        let label = run("stat", &["-c", "%C", path])?;
        ensure!(label.trim().ends_with(&format!(":{wanted}:s0:c3")), "{path} has the label {label}");
    }
    shell(&format!("restorecon -RF {CHRONY} {DIRECTORY} /home/core"))?;
    Ok(printed.replace('\n', "; "))
}

/// A rule of the administrator: `check` and a reload use it at once, the daemon by itself at the next full
/// verification.
fn policy_changes(node: &Node) -> Result<String> {
    let mut local = OpenOptions::new().create(true).append(true).open(LOCAL)?;
    writeln!(local, "/etc/sysctl\\.d/90-baseline\\.conf -- system_u:object_r:etc_runtime_t:s0")?;
    let printed = node.holdfast(1, &["check"])?;
    ensure!(printed.contains("etc_runtime_t"), "{printed}");
    let reload = || run("systemctl", &["reload", "holdfast.service"]);
    let record = drift(node, SYSCTL, "label", reload)?;
    let text = record["differences"][0]["text"].to_string();
    recovery(node, SYSCTL, || shell(&format!("restorecon {SYSCTL}")))?;
    // Now without a reload.
    let unit = fs::read_to_string("/etc/systemd/system/holdfast.service")?;
    let often = unit.replace("agent --standalone", "agent --standalone --verify-every 10");
    fs::write("/etc/systemd/system/holdfast.service", often)?;
    shell("systemctl daemon-reload; systemctl restart holdfast.service")?;
    node.wait_for_verdict("compliant")?;
    drift(node, SYSCTL, "label", || Ok(fs::write(LOCAL, "").map(|()| String::new())?))?;
    recovery(node, SYSCTL, || shell(&format!("restorecon {SYSCTL}")))?;
    fs::write("/etc/systemd/system/holdfast.service", unit)?;
    shell("systemctl daemon-reload; systemctl restart holdfast.service")?;
    node.wait_for_verdict("compliant")?;
    Ok(text)
}

fn policy(rule: &str) -> String {
    format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: selinux}}\nspec:\n  rules:\n  - {{{rule}}}\n"
    )
}

/// If the drift policy says so, Holdfast ignores labels.
fn ignored(node: &Node) -> Result<String> {
    let record = drift(node, SYSCTL, "label", || shell(&format!("chcon -t tmp_t {SYSCTL}")))?;
    fs::write(POLICY, policy(&format!("path: {SYSCTL}, action: degrade, labels: ignore")))?;
    recovery(node, SYSCTL, || run("systemctl", &["reload", "holdfast.service"]))?;
    node.holdfast(0, &["check"])?;
    fs::remove_file(POLICY)?;
    drift(node, SYSCTL, "label", || run("systemctl", &["reload", "holdfast.service"]))?;
    recovery(node, SYSCTL, || shell(&format!("restorecon {SYSCTL}")))?;
    Ok(record["differences"][0]["text"].to_string())
}

/// The daemon restores the label, with the capabilities that it keeps.
fn revert(node: &Node) -> Result<String> {
    fs::write(POLICY, policy(&format!("path: {SSHD}, action: revert")))?;
    let before = node.records()?.len();
    run("systemctl", &["reload", "holdfast.service"])?;
    node.wait_for("the daemon to start again", before, |record| record["kind"] == "start")?;
    node.wait_for_verdict("compliant")?;
    put_back(node)
}

fn put_back(node: &Node) -> Result<String> {
    let before = node.records()?.len();
    as_alice(&format!("sudo chcon -t tmp_t {SSHD}"))?;
    let record = node.wait_for("the revert", before, |record| record["kind"] == "reverted")?;
    ensure!(record["detail"]["error"].is_null(), "{record}");
    node.wait_for_verdict("compliant")?;
    labelled(&[SSHD])?;
    Ok(record["detail"]["actions"].to_string())
}

/// From here on the kernel enforces the policy. The daemon starts, names actors, and writes.
fn enforcing(node: &Node) -> Result<String> {
    run("setenforce", &["1"])?;
    let before = node.records()?.len();
    run("systemctl", &["restart", "holdfast.service"])?;
    node.wait_for("the daemon to start", before, |record| record["kind"] == "start")?;
    let status = node.wait_for_verdict("compliant")?;
    ensure!(status["backend"] == "lsm", "{status}");
    let record = drift(node, CHRONY, "content", || as_alice(&format!("echo pool x | sudo tee -a {CHRONY}")))?;
    let who = by_alice(&record)?;
    recovery(node, CHRONY, || as_alice(&format!("sudo sed -i /pool/d {CHRONY}; sudo restorecon {CHRONY}")))?;
    node.wait_for_verdict("compliant")?;
    put_back(node)?;
    let pid = node.property("MainPID")?;
    let domain = fs::read_to_string(format!("/proc/{pid}/attr/current"))?;
    Ok(format!("{}: {who}", domain.trim_end_matches('\0')))
}

/// New objects have the policy's label, and are no drift.
fn apply(node: &Node) -> Result<String> {
    let old = "/etc/holdfast/machine-configs";
    let unit = "        - name: chronyd-labelled.service\n          enabled: true\n          contents: |\n            \
                [Service]\n            ExecStart=/bin/true\n            [Install]\n            WantedBy=multi-user.target\n\
                \x20         dropins:\n            - name: 10-nice.conf\n              contents: |\n                [Service]\n\
                \x20               Nice=1\n";
    let file = |path: &str| format!("        - {{path: {path}, contents: {{source: 'data:,1'}}}}\n");
    let files: String =
        ["/etc/resolv.conf.spare", "/etc/cron.d/labelled", "/srv/rsync/deep/file"].map(file).concat();
    let others = "      directories: [{path: /etc/labelled, mode: 493}, {path: /srv/rsync, mode: 493}]\n      links: [{path: \
                  /etc/labelled/link, target: /etc/hosts}, {path: /srv/www, target: /srv/rsync}]\n";
    let config = CONFIG.replace("    systemd:\n", &format!("{files}{others}    systemd:\n"));
    fs::write(NEW, format!("{config}{unit}"))?;
    fs::write(DISRUPTION, ALL)?;
    let before = node.records()?.len();
    node.holdfast(0, &["apply", NEW, "--current", old, "--policy", DISRUPTION])?;
    node.wait_for("the daemon to begin again", before, |record| record["kind"] == "start")?;
    node.wait_for_verdict("compliant")?;
    labelled(&APPLIED)?;
    ensure!(type_of("/srv/www")? == "httpd_sys_content_t", "the link has its directory's label");
    let records = node.records()?.split_off(before);
    let is_label = |record: &&Value| record["kind"] == "drift";
    let drifted = records.iter().find(is_label);
    ensure!(drifted.is_none(), "our own writes are no drift: {drifted:?}");
    node.holdfast(0, &["check"])?;
    Ok(format!("{} paths as matchpathcon says", APPLIED.len()))
}

/// In the mode `manage` a unit of systemd writes back, with a copy of the program. The policy lets systemd start only a file with the label of a
/// program. The sensor of that mode gives up `CAP_DAC_OVERRIDE` and reads with `CAP_DAC_READ_SEARCH`.
fn ordered(node: &Node) -> Result<String> {
    fs::create_dir_all("/etc/systemd/system/holdfast.service.d")?;
    fs::write(
        "/etc/systemd/system/holdfast.service.d/manage.conf",
        "[Service]\nExecStart=\nExecStart=/usr/local/bin/holdfast agent --mode manage --reporter-uid 4711\n",
    )?;
    let before = node.records()?.len();
    shell("systemctl daemon-reload && systemctl restart holdfast.service")?;
    node.wait_for("the daemon to start", before, |record| record["kind"] == "start")?;
    node.wait_for_verdict("compliant")?;
    let written = put_back(node)?;
    labelled(&["/usr/local/bin/holdfast"])?;
    let (copy, program) = (type_of("/var/lib/holdfast/order/holdfast")?, type_of("/usr/local/bin/holdfast")?);
    ensure!(copy == program, "the copy has the type {copy}, and the program {program}");
    let ran = run("journalctl", &["--unit", "holdfast-revert.service", "--output", "cat"])?;
    ensure!(ran.contains("holdfast-revert.service"), "the unit did not run: {ran}");
    Ok(written)
}

/// The operations of the daemon that the policy refused, or would have refused before the kernel enforced it.
fn denials() -> Result<String> {
    let printed = run("dmesg", &[])?;
    let ours: Vec<&str> =
        printed.lines().filter(|line| line.contains("avc:") && line.contains("comm=\"holdfast\"")).collect();
    ensure!(ours.is_empty(), "{ours:#?}");
    Ok("none".to_owned())
}
