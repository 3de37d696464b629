//! The containers of a pod, without a kubelet.
//!
//! In: what runs in a container. Out: a command whose process becomes it. The sensor has a mount, a control-group and a network
//! namespace of its own, the host's process ids, and the capabilities that the `DaemonSet` lists. Its file is in the container alone,
//! as in an image. The reporter has the user, the control group and the capabilities of its container, and the network of the guest.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rustix::thread::{
    CapabilitySet, capability_is_in_bounding_set, remove_capability_from_bounding_set, set_no_new_privs,
};
use serde_json::{Value, json};

use super::agent::HOLDFAST;

/// The helper that becomes the sensor's container: `act container FILE`.
pub const CONTAINER: &str = "container";
/// The helper that becomes the reporter's container: `act reporter-container FILE`.
pub const REPORTER: &str = "reporter-container";
/// The reporter's program in guests that have it.
pub const HOLDFAST_CLUSTER: &str = "/usr/local/bin/holdfast-cluster";

/// The manifest with the list of capabilities.
const DAEMONSET: &str = include_str!("../../../deploy/kustomize/base/daemonset.yaml");
/// The sensor's program in its container. A host of ostree has directories of links, such as `/mnt`, but `/run` is one on each host.
const PROGRAM: &str = "/run/program";
const SENSOR_SPEC: &str = "/run/pod-spec.json";
const REPORTER_SPEC: &str = "/run/pod-reporter-spec.json";
const GROUPS: &str = "/sys/fs/cgroup/kubepods/besteffort";

/// The container with the sensor.
#[derive(Debug, Clone, Copy)]
pub struct Sensor<'a> {
    /// The pod's uid.
    pub pod: &'a str,
    /// Arguments of `holdfast agent`.
    pub arguments: &'a [&'a str],
    /// Whether it has process ids of its own.
    pub own_pids: bool,
    /// The capability of the `DaemonSet` that it lacks.
    pub without: Option<&'a str>,
}

impl Sensor<'_> {
    /// The command of the container.
    pub fn command(&self) -> Result<Command> {
        let group = group(self.pod, "sensor");
        let spec = json!({
            "group": group, "arguments": self.arguments, "pids": self.own_pids, "without": self.without,
        });
        helper(CONTAINER, SENSOR_SPEC, &spec)
    }
}

/// The command of the container that runs `holdfast-cluster node` as a user, with more arguments.
pub fn reporter(pod: &str, user: u32, arguments: &[&str]) -> Result<Command> {
    let spec = json!({ "group": group(pod, "reporter"), "user": user, "arguments": arguments });
    helper(REPORTER, REPORTER_SPEC, &spec)
}

fn helper(name: &str, file: &str, spec: &Value) -> Result<Command> {
    fs::write(file, spec.to_string())?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["act", name, file]);
    Ok(command)
}

/// The control group of a pod's container.
pub(crate) fn group(pod: &str, name: &str) -> String {
    let id: String = name
        .bytes()
        .cycle()
        .map(|byte| char::from(b"0123456789abcdef"[usize::from(byte & 15)]))
        .take(64)
        .collect();
    format!("{GROUPS}/pod{pod}/{id}")
}

/// Moves this process into a control group.
pub(crate) fn enter_group(group: &str) -> Result<()> {
    fs::create_dir_all(group)?;
    fs::write(format!("{group}/cgroup.procs"), "0").with_context(|| format!("cannot enter {group}"))
}

/// Becomes a user without groups. The kernel takes all capabilities.
pub(crate) fn become_user(user: u32) -> Result<()> {
    setgroups(&[])?;
    setgid(Gid::from_raw(user))?;
    Ok(setuid(Uid::from_raw(user))?)
}

/// Becomes the sensor's container and runs `holdfast agent` there.
pub(crate) fn contain(spec: &Path) -> Result<()> {
    let spec = read(spec)?;
    enter_group(spec["group"].as_str().context("no group")?)?;
    let namespaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP | CloneFlags::CLONE_NEWNET;
    unshare(namespaces).context("cannot make namespaces")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("private mounts")?;
    let own = |place: &str| {
        mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), none)
            .with_context(|| format!("cannot mount at {place}"))
    };
    own("/run")?;
    fs::copy(HOLDFAST, PROGRAM)?;
    own("/etc")?;
    own("/var")?;
    let mut command = Command::new(PROGRAM);
    command.arg("agent").args(arguments(&spec));
    if spec["pids"] == true {
        unshare(CloneFlags::CLONE_NEWPID).context("process ids of its own")?;
        let ended = command.status()?;
        ensure!(ended.success(), "holdfast ended ({ended})");
        return Ok(());
    }
    limit_capabilities(spec["without"].as_str())?;
    Err(command.exec().into())
}

/// Becomes the reporter's container and runs `holdfast-cluster node` there.
pub(crate) fn contain_reporter(spec: &Path) -> Result<()> {
    let spec = read(spec)?;
    enter_group(spec["group"].as_str().context("no group")?)?;
    keep_capabilities(&[])?;
    set_no_new_privs(true).context("cannot forbid new privileges")?;
    become_user(u32::try_from(spec["user"].as_u64().context("no user")?)?)?;
    let mut command = Command::new(HOLDFAST_CLUSTER);
    Err(command.arg("node").args(arguments(&spec)).exec().into())
}

fn read(spec: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(spec)?)?)
}

fn arguments(spec: &Value) -> impl Iterator<Item = &str> {
    spec["arguments"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The capabilities that the manifest lists.
pub(crate) fn listed() -> impl Iterator<Item = &'static str> {
    let list = DAEMONSET.lines().map(str::trim).skip_while(|line| *line != "add:").skip(1);
    list.map_while(|line| line.strip_prefix("- ")).filter_map(|line| line.split(' ').next())
}

/// Leaves this process, and those that it becomes, the capabilities of the manifest but one.
fn limit_capabilities(without: Option<&str>) -> Result<()> {
    let kept: Vec<&str> = listed().filter(|name| Some(*name) != without).collect();
    ensure!(kept.len() > 5, "the manifest lists {kept:?}");
    keep_capabilities(&kept)
}

/// Leaves this process, and those that it becomes, no other capabilities than these.
fn keep_capabilities(kept: &[&str]) -> Result<()> {
    let bounding = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    // The kernel returns an error for the first number without a capability.
    for capability in bounding.take_while(|capability| capability_is_in_bounding_set(*capability).is_ok()) {
        if !capability.iter_names().any(|(name, _)| kept.contains(&name)) {
            remove_capability_from_bounding_set(capability).context("cannot limit the capabilities")?;
        }
    }
    Ok(())
}
