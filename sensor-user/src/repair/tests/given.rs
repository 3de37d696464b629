//! What another process puts in the place of something, between a look and the write, gets no owner and no mode.

use super::*;
use nix::errno::Errno;
use sensor_model::difference::DifferenceKind;
use sensor_model::expectation::{DirectoryExpectation, FileExpectation, Owner};

/// A place in a user's home, and a file of root's in it and elsewhere.
fn with_baits(case: &Case) -> [PathBuf; 2] {
    with_home(case);
    let baits = ["/home/core/roots", "/etc/roots"].map(|path| case.at(path));
    for bait in &baits {
        fs::write(bait, "root's").unwrap();
        fs::set_permissions(bait, fs::Permissions::from_mode(0o600)).unwrap();
    }
    baits
}

fn owner_and_mode(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

#[test]
fn an_object_that_replaces_the_temporary_name_of_a_link_gets_neither_its_owner_nor_the_path() {
    let case = Case::new();
    let [_, roots] = with_baits(&case);
    let roots_link = case.at("/etc/roots-link");
    symlink("/etc/elsewhere", &roots_link).unwrap();
    let ids = Ids::default();
    let host = case.context(&ids);
    let link = Path::new("/home/core/link");
    let place = host.place(link, None).unwrap();
    for bait in [&roots, &roots_link] {
        let before = owner_and_mode(bait);
        let ((), temporary) = place
            .temporary("swap", |name| {
                let name = case.at("/home/core").join(name);
                let made = rustix::fs::linkat(
                    rustix::fs::CWD,
                    bait,
                    rustix::fs::CWD,
                    name,
                    rustix::fs::AtFlags::empty(),
                );
                made.map_err(|errno| Errno::from_raw(errno.raw_os_error()))
            })
            .unwrap();
        let owner = (Some(1000), Some(1000));
        let error = place.put_link(temporary, "/etc/elsewhere".as_ref(), owner, None).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        assert_eq!(owner_and_mode(bait), before, "{}", bait.display());
        assert!(fs::symlink_metadata(case.at("/home/core/link")).is_err());
        assert_eq!(case.leftovers("/home/core"), [""; 0]);
    }
    place.replace_by_link("/etc/elsewhere".as_ref(), (Some(1000), Some(7)), None).unwrap();
    let made = fs::symlink_metadata(case.at("/home/core/link")).unwrap();
    assert_eq!((made.is_symlink(), made.uid(), made.gid()), (true, 1000, 7));
}

#[test]
fn an_object_that_replaces_the_temporary_name_of_a_file_right_before_the_rename_does_not_get_the_path() {
    let case = Case::new();
    let [_, roots] = with_baits(&case);
    let ids = Ids::default();
    let host = case.context(&ids);
    let home = case.at("/home/core");
    let place = host.place(Path::new("/home/core/file"), None).unwrap();
    let make = |name: &std::ffi::OsStr| Ok::<_, Errno>(fs::File::create_new(home.join(name)).unwrap());
    let deeds: [&dyn Fn(&Path); 4] = [
        &|name| {
            fs::remove_file(name).unwrap();
            fs::hard_link(&roots, name).unwrap();
        },
        &|name| {
            fs::remove_file(name).unwrap();
            symlink("/etc/roots", name).unwrap();
        },
        &|name| {
            fs::remove_file(name).unwrap();
            fs::write(name, "theirs").unwrap();
        },
        &|name| fs::remove_file(name).unwrap(),
    ];
    for deed in deeds {
        let (file, temporary) = place.temporary("make", make).unwrap();
        deed(&home.join(&temporary.name));
        let error = place.rename(&file, temporary).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        assert!(fs::symlink_metadata(home.join("file")).is_err());
        assert_eq!(case.leftovers("/home/core"), [""; 0]);
    }
    let (file, temporary) = place.temporary("make", make).unwrap();
    place.rename(&file, temporary).unwrap();
    assert!(home.join("file").is_file());
}

#[test]
fn a_file_of_root_that_replaced_a_directory_or_a_file_since_the_observation_keeps_its_owner() {
    let case = Case::new();
    let baits = with_baits(&case);
    let ids = Ids::default();
    let host = case.context(&ids);
    let owner = || Owner::Id(1000);
    let difference = |kind| {
        let text = |text: &str| text.to_owned();
        vec![Difference { kind, expected: text("a"), found: text("b"), text: text("c") }]
    };
    let declared = "/home/core/declared";
    for bait in &baits {
        fs::hard_link(bait, case.at(declared)).unwrap();
        let directory = DirectoryExpectation { mode: 0o755, user: owner(), group: owner() };
        let found = difference(DifferenceKind::Mode);
        let error = host.declared_directory(Path::new(declared), &directory, &found, None).unwrap_err();
        assert!(error.to_string().contains("is not a directory"), "{error}");
        // And where it comes only after the path was looked at.
        let error = host.place(Path::new(declared), None).unwrap().open_directory().unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        assert_eq!(owner_and_mode(bait), (0, 0, 0o600), "{}", bait.display());
        fs::remove_file(case.at(declared)).unwrap();
    }
    // The only name of root's own file, in the place of one whose content is declared, and of one whose content is not.
    fs::rename(&baits[0], case.at(declared)).unwrap();
    let file = |content| FileExpectation {
        content,
        keys: Box::default(),
        layout_free: false,
        mode: 0o644,
        user: owner(),
        group: owner(),
        may_be_missing: false,
        xattrs: None,
    };
    let handle = fs::File::open(case.at(declared)).unwrap();
    let roots = || {
        let found = handle.metadata().unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    let found = difference(DifferenceKind::Mode);
    let error = host.file(Path::new(declared), &file(None), false, &found, None).unwrap_err();
    assert!(error.to_string().contains("other users can write its directory"), "{error}");
    assert_eq!(roots(), (0, 0, 0o600));
    let known = "/home/core/.ssh/authorized_keys.d/ignition";
    fs::create_dir_all(case.at(known).parent().unwrap()).unwrap();
    std::os::unix::fs::chown(case.at(known).parent().unwrap(), Some(1000), Some(1000)).unwrap();
    fs::rename(case.at(declared), case.at(known)).unwrap();
    let expected = case.expectations.iter().find_map(|expectation| match &expectation.expected {
        Expected::File(file) if *expectation.thing.path() == *Path::new(known) => Some(file.clone()),
        _ => None,
    });
    let done = host.file(Path::new(known), &expected.unwrap(), true, &found, None).unwrap();
    assert_eq!(done, ["content written"]);
    assert_eq!(roots(), (0, 0, 0o600));
    assert_eq!(owner_and_mode(&case.at(known)).0, 1000);
}
