use super::*;
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use std::io::Write as _;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn sources_that_ignition_accepts_decode_to_the_same_bytes() {
    for (source, expected, why) in [
        ("data:,", &b""[..], "nothing"),
        ("data:,a%20b%0A", b"a b\n", "percent escapes"),
        ("data:,a+b", b"a+b", "a plus is a plus"),
        ("data:,%00%ff", b"\0\xff", "any byte"),
        ("data:;base64,aGk=", b"hi", "base64"),
        ("data:text/plain;charset=utf-8;base64,aGkK", b"hi\n", "media type and parameters"),
        ("data:text/plain;charset=utf-8,hi", b"hi", "parameters without base64"),
        ("data:;charset=utf-8,a,b", b"a,b", "only the first comma counts"),
        ("data:;base64,", b"", "nothing in base64"),
    ] {
        assert_eq!(decode(source, None).as_deref(), Ok(expected), "{source}: {why}");
        assert_eq!(decode(source, Some("")).as_deref(), Ok(expected), "{source}: no compression by name");
    }
}

#[test]
fn a_source_that_the_two_standards_read_differently_is_refused() {
    for (source, expected, why) in [
        ("", ContentError::NotADataUrl, "empty"),
        ("hello", ContentError::NotADataUrl, "no scheme"),
        ("data:abc", ContentError::NoComma, "no comma"),
        ("https://x/y", ContentError::RemoteSource { scheme: "https".into() }, "remote"),
        ("s3://bucket/key", ContentError::RemoteSource { scheme: "s3".into() }, "remote too"),
        ("DATA:,x", ContentError::RemoteSource { scheme: "DATA".into() }, "the scheme is in lower case"),
        (
            "data:,a#b",
            ContentError::Character { character: '#', position: 7 },
            "would be cut off as a fragment",
        ),
        ("data:,a\nb", ContentError::Character { character: '\n', position: 7 }, "would be dropped"),
        ("data:,a b", ContentError::Character { character: ' ', position: 7 }, "must be escaped"),
        ("data:,ä", ContentError::Character { character: 'ä', position: 6 }, "must be escaped"),
        ("data:,a%2", ContentError::Escape { position: 7 }, "would be taken literally"),
        ("data:,a%zz", ContentError::Escape { position: 7 }, "would be taken literally"),
        ("data:;base64,aGk", ContentError::Base64, "padding left out"),
        ("data:;base64,a=k=", ContentError::Base64, "padding inside"),
        ("data:;base64,aG k", ContentError::Character { character: ' ', position: 15 }, "would be skipped"),
        ("data:;base64,aGk%3D", ContentError::Base64, "escapes in base64"),
        ("data:;base64,aGk%3Daaa", ContentError::Base64, "escapes in base64"),
        ("data:;BASE64,aGk=", ContentError::Encoding, "would be base64 to one and text to the other"),
    ] {
        let found = decode(source, None);
        if source.contains("%3D") {
            assert!(found.is_err(), "{source}: {why}");
        } else {
            assert_eq!(found, Err(expected), "{source}: {why}");
        }
    }
}

#[test]
fn gzip_is_the_only_compression() {
    let packed = encode(&gzip(b"packed"));
    assert_eq!(decode(&packed, Some("gzip")).unwrap(), b"packed");
    assert_eq!(decode(&packed, None).unwrap(), gzip(b"packed"), "without compression the bytes are the file");
    let error = decode(&packed, Some("xz")).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"unsupported compression type "xz""#,
        "the Machine Config Operator's text"
    );
    assert!(matches!(decode("data:,plain", Some("gzip")), Err(ContentError::Gzip(_))), "not gzip at all");
    let two = [gzip(b"one "), gzip(b"two")].concat();
    assert_eq!(decode(&encode(&two), Some("gzip")).unwrap(), b"one two", "members follow each other");
    let trailing = [gzip(b"one"), b"rubbish".to_vec()].concat();
    assert!(
        matches!(decode(&encode(&trailing), Some("gzip")), Err(ContentError::Gzip(_))),
        "rubbish after it"
    );
    let mut cut = gzip(b"a longer text that is cut short");
    cut.truncate(cut.len() - 4);
    assert!(matches!(decode(&encode(&cut), Some("gzip")), Err(ContentError::Gzip(_))), "cut short");
}

#[test]
fn a_decompression_bomb_is_refused_before_it_fills_memory() {
    let bomb = gzip(&vec![0; MAXIMUM_CONTENT + 1]);
    assert!(bomb.len() < 100_000, "it is small: {}", bomb.len());
    assert_eq!(decode(&encode(&bomb), Some("gzip")), Err(ContentError::TooLarge));
    let full = gzip(&vec![0; MAXIMUM_CONTENT]);
    assert_eq!(
        decode(&encode(&full), Some("gzip")).unwrap().len(),
        MAXIMUM_CONTENT,
        "the limit itself is fine"
    );
}

#[test]
fn hashes_are_of_the_decompressed_bytes() {
    let sha256 = "sha256-2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let sha512 = format!("sha512-{}", hex::encode(Sha512::digest(b"hello")));
    assert_eq!(verify(sha256, b"hello"), Ok(()));
    assert_eq!(verify(&sha512, b"hello"), Ok(()));
    assert_eq!(verify(sha256, b"hullo"), Err(ContentError::HashMismatch { function: "sha256" }));
    assert_eq!(verify(&sha512, b"hullo"), Err(ContentError::HashMismatch { function: "sha512" }));
    for wrong in ["", "sha256", "sha1-aa", "sha256-zz", "sha256-aabb", &sha512.replace("512", "256")] {
        assert_eq!(verify(wrong, b"hello"), Err(ContentError::HashForm), "{wrong}");
    }
}

proptest! {
    #[test]
    fn encode_then_decode_gives_the_same_bytes(bytes: Vec<u8>) {
        prop_assert_eq!(decode(&encode(&bytes), None).unwrap(), bytes);
    }

    #[test]
    fn percent_encoding_every_byte_decodes_to_the_same_bytes(bytes: Vec<u8>) {
        let source: String = bytes.iter().fold("data:,".to_owned(), |source, byte| source + &format!("%{byte:02X}"));
        prop_assert_eq!(decode(&source, None).unwrap(), bytes);
    }

    #[test]
    fn gzip_round_trips(bytes: Vec<u8>) {
        prop_assert_eq!(decode(&encode(&gzip(&bytes)), Some("gzip")).unwrap(), bytes);
    }

    #[test]
    fn no_source_makes_it_panic(source in "(data:)?[ -~\n]{0,40}(;base64)?,[ -~\u{80}-\u{200}]{0,60}") {
        for compression in [None, Some(""), Some("gzip")] {
            if let Err(error) = decode(&source, compression) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
