//! The image that a commit was made from.

use super::{COMMIT, bytes};
use crate::{
    image::{ConfigError, ManifestError},
    ostree::{Commit, CommitImage, CommitImageError, LayerContent, variant},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What `GLib` (2.74) made of a dictionary with the texts `version` and `ostree.manifest-digest`, a number, a list, and the text `n`.
const DICTIONARY: &str = "76657273696f6e0031000073080000006f73747265652e6d616e69666573742d64696765737400007368613235363a3030000073170000006e756d626572000007000000007507006f73747265652e7265662d62696e64696e670000000000006f732f763100060061731300000000006e00000000000000000073020d35476b7c";

fn digest(digit: char) -> String {
    format!("sha256:{}", digit.to_string().repeat(64))
}

/// A commit with these texts.
fn commit(texts: &[(&str, String)]) -> Commit {
    let texts: BTreeMap<String, String> =
        texts.iter().map(|(key, text)| ((*key).to_owned(), text.clone())).collect();
    Commit { texts: Some(texts), ..Commit::parse(&bytes(COMMIT)).unwrap() }
}

/// The image of a commit with three layers, whose uncompressed digests are 1, 2 and 3, and with these labels.
fn image(labels: &Value) -> Result<Option<CommitImage>, CommitImageError> {
    let layer = |digit| json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(digit), "size": 5});
    let manifest =
        json!({"config": {"digest": digest('f'), "size": 2}, "layers": (['a', 'b', 'c'].map(layer))});
    let config = json!({
        "os": "linux",
        "architecture": "amd64",
        "config": {"Labels": labels},
        "rootfs": {"diff_ids": (['1', '2', '3'].map(digest))},
        "history": [
            {"created_by": "base"},
            {"created_by": "/bin/sh -c #(nop) CMD run", "empty_layer": true},
            {"created_by": "chunk"},
            {"created_by": "/bin/sh -c dnf install -y tool"},
        ],
    });
    commit(&[
        ("ostree.manifest-digest", digest('e')),
        ("ostree.manifest", manifest.to_string()),
        ("ostree.container.image-config", config.to_string()),
    ])
    .image()
}

fn contents(image: &CommitImage) -> Vec<LayerContent> {
    image.layers.iter().map(|layer| layer.content).collect()
}

#[test]
fn the_texts_of_a_dictionary_are_those_that_glib_wrote() {
    let whole = bytes(DICTIONARY);
    let texts: Vec<_> = variant::texts(&whole).unwrap().into_iter().collect();
    assert_eq!(texts, [("n", ""), ("ostree.manifest-digest", "sha256:00"), ("version", "1")]);
    assert_eq!(variant::texts(b""), Some(BTreeMap::new()));
    for length in 1..whole.len() {
        let cut = variant::texts(&whole[..length]);
        assert!(cut.is_none_or(|texts| texts.len() < 3), "{length}");
    }
}

#[test]
fn a_commit_of_an_image_names_its_layers_with_their_lines_of_history() {
    let image = image(&json!({})).unwrap().unwrap();
    assert_eq!(
        (image.digest, image.config, image.platform),
        (digest('e'), digest('f'), "linux/amd64".into())
    );
    let layers: Vec<_> = image
        .layers
        .iter()
        .map(|layer| {
            (layer.meta.digest.clone(), layer.meta.diff_id.clone(), layer.meta.history.clone().unwrap())
        })
        .collect();
    let layer = |one, two, history: &str| (digest(one), digest(two), history.to_owned());
    let expected =
        [layer('a', '1', "base"), layer('b', '2', "chunk"), layer('c', '3', "RUN dnf install -y tool")];
    assert_eq!(layers, expected);
    let reference = format!("refs/heads/ostree/container/blob/sha256_3A_{}", "b".repeat(64));
    assert_eq!(image.layers[1].reference, reference);
}

#[test]
fn the_label_says_which_layers_are_those_of_the_base() {
    use LayerContent::{Changes, Files, Tree};
    let contents = |labels| contents(&image(&labels).unwrap().unwrap());
    assert_eq!(contents(json!(null)), [Changes, Changes, Changes]);
    for (last, expected) in
        [('1', [Tree, Changes, Changes]), ('2', [Tree, Files, Changes]), ('3', [Tree, Files, Files])]
    {
        assert_eq!(contents(json!({"ostree.final-diffid": digest(last)})), expected);
    }
    let unknown = image(&json!({"ostree.final-diffid": digest('9')}));
    assert_eq!(unknown, Err(CommitImageError::End));
}

#[test]
fn a_commit_that_was_made_in_another_way_has_no_image() {
    assert_eq!(commit(&[("version", "1".to_owned())]).image(), Ok(None));
    let unread = Commit { texts: None, ..commit(&[]) };
    assert_eq!((unread.image(), unread.image_digest()), (Err(CommitImageError::Metadata), None));
}

#[test]
fn metadata_that_is_no_image_is_refused_with_the_key() {
    let empty = json!({"config": {"digest": digest('f'), "size": 2}, "layers": []}).to_string();
    let whole = [
        ("ostree.manifest-digest", digest('e')),
        ("ostree.manifest", empty),
        (
            "ostree.container.image-config",
            json!({"os": "", "architecture": "", "rootfs": {"diff_ids": []}}).to_string(),
        ),
    ];
    assert!(commit(&whole).image().unwrap().unwrap().layers.is_empty());
    assert_eq!(commit(&whole).image_digest(), Some(digest('e').as_str()));
    let with = |place: usize, text: &str| {
        let mut texts = whole.clone();
        texts[place].1 = text.to_owned();
        commit(&texts).image().unwrap_err()
    };
    assert_eq!(with(0, "sha256:e"), CommitImageError::Digest);
    assert_eq!(with(1, &json!({"manifests": []}).to_string()), CommitImageError::Index);
    assert!(matches!(with(1, "{"), CommitImageError::Manifest(ManifestError::Json(_))));
    // Some importers wrote this.
    assert!(matches!(with(2, "null"), CommitImageError::Config(ConfigError::Json(_))));
    for missing in 0..3 {
        let (key, _) = whole[missing];
        let mut texts = whole.to_vec();
        texts.remove(missing);
        assert_eq!(commit(&texts).image(), Err(CommitImageError::Missing(key)));
    }
}
