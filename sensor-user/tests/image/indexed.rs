use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
    repository::Repository,
    world::{World, two_layers},
};
use holdfast::image::Images;
use sensor_model::image::Platform;
use sha2::{Digest as _, Sha256};
use std::{fs, os::unix::fs::PermissionsExt as _};

#[test]
fn an_index_names_image_layers_and_history_and_is_for_its_owner_alone() {
    let (world, digest) = World::in_sync();
    let list = world.run(&["image", "list", "STATE", "-o", "json"]).json("image-list");
    let image = &list["images"][0];
    assert_eq!(
        (&image["digest"], &image["platform"], &image["names"][0]),
        (&digest.clone().into(), &"linux/amd64".into(), &"latest".into())
    );
    assert_eq!(image["layers"][0]["history"], "ADD rootfs.tar /");
    let path = world.at("state/images").join(format!("{}.index", &digest[7..]));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(world.at("state/images")).unwrap().count(), 1, "no temporary file is left");
    // Again, over the old one.
    let report = world.run(&["image", "index", "LAYOUT", "STATE", "-o", "json"]).json("image-index");
    assert_eq!(report["size"], fs::metadata(&path).unwrap().len());
}

#[test]
fn show_gives_the_state_of_a_path_and_its_layer() {
    let (world, digest) = World::in_sync();
    let show = |path: &str| world.run(&["image", "show", path, "--image", &digest, "STATE", "-o", "json"]);
    let report = show("/etc/motd").json("image-show");
    assert_eq!((&report["state"]["size"], &report["layer"]["number"]), (&6.into(), &2.into()));
    let result = show("/etc/gone");
    assert_eq!((result.code, result.json("image-show")["state"].is_null()), (1, true));
}

#[test]
fn show_follows_links_on_the_way_as_the_image_has_them_and_not_the_last_name() {
    let (world, digest) = World::in_sync();
    let show = |path: &str| world.run(&["image", "show", path, "--image", &digest, "STATE", "-o", "json"]);
    let through_link = show("/bin/tool");
    let report = through_link.json("image-show");
    assert_eq!((through_link.code, &report["real_path"]), (0, &"/usr/bin/tool".into()), "{report}");
    assert_eq!(report["state"], show("/usr/bin/tool").json("image-show")["state"]);
    assert!(show("/usr/bin/tool").json("image-show").get("real_path").is_none());
    assert_eq!(show("/bin").json("image-show")["state"]["target"], "usr/bin");
    assert_eq!(show("/bin/none").code, 1);
    let text = world.run(&["image", "show", "/bin/tool", "--image", &digest, "STATE"]).out;
    assert!(text.starts_with("/bin/tool: ") && text.contains("/usr/bin/tool\n"), "{text}");
}

#[test]
fn the_beginning_of_a_digest_needs_six_digits_and_the_error_about_fewer_says_so() {
    let (world, digest) = World::in_sync();
    let show = |digits: usize, other: &str| {
        let image = format!("{}{other}", &digest[..7 + digits]);
        world.run(&["image", "show", "/etc/motd", "--image", &image, "STATE"])
    };
    assert_eq!(show(6, "").code, 0);
    let short = show(5, "");
    assert!(short.code == 2 && short.err.contains("at least 6 digits"), "{short:?}");
    assert!(short.err.contains(&digest), "{short:?}");
    let other = show(4, "x");
    assert!(other.code == 2 && other.err.contains("no index of sha256:"), "{other:?}");
}

