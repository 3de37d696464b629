//! When a path that an OS image changes takes effect, and the programs that units start.
//!
//! In: a path of an image, or the text of a unit file. Out: a kind of effect, or paths of programs. It reads no file.

/// When the change of a path takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateEffect {
    /// After a reboot: the boot loader, the kernel and what it loads, systemd itself.
    Reboot,
    /// When a unit starts again: its file, or a program that it starts.
    Unit,
    /// When a process starts again: it keeps the old library until then.
    Library,
    /// When a process opens the file again.
    File,
}

/// Directories whose files only a boot reads. An ostree image has its kernel in `/usr/lib/modules` or `/usr/lib/ostree-boot`.
const BOOT: [&[u8]; 8] = [
    b"/boot/",
    b"/usr/lib/bootupd/",
    b"/usr/lib/dracut/",
    b"/usr/lib/firmware/",
    b"/usr/lib/modules/",
    b"/usr/lib/ostree-boot/",
    b"/usr/lib/systemd/boot/",
    b"/efi/",
];
/// The program of process 1. An update of an image does not execute it again.
const INIT: &[u8] = b"/usr/lib/systemd/systemd";
/// The directory of the units that an image ships.
const UNITS: &[u8] = b"/usr/lib/systemd/system/";
/// Directives whose first word is a program (systemd.service(5)).
const STARTS: [&str; 6] =
    ["ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecReload", "ExecStop"];
/// Prefixes of the program (systemd.service(5), "Command lines").
const PREFIXES: [char; 6] = ['@', '-', ':', '+', '!', '|'];

/// The unit whose file or drop-in is at a path of an image; `None` for other paths.
pub fn unit_at(path: &[u8]) -> Option<&str> {
    let name = str::from_utf8(path.strip_prefix(UNITS)?).ok()?;
    match name.split_once('/') {
        None => Some(name),
        // A link in `NAME.wants` or `NAME.requires` is about the start of another unit.
        Some((folder, _)) => folder.strip_suffix(".d"),
    }
}

/// When a changed path takes effect, apart from the programs of units.
pub fn update_effect(path: &[u8]) -> UpdateEffect {
    if path == INIT || BOOT.iter().any(|folder| path.starts_with(folder)) {
        UpdateEffect::Reboot
    } else if unit_at(path).is_some() {
        UpdateEffect::Unit
    } else if is_library(path) {
        UpdateEffect::Library
    } else {
        UpdateEffect::File
    }
}

/// `NAME.so`, or `NAME.so.` and a version, below a directory of libraries.
fn is_library(path: &[u8]) -> bool {
    let folders: [&[u8]; 4] = [b"/usr/lib/", b"/usr/lib64/", b"/lib/", b"/lib64/"];
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    let is_version = |rest: &str| rest.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit());
    folders.iter().any(|folder| path.starts_with(folder))
        && name.rfind(".so").is_some_and(|place| is_version(&name[place + 3..]))
}

/// The programs that a unit starts, by its file's text: each path that is absolute.
pub fn programs(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        if !STARTS.contains(&key.trim()) {
            return None;
        }
        let value = value.trim_start().trim_start_matches(PREFIXES);
        let word = match value.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next()?,
            None => value.split_whitespace().next()?,
        };
        word.starts_with('/').then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_boot_reads_needs_a_reboot_and_other_files_do_not() {
        for path in [
            "/boot/vmlinuz",
            "/usr/lib/modules/6.1/vmlinuz",
            "/usr/lib/firmware/a.bin",
            "/usr/lib/systemd/systemd",
        ] {
            assert_eq!(update_effect(path.as_bytes()), UpdateEffect::Reboot, "{path}");
        }
        for path in ["/usr/lib/systemd/system/a.service", "/usr/lib/systemd/system/a.service.d/b.conf"] {
            assert_eq!(update_effect(path.as_bytes()), UpdateEffect::Unit, "{path}");
            assert_eq!(unit_at(path.as_bytes()), Some("a.service"), "{path}");
        }
        for path in
            ["/usr/lib64/libc.so.6", "/usr/lib/x86_64-linux-gnu/libz.so.1.2.13", "/lib/security/pam_unix.so"]
        {
            assert_eq!(update_effect(path.as_bytes()), UpdateEffect::Library, "{path}");
        }
        for path in [
            "/usr/bin/ls",
            "/usr/lib/modules-load.d/a.conf",
            "/usr/lib/systemd/systemd-logind",
            "/usr/lib/systemd/system/multi-user.target.wants/a.service",
            "/usr/lib/a.song",
            "/usr/lib/a.so.gz",
            "/usr/share/a.so",
            "/etc/motd",
        ] {
            assert_eq!(update_effect(path.as_bytes()), UpdateEffect::File, "{path}");
        }
    }

    #[test]
    fn programs_of_a_unit_are_found_behind_prefixes_and_quotes_and_nothing_else_is() {
        let text = "[Service]\nExecStart=/usr/bin/one --flag /usr/bin/no\n ExecStartPre = -!/usr/bin/two\n\
                    ExecStop=\"/usr/lib/with space\" x\nExecStart=\nExecReload=@echo x\nEnvironment=A=/usr/bin/no\n\
                    #ExecStart=/usr/bin/no\n";
        assert_eq!(
            programs(text).collect::<Vec<_>>(),
            ["/usr/bin/one", "/usr/bin/two", "/usr/lib/with space"]
        );
    }
}
