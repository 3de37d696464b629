//! Image layouts, made by hand.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

/// How a layer is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stored {
    Plain,
    Gzip,
    Zstd,
}

/// A directory with an image layout.
#[derive(Debug)]
pub(crate) struct LayoutMaker {
    pub(crate) path: PathBuf,
    manifests: Vec<Value>,
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// A layer with the digest of its uncompressed bytes, its stored bytes, its media type and its line of the history.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) diff_id: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) media_type: &'static str,
    pub(crate) history: &'static str,
    /// The packages of a layer of an encapsulated ostree commit; empty for other layers.
    pub(crate) components: &'static str,
}

impl Layer {
    pub(crate) fn new(archive: &[u8], stored: Stored, history: &'static str) -> Self {
        let (bytes, media_type) = match stored {
            Stored::Plain => (archive.to_vec(), "application/vnd.oci.image.layer.v1.tar"),
            Stored::Gzip => {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gzip.write_all(archive).unwrap();
                (gzip.finish().unwrap(), "application/vnd.oci.image.layer.v1.tar+gzip")
            }
            Stored::Zstd => {
                let level = ruzstd::encoding::CompressionLevel::Fastest;
                // Two frames, with one between them that readers skip.
                let (first, second) = archive.split_at(archive.len() / 2);
                let mut bytes = ruzstd::encoding::compress_to_vec(first, level);
                bytes.extend_from_slice(&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
                bytes.extend(ruzstd::encoding::compress_to_vec(second, level));
                (bytes, "application/vnd.oci.image.layer.v1.tar+zstd")
            }
        };
        Self { diff_id: digest(archive), bytes, media_type, history, components: "" }
    }

    /// The same with the annotation that names its packages.
    pub(crate) fn with_components(self, components: &'static str) -> Self {
        Self { components, ..self }
    }
}

impl LayoutMaker {
    pub(crate) fn new(path: &Path) -> Self {
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        let maker = Self { path: path.to_owned(), manifests: Vec::new() };
        maker.write_index();
        maker
    }

    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        self.path.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
    }

    /// Adds a blob; gives its descriptor.
    pub(crate) fn blob(&self, bytes: &[u8], media_type: &str) -> Value {
        let digest = digest(bytes);
        fs::write(self.blob_path(&digest), bytes).unwrap();
        json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
    }

    /// Adds the manifest of an image; gives its descriptor.
    pub(crate) fn manifest(&self, layers: &[Layer], architecture: &str) -> Value {
        let mut history = vec![json!({ "created_by": "LABEL a=b", "empty_layer": true })];
        history.extend(layers.iter().map(|layer| json!({ "created_by": layer.history })));
        let diff_ids: Vec<_> = layers.iter().map(|layer| &layer.diff_id).collect();
        let config = json!({
            "architecture": architecture, "os": "linux", "created": "2026-01-02T03:04:05Z",
            "rootfs": { "type": "layers", "diff_ids": diff_ids }, "history": history,
            "config": { "Labels": { "machineconfig": "rendered-0" } },
        });
        let config = self.blob(config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json");
        let described = |layer: &Layer| {
            let mut descriptor = self.blob(&layer.bytes, layer.media_type);
            if !layer.components.is_empty() {
                descriptor["annotations"] = json!({ "ostree.components": layer.components });
            }
            descriptor
        };
        let layers: Vec<_> = layers.iter().map(described).collect();
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers });
        let mut descriptor = self.blob(manifest.to_string().as_bytes(), media_type);
        descriptor["platform"] = json!({ "os": "linux", "architecture": architecture });
        descriptor
    }

    /// Names a manifest or an index in `index.json`.
    pub(crate) fn name(&mut self, mut descriptor: Value, name: &str) {
        descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        self.manifests.push(descriptor);
        self.write_index();
    }

    /// Adds an image index; gives its descriptor.
    pub(crate) fn index(&self, manifests: &[Value]) -> Value {
        let media_type = "application/vnd.oci.image.index.v1+json";
        let index = json!({ "schemaVersion": 2, "mediaType": media_type, "manifests": manifests });
        self.blob(index.to_string().as_bytes(), media_type)
    }

    fn write_index(&self) {
        let index = json!({ "schemaVersion": 2, "manifests": self.manifests });
        fs::write(self.path.join("index.json"), index.to_string()).unwrap();
    }

    /// A layout with one image; gives the digest of its manifest.
    pub(crate) fn one(path: &Path, layers: &[Layer]) -> String {
        let mut maker = Self::new(path);
        let descriptor = maker.manifest(layers, "amd64");
        let digest = descriptor["digest"].as_str().unwrap().to_owned();
        maker.name(descriptor, "latest");
        digest
    }
}
