//! Password hashes, as lines of the shadow file.
//!
//! In: the users of the old and the new config, and the present file. Out: the new file, if a hash changes. A user whose hash is no
//! longer declared gets a value that no password has. No hash is in a log.

use super::{
    error::{ApplyError, ApplyRefusal},
    target_finder::{TargetFinder, WantedState},
};
use crate::{
    observation::Observer,
    repair::UnknownOwner,
    sys::{self, CallError},
};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
};
use sensor_model::{
    journal::{Metadata, PathState},
    merge::Rendered,
};
use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// The file of password hashes.
pub(super) const SHADOW: &str = "/etc/shadow";

/// A value that no password has.
const LOCKED: &str = "*";

/// The lock file of all writers of the shadow file, as in lckpwdf(3).
const LOCK: &str = ".pwd.lock";

/// How long to wait for the lock: as long as lckpwdf(3).
const PATIENCE: Duration = Duration::from_secs(15);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The lock: until it is dropped, no passwd, useradd or usermod writes.
#[derive(Debug)]
pub(super) struct ShadowLock {
    _file: OwnedFd,
}

impl ShadowLock {
    /// Takes the lock, and waits for a limited time; calls `waits` if it has to.
    pub(super) async fn take(observer: &Observer, waits: &mut dyn FnMut(&str)) -> Result<Self, ApplyError> {
        let directory = Path::new("/etc");
        let path = directory.join(LOCK);
        let failed = |operation| {
            let path = path.as_path();
            move |errno: Errno| CallError::new(path, operation, errno)
        };
        let root = observer.root();
        let etc =
            root.open_at(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed("open /etc"))?;
        let file = sys::lock_file(&etc, LOCK.as_ref()).map_err(failed("open"))?;
        let whole = libc::flock {
            l_type: libc::c_short::try_from(libc::F_WRLCK).unwrap_or(1),
            l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0),
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        let deadline = Instant::now() + PATIENCE;
        let mut has_waited = false;
        loop {
            // A lock of the open file and not of the process: only the end of this handle releases it.
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole)) {
                Ok(_) => return Ok(Self { _file: file }),
                Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() < deadline => {
                    if !std::mem::replace(&mut has_waited, true) {
                        waits(&format!(
                            "{}, which another process keeps locked, {} s at most",
                            path.display(),
                            PATIENCE.as_secs()
                        ));
                    }
                    sleep(PAUSE).await;
                }
                Err(Errno::EAGAIN | Errno::EACCES) => {
                    return Err(ApplyError::refused(&path, ApplyRefusal::KeptLocked(PATIENCE)));
                }
                Err(errno) => return Err(failed("lock")(errno).into()),
            }
        }
    }
}

/// Whether an apply reads or writes the shadow file.
pub(super) fn concerned(old: &Rendered, new: &Rendered, everything: bool) -> bool {
    let (old, new) = (hashes(old), hashes(new));
    old != new || (everything && !new.is_empty())
}

/// The planned shadow file.
pub(super) fn wanted(finder: &TargetFinder<'_>) -> Result<Option<WantedState>, ApplyError> {
    let (old, new) = (hashes(finder.old), hashes(finder.new));
    let mut set: BTreeMap<&str, &str> = BTreeMap::new();
    for (user, hash) in &new {
        if finder.everything || old.get(user) != Some(hash) {
            set.insert(user, hash);
        }
    }
    for user in old.keys().filter(|user| !new.contains_key(*user)) {
        set.insert(user, LOCKED);
    }
    if set.is_empty() {
        return Ok(None);
    }
    let path = Path::new(SHADOW);
    let PathState::File(file) = finder.state(path)? else {
        return Err(ApplyError::refused(path, ApplyRefusal::NoShadow));
    };
    let bytes = finder.store.content(&file.sha256)?;
    let Metadata { mode, uid, gid, .. } = file.metadata;
    let content = edit(&bytes, &set, finder.today).map_err(|user| ApplyError::refused(path, user))?;
    Ok(Some(WantedState::File { content: Some(content), mode, uid: Some(uid), gid: Some(gid) }))
}

/// Whether every declared hash is in a shadow file; the name of the first user whose is not.
pub(super) fn missing(rendered: &Rendered, shadow: &[u8]) -> Option<String> {
    let lines: BTreeMap<&[u8], &[u8]> = shadow
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b':');
            Some((fields.next()?, fields.next()?))
        })
        .collect();
    hashes(rendered)
        .into_iter()
        .find(|(user, hash)| lines.get(user.as_bytes()) != Some(&hash.as_bytes()))
        .map(|(user, _)| user.to_owned())
}

fn hashes(rendered: &Rendered) -> BTreeMap<&str, &str> {
    let of = |user: &'_ sensor_model::merge::RenderedUser| user.user.should_exist != Some(false);
    let declared = rendered.users.iter().filter(|(_, user)| of(user));
    declared
        .filter_map(|(name, user)| {
            Some((name.as_str(), user.user.password_hash.as_deref().filter(|hash| !hash.is_empty())?))
        })
        .collect()
}

/// Sets hashes and the day of their change. A user with a declared hash who has no line is an error.
fn edit(shadow: &[u8], set: &BTreeMap<&str, &str>, today: i64) -> Result<Vec<u8>, UnknownOwner> {
    let mut left: BTreeMap<&str, &str> = set.clone();
    let mut edited = Vec::with_capacity(shadow.len() + 256);
    for line in shadow.split_inclusive(|byte| *byte == b'\n') {
        let (text, end) = line.strip_suffix(b"\n").map_or((line, &b""[..]), |text| (text, b"\n"));
        let mut fields: Vec<Vec<u8>> = text.split(|byte| *byte == b':').map(<[u8]>::to_vec).collect();
        let user = String::from_utf8_lossy(&fields[0]).into_owned();
        if let (Some(hash), true) = (left.remove(user.as_str()), fields.len() >= 3)
            && fields[1] != hash.as_bytes()
        {
            fields[1] = hash.as_bytes().to_vec();
            fields[2] = today.to_string().into_bytes();
        }
        edited.extend_from_slice(&fields.join(&b':'));
        edited.extend_from_slice(end);
    }
    match left.keys().next() {
        // A user who does not exist needs no locked password.
        Some(user) if left[user] != LOCKED => Err(UnknownOwner::User((*user).to_owned())),
        _ => Ok(edited),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_users_line_changes_and_all_other_bytes_stay() {
        let shadow = b"root:*:1:0:99999:7:::\ncore:!:2:0:99999:7:::\nodd line\n\nlast:x:3";
        let set = BTreeMap::from([("core", "$6$a$b")]);
        let edited = edit(shadow, &set, 20_000).unwrap();
        let wanted = b"root:*:1:0:99999:7:::\ncore:$6$a$b:20000:0:99999:7:::\nodd line\n\nlast:x:3";
        assert_eq!(String::from_utf8_lossy(&edited), String::from_utf8_lossy(wanted));
        assert_eq!(edit(&edited, &set, 30_000).unwrap(), edited, "an unchanged hash keeps its day");
    }

    #[test]
    fn an_unknown_user_is_an_error_with_the_name_unless_the_password_is_to_be_locked() {
        assert_eq!(
            edit(b"root:*:1\n", &BTreeMap::from([("core", "h")]), 1),
            Err(UnknownOwner::User("core".to_owned()))
        );
        assert_eq!(edit(b"root:*:1\n", &BTreeMap::from([("core", LOCKED)]), 1), Ok(b"root:*:1\n".to_vec()));
    }
}
