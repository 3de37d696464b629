//! The status as the reporter gets it: bounded in size, whatever happens on the node.
//!
//! In: the node's status. Out: the same with the newest drifts, and with lists and texts that have limits, as JSON. The status
//! counts what its lists leave out. A reporter that had to read all of a large status could be blinded by many drifts.

use jiff::Timestamp;
use sensor_model::socket::STATUS_BYTES;
use sensor_model::status::{BootedImage, DriftedThing, NodeStatus};
use serde::Serialize;
use std::cmp::Reverse;

/// Most drifted things. The reporter shows fewer.
const THINGS: usize = 500;
/// Most bytes of all drifted things. One has about a KiB, and with texts as long as the kernel allows half a MiB.
const THINGS_BYTES: usize = STATUS_BYTES / 2;
/// Most elements of another list.
const ELEMENTS: usize = 500;
/// Most bytes of another list.
const LIST_BYTES: usize = 128 << 10;
/// Most bytes of one text.
const TEXT_BYTES: usize = 16 << 10;
/// The end of a text that was cut.
const CUT: char = '…';

/// The JSON of a status with limits.
pub(in crate::report) fn text(mut status: NodeStatus) -> Vec<u8> {
    let mut things: Vec<(Option<Timestamp>, DriftedThing)> =
        status.drifted.into_iter().map(|thing| (thing.since.parse().ok(), thing)).collect();
    things.sort_unstable_by(|(one_since, one), (other_since, other)| {
        let key = |since: &Option<Timestamp>| Reverse(*since);
        (key(one_since), &one.path, one.thing).cmp(&(key(other_since), &other.path, other.thing))
    });
    status.drifted = things.into_iter().map(|(_, thing)| thing).collect();
    let left_out = &mut status.left_out;
    left_out.drifted += shorten(&mut status.drifted, THINGS, THINGS_BYTES);
    left_out.gaps += shorten(&mut status.gaps, ELEMENTS, LIST_BYTES);
    left_out.sources += shorten(&mut status.sources, ELEMENTS, LIST_BYTES);
    left_out.waiting += shorten(&mut status.waiting, ELEMENTS, LIST_BYTES);
    if let Some(refused) = &mut status.config_refused {
        cut(refused);
    }
    if let Some(name) = status.config.as_mut().and_then(|config| config.name.as_mut()) {
        cut(name);
    }
    if let Some(BootedImage { name, digest, config }) = &mut status.booted_image {
        [name, digest, config].into_iter().flatten().for_each(cut);
    }
    if let Some(standing) = &mut status.node {
        cut(&mut standing.reason);
        cut(&mut standing.waiting_for);
    }
    let mut text = json(&status);
    text.push(b'\n');
    text
}

/// Keeps the first elements that have room. Gives the number of the others. A few elements that are too large hide none that
/// follow them. At most twice as many elements are measured as may be kept, because the loop waits meanwhile.
fn shorten<T: Serialize>(list: &mut Vec<T>, most: usize, bytes: usize) -> u64 {
    let (all, mut kept, mut used, mut measured) = (list.len(), 0, 0, 0);
    list.retain(|element| {
        if kept == most || measured == 2 * most {
            return false;
        }
        measured += 1;
        let length = json(element).len() + 1;
        let has_room = used + length <= bytes;
        if has_room {
            (kept, used) = (kept + 1, used + length);
        }
        has_room
    });
    (all - kept) as u64
}

fn cut(text: &mut String) {
    let mut used = 0;
    let end = text.char_indices().find_map(|(at, character)| {
        used += match character {
            '"' | '\\' => 2,
            control if control.is_control() => 6,
            other => other.len_utf8(),
        };
        (used > TEXT_BYTES).then_some(at)
    });
    if let Some(end) = end {
        text.truncate(end);
        text.push(CUT);
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("the keys of a status are strings")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::last_status::without_daemon;
    use sensor_model::node_state::{NodeState, Standing};
    use sensor_model::record::Actor;
    use sensor_model::status::{ConfigOrigin, ExpectedConfig, OpenGap};

    fn thing(number: usize, argument: &str) -> DriftedThing {
        DriftedThing {
            path: format!("/etc/{number:05}"),
            thing: None,
            differences: Vec::new(),
            since: Timestamp::from_second(1_800_000_000 + i64::try_from(number).unwrap())
                .unwrap()
                .to_string(),
            actor: Some(Actor { argv: vec![argument.to_owned()], ..Actor::default() }),
            source: "99-worker".to_owned(),
            source_kind: None,
            strength: None,
            action: None,
            allowed: false,
        }
    }

    fn read(text: &[u8]) -> NodeStatus {
        serde_json::from_slice(text).unwrap()
    }

    #[test]
    fn a_small_status_is_whole_and_the_newest_drift_is_the_first() {
        let drifted = vec![thing(1, ""), thing(3, ""), thing(2, "")];
        let status = NodeStatus { drifted, ..without_daemon() };
        let text = text(status.clone());
        assert!(!String::from_utf8_lossy(&text).contains("left_out"));
        let paths: Vec<String> = read(&text).drifted.into_iter().map(|thing| thing.path).collect();
        assert_eq!(paths, ["/etc/00003", "/etc/00002", "/etc/00001"]);
    }

    #[test]
    fn a_status_of_many_drifts_keeps_the_newest_and_counts_the_others() {
        for argument in ["", &"\u{1b}".repeat(1024)] {
            let drifted: Vec<_> = (0..20_000).map(|number| thing(number, argument)).collect();
            let text = text(NodeStatus { drifted, ..without_daemon() });
            assert!(text.len() <= STATUS_BYTES, "{}", text.len());
            let status = read(&text);
            assert_eq!(status.drifted[0].path, "/etc/19999");
            assert_eq!(status.drifted.len() as u64 + status.left_out.drifted, 20_000);
            assert!(status.drifted.len() > 100, "{}", status.drifted.len());
        }
    }

    #[test]
    fn every_part_of_a_status_has_a_limit() {
        let long = "\u{1}".repeat(1 << 20);
        let gap = OpenGap { since: String::new(), until: None, reason: "x".repeat(4096), path: None };
        let status = NodeStatus {
            drifted: vec![thing(2, &long), thing(1, "")],
            gaps: vec![gap; 1000],
            sources: vec!["x".repeat(253); 10_000],
            config: Some(ExpectedConfig {
                origin: ConfigOrigin::Service,
                name: Some("x".repeat(1 << 20)),
                digest: "v1:0".to_owned(),
            }),
            config_refused: Some(long.clone()),
            booted_image: Some(BootedImage {
                name: Some(long.clone()),
                digest: Some(long.clone()),
                config: Some(long.clone()),
            }),
            node: Some(Standing {
                state: NodeState::Degraded,
                reason: long.clone(),
                waiting_for: long,
                wait: None,
                since: String::new(),
                apply: None,
            }),
            ..without_daemon()
        };
        let text = text(status);
        assert!(text.len() <= STATUS_BYTES, "{}", text.len());
        let status = read(&text);
        assert_eq!((status.drifted[0].path.as_str(), status.left_out.drifted), ("/etc/00001", 1));
        assert_eq!(status.gaps.len() as u64 + status.left_out.gaps, 1000);
        assert_eq!(status.sources.len() as u64 + status.left_out.sources, 10_000);
        assert!(status.config_refused.unwrap().ends_with(CUT));
        assert!(status.config.unwrap().name.unwrap().ends_with(CUT));
        let booted = status.booted_image.unwrap();
        assert!(booted.digest.unwrap().ends_with(CUT) && booted.config.unwrap().ends_with(CUT));
    }
}
