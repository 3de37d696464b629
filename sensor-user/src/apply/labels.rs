//! SELinux labels of what an apply makes anew.
//!
//! In: the host's policy, where SELinux is enabled. Out: the extended attribute with the label that `restorecon` would
//! give. Without SELinux nothing is read and no label is written.

use crate::observation::Observer;
use nix::fcntl::OFlag;
use sensor_model::selinux::{FileContexts, Kind, Texts};
use std::{collections::BTreeMap, fs::File, io::Read as _, path::Path};

/// Where the kernel's side of SELinux shows itself.
const ENFORCE: &str = "/sys/fs/selinux/enforce";

/// Says which policy the host has.
const CONFIG: &str = "/etc/selinux/config";

/// The policy that a host has where its config names none.
const POLICY: &str = "targeted";

/// The attribute that holds a label.
pub(super) const ATTRIBUTE: &str = "security.selinux";

/// Bytes of one file of a policy at most; the largest have half a megabyte.
const LARGEST: u64 = 16 << 20;

/// The labels of one host; none where it has no SELinux.
#[derive(Debug, Default)]
pub(super) struct Labels(Option<FileContexts>);

impl Labels {
    /// Reads the host's policy.
    pub(super) fn read(observer: &Observer) -> Self {
        if observer.root().open_at(Path::new(ENFORCE), OFlag::O_PATH).is_err() {
            return Self(None);
        }
        let config = text(observer, CONFIG);
        let policy = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE="));
        let policy = policy.map(str::trim).filter(|name| !name.contains('/')).unwrap_or(POLICY);
        let part = |ending: &str| {
            text(observer, &format!("/etc/selinux/{policy}/contexts/files/file_contexts{ending}"))
        };
        let (main, homes, local) = (part(""), part(".homedirs"), part(".local"));
        let (dist, own) = (part(".subs_dist"), part(".subs"));
        let contexts = FileContexts::parse(&Texts {
            policy: &main,
            homes: &homes,
            local: &local,
            substitutions_of_policy: &dist,
            substitutions: &own,
        });
        if contexts.unusable() > 0 {
            tracing::warn!(lines = contexts.unusable(), policy, "Lines of file_contexts cannot be used.");
        }
        Self(Some(contexts))
    }

    /// What a new object at a path is to carry.
    pub(super) fn of(&self, path: &Path, kind: Kind) -> BTreeMap<String, String> {
        let label = self.0.as_ref().and_then(|contexts| contexts.label(path, kind));
        // The kernel keeps labels with a zero byte at their end, and gives them back so.
        label.map(|label| (ATTRIBUTE.to_owned(), hex::encode(format!("{label}\0")))).into_iter().collect()
    }
}

/// The text of a file of the host; empty where there is none, as with most of a policy's companions.
fn text(observer: &Observer, path: &str) -> String {
    let mut bytes = Vec::new();
    match observer.root().open_at(Path::new(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
        Ok(file) => {
            if let Err(error) = File::from(file).take(LARGEST).read_to_end(&mut bytes) {
                tracing::warn!(path, %error, "A part of the SELinux policy cannot be read.");
            }
        }
        Err(nix::errno::Errno::ENOENT) => {}
        Err(errno) => {
            tracing::warn!(path, error = errno.desc(), "A part of the SELinux policy cannot be read.");
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
