//! The cost of the index of an OS image.
//!
//! In: a whole Debian as an image of one compressed layer, umoci, and an image of many small files. Out: a table with the
//! budgets, and a section of `docs/performance.md`. umoci unpacks the same image in the same run, so that the ratio depends
//! little on the machine. The figures are CPU time and memory of the example `image_bench` of `sensor-user`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::output::BenchFormat;
use super::scans::{self, Scans, json, processor_seconds};
use super::sealed::{self, SealedFiles};
use super::section::{self as page, IMAGES};
use crate::cache::Cache;
use crate::dist;
use crate::rpm::PackagedRoot;
use crate::run::{cargo, output, say};
use crate::unpacked;

/// Files of the image that is looked up.
const FILES: u32 = 150_000;
/// At most, for [`FILES`] files.
const RESIDENT_MEBIBYTES: f64 = 10.0;
/// At most, for one look-up.
const LOOK_UP_NANOSECONDS: f64 = 2_000.0;

/// What `image_bench index` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Indexed {
    digest: String,
    entries: u64,
    bytes: u64,
    compressed: u64,
    index_bytes: u64,
    cpu_seconds: f64,
    seconds: f64,
    peak_kib: u64,
}

/// What `image_bench look` prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Looked {
    entries: u64,
    open_seconds: f64,
    look_up_nanoseconds: f64,
    resident_kib: u64,
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    debian: Indexed,
    umoci_cpu_seconds: f64,
    many: Indexed,
    look_ups: Looked,
    scans: Scans,
    sealed: SealedFiles,
}

/// Measures, prints, writes the section if asked to; fails when a budget is missed.
pub(crate) fn run(format: BenchFormat, write_docs: bool) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (umoci, root, aide, packaged) = {
        let cache = Cache::open()?;
        let root = unpacked::debians(&cache)?;
        let packaged = PackagedRoot::make(&cache, &root, &scans::PACKAGED, &folder.path().join("rpm"))?;
        (unpacked::umoci(&cache)?, root, scans::aide(&cache)?, packaged)
    };
    say("bench", "the index of an image, and comparisons of a whole tree; three minutes");
    let program = program()?;
    let place = |name: &str| folder.path().join(name);
    let image = |action: &str, first: &Path, second: &str| {
        let mut command = Command::new(&program);
        command.arg(action).arg(first).arg(second);
        command
    };
    let layout = place("debian");
    layout_of(&umoci, &root, &layout)?;
    let debian: Indexed = json(&mut image("index", &layout, &place("state").display().to_string()))?;
    let umoci_cpu_seconds = unpack(&umoci, &layout, &place("unpacked"))?;
    let scans = scans::measure(&program, &aide, &root, &place("state"), &debian.digest, &packaged)?;
    let layout = place("many");
    output(&mut image("make", &layout, &FILES.to_string()))?;
    let many: Indexed = json(&mut image("index", &layout, &place("state").display().to_string()))?;
    let look_ups: Looked = json(&mut image("look", &place("state"), &many.digest))?;
    let sealed = sealed::measure()?;
    let measured = Measured { debian, umoci_cpu_seconds, many, look_ups, scans, sealed };
    match format {
        BenchFormat::Json => println!("{}", serde_json::to_string_pretty(&measured)?),
        BenchFormat::Table => print!("{}", table(&measured)),
    }
    if write_docs {
        page::write(IMAGES, &section(&measured))?;
    }
    let mut missed = misses(&measured.look_ups);
    missed.extend(measured.scans.missed());
    missed.extend(measured.sealed.missed());
    if !missed.is_empty() {
        bail!("{}", missed.join("; "));
    }
    Ok(())
}

/// Builds the example; gives its path.
fn program() -> Result<PathBuf> {
    let mut command = cargo();
    command
        .args(["build", "--quiet", "--release", "-p", "sensor-user", "--example", "image_bench"])
        .args(["--message-format", "json"])
        .current_dir(dist::root());
    let messages = output(&mut command)?;
    let found = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut found = found.filter(|message| message["target"]["name"] == "image_bench");
    let path = found.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.context("cargo has named no executable")
}

/// An image with the files of a folder in one compressed layer.
fn layout_of(umoci: &Path, root: &Path, layout: &Path) -> Result<()> {
    let image = format!("{}:latest", layout.display());
    output(Command::new(umoci).arg("init").arg("--layout").arg(layout))?;
    output(Command::new(umoci).args(["new", "--image", &image]))?;
    output(Command::new(umoci).args(["insert", "--image", &image]).arg(root).arg("/")).map(drop)
}

