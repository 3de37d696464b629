//! The node of the scenario: its config, its units, and its second root directory.
//!
//! In: a guest with systemd. Out: the declared state with the daemon as a service, and a root directory for a soft reboot.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};

use crate::guest::files::load_module;
use crate::guest::run;

/// The units, as installed.
const UNITS: &[(&str, &str)] = &[
    ("holdfast.service", include_str!("../../../../deploy/systemd/holdfast.service")),
    ("holdfast-enrol.service", include_str!("../../../../deploy/systemd/holdfast-enrol.service")),
    ("early-writer.service", EARLY_WRITER),
    ("late-writer.service", LATE_WRITER),
];

/// A file that is edited in the new userspace.
pub(super) const EDITED: &str = "/etc/soft/edited";
/// A file whose content in the new root directory is another one.
pub(super) const SWAPPED: &str = "/etc/soft/swapped";
/// A file that a unit edits in the new userspace before the daemon starts.
pub(super) const EARLY: &str = "/etc/soft/early";
/// A file without an edit.
pub(super) const SPARED: &str = "/etc/soft/spared";
/// A file that a deny rule protects.
pub(super) const DENIED: &str = "/etc/soft/denied";
/// A file in `/var`, whose inode stays. A unit edits it after the daemon's stop.
pub(super) const KEPT: &str = "/var/lib/soft/kept";
const FILES: [&str; 6] = [EDITED, SWAPPED, EARLY, SPARED, DENIED, KEPT];

/// The daemon's configs.
pub(super) const CONFIGS: &str = "/etc/holdfast/machine-configs";
/// The daemon's log.
pub(super) const LOG: &str = "/var/log/holdfast/forensic.jsonl";
/// Where the new userspace has the root directory of the first one.
pub(super) const OLD_ROOT: &str = "/old-root";
/// Where systemd looks for another root directory.
const NEXT_ROOT: &str = "/run/nextroot";
/// Where the layers of that directory are.
const LAYERS: &str = "/run/soft-layers";

/// Starts after the enrolment and before the daemon. In the first userspace the file is there, so it edits nothing.
const EARLY_WRITER: &str = "[Unit]\nBefore=holdfast.service\nConditionPathExists=/old-root/etc\n\n[Service]\nType=oneshot\n\
    ExecStart=/bin/sh -c 'test -e /run/early-writer || echo x >> /etc/soft/early; touch /run/early-writer'\n\n\
    [Install]\nWantedBy=multi-user.target\n";

/// Stops after the daemon.
const LATE_WRITER: &str = "[Unit]\nBefore=holdfast.service\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n\
    ExecStop=/bin/sh -c 'test -e /run/late-writer || echo x >> /var/lib/soft/kept; touch /run/late-writer'\n\n\
    [Install]\nWantedBy=multi-user.target\n";

const POLICY: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: soft}\nspec:\n  rules:\n  \
    - {path: /, action: degrade}\n  - {path: /etc/soft/denied, action: deny}\n";

/// The node's config, with this content of one file.
pub(super) fn manifest(edited: &str) -> String {
    let file = |path: &&str| {
        let content = if *path == EDITED { edited } else { "one" };
        format!("      - {{path: {path}, mode: 420, contents: {{source: 'data:,{content}%0A'}}}}\n")
    };
    let files = FILES.iter().map(file).collect::<Vec<_>>().concat();
    format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
         metadata: {{name: 99-soft, labels: {{machineconfiguration.openshift.io/role: worker}}}}\n\
         spec:\n  config:\n    ignition: {{version: 3.4.0}}\n    storage:\n      files:\n{files}    systemd:\n      \
         units:\n      - {{name: late-writer.service, enabled: true}}\n"
    )
}

/// Writes the declared state, and installs the daemon.
pub(super) fn configure() -> Result<()> {
    for path in FILES {
        let folder = Path::new(path).parent().context("a file is in a folder")?;
        fs::create_dir_all(folder)?;
        fs::write(path, "one\n")?;
    }
    for folder in [CONFIGS, "/etc/holdfast/policies"] {
        fs::create_dir_all(folder)?;
    }
    fs::write(format!("{CONFIGS}/99-soft.yaml"), manifest("one"))?;
    fs::write("/etc/holdfast/policies/soft.yaml", POLICY)?;
    for (name, text) in UNITS {
        fs::write(format!("/etc/systemd/system/{name}"), text)?;
    }
    run("systemctl", &["daemon-reload"])?;
    let names: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
    run("systemctl", &[&["enable", "--quiet"], &names[..]].concat())?;
    run("systemctl", &["start", "late-writer.service"]).map(drop)
}

/// Writes the managed files of the next root directory: an image has files of its own.
pub(super) fn other_files(etc: &str) -> Result<()> {
    fs::remove_dir_all(format!("{etc}/soft"))?;
    fs::create_dir(format!("{etc}/soft"))?;
    for (path, name) in FILES.iter().filter_map(|path| Some((path, path.strip_prefix("/etc/")?))) {
        let content = if *path == SWAPPED { "another\n" } else { "one\n" };
        fs::write(format!("{etc}/{name}"), content)?;
    }
    Ok(())
}

/// Prepares the root directory of the next userspace as an image-mode host has it: a read-only overlay, with an `/etc`
/// of its own, which gets a change. `/var` is that of all userspaces.
pub(in crate::scenarios) fn another_root(change: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    load_module("overlay")?;
    for folder in [NEXT_ROOT, LAYERS, OLD_ROOT] {
        fs::create_dir_all(folder)?;
    }
    mount(Some("tmpfs"), LAYERS, Some("tmpfs"), MsFlags::empty(), None::<&str>).context("the layers")?;
    fs::create_dir_all(format!("{LAYERS}/top"))?;
    let options = format!("lowerdir={LAYERS}/top:/");
    mount(Some("overlay"), NEXT_ROOT, Some("overlay"), MsFlags::MS_RDONLY, Some(options.as_str()))
        .context("the overlay")?;
    let etc = format!("{LAYERS}/etc");
    run("cp", &["-a", "/etc", &etc])?;
    change(&etc)?;
    // A soft reboot into the same root directory unmounts the other two, and the next userspace mounts them again. systemd would wait
    // for udev, which this guest does not have, before it mounts a path in `/dev`.
    let disk = run("findmnt", &["-n", "-o", "SOURCE", "/"])?;
    std::os::unix::fs::symlink(disk.trim(), format!("{etc}/soft-disk"))?;
    let table = format!(
        "/etc/soft-disk {OLD_ROOT} ext4 defaults 0 0\n\
         {OLD_ROOT}/var /var none bind,x-systemd.requires-mounts-for={OLD_ROOT} 0 0\n"
    );
    fs::write(format!("{etc}/fstab"), table)?;
    for (from, to) in [(&*etc, "/etc"), ("/var", "/var"), ("/", OLD_ROOT)] {
        let to = format!("{NEXT_ROOT}{to}");
        mount(Some(from), to.as_str(), None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .with_context(|| to.clone())?;
    }
    Ok(())
}

/// One of the daemon's pages.
pub(super) fn page(path: &str) -> Result<String> {
    const PAGES: &str = "127.0.0.1:9464";
    let mut stream = TcpStream::connect(PAGES).with_context(|| format!("cannot connect to {PAGES}"))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {PAGES}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
