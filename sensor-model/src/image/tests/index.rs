use super::super::{IndexError, SlotTable, TRAILER, Trailer, decode_record, encode_record, path_hash};
use super::*;
use crate::{
    difference::DifferenceKind,
    expectation::ImageLayer,
    image::{ImageMeta, Known, KnownXattrs, MAGIC, Strength, differences},
    observation::{FileType, ObjectObservation, Observation},
};
use std::path::Path;

fn full() -> ImageEntry {
    ImageEntry {
        file_type: FileType::Regular,
        mode: 0o4755,
        uid: 1,
        gid: u32::MAX,
        size: 1 << 40,
        sha256: Some([7; 32]),
        xattrs: vec![
            ("security.capability".into(), "cap_net_raw+ep".into()),
            ("user.a".into(), "sha256:0".into()),
        ],
        target: Some(b"../x\xff".to_vec()),
        device: Some((1, 3)),
        layer: 300,
        md5: Some([9; 16]),
        ostree: None,
        known: Known::Name,
        config: true,
        may_be_missing: true,
        links: 9,
    }
}

#[test]
fn a_record_gives_its_entry_back_and_no_part_of_it_gives_another() {
    let path = b"/usr/bin/\xff";
    let bare = ImageEntry {
        sha256: None,
        xattrs: vec![],
        target: None,
        device: None,
        md5: None,
        ostree: None,
        known: Known::All,
        config: false,
        may_be_missing: false,
        links: 0,
        ..full()
    };
    let damaged = ImageEntry { ostree: Some([5; 32]), known: Known::Existence, ..bare.clone() };
    for entry in [full(), bare, damaged] {
        let mut bytes = Vec::new();
        encode_record(path, &entry, &mut bytes);
        assert_eq!(
            bytes.len() - 4,
            usize::try_from(u32::from_le_bytes(bytes[..4].try_into().unwrap())).unwrap()
        );
        assert_eq!(decode_record(&bytes[4..]), Some((&path[..], entry.clone())));
        for cut in 4..bytes.len() {
            assert_ne!(decode_record(&bytes[4..cut]).map(|(_, found)| found), Some(entry.clone()), "{cut}");
        }
    }
}

#[test]
fn every_path_of_a_table_is_found_at_its_offset() {
    let hasher = path_hash(&format!("sha256:{}", "ab".repeat(32)));
    for count in [0_u64, 1, 7, 1000] {
        let mut table = SlotTable::with_room(count);
        let hash = |number: u64| hasher.hash(format!("/path/{number}").as_bytes());
        for number in 0..count {
            assert!(table.insert(hash(number), 16 + number));
        }
        let bytes: Vec<u8> = table.bytes().collect();
        let table = SlotTable::of_bytes(&bytes).unwrap();
        for number in 0..count {
            assert!(
                table.candidates(hash(number)).any(|offset| offset == 16 + number),
                "{number} of {count}"
            );
        }
        let others = (count..count + 1000).filter(|number| table.candidates(hash(*number)).next().is_some());
        assert!(others.count() < 10, "a part of the hash keeps other paths out");
    }
    let mut table = SlotTable::with_room(1);
    assert!(!table.insert(0, 0) && !table.insert(0, 1 << 40));
    assert!(SlotTable::of_bytes(&[0; 24]).is_err() && SlotTable::of_bytes(&[0; 7]).is_err());
}

#[test]
fn a_table_without_a_free_slot_is_searched_to_its_end_and_no_further() {
    let table = SlotTable::of_bytes(&[0xff; 64]).unwrap();
    assert_eq!(table.candidates(0).count(), 0);
    assert_eq!(table.candidates(u64::MAX).count(), 8);
}

#[test]
fn a_trailer_is_that_of_its_file_alone() {
    let trailer = Trailer { records: 100, slots: 8, meta: 20, entries: 5, sha256: [3; 32] };
    let mut bytes = [0; TRAILER];
    bytes[..TRAILER - 32].copy_from_slice(&trailer.head());
    bytes[TRAILER - 32..].copy_from_slice(&trailer.sha256);
    let length = (MAGIC.len() + 100 + 64 + 20 + TRAILER) as u64;
    assert_eq!(Trailer::decode(&bytes, length), Ok(trailer));
    assert_eq!(Trailer::decode(&bytes, length + 1), Err(IndexError::Damaged("its length")));
    let changed = |at: usize, value: u8| {
        let mut bytes = bytes;
        bytes[at] = value;
        Trailer::decode(&bytes, length)
    };
    assert_eq!(changed(8, 9), Err(IndexError::Version(9)));
    assert_eq!(changed(8, 1), Err(IndexError::Version(1)));
    assert!(changed(8, 2).is_ok(), "version 2 differs only in what it does not have");
    assert!(
        changed(0, 0).is_err()
            && changed(31, 1).is_err()
            && changed(23, 0xff).is_err()
            && changed(47, 1).is_err()
    );
}

