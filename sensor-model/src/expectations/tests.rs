use super::*;
use crate::{
    data_url,
    expectation::{ClosedDirectoryExpectation, ExpectationSource, Owner, UnitExpectation},
    machine_config, merge,
};
use serde_json::{Value, json};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBSxrLseeRZ1nyihTrvLH8oiYA5MU1MD7uJvFd8OmDBQ a";

fn rendered_as(plain: bool, configs: &[Value]) -> Rendered {
    let mut parsed = Vec::new();
    for (index, rest) in configs.iter().enumerate() {
        let mut config = json!({ "ignition": { "version": "3.5.0" } });
        config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        let manifest = json!({
            "apiVersion": machine_config::API_VERSION,
            "kind": "MachineConfig",
            "metadata": { "name": format!("{index}0-mc") },
            "spec": { "config": config },
        });
        let document = if plain { config } else { manifest };
        let read = machine_config::parse(&format!("{index}.yaml"), &serde_json::to_vec(&document).unwrap());
        parsed.extend(read.unwrap_or_else(|error| panic!("{error}")).machine_configs);
    }
    merge::merge(parsed).unwrap()
}

fn rendered(configs: &[Value]) -> Rendered {
    rendered_as(false, configs)
}

fn expected(configs: &[Value]) -> Vec<Expectation> {
    expectations(&rendered(configs)).unwrap()
}

fn things(found: &[Expectation]) -> Vec<String> {
    found
        .iter()
        .map(|expectation| match &expectation.thing {
            Thing::File { path } if matches!(expectation.expected, Expected::AuthorizedKeys(_)) => {
                format!("keys {}", path.display())
            }
            Thing::File { path } => format!("file {}", path.display()),
            Thing::Directory { path } => format!("directory {}", path.display()),
            Thing::Link { path } => format!("link {}", path.display()),
            Thing::Unit { name } => format!("unit {name}"),
            Thing::ClosedDirectory { path } => format!("closed {}", path.display()),
            Thing::Tree { path } => format!("tree {}", path.display()),
            Thing::Hierarchy { path } => format!("hierarchy {}", path.display()),
            Thing::KernelArguments => "kernel arguments".to_owned(),
            Thing::OsImage => "os image".to_owned(),
        })
        .collect()
}

#[test]
fn kernel_arguments_and_the_image_are_expected_if_they_are_declared() {
    let manifest = json!({
        "apiVersion": machine_config::API_VERSION,
        "kind": "MachineConfig",
        "metadata": { "name": "10-os" },
        "spec": {
            "config": { "ignition": { "version": "3.5.0" } },
            "kernelArguments": ["nosmt mitigations=off", "a=\"b c\""],
            "osImageURL": "quay.io/os@sha256:1",
        },
    });
    let read = machine_config::parse("os.yaml", &serde_json::to_vec(&manifest).unwrap()).unwrap();
    let found = expectations(&merge::merge(read.machine_configs).unwrap()).unwrap();
    assert_eq!(things(&found), ["kernel arguments", "os image"]);
    let Expected::KernelArguments(declared) = &found[0].expected else { panic!("{found:?}") };
    assert_eq!(declared.arguments, ["nosmt", "mitigations=off", "a=\"b c\""]);
    assert_eq!(found[1].source.name(), "10-os");
    assert!(things(&expected(&[json!({})])).is_empty());
}

fn file<'a>(found: &'a [Expectation], path: &str) -> &'a FileExpectation {
    found
        .iter()
        .find_map(|expectation| match (&expectation.thing, &expectation.expected) {
            (Thing::File { path: other }, Expected::File(file)) if &**other == Path::new(path) => Some(file),
            _ => None,
        })
        .unwrap_or_else(|| panic!("no file {path}"))
}

fn unit<'a>(found: &'a [Expectation], name: &str) -> (&'a UnitExpectation, &'a str) {
    found
        .iter()
        .find_map(|expectation| match (&expectation.thing, &expectation.expected) {
            (Thing::Unit { name: other }, Expected::Unit(unit)) if other == name => {
                Some((unit, expectation.source.name()))
            }
            _ => None,
        })
        .unwrap_or_else(|| panic!("no unit {name}"))
}

fn closed<'a>(found: &'a [Expectation], path: &str) -> &'a ClosedDirectoryExpectation {
    found
        .iter()
        .find_map(|expectation| match (&expectation.thing, &expectation.expected) {
            (Thing::ClosedDirectory { path: other }, Expected::ClosedDirectory(closed))
                if &**other == Path::new(path) =>
            {
                Some(closed)
            }
            _ => None,
        })
        .unwrap_or_else(|| panic!("no closed directory {path}"))
}

