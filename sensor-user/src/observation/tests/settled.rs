//! Files that change while they are read.

use super::*;
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A host whose file `/f` gets another byte after the first reads, and how often it was read.
fn growing(times: usize) -> (Host, Arc<AtomicUsize>) {
    let Host { root, observer } = Host::new();
    fs::write(root.path().join("f"), "begin").unwrap();
    let (path, reads) = (root.path().join("f"), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&reads);
    let observer = observer.with_settled_contents().with_pauses(move |_, _| {
        if count.fetch_add(1, Ordering::Relaxed) < times {
            fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"+").unwrap();
        }
    });
    (Host { root, observer }, reads)
}

#[test]
fn a_file_that_changes_while_it_is_read_is_observed_as_it_is_afterwards() {
    let (host, reads) = growing(2);
    let object = host.object(&file("/f"));
    assert_eq!(object.sha256, Some(Sha256::digest("begin++").into()));
    assert_eq!((object.size, reads.load(Ordering::Relaxed)), (7, 3));
}

#[test]
fn a_file_that_changes_at_each_read_is_unreadable() {
    let (host, reads) = growing(usize::MAX);
    let Observation::Unreadable { error } = host.observe_file("/f") else { panic!("it was read") };
    assert!(error.contains("/f") && error.contains("changed meanwhile"), "{error}");
    assert_eq!(reads.load(Ordering::Relaxed), ATTEMPTS);
}
