//! Unusable configs, at a start and at a reload.

use super::*;
use crate::desired;
use sensor_model::expectation::Expectation;

/// A config with a typing error. Without a check it would declare nothing.
const TYPO: &str = r#"{"ignition":{"version":"3.4.0"},"storge":{"files":[]}}"#;
/// A config that declares nothing.
const EMPTY: &str = r#"{"ignition":{"version":"3.4.0"}}"#;

fn node() -> Node {
    Node::new(&json!({ "path": FILE, "action": "observe" }))
}

fn load(node: &Node) -> anyhow::Result<(AgentOptions, Desired, Option<String>)> {
    let mut options = node.options();
    let observer = Observer::new(&options.inputs.root).unwrap();
    let (desired, refused) = start::load(&mut options, &observer)?;
    Ok((options, desired, refused))
}

#[tokio::test]
async fn a_start_with_an_unusable_config_keeps_the_last_usable_one_and_is_not_ready() {
    let node = node();
    let daemon = node.begin(None).await;
    let all = |daemon: &Daemon| -> Vec<_> {
        let expectations = daemon.agent.verdicts.desired.expectations.iter();
        let said = |known: &Expectation| {
            (known.thing.clone(), known.expected.clone(), known.source.name().to_owned())
        };
        expectations.map(said).collect()
    };
    let before = all(&daemon);
    assert!(!daemon.readiness.reasons().contains_key("config"));
    assert_eq!(node.status().config_refused, None);
    node.end(daemon).await;
    for (config, reason) in [
        (TYPO, "storge: unknown field; did you mean storage?"),
        (EMPTY, "`--allow-empty`"),
        ("rubbish", "a.ign"),
    ] {
        fs::write(node.path("config/a.ign"), config).unwrap();
        let mut daemon = node.begin(None).await;
        assert_eq!(all(&daemon), before, "{config}");
        let recorded = daemon.readiness.reasons()["config"].clone();
        assert!(recorded.contains(reason), "{recorded}");
        assert_eq!(node.status().config_refused, Some(recorded));
        // Diffs and repairs use the config that is in force.
        let in_force =
            desired::rendered(&daemon.agent.options.inputs.source, desired::Unknown::Ignore).unwrap();
        assert!(in_force.files.contains_key(FILE), "{config}");
        // The daemon reads the corrected config at its own path.
        node.declare(DECLARED);
        daemon.agent.reload();
        let Some(RunEnd::Reloaded(desired)) = daemon.agent.run_end.take() else { panic!("{config}") };
        let given = node.path("config/a.ign").display().to_string();
        assert!(desired.expectations.iter().all(|known| *known.source.origin() == *given), "{config}");
        node.end(daemon).await;
    }
}

#[tokio::test]
async fn a_running_daemon_refuses_the_same_configs() {
    let node = node();
    let mut daemon = node.begin(None).await;
    for config in [TYPO, EMPTY] {
        fs::write(node.path("config/a.ign"), config).unwrap();
        daemon.agent.reload();
        assert!(daemon.agent.run_end.is_none(), "{config}");
    }
    node.end(daemon).await;
}

#[test]
fn a_first_start_fails_with_an_unusable_config_unless_an_option_allows_it() {
    let node = node();
    fs::write(node.path("config/a.ign"), TYPO).unwrap();
    let error = load(&node).unwrap_err();
    assert!(format!("{error:#}").contains("did you mean storage?"), "{error:#}");
    let mut options = node.options();
    options.inputs.allow_unknown = true;
    let observer = Observer::new(&options.inputs.root).unwrap();
    assert!(start::load(&mut options, &observer).unwrap().1.is_none());
    node.declare(DECLARED);
    assert!(load(&node).unwrap().2.is_none());
    fs::write(node.path("config/a.ign"), EMPTY).unwrap();
    assert!(load(&node).unwrap().2.is_some());
    let mut options = node.options();
    options.inputs.allow_empty = true;
    let (desired, refused) = start::load(&mut options, &observer).unwrap();
    assert!(desired.nothing && refused.is_none());
    // This is the last usable config.
    fs::write(node.path("config/a.ign"), TYPO).unwrap();
    let (desired, refused) = start::load(&mut options, &observer).unwrap();
    assert!(desired.nothing && refused.is_some());
}

#[test]
fn with_an_applied_config_the_last_usable_policies_stay_in_force() {
    let node = node();
    let applied = node.path("state/apply/generations/1");
    fs::create_dir_all(&applied).unwrap();
    fs::copy(node.path("config/a.ign"), applied.join("a.ign")).unwrap();
    let load = || {
        let mut options = node.options();
        options.inputs.source = StateSource::applied((1, applied.clone()).into());
        let observer = Observer::new(&options.inputs.root).unwrap();
        let loaded = start::load(&mut options, &observer);
        loaded.map(|(desired, refused)| (options, desired, refused))
    };
    assert_eq!(load().unwrap().2, None);
    fs::write(node.path("policy/a.json"), "rubbish").unwrap();
    let (options, _, refused) = load().unwrap();
    assert!(refused.unwrap().contains("a.json"));
    let kept = last_usable::directory(&node.path("state"));
    let in_force = (options.inputs.source.manifests().to_vec(), options.inputs.policies);
    assert_eq!(in_force, (vec![applied.clone()], vec![kept.join("policies/000000/a.json")]));
    assert_eq!(fs::read_dir(kept.join("configs")).unwrap().count(), 0, "the store of applies has them");
    // The config changed, and the policies are still the last usable ones.
    fs::write(applied.join("a.ign"), EMPTY).unwrap();
    assert!(load().unwrap().1.nothing);
}

#[test]
fn the_kept_files_are_private_and_follow_the_used_ones() {
    let node = node();
    let kept = last_usable::directory(&node.path("state"));
    for content in [DECLARED, "another\n"] {
        node.declare(content);
        load(&node).unwrap();
        let files = desired::read(&[kept.join("configs/000000"), kept.join("policies/000000")]).unwrap();
        let given = desired::read(node.options().inputs.source.manifests()).unwrap();
        assert_eq!((files.len(), &files[0].1), (2, &given[0].1));
    }
    for path in [kept.clone(), kept.join("configs"), kept.join("configs/000000/a.ign")] {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
    assert!(!kept.with_extension("new").exists());
}