fn found(entry: &ImageEntry, observation: &Observation, known: KnownXattrs) -> Vec<DifferenceKind> {
    let layer = ImageLayer { layer: "sha256:l".into(), image: "sha256:i".into(), strength: None };
    let expectation = entry.expectation(Path::new("/p"), layer.into());
    let found = differences(entry, &expectation, observation, known);
    assert!(found.iter().all(|difference| difference.text.contains("/p")), "{found:?}");
    found.into_iter().map(|difference| difference.kind).collect()
}

fn file() -> (ImageEntry, ObjectObservation) {
    let entry = ImageEntry {
        xattrs: vec![
            ("security.capability".into(), "cap_net_raw+ep".into()),
            ("security.selinux".into(), "x".into()),
        ],
        target: None,
        device: None,
        known: Known::All,
        may_be_missing: false,
        md5: None,
        ostree: None,
        gid: 2,
        ..full()
    };
    let mut object = ObjectObservation::new(FileType::Regular, 0o4755, 1, 2);
    (object.size, object.sha256) = (entry.size, entry.sha256);
    object.xattrs = vec![("security.capability".into(), "cap_net_raw+ep".into())];
    object.label = Some("another".into());
    (entry, object)
}

#[test]
fn each_part_of_an_entry_is_compared_and_the_label_is_not() {
    let (entry, object) = file();
    let with = |change: fn(&mut ObjectObservation)| {
        let mut object = object.clone();
        change(&mut object);
        found(&entry, &Observation::Object(Box::new(object)), KnownXattrs::All)
    };
    assert!(with(|_| {}).is_empty());
    assert_eq!(with(|object| object.sha256 = Some([8; 32])), [DifferenceKind::Content]);
    assert_eq!(with(|object| object.mode = 0o755), [DifferenceKind::Mode]);
    assert_eq!(with(|object| object.gid = 3), [DifferenceKind::Owner]);
    assert_eq!(with(|object| object.xattrs.clear()), [DifferenceKind::Xattr]);
    assert_eq!(
        with(|object| object.xattrs.push(("user.b".into(), "sha256:1".into()))),
        [DifferenceKind::Xattr]
    );
    assert_eq!(with(|object| object.file_type = FileType::Fifo)[0], DifferenceKind::Type);
    assert_eq!(found(&entry, &Observation::Missing, KnownXattrs::All), [DifferenceKind::Missing]);
    assert_eq!(
        found(&entry, &Observation::Unreadable { error: "/p".into() }, KnownXattrs::All),
        [DifferenceKind::Unreadable]
    );
}

#[test]
fn a_path_that_may_be_missing_is_compared_if_it_exists() {
    let (entry, mut object) = file();
    object.mode = 0o755;
    let link = ImageEntry {
        file_type: FileType::Symlink,
        target: Some(b"a".to_vec()),
        sha256: None,
        ..entry.clone()
    };
    for entry in [entry, link] {
        let entry = ImageEntry { may_be_missing: true, ..entry };
        assert!(found(&entry, &Observation::Missing, KnownXattrs::All).is_empty());
        assert!(!found(&entry, &Observation::Object(Box::new(object.clone())), KnownXattrs::All).is_empty());
    }
}

#[test]
fn what_an_image_does_not_know_is_not_compared() {
    let (entry, mut object) = file();
    object.xattrs.clear();
    assert!(found(&entry, &Observation::Object(Box::new(object)), KnownXattrs::None).is_empty());
    let implied = ImageEntry { file_type: FileType::Directory, sha256: None, known: Known::Content, ..entry };
    let directory = ObjectObservation::new(FileType::Directory, 0o700, 9, 9);
    assert!(found(&implied, &Observation::Object(Box::new(directory)), KnownXattrs::All).is_empty());
}

