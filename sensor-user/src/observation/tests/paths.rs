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
    // A file outside the root, which the observer must not reach.
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "outside").unwrap();
    host.link(outside.path().to_str().unwrap(), "/absolute");
    host.link("../../../../../../../../../../../../tmp", "/climbing");
    host.file("/tmp/file", "inside");
    assert_eq!(host.observe_file("/absolute/file"), Observation::Missing);
    assert_eq!(host.object(&file("/climbing/file")).size, 6);
}

#[test]
fn a_link_below_a_directory_that_others_can_write_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let host = Host::new();
    host.file("/etc/x/file", "root's");
    host.file("/home/core/own/file", "core's");
    host.link("/etc/x", "/home/core/own/link");
    // Only root can write the directory of this link.
    host.link("/home/core/own", "/srv");
    let by_hand =
        Host { observer: Observer::new(host.root.path()).unwrap(), root: tempfile::tempdir().unwrap() };
    by_hand.observer.root.refuse_openat2();
    let at = |path: &str| host.root.path().join(path);
    let seen = |path: &str| {
        let seen = [&host, &by_hand].map(|host| host.observe_file(path));
        assert_eq!(seen[0], seen[1], "{path}");
        seen[0].clone()
    };
    assert!(matches!(seen("/home/core/own/link/file"), Observation::Object(_)), "root's");
    let whole = fs::metadata(at("home/core")).unwrap().permissions();
    for mode in [0o775, 0o1777] {
        fs::set_permissions(at("home/core"), fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(seen("/home/core/own/link/file"), Observation::Unreadable { .. }), "{mode:o}");
    }
    fs::set_permissions(at("home/core"), whole).unwrap();
    chown(at("home/core"), Some(1000), Some(1000)).unwrap();
    let Observation::Unreadable { error } = seen("/home/core/own/link/file") else { panic!("followed") };
    assert!(error.contains("others than root"), "{error}");
    assert!(matches!(seen("/srv/link/file"), Observation::Unreadable { .. }));
    assert!(matches!(seen("/srv/file"), Observation::Object(_)));
    assert!(matches!(seen("/home/core/own/file"), Observation::Object(_)));
    // The route has the directory of the link all the same, so a change of the link is an event.
    let route = host.observer.route(Path::new("/home/core/own/link/file"));
    assert_eq!(route.parent, None);
    assert!(route.directories.contains(&PathBuf::from("/home/core/own")), "{route:?}");
}

#[test]
fn a_walk_without_openat2_ends_where_openat2_ends() {
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
fn the_route_to_a_path_has_every_directory_of_a_look_up() {
    let host = Host::new();
    host.file("/var/home/core/file", "x");
    host.link("/var/home", "/home");
    let route = host.observer.route(Path::new("/home/core/file"));
    let directories: Vec<_> = route.directories.iter().map(|path| path.to_str().unwrap()).collect();
    // The root holds the link; the others hold what it points to.
    assert_eq!(directories, ["/", "/var", "/var/home", "/var/home/core"]);
    assert_eq!(route.parent.as_deref(), Some(Path::new("/var/home/core")));
}

#[test]
fn the_route_to_a_missing_object_ends_at_the_last_existing_directory() {
    let host = Host::new();
    host.directory("/etc/a");
    let route = host.observer.route(Path::new("/etc/a/b/c"));
    let directories: Vec<_> = route.directories.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(directories, ["/", "/etc", "/etc/a"]);
    assert_eq!(route.parent, None);
}

#[test]
fn the_error_for_a_missing_root_names_it() {
    let error = Observer::new(Path::new("/none/such")).unwrap_err();
    assert!(error.to_string().contains("/none/such"), "{error}");
}
