//! The bodies of the fuzz targets.
//!
//! In: any bytes. A target panics if a property does not hold. `cargo xtask fuzz` runs the targets from `sensor-model/fuzz` with
//! libFuzzer. The tests here run them without it on the seeds, on changed seeds and on random bytes.

#![expect(clippy::missing_panics_doc, reason = "a fuzz target reports by a panic")]

mod host;
mod images;
mod plans;
mod records;
#[cfg(test)]
mod tests;

pub use host::{accounts, btf, dpkg, fanotify, install, mountinfo, process_stat, rpm};
pub use images::{image_document, image_index, image_layer};
pub use plans::{node_disruption, plan, registries, selinux};
pub use records::{cgroup, drift_policy, forensic_log, journal};

use crate::{
    authorized_keys, data_url,
    expectation::{Expected, FileExpectation},
    expectations,
    ignition::{self, Dialect},
    machine_config, merge, xattr,
};
use sha2::{Digest as _, Sha256};

/// A manifest file: after the merge every thing is unique, and the decoded bytes have the expected digest.
pub fn manifest(data: &[u8]) {
    let manifest = match machine_config::parse("fuzz", data) {
        Ok(manifest) => manifest,
        Err(error) => {
            assert!(!error.object.is_empty() && !error.field.is_empty());
            return;
        }
    };
    let Ok(rendered) = merge::merge(manifest.machine_configs) else { return };
    let Ok(found) = expectations::expectations(&rendered) else { return };
    for pair in found.windows(2) {
        assert!(pair[0].thing < pair[1].thing, "sorted and unique: {:?}", pair[1].thing);
    }
    for expectation in &found {
        let path = expectation.thing.path();
        assert!(path.is_absolute(), "{}", path.display());
        if let Expected::File(FileExpectation { content: Some(content), mode, .. }) = &expectation.expected {
            assert!(*mode <= 0o7777);
            match expectations::expected_bytes(&rendered, &path) {
                Some(bytes) => assert_eq!(content.sha256, *Sha256::digest(&bytes), "{}", path.display()),
                // Only an empty file may have no decoded bytes.
                None => assert_eq!(content.size, 0, "{}", path.display()),
            }
        }
    }
}

/// A plain Ignition config, in both dialects: an accepted config is accepted again in the newest spec.
pub fn ignition(data: &[u8]) {
    let Ok(value) = serde_json::from_slice(data) else { return };
    for dialect in [Dialect::Plain, Dialect::MachineConfig] {
        match ignition::parse(&value, dialect) {
            Ok(parsed) => {
                let again = serde_json::to_value(&parsed.config).map(|mut json| {
                    // The config is in the newest spec's types.
                    json["ignition"]["version"] = "3.6.0".into();
                    json
                });
                let again = again.map(|json| ignition::parse(&json, dialect));
                assert!(matches!(again, Ok(Ok(_))), "what was accepted is accepted again: {again:?}");
            }
            Err(error) => assert!(!error.field.is_empty()),
        }
    }
}

/// A data URL: the content is within the limit, and encoding and decoding gives the same bytes.
pub fn data_url(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    for compression in [None, Some(""), Some("gzip"), Some("xz")] {
        if let Ok(bytes) = data_url::decode(source, compression) {
            assert!(bytes.len() <= data_url::MAXIMUM_CONTENT);
            assert_eq!(data_url::decode(&data_url::encode(&bytes), None), Ok(bytes));
        }
    }
    // The hash of other content never matches.
    assert!(data_url::verify(source, b"content").is_err() || source.contains('-'));
}

/// An `authorized_keys` file: no line is lost, and no output contains a control character.
pub fn authorized_keys(data: &[u8]) {
    let found = authorized_keys::parse(data);
    let entries = data
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .count();
    let seen = found.keys.len() + found.invalid.len();
    assert_eq!(seen, entries.min(authorized_keys::MAXIMUM_ENTRIES));
    assert_eq!(found.truncated, entries > authorized_keys::MAXIMUM_ENTRIES);
    for key in &found.keys {
        assert!(!key.to_string().contains(char::is_control));
    }
}