#[test]
fn a_field_that_is_left_out_has_its_default() {
    let found = expected(&[json!({ "storage": {
        "files": [
            { "path": "/a" },
            { "path": "/b", "mode": 256, "user": { "name": "core" }, "group": { "id": 7 }, "contents": { "source": "data:,b" } },
            { "path": "/c", "overwrite": false },
            { "path": "/d", "user": { "name": "" } },
        ],
        "directories": [{ "path": "/dir" }, { "path": "/dir/secret", "mode": 448 }],
        "links": [{ "path": "/l", "target": "/a" }, { "path": "/h", "target": "/a", "hard": true }],
    } })]);
    assert_eq!(
        things(&found),
        [
            "file /a",
            "file /b",
            "file /c",
            "file /d",
            "directory /dir",
            "directory /dir/secret",
            "link /h",
            "link /l"
        ],
        "sorted"
    );
    let a = file(&found, "/a");
    assert_eq!((a.mode, &a.user, &a.group), (0o644, &Owner::Id(0), &Owner::Id(0)));
    assert_eq!(
        a.content.map(|content| content.size),
        Some(0),
        "no source is an empty file in a MachineConfig"
    );
    let b = file(&found, "/b");
    assert_eq!((b.mode, &b.user, &b.group), (0o400, &Owner::Name("core".into()), &Owner::Id(7)));
    assert_eq!(b.content, Some(digest(b"b")));
    assert_eq!(file(&found, "/c").content, None, "overwrite: false without a source declares no content");
    assert_eq!(file(&found, "/d").user, Owner::Id(0), "an empty name is none");
    let modes: Vec<u32> = found
        .iter()
        .filter_map(|expectation| match &expectation.expected {
            Expected::Directory(directory) => Some(directory.mode),
            _ => None,
        })
        .collect();
    assert_eq!(modes, [0o755, 0o700]);
    assert!(found.iter().all(|expectation| expectation.source.name() == "00-mc"));
}

#[test]
fn in_a_plain_config_no_source_declares_no_content() {
    let plain = rendered_as(true, &[json!({ "storage": { "files": [{ "path": "/a" }] } })]);
    assert_eq!(file(&expectations(&plain).unwrap(), "/a").content, None);
    assert_eq!(expected_bytes(&plain, Path::new("/a")), None);
}

#[test]
fn files_that_the_certificate_writer_changes_are_left_alone() {
    let files: Vec<Value> = IGNORED_FILES.iter().map(|path| json!({ "path": path })).collect();
    assert_eq!(expected(&[json!({ "storage": { "files": files } })]), Vec::new());
}

#[test]
fn a_unit_without_contents_has_an_expected_state_too() {
    let found = expected(&[
        json!({ "systemd": { "units": [
            { "name": "contents.service", "contents": "[Unit]\n", "enabled": true },
            { "name": "enabled.service", "enabled": true },
            { "name": "disabled.service", "enabled": false },
            { "name": "masked.service", "mask": true, "contents": "[Unit]\n" },
            { "name": "masked-only.service", "mask": true },
            { "name": "nothing.service" },
            { "name": "empty.service", "contents": "" },
        ] } }),
        json!({ "systemd": { "units": [{ "name": "masked-only.service", "enabled": false }] } }),
    ]);
    assert_eq!(
        things(&found),
        [
            "file /etc/systemd/system/contents.service",
            "unit contents.service",
            "unit disabled.service",
            "unit enabled.service",
            "unit masked-only.service",
            "unit masked.service",
        ],
        "a masked unit's content is not on the disk, and a unit without declared state is not expected"
    );
    assert_eq!(unit(&found, "enabled.service").0.enabled, Some(true));
    assert_eq!(unit(&found, "disabled.service").0.enabled, Some(false));
    assert_eq!(unit(&found, "masked.service").0.masked, Some(true));
    assert_eq!(unit(&found, "masked-only.service").1, "10-mc", "the source is who spoke last of it");
    let contents = file(&found, "/etc/systemd/system/contents.service");
    assert_eq!((contents.mode, contents.content), (0o644, Some(digest(b"[Unit]\n"))));
}

#[test]
fn enablement_is_watched_in_the_directories_of_the_install_section() {
    let contents = "[Unit]\nWantedBy=not.here\n[Install]\n# WantedBy=no.target\nWantedBy=multi-user.target \\\n  graphical.target\n\
        RequiredBy = kubelet.service\nUpheldBy=a.service\nAlias=b.service\nWantedBy=../evil multi-user.target\n[Service]\nWantedBy=no.target\n";
    let found = expected(&[
        json!({ "systemd": { "units": [{ "name": "a.service", "enabled": true, "contents": contents }] } }),
    ]);
    assert_eq!(
        unit(&found, "a.service").0.install_directories,
        [
            "a.service.upholds",
            "graphical.target.wants",
            "kubelet.service.requires",
            "multi-user.target.wants"
        ]
    );
}

