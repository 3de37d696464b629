//! Measures the index of an OS image, for `cargo xtask bench --images`.
//!
//! In: `make LAYOUT FILES` writes a layout with one layer of so many small files. `index LAYOUT STATE` indexes a layout and
//! prints CPU time and bytes. `look STATE DIGEST` looks every path up several times and prints time and memory. `verify STATE IMAGE ROOT`
//! compares a root directory with an index and prints CPU time; the image `packages` is indexed before.

use anyhow::{Context as _, Result, bail};
use holdfast::image::{ImageError, Images, PACKAGES, Verifier, index_image, index_packages};
use holdfast::observation::Observer;
use nix::sys::resource::{UsageWho, getrusage};
use sensor_model::image::{Choice, ImageLimits};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::{fs, io::Write as _, path::Path, time::Instant};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", layout, files] => make(Path::new(layout), files.parse()?),
        ["index", layout, state] => index(Path::new(layout), Path::new(state)),
        ["look", state, digest] => look(Path::new(state), digest),
        ["verify", state, image, root] => verify(&Images::of(Path::new(state)), image, Path::new(root)),
        _ => bail!("make LAYOUT FILES, index LAYOUT STATE, look STATE DIGEST, or verify STATE IMAGE ROOT"),
    }
}

/// Seconds of CPU that this process took.
fn cpu() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: nix::sys::time::TimeVal| {
        let micros = i32::try_from(time.tv_usec()).unwrap_or(0);
        let whole = u32::try_from(time.tv_sec()).unwrap_or(u32::MAX);
        f64::from(whole) + f64::from(micros) / 1e6
    };
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

fn index(layout: &Path, state: &Path) -> Result<()> {
    let start = (cpu()?, Instant::now());
    let indexed =
        index_image(layout, &Choice::default(), &Images::of(state), ImageLimits::default(), &mut |_| {})?;
    let answer = json!({
        "digest": indexed.meta.digest,
        "entries": indexed.meta.entries,
        "bytes": indexed.meta.bytes,
        "compressed": indexed.meta.layers.iter().filter_map(|layer| layer.size).sum::<u64>(),
        "index_bytes": indexed.size,
        "cpu_seconds": cpu()? - start.0,
        "seconds": start.1.elapsed().as_secs_f64(),
        "peak_kib": status("VmHWM")?,
    });
    writeln!(std::io::stdout(), "{answer}")?;
    Ok(())
}

fn look(state: &Path, digest: &str) -> Result<()> {
    const ROUNDS: u32 = 8;
    let images = Images::of(state);
    let before = status("RssAnon")?;
    let start = cpu()?;
    let index = images.open(digest)?;
    let open_seconds = cpu()? - start;
    let resident = status("RssAnon")?.saturating_sub(before);
    let mut paths = Vec::new();
    index.each(|path, _| {
        paths.push(path.to_vec());
        Ok::<(), ImageError>(())
    })?;
    let mut cheapest = f64::MAX;
    for round in 0..ROUNDS {
        // Another order than that of the file.
        let order = (0..paths.len()).map(|place| place.wrapping_mul(7919 + round as usize * 2) % paths.len());
        let start = cpu()?;
        for place in order {
            if index.find(&paths[place])?.is_none() {
                bail!("a path of the index is not found");
            }
        }
        cheapest = cheapest.min(cpu()? - start);
    }
    let lookups = u32::try_from(paths.len())?;
    let answer = json!({
        "entries": lookups,
        "open_seconds": open_seconds,
        "look_up_nanoseconds": cheapest * 1e9 / f64::from(lookups),
        "resident_kib": resident,
    });
    writeln!(std::io::stdout(), "{answer}")?;
    Ok(())
}

fn verify(images: &Images, image: &str, root: &Path) -> Result<()> {
    let observer = Observer::new(root)?;
    if image == PACKAGES {
        index_packages(&observer, images, &mut |_, _| {})?;
    }
    let index = images.open(image)?;
    let start = cpu()?;
    let verified = Verifier::new(&index, &observer, root).all(&[], false, &mut |_| {})?;
    let answer = json!({
        "compared": verified.compared, "differing": verified.differing.len(), "cpu_seconds": cpu()? - start,
    });
    writeln!(std::io::stdout(), "{answer}")?;
    Ok(())
}

/// A number of `/proc/self/status`, in KiB.
fn status(field: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with(field)).context("the field is missing")?;
    Ok(line.split_whitespace().nth(1).context("the field has no number")?.parse()?)
}

/// Writes a layout with one image, whose paths are as long as those of a distribution.
fn make(layout: &Path, files: u32) -> Result<()> {
    let mut archive = Vec::new();
    for number in 0..files {
        let name =
            format!("usr/share/doc/package-{:05}/part-{:03}/file-{number:07}.txt", number / 400, number / 20);
        let content = format!("{number:0100}");
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, b"0000644\x000000000\x000000000\0");
        put(124, format!("{:011o}\000000000000\0        0", content.len()).as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&block);
        archive.extend_from_slice(content.as_bytes());
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.extend_from_slice(&[0; 1024]);
    fs::create_dir_all(layout.join("blobs/sha256"))?;
    let blob = |bytes: &[u8], media_type: &str| -> Result<serde_json::Value> {
        let digest = hex::encode(Sha256::digest(bytes));
        fs::write(layout.join("blobs/sha256").join(&digest), bytes)?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
    };
    let layer = blob(&archive, "application/vnd.oci.image.layer.v1.tar")?;
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] }, "history": [{ "created_by": "ADD" }],
    });
    let config = blob(config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json")?;
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
    let manifest = blob(manifest.to_string().as_bytes(), media_type)?;
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    fs::write(layout.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string())?;
    Ok(())
}
