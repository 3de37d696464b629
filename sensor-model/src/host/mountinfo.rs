//! `/proc/PID/mountinfo` (proc(5)).
//!
//! In: the bytes of the file. Out: its mounts. The kernel (`mangle()`) escapes only blanks, tabs, newlines and backslashes. A
//! mount point may have any other bytes. A user with a user namespace that shares its mounts can choose them.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, path::PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Number of the mount. The kernel reuses numbers.
    pub id: &'a [u8],
    /// Number of the parent mount. For stacked mounts that is another mount at the same point.
    pub parent: &'a [u8],
    /// `major:minor` of the file system.
    pub device: &'a [u8],
    /// The mounted directory of the file system, with escapes.
    pub root: &'a [u8],
    /// The mount point below the reader's root.
    pub point: PathBuf,
    /// Options of the mount.
    pub options: &'a [u8],
    /// Type of the file system; `None` if the line is cut.
    pub file_system: Option<&'a [u8]>,
    /// What the mounting process named as the source; `None` if the line is cut.
    pub source: Option<&'a [u8]>,
    /// Options of the file system; `None` if the line is cut.
    pub super_options: Option<&'a [u8]>,
}

impl Mount<'_> {
    /// Whether the file system has this mount option, with any value. A comma within another option's value may look like one.
    pub fn has_option(&self, name: &str) -> bool {
        let options = self.super_options.unwrap_or_default().split(|byte| *byte == b',');
        let mut names = options.map(|option| option.split(|byte| *byte == b'=').next().unwrap_or_default());
        names.any(|option| option == name.as_bytes())
    }

    /// The value of this option of the file system, up to the next comma, with escapes.
    pub fn option(&self, name: &str) -> Option<&[u8]> {
        let mut options = self.super_options.unwrap_or_default().split(|byte| *byte == b',');
        options.find_map(|option| option.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

/// The mounts of a table. Invalid lines are ignored.
pub fn mounts(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(mount)
}

/// `id parent major:minor root point options [tag…] - type source options`.
fn mount(line: &[u8]) -> Option<Mount<'_>> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = fields.next()?;
    let parent = fields.next()?;
    let (device, root, point, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let point = PathBuf::from(OsString::from_vec(unescape(point)));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let (file_system, source, super_options) = (rest.next(), rest.next(), rest.next());
    let mount = Mount { id, parent, device, root, point, options, file_system, source, super_options };
    mount.point.is_absolute().then_some(mount)
}

/// Decodes the kernel's octal escapes.
pub(crate) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let digits = if *first == b'\\' { behind.get(..3) } else { None };
        let value = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(value) = value {
            out.push(value);
            rest = &behind[3..];
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

    #[test]
    fn a_line_is_read_with_its_tags_and_its_type() {
        let line = b"31 30 0:27 / /sys/fs/cgroup/unified rw shared:9 master:1 - cgroup2 cgroup2 rw\n";
        let found: Vec<_> = mounts(line).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].point, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!((found[0].device, found[0].file_system), (&b"0:27"[..], Some(&b"cgroup2"[..])));
    }

    #[test]
    fn a_file_system_has_the_options_that_it_was_mounted_with_and_no_others() {
        let table = b"1 0 0:1 / /a rw - overlay o rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
            2 0 0:2 / /b ro - overlay o ro,lowerdir=/upperdir:/l\n3 0 0:3 / /c rw - overlay\n";
        let found: Vec<_> = mounts(table).map(|mount| mount.has_option("upperdir")).collect();
        assert_eq!(found, [true, false, false]);
        let uppers: Vec<_> =
            mounts(table).map(|mount| mount.option("upperdir").map(<[u8]>::to_vec)).collect();
        assert_eq!(uppers, [Some(b"/u".to_vec()), None, None]);
    }

    #[test]
    fn a_mount_point_that_is_not_utf8_is_read_like_any_other() {
        let table = b"1 0 0:1 / /tmp/\xff rw - tmpfs t rw\n2 0 0:2 / /etc/a\\040b rw - tmpfs t rw\n";
        let points: Vec<_> = mounts(table).map(|mount| mount.point).collect();
        assert_eq!(points, [Path::new(OsStr::from_bytes(b"/tmp/\xff")), Path::new("/etc/a b")]);
    }

    #[test]
    fn an_invalid_escape_stays_as_it_is() {
        for text in [&b"/a\\"[..], b"/a\\04", b"/a\\0x0", b"/a\\777", b"/a\\+12"] {
            assert_eq!(unescape(text), text);
        }
        assert_eq!(unescape(b"/\\134\\012"), b"/\\\n");
    }

    #[test]
    fn invalid_lines_are_left_out() {
        assert_eq!(mounts(b"nonsense\n\n1 2 3\n1 2 3 / relative rw\n").count(), 0);
    }
}
