//! Type and permission bits in the form of Go's `os.FileMode`.
//!
//! In: a type and permission bits. Out: the text that the Machine Config Operator prints for them.

use crate::{observation::FileType, text::octal};

/// Type and permission bits as Go prints an `os.FileMode` with `%v/%d/%#o`: `-rw-r--r--/420/0644`.
///
/// `mode` is `st_mode & 0o7777`.
pub(super) fn go_mode(file_type: FileType, mode: u32) -> String {
    let bits = go_mode_bits(file_type, mode);
    // One letter for each bit, from the highest bit down. Bits without a letter here are never set.
    let mut letters = String::new();
    for (position, letter) in "dalTLDpSugct?".chars().enumerate() {
        if bits & (1 << (31 - position)) != 0 {
            letters.push(letter);
        }
    }
    if letters.is_empty() {
        letters.push('-');
    }
    for (position, letter) in "rwxrwxrwx".chars().enumerate() {
        letters.push(if bits & (1 << (8 - position)) == 0 { '-' } else { letter });
    }
    format!("{letters}/{bits}/{}", octal(bits))
}

/// Go's `os.FileMode` has its own bits for the type and for setuid, setgid and sticky.
fn go_mode_bits(file_type: FileType, mode: u32) -> u32 {
    const DEVICE: u32 = 1 << 26;
    const CHARACTER_DEVICE: u32 = 1 << 21;
    let type_bits = match file_type {
        FileType::Regular => 0,
        FileType::Directory => 1 << 31,
        FileType::Symlink => 1 << 27,
        FileType::BlockDevice => DEVICE,
        FileType::CharacterDevice => DEVICE | CHARACTER_DEVICE,
        FileType::Fifo => 1 << 25,
        FileType::Socket => 1 << 24,
    };
    let special = [(0o4000, 1 << 23), (0o2000, 1 << 22), (0o1000, 1 << 20)];
    special
        .iter()
        .filter(|(unix, _)| mode & unix != 0)
        .fold(type_bits | (mode & 0o777), |bits, (_, go)| bits | go)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_go_writes_them() {
        for (file_type, mode, expected, why) in [
            (FileType::Regular, 0o644, "-rw-r--r--/420/0644", "a plain file"),
            (FileType::Regular, 0, "----------/0/0", "no bit at all"),
            (FileType::Regular, 0o4755, "urwxr-xr-x/8389101/040000755", "setuid has a bit of its own"),
            (FileType::Regular, 0o2755, "grwxr-xr-x/4194797/020000755", "setgid too"),
            (FileType::Directory, 0o1777, "dtrwxrwxrwx/2148532735/020004000777", "two letters in front"),
            (FileType::Symlink, 0o777, "Lrwxrwxrwx/134218239/01000000777", "a link"),
            (FileType::CharacterDevice, 0o666, "Dcrw-rw-rw-/69206454/0410000666", "a device"),
            (FileType::BlockDevice, 0o660, "Drw-rw----/67109296/0400000660", "a block device"),
            (FileType::Fifo, 0o600, "prw-------/33554816/0200000600", "a pipe"),
            (FileType::Socket, 0o755, "Srwxr-xr-x/16777709/0100000755", "a socket"),
        ] {
            assert_eq!(go_mode(file_type, mode), expected, "{why}");
        }
    }
}
