//! Kernels of the test matrix, from Debian packages, unpacked and never installed.
//!
//! In: a series such as `6.12`. Out: `vmlinuz`, its BTF, and the modules that the guests load, each with its dependencies. A
//! series in the cache stays, because the archive removes old versions. To get the newest version, remove the folder of the
//! series.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection};

use crate::apt::{self, Apt, Offer};
use crate::cache::{Cache, CacheStamp};
use crate::run::say;

/// Where the archive keeps one kernel series.
#[derive(Debug)]
struct Series {
    name: &'static str,
    suite: &'static str,
    /// Name pattern of the package with `vmlinuz`.
    image: &'static str,
    /// Prefixes that turn that package's name into the one with the modules, if they are separate.
    modules: Option<(&'static str, &'static str)>,
}

/// The matrix, the most important series first.
const MATRIX: &[Series] = &[
    Series {
        name: "6.12",
        suite: "bookworm-backports",
        image: "linux-image-6.12.*-cloud-amd64",
        modules: None,
    },
    Series { name: "6.1", suite: "bookworm", image: "linux-image-6.1.0-*-cloud-amd64", modules: None },
    Series {
        name: "7.x",
        suite: "trixie-backports",
        image: "linux-binary-7.*-cloud-amd64",
        modules: Some(("linux-binary-", "linux-modules-")),
    },
    Series {
        name: "5.10",
        suite: "bullseye-security",
        image: "linux-image-5.10.0-*-cloud-amd64",
        modules: None,
    },
    Series {
        name: "6.18",
        suite: "trixie-backports",
        image: "linux-image-6.18.*-cloud-amd64",
        modules: None,
    },
];

/// Modules that guests load, each with its dependencies. It omits a module that a kernel has built in or does not have by that
/// name. The smoke scenario tests the devices and file systems.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "ext4",
    "xfs",
    "btrfs",
    "overlay",
    "loop",
    "fuse",
    "dm-mod",
    "dm-verity",
    "af_packet",
];

/// Modules that only a guest with a kubelet loads: for the network of pods, and for packet filter rules by iptables' nftables
/// back end. The other guests boot without their files.
const CLUSTER_MODULES: &[&str] = &[
    "br_netfilter",
    "bridge",
    "veth",
    "nf_tables",
    "nft_compat",
    "nft_chain_nat",
    "nf_conntrack",
    "xt_MASQUERADE",
    "xt_nat",
    "xt_comment",
    "xt_conntrack",
    "xt_addrtype",
    "xt_tcpudp",
    "xt_mark",
];

/// Algorithms that modules ask for by name while they run, and the modules that may provide them.
const ALGORITHMS: &[(&str, &[&str])] = &[
    ("crc32c", &["crc32c_generic", "crc32c_cryptoapi", "crc32c_intel"]),
    ("xxhash64", &["xxhash_generic"]),
    ("sha256", &["sha256_generic"]),
    ("blake2b-256", &["blake2b_generic", "blake2b"]),
];

/// Increase the number when other files of a package are kept.
const RECIPE: &str = "recipe 5, version ";

/// A kernel in the cache.
#[derive(Debug, Clone)]
pub(crate) struct CachedKernel {
    /// Its series, as on the command line.
    pub(crate) series: String,
    folder: PathBuf,
}

impl CachedKernel {
    /// The bootable image.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// Folder with the modules (`*.ko`) and the file `order`.
    pub(crate) fn modules(&self) -> PathBuf {
        self.folder.join("modules")
    }

    /// The same folder for a guest with a kubelet.
    pub(crate) fn cluster_modules(&self) -> PathBuf {
        self.folder.join("cluster-modules")
    }
}

/// The series of the matrix.
pub(crate) fn series() -> impl Iterator<Item = &'static str> {
    MATRIX.iter().map(|series| series.name)
}

