use super::*;
use proptest::prelude::*;
use std::path::Path;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 25] = [
    ("manifest", manifest),
    ("ignition", ignition),
    ("data_url", data_url),
    ("authorized_keys", authorized_keys),
    ("xattr", xattr),
    ("cgroup", cgroup),
    ("drift_policy", drift_policy),
    ("forensic_log", forensic_log),
    ("journal", journal),
    ("node_disruption", node_disruption),
    ("plan", plan),
    ("registries", registries),
    ("selinux", selinux),
    ("os", os),
    ("mountinfo", mountinfo),
    ("process_stat", process_stat),
    ("accounts", accounts),
    ("install", install),
    ("btf", btf),
    ("fanotify", fanotify),
    ("rpm", rpm),
    ("dpkg", dpkg),
    ("image_layer", image_layer),
    ("image_index", image_index),
    ("image_document", image_document),
];

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// The changes that a fuzzer makes to a seed, a few times.
#[derive(Debug, Clone)]
enum Change {
    Flip(usize, u8),
    Remove(usize, usize),
    Repeat(usize, usize),
    Insert(usize, Vec<u8>),
    Cut(usize),
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Flip(at, byte)),
        (any::<usize>(), 1_usize..40).prop_map(|(at, length)| Change::Remove(at, length)),
        (any::<usize>(), 1_usize..40).prop_map(|(at, length)| Change::Repeat(at, length)),
        (any::<usize>(), proptest::collection::vec(any::<u8>(), 1..6))
            .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (
            any::<usize>(),
            proptest::sample::select(vec![
                "\n", "- ", ": ", "{", "]", "\"", "'", "&a ", "*a", "data:,", "%", "\0", "é", "#"
            ])
        )
            .prop_map(|(at, token)| Change::Insert(at, token.as_bytes().to_vec())),
        any::<usize>().prop_map(Change::Cut),
    ]
}

fn apply(mut data: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let place = |at: usize| at % (data.len() + 1);
        match change {
            Change::Flip(at, byte) if !data.is_empty() => {
                let at = at % data.len();
                data[at] ^= byte;
            }
            Change::Flip(..) => {}
            Change::Remove(at, length) => {
                let at = place(*at);
                data.drain(at..(at + length).min(data.len()));
            }
            Change::Repeat(at, length) => {
                let at = place(*at);
                let part = data[at..(at + length).min(data.len())].to_vec();
                data.splice(at..at, part);
            }
            Change::Insert(at, bytes) => {
                let at = place(*at);
                data.splice(at..at, bytes.iter().copied());
            }
            Change::Cut(at) => data.truncate(place(*at)),
        }
    }
    data
}

#[test]
fn every_target_accepts_its_seeds() {
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name}");
        for seed in seeds {
            target(&seed);
        }
    }
}

#[test]
fn a_log_that_another_program_hashed_is_an_intact_chain() {
    let [log] = &seeds("forensic_log")[..] else { panic!("one seed") };
    let mut chain = crate::chain::Chain::default();
    assert_eq!(crate::chain::verify(&mut chain, &log[..]).unwrap(), Ok(0));
    assert_eq!(chain.entries, 3);
}

#[test]
fn every_target_is_a_fuzz_binary() {
    let manifest = include_str!("../../fuzz/Cargo.toml");
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(512), ..ProptestConfig::default() })]

    #[test]
    fn changed_seeds_hold(
        which: prop::sample::Index,
        changes in proptest::collection::vec(any_change(), 1..6),
    ) {
        for (name, target) in TARGETS {
            let seeds = seeds(name);
            target(&apply(which.get(&seeds).clone(), &changes));
        }
    }

    #[test]
    fn random_bytes_hold(bytes: Vec<u8>, text: String) {
        for (_, target) in TARGETS {
            target(&bytes);
            target(text.as_bytes());
        }
    }
}
