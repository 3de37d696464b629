mod absent;
mod keys;
mod os;
mod properties;
mod units;

use super::*;
use crate::{
    authorized_keys::{self, AuthorizedKeys, SshKey},
    expectation::{
        AuthorizedKeysExpectation, ClosedDirectoryExpectation, Content, DirectoryExpectation,
        FileExpectation, KernelArgumentsExpectation, LinkExpectation, OsImageExpectation,
        OstreeObjectExpectation, Owner, SealedTree, Source, Thing, TreeExpectation, UnitExpectation,
    },
    observation::{FileType, ObjectObservation, UnitObservation},
    os::Deployment,
    strength::SealKind,
    xattr,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const KEY_A: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBSxrLseeRZ1nyihTrvLH8oiYA5MU1MD7uJvFd8OmDBQ a";
const KEY_B: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBLEx8I4hk2QdgWaARq/trO+awe5+ZEI55Fxckmj/fVx4KOVV9Abi5gJoCX4+rb459xz/vNSdbyD790kYeKodtrU= b";

fn expect(thing: Thing, expected: Expected) -> Expectation {
    let source = Source::new("99-a", "a.yaml").into();
    Expectation { thing, expected, ssh_keys: false, label: None, source }
}

const ETC: &str = "system_u:object_r:etc_t:s0";

fn file() -> FileExpectation {
    FileExpectation {
        content: Some(Content { size: 3, sha256: [7; 32] }),
        keys: Box::default(),
        layout_free: false,
        mode: 0o644,
        user: Owner::Id(0),
        group: Owner::Id(0),
        may_be_missing: false,
        xattrs: None,
    }
}

fn file_thing(expected: FileExpectation) -> Expectation {
    expect(Thing::file("/etc/foo"), Expected::File(expected))
}

fn keys(text: &str) -> AuthorizedKeys {
    authorized_keys::parse(text.as_bytes())
}

fn key(text: &str) -> SshKey {
    authorized_keys::parse_line(text.as_bytes()).unwrap()
}

/// An observation that matches the expectation.
fn compliant(expectation: &Expectation) -> Observation {
    let mut observation = without_label(expectation);
    if let Observation::Object(object) = &mut observation {
        object.label = expectation.label.as_ref().map(ToString::to_string);
    }
    observation
}

fn without_label(expectation: &Expectation) -> Observation {
    let owned = |file_type, mode, user: &Owner, group: &Owner| {
        let (uid, user) = owner_of(user);
        let (gid, group) = owner_of(group);
        ObjectObservation { user, group, ..ObjectObservation::new(file_type, mode, uid, gid) }
    };
    match &expectation.expected {
        Expected::File(file) => {
            let mut object = owned(FileType::Regular, file.mode, &file.user, &file.group);
            object.sha256 = Some(file.content.map_or([1; 32], |content| content.sha256));
            object.size = file.content.map_or(1, |content| content.size);
            object.ssh_keys = expectation
                .ssh_keys
                .then(|| AuthorizedKeys { keys: file.keys.to_vec(), ..AuthorizedKeys::default() });
            Observation::Object(Box::new(object))
        }
        Expected::Directory(directory) => Observation::Object(Box::new(owned(
            FileType::Directory,
            directory.mode,
            &directory.user,
            &directory.group,
        ))),
        Expected::Link(link) => {
            let file_type = if link.hard { FileType::Regular } else { FileType::Symlink };
            let mut object = owned(file_type, 0o777, &link.user, &link.group);
            object.target = (!link.hard).then(|| link.target.clone());
            object.same_inode_as_target = link.hard.then_some(true);
            Observation::Object(Box::new(object))
        }
        Expected::OstreeObject(_) => {
            let mut object = ObjectObservation::new(FileType::Regular, 0o755, 0, 0);
            object.has_ostree_checksum = Some(true);
            Observation::Object(Box::new(object))
        }
        Expected::Unit(unit) => {
            let masked = unit.masked == Some(true);
            let enabled = if unit.enabled == Some(true) { "enabled" } else { "disabled" };
            Observation::Unit(UnitObservation {
                file_state: Some(if masked { "masked" } else { enabled }.to_owned()),
                masked,
                resolved: Some(if masked {
                    "/dev/null".into()
                } else {
                    expectation.thing.path().to_path_buf()
                }),
                overridden_by: None,
            })
        }
        Expected::ClosedDirectory(closed) => {
            Observation::Names { names: closed.names.clone(), more: 0, ssh_keys: BTreeMap::new() }
        }
        Expected::AuthorizedKeys(declared) => {
            let mut object = ObjectObservation::new(FileType::Regular, 0o600, 1000, 1000);
            object.ssh_keys =
                Some(AuthorizedKeys { keys: declared.keys.clone(), ..AuthorizedKeys::default() });
            Observation::Object(Box::new(object))
        }
        Expected::Tree(tree) => Observation::Tree { sealed: Some(tree.sealed), over: Vec::new() },
        Expected::Absent => Observation::Missing,
        Expected::Unindexed => Observation::Unreadable { error: "not verified here".to_owned() },
        Expected::Hierarchy(_) => Observation::Hierarchy { covers: Vec::new() },
        Expected::KernelArguments(declared) => {
            Observation::KernelArguments { arguments: declared.arguments.clone() }
        }
        Expected::OsImage(declared) => {
            Observation::Os(Deployment { image: Some(declared.image.clone()), ..Deployment::default() })
        }
    }
}

fn owner_of(owner: &Owner) -> (u32, Option<String>) {
    match owner {
        Owner::Id(id) => (*id, None),
        Owner::Name(name) => (1000, Some(name.clone())),
        Owner::Undeclared => (4242, None),
    }
}

fn object(observation: &mut Observation) -> &mut ObjectObservation {
    match observation {
        Observation::Object(object) => object,
        other => panic!("not an object: {other:?}"),
    }
}

fn texts(expectation: &Expectation, change: impl FnOnce(&mut Observation)) -> Vec<String> {
    let mut observation = compliant(expectation);
    change(&mut observation);
    let differences = compare(expectation, &observation, &Ids::default());
    differences.iter().map(|difference| format!("{:?}: {}", difference.kind, difference.text)).collect()
}

/// A change of a compliant object.
type Change = Box<dyn Fn(&mut ObjectObservation)>;

#[test]
fn an_object_of_a_commit_is_compliant_only_with_its_checksum() {
    let expected = Expected::OstreeObject(OstreeObjectExpectation { checksum: [1; 32] });
    let expectation = expect(Thing::file("/usr/bin/x"), expected);
    assert!(texts(&expectation, |_| {}).is_empty());
    let differing = texts(&expectation, |seen| object(seen).has_ostree_checksum = Some(false));
    assert!(
        differing.len() == 1 && differing[0].starts_with("Content: ostree checksum mismatch"),
        "{differing:?}"
    );
    let unknown = texts(&expectation, |seen| object(seen).has_ostree_checksum = None);
    assert!(unknown.len() == 1 && unknown[0].starts_with("Unreadable"), "{unknown:?}");
    for (change, kind) in
        [(Observation::Missing, "Missing"), (Observation::Unreadable { error: "x".into() }, "Unreadable")]
    {
        let found = texts(&expectation, |seen| *seen = change.clone());
        assert!(found.len() == 1 && found[0].starts_with(kind), "{found:?}");
    }
    let mounted = texts(&expectation, |seen| object(seen).mounted_over = true);
    assert!(mounted.len() == 1 && mounted[0].starts_with("MountOver"), "{mounted:?}");
}

#[test]
fn every_difference_of_a_file_has_its_text() {
    let expectation = Expectation { label: Some(ETC.into()), ..file_thing(file()) };
    let changes: Vec<(&str, Change)> = vec![
        ("content", Box::new(|object| object.sha256 = Some([8; 32]))),
        ("content not read", Box::new(|object| object.sha256 = None)),
        ("mode", Box::new(|object| object.mode = 0o600)),
        ("setuid", Box::new(|object| object.mode = 0o4644)),
        ("user", Box::new(|object| (object.uid, object.user) = (1000, Some("core".to_owned())))),
        ("group", Box::new(|object| object.gid = 12)),
        ("label", Box::new(|object| object.label = Some("system_u:object_r:tmp_t:s0".to_owned()))),
        ("no label", Box::new(|object| object.label = None)),
        (
            "directory in its place",
            Box::new(|object| (object.file_type, object.mode) = (FileType::Directory, 0o755)),
        ),
        (
            "link in its place",
            Box::new(|object| (object.file_type, object.mode) = (FileType::Symlink, 0o777)),
        ),
        ("device in its place", Box::new(|object| object.file_type = FileType::CharacterDevice)),
        ("xattr", Box::new(|object| object.xattrs = vec![("user.note".into(), "sha256:00".into())])),
        (
            "access control list",
            Box::new(|object| {
                object.xattrs = vec![(
                    "system.posix_acl_access".into(),
                    "user::rw-,user:1000:rw-,group::r--,mask::rw-,other::r--".into(),
                )];
            }),
        ),
        (
            "capability",
            Box::new(|object| object.xattrs = vec![("security.capability".into(), "cap_net_raw+ep".into())]),
        ),
        ("immutable", Box::new(|object| object.attributes = vec!["immutable".into()])),
        ("mount", Box::new(|object| object.mounted_over = true)),
    ];
    let mut lines = Vec::new();
    for (why, change) in changes {
        let found = texts(&expectation, |observation| change(object(observation)));
        assert!(!found.is_empty(), "{why}");
        lines.extend(found.into_iter().map(|text| format!("{why}: {text}")));
    }
    let missing = texts(&expectation, |observation| *observation = Observation::Missing);
    let unreadable = texts(&expectation, |observation| {
        *observation = Observation::Unreadable { error: "open /etc/foo: permission denied".to_owned() };
    });
    lines.extend(missing.into_iter().chain(unreadable));
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn all_differences_are_found_not_the_first() {
    let expectation = file_thing(file());
    let found = texts(&expectation, |observation| {
        let object = object(observation);
        object.sha256 = Some([0; 32]);
        object.mode = 0o666;
        (object.uid, object.gid) = (1, 2);
        object.xattrs = vec![("user.a".into(), "sha256:0".into()), ("user.b".into(), "sha256:0".into())];
        object.attributes = vec!["immutable".into(), "append-only".into()];
        object.mounted_over = true;
    });
    let kinds: Vec<&str> = found.iter().map(|text| text.split(':').next().unwrap()).collect();
    assert_eq!(
        kinds,
        ["Mode", "Content", "Owner", "Owner", "Xattr", "Xattr", "Attribute", "Attribute", "MountOver"]
    );
}

#[test]
fn where_only_capabilities_are_known_only_they_are_compared() {
    let listed = |value: &str| vec![(xattr::CAPABILITY.to_owned(), value.to_owned())];
    let found = |expected, found| {
        let known = Some(Box::new(ExpectedXattrs::Capabilities(expected)));
        texts(&file_thing(FileExpectation { xattrs: known, ..file() }), |seen| object(seen).xattrs = found)
    };
    let granted = || listed("cap_net_raw+ep");
    let other = || ("user.a".to_owned(), "sha256:0".to_owned());
    assert!(found(granted(), [granted(), vec![other()]].concat()).is_empty());
    assert!(found(Vec::new(), vec![other()]).is_empty());
    for (expected, seen) in
        [(granted(), Vec::new()), (granted(), listed("cap_setuid+ep")), (Vec::new(), granted())]
    {
        let differences = found(expected.clone(), seen.clone());
        assert!(matches!(&differences[..], [one] if one.starts_with("Xattr")), "{expected:?} {seen:?}");
    }
}

#[test]
fn the_operators_texts_are_exact() {
    let expectation = file_thing(file());
    let text = |change: fn(&mut Observation)| {
        let mut observation = compliant(&expectation);
        change(&mut observation);
        compare(&expectation, &observation, &Ids::default()).remove(0).text
    };
    assert_eq!(text(|seen| object(seen).sha256 = Some([0; 32])), r#"content mismatch for file "/etc/foo""#);
    assert_eq!(
        text(|seen| (object(seen).sha256, object(seen).size) = (None, 1 << 40)),
        r#"content mismatch for file "/etc/foo""#,
        "a size that differs is enough"
    );
    assert_eq!(
        text(|seen| object(seen).mode = 0o600),
        r#"mode mismatch for file: "/etc/foo"; expected: -rw-r--r--/420/0644; received: -rw-------/384/0600"#
    );
    assert_eq!(
        text(|seen| *seen = Observation::Missing),
        r#"could not stat file "/etc/foo": lstat /etc/foo: no such file or directory"#
    );
    assert_eq!(
        text(|seen| (object(seen).file_type, object(seen).mode) = (FileType::Symlink, 0o777)),
        r#"mode mismatch for file: "/etc/foo"; expected: -rw-r--r--/420/0644; received: Lrwxrwxrwx/134218239/01000000777"#
    );
}

#[test]
fn owners_are_compared_by_id_or_by_name_whichever_is_declared() {
    let ids = Ids { users: BTreeMap::from([("core".to_owned(), 1000)]), ..Ids::default() };
    for (declared, uid, name, known, fine, why) in [
        (Owner::Id(5), 5, None, &Ids::default(), true, "by id"),
        (Owner::Id(5), 6, Some("five"), &Ids::default(), false, "another id"),
        (Owner::Name("core".into()), 1000, Some("core"), &Ids::default(), true, "by the name that was seen"),
        (Owner::Name("core".into()), 1000, None, &ids, true, "by the id that the name has"),
        (Owner::Name("core".into()), 1000, Some("alias"), &ids, true, "a second name of the same id"),
        (Owner::Name("core".into()), 1001, Some("core"), &ids, false, "the id that the name has decides"),
        (Owner::Name("core".into()), 1000, None, &Ids::default(), false, "an unknown name owns no object"),
        (Owner::Undeclared, 77, None, &Ids::default(), true, "nothing declared"),
    ] {
        let expectation = file_thing(FileExpectation { user: declared, ..file() });
        let mut observation = compliant(&expectation);
        (object(&mut observation).uid, object(&mut observation).user) = (uid, name.map(str::to_owned));
        let kinds: Vec<_> =
            compare(&expectation, &observation, known).iter().map(|found| found.kind).collect();
        assert_eq!(kinds, if fine { vec![] } else { vec![DifferenceKind::Owner] }, "{why}");
    }
}

#[test]
fn an_empty_dropin_may_be_missing_or_empty_and_nothing_else() {
    let empty = Content { size: 0, sha256: hex_digest(b"") };
    let expectation = file_thing(FileExpectation { content: Some(empty), may_be_missing: true, ..file() });
    assert_eq!(texts(&expectation, |seen| *seen = Observation::Missing), Vec::<String>::new());
    assert_eq!(texts(&expectation, |_| ()), Vec::<String>::new());
    assert_eq!(
        texts(&expectation, |seen| object(seen).sha256 = Some([1; 32])),
        [r#"Content: content mismatch for file "/etc/foo""#]
    );
    assert_eq!(texts(&expectation, |seen| object(seen).mode = 0o600).len(), 1, "its mode is compared");
}

fn hex_digest(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).into()
}

#[test]
fn undeclared_content_may_be_anything() {
    let expectation = file_thing(FileExpectation { content: None, ..file() });
    assert_eq!(texts(&expectation, |seen| object(seen).sha256 = Some([1; 32])), Vec::<String>::new());
    assert_eq!(texts(&expectation, |seen| object(seen).sha256 = None), Vec::<String>::new());
}

#[test]
fn directories_and_links_have_their_texts() {
    let directory = expect(
        Thing::directory("/etc/dir"),
        Expected::Directory(DirectoryExpectation {
            mode: 0o755,
            user: Owner::Id(0),
            group: Owner::Name("wheel".into()),
        }),
    );
    let link = |hard| {
        expect(
            Thing::link("/etc/link"),
            Expected::Link(LinkExpectation {
                target: "../usr/x".into(),
                hard,
                user: Owner::Id(0),
                group: Owner::Id(0),
            }),
        )
    };
    let mut lines = Vec::new();
    lines.extend(texts(&directory, |seen| *seen = Observation::Missing));
    lines.extend(texts(&directory, |seen| object(seen).mode = 0o777));
    lines.extend(texts(&directory, |seen| object(seen).file_type = FileType::Regular));
    lines.extend(texts(&directory, |seen| object(seen).group = Some("staff".to_owned())));
    lines.extend(texts(&link(false), |seen| *seen = Observation::Missing));
    lines.extend(texts(&link(false), |seen| object(seen).target = Some("/tmp/x".into())));
    lines.extend(texts(&link(false), |seen| {
        (object(seen).file_type, object(seen).mode) = (FileType::Regular, 0o644);
    }));
    lines.extend(texts(&link(false), |seen| object(seen).uid = 9));
    lines.extend(texts(&link(true), |seen| object(seen).same_inode_as_target = Some(false)));
    lines.extend(texts(&link(true), |seen| object(seen).same_inode_as_target = None));
    insta::assert_snapshot!(lines.join("\n"));
    assert_eq!(texts(&link(true), |seen| object(seen).uid = 9), Vec::<String>::new(), "the target's owner");
}

fn unit(enabled: Option<bool>, masked: Option<bool>) -> Expectation {
    expect(
        Thing::Unit { name: "a.service".to_owned() },
        Expected::Unit(UnitExpectation { enabled, masked, install_directories: Vec::new() }),
    )
}
