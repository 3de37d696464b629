use super::*;
use sensor_model::drift_policy::DriftPolicy;
use sensor_model::expectation::{Expectation, Expected, FileExpectation, Owner, Source};
use std::fs;
use std::os::unix::fs::MetadataExt;

fn file(path: &str, owner: (u32, u32)) -> Expectation {
    Expectation {
        thing: Thing::File { path: path.into() },
        expected: Expected::File(FileExpectation {
            keys: Vec::new(),
            layout_free: false,
            content: None,
            mode: 0o644,
            user: Owner::Id(owner.0),
            group: Owner::Id(owner.1),
            label: None,
            may_be_missing: false,
        }),
        ssh_keys: false,
        source: Source { machine_config: "test".into(), origin: "test.yaml".into() },
    }
}

/// Writes the file until its change time moves, which takes a tick of the kernel's clock.
fn change(path: &Path) {
    let time = || {
        let metadata = fs::metadata(path).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let before = time();
    while time() == before {
        fs::write(path, "same").unwrap();
    }
}

#[tokio::test]
async fn a_change_met_by_a_look_that_decided_nothing_is_still_a_change_to_the_next_look() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a");
    fs::write(&path, "same").unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    let desired = Desired {
        expectations: vec![file("/a", (metadata.uid(), metadata.gid()))],
        policy: DriftPolicy::merge(&[]).unwrap(),
        ..Desired::default()
    };
    let observer = Arc::new(Observer::new(root.path()).unwrap());
    let mut looker = Looker::new(observer, root.path(), None, &desired);
    let untouched = |sight: &Sight| match sight.outcome.finding {
        Finding::Compliant { untouched } => untouched,
        Finding::Differs { .. } => panic!("{:?}", sight.differences),
    };

    let first = looker.look(0, &desired).await.unwrap();
    assert!(!untouched(&first));
    looker.decided(0, &first);
    assert!(untouched(&looker.look(0, &desired).await.unwrap()));

    change(&path);
    assert!(!untouched(&looker.look(0, &desired).await.unwrap()));
    let second = looker.look(0, &desired).await.unwrap();
    assert!(!untouched(&second), "the look before this one decided nothing");
    looker.decided(0, &second);
    assert!(untouched(&looker.look(0, &desired).await.unwrap()));
}