#[test]
fn an_image_index_leads_to_the_image_of_the_platform_and_names_the_same_image() {
    let world = World::new();
    let mut maker = LayoutMaker::new(&world.at("layout"));
    let layer = |text: &str| [Layer::new(&Archive::new().file("arch", text).end(), Stored::Plain, "ADD")];
    let amd64 = maker.manifest(&layer("amd64"), "amd64");
    let arm64 = maker.manifest(&layer("arm64"), "arm64");
    let mut attestation = maker.manifest(&layer("attestation"), "unknown");
    attestation["platform"]["os"] = "unknown".into();
    let inner = maker.index(&[amd64, arm64.clone(), attestation]);
    let outer = maker.index(std::slice::from_ref(&inner));
    let (outer_digest, arm64_digest) =
        (outer["digest"].as_str().unwrap().to_owned(), arm64["digest"].clone());
    maker.name(outer, "multi");
    let indexed =
        world.run(&["image", "index", "LAYOUT", "STATE", "--platform", "linux/arm64", "-o", "json"]);
    let image = indexed.json("image-index")["image"].clone();
    assert_eq!(image["digest"], arm64_digest);
    assert_eq!(image["indexes"], serde_json::json!([outer_digest, inner["digest"]]));
    // The digest of the image index is that of the image.
    let shown = world.run(&["image", "show", "/arch", "--image", &outer_digest, "STATE"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    let missing = world.run(&["image", "index", "LAYOUT", "STATE", "--platform", "linux/s390x"]);
    assert_eq!(missing.code, 2);
    assert!(missing.err.contains("is for linux/s390x; it has: sha256:"), "{missing:?}");
}

/// A world with the indexes of these platforms of one image index. Gives the digest of that, and those of the manifests.
fn platforms(architectures: &[&str]) -> (World, String, Vec<String>) {
    let world = World::new();
    let mut maker = LayoutMaker::new(&world.at("layout"));
    let manifest = |architecture: &&str| {
        let archive = Archive::new().directory("usr").file("usr/arch", architecture);
        maker.manifest(&[Layer::new(&archive.end(), Stored::Plain, "ADD")], architecture)
    };
    let manifests: Vec<_> = architectures.iter().map(manifest).collect();
    let index = maker.index(&manifests);
    let digest = |descriptor: &serde_json::Value| descriptor["digest"].as_str().unwrap().to_owned();
    let (of_index, of_manifests) = (digest(&index), manifests.iter().map(digest).collect());
    maker.name(index, "multi");
    for architecture in architectures {
        let platform = format!("linux/{architecture}");
        assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE", "--platform", &platform]).code, 0);
    }
    (world, of_index, of_manifests)
}

#[test]
fn the_digest_of_an_image_index_gives_the_image_for_this_machine_or_is_ambiguous() {
    let machine = Platform::of_this_machine().architecture;
    let others: Vec<&str> =
        ["amd64", "arm64", "s390x"].into_iter().filter(|other| *other != machine).collect();
    for place in 0..=others.len() {
        let mut all = others.clone();
        all.insert(place, &machine);
        let (world, digest, _) = platforms(&all);
        let shown = world.run(&["image", "show", "/usr/arch", "--image", &digest, "STATE"]);
        let content = hex::encode(Sha256::digest(&machine));
        assert!(shown.code == 0 && shown.out.contains(&content), "{place}: {shown:?}");
    }
    let (world, digest, _) = platforms(&others);
    let refused = world.run(&["image", "show", "/usr/arch", "--image", &digest, "STATE"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    for part in others.iter().map(|other| format!("(linux/{other})")).chain([format!("(linux/{machine})")]) {
        assert!(refused.err.contains(&part), "{part}: {refused:?}");
    }
}

#[test]
fn the_booted_image_of_an_image_index_is_the_one_that_the_commit_names() {
    // The platform of the commit need not be this machine's: the root may be that of another one.
    let (world, digest, manifests) = platforms(&["s390x", "arm64", "amd64"]);
    let mut hosts = Vec::new();
    for (manifest, architecture) in manifests.iter().zip(["s390x", "arm64", "amd64"]) {
        let repository = Repository::new(&world.at("root"));
        let texts = [("ostree.manifest-digest", manifest.as_str())];
        let commit = repository.commit_with("v1", &texts, &[("usr/arch", architecture, 0o644)]);
        world.boot_commit_by_tag(&commit, &format!("os.example/os@{digest}"));
        world.write_host("usr/arch", architecture, 0o644);
        let verified = world.run(&["image", "verify", "/usr/arch", "ROOT", "STATE"]);
        hosts.push((architecture, verified.code, verified));
    }
    assert!(hosts.iter().all(|(_, code, _)| *code == 0), "{hosts:?}");
    // The commit's image has no index. Those of other platforms are none for it.
    fs::remove_file(world.at("state/images").join(format!("{}.index", &manifests[2][7..]))).unwrap();
    for left in [2, 1] {
        let refused = world.run(&["image", "verify", "/usr/arch", "ROOT", "STATE"]);
        assert!(refused.code == 2 && !refused.err.contains("base image"), "{left}: {refused:?}");
        let _ = fs::remove_file(world.at("state/images").join(format!("{}.index", &manifests[1][7..])));
    }
}

#[test]
fn several_images_without_a_choice_are_an_error_that_lists_them() {
    let world = World::new();
    let mut maker = LayoutMaker::new(&world.at("layout"));
    let [base, top] = two_layers();
    let one = maker.manifest(std::slice::from_ref(&base), "amd64");
    let two = maker.manifest(&[base, top], "amd64");
    let digest = two["digest"].as_str().unwrap().to_owned();
    maker.name(one, "one");
    maker.name(two, "two");
    let result = world.run(&["image", "index", "LAYOUT", "STATE", "--platform", "linux/amd64"]);
    assert_eq!(result.code, 2);
    assert!(
        result.err.contains("choose one by --digest: sha256:") && result.err.contains("(linux/amd64, two)"),
        "{result:?}"
    );
    let result = world.run(&["image", "index", "LAYOUT", "STATE", "--digest", &digest, "-o", "json"]);
    assert_eq!(result.json("image-index")["image"]["digest"], digest);
}

#[test]
fn every_path_of_an_index_is_found_and_walked_in_order() {
    let world = World::new();
    let mut archive = Archive::new();
    for number in 0..3000 {
        archive = archive.file(&format!("d{}/{}{number}", number % 7, "n".repeat(number % 90)), "x");
    }
    let long = format!("{}/end", ["x".repeat(250).as_str(); 3].join("/"));
    archive = archive.pax("path", long.as_bytes()).pax("SCHILY.xattr.user.a", b"b").file("x", "y");
    let digest = LayoutMaker::one(&world.at("layout"), &[Layer::new(&archive.end(), Stored::Gzip, "ADD")]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    let index = Images::of(&world.at("state")).open(&digest).unwrap();
    let mut paths = Vec::new();
    index
        .each(|path, entry| {
            assert_eq!(index.find(path)?, Some(entry));
            paths.push(path.to_vec());
            Ok::<(), holdfast::image::ImageError>(())
        })
        .unwrap();
    assert_eq!(paths.len() as u64, index.meta().entries);
    assert_eq!(paths.len(), 1 + 7 + 3000 + 4);
    assert!(paths.contains(&format!("/{long}").into_bytes()));
    assert_eq!(index.find(b"/none").unwrap(), None);
}

#[test]
fn a_damaged_index_is_an_error_with_the_next_step_and_never_an_answer() {
    let (world, digest) = World::in_sync();
    let path = world.at("state/images").join(format!("{}.index", &digest[7..]));
    let whole = fs::read(&path).unwrap();
    let mut damaged: Vec<Vec<u8>> = (0..whole.len()).step_by(97).map(|cut| whole[..cut].to_vec()).collect();
    for at in (0..whole.len()).step_by(61) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        damaged.push(bytes);
    }
    damaged.push([&whole[..], b"x"].concat());
    for bytes in damaged {
        fs::write(&path, &bytes).unwrap();
        let error = Images::of(&world.at("state")).open(&digest).unwrap_err().to_string();
        assert!(
            error.contains("build it anew with `holdfast image index`") || error.contains("read: "),
            "{error}"
        );
    }
    let result = world.run(&["image", "show", "/etc/motd", "--image", &digest, "STATE"]);
    assert_eq!(result.code, 3, "{result:?}");
    assert!(result.err.contains("build it anew"), "{result:?}");
    let list = world.run(&["image", "list", "STATE", "-o", "json"]);
    assert_eq!(
        (list.code, list.json("image-list")["unreadable"][0]["digest"].as_str()),
        (3, Some(digest.as_str()))
    );
}

#[test]
fn a_damaged_index_of_another_image_hides_none_that_an_image_index_leads_to() {
    let world = World::new();
    let mut maker = LayoutMaker::new(&world.at("layout"));
    let manifests: Vec<_> = ["a", "b", "c"]
        .map(|text| Layer::new(&Archive::new().file("f", text).end(), Stored::Plain, "ADD"))
        .iter()
        .map(|layer| maker.manifest(std::slice::from_ref(layer), "amd64"))
        .collect();
    let digests: Vec<_> = manifests.iter().map(|one| one["digest"].as_str().unwrap().to_owned()).collect();
    // Each image has an image index of its own, so each one is found behind a damaged one by two of the three orders.
    let indexes: Vec<_> = manifests.iter().map(|one| maker.index(std::slice::from_ref(one))).collect();
    let names: Vec<_> = indexes.iter().map(|one| one["digest"].as_str().unwrap().to_owned()).collect();
    for (number, index) in indexes.into_iter().enumerate() {
        maker.name(index, &number.to_string());
        let result = world.run(&["image", "index", "LAYOUT", "STATE", "--digest", &names[number]]);
        assert_eq!(result.code, 0, "{result:?}");
    }
    let path = |number: usize| world.at(&format!("state/images/{}.index", &digests[number][7..]));
    for damaged in 0..3 {
        let whole = fs::read(path(damaged)).unwrap();
        fs::write(path(damaged), "damaged").unwrap();
        for wanted in 0..3 {
            let opened = Images::of(&world.at("state")).open(&names[wanted]);
            match opened.map(|index| index.meta().digest.clone()) {
                Ok(digest) => assert!(wanted != damaged && digest == digests[wanted]),
                Err(error) => assert_eq!(wanted, damaged, "{error}"),
            }
        }
        fs::write(path(damaged), whole).unwrap();
    }
}

#[test]
fn an_image_without_an_index_is_an_error_that_names_those_that_have_one() {
    let (world, digest) = World::in_sync();
    let other = format!("sha256:{}", "0".repeat(64));
    let result = world.run(&["image", "show", "/etc/motd", "--image", &other, "STATE"]);
    assert_eq!(result.code, 2);
    assert!(result.err.contains(&digest) && result.err.contains("holdfast image index LAYOUT"), "{result:?}");
}

#[test]
fn a_diff_names_what_an_update_adds_removes_and_changes() {
    let (world, old) = World::in_sync();
    let [base, _] = two_layers();
    let top = Archive::new()
        .entry(b'0', "usr/bin/tool", 0o700, "", b"newest tool")
        .file("etc/.wh.app.conf", "")
        .file("etc/new", "x");
    let layers = [base, Layer::new(&top.end(), Stored::Gzip, "RUN update")];
    let new = LayoutMaker::one(&world.at("next"), &layers);
    let next = world.at("next").display().to_string();
    assert_eq!(world.run(&["image", "index", &next, "STATE"]).code, 0);
    let result = world.run(&["image", "diff", &old, &new, "STATE", "-o", "json"]);
    let report = result.json("image-diff");
    let changes: Vec<_> = report["changes"].as_array().unwrap().iter().collect();
    let shown: Vec<_> = changes
        .iter()
        .map(|change| {
            let states = (change["old"].is_null(), change["new"].is_null());
            (change["path"].as_str().unwrap(), states, change["layer"]["number"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("/etc/gone", (true, false), 1),
            ("/etc/new", (true, false), 2),
            ("/usr/bin/tool", (false, false), 2),
            ("/etc/app.conf", (false, true), 1),
            ("/etc/motd", (false, true), 2),
        ]
    );
    assert_eq!(changes[2]["parts"], serde_json::json!(["content", "mode"]));
    assert_eq!((result.code, world.run(&["image", "diff", &old, &old, "STATE"]).code), (1, 0));
}
