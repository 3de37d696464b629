use super::*;

const OLD: &str = r#"
unqualified-search-registries = ["a.example"]
short-name-mode = "permissive"
[[registry]]
prefix = "p"
location = "quay.example/p"
[[registry.mirror]]
location = "m1"
pull-from-mirror = "tag-only"
[[registry]]
location = "q"
mirror-by-digest-only = true
[[registry.mirror]]
location = "m2"
"#;

fn with(from: &str, to: &str) -> String {
    assert!(OLD.contains(from), "{from}");
    OLD.replacen(from, to, 1)
}

#[test]
fn each_rule_decides_its_own_changes() {
    let registry = |more: &str| format!("{OLD}[[registry]]\nlocation = \"new\"\n{more}");
    for (new, safe, rule) in [
        (OLD.to_owned(), true, "its content means the same"),
        (with("[\"a.example\"]", "[\"a.example\", \"b.example\"]"), true, "rule 1: "),
        (with("[\"a.example\"]", "[\"b.example\", \"a.example\"]"), false, "rule 1: "),
        (with("[\"a.example\"]", "[]"), false, "rule 1: "),
        (with("location = \"q\"", "location = \"r\""), false, "rule 2: registry \"q\" is removed"),
        (with("location = \"quay.example/p\"", "location = \"other/p\""), false, "rule 3: "),
        (with("prefix = \"p\"", "prefix = \"p\"\nblocked = true"), false, "rule 3: registry \"p\": blocked"),
        (
            with("prefix = \"p\"", "prefix = \"p\"\ninsecure = true"),
            false,
            "rule 3: registry \"p\": insecure",
        ),
        (with("prefix = \"p\"", "prefix = \"p\"\ninsecure = false"), true, "its content means"),
        (with("location = \"m1\"", "location = \"m3\""), false, "rule 3: "),
        (with("\"tag-only\"", "\"digest-only\""), true, "rule 3: "),
        (with("\"tag-only\"", "\"all\""), false, "rule 3: "),
        (
            format!("{OLD}[[registry.mirror]]\nlocation = \"m4\"\n"),
            true,
            "rule 3: registry \"q\": mirror \"m4\" is added, only for digests",
        ),
        (
            with("location = \"m1\"", "location = \"m4\"\n[[registry.mirror]]\nlocation = \"m1\""),
            false,
            "rule 3: registry \"p\": mirror \"m4\" is added",
        ),
        (
            with(
                "location = \"m1\"",
                "location = \"m4\"\npull-from-mirror = \"digest-only\"\n[[registry.mirror]]\nlocation = \"m1\"",
            ),
            true,
            "rule 3: ",
        ),
        (with("location = \"m2\"", "location = \"m2\"\ninsecure = true"), false, "rule 3: "),
        (with("mirror-by-digest-only = true", ""), false, "rule 3: registry \"q\": mirror-by-digest-only"),
        (
            with(
                "location = \"quay.example/p\"",
                "location = \"quay.example/p\"\nmirror-by-digest-only = true",
            ),
            true,
            "rule 3: ",
        ),
        (registry(""), false, "rule 4: "),
        (registry("mirror-by-digest-only = true\n"), true, "rule 4: "),
        (
            registry("[[registry.mirror]]\nlocation = \"x\"\npull-from-mirror = \"digest-only\"\n"),
            true,
            "rule 4: ",
        ),
        // The registry's own flag is not enough for a mirror that does not say it.
        (
            registry("mirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"x\"\n"),
            false,
            "rule 4: ",
        ),
        (with("permissive", "enforcing"), false, "rule 5: \"short-name-mode\" changes"),
    ] {
        let judged = judge(OLD.as_bytes(), new.as_bytes()).unwrap();
        assert_eq!(judged.safe, safe, "{new}\n{judged:?}");
        assert!(judged.because.iter().any(|why| why.starts_with(rule)), "{rule}: {judged:?}");
    }
}

#[test]
fn what_is_harmless_is_told_as_what_changed_and_says_nothing_of_the_rest() {
    const DIGEST: &str = "pull-from-mirror = \"digest-only\"\n";
    let file = |mirrors: &[(&str, &str)]| {
        let mirrors: Vec<String> = mirrors
            .iter()
            .map(|(location, more)| format!("[[registry.mirror]]\nlocation = \"{location}\"\n{more}"))
            .collect();
        let mirrors = mirrors.concat();
        format!("[[registry]]\nlocation = \"r\"\n{mirrors}")
    };
    let tag = [("a", ""), ("b", "")];
    let flagged = file(&tag).replacen("\"r\"\n", "\"r\"\nmirror-by-digest-only = true\n", 1);
    for (new, wanted) in [
        (file(&[("a", ""), ("b", ""), ("c", DIGEST)]), &["mirror \"c\" is added, only for digests"][..]),
        (file(&[("b", ""), ("a", "")]), &["its mirrors have another order"]),
        (file(&[("a", DIGEST), ("b", "")]), &["mirror \"a\" becomes digest-only"]),
        (
            file(&[("c", DIGEST), ("b", DIGEST), ("a", "")]),
            &[
                "mirror \"b\" becomes digest-only",
                "mirror \"c\" is added, only for digests",
                "its mirrors have another order",
            ],
        ),
        (flagged, &["mirror-by-digest-only becomes true"]),
    ] {
        let judged = judge(file(&tag).as_bytes(), new.as_bytes()).unwrap();
        let wanted: Vec<String> =
            wanted.iter().map(|what| format!("rule 3: registry \"r\": {what}")).collect();
        assert_eq!(judged, Judgement { safe: true, because: wanted }, "{new}");
    }
}

#[test]
fn a_missing_file_is_an_empty_one() {
    let digest = "[[registry]]\nlocation = \"q\"\n[[registry.mirror]]\nlocation = \"m\"\npull-from-mirror = \"digest-only\"\n";
    assert!(judge(b"", digest.as_bytes()).unwrap().safe);
    assert!(!judge(digest.as_bytes(), b"").unwrap().safe);
    assert!(!judge(b"", OLD.as_bytes()).unwrap().safe);
}

#[test]
fn the_error_of_an_unreadable_file_has_none_of_its_content() {
    for (text, reason) in [
        ("location = hunter2", "string values must be quoted"),
        ("registry = 1", "registry: not a list"),
        ("registry = [1]", "registry: not a table"),
        ("[[registry]]\nblocked = true", "registry: neither prefix nor location"),
        ("[[registry]]\nlocation = 1", "location: not a text"),
        ("[[registry]]\nlocation = 'a'\n[[registry]]\nlocation = 'a'", "registry: \"a\" has two entries"),
        ("unqualified-search-registries = [1]", "unqualified-search-registries: not a list of texts"),
    ] {
        let error = judge(b"", text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("the new registries.conf: ") && error.contains(reason), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
