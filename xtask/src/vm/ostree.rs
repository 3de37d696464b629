//! The disk of an ostree host: a repository with two versions of a Debian tree, the first of them deployed.
//!
//! In: the cache and two kernels. Out: an image whose root is an ostree sysroot, made by Debian's own ostree. The branch
//! `os/v1` has one kernel and is deployed; the branch `os/v2` has the other. The commit of the first is made from an image, as the importer of
//! bootc and rpm-ostree makes it: each layer has a commit of its own. It is made once, as root. Guests write to it through snapshots that
//! end with the guest.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;
use vm_tests::guest::ostree::{COPIED, IMAGE, LABEL, LAYERS, STATEROOT, VERSIONS};

use super::cpio::Archive;
use super::images;
use crate::apt::{GUEST_RELEASE, is_root};
use crate::cache::{Cache, CacheStamp, sha256_file};
use crate::kernels::{self, CachedKernel};
use crate::run::{output, say};

/// The packages that the tree has beside those of the systemd guest.
const PACKAGES: &[&str] = &["ostree", "ostree-boot", "kexec-tools"];
/// Increase the number when the recipe changes.
const RECIPE: &str = "6";
const SIZE: u64 = 3 << 30;
/// Modules without which the root disk cannot be mounted.
const MODULES: &[&str] = &["virtio_pci", "virtio_blk", "ext4", "overlay"];
/// The program that makes a deployment the root.
const PREPARE_ROOT: &str = "usr/lib/ostree/ostree-prepare-root";
/// Files that no program of the guest reads: half of the tree. ostree links each file at each deployment.
const UNUSED: &[&str] = &[
    "usr/share/zoneinfo",
    "usr/share/perl",
    "usr/share/perl5",
    "usr/lib/x86_64-linux-gnu/perl",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/share/bash-completion",
    "usr/share/lintian",
];
/// Directories that ostree's layout keeps in `/var`, and where.
const IN_VAR: &[(&str, &str)] = &[
    ("home", "var/home"),
    ("srv", "var/srv"),
    ("opt", "var/opt"),
    ("root", "var/roothome"),
    ("usr/local", "../var/usrlocal"),
];

/// The disk's image.
pub(crate) fn root(cache: &Cache) -> Result<PathBuf> {
    const FOLDER: &str = "guest-ostree";
    let kernels: Vec<CachedKernel> =
        VERSIONS.iter().map(|version| kernels::ensure(cache, version.kernel)).collect::<Result<_>>()?;
    let image = cache.path(FOLDER).join("root.ext4");
    let mut version = format!("{RECIPE} {} {}", images::recipe(GUEST_RELEASE), PACKAGES.join(" "));
    for kernel in &kernels {
        version = format!("{version} {}", sha256_file(&kernel.image())?);
    }
    if cache.stamp(FOLDER).is_some_and(|stamp| stamp.version == version) {
        return Ok(image);
    }
    if !is_root()? {
        bail!("making the disk of the ostree guest needs root, once\n    run: sudo cargo xtask setup");
    }
    let tools = images::tools(cache)?;
    let busybox = images::busybox(cache)?;
    say("images", "Debian as an ostree host, in two versions (about two minutes)");
    cache.make(FOLDER, |folder| {
        let root = folder.join("root");
        images::debootstrap(&tools, &root, GUEST_RELEASE, PACKAGES)?;
        images::prepare(&root)?;
        // Debian's scripts would load a kernel of their own choice before each reboot.
        chroot(&root, "rm -f /etc/init.d/kexec* /etc/rc?.d/*kexec*")?;
        // The tree is made in the system whose ostree commits it.
        let build = root.join("build");
        let copy = folder.join("tree");
        output(Command::new("cp").arg("-a").arg(&root).arg(&copy))?;
        fs::create_dir(&build)?;
        let tree = build.join("tree");
        fs::rename(&copy, &tree)?;
        let var = lay_out(&tree)?;
        // ostree names its temporary files by way of `/proc`.
        let sysroot = images::with_proc(&root, || commit(&root, &tree, &kernels, &busybox))?;
        let stateroot = sysroot.join("ostree/deploy").join(STATEROOT).join("var");
        fs::remove_dir_all(&stateroot)?;
        fs::rename(&var, &stateroot)?;
        for (_, place) in IN_VAR {
            fs::create_dir_all(stateroot.join(place.trim_start_matches("../").trim_start_matches("var/")))?;
        }
        fs::create_dir_all(stateroot.join("usrlocal/bin"))?;
        images::ext4(&tools, &sysroot, &folder.join("root.ext4"), SIZE, Some(LABEL))?;
        fs::remove_dir_all(&root)?;
        Ok(CacheStamp::of_version(&version))
    })?;
    Ok(image)
}