/// Values of the extended attributes with a readable form.
pub fn xattr(data: &[u8]) {
    for name in [
        "system.posix_acl_access",
        "system.posix_acl_default",
        "system.nfs4_acl",
        "security.capability",
        "user.x",
    ] {
        let description = xattr::describe(name, data);
        assert!(!description.contains(char::is_control));
        assert!(!(name == "user.x" && xattr::is_ignored(name, &description)));
    }
}

/// Kernel arguments, tables of verity devices and outputs of OS tools: splitting is stable, a root hash is whole, and an output is read or refused
/// with a reason.
pub fn os(data: &[u8]) {
    use crate::os::{DeploymentStatus, VerityDevice, arguments, of_origin, reference, verity_mounts};
    let text = String::from_utf8_lossy(data);
    for mount in verity_mounts(data, &text) {
        assert!(matches!(mount.root_hash.len(), 32 | 64), "{mount:?}");
    }
    if let Some(device) = VerityDevice::of_parameters(&text) {
        assert!(device.form.contains(&hex::encode(&device.root_hash)), "{device:?}");
    }
    let words = arguments::split(&text);
    assert!(arguments::missing(&words, &words).is_empty());
    assert_eq!(arguments::split(&words.join(" ")), words, "split again, the words are the same");
    for status in [
        DeploymentStatus::of_rpm_ostree(data),
        DeploymentStatus::of_bootc(data),
        DeploymentStatus::of_ostree(&text),
    ] {
        match status {
            Ok(status) => {
                let named =
                    status.next.iter().chain(&status.booted).filter_map(|found| found.image.as_deref());
                for image in named {
                    assert_eq!(reference(image), image, "no transport is left");
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(of_origin(&text, Some("c")).is("c"));
    ostree_objects(data);
}

/// Objects of an ostree repository: a directory has each name once, and none leads elsewhere. What a layer adds is of that layer, and a
/// whiteout adds nothing. A ref of a layer is one name in the directory of such refs.
fn ostree_objects(data: &[u8]) {
    use crate::ostree::{Commit, DirectoryMeta, DirectoryTree, LayerPaths};
    if let Ok(tree) = DirectoryTree::parse(data) {
        let files = tree.files.iter().map(|file| file.name.as_str());
        let names: Vec<&str> =
            files.chain(tree.directories.iter().map(|directory| directory.name.as_str())).collect();
        let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), names.len());
        assert!(names.iter().all(|name| !matches!(*name, "" | "." | "..") && !name.contains(['/', '\0'])));
        assert!(names.len() * 32 < data.len() || names.is_empty());
        let mut paths = LayerPaths::default();
        for layer in 0..2 {
            paths.add(b"/", &tree, layer).expect("a tree of these bytes is small");
            for name in &names {
                let found = paths.at(format!("/{name}").as_bytes());
                let is_whiteout =
                    name.starts_with(".wh.") && tree.files.iter().any(|file| file.name == *name);
                assert!(is_whiteout == found.is_none() && found.is_none_or(|found| found.layer <= layer));
            }
        }
    }
    if let Ok(meta) = DirectoryMeta::parse(data) {
        assert!(meta.xattrs.len() <= data.len());
    }
    if let Ok(commit) = Commit::parse(data) {
        assert!(commit.subject.len() < data.len());
        let texts = commit.texts.iter().flatten().map(|(key, text)| key.len() + text.len());
        assert!(texts.sum::<usize>() < data.len());
        match commit.image() {
            Ok(None) => {}
            Ok(Some(image)) => {
                assert_eq!(commit.image_digest(), Some(image.digest.as_str()));
                for layer in image.layers {
                    let name = layer.reference.strip_prefix("refs/heads/ostree/container/blob/sha256_3A_");
                    assert!(name.is_some_and(|name| layer.meta.digest == format!("sha256:{name}")));
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
