//! Orders to write back, with a systemd of the test.

use super::*;
use crate::{
    apply::actions::tests::played::{PlayedHost, Plays},
    desired::NamedSources,
};
use sensor_model::record::Actor;
use serde_json::json;
use std::{fs, os::unix::fs::PermissionsExt as _};

fn host(root: &Path, state: &Path) -> RevertHost {
    let sources = NamedSources {
        root: root.to_owned(),
        state: Some(state.to_owned()),
        configs: Vec::new(),
        policies: Vec::new(),
        allow_unknown: false,
    };
    RevertHost { sources, own: Vec::new() }
}

fn ordered(path: &str) -> OrderedRevert {
    let actors = vec![Actor { pid: 7, ..Actor::default() }];
    OrderedRevert { thing: Thing::file(path), found: None, actors }
}

fn errors(results: &[RevertResult]) -> Vec<String> {
    let errors = results.iter().map(|result| match &result.result {
        Err(error) => error.to_string(),
        Ok(written) => format!("{written:?}"),
    });
    errors.collect()
}

/// The results of the order that is under way. A test that waits for ever fails.
async fn over(reverts: &mut NodeReverts) -> Vec<RevertResult> {
    let over = std::future::poll_fn(|context| reverts.poll_over(context));
    tokio::time::timeout(Duration::from_mins(1), over).await.expect("it has a limit")
}

#[tokio::test]
async fn a_unit_that_cannot_be_started_gives_each_thing_the_reason_and_leaves_no_request() {
    // This systemd takes no transient units.
    let played = PlayedHost::new(Plays::Well);
    let state = tempfile::tempdir().unwrap();
    let mut reverts = NodeReverts::new(host(played.root.path(), state.path()));
    assert!(!reverts.is_under_way());
    reverts.begin(vec![ordered("/etc/a"), ordered("/etc/b")], false);
    assert!(reverts.is_under_way(), "the loop does not wait");
    let results = over(&mut reverts).await;
    assert!(!reverts.is_under_way());
    assert_eq!(results[0].ordered, ordered("/etc/a"));
    let errors = errors(&results);
    assert_eq!(errors.len(), 2);
    assert!(
        errors.iter().all(|error| error.starts_with("cannot start holdfast-revert.service")),
        "{errors:?}"
    );
    assert!(!state.path().join("order/revert.json").exists());
    let mode = fs::metadata(state.path().join("order")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn a_new_daemon_takes_the_results_of_the_order_of_an_earlier_one() {
    let played = PlayedHost::new(Plays::Well);
    let state = tempfile::tempdir().unwrap();
    let files = RevertFiles::new(state.path());
    let request = RevertRequest {
        id: "1".to_owned(),
        last_usable: false,
        things: vec![ordered("/etc/a"), ordered("/etc/b")],
    };
    files.set_request(&request).unwrap();
    let mode = fs::metadata(state.path().join("order/revert.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let done = RevertedThing {
        thing: Thing::file("/etc/a"),
        before: Vec::new(),
        actions: vec!["content written".to_owned()],
        quarantined: Vec::new(),
        error: None,
    };
    files.set_results(&RevertedThings { id: "1".to_owned(), things: vec![done] }).unwrap();
    let mut reverts = NodeReverts::new(host(played.root.path(), state.path()));
    reverts.recover();
    let results = over(&mut reverts).await;
    assert_eq!(results[0].result.as_ref().unwrap().actions, ["content written"]);
    assert!(errors(&results)[1].contains("without a result"), "{:?}", errors(&results));
    assert!(files.request().unwrap().is_none() && !files.have_results());
    reverts.recover();
    assert!(!reverts.is_under_way(), "they are taken once");
}

#[test]
fn malformed_files_are_errors_of_the_order_and_no_panic() {
    let state = tempfile::tempdir().unwrap();
    let unit = NodeReverts::new(host(state.path(), state.path())).unit;
    let request = RevertRequest { id: "1".to_owned(), last_usable: false, things: vec![ordered("/etc/a")] };
    for (results, reason) in [
        ("", "cannot read the results"),
        ("[]", "cannot read the results"),
        ("{\"id\": \"1\", \"things\": [{\"thing\": {\"type\": \"file\"}}]}", "cannot read the results"),
        ("{\"id\": \"1\", \"things\": []}", "without a result"),
        // The results of an earlier order.
        (
            "{\"id\": \"0\", \"things\": [{\"thing\": {\"type\": \"file\", \"path\": \"/etc/a\"}}]}",
            "without a result",
        ),
    ] {
        unit.files.set_request(&request).unwrap();
        fs::write(state.path().join("order/reverted.json"), results).unwrap();
        let errors = errors(&unit.taken(request.clone()));
        assert!(errors[0].contains(reason), "{results}: {errors:?}");
    }
    for text in ["", "{", "{\"id\": 1}", "[{\"thing\": 1}]"] {
        fs::write(state.path().join("order/revert.json"), text).unwrap();
        let mut reverts = NodeReverts::new(host(state.path(), state.path()));
        reverts.recover();
        assert!(!reverts.is_under_way(), "{text}");
        assert!(!state.path().join("order/revert.json").exists(), "{text}");
    }
}

#[test]
fn an_error_beside_actions_is_a_part_that_is_left() {
    let result = |actions: &[&str]| {
        let result =
            json!({ "thing": { "type": "file", "path": "/etc/a" }, "actions": actions, "error": "x" });
        written(serde_json::from_value(result).unwrap())
    };
    assert_eq!(result(&[]).unwrap_err().to_string(), "x");
    assert_eq!(result(&["moved"]).unwrap().left.unwrap().to_string(), "x");
}
