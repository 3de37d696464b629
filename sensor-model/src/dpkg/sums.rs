//! `/var/lib/dpkg/info/NAME.md5sums`: a sum, two spaces and a path without its first slash on each line.

use super::md5;

/// The paths with their sums, in the file's order.
pub fn sums(text: &[u8]) -> impl Iterator<Item = (Vec<u8>, [u8; 16])> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let (sum, rest) = line.split_at_checked(32)?;
        let path = rest.strip_prefix(b"  ")?;
        let path = path.strip_prefix(b"/").or(path.strip_prefix(b"./")).unwrap_or(path);
        let is_path = !path.is_empty();
        is_path.then_some(([b"/", path].concat(), md5(sum)?))
    })
}
