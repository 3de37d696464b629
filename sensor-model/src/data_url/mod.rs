//! File contents as Ignition carries them: a data URL, with optional compression and hash.
//!
//! In: a source string. Out: the file's bytes, at most [`MAXIMUM_CONTENT`]. Ignition and the Machine Config Operator read RFC
//! 2397 strictly. The `data-url` crate follows the more tolerant WHATWG standard. A source that the two would read
//! differently is refused.

use data_url::DataUrl;
use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256, Sha512};
use std::io::Read as _;

/// Most bytes that one file may have after decompression.
///
/// A MachineConfig has at most 1.5 MiB (the limit of etcd), and gzip compresses text about tenfold. A decompression bomb of
/// 1.5 MiB would unpack to more than a gigabyte.
pub const MAXIMUM_CONTENT: usize = 64 * 1024 * 1024;

/// Why contents could not be decoded. No text contains a part of the content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The source is a URL that must be fetched.
    #[error("a source of scheme {scheme:?} cannot be verified: only data URLs carry the content with them")]
    RemoteSource {
        /// The URL's scheme.
        scheme: String,
    },
    /// Not a URL with a scheme.
    #[error("the source is not a data URL")]
    NotADataUrl,
    /// No comma between media type and data.
    #[error("the data URL has no comma before its data")]
    NoComma,
    /// `;base64` in another case.
    #[error("the data URL's encoding is not exactly \"base64\"")]
    Encoding,
    /// An unescaped character that a URL must escape.
    #[error("the data URL has the unescaped character {character:?} at byte {position}")]
    Character {
        /// The character.
        character: char,
        /// Its byte offset in the source.
        position: usize,
    },
    /// A percent sign without two hexadecimal digits.
    #[error("the data URL has an incomplete percent escape at byte {position}")]
    Escape {
        /// Its byte offset in the source.
        position: usize,
    },
    /// Base64 that cannot be decoded.
    #[error("the data URL's base64 is invalid")]
    Base64,
    /// A compression other than gzip. The text is the Machine Config Operator's.
    #[error("unsupported compression type {}", crate::text::quote(_0))]
    Compression(String),
    /// Gzip that cannot be decompressed.
    #[error("failed decompressing: {0}")]
    Gzip(String),
    /// Larger than [`MAXIMUM_CONTENT`].
    #[error("the content is larger than {MAXIMUM_CONTENT} bytes")]
    TooLarge,
    /// `verification.hash` is not `sha256-<hex>` or `sha512-<hex>` of the right length.
    #[error("the verification hash is not sha256- or sha512- and the hexadecimal digits of the sum")]
    HashForm,
    /// `verification.hash` does not match the content.
    #[error("the content does not have the declared {function} sum")]
    HashMismatch {
        /// `sha256` or `sha512`.
        function: &'static str,
    },
}

/// Decodes a source: the data URL's bytes, decompressed if `compression` is `gzip`.
///
/// A `compression` of `None` or of an empty string means none.
///
/// # Errors
/// A source that Ignition would refuse, or too large a content.
pub fn decode(source: &str, compression: Option<&str>) -> Result<Vec<u8>, ContentError> {
    check(source)?;
    let url = DataUrl::process(source).map_err(|error| match error {
        data_url::DataUrlError::NotADataUrl => ContentError::NotADataUrl,
        data_url::DataUrlError::NoComma => ContentError::NoComma,
    })?;
    // Decoding never makes the source longer, so this limits memory before it is allocated.
    if source.len() > MAXIMUM_CONTENT * 2 {
        return Err(ContentError::TooLarge);
    }
    let (bytes, _) = url.decode_to_vec().map_err(|_| ContentError::Base64)?;
    match compression {
        None | Some("") if bytes.len() > MAXIMUM_CONTENT => Err(ContentError::TooLarge),
        None | Some("") => Ok(bytes),
        Some("gzip") => decompress(&bytes),
        Some(other) => Err(ContentError::Compression(other.to_owned())),
    }
}

