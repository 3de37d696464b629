use super::*;
use sensor_model::status::SCHEMA;
use std::collections::BTreeMap;

fn status() -> NodeStatus {
    NodeStatus {
        schema: SCHEMA.to_owned(),
        verdict: VerdictKind::Compliant,
        degraded: false,
        backend: "lsm".to_owned(),
        capabilities: Vec::new(),
        time: String::new(),
        pid: 1,
        boot_id: String::new(),
        beat_seconds: 5,
        sources: Vec::new(),
        config_refused: None,
        drifted: Vec::new(),
        gaps: Vec::new(),
        node: None,
        waiting: Vec::new(),
        counters: BTreeMap::new(),
    }
}

const COMPLIANT: Numbers = (VerdictKind::Compliant, [1, 0, 0]);
const DRIFTED: Numbers = (VerdictKind::Drifted, [0, 1, 0]);

#[test]
fn a_status_that_could_not_be_written_is_written_at_the_next_beat() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let mut file = StatusFile::new(&run);
    assert!(file.is_due(COMPLIANT, true));
    file.write(COMPLIANT, &status());
    assert!(!file.is_due(COMPLIANT, true), "not at each turn");
    assert!(file.beat());
    file.write(COMPLIANT, &status());
    fs::create_dir(&run).unwrap();
    assert!(file.beat());
    file.write(COMPLIANT, &status());
    assert_eq!(read(&run).unwrap(), status());
    assert!(!file.beat() && !file.is_due(COMPLIANT, true));
}

#[test]
fn it_is_written_when_something_is_new_and_not_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = StatusFile::new(directory.path());
    file.write(COMPLIANT, &status());
    assert!(!file.is_due(COMPLIANT, true) && !file.is_due(DRIFTED, false));
    assert!(file.is_due(DRIFTED, true));
    file.outdate();
    assert!(file.is_due(COMPLIANT, false));
}

#[test]
fn a_beat_makes_it_young_and_brings_one_back_that_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = StatusFile::new(directory.path());
    file.write(COMPLIANT, &status());
    let path = directory.path().join(FILE);
    for seconds in [-3600, 3600] {
        let age = Duration::from_hours(1);
        let then = SystemTime::now();
        let then = if seconds < 0 { then - age } else { then + age };
        File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
        assert!(super::age(directory.path()).unwrap() > patience(Duration::from_secs(5)), "{seconds}");
        assert!(!file.beat());
        assert!(super::age(directory.path()).unwrap() < Duration::from_mins(30), "{seconds}");
    }
    fs::remove_file(&path).unwrap();
    assert!(file.beat());
}
