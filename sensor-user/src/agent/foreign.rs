//! File systems on which the kernel's evidence proves nothing, because others can change files there unseen.
//!
//! In: the magic number of a file system. Out: its name if it is such a file system. No state.

use crate::observation::Observer;
use std::path::Path;

/// The magic numbers of file systems on which other hosts, or a daemon, can change files without this kernel. They come from
/// `include/uapi/linux/magic.h` and the headers of the file systems.
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

/// overlayfs. A mapping of its file maps the file in the layer below (`ovl_mmap`). The inode of the overlay shows neither the
/// stores nor the writers of that file. A write in the upper directory bypasses the overlay.
const OVERLAY: u64 = 0x794c_7630;

/// Whether two files of the file system may have one inode number at once. On an overlay each layer has numbers of its own, and
/// inodes have no generation. Without an upper layer no new file can get a used number.
pub(super) fn shares_numbers(magic: u64, observer: &Observer, path: &Path) -> bool {
    magic == OVERLAY && observer.has_upper_layer(path)
}

/// The name of such a file system at a path; `None` for all others. An overlay without an upper layer (an image) is as safe as
/// the file systems of its layers.
pub(super) fn foreign(magic: u64, observer: &Observer, path: &Path) -> Option<&'static str> {
    if shares_numbers(magic, observer, path) {
        return Some("overlay");
    }
    FOREIGN_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}