/// Encodes bytes as a base64 data URL, which [`decode`] decodes to the same bytes.
pub fn encode(bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    format!("data:;base64,{}", STANDARD.encode(bytes))
}

/// Checks decompressed content against `verification.hash`.
///
/// # Errors
/// [`ContentError::HashForm`] and [`ContentError::HashMismatch`].
pub fn verify(hash: &str, bytes: &[u8]) -> Result<(), ContentError> {
    let (function, sum) = hash_parts(hash)?;
    let same = match function {
        "sha256" => sum == Sha256::digest(bytes).as_slice(),
        _ => sum == Sha512::digest(bytes).as_slice(),
    };
    if same { Ok(()) } else { Err(ContentError::HashMismatch { function }) }
}

/// Checks the form of `verification.hash` alone.
///
/// # Errors
/// [`ContentError::HashForm`].
pub fn check_hash(hash: &str) -> Result<(), ContentError> {
    hash_parts(hash).map(drop)
}

fn hash_parts(hash: &str) -> Result<(&'static str, Vec<u8>), ContentError> {
    let (function, sum) = hash.split_once('-').ok_or(ContentError::HashForm)?;
    let (function, length) = match function {
        "sha256" => ("sha256", 32),
        "sha512" => ("sha512", 64),
        _ => return Err(ContentError::HashForm),
    };
    let sum = hex::decode(sum).map_err(|_| ContentError::HashForm)?;
    if sum.len() == length { Ok((function, sum)) } else { Err(ContentError::HashForm) }
}

/// Refuses a source that RFC 2397 and WHATWG read differently.
fn check(source: &str) -> Result<(), ContentError> {
    let Some(rest) = source.strip_prefix("data:") else {
        return Err(
            scheme(source).map_or(ContentError::NotADataUrl, |scheme| ContentError::RemoteSource { scheme })
        );
    };
    let comma = rest.find(',').ok_or(ContentError::NoComma)?;
    let (header, body) = (&rest[..comma], &rest[comma + 1..]);
    if let Some(character) = header.chars().find(|c| !c.is_ascii_graphic()) {
        let position = source.find(character).unwrap_or_default();
        return Err(ContentError::Character { character, position });
    }
    let encoding = header.rsplit_once(';').map(|(_, encoding)| encoding);
    let base64 = encoding == Some("base64");
    if !base64 && encoding.is_some_and(|encoding| encoding.eq_ignore_ascii_case("base64")) {
        return Err(ContentError::Encoding);
    }
    let offset = source.len() - body.len();
    if base64 && body.len() % 4 != 0 {
        return Err(ContentError::Base64);
    }
    for (index, character) in body.char_indices() {
        let position = offset + index;
        let allowed = if base64 {
            character.is_ascii_alphanumeric() || matches!(character, '+' | '/' | '=')
        } else {
            character.is_ascii_graphic()
                && !matches!(
                    character,
                    '<' | '>' | '#' | '"' | '{' | '}' | '|' | '\\' | '^' | '[' | ']' | '`'
                )
        };
        if !allowed {
            return Err(ContentError::Character { character, position });
        }
        let escaped = || body.as_bytes().get(index + 1..index + 3);
        if character == '%' && !escaped().is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(ContentError::Escape { position });
        }
    }
    Ok(())
}

fn scheme(source: &str) -> Option<String> {
    let (scheme, _) = source.split_once(':')?;
    let known = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.len() <= 32
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    known.then(|| scheme.to_owned())
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>, ContentError> {
    let mut content = Vec::new();
    // One byte more than the limit distinguishes a file of exactly the limit from a longer one.
    MultiGzDecoder::new(bytes)
        .take(MAXIMUM_CONTENT as u64 + 1)
        .read_to_end(&mut content)
        .map_err(|error| ContentError::Gzip(error.to_string()))?;
    if content.len() > MAXIMUM_CONTENT { Err(ContentError::TooLarge) } else { Ok(content) }
}

#[cfg(test)]
mod tests;
