//! `AppArmor` around the sensor: what its profile lets a program do, and what a pod says that runs under the runtime's own profile.
//!
//! In: a node with the loaded profile `deploy/apparmor/holdfast-sensor`. Out: what a program of the sensor's path can do under it
//! and without it, and the message of the pod's sensor under the runtime's profile.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::kill;
use nix::unistd::{Pid, Uid, setuid};
use rustix::net::{AddressFamily, SocketType, socket};
use serde_json::{Value, json};

use crate::guest::{kube, run};

/// The helper that becomes the sensor's program under its profile, for `act`.
pub(crate) const CONFINED: &str = "apparmor-confined";
/// The helper that tries everything, for `act`.
pub(crate) const ATTEMPTS: &str = "apparmor-attempts";

/// The path that the profile lets be executed: that of the sensor's program in its container.
const PROGRAM: &str = "/holdfast";
/// A directory that is not the sensor's.
const FOREIGN: &str = "/etc/attempts";
/// The directories of the host that the sensor writes.
const OWN: [&str; 3] = ["/run/holdfast", "/var/lib/holdfast", "/var/log/holdfast"];
/// What the kustomization of the tests gets, so that the sensor runs under the runtime's profile.
const DEFAULT: &str = r"
- target: {kind: DaemonSet}
  patch: |
    - op: replace
      path: /spec/template/spec/containers/0/securityContext/appArmorProfile
      value: {type: RuntimeDefault}
";

/// The sensor's profile allows what the docs say, and refuses the rest; without it all of it is possible.
pub(super) fn profile_holds() -> Result<String> {
    fs::copy("/proc/self/exe", PROGRAM).context("the program")?;
    let free = attempts(&[PROGRAM, "act", ATTEMPTS, FOREIGN])?;
    let confined = attempts(&["/proc/self/exe", "act", CONFINED, FOREIGN])?;
    fs::remove_file(PROGRAM)?;
    let names = free["allowed"].as_object().into_iter().chain(free["refused"].as_object()).flatten();
    for (name, result) in names {
        ensure!(*result == Value::Null, "without a profile {name} fails: {result}");
    }
    for (name, result) in confined["allowed"].as_object().context("no allowed attempts")? {
        ensure!(*result == Value::Null, "the profile refuses {name}: {result}");
    }
    let refused = confined["refused"].as_object().context("no refused attempts")?;
    for (name, result) in refused {
        ensure!(*result == "refused", "the profile does not refuse {name}: {result}");
    }
    Ok(refused.keys().cloned().collect::<Vec<_>>().join(", "))
}

/// Runs a command that tries everything, among new files.
fn attempts(command: &[&str]) -> Result<Value> {
    let _ = fs::remove_dir_all(FOREIGN);
    fs::create_dir_all(format!("{FOREIGN}/mount"))?;
    for name in ["written", "changed", "deleted"] {
        fs::write(format!("{FOREIGN}/{name}"), name)?;
    }
    fs::write(format!("{FOREIGN}/secret"), "secret")?;
    fs::set_permissions(format!("{FOREIGN}/secret"), PermissionsExt::from_mode(0o600))?;
    let printed = run(command[0], &command[1..])?;
    fs::remove_dir_all(FOREIGN)?;
    serde_json::from_str(&printed).with_context(|| format!("the attempts printed {printed}"))
}

/// Becomes the sensor's program under its profile. Its container gets the profile in the same way.
pub(crate) fn confine(foreign: &Path) -> Result<()> {
    fs::write("/proc/self/attr/exec", "exec holdfast-sensor").context("cannot ask for the profile")?;
    Err(Command::new(PROGRAM).args(["act", ATTEMPTS]).arg(foreign).exec().into())
}

/// Tries everything, and prints for each attempt what the kernel said: null if it was possible, `refused`, or another error.
pub(crate) fn attempt(foreign: &Path) {
    let said = |result: io::Result<()>| match result {
        Ok(()) => Value::Null,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => json!("refused"),
        Err(error) => json!(error.to_string()),
    };
    let own = |name: &str| {
        let path = Path::new(name).join("attempt");
        fs::write(&path, "attempt").and_then(|()| fs::remove_file(&path))
    };
    let mounted = foreign.join("mount");
    let in_memory = || mount(Some("tmpfs"), &mounted, Some("tmpfs"), MsFlags::empty(), None::<&str>);
    let opened = |family| Ok(socket(family, SocketType::DGRAM, None).map(drop)?);
    let allowed = json!({
        "read another's secret": said(fs::read(foreign.join("secret")).map(drop)),
        "write its run directory": said(own(OWN[0])),
        "write its state directory": said(own(OWN[1])),
        "write its log directory": said(own(OWN[2])),
        "open a unix socket": said(opened(AddressFamily::UNIX)),
        "connect to the system bus": said(UnixStream::connect("/run/dbus/system_bus_socket").map(drop)),
    });
    let refused = json!({
        "write a file": said(fs::write(foreign.join("written"), "attempt")),
        "create a file": said(fs::write(foreign.join("created"), "attempt")),
        "create a link": said(symlink("/etc/passwd", foreign.join("link"))),
        "create a directory": said(fs::create_dir(foreign.join("directory"))),
        "change a mode": said(fs::set_permissions(foreign.join("changed"), PermissionsExt::from_mode(0o666))),
        "delete a file": said(fs::remove_file(foreign.join("deleted"))),
        "run another program": said(Command::new("/bin/true").status().map(drop)),
        "mount a file system": said(in_memory().and_then(|()| umount(&mounted)).map_err(io::Error::from)),
        "signal process 1": said(kill(Pid::from_raw(1), None).map_err(io::Error::from)),
        "open an IPv4 socket": said(opened(AddressFamily::INET)),
        "open an IPv6 socket": said(opened(AddressFamily::INET6)),
        "open a netlink socket": said(opened(AddressFamily::NETLINK)),
        // The last one: the process is another user's then.
        "become another user": said(setuid(Uid::from_raw(1000)).map_err(io::Error::from)),
    });
    println!("{}", json!({ "allowed": allowed, "refused": refused }));
}

/// Under the profile of the container runtime, the sensor ends with an error that names `AppArmor`. With its own it runs again.
pub(super) fn default_profile(kustomization: &str) -> Result<String> {
    kube::apply(&format!("{kustomization}{DEFAULT}"))?;
    let message = kube::error_of_sensor(|message| message.contains("namespace"))?;
    kube::apply(kustomization)?;
    kube::ready()?;
    ensure!(message.contains("AppArmor"), "the message does not name AppArmor: {message}");
    Ok(message)
}
