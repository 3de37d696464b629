//! Files whose content the kernel proves: a file with fs-verity, and a file of a root that requires fs-verity.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use composefs_ioctls::fsverity::fs_ioc_measure_verity;
use rustix::fs::{XattrFlags, setxattr};
use serde_json::Value;

use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::disks::{FileSystem, unmount};
use crate::guest::{files, run, shell, shell_time, status};

const LIMIT: Duration = Duration::from_mins(1);

const SEALED: &str = "/mnt/sealed";
/// The parts of a composefs image: the metadata of each file, and the contents under other names.
const METADATA: &str = "/mnt/sealed/native/metadata";
const OBJECTS: &str = "/mnt/sealed/native/objects";
const ROOT: &str = "/run/sealed-root";
/// The fs-verity digest of the image. The root mount names it, and so does the boot loader.
const IMAGE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Files of the image that no config declares.
const FILES: u64 = 3;

const CONFIG: &str = "/run/image.yaml";

/// A file with fs-verity is read in the first round of a scan. Later the kernel proves its content, until another file replaces it.
pub(super) fn file() -> Result<String> {
    let place = Path::new(SEALED);
    FileSystem::Ext4.mount(place)?;
    shell("cd /mnt/sealed && head -c 16000000 /dev/urandom > large && echo a > small && echo a > unsealed")?;
    for name in ["large", "small"] {
        files::seal(&place.join(name))?;
    }
    ensure!(shell("echo b >> /mnt/sealed/small").is_err(), "a sealed file was changed");
    shell(&format!("{HOLDFAST} baseline /mnt/sealed > /run/baseline.json"))?;
    run(HOLDFAST, &["image", "index", "--baseline", "/run/baseline.json"])?;
    let host = Host { root: "/", state: "/var/lib/holdfast" };
    host.rule("/mnt/sealed/")?;
    let (first, second) = (host.scan()?, host.scan()?);
    for (round, sealed) in [(&first, 0), (&second, 2)] {
        ensure!(round["sealed"] == sealed && round["differing"] == 0, "{first} {second}");
    }
    let verified = shell(&format!("{HOLDFAST} image verify --image baseline /mnt/sealed"))?;
    ensure!(verified.contains("sealed: 2 of these files"), "{verified}");
    let explained = shell(&format!("{HOLDFAST} explain /mnt/sealed/large --config {CONFIG}"))?;
    ensure!(explained.contains("sealed by fs-verity"), "{explained}");
    watched()?;
    // Another content with a seal of its own.
    shell("cp /mnt/sealed/large /mnt/sealed/other && printf x | dd of=/mnt/sealed/other conv=notrunc")?;
    files::seal(&place.join("other"))?;
    shell("mv /mnt/sealed/other /mnt/sealed/large")?;
    let third = host.scan()?;
    ensure!(third["sealed"] == 1 && third["differing"] == 1, "{third}");
    Ok(format!("{first}\n{second}\n{third}"))
}

/// The daemon reads a sealed file that it watches once, too. So it compares the mode later without the content.
fn watched() -> Result<()> {
    let policy = "/run/sealed-live-policy.yaml";
    fs::write(policy, self::policy("path: /mnt/sealed/, image: true, action: observe"))?;
    let mut agent = RunningDaemon::start(&["--standalone", "--config", CONFIG, "--policy", policy])?;
    status::wait_for("compliant", LIMIT)?;
    let before = agent.records()?.len();
    shell("chmod 600 /mnt/sealed/small")?;
    let record = agent.wait_for("the drift", before, |record| record["kind"] == "drift")?;
    ensure!(record["path"] == "/mnt/sealed/small" && record["after"]["sealed"] == "fs-verity", "{record}");
    shell("chmod 644 /mnt/sealed/small")?;
    status::wait_for("compliant", LIMIT)?;
    agent.stop()?;
    Ok(())
}