#[test]
fn declaring_a_dropin_closes_the_directory_to_others() {
    let found = expected(&[
        json!({
            "systemd": { "units": [
                { "name": "kubelet.service", "dropins": [{ "name": "10-a.conf", "contents": "a" }, { "name": "20-gone.conf", "contents": "" }] },
                { "name": "other.service", "enabled": true },
            ] },
            "storage": {
                "files": [
                    { "path": "/etc/systemd/system/kubelet.service.d/30-file.conf" },
                    { "path": "/etc/systemd/system/kubelet.service.d/sub/x.conf" },
                    { "path": "/etc/systemd/system/other.service.d/a.conf" },
                    { "path": "/etc/chrony.d/a.conf" },
                ],
                "links": [{ "path": "/etc/systemd/system/kubelet.service.d/40-link.conf", "target": "/x" }],
            },
        }),
        json!({ "systemd": { "units": [{ "name": "kubelet.service", "dropins": [{ "name": "15-b.conf", "contents": "b" }] }] } }),
    ]);
    let directories: Vec<String> =
        things(&found).into_iter().filter(|thing| thing.starts_with("closed")).collect();
    assert_eq!(
        directories,
        ["closed /etc/systemd/system/kubelet.service.d"],
        "not where files are only declared as files"
    );
    let kubelet = closed(&found, "/etc/systemd/system/kubelet.service.d");
    assert_eq!(
        kubelet.names,
        [
            "10-a.conf",
            "15-b.conf",
            "20-aws-node-name.conf",
            "20-aws-providerid.conf",
            "20-gone.conf",
            "20-nodenet.conf",
            "20-openstack-node-name.conf",
            "30-file.conf",
            "40-link.conf",
            "sub",
        ],
        "drop-ins, declared files and links, and the drop-ins that the node writes"
    );
    assert_eq!(kubelet.suffix.as_deref(), Some(".conf"));
    let gone = file(&found, "/etc/systemd/system/kubelet.service.d/20-gone.conf");
    assert!(gone.may_be_missing, "one writer removes an empty drop-in, and the other writes it");
    assert_eq!(gone.content, Some(digest(b"")));
    assert!(!file(&found, "/etc/systemd/system/kubelet.service.d/10-a.conf").may_be_missing);
}

#[test]
fn users_keys_close_their_ssh_directories() {
    let found = expected(&[
        json!({ "passwd": { "users": [
            { "name": "core", "sshAuthorizedKeys": [KEY] },
            { "name": "root", "sshAuthorizedKeys": [] },
            { "name": "app", "homeDir": "/srv/app", "primaryGroup": "apps", "sshAuthorizedKeys": [KEY] },
            { "name": "hash", "passwordHash": "x" },
            { "name": "gone", "shouldExist": false, "sshAuthorizedKeys": [KEY] },
            { "name": "nogroup", "noUserGroup": true, "sshAuthorizedKeys": [KEY] },
        ] } }),
        json!({ "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": [KEY.replace(" a", " b")] }] } }),
    ]);
    let of = |home: &str| {
        vec![
            format!("keys {home}/.ssh/authorized_keys"),
            format!("keys {home}/.ssh/authorized_keys2"),
            format!("file {home}/.ssh/authorized_keys.d/ignition"),
            format!("closed {home}/.ssh/authorized_keys.d"),
        ]
    };
    let mut all: Vec<String> =
        ["/home/core", "/root", "/srv/app", "/home/nogroup"].into_iter().flat_map(of).collect();
    all.sort();
    let mut named = things(&found);
    named.sort();
    assert_eq!(named, all, "only users with a declared list of keys");

    let core = file(&found, "/home/core/.ssh/authorized_keys.d/ignition");
    let lines = format!("{KEY}\n{}\n", KEY.replace(" a", " b"));
    assert_eq!(core.content, Some(digest(lines.as_bytes())), "each key on its line, as with both writers");
    assert_eq!((core.mode, core.keys.len(), core.layout_free), (0o600, 2, true));
    assert_eq!((&core.user, &core.group), (&Owner::Name("core".into()), &Owner::Name("core".into())));
    assert!(!core.may_be_missing);
    let root = file(&found, "/root/.ssh/authorized_keys.d/ignition");
    assert!(root.may_be_missing, "without keys the file may be missing");
    assert_eq!(file(&found, "/srv/app/.ssh/authorized_keys.d/ignition").group, Owner::Name("apps".into()));
    assert_eq!(file(&found, "/home/nogroup/.ssh/authorized_keys.d/ignition").group, Owner::Undeclared);
    let directory = closed(&found, "/home/core/.ssh/authorized_keys.d");
    assert_eq!((&directory.names[..], directory.ssh_keys), (&["ignition".to_owned()][..], true));
    assert!(found.iter().all(|expectation| expectation.ssh_keys), "the daemon reads the keys of each");
}

