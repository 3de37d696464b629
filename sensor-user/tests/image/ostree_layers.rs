//! The layers of the image that an ostree commit was made from.

use crate::{
    layout::LayoutMaker,
    ostree::{FILES, booted_with, verify},
    repository::Repository,
    watched::{check, policy},
    world::{CONFIG, RunResult, World, two_layers},
};
use holdfast::{
    image::{Images, booted_image},
    observation::Observer,
};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// The image's digest, and those of its layers: the tree of an ostree commit, files of it, and what a line of the recipe changed.
const IMAGE: char = 'e';
const LAYERS: [char; 3] = ['a', 'b', 'c'];

fn digest(digit: char) -> String {
    format!("sha256:{}", digit.to_string().repeat(64))
}

/// The texts of the commit's metadata: the digest, the manifest and the config.
fn texts() -> [(&'static str, String); 3] {
    texts_of(&digest(IMAGE))
}

/// The same of an image with this digest.
pub(crate) fn texts_of(image: &str) -> [(&'static str, String); 3] {
    let layer = |digit| json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(digit), "size": 5});
    let manifest = json!({"config": {"digest": digest('f'), "size": 2}, "layers": LAYERS.map(layer)});
    let config = json!({
        "os": "linux",
        "architecture": "amd64",
        "config": {"Labels": {"ostree.final-diffid": digest('2'), "machineconfig": "rendered-1"}},
        "rootfs": {"diff_ids": (['1', '2', '3'].map(digest))},
        "history": [
            {"created_by": "base"},
            {"created_by": "packages"},
            {"created_by": "LABEL a=b", "empty_layer": true},
            {"created_by": "/bin/sh -c dnf install -y tool"},
        ],
    });
    [
        ("ostree.manifest-digest", image.to_owned()),
        ("ostree.manifest", manifest.to_string()),
        ("ostree.container.image-config", config.to_string()),
    ]
}

/// A host that booted a commit with these texts and [`FILES`]; and the refs of the layers.
fn booted(texts: &[(&str, String)]) -> (World, Repository, [PathBuf; 3]) {
    let mut refs = None;
    let (world, repository) = booted_with(|repository| {
        let [tool, other, rest @ ..] = FILES;
        let base =
            [&[("usr/bin/tool", "old", 0o755), ("usr/bin/gone", "x", 0o755), other], &rest[..]].concat();
        let changes = [("usr/bin/.wh.gone", "", 0o644), tool];
        refs = Some([
            repository.layer(&digest(LAYERS[0]), &base),
            repository.layer_of_objects(&digest(LAYERS[1]), &[repository.file(other.1, other.2)]),
            repository.layer(&digest(LAYERS[2]), &changes),
        ]);
        let texts: Vec<(&str, &str)> = texts.iter().map(|(key, text)| (*key, text.as_str())).collect();
        repository.commit_with("version 2", &texts, &FILES)
    });
    (world, repository, refs.unwrap())
}

fn index(world: &World) -> RunResult {
    world.run(&["image", "index", "--ostree", "ROOT", "STATE", "-o", "json"])
}

/// A host that booted a commit of the image, and has its index.
fn indexed() -> World {
    let (world, ..) = booted(&texts());
    let result = index(&world);
    assert_eq!((result.code, result.err.as_str()), (0, ""), "{result:?}");
    world
}

/// The path, the number of the layer, the number of layers, and the history of each difference.
fn blamed(report: &Value) -> Vec<(&str, u64, u64, &str)> {
    let all = report["differing"].as_array().unwrap().iter().map(|one| {
        let layer = &one["layer"];
        (
            one["path"].as_str().unwrap(),
            layer["number"].as_u64().unwrap(),
            layer["count"].as_u64().unwrap(),
            layer["history"].as_str().unwrap(),
        )
    });
    all.collect()
}