/// The same for the root of a host that booted a sealed composefs image, made of the layout with this digest of a manifest. The image keeps the
/// content of `program` elsewhere. The overlay does not report the digests of its files, and compares them itself. A file that is mounted over
/// one of the root is read, and so is each file if the boot loader named another image.
pub(super) fn root(manifest: &str, program: &str) -> Result<String> {
    files::load_module("overlay")?;
    let host = Host { root: ROOT, state: "/run/sealed-root-state" };
    let deployment = format!("{METADATA}/sysroot/state/deploy/{IMAGE}");
    shell(&format!(
        "mkdir -p {deployment} {METADATA}/proc {OBJECTS} {ROOT} {} /run/sealed-proc/1 && cp -a /run/build/usr {METADATA} && \
         mv {METADATA}{program} {OBJECTS}/object && \
         printf '[origin]\ncontainer-image-reference=docker://os.example/os:1\n[image]\nmanifest_digest={manifest}\n' > {deployment}/{IMAGE}.origin",
        host.state
    ))?;
    refer(program)?;
    boot()?;
    run(HOLDFAST, &["image", "index", "/run/layout", "--state", host.state])?;
    host.rule("/usr/")?;
    let (first, second) = (host.scan()?, host.scan()?);
    for (round, sealed) in [(&first, 0), (&second, FILES)] {
        ensure!(round["sealed"] == sealed && round["differing"] == 0, "{first} {second}");
    }

    // The file of the lower layer has the number that the overlay shows, so only the mount tells them apart.
    let shipped = format!("{METADATA}/usr/libexec/os/sealed");
    let covered_file = format!("{ROOT}/usr/libexec/os/sealed");
    shell(&format!(
        "cp {shipped} /run/shipped && mount --bind {shipped} {covered_file} && echo other > {covered_file}"
    ))?;
    let covered = host.scan()?;
    ensure!(covered["sealed"] == FILES - 1 && covered["differing"] == 1, "{covered}");
    unmount(Path::new(&covered_file))?;
    shell(&format!("cat /run/shipped > {shipped}"))?;
    host.scan()?;

    ensure!(host.verify(0)?.contains("sealed: "), "the image that was booted");
    argument(&IMAGE.replace('0', "f"))?;
    let verified = host.verify(0)?;
    ensure!(!verified.contains("sealed:"), "another image was booted: {verified}");

    // Another content in the place of an object, with a seal of its own: the root does not open it.
    halt()?;
    let object = Path::new(OBJECTS).join("object");
    let content = fs::read_to_string(&object)?;
    fs::remove_file(&object)?;
    fs::write(&object, content.replace("agent", "other"))?;
    files::seal(&object)?;
    boot()?;
    let replaced = host.verify(3)?;
    ensure!(replaced.contains(program), "{replaced}");
    halt()?;
    Ok(format!("{first}\n{second}\n{covered}\n{replaced}"))
}

/// Seals the content of the program, and has the image refer to it as `mkcomposefs` does: a file with its size and mode, where the content is,
/// and the content's fs-verity digest (the kernel's `struct ovl_metacopy`: version, length, flags, algorithm, digest).
fn refer(program: &str) -> Result<()> {
    let object = Path::new(OBJECTS).join("object");
    files::seal(&object)?;
    let content = File::open(&object)?;
    let place = format!("{METADATA}{program}");
    let file = File::create(&place)?;
    file.set_len(content.metadata()?.len())?;
    file.set_permissions(content.metadata()?.permissions())?;
    let digest = fs_ioc_measure_verity::<32>(&content, 1).context("no fs-verity digest")?;
    let reference = [[0, 36, 0, 1].as_slice(), digest.as_slice()].concat();
    let set = |name, value: &[u8]| {
        setxattr(&place, name, value, XattrFlags::empty()).with_context(|| format!("cannot set {name}"))
    };
    set("trusted.overlay.metacopy", &reference)?;
    set("trusted.overlay.redirect", b"/object")
}

/// Mounts the image as bootc's program in the initial ramdisk does, with the mount table and the argument that such a host has.
fn boot() -> Result<()> {
    shell(&format!(
        "mount -t overlay -o ro,lowerdir={METADATA}::{OBJECTS},metacopy=on,redirect_dir=on,verity=require composefs:{IMAGE} {ROOT} && \
         mount --bind /run/sealed-proc {ROOT}/proc"
    ))?;
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(ROOT)).context("no mount")?;
    fs::write("/run/sealed-proc/1/mountinfo", format!("{}\n", line.replacen(ROOT, "/", 1)))?;
    argument(IMAGE)
}

/// The kernel argument that names the image.
fn argument(image: &str) -> Result<()> {
    Ok(fs::write("/run/sealed-proc/cmdline", format!("ro composefs={image}\n"))?)
}

fn halt() -> Result<()> {
    unmount(&Path::new(ROOT).join("proc"))?;
    unmount(Path::new(ROOT))
}

/// A policy with one rule.
pub(super) fn policy(rule: &str) -> String {
    format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: sealed}}\nspec:\n  rules:\n  - {{{rule}}}\n"
    )
}

/// A root, and the state directory of its daemon.
struct Host {
    root: &'static str,
    state: &'static str,
}

impl Host {
    /// Has the paths below a directory scanned.
    fn rule(&self, directory: &str) -> Result<()> {
        let rule = format!("path: {directory}, image: true, scan: true, action: observe");
        Ok(fs::write(self.policy(), policy(&rule))?)
    }

    fn policy(&self) -> String {
        format!("{}/sealed-policy.yaml", self.state)
    }

    /// A whole round of the scan, with its result and its processor time.
    fn scan(&self) -> Result<Value> {
        let Self { root, state } = self;
        let policy = self.policy();
        let (_, spent) = shell_time(&format!(
            "{HOLDFAST} scan --host-root {root} --state {state} --config {CONFIG} --policy {policy} --every-hours 0 --processor 100 \
             --read-mebibytes 10000"
        ))?;
        let progress: Value = serde_json::from_slice(&fs::read(format!("{state}/scan/progress.json"))?)?;
        let mut round = progress["last"].clone();
        round["processor_ms"] = spent.into();
        Ok(round)
    }

    /// The text of a comparison that ends with this code.
    fn verify(&self, code: u8) -> Result<String> {
        let Self { root, state } = self;
        shell(&format!("{HOLDFAST} image verify --root {root} --state {state} 2>&1; [ $? = {code} ]"))
    }
}
