//! Images of containers, made without a registry and without a builder.
//!
//! In: files and what to run. Out: an archive that `ctr -n k8s.io images import` reads (`manifest.json`, the
//! config and one layer, as `docker save` writes them). Equal inputs give equal archives.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::tar::Archive;
use crate::dist::{self, Profile};

/// The name of the image whose container holds a pod's namespaces.
pub(crate) const PAUSE: &str = "localhost/pause:holdfast";
/// The program of that image, here and in it.
const PAUSE_PROGRAM: &str = "holdfast-pause";

/// A file of an image.
#[derive(Debug, Clone)]
pub(crate) struct ImageFile {
    /// Where it is in the container.
    pub(crate) path: String,
    /// Its permission bits.
    pub(crate) mode: u32,
    /// Its content.
    pub(crate) content: Vec<u8>,
}

/// What containers of an image run.
#[derive(Debug, Clone, Default)]
pub(crate) struct ImageConfig {
    /// The program and its first arguments.
    pub(crate) entrypoint: Vec<String>,
    /// Environment, as `NAME=VALUE`.
    pub(crate) environment: Vec<String>,
    /// The numeric user, if it is not root.
    pub(crate) user: Option<u32>,
}

/// An image's archive. The name has a tag, and in the pods `imagePullPolicy` is `Never`.
pub(crate) fn image_tar(name: &str, files: &[ImageFile], config: &ImageConfig) -> Result<Vec<u8>> {
    let mut layer = Archive::default();
    for file in files {
        layer.file(&file.path, file.mode, file.content.clone()).with_context(|| format!("image {name}"))?;
    }
    let layer = layer.finish();
    let digest = digest(&layer);
    let described = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": config.entrypoint,
            "Env": config.environment,
            "User": config.user.map(|user| user.to_string()).unwrap_or_default(),
            "WorkingDir": "/",
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
        "history": [{ "created_by": "cargo xtask" }],
    });
    let described = serde_json::to_vec(&described)?;
    let (config_path, layer_path) = (format!("{}.json", self::digest(&described)), format!("{digest}.tar"));
    let manifest = json!([{ "Config": config_path, "RepoTags": [name], "Layers": [layer_path] }]);
    let mut image = Archive::default();
    image.file("manifest.json", 0o644, serde_json::to_vec(&manifest)?)?;
    image.file(&config_path, 0o644, described)?;
    image.file(&layer_path, 0o644, layer)?;
    Ok(image.finish())
}

/// Builds the image `PAUSE`.
pub(crate) fn pause() -> Result<Vec<u8>> {
    let program = dist::build_static("vm-tests", PAUSE_PROGRAM, Profile::Dev, &[])?;
    let content = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    let path = format!("/{PAUSE_PROGRAM}");
    let config = ImageConfig { entrypoint: vec![path.clone()], ..ImageConfig::default() };
    image_tar(PAUSE, &[ImageFile { path, mode: 0o755, content }], &config)
}

/// SHA-256 in hexadecimal.
fn digest(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::Path;
    use std::process::Command;

    use object::Object as _;
    use serde_json::Value;

    use super::*;
    use crate::run::output;

    fn image(name: &str) -> Vec<u8> {
        let file = ImageFile { path: "/bin/sensor".into(), mode: 0o755, content: b"program".to_vec() };
        let config = ImageConfig {
            entrypoint: vec!["/bin/sensor".into(), "agent".into()],
            environment: vec!["A=b".into()],
            user: Some(65_000),
        };
        image_tar(name, &[file], &config).unwrap()
    }

    /// Unpacks an image into `image` and its layer into `root`; gives the manifest and the config.
    fn unpack(image: &[u8], folder: &Path) -> (Value, Value) {
        fs::write(folder.join("image.tar"), image).unwrap();
        let unpack = |from: &str, to: &str| {
            fs::create_dir_all(folder.join(to)).unwrap();
            output(Command::new("tar").args(["-xf", from, "-C", to]).current_dir(folder)).unwrap();
        };
        unpack("image.tar", "image");
        let json = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(folder.join("image").join(name)).unwrap()).unwrap()
        };
        let manifest = json("manifest.json")[0].clone();
        unpack(&format!("image/{}", manifest["Layers"][0].as_str().unwrap()), "root");
        let config = json(manifest["Config"].as_str().unwrap());
        (manifest, config)
    }

    #[test]
    fn the_manifest_leads_to_the_config_and_the_config_to_the_layer_by_their_digests() {
        let folder = tempfile::tempdir().unwrap();
        let (manifest, config) = unpack(&image("localhost/sensor:1"), folder.path());
        let read = |name: &Value| fs::read(folder.path().join("image").join(name.as_str().unwrap())).unwrap();
        assert_eq!(manifest["RepoTags"], json!(["localhost/sensor:1"]));
        assert_eq!(manifest["Config"], format!("{}.json", digest(&read(&manifest["Config"]))));
        assert_eq!(config["config"]["Entrypoint"], json!(["/bin/sensor", "agent"]));
        assert_eq!(config["config"]["Env"], json!(["A=b"]));
        assert_eq!(config["config"]["User"], "65000");
        let layer = digest(&read(&manifest["Layers"][0]));
        assert_eq!(config["rootfs"]["diff_ids"], json!([format!("sha256:{layer}")]));
        assert_eq!(fs::read(folder.path().join("root/bin/sensor")).unwrap(), b"program");
    }

    /// The program is built for guests, so this runs where they are built too.
    #[test]
    #[ignore = "builds the program of the image"]
    fn the_program_of_the_pause_image_runs_without_libraries_until_it_is_asked_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let (manifest, config) = unpack(&pause().unwrap(), folder.path());
        assert_eq!(manifest["RepoTags"], json!([PAUSE]));
        let program =
            folder.path().join(format!("root{}", config["config"]["Entrypoint"][0].as_str().unwrap()));
        let bytes = fs::read(&program).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        assert!(elf.section_by_name(".interp").is_none(), "it needs a dynamic linker");
        let mut process = Command::new(&program).spawn().unwrap();
        output(Command::new("kill").arg(process.id().to_string())).unwrap();
        // A signal before the program has blocked it ends it too, by that signal.
        let ended = process.wait().unwrap();
        assert!(ended.success() || ended.signal() == Some(15), "{ended}");
    }

    #[test]
    fn equal_images_have_equal_archives() {
        assert_eq!(image("localhost/sensor:1"), image("localhost/sensor:1"));
        assert_ne!(image("localhost/sensor:1"), image("localhost/sensor:2"));
    }
}
