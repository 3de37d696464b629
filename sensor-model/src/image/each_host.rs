//! Files of an image's `/etc` that each host writes by itself, and trust stores that a host fills by itself if a config adds a certificate.

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

/// Directories that a tool of the host fills, each with the place of the certificates that it takes. `update-ca-trust` of Fedora and RHEL, and
/// `update-ca-certificates` of Debian.
const TRUST_STORES: [(&str, &str); 3] = [
    ("/etc/pki/ca-trust/extracted", "/etc/pki/ca-trust/source"),
    ("/etc/ssl/certs", "/usr/local/share/ca-certificates"),
    ("/etc/ssl/certs", "/etc/ca-certificates.conf"),
];

/// The directory whose names and contents depend on the file at a path, because a tool of the host fills it with the certificates at the path. It
/// is not among the files that each host writes: without a certificate of the host's own it is as in the image, and a change there decides whom
/// programs trust.
pub fn trust_store_of(path: &Path) -> Option<&'static Path> {
    let of_path = TRUST_STORES.iter().find(|(_, source)| path.starts_with(source));
    of_path.map(|(store, _)| Path::new(*store))
}

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
            ("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", false),
            ("/usr/etc/passwd", false),
        ] {
            assert_eq!(is_of_each_host(Path::new(path)), is_of_host, "{path}");
        }
    }

    #[test]
    fn a_certificate_changes_the_trust_store_that_a_tool_makes_of_it() {
        for (path, store) in [
            ("/etc/pki/ca-trust/source/anchors/own.crt", Some("/etc/pki/ca-trust/extracted")),
            ("/etc/pki/ca-trust/source/blocklist/other.crt", Some("/etc/pki/ca-trust/extracted")),
            ("/usr/local/share/ca-certificates/own.crt", Some("/etc/ssl/certs")),
            ("/etc/ca-certificates.conf", Some("/etc/ssl/certs")),
            ("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", None),
            ("/etc/pki/tls/private/own.key", None),
        ] {
            assert_eq!(trust_store_of(Path::new(path)), store.map(Path::new), "{path}");
        }
    }
}
