use crate::{
    image::{Baseline, BaselineError, BaselinePath, ImageEntry, Known},
    observation::FileType,
};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

fn entry(file_type: FileType) -> ImageEntry {
    ImageEntry {
        file_type,
        mode: 0o4755,
        uid: 1,
        gid: 2,
        size: 3,
        sha256: (file_type == FileType::Regular).then_some([7; 32]),
        md5: None,
        ostree: None,
        xattrs: vec![("security.capability".into(), "cap_net_raw+ep".into())],
        target: (file_type == FileType::Symlink).then(|| b"../x\xff".to_vec()),
        device: (file_type == FileType::BlockDevice).then_some((8, 1)),
        layer: 0,
        known: Known::All,
        config: false,
        may_be_missing: false,
        links: 0,
    }
}

#[test]
fn a_baseline_gives_its_entries_back_whatever_the_names_are() {
    let types =
        [FileType::Directory, FileType::Regular, FileType::Symlink, FileType::Fifo, FileType::BlockDevice];
    let paths: [&[u8]; 5] = [b"/", b"/a/\xff\n", b"/l", b"/p", b"/d\\"];
    let list = paths.iter().zip(types).map(|(path, kind)| {
        let mut entry = entry(kind);
        if kind != FileType::Regular {
            entry.size = 0;
        }
        (path.to_vec(), entry)
    });
    let list: Vec<_> = list.collect();
    let made = list.iter().map(|(path, entry)| BaselinePath::of(Path::new(OsStr::from_bytes(path)), entry));
    let baseline = Baseline::new("2026-01-02T03:04:05Z".into(), made.collect());
    let text = serde_json::to_vec(&baseline).unwrap();
    let read = Baseline::parse(&text).unwrap();
    assert_eq!(read, baseline);
    assert_eq!(read.entries().unwrap(), list);
}

#[test]
fn each_wrong_field_is_named_with_its_path() {
    let good = BaselinePath::of(Path::new("/a"), &entry(FileType::Regular));
    let wrong = |change: fn(&mut BaselinePath)| {
        let mut path = good.clone();
        change(&mut path);
        match Baseline::new(String::new(), vec![path]).entries() {
            Err(BaselineError::Path { place: 0, field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(wrong(|path| path.path = "/a/../b".into()), "path");
    assert_eq!(wrong(|path| path.path = "a".into()), "path");
    assert_eq!(wrong(|path| path.path = "/a/".into()), "path");
    assert_eq!(wrong(|path| path.mode = "99".into()), "mode");
    assert_eq!(wrong(|path| path.mode = "17777".into()), "mode");
    assert_eq!(wrong(|path| path.sha256 = Some("7".into())), "sha256");
    assert_eq!(wrong(|path| path.size = None), "sha256");
    assert_eq!(wrong(|path| path.file_type = FileType::Directory), "sha256");
    assert_eq!(wrong(|path| path.target = Some("x".into())), "target");
    let twice = Baseline::new(String::new(), vec![good.clone(), good]);
    assert!(matches!(twice.entries(), Err(BaselineError::Path { place: 1, field: "path", .. })));
    assert!(matches!(Baseline::parse(b"{}"), Err(BaselineError::Json(_))));
    let other = br#"{"schema":"holdfast.status/v1","taken":"","paths":[]}"#;
    assert_eq!(Baseline::parse(other), Err(BaselineError::Schema("holdfast.status/v1".into())));
}
