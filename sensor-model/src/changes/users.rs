//! Users' ssh keys and password hashes.
//!
//! In: two rendered configs. Out: one change for each key and each hash. A change names a key by user and fingerprint. No change
//! contains a key or a hash.

use super::{
    change::{Change, ChangeKind, ChangeOperation},
    pairs::pairs,
};
use crate::{
    authorized_keys,
    merge::{Rendered, RenderedUser, Sourced},
};
use sha2::{Digest as _, Sha256};

pub(super) fn compare(old: &Rendered, new: &Rendered, found: &mut Vec<Change>) {
    for (name, old, new) in pairs(&old.users, &new.users) {
        keys(name, old, new, found);
        password(name, old, new, found);
    }
}

fn keys(user: &str, old: Option<&RenderedUser>, new: Option<&RenderedUser>, found: &mut Vec<Change>) {
    let of = |user: Option<&RenderedUser>| -> Vec<Sourced<String>> {
        user.and_then(|user| user.keys.clone()).unwrap_or_default()
    };
    let (old, new) = (of(old), of(new));
    let has =
        |keys: &[Sourced<String>], key: &Sourced<String>| keys.iter().any(|other| other.value == key.value);
    let mut differs = false;
    for (operation, from, other) in
        [(ChangeOperation::Remove, &old, &new), (ChangeOperation::Add, &new, &old)]
    {
        for key in from.iter().filter(|key| !has(other, key)) {
            differs = true;
            found.push(Change {
                kind: ChangeKind::SshKey,
                name: format!("{user} {}", fingerprint(&key.value)),
                operation,
                details: Vec::new(),
                source: key.source.clone(),
                others: Vec::new(),
            });
        }
    }
    // The order makes no difference to sshd, but the written file differs.
    let order = |keys: &[Sourced<String>]| keys.iter().map(|key| key.value.clone()).collect::<Vec<_>>();
    if !differs
        && order(&old) != order(&new)
        && let Some(key) = new.last()
    {
        found.push(Change {
            kind: ChangeKind::SshKey,
            name: user.to_owned(),
            operation: ChangeOperation::Change,
            details: vec!["order".to_owned()],
            source: key.source.clone(),
            others: Vec::new(),
        });
    }
}

/// Type and fingerprint as in `ssh-keygen -l`. For a text that is not one key: that, and its digest.
fn fingerprint(text: &str) -> String {
    match &authorized_keys::parse(text.as_bytes()).keys[..] {
        [key] => key.to_string(),
        _ => format!("not one key, SHA-256 {}", hex::encode(Sha256::digest(text.as_bytes()))),
    }
}

fn password(name: &str, old: Option<&RenderedUser>, new: Option<&RenderedUser>, found: &mut Vec<Change>) {
    fn hash(user: Option<&RenderedUser>) -> Option<&str> {
        user.and_then(|user| user.user.password_hash.as_deref()).filter(|hash| !hash.is_empty())
    }
    let (before, after) = (hash(old), hash(new));
    if before == after {
        return;
    }
    if let Some(user) = new.or(old) {
        found.push(Change {
            kind: ChangeKind::PasswordHash,
            name: name.to_owned(),
            operation: ChangeOperation::of(before.is_some(), after.is_some()),
            details: Vec::new(),
            source: user.source.clone(),
            others: Vec::new(),
        });
    }
}