#[test]
fn a_difference_names_the_layer_of_the_image_that_the_commit_was_made_from() {
    let world = indexed();
    assert_eq!(verify(&world).0, 0);
    for path in ["usr/bin/tool", "usr/bin/other", "etc/app.conf", "usr/etc/app.conf"] {
        world.write_host(path, "evil", 0o755);
    }
    let (code, report) = verify(&world);
    assert_eq!(
        (code, &report["manifest"], &report["strength"]),
        (1, &digest(IMAGE).into(), &"sha256 of an ostree object".into())
    );
    assert_eq!(
        blamed(&report),
        [
            ("/etc/app.conf", 1, 3, "base"),
            ("/usr/bin/other", 2, 3, "packages"),
            ("/usr/bin/tool", 3, 3, "RUN dnf install -y tool"),
            ("/usr/etc/app.conf", 1, 3, "base"),
        ]
    );
    let text = world.run(&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG"]).out;
    for part in
        ["ostree commit: drifted", "layer 3 of 3, sha256:cc", "RUN dnf install -y tool", &digest(IMAGE)]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = world.run(&["image", "verify", "ROOT", "STATE"]).out;
    assert!(text.contains(&format!("the ostree commit of the image {}", digest(IMAGE))), "{text}");
}

#[test]
fn the_index_of_a_commit_lists_the_layers_and_then_the_commit() {
    let (world, ..) = booted(&texts());
    let image = index(&world).json("image-index")["image"].clone();
    let layers: Vec<_> =
        image["layers"].as_array().unwrap().iter().map(|layer| layer["digest"].clone()).collect();
    assert_eq!(layers, [digest('a').into(), digest('b').into(), digest('c').into(), Value::Null]);
    assert_eq!((&image["manifest"], &image["platform"]), (&digest(IMAGE).into(), &"linux/amd64".into()));
    assert!(image["layers"][3]["history"].as_str().unwrap().ends_with("(version 2)"), "{image}");
    let text = world.run(&["image", "index", "--ostree", "ROOT", "STATE"]).out;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("(version 2): 13 paths") && lines[1].contains(&digest(IMAGE)), "{text}");
    assert_eq!(lines[2], "  built from the MachineConfig rendered-1");
    assert!(lines[5].contains("layer 3 of 3, sha256:cc") && lines[6].starts_with("index file"), "{text}");
    let list = world.run(&["image", "list", "STATE"]).out;
    assert!(list.contains("3 layers"), "{list}");
}

#[test]
fn the_booted_image_names_the_config_of_the_commits_label() {
    let (world, ..) = booted(&texts());
    let observer = Observer::new(&world.at("root")).unwrap();
    let found = booted_image(&observer, &Images::of(&world.at("state"))).unwrap();
    assert_eq!((found.digest, found.config), (Some(digest(IMAGE)), Some("rendered-1".to_owned())));
}

#[test]
fn a_directory_whose_label_alone_differs_is_of_its_layer() {
    let world = indexed();
    fs::remove_dir_all(world.at("root/usr/bin")).unwrap();
    let (_, report) = verify(&world);
    assert_eq!(blamed(&report)[0], ("/usr/bin", 1, 3, "base"));
}

