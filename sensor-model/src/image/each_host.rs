//! Files of an image's `/etc` that each host writes by itself.

use std::path::Path;

/// Their paths below `/etc`. Accounts, the identity of the machine, its network, and what tools of the host make from other files. The compiled
/// SELinux policy is none of them: a change of it decides what a process may do.
const NAMES: [&str; 20] = [
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
    "udev/hwdb.bin",
];

/// The directory of the databases that `dconf update` compiles, each from a directory `NAME.d` beside it.
const DCONF: &str = "dconf/db";

/// Whether each host writes the file at a path by itself, so that its content is not compared with the image's.
pub fn is_of_each_host(path: &Path) -> bool {
    let below = path.strip_prefix("/etc").ok().and_then(Path::to_str);
    below.is_some_and(|below| NAMES.contains(&below) || is_compiled_by_dconf(Path::new(below)))
}

fn is_compiled_by_dconf(below: &Path) -> bool {
    below.parent() == Some(Path::new(DCONF)) && below.extension().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_of_the_host_compile_is_of_each_host_and_its_sources_are_not() {
        for (path, is_of_host) in [
            ("/etc/passwd", true),
            ("/etc/udev/hwdb.bin", true),
            ("/etc/udev/hwdb.d/a.hwdb", false),
            ("/etc/dconf/db/local", true),
            ("/etc/dconf/db/local.d", false),
            ("/etc/dconf/db/local.d/locks", false),
            ("/etc/dconf/db", false),
            ("/etc/selinux/targeted/policy/policy.33", false),
            ("/usr/etc/passwd", false),
        ] {
            assert_eq!(is_of_each_host(Path::new(path)), is_of_host, "{path}");
        }
    }
}
