//! The platform of an image.

use std::fmt;
use std::str::FromStr;

/// An operating system, an architecture and perhaps its variant, in Go's words: `linux/amd64`, `linux/arm/v7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    /// Linux on the architecture of this program.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// The platform with these parts.
    pub(super) fn new(os: &str, architecture: &str, variant: Option<&str>) -> Self {
        Self { os: os.to_owned(), architecture: architecture.to_owned(), variant: variant.map(str::to_owned) }
    }

    /// Whether an image of the other platform runs here. Without a variant any variant does.
    pub(super) fn takes(&self, other: &Self) -> bool {
        self.os == other.os
            && self.architecture == other.architecture
            && self.variant.as_ref().is_none_or(|variant| other.variant.as_ref() == Some(variant))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [os, architecture] if !os.is_empty() && !architecture.is_empty() => {
                Ok(Self::new(os, architecture, None))
            }
            [os, architecture, variant]
                if !os.is_empty() && !architecture.is_empty() && !variant.is_empty() =>
            {
                Ok(Self::new(os, architecture, Some(variant)))
            }
            _ => Err(format!("`{text}` is no platform; write it as OS/ARCHITECTURE, such as linux/amd64")),
        }
    }
}