fn chroot(root: &Path, line: &str) -> Result<String> {
    output(Command::new("chroot").arg(root).args(["/bin/sh", "-ec", line]))
}

/// Turns a Debian root into a tree as ostree needs it. The contents of `/var` are moved beside the tree, because they belong to
/// the host.
fn lay_out(tree: &Path) -> Result<PathBuf> {
    fs::rename(tree.join("etc"), tree.join("usr/etc"))?;
    let var = tree.with_file_name("var");
    fs::rename(tree.join("var"), &var)?;
    for empty in ["boot", "tmp", "run", "proc", "sys", "dev", "var", "mnt", "media", "sysroot"] {
        let place = tree.join(empty);
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir(&place)?;
    }
    for unused in UNUSED {
        crate::cache::remove_tree(&tree.join(unused))?;
    }
    fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    for (name, target) in IN_VAR {
        fs::remove_dir_all(tree.join(name))?;
        symlink(target, tree.join(name))?;
    }
    symlink("sysroot/ostree", tree.join("ostree"))?;
    Ok(var)
}

/// Commits the tree once for each version, and deploys the first.
fn commit(root: &Path, tree: &Path, kernels: &[CachedKernel], busybox: &Path) -> Result<PathBuf> {
    // The tree is made on another file system than the disk's, so ostree must not make files immutable there.
    const OSTREE: &str = "export OSTREE_SYSROOT_DEBUG=mutable-deployments; cd /build;";
    chroot(
        root,
        &format!(
            "{OSTREE} mkdir sysroot; ostree admin init-fs sysroot; ostree admin --sysroot=sysroot os-init {STATEROOT}"
        ),
    )?;
    // No program writes a boot loader's own file here: a loader reads the entries.
    chroot(root, &format!("{OSTREE} ostree --repo=sysroot/ostree/repo config set sysroot.bootloader none"))?;
    let mut metadata = import(&root.join("build"))?;
    for (version, kernel) in VERSIONS.iter().zip(kernels) {
        let modules = tree.join("usr/lib/modules");
        if modules.exists() {
            fs::remove_dir_all(&modules)?;
        }
        let own = modules.join(version.kernel);
        fs::create_dir_all(&own)?;
        fs::copy(kernel.image(), own.join("vmlinuz"))?;
        fs::write(own.join("initramfs.img"), initramfs(root, kernel, busybox)?)?;
        let name = version.name;
        fs::write(tree.join("usr/lib/os-version"), format!("{name}\n"))?;
        let release = fs::read_to_string(root.join("usr/lib/os-release"))?;
        let kept = release.lines().filter(|line| !line.starts_with("IMAGE_VERSION="));
        let lines: String = kept.flat_map(|line| [line, "\n"]).collect();
        fs::write(tree.join("usr/lib/os-release"), format!("{lines}IMAGE_VERSION={name}\n"))?;
        // A default that another version changes.
        let shipped = tree.join("usr/etc/demo-shipped");
        fs::create_dir_all(&shipped)?;
        fs::write(shipped.join("pinned"), format!("from {name}\n"))?;
        let branch = version.branch;
        // Only the first version is made from an image.
        let import = std::mem::take(&mut metadata);
        chroot(
            root,
            &format!(
                "{OSTREE} {} ostree --repo=sysroot/ostree/repo commit -b {branch} -s {name} {} --tree=dir=tree",
                import.layers, import.texts
            ),
        )?;
    }
    let arguments = format!("--karg=root=LABEL={LABEL} --karg=rw --karg=console=ttyS0 --karg=panic=-1");
    let first = VERSIONS[0].branch;
    chroot(
        root,
        &format!("{OSTREE} ostree admin deploy --sysroot=sysroot --os={STATEROOT} {arguments} {first}"),
    )?;
    Ok(root.join("build/sysroot"))
}

