//! Records in and out, and journals that were cut or changed.

use super::{codec::*, *};
use proptest::prelude::*;

fn begin() -> Begin {
    let file = |mode| {
        Image::File(FileImage {
            metadata: Metadata {
                mode,
                uid: 0,
                gid: 0,
                xattrs: [("user.a".to_owned(), "00ff".to_owned())].into(),
            },
            sha256: "ab".repeat(32),
            size: 3,
            modified_ns: Some(17),
            hard: None,
        })
    };
    Begin {
        id: 7,
        previous: Some(6),
        rollback_to: None,
        time: "2026-01-01T00:00:00Z".to_owned(),
        boot_id: "b".to_owned(),
        old: "o".to_owned(),
        new: "n".to_owned(),
        targets: vec![
            Target { path: "/etc/a".into(), before: file(0o600), after: file(0o644) },
            Target {
                path: "/etc/l".into(),
                before: Image::Absent,
                after: Image::Link(LinkImage { target: "/dev/null".into(), uid: 0, gid: 0 }),
            },
        ],
        unmanaged: vec!["/etc/l".into()],
        released: Vec::new(),
        units: vec!["a.service".to_owned()],
        os: None,
        acts: vec![Act {
            kind: ActKind::Reload,
            unit: Some("a.service".to_owned()),
            timeout_s: 90,
            fallback: Fallback::Rollback,
            because: vec!["/etc/a".to_owned()],
        }],
        reboot: true,
    }
}

fn records() -> Vec<Record> {
    vec![
        Record::Begin(Box::new(begin())),
        Record::Written,
        Record::Started { act: 0 },
        Record::Finished { act: 0 },
        Record::RebootRequested { boot_id: "b".to_owned() },
        Record::RollingBack { reason: "it differs".to_owned() },
        Record::ReturnRequested { boot_id: "c".to_owned() },
        Record::RolledBack { problems: vec!["left".to_owned()] },
    ]
}

fn text(records: &[Record]) -> Vec<u8> {
    let mut text = String::new();
    let mut digest = String::new();
    for record in records {
        let (line, next) = line(&digest, record).unwrap();
        text.push_str(&line);
        digest = next;
    }
    text.into_bytes()
}

#[test]
fn records_come_back_as_they_were_written() {
    let bytes = text(&records());
    let parsed = parse(&bytes).unwrap();
    assert_eq!((parsed.records, parsed.sound, parsed.torn), (records(), bytes.len(), 0));
    assert_eq!(parsed.begin, Some(begin()));
}

#[test]
fn a_line_that_was_changed_before_the_end_is_named() {
    let mut bytes = text(&records());
    let second = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 70;
    bytes[second] ^= 1;
    assert_eq!(parse(&bytes).unwrap_err().line, 2);
}

#[test]
fn records_in_an_impossible_order_are_refused() {
    let impossible = [
        vec![Record::Written],
        vec![records()[0].clone(), records()[0].clone()],
        vec![records()[0].clone(), Record::Done],
        vec![records()[0].clone(), Record::Written, Record::ReturnRequested { boot_id: "b".to_owned() }],
        vec![records()[0].clone(), Record::Written, Record::Finished { act: 0 }],
        vec![records()[0].clone(), Record::RolledBack { problems: Vec::new() }, Record::Done],
    ];
    for records in impossible {
        // The last line is not taken for one that was torn: it is whole.
        assert!(parse(&text(&records)).is_err(), "{records:?}");
    }
}

#[test]
fn a_journal_cannot_lead_out_of_the_root_or_the_store() {
    for (path, sha256) in
        [("/etc/../x", "ab".repeat(32)), ("etc", "ab".repeat(32)), ("/etc/a", "../x".to_owned())]
    {
        let mut begin = begin();
        begin.targets[0].path = path.into();
        if let Image::File(file) = &mut begin.targets[0].after {
            file.sha256 = sha256;
        }
        let bytes = text(&[Record::Begin(Box::new(begin)), Record::Written]);
        assert!(parse(&bytes).is_err(), "{path}");
    }
}

#[test]
fn attributes_that_the_kernel_writes_count_only_where_they_are_named() {
    let seen =
        Metadata { xattrs: [("security.selinux".to_owned(), "aa".to_owned())].into(), ..Metadata::default() };
    let wanted = Image::Directory(Metadata::default());
    assert!(wanted.is(&Image::Directory(seen.clone())));
    let mut other = seen.clone();
    other.xattrs.insert("user.x".to_owned(), "00".to_owned());
    assert!(!wanted.is(&Image::Directory(other)));
    let named = Image::Directory(seen);
    assert!(!named.is(&Image::Directory(Metadata::default())));
}

proptest! {
    #[test]
    fn a_journal_that_was_cut_anywhere_gives_the_records_before_the_cut(cut in 0..4000_usize) {
        let bytes = text(&records());
        let cut = cut % (bytes.len() + 1);
        let parsed = parse(&bytes[..cut]).unwrap();
        prop_assert_eq!(&parsed.records[..], &records()[..parsed.records.len()]);
        prop_assert_eq!(parsed.sound + parsed.torn, cut);
        prop_assert!(parsed.torn == 0 || !bytes[parsed.sound..cut].contains(&b'\n'));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }
}
