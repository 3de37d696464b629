//! How paths lead through the root.

use super::*;

#[test]
fn a_linked_ancestor_is_followed_inside_the_root() {
    let host = Host::new();
    host.file("/var/home/core/file", "x");
    host.link("var/home", "/home");
    assert!(matches!(host.observe_file("/home/core/file"), Observation::Object(_)));
}

#[test]
fn an_absolute_or_climbing_link_never_leads_out_of_the_root() {
    let host = Host::new();
    // Outside, next to the root, lies what must not be seen.
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "outside").unwrap();
    host.link(outside.path().to_str().unwrap(), "/absolute");
    host.link("../../../../../../../../../../../../tmp", "/climbing");
    host.file("/tmp/file", "inside");
    assert_eq!(host.observe_file("/absolute/file"), Observation::Missing);
    assert_eq!(host.object(&file("/climbing/file")).size, 6);
}

#[test]
fn a_walk_by_hand_ends_where_openat2_ends() {
    let host = Host::new();
    host.file("/var/home/core/file", "x");
    host.link("/var/home", "/home");
    host.link("../home/./core", "/srv/here");
    host.link("loop", "/loop");
    let by_hand =
        Host { observer: Observer::new(host.root.path()).unwrap(), root: tempfile::tempdir().unwrap() };
    by_hand.observer.root.refuse_openat2();
    for path in [
        "/var/home/core/file",
        "/home/core/file",
        "/srv/here/file",
        "/srv/here",
        "/home/../home/core/../core/file",
        "/../../home/core/file",
        "/loop/x",
        "/none",
        "/home/core/file/x",
        "/",
    ] {
        let (one, other) = (host.observer.observe(&file(path)), by_hand.observer.observe(&file(path)));
        assert_eq!(one, other, "{path}");
    }
    assert!(matches!(by_hand.observe_file("/srv/here/file"), Observation::Object(_)));
}

#[test]
fn the_way_to_a_path_names_every_directory_that_matters() {
    let host = Host::new();
    host.file("/var/home/core/file", "x");
    host.link("/var/home", "/home");
    let way = host.observer.way(Path::new("/home/core/file"));
    let directories: Vec<_> = way.directories.iter().map(|path| path.to_str().unwrap()).collect();
    // The root holds the link; the others hold what it points to.
    assert_eq!(directories, ["/", "/var", "/var/home", "/var/home/core"]);
    assert_eq!(way.parent.as_deref(), Some(Path::new("/var/home/core")));
}

#[test]
fn the_way_to_what_is_missing_ends_at_the_last_directory_there_is() {
    let host = Host::new();
    host.directory("/etc/a");
    let way = host.observer.way(Path::new("/etc/a/b/c"));
    let directories: Vec<_> = way.directories.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(directories, ["/", "/etc", "/etc/a"]);
    assert_eq!(way.parent, None);
}

#[test]
fn a_root_that_is_not_there_is_refused_by_name() {
    let error = Observer::new(Path::new("/none/such")).unwrap_err();
    assert!(error.to_string().contains("/none/such"), "{error}");
}
