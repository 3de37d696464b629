//! Where a host keeps `/etc` as its booted image ships it.

use std::path::{Path, PathBuf};

/// The kinds of hosts that keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PristineEtc {
    /// A host of ostree: in `/usr/etc` of the deployment. An update merges it with the present `/etc`.
    Ostree,
    /// Flatcar: in `/usr/share/flatcar/etc`, the lower directory of the overlay that is `/etc`. An update merges nothing.
    Flatcar,
    /// A host whose root is a composefs image that bootc made without ostree: in `/etc` of that image, over which the present `/etc` is
    /// mounted. An update merges both.
    RootImage,
}

impl PristineEtc {
    /// The directory. That of [`PristineEtc::RootImage`] is one of the image, and not of the host's tree.
    pub fn directory(self) -> &'static Path {
        Path::new(match self {
            Self::Ostree => "/usr/etc",
            Self::Flatcar => "/usr/share/flatcar/etc",
            Self::RootImage => "/etc",
        })
    }

    /// Where a path of `/etc` is in it; `None` for other paths.
    pub fn place(self, path: &Path) -> Option<PathBuf> {
        Some(self.directory().join(path.strip_prefix("/etc").ok()?))
    }

    /// Whether an update of the OS merges it with the present `/etc`, and so replaces what equals it.
    pub fn is_merged(self) -> bool {
        matches!(self, Self::Ostree | Self::RootImage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_etc_have_a_place() {
        let place = |path: &str| PristineEtc::Flatcar.place(Path::new(path));
        assert_eq!(place("/etc/ssh/sshd_config"), Some("/usr/share/flatcar/etc/ssh/sshd_config".into()));
        assert_eq!(place("/etcetera"), None);
        assert_eq!(place("/usr/etc/x"), None);
    }
}
