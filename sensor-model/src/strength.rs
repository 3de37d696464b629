//! What a verdict rests on.
//!
//! In: nothing. Out: the kinds of evidence for what an image, a package or a baseline has at a path, and their names; and the ways in which the
//! kernel proves a content.

use sensor_protocol::names;

names! {
    /// What a verdict rests on.
    pub enum Strength {
        /// The fs-verity digest of the file, which the kernel enforces. The scan read the content once, and it was that of the index.
        Sealed = "sealed by fs-verity",
        /// The root hash of the device of `/` or `/usr`, which the boot loader named and the kernel enforces. The content was read once, and it
        /// was that of the index.
        SealedDevice = "sealed by dm-verity",
        /// The SHA-256 of the content in a layer whose own digest was verified.
        Layer = "sha256 of a layer",
        /// The SHA-256 of the content of an object whose checksum the booted commit leads to.
        Commit = "sha256 of an ostree object",
        /// The checksum of an object to which the commit leads. The repository's object is damaged, so its content has no other digest.
        CommitChecksum = "checksum of an ostree object",
        /// The SHA-256 of the content in the database of packages.
        PackageSha256 = "sha256 of a package",
        /// The MD5 of the content in the database of packages. It shows mistakes. An attacker can make two contents with one MD5. Mode, owner and
        /// capabilities of a file of dpkg are those that it had when the index was made. Nothing proves that they were right then.
        PackageMd5 = "md5 of a package",
        /// A name in the database of packages, which has no digest of a content there.
        PackageName = "name in a package",
        /// The SHA-256 of the content in the directory of an extension when the index was made.
        Extension = "sha256 of an extension",
        /// The SHA-256 of the content when the baseline was taken. The baseline does not prove that the content was right then.
        Baseline = "sha256 of a baseline",
    }
}

names! {
    /// How the kernel proves a file's content.
    pub enum SealKind {
        /// By the fs-verity digest of the file, or of the composefs image that has it.
        FsVerity = "fs-verity",
        /// By the root hash of the device.
        DmVerity = "dm-verity",
    }
}

impl From<SealKind> for Strength {
    fn from(kind: SealKind) -> Self {
        match kind {
            SealKind::FsVerity => Self::Sealed,
            SealKind::DmVerity => Self::SealedDevice,
        }
    }
}