#[test]
fn what_no_layer_has_is_blamed_on_the_commit_itself() {
    let (world, repository, _) = booted(&texts());
    // No layer has the first file, and the layer of the second one has another content there.
    let texts = texts();
    let texts: Vec<(&str, &str)> = texts.iter().map(|(key, text)| (*key, text.as_str())).collect();
    let files = [("usr/bin/local", "x", 0o755), ("usr/bin/tool", "x", 0o755)];
    world.boot_commit(&repository.commit_with("local", &texts, &files));
    assert_eq!(index(&world).code, 0);
    let (_, report) = verify(&world);
    let differing = report["differing"].as_array().unwrap();
    for (found, path) in differing.iter().zip(["/usr/bin/local", "/usr/bin/tool"]) {
        assert_eq!((&found["path"], &found["layer"]["digest"]), (&path.into(), &Value::Null), "{report}");
        assert!(found["layer"]["history"].as_str().unwrap().starts_with("ostree commit "), "{report}");
    }
    let text = world.run(&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG"]).out;
    assert!(text.contains("put there by  ostree commit") && !text.contains("layer 4"), "{text}");
}

#[test]
fn the_record_of_a_drift_names_the_layer() {
    let world = indexed();
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    world.write_host("etc/motd", "declared", 0o644);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    policy(&world, "  - {path: /usr/bin/tool, image: true, action: degrade}\n");
    world.write_host("usr/bin/tool", "evil", 0o755);
    let (_, drifted) = check(&world);
    let source = "layer 3 of 3, sha256:cccccccccccc…, `RUN dnf install -y tool`";
    assert_eq!(drifted[0], ("/usr/bin/tool".to_owned(), source.to_owned(), "content".to_owned()));
    let checked =
        |more: &[&str]| world.run(&[&["check", "CONFIG", "POLICY", "HOST", "STATE"], more].concat());
    let report = checked(&["-o", "json"]).json("check");
    assert_eq!(report["drifted"][0]["strength"], "sha256 of an ostree object");
    let text = checked(&[]).out;
    assert!(text.contains(&format!("({source}; sha256 of an ostree object)")), "{text}");
}

#[test]
fn without_one_of_the_layers_the_commit_is_to_blame_and_a_warning_says_what_is_missing() {
    let is_of_commit = |world: &World, part: &str| {
        let result = index(world);
        assert!(result.code == 0 && result.err.contains(part), "{part}: {result:?}");
        let image = result.json("image-index")["image"].clone();
        let layers = image["layers"].as_array().unwrap();
        assert_eq!((layers.len(), &image["manifest"]), (1, &digest(IMAGE).into()), "{image}");
        world.write_host("usr/bin/tool", "evil", 0o755);
        let (code, report) = verify(world);
        assert!(code == 1 && blamed(&report)[0].3.ends_with("(version 2)"), "{report}");
    };
    for (number, digit) in LAYERS.into_iter().enumerate() {
        let (world, _, refs) = booted(&texts());
        let of_layer = format!("layer {} of 3 ({})", number + 1, digest(digit));
        fs::write(&refs[number], "no checksum\n").unwrap();
        is_of_commit(&world, &of_layer);
        fs::remove_file(&refs[number]).unwrap();
        is_of_commit(&world, &of_layer);
    }
    let (world, repository, refs) = booted(&texts());
    let commit = fs::read_to_string(&refs[2]).unwrap();
    let object = repository.object("commit", hex::decode(commit.trim()).unwrap().try_into().unwrap());
    fs::write(object, "changed").unwrap();
    is_of_commit(&world, "does not have its checksum");
}

#[test]
fn metadata_that_names_no_image_leaves_the_commit_to_blame_and_a_warning_names_the_key() {
    for (number, (key, _)) in texts().into_iter().enumerate() {
        let mut changed = texts();
        changed[number].1 = "{".to_owned();
        let (world, ..) = booted(&changed);
        let result = index(&world);
        assert!(result.code == 0 && result.err.contains(key), "{result:?}");
        assert_eq!(result.json("image-index")["image"]["layers"].as_array().unwrap().len(), 1);
        assert_eq!(verify(&world).0, 0);
    }
}

#[test]
fn an_index_of_the_image_itself_is_stronger_than_that_of_the_commit() {
    let mut texts = texts();
    let (world, repository) = booted_with(|repository| repository.commit("no image", &FILES));
    let image = LayoutMaker::one(&world.at("layout"), &two_layers());
    texts[0].1.clone_from(&image);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    let explain = || world.run(&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG"]);
    // The deployment's origin has no digest, and this commit was not made from the image.
    assert!(!explain().out.contains(&image));
    world.boot_commit(&repository.commit_with("of the image", &[(texts[0].0, &texts[0].1)], &FILES));
    assert!(explain().out.contains(&format!("image {image}")), "{:?}", explain());
}
