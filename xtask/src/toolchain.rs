//! The parts that a build for the BPF target needs: the compiler's own source of `core`, and `bpf-linker`.
//!
//! In: the compiler on the path. Out: a linker, and a compiler whose sysroot has the source. The source must have exactly the
//! compiler's version. It comes from rustup, or else from Debian's package `rust-src`. The sysroot gets one symbolic link at
//! most. If it is read-only, a wrapper gives the compiler another sysroot.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt::{self, Apt};
use crate::cache::{Cache, CacheStamp};
use crate::run::{find_program, output, say};
use crate::tools::cargo_tool;

/// Newest version that is built against LLVM 22, which the pinned compiler carries.
const BPF_LINKER: &str = "0.10.3";
/// Debian suite that keeps several versions of the compiler side by side.
const RUST_SUITE: &str = "trixie-backports";
/// Where the source is looked for below a sysroot.
const SOURCE: &str = "lib/rustlib/src/rust";

/// Everything that building the eBPF object needs beside cargo.
#[derive(Debug)]
pub(crate) struct EbpfToolchain {
    /// The linker program.
    pub(crate) linker: PathBuf,
    /// A compiler to use in place of `rustc`, where the sysroot could not be completed.
    pub(crate) rustc: Option<PathBuf>,
    /// The folder with the source of `core`, in which that compiler looks.
    pub(crate) sysroot: PathBuf,
}

impl EbpfToolchain {
    /// Finds or fetches the parts.
    pub(crate) fn ensure(cache: &Cache) -> Result<Self> {
        let rustc = ensure_core_source(cache)?;
        let compiler = rustc.clone().unwrap_or_else(|| "rustc".into());
        let sysroot = PathBuf::from(output(Command::new(compiler).args(["--print", "sysroot"]))?.trim());
        Ok(Self { linker: ensure_linker(cache)?, rustc, sysroot })
    }
}

/// The version of the compiler on the path, such as `1.95.0`.
fn rustc_version() -> Result<String> {
    let text = output(Command::new("rustc").arg("--version"))?;
    let version = text.split_whitespace().nth(1).context("`rustc --version` printed no version")?;
    Ok(version.to_owned())
}

/// Gives the compiler the source of `core`; returns a wrapper if that needed one.
fn ensure_core_source(cache: &Cache) -> Result<Option<PathBuf>> {
    let sysroot = PathBuf::from(output(Command::new("rustc").args(["--print", "sysroot"]))?.trim());
    let link = sysroot.join(SOURCE);
    if has_core(&link) {
        return Ok(None);
    }
    let version = rustc_version()?;
    let name = format!("rust-src-{version}");
    if cache.stamp(&name).is_none() {
        if find_program("rustup").is_some() && rustup_adds_source() && has_core(&link) {
            return Ok(None);
        }
        fetch_debian_source(cache, &name, &version)?;
    }
    let source = cache.path(&name).join(format!("usr/src/rustc-{version}"));
    if !has_core(&source) {
        bail!("{} holds no library/core: remove it and try again", source.display());
    }
    link_source(cache, &sysroot, &source)
}

fn has_core(source: &Path) -> bool {
    source.join("library/core/src/lib.rs").is_file()
}

/// Asks rustup for the source, with a short limit, because an offline machine is normal.
fn rustup_adds_source() -> bool {
    say("rust-src", "ask rustup for it");
    let mut command = Command::new("timeout");
    command.args(["60", "rustup", "component", "add", "rust-src"]).env("RUSTUP_MAX_RETRIES", "0");
    let fetched = output(&mut command).is_ok();
    if !fetched {
        say("rust-src", "rustup cannot fetch it here; Debian's package instead");
    }
    fetched
}

fn fetch_debian_source(cache: &Cache, name: &str, version: &str) -> Result<()> {
    let apt = Apt::with_suites(cache, &[RUST_SUITE])?;
    let prefix = format!("{version}+");
    let offer = apt.offers("rust-src")?.into_iter().find(|offer| offer.version.starts_with(&prefix));
    let Some(offer) = offer else {
        bail!(
            "the source of Rust's core library in version {version} is missing: rustup could not fetch it and \
             Debian {RUST_SUITE} does not have it\n    get it with: rustup component add rust-src"
        );
    };
    let deb = apt.download(&offer)?;
    cache.make(name, |folder| {
        let mut stamp = CacheStamp::of_version(&offer.version);
        stamp.add_file(&deb)?;
        apt::unpack(&deb, folder)?;
        Ok(stamp)
    })?;
    fs::remove_file(deb)?;
    Ok(())
}

/// Links the source into the sysroot, or into a sysroot of our own where that one is read-only.
fn link_source(cache: &Cache, sysroot: &Path, source: &Path) -> Result<Option<PathBuf>> {
    let link = sysroot.join(SOURCE);
    if fs::symlink_metadata(&link).is_ok_and(|m| m.is_symlink()) {
        // Left by an earlier cache that is gone.
        fs::remove_file(&link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    let parent = link.parent().context("the source folder has a parent by construction")?;
    if fs::create_dir_all(parent).and_then(|()| symlink(source, &link)).is_ok() {
        say("rust-src", &format!("linked into {}", sysroot.display()));
        return Ok(None);
    }
    let shadow = cache.make("sysroot", |folder| {
        fs::create_dir_all(folder.join("lib/rustlib/src"))?;
        for entry in fs::read_dir(sysroot.join("lib/rustlib"))?.flatten() {
            if entry.file_name() != "src" {
                symlink(entry.path(), folder.join("lib/rustlib").join(entry.file_name()))?;
            }
        }
        symlink(source, folder.join(SOURCE))?;
        Ok(CacheStamp::of_version(&rustc_version()?))
    })?;
    let wrapper = shadow.join("rustc");
    let compiler = sysroot.join("bin/rustc");
    fs::write(
        &wrapper,
        format!("#!/bin/sh\nexec '{}' --sysroot '{}' \"$@\"\n", compiler.display(), shadow.display()),
    )?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    say("rust-src", &format!("{} is read-only: compiling with {}", sysroot.display(), shadow.display()));
    Ok(Some(wrapper))
}

fn ensure_linker(cache: &Cache) -> Result<PathBuf> {
    cargo_tool(cache, "bpf-linker", BPF_LINKER, &[])
}
