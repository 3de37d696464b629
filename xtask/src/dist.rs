//! The product: the eBPF object, `holdfast` with it inside, and `holdfast-cluster`.
//!
//! In: the working tree. Out: `target/dist/holdfast.bpf.o`, and the programs as static files in `target/dist`. The build of
//! `holdfast` reads the path of the object from `HOLDFAST_EBPF_OBJECT`. A file in `target/dist` is written only if its content
//! changed, so that cargo does not build again without need.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use object::build::elf::SectionData;

use crate::cache::Cache;
use crate::run::{cargo, quiet, say, show};
use crate::toolchain::EbpfToolchain;

/// Version of the product.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The variable with the object's path for the build of `holdfast`.
pub(crate) const OBJECT_VARIABLE: &str = "HOLDFAST_EBPF_OBJECT";
/// Little-endian BPF, as on every machine that we support.
pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";
/// This target links the binaries statically with the compiler's own C library.
pub(crate) const HOST_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Flags with which the output does not depend on the folders of the build: each prefix of a path gets a fixed name. BTF, panics and
/// assertions have paths of sources. Of two prefixes that match, compilers take the later one. The folder of the working tree is not
/// among them: cargo names the sources of the workspace relative to it, and with other flags it compiles all dependencies again, in each
/// new clone.
fn same_paths(option: &str) -> Vec<String> {
    let home = std::env::home_dir().unwrap_or_default();
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    [(cargo, "/cargo"), (target_dir(), "/target")]
        .iter()
        .map(|(folder, name)| format!("{option}={}={name}", folder.display()))
        .collect()
}

/// Options of the linker with which a program takes less memory: a packed table of relocations (`DT_RELR`), and one function in the place of
/// several with the same code. Rust does not promise that two functions have two addresses.
const SMALL: [&str; 2] = ["-zpack-relative-relocs", "--icf=all"];

/// Optimisation of debug builds for guests. The manifest optimises nothing, since tests take longer to compile than to run; an
/// emulated guest needs the reverse.
const DEV_LEVEL: &str = "CARGO_PROFILE_DEV_OPT_LEVEL";

/// The packages of the product's programs.
const PACKAGES: [&str; 2] = ["sensor-user", "holdfast-cluster"];

/// Which cargo profile user space is built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// What is shipped.
    Release,
    /// What guests run before a merge: the same without optimisation across crates, which doubles the time of the build.
    Merge,
    /// Quick to build.
    Dev,
}

impl Profile {
    /// The profile's name for cargo, and of its output folder.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Release => ("release", "release"),
            Self::Merge => ("merge", "merge"),
            Self::Dev => ("dev", "debug"),
        }
    }
}

