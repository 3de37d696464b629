//! Policies for remote attestation.

use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
    packages::installed,
    world::World,
};
use sha2::{Digest as _, Sha256};

fn sum(content: &str) -> String {
    hex::encode(Sha256::digest(content))
}

#[test]
fn a_policy_has_the_digests_of_each_file_in_both_images_and_nothing_else() {
    let (world, first) = World::in_sync();
    let archive = Archive::new()
        .entry(b'5', "./", 0o755, "", b"")
        .directory("usr")
        .directory("usr/bin")
        .symlink("usr/bin/link", "tool")
        .entry(b'0', "usr/bin/tool", 0o755, "", b"newest tool")
        .file("usr/bin/a\nb", "x");
    let layer = Layer::new(&archive.end(), Stored::Gzip, "RUN update");
    let second = LayoutMaker::one(&world.at("layout"), &[layer]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "--digest", &second, "STATE"]).code, 0);
    let run = |format: &str| {
        let result =
            world.run(&["image", "policy", "--format", format, "--image", &first, "--and", &second, "STATE"]);
        assert_eq!(result.code, 0, "{result:?}");
        assert!(result.err.contains("does not have some files"), "{}", result.err);
        assert!(result.err.contains(&second) && !result.err.contains(&first), "the source: {}", result.err);
        result.out
    };
    let policy: serde_json::Value = serde_json::from_str(&run("keylime")).unwrap();
    let mut tool = [sum("new tool"), sum("newest tool")];
    tool.sort();
    let expected = serde_json::json!({
        "/etc/app.conf": [sum("a=1\n")], "/etc/motd": [sum("hello\n")], "/usr/bin/tool": tool,
    });
    assert_eq!(policy["digests"], expected);
    for key in ["meta", "release", "excludes", "keyrings", "ima", "ima-buf", "verification-keys"] {
        assert!(!policy[key].is_null(), "{key}");
    }
    let lines = run("ima");
    let mut found: Vec<&str> = lines.lines().collect();
    found.sort_unstable();
    assert_eq!(found.len(), 4, "{lines}");
    assert!(found.contains(&format!("sha256:{} /usr/bin/tool", sum("newest tool")).as_str()), "{lines}");
}

#[test]
fn a_policy_without_any_digest_is_refused_with_the_source_and_the_next_step() {
    let world = installed();
    for file in ["usr/bin/tool", "usr/bin/shared.first", "usr/share/doc/a"] {
        world.write_host(file, "of no package", 0o644);
    }
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    for format in ["keylime", "ima"] {
        let refused =
            world.run(&["image", "policy", "--format", format, "--image", "packages", "ROOT", "STATE"]);
        assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{refused:?}");
        for part in ["packages of dpkg", "no SHA-256", "holdfast baseline /usr"] {
            assert!(refused.err.contains(part), "{part}: {refused:?}");
        }
        assert!(!refused.err.contains("damaged"), "{refused:?}");
    }
}

#[test]
fn a_policy_of_packages_of_dpkg_has_each_file_with_the_md5_of_its_package_and_names_what_is_left_out() {
    let world = installed();
    world.write_host("usr/share/doc/a", "of no package", 0o644);
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    let result = world.run(&["image", "policy", "--format", "ima", "--image", "packages", "ROOT", "STATE"]);
    let mut lines: Vec<&str> = result.out.lines().collect();
    lines.sort_by_key(|line| line.split_once(' ').unwrap().1);
    let expected = [("shared.first", "shared"), ("tool", "tool")]
        .map(|(name, content)| format!("sha256:{} /usr/bin/{name}", sum(&format!("/usr/bin/{content}"))));
    assert_eq!((result.code, &lines[..]), (0, &expected.each_ref().map(String::as_str)[..]), "{result:?}");
    assert!(result.err.contains("configuration files") && result.err.contains("files=2"), "{}", result.err);
}
