//! Users' ssh keys.
//!
//! In: the users of a rendered config. Out: an expectation of each declared file of keys, and of no undeclared key in the files
//! that sshd reads.

use super::{declared::digest, units::nodes_in};
use crate::{
    authorized_keys,
    expectation::{
        AuthorizedKeysExpectation, ClosedDirectoryExpectation, Expectation, Expected, FileExpectation, Owner,
        Thing,
    },
    link_exceptions::LinkExceptions,
    merge::{Rendered, RenderedUser, Sourced},
    name_patterns::NamePatterns,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The mode that Ignition and the Machine Config Daemon give the file of keys.
const KEYS_MODE: u32 = 0o600;

/// Name of the file of declared keys.
const DECLARED: &str = "ignition";

pub(super) fn expectations(rendered: &Rendered, found: &mut Vec<Expectation>) {
    // Two users may have one home. Its keys are then those of both.
    let mut homes: BTreeMap<PathBuf, Vec<&RenderedUser>> = BTreeMap::new();
    for user in rendered.users.values().filter(|user| declares_keys(user)) {
        homes.entry(home(user)).or_default().push(user);
    }
    for (home, users) in homes {
        of_home(rendered, &home, &users, found);
    }
}

/// The content of a file of declared keys.
pub(super) fn bytes(rendered: &Rendered, path: &Path) -> Option<Vec<u8>> {
    let users: Vec<&RenderedUser> = rendered
        .users
        .values()
        .filter(|user| declares_keys(user) && declared_file(&home(user)) == path)
        .collect();
    let bytes = lines(&users);
    (!bytes.is_empty()).then_some(bytes)
}

fn of_home(rendered: &Rendered, home: &Path, users: &[&RenderedUser], found: &mut Vec<Expectation>) {
    let Some(last) = users.last() else { return };
    let bytes = lines(users);
    let keys = authorized_keys::parse(&bytes).keys;
    let source = || {
        let of_key = users.iter().flat_map(|user| user.keys.iter().flatten()).next_back();
        of_key.map_or_else(|| last.source.clone(), |key| key.source.clone())
    };
    let path = declared_file(home);
    let is_declared = |path: &Path| {
        path.to_str()
            .is_some_and(|path| rendered.files.contains_key(path) || rendered.links.contains_key(path))
    };
    if !is_declared(&path) {
        // Without keys the file may be missing; with keys it must be there.
        found.push(Expectation {
            thing: Thing::file(path),
            expected: Expected::File(FileExpectation {
                content: Some(digest(&bytes)),
                keys: keys.clone().into(),
                layout_free: true,
                mode: KEYS_MODE,
                user: Owner::Name(last.user.name.clone()),
                group: group(last),
                may_be_missing: bytes.is_empty(),
                xattrs: None,
            }),
            ssh_keys: true,
            label: None,
            source: source().into(),
        });
    }
    let directory = home.join(".ssh/authorized_keys.d");
    let mut names = nodes_in(rendered, &directory);
    names.push(DECLARED.to_owned());
    names.sort();
    names.dedup();
    found.push(Expectation {
        thing: Thing::closed_directory(directory),
        expected: Expected::ClosedDirectory(ClosedDirectoryExpectation {
            names,
            suffix: None,
            ssh_keys: true,
            except: NamePatterns::default(),
            except_links: LinkExceptions::default(),
        }),
        ssh_keys: true,
        label: None,
        source: source().into(),
    });
    // sshd reads both by default.
    for name in ["authorized_keys", "authorized_keys2"] {
        let path = home.join(".ssh").join(name);
        if !is_declared(&path) {
            found.push(Expectation {
                thing: Thing::file(path),
                expected: Expected::AuthorizedKeys(AuthorizedKeysExpectation {
                    user: last.user.name.clone(),
                    keys: keys.clone(),
                }),
                ssh_keys: true,
                label: None,
                source: source().into(),
            });
        }
    }
}

/// Whether a list of keys is declared, even an empty one. A user with `shouldExist: false` has no keys.
fn declares_keys(user: &RenderedUser) -> bool {
    user.keys.is_some() && user.user.should_exist != Some(false)
}

fn home(user: &RenderedUser) -> PathBuf {
    match user.user.home_dir.as_deref().filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home),
        None if user.user.name == "root" => PathBuf::from("/root"),
        None => Path::new("/home").join(&user.user.name),
    }
}

fn declared_file(home: &Path) -> PathBuf {
    home.join(".ssh/authorized_keys.d").join(DECLARED)
}

/// The group of the account: its own by default, undeclared if the system chooses it.
fn group(user: &RenderedUser) -> Owner {
    match user.user.primary_group.as_deref().filter(|group| !group.is_empty()) {
        Some(group) => Owner::Name(group.to_owned()),
        None if user.user.no_user_group == Some(true) => Owner::Undeclared,
        None => Owner::Name(user.user.name.clone()),
    }
}

/// Each key and a line ending, as Ignition and the Machine Config Daemon write them.
fn lines(users: &[&RenderedUser]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Sourced { value, .. } in users.iter().flat_map(|user| user.keys.iter().flatten()) {
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}
