//! The lines of an `authorized_keys` file.
//!
//! Bytes in; out come the keys (type, fingerprint, options, comment) and the lines that are neither
//! keys nor comments. It follows sshd's own reading: a line is a key, or options and then a key. The
//! key type is not limited to a known list, since sshd may know more types than we do and a key that
//! it would accept must not go unseen. The keys themselves are not kept.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{borrow::Cow, fmt};

/// Entries kept of one file. Beyond it only [`AuthorizedKeys::truncated`] is set, which is a difference by
/// itself, and memory stays bounded whatever someone writes.
pub const MAXIMUM_ENTRIES: usize = 4096;

/// Longest comment or key type kept, in characters.
const MAXIMUM_TEXT: usize = 200;

/// One public key, named but not kept.
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
    /// Whether both lines let in the same key under the same options; comments don't matter.
    pub fn grants_the_same(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.options == other.options
    }
}

/// `ssh-ed25519 SHA256:… "comment"`, never the key.
impl fmt::Display for SshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} SHA256:{}", self.kind, STANDARD_NO_PAD.encode(self.fingerprint))?;
        match &self.comment {
            Some(comment) => write!(f, " {}", crate::text::quote(comment)),
            None => Ok(()),
        }
    }
}

/// A line that is neither empty, nor a comment, nor a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InvalidLine {
    /// Line number, from 1.
    pub line: u32,
    /// Why it is not a key.
    pub reason: Cow<'static, str>,
}

/// What an `authorized_keys` file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AuthorizedKeys {
    /// Keys in the order of the file.
    pub keys: Vec<SshKey>,
    /// Lines that could not be read as keys.
    pub invalid: Vec<InvalidLine>,
    /// Not all of it was read: there were more than [`MAXIMUM_ENTRIES`] entries, or more bytes than are looked at.
    pub truncated: bool,
}

/// Reads an `authorized_keys` file. Every input has an answer; it never fails.
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
                found.invalid.push(InvalidLine { line, reason: reason.into() });
            }
        }
    }
    found
}

/// Reads one line without its line ending: a key, or options and a key.
///
/// # Errors
/// The reason why it is not a key. The line itself is not in it.
pub fn parse_line(line: &[u8]) -> Result<SshKey, &'static str> {
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
fn parse_key(line: &[u8], options: Option<[u8; 32]>) -> Result<SshKey, &'static str> {
    let (kind, rest) = split_at_blank(line);
    let (blob, comment) = split_at_blank(rest);
    if blob.is_empty() {
        return Err("not a key type followed by a key");
    }
    // sshd stops at the padding, and so tolerates a missing one.
    let unpadded = blob.strip_suffix(b"==").or_else(|| blob.strip_suffix(b"=")).unwrap_or(blob);
    let blob = STANDARD_NO_PAD.decode(unpadded).map_err(|_| "the key is not base64")?;
    // The blob begins with its own type as a string: four bytes of length, then the type.
    let (length, tail) = blob.split_first_chunk::<4>().ok_or("the key is cut short")?;
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if tail.get(..length) != Some(kind) {
        return Err("the key is not of the type in front of it");
    }
    Ok(SshKey {
        kind: shorten(kind),
        fingerprint: Sha256::digest(&blob).into(),
        options,
        comment: (!comment.is_empty()).then(|| shorten(comment)),
    })
}

/// Where leading options end: at the first blank outside of double quotes.
fn options_end(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (index, byte) in line.iter().enumerate() {
        match byte {
            // To sshd a backslash escapes a quote and nothing else, not even itself.
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

/// A digest that need not be there, in hexadecimal digits.
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