#[test]
fn a_declared_file_of_keys_replaces_the_expectation_of_the_user_section() {
    let found = expected(&[json!({
        "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": [] }] },
        "storage": { "files": [
            { "path": "/home/core/.ssh/authorized_keys", "mode": 384, "contents": { "source": data_url::encode(KEY.as_bytes()) } },
            { "path": "/home/core/.ssh/authorized_keys.d/extra" },
        ] },
    })]);
    let own = file(&found, "/home/core/.ssh/authorized_keys");
    assert_eq!((own.keys.len(), own.layout_free), (1, false), "declared by its bytes, and read by its keys");
    assert_eq!(closed(&found, "/home/core/.ssh/authorized_keys.d").names, ["extra", "ignition"]);
}

#[test]
fn no_thing_is_expected_twice_even_in_a_shared_home() {
    let found = expected(&[json!({ "passwd": { "users": [
        { "name": "a", "homeDir": "/srv/x", "sshAuthorizedKeys": [KEY] },
        { "name": "b", "homeDir": "/srv/x", "sshAuthorizedKeys": [KEY] },
    ] } })]);
    let mut unique = things(&found);
    unique.dedup();
    assert_eq!(unique.len(), found.len());
}

#[test]
fn the_expected_bytes_are_those_of_the_digest() {
    let config = rendered(&[json!({
        "storage": { "files": [{ "path": "/a", "contents": { "source": "data:,a%0A" } }, { "path": "/empty" }] },
        "systemd": { "units": [
            { "name": "a.service", "contents": "[Unit]", "dropins": [{ "name": "x.conf", "contents": "x" }, { "name": "gone.conf" }] },
            { "name": "masked.service", "mask": true, "contents": "[Unit]" },
        ] },
        "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": [KEY] }] },
    })]);
    let mut checked = 0;
    for expectation in expectations(&config).unwrap() {
        if let Expected::File(FileExpectation { content: Some(content), .. }) = expectation.expected {
            let path = expectation.thing.path();
            let bytes =
                expected_bytes(&config, &path).unwrap_or_else(|| panic!("no bytes for {}", path.display()));
            assert_eq!(digest(&bytes), content, "{}", path.display());
            checked += 1;
        }
    }
    assert_eq!(checked, 6);
    for path in
        ["/nothing", "/etc/systemd/system/masked.service", "/etc/systemd/system/a.service.d/other.conf"]
    {
        assert_eq!(expected_bytes(&config, Path::new(path)), None, "{path}");
    }
}

#[test]
fn a_merge_that_cannot_be_decoded_names_the_file_and_its_machine_config() {
    let plain = rendered_as(
        true,
        &[
            json!({ "storage": { "files": [{ "path": "/a", "contents": { "source": "data:;base64,H4sIAAAAAAACA8vIBACsKpPYAgAAAA==", "compression": "gzip" } }] } }),
            json!({ "storage": { "files": [{ "path": "/a", "contents": { "source": "data:,plain" } }] } }),
        ],
    );
    let error = expectations(&plain).unwrap_err().to_string();
    assert!(
        error.starts_with(
            r#"1.yaml: MachineConfig "1.yaml": couldn't decode file "/a": failed decompressing"#
        ),
        "{error}"
    );
}

#[test]
fn ten_thousand_files_are_ten_thousand_expectations_of_bounded_size() {
    let content = data_url::encode(&[b'x'; 4096]);
    let files: Vec<Value> = (0..10_000)
        .map(|index| json!({ "path": format!("/etc/many/{index:05}"), "contents": { "source": content } }))
        .collect();
    let found = expected(&[json!({ "storage": { "files": files } })]);
    assert_eq!(found.len(), 10_000);
    assert!(size_of::<Expectation>() <= 320, "{} bytes each", size_of::<Expectation>());
    // Each expectation has one. The strength and the words of a layer are shared.
    assert!(size_of::<ExpectationSource>() <= 40, "{} bytes each", size_of::<ExpectationSource>());
}
