use super::status::status;
use crate::api::{PolicyState, ReportedPolicy};
use std::collections::BTreeMap;

fn reported(generation: i64, state: PolicyState, message: Option<&str>) -> Vec<ReportedPolicy> {
    vec![ReportedPolicy {
        name: "one".to_owned(),
        generation: Some(generation),
        state,
        message: message.map(str::to_owned),
    }]
}

#[test]
fn a_status_counts_the_nodes_that_took_the_newest_generation_and_names_those_with_a_problem() {
    let reports = BTreeMap::from([
        ("a".to_owned(), reported(2, PolicyState::InForce, None)),
        ("b".to_owned(), reported(2, PolicyState::Limited, Some("limited"))),
        ("c".to_owned(), reported(2, PolicyState::Conflict, Some("another"))),
        ("d".to_owned(), reported(1, PolicyState::InForce, None)),
        ("e".to_owned(), Vec::new()),
    ]);
    let status = status("one", Some(2), &reports);
    assert_eq!((status.selected, status.in_force, status.refused), (4, 2, 1));
    assert_eq!(status.nodes, ["a", "b"]);
    let problems: Vec<_> = status.problems.iter().map(|problem| (&*problem.node, problem.state)).collect();
    assert_eq!(problems, [("b", PolicyState::Limited), ("c", PolicyState::Conflict)]);
    assert_eq!(super::status::status("two", Some(1), &reports).selected, 0);
}

#[test]
fn a_status_has_a_limited_size_in_a_large_cluster() {
    let refused = reported(1, PolicyState::Refused, Some(&"x".repeat(1 << 20)));
    let taken = reported(1, PolicyState::InForce, None);
    let reports: BTreeMap<_, _> = (0..5000)
        .map(|number| {
            (format!("node-{number:04}"), if number % 2 == 0 { refused.clone() } else { taken.clone() })
        })
        .collect();
    let status = status("one", Some(1), &reports);
    assert_eq!((status.selected, status.in_force, status.refused), (5000, 2500, 2500));
    assert_eq!((status.nodes.len(), status.problems.len()), (100, 20));
    assert!(serde_json::to_vec(&status).unwrap().len() < 64 << 10);
}