/// The root of the working tree.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Cargo's output folder.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A cargo command on the kernel programs, with everything that their target needs.
pub(crate) fn ebpf_cargo(toolchain: &EbpfToolchain, subcommand: &str) -> Command {
    // The linker makes BTF from the debug information, and keeps only the BTF.
    let mut flags = vec![
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        "-Clink-arg=--disable-memory-builtins".to_owned(),
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
    ];
    flags.extend(same_paths("--remap-path-prefix"));
    // The BTF names the sources.
    flags.push(format!("--remap-path-prefix={}=/holdfast", root().display()));
    flags.push(format!("--remap-path-prefix={}=/rustc", toolchain.sysroot.display()));
    let mut command = cargo();
    command
        .args([subcommand, "--release", "--bin", "holdfast-ebpf"])
        .args(quiet())
        .args(["--target", BPF_TARGET, "-Z", "build-std=core"])
        .current_dir(root().join("sensor-ebpf"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", target_dir().join("ebpf"))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker)
        // An incremental build makes other code.
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    if let Some(rustc) = &toolchain.rustc {
        command.env("RUSTC", rustc);
    }
    command
}

/// The feature of the kernel programs with which they print lines; see `sensor-ebpf/src/log.rs`.
pub(crate) const EBPF_LOG: [&str; 2] = ["--features", "log"];

/// Builds the eBPF object; gives its path in `target/dist`. In a debug build the programs print lines.
pub(crate) fn build_ebpf(profile: Profile) -> Result<PathBuf> {
    let toolchain = EbpfToolchain::ensure(&Cache::open()?)?;
    let (features, name): (&[&str], _) = match profile {
        Profile::Release | Profile::Merge => (&[], "holdfast.bpf.o"),
        Profile::Dev => (&EBPF_LOG, "holdfast-debug.bpf.o"),
    };
    say("build", "eBPF object");
    show(ebpf_cargo(&toolchain, "build").args(features))?;
    let built = target_dir().join("ebpf").join(BPF_TARGET).join("release/holdfast-ebpf");
    let object = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    let object = without_debug_sections(&object)?;
    ensure!(
        prints(&object) == (profile == Profile::Dev),
        "the kernel programs of a debug build print lines through aya-log, and those of a release do not: {} is \
         the other one of the two",
        built.display()
    );
    deliver(&object, 0o644, name)
}

/// Whether an object contains aya-log: its map and its level are symbols, and the object holds their names.
fn prints(object: &[u8]) -> bool {
    const SYMBOLS: &[u8] = b"AYA_LOG";
    object.windows(SYMBOLS.len()).any(|name| name == SYMBOLS)
}

/// The object without the sections that only debuggers read. The kernel's own type information stays.
fn without_debug_sections(object: &[u8]) -> Result<Vec<u8>> {
    let mut elf = object::build::elf::Builder::read(object).context("the eBPF object is no ELF file")?;
    for section in &mut elf.sections {
        let name = section.name.as_slice();
        section.delete = name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    }
    elf.delete_orphans();
    // LLVM keeps all names in one table; the writer wants one for those of the sections.
    let names = elf.sections.add();
    names.name = b".shstrtab".as_slice().into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    let mut out = Vec::new();
    elf.write(&mut out).context("cannot write the eBPF object")?;
    Ok(out)
}

/// Builds the eBPF object and `holdfast`; gives the path of `holdfast` in `target/dist`.
pub(crate) fn build_holdfast(profile: Profile) -> Result<PathBuf> {
    let object = build_ebpf(profile)?;
    let built = build_static("sensor-user", "holdfast", profile, &[(OBJECT_VARIABLE, &object)])?;
    let program = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    // A build for a merge has another name, so that it is not shipped by mistake.
    deliver(&program, 0o755, if profile == Profile::Merge { "holdfast-merge" } else { "holdfast" })
}

/// Builds `holdfast-cluster`; gives its path in `target/dist`.
pub(crate) fn build_cluster(profile: Profile) -> Result<PathBuf> {
    let built = build_static("holdfast-cluster", "holdfast-cluster", profile, &[])?;
    let program = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    deliver(&program, 0o755, "holdfast-cluster")
}

/// Builds the program that runs the scenarios in guests.
pub(crate) fn build_guest(profile: Profile) -> Result<PathBuf> {
    build_static("vm-tests", "holdfast-guest", profile, &[])
}

/// Builds one binary of the workspace so that it runs in a guest that has no libraries.
pub(crate) fn build_static(
    package: &str,
    bin: &str,
    profile: Profile,
    env: &[(&str, &Path)],
) -> Result<PathBuf> {
    say("build", bin);
    let (name, folder) = profile.names();
    // For a merge both programs have the same features of their libraries, so that none is compiled twice.
    let packages = if profile == Profile::Merge { PACKAGES.as_slice() } else { &[package] };
    let target = target_dir().join("static");
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    flags.extend(SMALL.map(|option| format!("-Clink-arg=-Wl,{option}")));
    flags.extend(same_paths("--remap-path-prefix"));
    let level = std::env::var_os(DEV_LEVEL).is_none().then_some((DEV_LEVEL, "1"));
    show(
        cargo()
            .envs(level)
            .args(["build", "--bin", bin, "--profile", name, "--target", HOST_TARGET])
            .args(packages.iter().flat_map(|package| ["--package", package]))
            .args(quiet())
            .current_dir(root())
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            // The C code of dependencies has assertions too, and mimalloc the time of its build.
            .env("SOURCE_DATE_EPOCH", "0")
            .env("CFLAGS_x86_64_unknown_linux_gnu", same_paths("-ffile-prefix-map").join(" "))
            .envs((profile == Profile::Release).then_some(("CARGO_INCREMENTAL", "0")))
            .envs(env.iter().copied()),
    )?;
    Ok(target.join(HOST_TARGET).join(folder).join(bin))
}

/// Puts a file into `target/dist`, if it is not there already.
pub(crate) fn deliver(content: &[u8], mode: u32, name: &str) -> Result<PathBuf> {
    let folder = root().join("target/dist");
    fs::create_dir_all(&folder)?;
    let place = folder.join(name);
    if fs::read(&place).ok().as_deref() != Some(content) {
        let temporary = folder.join(format!(".{name}.new"));
        fs::write(&temporary, content)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(mode))?;
        fs::rename(&temporary, &place)?;
    }
    say("build", &format!("{} ({} KiB)", place.display(), content.len() / 1024));
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::prints;

    #[test]
    fn an_object_with_the_map_or_the_level_of_aya_log_is_one_that_prints() {
        assert!(prints(b"\0MANAGED\0AYA_LOGS\0") && prints(b"\0AYA_LOG_LEVEL\0"));
        assert!(!prints(b"\0MANAGED\0CHANGES\0aya_ebpf\0"));
    }
}