#[test]
fn of_a_package_only_the_capabilities_of_a_file_are_compared() {
    let (entry, object) = file();
    let with = |xattrs: &[(&str, &str)]| {
        let xattrs = xattrs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let object = ObjectObservation { xattrs, ..object.clone() };
        found(&entry, &Observation::Object(Box::new(object)), KnownXattrs::Capabilities)
    };
    let declared = ("security.capability", "cap_net_raw+ep");
    assert!(with(&[declared, ("user.b", "sha256:1")]).is_empty());
    assert_eq!(with(&[]), [DifferenceKind::Xattr]);
    assert_eq!(with(&[("security.capability", "cap_setuid+ep")]), [DifferenceKind::Xattr]);
}

#[test]
fn which_attributes_are_known_depends_on_the_source_and_the_entry() {
    let (entry, _) = file();
    let meta = |source: &str, ostree| -> ImageMeta {
        serde_json::from_value(serde_json::json!({
            "source": source, "digest": "d", "indexes": [], "platform": "linux/amd64", "names": [], "layers": [], "entries": 0, "bytes": 0, "ostree": ostree,
        }))
        .unwrap()
    };
    let bare = ImageEntry { known: Known::Content, ..entry.clone() };
    let unknown = ImageEntry {
        xattrs: vec![(crate::xattr::CAPABILITY.to_owned(), crate::xattr::UNKNOWN.to_owned())],
        ..entry.clone()
    };
    for (source, ostree, entry, known) in [
        ("layers", false, &entry, KnownXattrs::All),
        ("layers", true, &entry, KnownXattrs::None),
        ("layers", false, &bare, KnownXattrs::None),
        ("packages", false, &entry, KnownXattrs::Capabilities),
        ("packages", false, &bare, KnownXattrs::None),
        ("packages", false, &unknown, KnownXattrs::None),
    ] {
        assert_eq!(meta(source, ostree).known_xattrs(entry), known, "{source} {ostree} {entry:?}");
    }
}

#[test]
fn a_verdict_about_a_file_of_a_package_with_both_digests_rests_on_the_md5() {
    let meta: ImageMeta = serde_json::from_value(serde_json::json!({
        "source": "packages", "digest": "d", "indexes": [], "platform": "dpkg and rpm", "names": [], "layers": [], "entries": 0, "bytes": 0,
        "ostree": false,
    }))
    .unwrap();
    let of = |sha256: Option<[u8; 32]>, md5: Option<[u8; 16]>| {
        meta.strength(&ImageEntry { sha256, md5, ..file().0 })
    };
    let (sha256, md5) = (Some([1; 32]), Some([2; 16]));
    assert_eq!([of(sha256, md5), of(None, md5)], [Strength::PackageMd5; 2]);
    assert_eq!([of(sha256, None), of(None, None)], [Strength::PackageSha256, Strength::PackageName]);
}

#[test]
fn devices_links_and_pipes_are_compared() {
    let (entry, _) = file();
    let object = |file_type| Observation::Object(Box::new(ObjectObservation::new(file_type, 0o4755, 1, 2)));
    let pipe = ImageEntry { file_type: FileType::Fifo, sha256: None, ..entry.clone() };
    assert!(found(&pipe, &object(FileType::Fifo), KnownXattrs::All).is_empty());
    assert_eq!(found(&pipe, &object(FileType::Regular), KnownXattrs::All), [DifferenceKind::Type]);
    let link = ImageEntry {
        file_type: FileType::Symlink,
        target: Some(b"a".to_vec()),
        sha256: None,
        xattrs: vec![],
        ..entry
    };
    let mut to = ObjectObservation::new(FileType::Symlink, 0o777, 1, 2);
    to.target = Some("b".into());
    assert_eq!(
        found(&link, &Observation::Object(Box::new(to)), KnownXattrs::All),
        [DifferenceKind::LinkTarget]
    );
}

#[test]
fn an_index_of_an_older_version_finds_its_paths_under_the_tagged_checksum_of_its_commit() {
    let meta = |source: &str| -> ImageMeta {
        serde_json::from_value(serde_json::json!({
            "source": source, "digest": "sha256:12ab", "indexes": [], "platform": "", "names": [], "layers": [],
            "entries": 0, "bytes": 0, "ostree": false,
        }))
        .unwrap()
    };
    let tagged = meta("ostree").with_kind_of_digest();
    assert_eq!(tagged.digest, "ostree:12ab");
    assert_eq!(path_hash(&tagged.digest).hash(b"/a"), path_hash("sha256:12ab").hash(b"/a"));
    assert_eq!(meta("layers").with_kind_of_digest().digest, "sha256:12ab");
}
