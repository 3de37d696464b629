//! Files of an image's `/etc` that each host writes by itself.

use std::path::Path;

/// Their paths below `/etc`. Accounts, the identity of the machine, its network, and what tools of the host make from other files.
const NAMES: [&str; 19] = [
    ".updated",
    "adjtime",
    "group",
    "group-",
    "gshadow",
    "gshadow-",
    "hostname",
    "ld.so.cache",
    "localtime",
    "machine-id",
    "passwd",
    "passwd-",
    "resolv.conf",
    "shadow",
    "shadow-",
    "subgid",
    "subgid-",
    "subuid",
    "subuid-",
];

/// Whether each host writes the file at a path by itself, so that its content is not compared with the image's.
pub fn is_of_each_host(path: &Path) -> bool {
    let below = path.strip_prefix("/etc").ok().and_then(Path::to_str);
    below.is_some_and(|below| NAMES.contains(&below))
}
