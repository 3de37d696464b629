//! Another commit of a host's repository than the booted one: indexed, compared, and used by `plan`.

use crate::{
    ostree::{FILES, booted_with, verify},
    repository::Repository,
    updates::config,
    world::{RunResult, World},
};
use serde_json::{Value, json};
use std::fs;

/// The branches of the booted deployment and of the next one.
const BRANCHES: [&str; 2] = ["os/stable", "os/next"];

/// A host that booted a commit and has its index; and another commit of its repository. The commits have these texts.
fn two_commits(texts: [&[(&str, &str)]; 2]) -> (World, String) {
    let (world, repository) = booted_with(|repository| repository.commit_with("version 2", texts[0], &FILES));
    assert_eq!(index(&world, "--ostree").code, 0);
    let next = next_commit(&repository, texts[1]);
    (world, next)
}

fn next_commit(repository: &Repository, texts: &[(&str, &str)]) -> String {
    let [_, rest @ .., _] = FILES;
    let changed = [("usr/bin/tool", "newer", 0o755), ("usr/etc/machine-id", "0123\n", 0o444)];
    repository.commit_with("version 3", texts, &[&changed[..1], &rest[..], &changed[1..]].concat())
}

fn index(world: &World, option: &str) -> RunResult {
    world.run(&["image", "index", option, "ROOT", "STATE"])
}

/// Makes a deployment of a commit that is staged for the next boot.
fn stage(world: &World, commit: &str) {
    let deployment = format!("{commit}.0");
    fs::create_dir_all(world.at("root/ostree/deploy/os/deploy").join(&deployment)).unwrap();
    let origin = format!("[origin]\nrefspec={}\n", BRANCHES[1]);
    world.write_host(&format!("ostree/deploy/os/deploy/{deployment}.origin"), &origin, 0o644);
    world.write_host("run/ostree/staged-deployment", &format!("target\0os\0{deployment}\0merge"), 0o644);
}

/// What `plan` says about the change from one image to another.
fn planned(world: &World, images: [&str; 2]) -> Value {
    let [old, new] = [("old", images[0]), ("new", images[1])].map(|(name, image)| config(world, name, image));
    world.run(&["plan", &old, &new, "STATE", "-o", "json"]).json("plan")["image"].clone()
}

#[test]
fn a_commit_has_an_index_by_its_checksum_and_image_diff_compares_it_with_the_booted_one() {
    let (world, next) = two_commits([&[], &[]]);
    let result = index(&world, &format!("--ostree={next}"));
    assert!(result.code == 0 && result.out.contains("(version 3)"), "{result:?}");
    let short = format!("ostree-{}", &next[..8]);
    let result = world.run(&["image", "diff", "ostree", &short, "STATE", "-o", "json"]);
    let report = result.json("image-diff");
    let paths: Vec<_> = report["changes"].as_array().unwrap().iter().map(|change| &change["path"]).collect();
    // `/etc` of the index repeats `/usr/etc`.
    assert_eq!((result.code, paths), (1, vec![&json!("/usr/bin/tool"), &json!("/usr/etc/machine-id")]));
    let listed = world.run(&["image", "list", "STATE"]).out;
    assert!(listed.contains(&format!("ostree-{next}")), "{listed}");
    // It is not what this host should have.
    let result = world.run(&["image", "verify", "--image", &short, "ROOT", "STATE"]);
    assert!(result.code == 2 && result.err.contains("another ostree commit"), "{result:?}");
    assert_eq!(verify(&world).0, 0);
}

#[test]
fn the_commit_of_a_deployment_is_found_by_the_word_staged_its_branch_and_the_beginning_of_its_checksum() {
    let (world, next) = two_commits([&[], &[]]);
    let path = world.at(&format!("state/images/ostree-{next}.index"));
    let nothing = index(&world, "--ostree=staged");
    assert!(nothing.code == 2 && nothing.err.contains("0 ostree deployments"), "{nothing:?}");
    stage(&world, &next);
    for name in ["staged", BRANCHES[1], &next[..8]] {
        let result = index(&world, &format!("--ostree={name}"));
        assert_eq!(result.code, 0, "{name}: {result:?}");
        fs::remove_file(&path).expect(name);
    }
    let unknown = index(&world, "--ostree=none");
    assert!(unknown.code == 2 && unknown.err.contains(&next), "{unknown:?}");
}

