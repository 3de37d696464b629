//! Observations of directories that these tests create.

mod closed;
mod keys;
mod objects;
mod opens;
mod paths;
mod settled;
mod units;

use super::*;
use sensor_model::expectation::{
    ClosedDirectoryExpectation, DirectoryExpectation, FileExpectation, LinkExpectation, Source,
    UnitExpectation,
};
use sensor_model::link_exceptions::LinkExceptions;
use sensor_model::name_patterns::NamePatterns;
use std::fs;
use tempfile::TempDir;

/// A temporary root with an observer.
struct Host {
    root: TempDir,
    observer: Observer,
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let observer = Observer::new(root.path()).unwrap();
        Self { root, observer }
    }

    /// The path on this machine of a path below the root.
    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn directory(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
    }

    fn file(&self, path: &str, content: &str) {
        self.directory(Path::new(path).parent().unwrap().to_str().unwrap());
        fs::write(self.at(path), content).unwrap();
    }

    fn link(&self, target: &str, path: &str) {
        self.directory(Path::new(path).parent().unwrap().to_str().unwrap());
        std::os::unix::fs::symlink(target, self.at(path)).unwrap();
    }

    fn observe_file(&self, path: &str) -> Observation {
        self.observer.observe(&file(path)).observation
    }

    fn object(&self, expectation: &Expectation) -> ObjectObservation {
        match self.observer.observe(expectation).observation {
            Observation::Object(object) => *object,
            other => panic!("{other:?}"),
        }
    }
}

fn expectation(thing: Thing, expected: Expected) -> Expectation {
    let source = Source::new("50-test", "test.yaml").into();
    Expectation { thing, expected, ssh_keys: false, label: None, source }
}

fn file(path: &str) -> Expectation {
    owned_file(path, Owner::Id(0))
}

fn owned_file(path: &str, user: Owner) -> Expectation {
    let file = FileExpectation {
        content: None,
        keys: Box::default(),
        layout_free: false,
        mode: 0o644,
        user,
        group: Owner::Id(0),
        may_be_missing: false,
        xattrs: None,
    };
    expectation(Thing::file(path), Expected::File(file))
}

fn link(path: &str, target: &str, hard: bool) -> Expectation {
    let link = LinkExpectation { target: target.into(), hard, user: Owner::Id(0), group: Owner::Id(0) };
    expectation(Thing::link(path), Expected::Link(link))
}

fn directory(path: &str) -> Expectation {
    let directory = DirectoryExpectation { mode: 0o755, user: Owner::Id(0), group: Owner::Id(0) };
    expectation(Thing::directory(path), Expected::Directory(directory))
}

fn closed_directory(path: &str, ssh_keys: bool) -> Expectation {
    let closed = ClosedDirectoryExpectation {
        names: Vec::new(),
        suffix: None,
        ssh_keys,
        except: NamePatterns::default(),
        except_links: LinkExceptions::default(),
    };
    let thing = Thing::closed_directory(path);
    Expectation { ssh_keys, ..expectation(thing, Expected::ClosedDirectory(closed)) }
}

fn unit(name: &str) -> Expectation {
    let unit = UnitExpectation { enabled: Some(true), masked: None, install_directories: Vec::new() };
    expectation(Thing::Unit { name: name.to_owned() }, Expected::Unit(unit))
}