/// Finds a series in the cache or fetches its newest version.
pub(crate) fn ensure(cache: &Cache, name: &str) -> Result<CachedKernel> {
    let Some(series) = MATRIX.iter().find(|series| series.name == name) else {
        let known: Vec<&str> = self::series().collect();
        bail!("no kernel series {name}: the matrix has {}", known.join(", "));
    };
    let folder_name = format!("kernels/{name}");
    let kernel = CachedKernel { series: name.to_owned(), folder: cache.path(&folder_name) };
    if cache.stamp(&folder_name).is_some_and(|stamp| stamp.version.starts_with(RECIPE)) {
        return Ok(kernel);
    }
    apt::install(&[("xz", "xz-utils"), ("zstd", "zstd"), ("gzip", "gzip")])?;
    let apt = Apt::with_suites(cache, &[series.suite])?;
    let offer = apt
        .newest(series.image)?
        .with_context(|| format!("Debian {} has no package {}", series.suite, series.image))?;
    let mut debs = vec![apt.download(&offer)?];
    if let Some((from, to)) = series.modules {
        let package = offer.package.replacen(from, to, 1);
        debs.push(apt.download(&Offer { package, version: offer.version.clone() })?);
    }
    cache.make(&folder_name, |folder| {
        let mut stamp = CacheStamp::of_version(&format!("{RECIPE}{}", offer.version));
        let tree = folder.join("tree");
        for deb in &debs {
            stamp.add_file(deb)?;
            apt::unpack(deb, &tree)?;
        }
        say("kernel", &format!("{name}: unpack {} {}", offer.package, offer.version));
        fill(&tree, folder).with_context(|| format!("cannot use {} {}", offer.package, offer.version))?;
        fs::remove_dir_all(&tree)?;
        Ok(stamp)
    })?;
    for deb in debs {
        fs::remove_file(deb)?;
    }
    Ok(kernel)
}

/// Takes what we need from an unpacked package.
fn fill(tree: &Path, folder: &Path) -> Result<()> {
    let image = find(tree, &|name| name.starts_with("vmlinuz"))?
        .into_iter()
        .max_by_key(|path| fs::metadata(path).map_or(0, |m| m.len()))
        .context("no vmlinuz in the package")?;
    fs::copy(&image, folder.join("vmlinuz"))?;
    let vmlinux = decompress_kernel(&fs::read(&image)?)?;
    let elf = object::File::parse(&*vmlinux).context("vmlinuz holds no ELF file")?;
    let btf = elf.section_by_name(".BTF").context("the kernel has no BTF")?;
    fs::write(folder.join("btf"), btf.data()?)?;

    let mut files = BTreeMap::new();
    for path in find(tree, &|name| name.contains(".ko"))? {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some((stem, _)) = file.split_once(".ko") {
            files.insert(stem.replace('-', "_"), path);
        }
    }
    keep_modules(&files, MODULES, &folder.join("modules"))?;
    keep_modules(&files, &[MODULES, CLUSTER_MODULES].concat(), &folder.join("cluster-modules"))
}

/// Makes a folder with these modules and those that they need, and the file `order`.
fn keep_modules(files: &BTreeMap<String, PathBuf>, roots: &[&str], modules: &Path) -> Result<()> {
    fs::create_dir_all(modules)?;
    let mut order = String::new();
    let mut done = BTreeSet::new();
    for root in roots {
        let mut chain = Vec::new();
        collect(&root.replace('-', "_"), files, modules, &mut done, &mut chain)?;
        if !chain.is_empty() {
            writeln!(order, "{}: {}", root.replace('-', "_"), chain.join(" "))?;
        }
    }
    fs::write(modules.join("order"), order).context("cannot write the order of the modules")
}

