//! The lines of an `authorized_keys` file.
//!
//! In: the bytes of the file. Out: its keys (type, fingerprint, options, comment) and the lines that are neither keys nor
//! comments. As for sshd, a line is a key, or options and then a key. The reader accepts every key type: sshd may support
//! more types than Holdfast, and a report must include each key that sshd accepts. The key material itself is dropped.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{borrow::Cow, fmt};

/// Entries kept of one file, so that memory stays bounded. With more, [`AuthorizedKeys::truncated`] is set, which is a
/// difference by itself.
pub const MAXIMUM_ENTRIES: usize = 4096;

/// Longest comment or key type kept, in characters.
const MAXIMUM_TEXT: usize = 200;

/// One public key, by its fingerprint.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct SshKey {
    /// Key type as written: `ssh-ed25519`.
    #[serde(rename = "type")]
    pub kind: String,
    /// SHA-256 of the key's binary form: what `ssh-keygen -l` prints in base64.
    #[serde(with = "hex::serde")]
    #[schemars(with = "String")]
    pub fingerprint: [u8; 32],
    /// SHA-256 of the options in front of the key (`command="…"`, `from="…"`), where there are any.
    #[serde(default, with = "maybe_hex", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub options: Option<[u8; 32]>,
    /// Text after the key.
    pub comment: Option<String>,
}

impl SshKey {
    /// Whether both lines grant access to the same key under the same options. Comments may differ.
    pub fn grants_the_same(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.options == other.options
    }
}

/// `ssh-ed25519 SHA256:… "comment"`.
impl fmt::Display for SshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} SHA256:{}", self.kind, STANDARD_NO_PAD.encode(self.fingerprint))?;
        match &self.comment {
            Some(comment) => write!(f, " {}", crate::text::quote(comment)),
            None => Ok(()),
        }
    }
}

/// Why a line is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There are no two words.
    #[error("not a key type followed by a key")]
    Form,
    /// The second word is not base64.
    #[error("the key is not base64")]
    Base64,
    /// The binary form ends within its first field.
    #[error("the key is cut short")]
    Short,
    /// The binary form has another type than the line.
    #[error("the key is not of the type in front of it")]
    Type,
}

/// A line that is neither empty, nor a comment, nor a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InvalidLine {
    /// Line number, from 1.
    pub line: u32,
    /// Why it is not a key.
    pub reason: Cow<'static, str>,
}

/// The content of an `authorized_keys` file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AuthorizedKeys {
    /// Keys in the order of the file.
    pub keys: Vec<SshKey>,
    /// Lines that could not be read as keys.
    pub invalid: Vec<InvalidLine>,
    /// The file has more than [`MAXIMUM_ENTRIES`] entries, or more bytes than the daemon reads; the rest was not read.
    pub truncated: bool,
}

/// Reads an `authorized_keys` file. It never fails: unreadable lines are in [`AuthorizedKeys::invalid`].
pub fn parse(bytes: &[u8]) -> AuthorizedKeys {
    let mut found = AuthorizedKeys::default();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if found.keys.len() + found.invalid.len() >= MAXIMUM_ENTRIES {
            found.truncated = true;
            break;
        }
        match parse_line(line) {
            Ok(key) => found.keys.push(key),
            Err(reason) => {
                let line = u32::try_from(index + 1).unwrap_or(u32::MAX);
                found.invalid.push(InvalidLine { line, reason: reason.to_string().into() });
            }
        }
    }
    found
}

/// Reads one line without its line ending: a key, or options and a key.
///
/// # Errors
/// A line that is not a key. No error contains a part of the line.
pub fn parse_line(line: &[u8]) -> Result<SshKey, KeyError> {
    let line = line.trim_ascii();
    parse_key(line, None).or_else(|reason| {
        let end = options_end(line).ok_or(reason)?;
        let rest = line[end..].trim_ascii_start();
        if rest.is_empty() {
            return Err(reason);
        }
        parse_key(rest, Some(Sha256::digest(&line[..end]).into())).map_err(|_| reason)
    })
}

/// `type base64 [comment]`.
fn parse_key(line: &[u8], options: Option<[u8; 32]>) -> Result<SshKey, KeyError> {
    let (kind, rest) = split_at_blank(line);
    let (blob, comment) = split_at_blank(rest);
    // Every key type of sshd is printable ASCII. A type that a user makes up must not reach a terminal or a log.
    if blob.is_empty() || !kind.iter().all(u8::is_ascii_graphic) {
        return Err(KeyError::Form);
    }
    // sshd stops at the padding, so it accepts a key without padding.
    let unpadded = blob.strip_suffix(b"==").or_else(|| blob.strip_suffix(b"=")).unwrap_or(blob);
    let blob = STANDARD_NO_PAD.decode(unpadded).map_err(|_| KeyError::Base64)?;
    // The binary form begins with the type as a string: four bytes of length, then the type.
    let (length, tail) = blob.split_first_chunk::<4>().ok_or(KeyError::Short)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if tail.get(..length) != Some(kind) {
        return Err(KeyError::Type);
    }
    Ok(SshKey {
        kind: shorten(kind),
        fingerprint: Sha256::digest(&blob).into(),
        options,
        comment: (!comment.is_empty()).then(|| shorten(comment)),
    })
}

/// The end of leading options: the first blank outside of double quotes.
fn options_end(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (index, byte) in line.iter().enumerate() {
        match byte {
            // For sshd a backslash escapes only a quote, not another backslash.
            b'"' if !escaped => quoted = !quoted,
            b' ' | b'\t' if !quoted => return Some(index),
            _ => {}
        }
        escaped = *byte == b'\\';
    }
    None
}

fn split_at_blank(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|byte| matches!(byte, b' ' | b'\t')) {
        Some(at) => (&line[..at], line[at..].trim_ascii()),
        None => (line, b""),
    }
}

fn shorten(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(MAXIMUM_TEXT).collect()
}

/// An optional digest in hexadecimal digits.
mod maybe_hex {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::ref_option, reason = "the signature that serde's `with` asks for")]
    pub(super) fn serialize<S: Serializer>(digest: &Option<[u8; 32]>, to: S) -> Result<S::Ok, S::Error> {
        match digest {
            Some(digest) => to.serialize_some(&hex::encode(digest)),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<[u8; 32]>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest).map_err(D::Error::custom)?;
        Ok(Some(digest))
    }
}

#[cfg(test)]
mod tests;
