//! What a drift says about its source.

use super::unknown_executions::with_baseline;
use super::*;
use sensor_model::expectation::SourceKind;
use sensor_model::strength::Strength;

/// The program that the baseline has.
const SHIPPED: &str = "/usr/bin/shipped";

#[tokio::test]
async fn a_drift_says_what_kind_of_source_it_has_and_what_the_verdict_rests_on_also_after_a_restart() {
    let node = with_baseline(true);
    fs::write(node.path("root/usr/bin/shipped"), "changed").unwrap();
    node.write("changed\n");
    // A restart reads the source of the drift from the log.
    for _ in 0..2 {
        let daemon = node.begin(None).await;
        let status = node.status();
        let of = |path| {
            let drifted = status.drifted.iter().find(|drifted| drifted.path == path).unwrap();
            (drifted.source_kind, drifted.strength)
        };
        assert_eq!(of(SHIPPED), (Some(SourceKind::Baseline), Some(Strength::Baseline)));
        assert_eq!(of(FILE), (Some(SourceKind::MachineConfig), None));
        let page = node.metrics.page().unwrap();
        for kind in SourceKind::ALL.iter().copied() {
            let things = status.drifted.iter().filter(|drifted| drifted.source_kind == Some(kind)).count();
            let series = format!("holdfast_drifted_things{{source=\"{}\"}} {things}\n", kind.as_str());
            assert!(page.contains(&series), "{series}: {page}");
        }
        for drifted in &status.drifted {
            let kind = drifted.source_kind.unwrap().as_str();
            let things = status.drifted.iter().filter(|other| other.source == drifted.source).count();
            let series = format!(
                "holdfast_source_drifted_things{{source=\"{kind}\",name=\"{}\"}} {things}\n",
                drifted.source
            );
            assert!(page.contains(&series), "{series}: {page}");
        }
        node.end(daemon).await;
    }
    let recorded = node.recorded(RecordKind::Drift);
    let detail = |path| {
        let record = recorded.iter().find(|record| record.path.as_deref() == Some(path)).unwrap();
        (record.detail["source_kind"].clone(), record.detail.get("strength").cloned())
    };
    assert_eq!(detail(SHIPPED), ("baseline".into(), Some("sha256 of a baseline".into())));
    assert_eq!(detail(FILE), ("machine-config".into(), None));
}
