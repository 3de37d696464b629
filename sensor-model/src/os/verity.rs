//! File systems whose blocks the kernel proves: `/usr` or `/` on a device of dm-verity whose root hash the boot loader named.
//!
//! In: the host's mount table and kernel arguments, and the kernel's text about a mapped device. Out: the mounts that should be on such a
//! device, with the root hash that the boot loader named; and what the device really has. It asks no kernel.

use super::arguments;
use crate::host::mountinfo;
use std::path::Path;

/// The type of a target of dm-verity.
pub const VERITY_TARGET: &str = "verity";

/// The places of such file systems, and the kernel arguments that name the root hash: those of systemd-veritysetup-generator(8), and that of
/// Flatcar's `verity-generator` for `/usr`.
const PLACES: [(&str, &[&str]); 2] = [("/", &["roothash"]), ("/usr", &["usrhash", "verity.usrhash"])];

/// File systems that have their whole content on the one device of the mount table. Btrfs shows no number of a device there.
const WHOLE: [&[u8]; 4] = [b"erofs", b"ext4", b"squashfs", b"xfs"];

/// Options of XFS that name a second device.
const SECOND_DEVICE: [&str; 2] = ["logdev", "rtdev"];

/// Hash algorithms without a known way to make two contents with one hash, and the bytes of a hash.
const ALGORITHMS: [(&str, usize); 2] = [("sha256", 32), ("sha512", 64)];

/// Options of a target that leave each block proven, and how many words of values follow. An option that is not here seals nothing:
/// `ignore_corruption` gives out damaged blocks, and `check_at_most_once` proves only the first reading.
const HARMLESS: [(&str, usize); 11] = [
    ("ignore_zero_blocks", 0),
    ("restart_on_corruption", 0),
    ("panic_on_corruption", 0),
    ("restart_on_error", 0),
    ("panic_on_error", 0),
    ("try_verify_in_tasklet", 0),
    ("use_fec_from_device", 1),
    ("fec_blocks", 1),
    ("fec_start", 1),
    ("fec_roots", 1),
    ("root_hash_sig_key_desc", 1),
];

/// A mount for which the boot loader named a root hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerityMount {
    /// Where it is.
    pub point: &'static Path,
    /// The number of the mount.
    pub mount: u64,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// The type of the file system.
    pub file_system: String,
    /// The root hash that the boot loader named.
    pub root_hash: Vec<u8>,
}

/// The mounts of `/` and `/usr` for which the kernel's line of arguments names a root hash. Whether their device has it, only the kernel's table
/// of the device shows.
pub fn verity_mounts(table: &[u8], arguments: &str) -> Vec<VerityMount> {
    let words = arguments::split(arguments);
    PLACES.iter().filter_map(|(point, names)| verity_mount(table, &words, Path::new(point), names)).collect()
}

fn verity_mount(table: &[u8], words: &[String], point: &'static Path, names: &[&str]) -> Option<VerityMount> {
    let root_hash = root_hash(words, names)?;
    // A later mount at the same point hides an earlier one.
    let found = mountinfo::mounts(table).filter(|mount| mount.point == point).last()?;
    let file_system = found.file_system.filter(|kind| WHOLE.contains(kind))?;
    let is_whole = found.root == b"/" && !SECOND_DEVICE.iter().any(|option| found.has_option(option));
    let (major, minor) = str::from_utf8(found.device).ok()?.split_once(':')?;
    is_whole.then_some(VerityMount {
        point,
        mount: str::from_utf8(found.id).ok()?.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        file_system: String::from_utf8_lossy(file_system).into_owned(),
        root_hash,
    })
}

/// The value of these arguments, if all of them that are given have the same one.
fn root_hash(words: &[String], names: &[&str]) -> Option<Vec<u8>> {
    let values = words.iter().filter_map(|word| {
        let bare: String = word.chars().filter(|character| *character != '"').collect();
        let (name, value) = bare.split_once('=')?;
        names.contains(&name).then(|| value.to_owned())
    });
    let mut hashes = values.map(|value| hex::decode(value).ok());
    let first = hashes.next()??;
    let is_hash = ALGORITHMS.iter().any(|(_, bytes)| *bytes == first.len());
    (is_hash && hashes.all(|hash| hash.as_ref() == Some(&first))).then_some(first)
}

/// What the kernel proves of a device by dm-verity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerityDevice {
    /// The hash of the whole device.
    pub root_hash: Vec<u8>,
    /// Everything by which the root hash determines the content: the form, the sizes of blocks, the number of blocks, the algorithm, the hash
    /// and the salt. A root hash alone could be that of another number of blocks.
    pub form: String,
}

impl VerityDevice {
    /// The device by the parameters of its only target, as the kernel's `verity_status()` prints them; `None` if not each block of it is proven.
    pub fn of_parameters(parameters: &str) -> Option<Self> {
        let mut words = parameters.split_ascii_whitespace();
        let version = words.next().filter(|version| matches!(*version, "0" | "1"))?;
        // The devices of the data and of the hashes. The hashes themselves prove what they have.
        let (_, _) = (words.next()?, words.next()?);
        let (data_block, hash_block, blocks, _) =
            (number(words.next()?)?, number(words.next()?)?, number(words.next()?)?, words.next()?);
        let (algorithm, hash, salt) = (words.next()?, words.next()?, words.next()?);
        let (_, bytes) = ALGORITHMS.iter().find(|(name, _)| *name == algorithm)?;
        let root_hash = hex::decode(hash).ok().filter(|hash| hash.len() == *bytes)?;
        let is_salt = salt == "-" || hex::decode(salt).is_ok();
        if !is_salt || !are_harmless(words) {
            return None;
        }
        let hash = hex::encode(&root_hash);
        let form = format!("{version} {data_block} {hash_block} {blocks} {algorithm} {hash} {salt}");
        Some(Self { root_hash, form })
    }
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok()
}

