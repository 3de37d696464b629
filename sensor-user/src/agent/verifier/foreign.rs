//! File systems on which the kernel's word on a look is worth nothing.
//!
//! In: the magic number of a file system. Out: its name, where others can change files on it unseen.

use crate::observation::Observer;
use std::path::Path;

/// The magic numbers of file systems on which others can change files without this kernel taking part,
/// or whose daemon can (include/uapi/linux/magic.h and their own headers).
const FOREIGN_FILE_SYSTEMS: [(u64, &str); 17] = [
    (0x6969, "nfs"),
    (0xfe53_4d42, "smb2"),
    (0xff53_4d42, "cifs"),
    (0x517b, "smb"),
    (0x00c3_6400, "ceph"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x6b41_4653, "afs"),
    (0x5346_414f, "openafs"),
    (0x7375_7245, "coda"),
    (0x0116_1970, "gfs2"),
    (0x7461_636f, "ocfs2"),
    (0x2003_0528, "orangefs"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
];

/// overlayfs. A mapping of its file is one of the file in the layer below (`ovl_mmap`), whose stores and writers its own
/// inode does not show, and a write in the upper directory bypasses all of it.
const OVERLAY: u64 = 0x794c_7630;

/// Whether two files there may have one number at once: each layer has numbers of its own, and no inode a generation. In
/// layers that are only read, no file is made that gets another one's number.
pub(super) fn shares_numbers(magic: u64, observer: &Observer, path: &Path) -> bool {
    magic == OVERLAY && observer.has_upper_layer(path)
}

/// The name of such a file system, for what a path leads to; `None` for all others. Layers that cannot be written
/// (an image's) are as good as what they lie on.
pub(super) fn foreign(magic: u64, observer: &Observer, path: &Path) -> Option<&'static str> {
    if shares_numbers(magic, observer, path) {
        return Some("overlay");
    }
    FOREIGN_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}
