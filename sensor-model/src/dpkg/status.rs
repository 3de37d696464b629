//! `/var/lib/dpkg/status`: a paragraph for each package.

use super::md5;
use crate::image::Package;

/// A package whose files are on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpkgPackage {
    /// Name, version and architecture.
    pub package: Package,
    /// How the names of its lists begin: the name, and the architecture of a package that several architectures may have at once.
    pub lists: [String; 2],
    /// Its configuration files, with the sum of the content that the package has.
    pub conffiles: Vec<(Vec<u8>, [u8; 16])>,
}

/// The packages whose files are on the host, in the file's order. A package of which only configuration files are left is none.
pub fn packages(status: &[u8]) -> Vec<DpkgPackage> {
    let mut found = Vec::new();
    let mut paragraph = Paragraph::default();
    for line in status.split(|byte| *byte == b'\n') {
        if line.is_empty() {
            found.extend(std::mem::take(&mut paragraph).package());
        } else {
            paragraph.add(line);
        }
    }
    found.extend(paragraph.package());
    found
}

#[derive(Default)]
struct Paragraph<'a> {
    name: &'a [u8],
    version: &'a [u8],
    architecture: &'a [u8],
    status: &'a [u8],
    is_in_conffiles: bool,
    conffiles: Vec<(Vec<u8>, [u8; 16])>,
}

impl<'a> Paragraph<'a> {
    fn add(&mut self, line: &'a [u8]) {
        if line.first() == Some(&b' ') {
            if self.is_in_conffiles {
                self.conffiles.extend(conffile(&line[1..]));
            }
            return;
        }
        self.is_in_conffiles = false;
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (field, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        match field {
            b"Package" => self.name = value,
            b"Version" => self.version = value,
            b"Architecture" => self.architecture = value,
            b"Status" => self.status = value,
            b"Conffiles" => self.is_in_conffiles = true,
            _ => {}
        }
    }

    fn package(self) -> Option<DpkgPackage> {
        // The third word is the state; see dpkg(1).
        let state = self.status.split(|byte| *byte == b' ').nth(2)?;
        if matches!(state, b"not-installed" | b"config-files") || self.name.is_empty() {
            return None;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (name, architecture) = (text(self.name), text(self.architecture));
        Some(DpkgPackage {
            lists: [format!("{name}:{architecture}"), name.clone()],
            package: Package { name, version: text(self.version), architecture },
            conffiles: self.conffiles,
        })
    }
}

/// A path, its sum, and perhaps the word `obsolete`: the newest version of the package does not have it. A path has no spaces, by Debian's
/// policy; with spaces the sum is still the last word that is one.
fn conffile(line: &[u8]) -> Option<(Vec<u8>, [u8; 16])> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let place = words.iter().rposition(|word| md5(word).is_some())?;
    if words[place + 1..].contains(&&b"obsolete"[..]) {
        return None;
    }
    let path = words[..place].join(&b' ');
    path.starts_with(b"/").then_some((path, md5(words[place])?))
}
