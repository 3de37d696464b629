use super::super::{
    Choice, Compression, ManifestDocument, Platform, is_digest, parse_config, parse_document,
};
use serde_json::json;

fn digest(digit: char) -> String {
    format!("sha256:{}", digit.to_string().repeat(64))
}

fn layer(media_type: &str) -> serde_json::Value {
    json!({ "mediaType": media_type, "digest": digest('b'), "size": 2 })
}

fn manifest(media_type: &str) -> Vec<u8> {
    let config =
        json!({ "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest('a'), "size": 1 });
    json!({ "schemaVersion": 2, "config": config, "layers": [layer(media_type)] }).to_string().into_bytes()
}

#[test]
fn the_media_type_of_a_layer_names_its_compression() {
    for (media_type, compression) in [
        ("application/vnd.oci.image.layer.v1.tar", Compression::None),
        ("application/vnd.oci.image.layer.v1.tar+gzip", Compression::Gzip),
        ("application/vnd.oci.image.layer.v1.tar+zstd", Compression::Zstd),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression::Gzip),
    ] {
        let Ok(ManifestDocument::Manifest(read)) = parse_document(&manifest(media_type)) else { panic!() };
        assert_eq!((read.layers[0].1, read.layers[0].0.digest.clone()), (compression, digest('b')));
    }
    let refused = parse_document(&manifest("application/vnd.oci.image.layer.v1.tar+encrypted")).unwrap_err();
    assert!(refused.to_string().contains("are not supported"), "{refused}");
}

#[test]
fn a_document_that_is_both_a_manifest_and_an_index_is_refused() {
    let mut both: serde_json::Value =
        serde_json::from_slice(&manifest("application/vnd.oci.image.layer.v1.tar")).unwrap();
    both["manifests"] = json!([]);
    assert!(parse_document(both.to_string().as_bytes()).unwrap_err().to_string().contains("both"));
    for json in ["{}", "[]", "", "{\"manifests\": 1}", "{\"layers\": []}"] {
        assert!(parse_document(json.as_bytes()).is_err(), "{json}");
    }
}

#[test]
fn a_key_that_tools_in_go_take_for_a_field_is_refused() {
    let read = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).unwrap();
    let with = |document: &serde_json::Value, at: &str, key: &str| {
        let mut other = document.clone();
        other.pointer_mut(at).unwrap()[key] = json!("other");
        other.to_string().into_bytes()
    };
    let manifest = read(&manifest("application/vnd.oci.image.layer.v1.tar"));
    for (at, key) in [
        ("", "Layers"),
        ("", "layer\u{17f}"),
        ("", "CONFIG"),
        ("/config", "Digest"),
        ("/layers/0", "DIGEST"),
        ("/layers/0", "mediatype"),
    ] {
        let error = parse_document(&with(&manifest, at, key)).unwrap_err().to_string();
        assert!(error.contains(&format!("the key {key:?} is a field in another case")), "{error}");
    }
    let index = json!({ "manifests": [{ "digest": digest('1'), "size": 1, "platform": { "os": "linux" } }] });
    for (at, key) in [("", "Manifests"), ("/manifests/0", "Size"), ("/manifests/0/platform", "OS")] {
        assert!(parse_document(&with(&index, at, key)).is_err(), "{key}");
    }
    let config = json!({
        "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": [digest('1')] },
        "history": [{ "created_by": "RUN one" }],
        "config": { "Env": [], "Labels": { "name": "a", "Name": "b" } },
    });
    for (at, key) in
        [("", "RootFS"), ("/rootfs", "Diff_IDs"), ("/history/0", "Empty_Layer"), ("/config", "labels")]
    {
        assert!(parse_config(&with(&config, at, key), 1).is_err(), "{key}");
    }
    // The keys of maps are no fields.
    assert!(parse_config(config.to_string().as_bytes(), 1).is_ok());
    assert!(parse_document(&with(&manifest, "/layers/0", "urls")).is_ok());
}

#[test]
fn a_digest_that_could_be_a_path_is_refused() {
    for text in ["sha256:../../etc/passwd", "sha512:00", "sha256:", &digest('G'), &digest('A'), "md5:x"] {
        assert!(!is_digest(text), "{text}");
        let index = json!({ "manifests": [{ "digest": text, "size": 1 }] }).to_string();
        assert!(parse_document(index.as_bytes()).is_err(), "{text}");
    }
    assert!(is_digest(&digest('0')));
}

#[test]
fn a_layer_gets_the_line_of_the_history_that_made_it() {
    let config = json!({
        "architecture": "amd64", "os": "linux", "created": "2026-01-01T00:00:00Z",
        "rootfs": { "type": "layers", "diff_ids": [digest('1'), digest('2')] },
        "history": [
            { "created_by": "/bin/sh -c #(nop) ADD file:abc in / " },
            { "created_by": "/bin/sh -c #(nop) CMD [\"bash\"]", "empty_layer": true },
            { "created_by": "/bin/sh -c dnf install -y kubelet" },
        ],
    });
    let read = parse_config(config.to_string().as_bytes(), 2).unwrap();
    assert_eq!(
        read.layers,
        [
            (digest('1'), Some("ADD file:abc in / ".to_owned())),
            (digest('2'), Some("RUN dnf install -y kubelet".to_owned())),
        ]
    );
    assert_eq!((read.platform.to_string().as_str(), read.ostree), ("linux/amd64", false));
}

#[test]
fn a_history_that_does_not_fit_the_layers_blames_none() {
    let config = json!({
        "architecture": "amd64", "os": "linux", "rootfs": { "diff_ids": [digest('1'), digest('2')] },
        "history": [{ "created_by": "RUN one" }], "config": { "Labels": { "ostree.commit": "abc" } },
    });
    let read = parse_config(config.to_string().as_bytes(), 2).unwrap();
    assert!(read.layers.iter().all(|(_, line)| line.is_none()) && read.ostree);
    let wrong = parse_config(config.to_string().as_bytes(), 3).unwrap_err();
    assert_eq!(wrong.to_string(), "it has 2 diff_ids, and the manifest has 3 layers");
}

#[test]
fn the_label_with_a_rendered_config_counts_if_an_object_may_have_that_name() {
    let labelled = |name: &str| {
        let config = json!({
            "architecture": "amd64", "os": "linux", "rootfs": { "diff_ids": [digest('1')] },
            "config": { "Labels": { "machineconfig": name } },
        });
        parse_config(config.to_string().as_bytes(), 1).unwrap().machine_config
    };
    assert_eq!(labelled("rendered-worker-0a").as_deref(), Some("rendered-worker-0a"));
    for other in ["", "rendered\n2", "Rendered", "a b", &"a".repeat(254)] {
        assert_eq!(labelled(other), None, "{other}");
    }
}

#[test]
fn a_platform_without_a_variant_is_that_of_any_variant() {
    let platform = |text: &str| text.parse::<Platform>().unwrap();
    assert!(platform("linux/arm64/v8").is(&platform("linux/arm64")));
    assert!(platform("linux/arm64").is(&platform("linux/arm64/v8")));
    assert!(!platform("linux/arm/v6").is(&platform("linux/arm/v7")));
    assert!(!platform("linux/amd64").is(&platform("linux/arm64")));
    for text in ["linux", "/amd64", "linux/", "a/b/c/d"] {
        assert!(text.parse::<Platform>().is_err(), "{text}");
    }
    assert_eq!(Choice::default().platform, None);
}