#[test]
fn a_plan_says_what_a_commit_changes_that_a_branch_or_an_image_names() {
    let (world, next) = two_commits([&[], &[]]);
    stage(&world, &next);
    let unknown = planned(&world, BRANCHES);
    let reason = unknown["unknown"].as_str().unwrap();
    assert!(reason.starts_with("os/next of the new config") && reason.contains("has no index"), "{reason}");
    assert_eq!(index(&world, "--ostree=staged").code, 0);
    let known = &planned(&world, BRANCHES)["known"];
    assert_eq!((&known["changed"], &known["new"]), (&json!(2), &json!(format!("ostree:{next}"))), "{known}");

    let digests = ["a", "b"].map(|digit| format!("sha256:{}", digit.repeat(64)));
    let texts = digests.clone().map(|digest| crate::ostree_layers::texts_of(&digest));
    let texts = texts.each_ref().map(|texts| texts.each_ref().map(|(key, text)| (*key, text.as_str())));
    let (world, next) = two_commits([&texts[0], &texts[1]]);
    assert_eq!(index(&world, &format!("--ostree={next}")).code, 0);
    let images = digests.map(|digest| format!("os.example/os@{digest}"));
    let known = &planned(&world, images.each_ref().map(String::as_str))["known"];
    assert_eq!((&known["changed"], &known["added"]), (&json!(2), &json!(0)), "{known}");
}

#[test]
fn a_damaged_index_of_another_commit_hides_neither_the_wanted_one_nor_the_reason_why_it_is_missing() {
    let (world, next) = two_commits([&[], &[]]);
    stage(&world, &next);
    // The names of the indexes are read in their order, and these come before and after the wanted one.
    for digit in ["0", "f"] {
        fs::write(world.at(&format!("state/images/ostree-{}.index", digit.repeat(64))), "damaged").unwrap();
    }
    let reason = planned(&world, BRANCHES)["unknown"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("os/next of the new config") && reason.contains("has no index"), "{reason}");
    assert_eq!(index(&world, "--ostree=staged").code, 0);
    let known = &planned(&world, BRANCHES)["known"];
    assert_eq!(known["new"], format!("ostree:{next}"), "{known}");
    // An index that has the wanted commit in its name is the reason itself.
    fs::write(world.at(&format!("state/images/ostree-{next}.index")), "damaged").unwrap();
    let reason = planned(&world, [BRANCHES[0], &next])["unknown"].as_str().unwrap().to_owned();
    assert!(reason.contains(&format!("ostree-{next}.index")), "{reason}");
}

#[test]
fn an_index_from_before_the_boot_serves_although_that_of_the_earlier_commit_is_damaged() {
    let (world, next) = two_commits([&[], &[]]);
    assert_eq!(index(&world, &format!("--ostree={next}")).code, 0);
    fs::write(world.at("state/images/ostree.index"), "damaged").unwrap();
    world.boot_commit(&next);
    world.write_host("usr/bin/tool", "newer", 0o755);
    world.write_host("usr/etc/machine-id", "0123\n", 0o444);
    let result = world.run(&["image", "verify", "ROOT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
}

#[test]
fn an_index_from_before_the_boot_is_that_is_that_of_the_booted_commit_after_it() {
    let (world, next) = two_commits([&[], &[]]);
    assert_eq!(index(&world, &format!("--ostree={next}")).code, 0);
    world.boot_commit(&next);
    world.write_host("usr/bin/tool", "newer", 0o755);
    world.write_host("usr/etc/machine-id", "0123\n", 0o444);
    let verified = || {
        let result = world.run(&["image", "verify", "ROOT", "STATE", "-o", "json"]);
        (result.code, result.json("image-verify")["compared"].clone())
    };
    assert_eq!(verified(), (0, json!(13)));
    assert_eq!(world.run(&["make-index", "HOST", "STATE"]).code, 0);
    // The index of the earlier commit is still the one with the name `ostree`.
    let result = world.run(&["image", "verify", "--image", "ostree", "ROOT", "STATE"]);
    assert!(result.code == 2 && result.err.contains("another ostree commit"), "{result:?}");
    world.write_host("usr/bin/tool", "evil", 0o755);
    assert_eq!(verified().0, 1);
}

#[test]
fn the_index_of_a_commit_is_deleted_after_the_repository_has_lost_the_commit_and_not_before() {
    let (world, next) = two_commits([&[], &[]]);
    assert_eq!(index(&world, &format!("--ostree={next}")).code, 0);
    let path = world.at(&format!("state/images/ostree-{next}.index"));
    let make_index = || assert_eq!(world.run(&["make-index", "HOST", "STATE"]).code, 0);
    make_index();
    assert!(path.exists(), "the repository has the commit");
    let object = format!("root/ostree/repo/objects/{}/{}.commit", &next[..2], &next[2..]);
    fs::remove_file(world.at(&object)).unwrap();
    make_index();
    assert!(!path.exists() && world.at("state/images/ostree.index").exists());
}