/// How a commit is made from an image.
#[derive(Default)]
struct Import {
    /// The commands that commit the layers.
    layers: String,
    /// The arguments with the metadata of the commit of all layers.
    texts: String,
}

/// Writes the manifest and the config of the image for the commands that run in the directory.
fn import(build: &Path) -> Result<Import> {
    let blob = |digest| json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": 1});
    let manifest = json!({
        "schemaVersion": 2,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": "sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
            "size": 1,
        },
        "layers": (LAYERS.map(|[digest, ..]| blob(digest))),
    });
    let [base, copied] = LAYERS;
    let config = json!({
        "os": "linux",
        "architecture": "amd64",
        "config": {"Labels": {"ostree.final-diffid": base[1]}},
        "rootfs": {"type": "layers", "diff_ids": (LAYERS.map(|[_, diff_id, _]| diff_id))},
        "history": [
            {"created_by": base[2]},
            {"created_by": "LABEL ostree.bootable=true", "empty_layer": true},
            {"created_by": copied[2]},
        ],
    });
    fs::write(build.join("manifest.json"), manifest.to_string())?;
    fs::write(build.join("config.json"), config.to_string())?;
    let commit = |digest: &str, tree| {
        let branch = format!("ostree/container/blob/{}", digest.replace(':', "_3A_"));
        format!("ostree --repo=sysroot/ostree/repo commit --no-bindings -b {branch} --tree=dir={tree};")
    };
    Ok(Import {
        layers: format!(
            "mkdir -p layer/usr/lib; mv tree/{COPIED} layer/{COPIED}; {} {} cp -a layer/{COPIED} tree/{COPIED};",
            commit(base[0], "tree"),
            commit(copied[0], "layer")
        ),
        texts: format!(
            "--add-metadata-string=ostree.manifest-digest={IMAGE} \
             --add-metadata-string=\"ostree.manifest=$(cat manifest.json)\" \
             --add-metadata-string=\"ostree.container.image-config=$(cat config.json)\""
        ),
    })
}

/// The tree's own first root file system: it finds the disk and lets ostree make the deployment the root.
fn initramfs(root: &Path, kernel: &CachedKernel, busybox: &Path) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut archive = Archive::default();
    archive.console();
    for folder in ["proc", "sys", "dev", "run", "sysroot"] {
        archive.folder(folder);
    }
    archive.file("bin/busybox", 0o755, read(busybox)?);
    archive.file("bin/ostree-prepare-root", 0o755, read(&root.join(PREPARE_ROOT))?);
    for library in chroot(root, &format!("ldd /{PREPARE_ROOT}"))?.split_whitespace() {
        if library.starts_with('/') {
            // Links of the merged /usr lead nowhere here, so the files get the names by which they are looked for.
            let file = fs::canonicalize(root.join(library.trim_start_matches('/')))
                .with_context(|| format!("the guest has no {library}"))?;
            archive.file(library, 0o755, read(&file)?);
        }
    }
    let order = fs::read_to_string(kernel.modules().join("order"))?;
    let mut chain: Vec<&str> = Vec::new();
    for module in MODULES {
        let needs = order.lines().filter_map(|line| line.split_once(": ")).find(|(name, _)| name == module);
        for needed in needs.map_or("", |(_, chain)| chain).split_whitespace() {
            if !chain.contains(&needed) {
                chain.push(needed);
                archive.file(
                    &format!("modules/{needed}.ko"),
                    0o644,
                    read(&kernel.modules().join(format!("{needed}.ko")))?,
                );
            }
        }
    }
    let modules: String = chain.iter().flat_map(|module| [module, " "]).collect();
    let insert = format!("for module in {modules}; do insmod /modules/$module.ko; done\n");
    archive.file("init", 0o755, format!("{INIT_BEGIN}{insert}{INIT_END}").into_bytes());
    Ok(archive.finish())
}

const INIT_BEGIN: &str = "#!/bin/busybox sh
set -e
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs -o mode=0755 tmpfs /run
";

const INIT_END: &str =
    "for word in $(cat /proc/cmdline); do case $word in root=*) root=${word#root=} ;; esac; done
mount -t ext4 -o rw \"$(findfs \"$root\")\" /sysroot
ostree-prepare-root /sysroot
for place in proc sys dev run; do mount -o move /$place /sysroot/$place; done
exec switch_root /sysroot /sbin/init
";