/// Whether optional parameters, behind their number, leave each block proven.
fn are_harmless<'a>(mut words: impl Iterator<Item = &'a str>) -> bool {
    let Some(count) = words.next() else { return true };
    let options: Vec<&str> = words.collect();
    if count.parse() != Ok(options.len()) {
        return false;
    }
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let Some((_, values)) = HARMLESS.iter().find(|(name, _)| name == option) else { return false };
        if rest.by_ref().take(*values).count() < *values {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn table(device: &str, kind: &str, options: &str) -> String {
        format!(
            "24 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n31 24 {device} / /usr ro,relatime - {kind} /dev/mapper/usr {options}\n\
             32 31 8:2 / /usr/share/oem rw - ext4 /dev/sda2 rw\n"
        )
    }

    fn found(table: &str, arguments: &str) -> Vec<VerityMount> {
        verity_mounts(table.as_bytes(), &format!("BOOT_IMAGE=/vmlinuz {arguments} quiet\n"))
    }

    #[test]
    fn a_root_hash_of_the_boot_loader_is_that_of_its_own_place() {
        let usual = table("253:0", "ext4", "ro");
        let usr = VerityMount {
            point: Path::new("/usr"),
            mount: 31,
            device: (253, 0),
            file_system: "ext4".to_owned(),
            root_hash: hex::decode(HASH).unwrap(),
        };
        for name in ["usrhash", "verity.usrhash"] {
            assert_eq!(found(&usual, &format!("{name}={HASH}")), std::slice::from_ref(&usr), "{name}");
        }
        assert_eq!(found(&usual, &format!("\"usrhash={HASH}\"")), [usr]);
        let root = found(&usual, &format!("roothash={HASH}"));
        assert_eq!((root.len(), root[0].point, root[0].device), (1, Path::new("/"), (8, 1)));
        let both = found(&usual, &format!("roothash={HASH} usrhash={HASH}"));
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn a_mount_without_one_certain_root_hash_is_none() {
        let usual = table("253:0", "ext4", "ro");
        for arguments in [
            String::new(),
            "usrhash=".to_owned(),
            "usrhash=0a0a".to_owned(),
            format!("usrhash={HASH}0"),
            format!("usrhash={HASH} verity.usrhash={}", HASH.replace('0', "f")),
            format!("usrhash={HASH} usrhash=none"),
            format!("rd.usrhash={HASH}"),
        ] {
            assert_eq!(found(&usual, &arguments), [], "{arguments}");
        }
    }

    #[test]
    fn a_mount_whose_content_may_be_elsewhere_is_none() {
        let arguments = format!("usrhash={HASH}");
        assert_eq!(found(&table("253:0", "overlay", "ro"), &arguments), [], "an overlay");
        assert_eq!(found(&table("0:31", "btrfs", "ro"), &arguments), [], "a number of no device");
        assert_eq!(found(&table("253:0", "xfs", "ro,logdev=/dev/sdb"), &arguments), [], "a second device");
        let part = table("253:0", "ext4", "ro").replace("/ /usr ", "/part /usr ");
        assert_eq!(found(&part, &arguments), [], "a directory of the device");
        let covered = format!("{}33 31 0:40 / /usr rw - overlay o rw\n", table("253:0", "ext4", "ro"));
        assert_eq!(found(&covered, &arguments), [], "another mount hides it");
    }

    fn device(parameters: &str) -> Option<VerityDevice> {
        VerityDevice::of_parameters(parameters)
    }

    #[test]
    fn a_device_is_its_root_hash_with_all_by_which_it_determines_the_content() {
        let usual = device(&format!("1 8:16 8:17 4096 4096 16384 1 sha256 {HASH} aa")).unwrap();
        assert_eq!(usual.root_hash, hex::decode(HASH).unwrap());
        assert_eq!(usual.form, format!("1 4096 4096 16384 sha256 {HASH} aa"));
        let elsewhere = device(&format!("1 7:0 7:0 4096 4096 16384 16385 sha256 {HASH} aa")).unwrap();
        assert_eq!(elsewhere, usual, "the devices below and the place of the hashes do not matter");
        for other in ["1 8:16 8:17 4096 4096 1 1", "1 8:16 8:17 512 4096 16384 1"] {
            assert_ne!(device(&format!("{other} sha256 {HASH} aa")).unwrap(), usual);
        }
        for options in [
            "",
            " 1 panic_on_corruption",
            " 2 restart_on_corruption ignore_zero_blocks",
            " 8 use_fec_from_device 8:17 fec_blocks 1 fec_start 2 fec_roots 2",
            " 2 root_hash_sig_key_desc usr",
        ] {
            let parameters = format!("1 8:16 8:17 4096 4096 16384 1 sha256 {HASH} aa{options}");
            assert_eq!(device(&parameters).as_ref(), Some(&usual), "{options}");
        }
    }

    #[test]
    fn a_device_that_does_not_prove_each_reading_is_none() {
        let usual = format!("1 8:16 8:17 4096 4096 16384 1 sha256 {HASH} -");
        assert!(device(&usual).is_some());
        for options in [
            "1 ignore_corruption",
            "1 check_at_most_once",
            "1 new_option",
            "2 panic_on_corruption",
            "1 use_fec_from_device",
            "x",
        ] {
            assert_eq!(device(&format!("{usual} {options}")), None, "{options}");
        }
        for (from, to) in [("sha256", "sha1"), ("sha256", "sha512"), ("1 8:16", "2 8:16"), (" -", " x")] {
            assert_eq!(device(&usual.replacen(from, to, 1)), None, "{to}");
        }
        assert_eq!(device(""), None);
    }
}
