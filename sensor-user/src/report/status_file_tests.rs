use super::*;
use crate::report::last_status::without_daemon;

fn status() -> NodeStatus {
    NodeStatus {
        verdict: VerdictKind::Compliant,
        backend: "lsm".to_owned(),
        pid: 1,
        beat_seconds: 5,
        ..without_daemon()
    }
}

const COMPLIANT: VerdictCounts =
    VerdictCounts { verdict: VerdictKind::Compliant, compliant: 1, drifted: 0, unknown: 0 };
const DRIFTED: VerdictCounts =
    VerdictCounts { verdict: VerdictKind::Drifted, compliant: 0, drifted: 1, unknown: 0 };

#[test]
fn the_next_beat_writes_a_status_that_could_not_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let mut file = StatusFile::new(&run);
    assert!(file.is_due(COMPLIANT, true));
    file.write(COMPLIANT, &text(&status()));
    assert!(!file.is_due(COMPLIANT, true), "not at each turn");
    assert!(file.beat());
    file.write(COMPLIANT, &text(&status()));
    fs::create_dir(&run).unwrap();
    assert!(file.beat());
    file.write(COMPLIANT, &text(&status()));
    assert_eq!(read(&run).unwrap(), status());
    assert!(!file.beat() && !file.is_due(COMPLIANT, true));
}

#[test]
fn the_status_is_written_only_when_something_is_new() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = StatusFile::new(directory.path());
    file.write(COMPLIANT, &text(&status()));
    assert!(!file.is_due(COMPLIANT, true) && !file.is_due(DRIFTED, false));
    assert!(file.is_due(DRIFTED, true));
    file.outdate();
    assert!(file.is_due(COMPLIANT, false));
}

#[test]
fn a_beat_renews_the_files_time_and_finds_that_it_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = StatusFile::new(directory.path());
    file.write(COMPLIANT, &text(&status()));
    let path = directory.path().join(FILE);
    for seconds in [-3600, 3600] {
        let age = Duration::from_hours(1);
        let then = SystemTime::now();
        let then = if seconds < 0 { then - age } else { then + age };
        File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
        assert!(super::age(directory.path()).unwrap() > longest_age(Duration::from_secs(5)), "{seconds}");
        assert!(!file.beat());
        assert!(super::age(directory.path()).unwrap() < Duration::from_mins(30), "{seconds}");
    }
    fs::remove_file(&path).unwrap();
    assert!(file.beat());
}

#[test]
fn only_its_owner_reads_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let left = directory.path().join(".status.json.new");
    fs::write(&left, "").unwrap();
    fs::set_permissions(&left, Permissions::from_mode(0o644)).unwrap();
    StatusFile::new(directory.path()).write(COMPLIANT, &text(&status()));
    let mode = fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
