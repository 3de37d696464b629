//! Keys and closed directories.

use super::*;
use crate::link_exceptions::LinkExceptions;
use crate::name_patterns::NamePatterns;
use std::collections::BTreeMap;

fn ssh_file() -> Expectation {
    let mut expectation = file_thing(FileExpectation {
        keys: [key(KEY_A), key(KEY_B)].into(),
        layout_free: true,
        mode: 0o600,
        ..file()
    });
    expectation.ssh_keys = true;
    expectation
}

fn with_keys(expectation: &Expectation, text: &str) -> Vec<String> {
    texts(expectation, |seen| {
        object(seen).sha256 = Some([9; 32]);
        object(seen).ssh_keys = Some(keys(text));
    })
}

#[test]
fn a_declared_file_of_keys_is_compared_key_by_key() {
    let expectation = ssh_file();
    let mut lines = Vec::new();
    for (why, text) in [
        (
            "one more",
            format!("{KEY_A}\n{KEY_B}\n{}\n", KEY_A.replace("OmDBQ", "OmDBA").replace(" a", " evil")),
        ),
        ("one gone", format!("{KEY_A}\n")),
        ("options taken on", format!("{KEY_A}\ncommand=\"x\" {KEY_B}\n")),
        ("rubbish", format!("{KEY_A}\n{KEY_B}\nrubbish\n")),
        ("another order", format!("{KEY_B}\n{KEY_A}\n")),
        ("another comment", format!("{KEY_A}\n{KEY_B}x\n")),
        ("empty", String::new()),
    ] {
        let found = with_keys(&expectation, &text);
        assert!(!found.is_empty(), "{why}");
        assert!(!found.iter().any(|text| text.contains("AAAA")), "no key is shown: {found:?}");
        lines.extend(found.into_iter().map(|text| format!("{why}: {text}")));
    }
    insta::assert_snapshot!(lines.join("\n"));
    assert_eq!(
        with_keys(&expectation, &format!("{KEY_A}\n\n{KEY_B}")),
        Vec::<String>::new(),
        "only laid out otherwise"
    );
}

#[test]
fn a_file_of_keys_declared_byte_by_byte_is_exact() {
    let mut expectation = ssh_file();
    let Expected::File(file) = &mut expectation.expected else { unreachable!() };
    file.layout_free = false;
    assert_eq!(
        with_keys(&expectation, &format!("{KEY_A}\n\n{KEY_B}")),
        [r#"Content: content mismatch for file "/etc/foo""#]
    );
    let found = with_keys(&expectation, KEY_A);
    assert_eq!(found.len(), 2, "the content, and the key that is gone: {found:?}");
}

#[test]
fn a_users_own_file_may_have_any_declared_key_and_no_other() {
    let mut expectation = expect(
        Thing::file("/home/core/.ssh/authorized_keys"),
        Expected::AuthorizedKeys(AuthorizedKeysExpectation {
            user: "core".to_owned(),
            keys: vec![key(KEY_A)],
        }),
    );
    expectation.ssh_keys = true;
    let with = |text: String| texts(&expectation, |seen| object(seen).ssh_keys = Some(keys(&text)));
    assert_eq!(texts(&expectation, |seen| *seen = Observation::Missing), Vec::<String>::new());
    assert_eq!(with(format!("{KEY_A}\n")), Vec::<String>::new());
    assert_eq!(with("# nothing\n".to_owned()), Vec::<String>::new());
    assert_eq!(
        with(format!("{KEY_A}\n{KEY_B}\n")),
        [
            r#"SshKey: unexpected ssh key in file "/home/core/.ssh/authorized_keys": ecdsa-sha2-nistp256 SHA256:73qEdmVO/Op7vuErJR4oXsOHA4mHbuYn4fxWqqTpYGs "b""#
        ]
    );
    assert_eq!(with(format!("from=\"*\" {KEY_A}\n")).len(), 1, "with undeclared options");
    assert_eq!(texts(&expectation, |seen| object(seen).ssh_keys = None).len(), 1, "keys that were not read");
    assert_eq!(
        texts(&expectation, |seen| object(seen).file_type = FileType::Symlink).len(),
        1,
        "a link elsewhere"
    );
}

#[test]
fn a_closed_directory_may_have_only_declared_names() {
    let closed = |names: &[&str], suffix, ssh_keys| {
        expect(
            Thing::closed_directory("/etc/systemd/system/a.service.d"),
            Expected::ClosedDirectory(ClosedDirectoryExpectation {
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                suffix,
                ssh_keys,
                except: NamePatterns::default(),
                except_links: LinkExceptions::default(),
            }),
        )
    };
    let seen = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        move |observation: &mut Observation| {
            *observation = Observation::Names { names, more: 0, ssh_keys: BTreeMap::new() }
        }
    };
    let dropins = closed(&["10.conf", "20.conf"], Some(".conf".into()), false);
    assert_eq!(texts(&dropins, seen(&["10.conf", "note.txt", ".20.conf.swp"])), Vec::<String>::new());
    assert_eq!(
        texts(&dropins, seen(&["10.conf", "99-evil.conf", "a.conf"])),
        [
            r#"Unexpected: unexpected file "/etc/systemd/system/a.service.d/99-evil.conf""#,
            r#"Unexpected: unexpected file "/etc/systemd/system/a.service.d/a.conf""#,
        ]
    );
    assert_eq!(texts(&dropins, |seen| *seen = Observation::Missing), Vec::<String>::new());
    let link = Observation::Object(Box::new(ObjectObservation::new(FileType::Symlink, 0o777, 0, 0)));
    assert_eq!(
        texts(&dropins, |seen| *seen = link),
        [
            r#"Type: mode mismatch for directory: "/etc/systemd/system/a.service.d"; expected: drwxr-xr-x/2147484141/020000000755; received: Lrwxrwxrwx/134218239/01000000777"#
        ]
    );

    let keys_directory = closed(&["ignition"], None, true);
    let ssh_keys = BTreeMap::from([("afterburn".to_owned(), keys(KEY_B))]);
    let names = vec!["afterburn".to_owned(), "ignition".to_owned()];
    assert_eq!(
        texts(&keys_directory, |seen| *seen = Observation::Names { names, more: 0, ssh_keys }),
        [
            r#"SshKey: unexpected ssh key file "/etc/systemd/system/a.service.d/afterburn""#,
            r#"SshKey: unexpected ssh key in file "/etc/systemd/system/a.service.d/afterburn": ecdsa-sha2-nistp256 SHA256:73qEdmVO/Op7vuErJR4oXsOHA4mHbuYn4fxWqqTpYGs "b""#,
        ]
    );
}