/// Seconds of CPU in which umoci unpacks an image.
fn unpack(umoci: &Path, layout: &Path, into: &Path) -> Result<f64> {
    let image = format!("{}:latest", layout.display());
    let mut command = Command::new(umoci);
    command.args(["raw", "unpack", "--image", &image]).arg(into);
    let spent = processor_seconds(&command, 0)?;
    fs::remove_dir_all(into)?;
    Ok(spent)
}

fn misses(looked: &Looked) -> Vec<String> {
    let mut missed = Vec::new();
    if looked.look_up_nanoseconds > LOOK_UP_NANOSECONDS {
        missed.push(format!("a look-up: {:.0} ns of {LOOK_UP_NANOSECONDS} ns", looked.look_up_nanoseconds));
    }
    let resident = mebibytes(looked.resident_kib);
    if resident > RESIDENT_MEBIBYTES {
        missed.push(format!("memory: {resident:.1} MiB of {RESIDENT_MEBIBYTES} MiB"));
    }
    missed
}

#[expect(clippy::cast_precision_loss, reason = "the numbers are far below 2^52")]
fn mebibytes(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Uncompressed MiB for each second.
fn speed(indexed: &Indexed, seconds: f64) -> f64 {
    mebibytes(indexed.bytes / 1024) / seconds
}

fn rows(measured: &Measured) -> Vec<(String, String, String)> {
    let Measured { debian, umoci_cpu_seconds, many, look_ups, scans, sealed } = measured;
    let row = |what: &str, value: String, limit: &str| (what.to_owned(), value, limit.to_owned());
    let per_entry = many.index_bytes / many.entries.max(1);
    let mut rows = vec![
        row(
            &format!("index of a Debian with {} paths, by CPU time", debian.entries),
            format!("{:.0} MiB/s", speed(debian, debian.cpu_seconds)),
            "",
        ),
        row(
            "the same image unpacked by umoci",
            format!("{:.0} MiB/s", speed(debian, *umoci_cpu_seconds)),
            "",
        ),
        row(
            "CPU time of umoci for each of the index",
            format!("{:.1}", umoci_cpu_seconds / debian.cpu_seconds),
            "",
        ),
        row("memory at its highest, while indexing", format!("{:.1} MiB", mebibytes(debian.peak_kib)), ""),
        row(
            &format!("index file of {} paths", many.entries),
            format!("{:.1} MiB ({per_entry} bytes a path)", mebibytes(many.index_bytes / 1024)),
            "",
        ),
        row(
            "memory at its highest, while indexing those",
            format!("{:.1} MiB", mebibytes(many.peak_kib)),
            "",
        ),
        row("open and verify that index", format!("{:.1} ms", look_ups.open_seconds * 1e3), ""),
        row(
            "memory of the opened index",
            format!("{:.1} MiB", mebibytes(look_ups.resident_kib)),
            &format!("{RESIDENT_MEBIBYTES:.1} MiB"),
        ),
        row(
            "one look-up",
            format!("{:.0} ns", look_ups.look_up_nanoseconds),
            &format!("{LOOK_UP_NANOSECONDS:.0} ns"),
        ),
    ];
    rows.extend(scans.rows());
    rows.push(sealed.row());
    rows
}

fn table(measured: &Measured) -> String {
    let mut out = String::new();
    for (what, value, limit) in rows(measured) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(out, "{what:56} {value:>28} {limit:>12}");
    }
    out
}

fn section(measured: &Measured) -> String {
    let mut out = format!(
        "{IMAGES}\nWritten by `cargo xtask bench --images --write-docs`. The image is that of two of the guests' disks, in one layer\n\
         with gzip. MiB are uncompressed. umoci unpacks the same image to a disk in the same run. The figures of a look-up are the\n\
         cheapest of 8 passes over all paths, with the index file in the page cache. AIDE, dpkg and rpm compare the same trees in the\n\
         same run. dpkg makes the MD5 of each file, and Holdfast its SHA-256, which the index has. rpm makes the SHA-256. The files with fs-verity are in a virtual machine of\n\
         kernel 6.12, which counts instructions; a scan has read each of them once before.\n\n\
         | | measured | at most |\n|---|--:|--:|\n"
    );
    for (what, value, limit) in rows(measured) {
        let _ = writeln!(out, "| {what} | {value} | {limit} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budgets_of_a_look_up_are_judged() {
        let looked = |look_up_nanoseconds, resident_kib| Looked {
            entries: 1,
            open_seconds: 0.0,
            look_up_nanoseconds,
            resident_kib,
        };
        assert_eq!(misses(&looked(1_999.0, 10_240)), [""; 0]);
        assert_eq!(
            misses(&looked(2_001.0, 11_264)),
            ["a look-up: 2001 ns of 2000 ns", "memory: 11.0 MiB of 10 MiB"]
        );
    }
}