/// Copies a module and those before it; appends their names to `chain` in load order.
fn collect(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    into: &Path,
    done: &mut BTreeSet<String>,
    chain: &mut Vec<String>,
) -> Result<()> {
    let Some(path) = files.get(name) else { return Ok(()) };
    if chain.iter().any(|other| other == name) {
        return Ok(());
    }
    let place = into.join(format!("{name}.ko"));
    if done.insert(name.to_owned()) {
        let packed = fs::read(path)?;
        let plain = match path.extension().and_then(|e| e.to_str()) {
            Some("xz") => pipe("xz", &["-dc"], &packed)?,
            Some("zst") => pipe("zstd", &["-dc"], &packed)?,
            Some("gz") => pipe("gzip", &["-dc"], &packed)?,
            _ => packed,
        };
        fs::write(&place, plain)?;
    }
    for dependency in dependencies(&fs::read(&place)?).with_context(|| format!("module {name}"))? {
        collect(&dependency, files, into, done, chain)?;
    }
    chain.push(name.to_owned());
    Ok(())
}

/// The modules that a module needs, from its own description.
fn dependencies(module: &[u8]) -> Result<Vec<String>> {
    let elf = object::File::parse(module)?;
    let info = elf.section_by_name(".modinfo").context("no .modinfo")?.data()?;
    let mut names = Vec::new();
    for field in info.split(|&b| b == 0).filter_map(|field| std::str::from_utf8(field).ok()) {
        if let Some(depends) = field.strip_prefix("depends=") {
            names.extend(
                depends.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")),
            );
        } else if let Some(wanted) = field.strip_prefix("softdep=pre: ") {
            let providers = ALGORITHMS.iter().filter(|(name, _)| {
                wanted.split(' ').any(|word| word.trim_start_matches("crypto-") == *name)
            });
            names.extend(providers.flat_map(|(_, modules)| modules.iter().map(|&module| module.to_owned())));
        }
    }
    Ok(names)
}

/// Extracts the kernel from a bootable x86 image, whose header names the place of the packed part.
fn decompress_kernel(image: &[u8]) -> Result<Vec<u8>> {
    let u32_at = |offset: usize| -> Result<usize> {
        let bytes = image.get(offset..offset + 4).context("the image is cut short")?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    if image.get(0x202..0x206) != Some(b"HdrS") {
        bail!("not a bootable x86 image");
    }
    let sectors = match image[0x1f1] {
        0 => 4,
        n => usize::from(n),
    };
    let start = (sectors + 1) * 512 + u32_at(0x248)?;
    let packed = image.get(start..start + u32_at(0x24c)?).context("the image is cut short")?;
    // All formats but gzip are followed by the unpacked size.
    let body = &packed[..packed.len().saturating_sub(4)];
    match packed {
        [0xfd, b'7', b'z', b'X', ..] => pipe("xz", &["-dc"], body),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => pipe("zstd", &["-dc"], body),
        [0x1f, 0x8b, ..] => pipe("gzip", &["-dc"], packed),
        [0x02, 0x21, 0x4c, 0x18, blocks @ ..] => unpack_lz4(blocks),
        _ => bail!("the kernel is packed in an unknown format"),
    }
}

/// Unpacks LZ4 in the kernel's legacy framing: blocks of at most 8 MiB, each after its packed size.
fn unpack_lz4(mut rest: &[u8]) -> Result<Vec<u8>> {
    const BLOCK: usize = 8 << 20;
    let mut plain = Vec::new();
    let mut block = vec![0; BLOCK];
    while let Some((size, after)) = rest.split_first_chunk::<4>() {
        // The last bytes are the unpacked size of the whole, not another block.
        let Some((packed, after)) = after.split_at_checked(u32::from_le_bytes(*size) as usize) else { break };
        let n = lz4_flex::block::decompress_into(packed, &mut block).context("damaged LZ4 block")?;
        plain.extend_from_slice(&block[..n]);
        rest = after;
    }
    Ok(plain)
}

/// Sends bytes through a program.
fn pipe(program: &str, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut stdin = child.stdin.take().context("stdin was asked for")?;
    let out = std::thread::scope(|scope| {
        // A program that fails early closes the pipe. Its exit status explains more than our error.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output()
    })?;
    if !out.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(out.stdout)
}

/// All files below a folder whose name is wanted.
fn find(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(find(&entry.path(), wanted)?);
        } else if wanted(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}
