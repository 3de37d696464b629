//! What a package of rpm has at its paths.
//!
//! In: a header blob. Out: the package, and the state of each path as far as `rpm --verify` would compare it.

use super::header::{Blob, HeaderError, paths};
use crate::{
    image::{ImageEntry, Known, Package},
    observation::FileType,
    xattr::{CAPABILITY, UNKNOWN, described_capabilities},
};

/// Tags of a package (`rpmtag.h`).
const NAME: u32 = 1000;
const VERSION: u32 = 1001;
const RELEASE: u32 = 1002;
const EPOCH: u32 = 1003;
const ARCHITECTURE: u32 = 1022;
/// Tags with a value for each file.
const SIZES: u32 = 1028;
const STATES: u32 = 1029;
const MODES: u32 = 1030;
const DIGESTS: u32 = 1035;
const TARGETS: u32 = 1036;
const FLAGS: u32 = 1037;
const USERS: u32 = 1039;
const GROUPS: u32 = 1040;
const VERIFY_FLAGS: u32 = 1045;
const LONG_SIZES: u32 = 5008;
/// Only a package that gives a file capabilities has this tag.
const CAPABILITIES: u32 = 5010;

/// Flags of a file (`rpmfiles.h`): a configuration file, a file that may be missing, and a name that the package only owns.
const CONFIG: u32 = 1;
const MISSING_OK: u32 = 1 << 3;
const GHOST: u32 = 1 << 6;
/// What `rpm --verify` compares (`rpmvf.h`).
const VERIFY_DIGEST: u32 = 1;
const VERIFY_METADATA: u32 = (1 << 3) | (1 << 4) | (1 << 6);
const VERIFY_CAPABILITIES: u32 = 1 << 8;

/// A package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpmPackage {
    /// Name, version with epoch and release, and architecture.
    pub package: Package,
    /// Its paths, in its order. One whose file another package replaced, or that was not installed, is left out.
    pub files: Vec<RpmFile>,
}

/// What a package has at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpmFile {
    /// The path, as the header has it.
    pub path: Vec<u8>,
    mode: u16,
    size: u64,
    sha256: Option<[u8; 32]>,
    md5: Option<[u8; 16]>,
    target: Vec<u8>,
    user: Vec<u8>,
    group: Vec<u8>,
    /// In the words of `setcap`; empty if the file has none.
    capabilities: Vec<u8>,
    flags: u32,
    verify: u32,
}

/// Reads the header of a package.
///
/// # Errors
/// See [`HeaderError`]. A tag that the header does not have is no error.
pub fn package(blob: &[u8]) -> Result<RpmPackage, HeaderError> {
    let header = Blob::of(blob)?;
    let text = |tag| header.string(tag).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let epoch = header.numbers(EPOCH)?.and_then(|epoch| epoch.first().copied());
    let epoch = epoch.map_or_else(String::new, |epoch| format!("{epoch}:"));
    let package = Package {
        name: text(NAME)?,
        version: format!("{epoch}{}-{}", text(VERSION)?, text(RELEASE)?),
        architecture: text(ARCHITECTURE)?,
    };
    let paths = paths(blob)?;
    let states = header.bytes(STATES)?.unwrap_or_default();
    let modes = header.short_numbers(MODES)?.unwrap_or_default();
    let sizes = match header.long_numbers(LONG_SIZES)? {
        Some(sizes) => sizes,
        None => header.numbers(SIZES)?.unwrap_or_default().into_iter().map(u64::from).collect(),
    };
    let (digests, targets) = (header.strings(DIGESTS)?, header.strings(TARGETS)?);
    let (users, groups) = (header.strings(USERS)?, header.strings(GROUPS)?);
    let capabilities = header.strings(CAPABILITIES)?;
    let flags = header.numbers(FLAGS)?.unwrap_or_default();
    let verify = header.numbers(VERIFY_FLAGS)?.unwrap_or_default();
    let string = |list: &Option<Vec<&[u8]>>, place: usize| {
        list.as_ref().and_then(|list| list.get(place)).map_or_else(Vec::new, |text| text.to_vec())
    };
    let files =
        paths.into_iter().enumerate().filter(|(place, _)| states.get(*place).is_none_or(|state| *state == 0));
    let files = files.map(|(place, path)| {
        let digest = string(&digests, place);
        // SHA-256 and MD5 differ in their length, so the tag with the kind (`RPMTAG_FILEDIGESTALGO`) is not needed.
        let (mut sha256, mut md5) = ([0; 32], [0; 16]);
        RpmFile {
            path,
            mode: modes.get(place).copied().unwrap_or(0),
            size: sizes.get(place).copied().unwrap_or(0),
            sha256: hex::decode_to_slice(&digest, &mut sha256).is_ok().then_some(sha256),
            md5: hex::decode_to_slice(&digest, &mut md5).is_ok().then_some(md5),
            target: string(&targets, place),
            user: string(&users, place),
            group: string(&groups, place),
            capabilities: string(&capabilities, place),
            flags: flags.get(place).copied().unwrap_or(0),
            verify: verify.get(place).copied().unwrap_or(u32::MAX),
        }
    });
    Ok(RpmPackage { package, files: files.collect() })
}

impl RpmFile {
    /// The entry of an index. `uid` and `gid` give the number of a name, if the host has the name. `layer` is the package's place.
    pub fn entry(
        &self,
        layer: u16,
        uid: impl Fn(&[u8]) -> Option<u32>,
        gid: impl Fn(&[u8]) -> Option<u32>,
    ) -> ImageEntry {
        let file_type = match self.mode & 0o170_000 {
            0o100_000 => Some(FileType::Regular),
            0o040_000 => Some(FileType::Directory),
            0o120_000 => Some(FileType::Symlink),
            _ => None,
        };
        let (user, group) = (uid(&self.user), gid(&self.group));
        let has_metadata =
            self.verify & VERIFY_METADATA == VERIFY_METADATA && user.is_some() && group.is_some();
        let known = match file_type {
            _ if self.flags & GHOST != 0 => Known::Name,
            None => Known::Existence,
            // The mode of a link means nothing.
            Some(_) if has_metadata => Known::All,
            Some(_) => Known::Content,
        };
        let has_content =
            file_type == Some(FileType::Regular) && known.has_type() && self.verify & VERIFY_DIGEST != 0;
        let is_link = file_type == Some(FileType::Symlink);
        ImageEntry {
            file_type: file_type.unwrap_or(FileType::Regular),
            mode: u32::from(self.mode & 0o7777),
            uid: user.unwrap_or(0),
            gid: group.unwrap_or(0),
            size: if has_content { self.size } else { 0 },
            sha256: self.sha256.filter(|_| has_content),
            md5: self.md5.filter(|_| has_content),
            ostree: None,
            xattrs: self.granted().map(|granted| (CAPABILITY.to_owned(), granted)).into_iter().collect(),
            target: is_link.then(|| self.target.clone()),
            device: None,
            layer,
            known,
            config: self.flags & CONFIG != 0,
            may_be_missing: self.flags & MISSING_OK != 0,
            links: 0,
        }
    }

    /// The capabilities as [`crate::xattr::describe`] has them; `None` if the file has none.
    fn granted(&self) -> Option<String> {
        if self.verify & VERIFY_CAPABILITIES == 0 {
            return Some(UNKNOWN.to_owned());
        }
        let text = str::from_utf8(&self.capabilities);
        (!self.capabilities.is_empty())
            .then(|| text.ok().and_then(described_capabilities).unwrap_or_else(|| UNKNOWN.to_owned()))
    }
}
