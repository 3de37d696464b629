use super::*;
use proptest::prelude::*;

const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBSxrLseeRZ1nyihTrvLH8oiYA5MU1MD7uJvFd8OmDBQ";
const ED25519_NAME: &str = "ssh-ed25519 SHA256:8ljsG1PZhH+Rs3zCYu4bzLx88hLZRWT+m0o1tMvTaXg";
const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBLEx8I4hk2QdgWaARq/trO+awe5+ZEI55Fxckmj/fVx4KOVV9Abi5gJoCX4+rb459xz/vNSdbyD790kYeKodtrU=";
const ECDSA_NAME: &str = "ecdsa-sha2-nistp256 SHA256:73qEdmVO/Op7vuErJR4oXsOHA4mHbuYn4fxWqqTpYGs";

fn line(text: &str) -> String {
    match parse_line(text.as_bytes()) {
        Ok(key) if key.options.is_some() => format!("options, {key}"),
        Ok(key) => key.to_string(),
        Err(reason) => reason.to_string(),
    }
}

#[test]
fn lines_are_read_as_sshd_reads_them() {
    let blob = ED25519.split(' ').nth(1).unwrap();
    for (text, expected, why) in [
        (ED25519.to_owned(), ED25519_NAME.to_owned(), "as ssh-keygen -l names it"),
        (ECDSA.to_owned(), ECDSA_NAME.to_owned(), "with padding"),
        (ECDSA.trim_end_matches('=').to_owned(), ECDSA_NAME.to_owned(), "without padding"),
        (format!("{ED25519} a b "), format!("{ED25519_NAME} \"a b\""), "a comment may have blanks"),
        (
            format!("{ED25519} \u{1b}[31m"),
            format!("{ED25519_NAME} \"\\x1b[31m\""),
            "a comment cannot colour a terminal",
        ),
        (format!("no-pty {ED25519}"), format!("options, {ED25519_NAME}"), "options"),
        (
            format!("command=\"a b\",no-pty\t{ED25519} c"),
            format!("options, {ED25519_NAME} \"c\""),
            "quoted blanks",
        ),
        (format!(r#"command="a \" b" {ED25519}"#), format!("options, {ED25519_NAME}"), "an escaped quote"),
        (
            format!(r#"command="a \\" b" {ED25519}"#),
            format!("options, {ED25519_NAME}"),
            "sshd knows no escaped backslash",
        ),
        (
            format!("environment=\"Ä=ö\" {ED25519}"),
            format!("options, {ED25519_NAME}"),
            "options beyond ASCII",
        ),
        ("ssh-ed25519".to_owned(), "not a key type followed by a key".to_owned(), "no key"),
        (format!("ssh-rsa {blob}"), "the key is not of the type in front of it".to_owned(), "another type"),
        ("ssh-ed25519 !!!".to_owned(), "the key is not base64".to_owned(), "not base64"),
        ("ssh-ed25519 AAA=".to_owned(), "the key is cut short".to_owned(), "cut short"),
        (
            "ssh-ed25519 /////w==".to_owned(),
            "the key is not of the type in front of it".to_owned(),
            "absurd length",
        ),
        ("a b c".to_owned(), "the key is not base64".to_owned(), "rubbish"),
        (
            format!("command=\"open {ED25519}"),
            "the key is not base64".to_owned(),
            "a quote that is never closed",
        ),
    ] {
        assert_eq!(line(&text), expected, "{text:?}: {why}");
    }
}

#[test]
fn a_key_of_an_unknown_type_is_still_a_key() {
    let kind = b"ssh-future@example.com";
    let mut blob = u32::try_from(kind.len()).unwrap().to_be_bytes().to_vec();
    blob.extend_from_slice(kind);
    blob.extend_from_slice(b"anything");
    let text = format!("ssh-future@example.com {}", STANDARD_NO_PAD.encode(blob));
    assert_eq!(parse_line(text.as_bytes()).unwrap().kind, "ssh-future@example.com");
}

#[test]
fn a_key_type_that_is_not_printable_is_no_key() {
    for kind in ["ss\u{1b}[31m", "ss\0h", "ssh\u{e9}"] {
        let mut blob = u32::try_from(kind.len()).unwrap().to_be_bytes().to_vec();
        blob.extend(kind.as_bytes());
        let line = format!("{kind} {}", STANDARD_NO_PAD.encode(blob));
        assert_eq!(parse_line(line.as_bytes()), Err(KeyError::Form), "{kind:?}");
    }
}

#[test]
fn a_file_has_keys_and_lines_that_are_no_keys() {
    let text = format!("# mine\n\n  {ED25519} a\r\nrubbish\nno-pty {ECDSA}\n\t# indented\n\u{0}\n");
    let found = parse(text.as_bytes());
    let keys: Vec<String> = found.keys.iter().map(ToString::to_string).collect();
    assert_eq!(keys, [format!("{ED25519_NAME} \"a\""), ECDSA_NAME.to_owned()]);
    let invalid: Vec<u32> = found.invalid.iter().map(|line| line.line).collect();
    assert_eq!(invalid, [4, 7], "line numbers count every line");
    assert!(!found.truncated);
}

#[test]
fn options_are_part_of_what_a_key_grants_and_comments_are_not() {
    let key = |text: String| parse_line(text.as_bytes()).unwrap();
    let plain = key(ED25519.to_owned());
    assert!(plain.grants_the_same(&key(format!("{ED25519} someone"))));
    let restricted = key(format!("from=\"10.0.0.1\" {ED25519}"));
    assert!(!plain.grants_the_same(&restricted), "a restriction was removed");
    assert!(!restricted.grants_the_same(&key(format!("from=\"10.0.0.2\" {ED25519}"))), "or widened");
    assert!(!plain.grants_the_same(&key(ECDSA.to_owned())));
}

#[test]
fn a_file_of_many_lines_takes_bounded_memory_and_is_marked_as_truncated() {
    let found = parse("x\n".repeat(MAXIMUM_ENTRIES + 1).as_bytes());
    assert_eq!(found.invalid.len(), MAXIMUM_ENTRIES);
    assert!(found.truncated);
    assert!(!parse("x\n".repeat(MAXIMUM_ENTRIES).as_bytes()).truncated, "the limit itself is allowed");
}

#[test]
fn neither_keys_nor_options_are_kept() {
    let secret = "environment=\"TOKEN=hunter2\"";
    let found = parse(format!("{secret} {ED25519}\n").as_bytes());
    let shown = format!("{found:?} {}", serde_json::to_string(&found).unwrap());
    assert!(!shown.contains("hunter2") && !shown.contains("AAAAC3NzaC1lZDI1NTE5"), "{shown}");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        let found = parse(&bytes);
        prop_assert!(found.keys.len() + found.invalid.len() <= bytes.split(|byte| *byte == b'\n').count());
    }

    /// Compares with the `openssh-keys` crate. Holdfast does not use that crate: it has a fixed list of types, and cuts options
    /// by characters instead of bytes.
    #[test]
    fn what_openssh_keys_reads_is_read_the_same(key: [u8; 32], comment in "[a-z@. ]{0,20}") {
        let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
        blob.extend_from_slice(&key);
        let text = format!("ssh-ed25519 {} {comment}", STANDARD_NO_PAD.encode(&blob));
        let padded = format!("ssh-ed25519 {} {comment}", base64::engine::general_purpose::STANDARD.encode(&blob));
        let judge = openssh_keys::PublicKey::parse(&padded).unwrap();
        for text in [text, padded] {
            let ours = parse_line(text.as_bytes()).unwrap();
            prop_assert_eq!(STANDARD_NO_PAD.encode(ours.fingerprint), judge.fingerprint());
            prop_assert_eq!(ours.comment.as_deref().map(str::trim), judge.comment.as_deref().map(str::trim));
        }
    }
}
