//! Tests of the deny rules: numbers over reloads and starts, and the actors that are allowed meanwhile.

use super::*;
use crate::agent::rule_numbers::HOLDFAST_ONLY;
use crate::observation::worker::tests::directory;
use sensor_model::absent::absent_paths;
use sensor_model::closed::HostDirectories;
use sensor_model::drift_policy::DriftPolicyFile;

fn policy(rules: &[(&str, &str)]) -> DriftPolicy {
    let rules: Vec<_> = rules
        .iter()
        .map(|(path, user)| {
            serde_json::json!({ "path": path, "action": "deny", "allowedActors": { "users": [user] } })
        })
        .collect();
    policy_of(&rules)
}

fn policy_of(rules: &[serde_json::Value]) -> DriftPolicy {
    let file = serde_json::json!({
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "DriftPolicy",
        "metadata": { "name": "test" },
        "spec": { "rules": rules },
    });
    let file = DriftPolicyFile::parse("test", file.to_string().as_bytes()).unwrap();
    DriftPolicy::merge(&[file]).unwrap()
}

#[test]
fn a_rule_keeps_its_number_over_a_reload_and_no_other_gets_it() {
    let things = [directory("/a"), directory("/b")];
    let before = DenyRules::default().renewed(&policy(&[("/a", "root"), ("/b", "alice")]), &things);
    assert_eq!([before.rule_of(ThingId(0)), before.rule_of(ThingId(1))], [Some(1), Some(2)]);
    // The first rule is gone, and the things have another order.
    let things = [directory("/b"), directory("/a")];
    let after = before.renewed(&policy(&[("/a", "bob"), ("/b", "alice")]), &things);
    assert_eq!([after.rule_of(ThingId(0)), after.rule_of(ThingId(1))], [Some(2), Some(3)]);
}

#[test]
fn actors_of_earlier_rules_stay_allowed_until_all_things_are_enrolled() {
    let written = Allowances::from([(entry(1, ALLOWED_LOGIN, 1000), ALLOWED_ALL)]);
    let mut deny = DenyRules { written: written.clone(), ..DenyRules::default() };
    deny.keep_earlier(None).unwrap();
    let wanted = Allowances::from([(entry(2, ALLOWED_LOGIN, 0), ALLOWED_ALL)]);
    let both = deny.in_transition(wanted.clone());
    assert!(written.iter().all(|(entry, bits)| both.get(entry) == Some(bits)), "{both:?}");
    deny.drop_earlier();
    assert_eq!(deny.in_transition(wanted.clone()), wanted);
}

#[test]
fn an_actor_has_all_bits_of_two_rules_only_if_both_allow_it() {
    let things = [directory("/a"), directory("/b")];
    let deny = DenyRules::default().renewed(&policy(&[("/a", "root"), ("/b", "alice")]), &things);
    let set = deny.numbers().of_all(&BTreeSet::from([1, 2])).unwrap();
    let (by_both, by_second) = (entry(0, ALLOWED_LOGIN, 0), entry(0, ALLOWED_LOGIN, 5));
    let by_first = Allowed { dev: 1, generation: 3, ..entry(0, ALLOWED_EXE, 7) };
    let of = |rule, actor: Allowed| Allowed { rule, ..actor };
    let mut wanted: Allowances =
        [of(1, by_both), of(1, by_first), of(2, by_both), of(2, by_second)].map(|e| (e, ALLOWED_ALL)).into();
    deny.add_sets(&mut wanted);
    assert_eq!(wanted[&of(set, by_both)], ALLOWED_ALL);
    for one in [by_first, by_second] {
        assert_ne!(wanted[&of(set, one)], ALLOWED_ALL, "{one:?}");
    }
    // One rule may allow a process by its program, and the other by its login.
    assert_eq!(wanted[&of(set, by_first)] | wanted[&of(set, by_second)], ALLOWED_ALL);
    let before = wanted.clone();
    deny.add_sets(&mut wanted);
    assert_eq!(wanted, before, "a second call changes nothing");
}

#[test]
fn a_group_that_a_user_made_below_their_own_is_no_allowed_unit_or_pod() {
    const POD: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
    let rule = serde_json::json!({
        "path": "/a", "action": "deny", "allowedActors": { "units": ["allowed.service"], "pods": [POD] },
    });
    let deny = DenyRules::default().renewed(&policy_of(&[rule]), &[directory("/a")]);
    let pod = format!("kubepods.slice/kubepods-pod{}.slice", POD.replace('-', "_"));
    for allowed in ["/system.slice/allowed.service", &format!("/{pod}/crio-conmon-x.scope")] {
        assert_eq!(deny.allowing(allowed), [1], "{allowed}");
    }
    for top in ["/user.slice/user-1000.slice/user@1000.service", "/system.slice/web.service", "/user/alice/0"]
    {
        for made in ["app.slice/allowed.service", "allowed.service", &pod, &format!("kubepods/pod{POD}")] {
            assert!(deny.allowing(&format!("{top}/{made}")).is_empty(), "{top}/{made}");
        }
    }
}

#[test]
fn groups_below_a_unit_or_container_that_no_rule_allows_are_not_visited() {
    const POD: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
    const OTHER: &str = "3c6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
    let rule = serde_json::json!({
        "path": "/a", "action": "deny", "allowedActors": { "units": ["allowed.service"], "pods": [POD] },
    });
    let deny = DenyRules::default().renewed(&policy_of(&[rule]), &[directory("/a")]);
    let pod = |uid: &str| format!("kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_"));
    let container = format!("cri-containerd-{}.scope", "0a".repeat(32));
    let (allowed, other) = (pod(POD), pod(OTHER));
    let visited = [
        "system.slice/allowed.service/sub/below",
        &format!("{allowed}/{container}/below"),
        &format!("{other}/{container}"),
        "user.slice/user-1000.slice/user@1000.service",
    ];
    let not_visited = [
        "user.slice/user-1000.slice/user@1000.service/allowed.service",
        &format!("{other}/{container}/below"),
        &format!("system.slice/web.service/{allowed}"),
    ];
    let tree = tempfile::tempdir().unwrap();
    for path in visited.iter().chain(&not_visited) {
        fs::create_dir_all(tree.path().join(path)).unwrap();
    }
    let found: Vec<_> = cgroups(tree.path(), |path| deny.may_be_allowed_below(path))
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    let has = |path: &&str| found.contains(&format!("/{path}"));
    assert!(visited.iter().all(has) && !not_visited.iter().any(has), "{found:?}");
}

#[test]
fn a_set_of_rules_keeps_its_number_over_a_reload() {
    let things = [directory("/a"), directory("/b")];
    let policy = policy(&[("/a", "root"), ("/b", "alice")]);
    let before = DenyRules::default().renewed(&policy, &things);
    let both = before.numbers().of_all(&BTreeSet::from([1, 2]));
    let after = before.renewed(&policy, &things);
    assert_eq!(after.numbers().of_all(&BTreeSet::from([1, 2])), both);
}

/// The actors that the daemon would allow by a rule each: one login for each rule in use, and for each set of rules.
fn actors(deny: &DenyRules) -> Allowances {
    let logins = deny.used().into_iter().map(|(number, rule)| {
        let uid = rule.allowed_actors.users.iter().map(String::len).sum::<usize>();
        (entry(number, ALLOWED_LOGIN, uid as u64), ALLOWED_ALL)
    });
    let mut actors: Allowances = logins.collect();
    deny.add_sets(&mut actors);
    actors
}

/// The numbers in the maps once the daemon has enrolled two things and the directory above both.
fn numbers(deny: &DenyRules) -> BTreeSet<u32> {
    let rules: BTreeSet<u32> = deny.things.values().copied().collect();
    let both = deny.numbers().of_all(&rules);
    rules.into_iter().chain(both).collect()
}

const HOLDFAST: Allowed = Allowed { dev: 7, ..entry(0, ALLOWED_PROCESS, 3) };

#[test]
fn until_all_things_are_enrolled_after_a_start_an_earlier_number_allows_the_earlier_actors_alone() {
    let things = [directory("/a"), directory("/b")];
    let before = DenyRules::default().renewed(&policy(&[("/b", "eve")]), &things);
    assert_eq!(before.rule_of(ThingId(1)), Some(1));
    let (of_eve, dead) = (actors(&before), Allowed { dev: 9, ..HOLDFAST });
    let mut left = of_eve.clone();
    left.insert(dead, ALLOWED_ALL);
    let earlier = EarlierRules { numbers: numbers(&before), actors: left };
    // A rule for an earlier path. Without the earlier numbers it would be the first.
    let policy = policy(&[("/a", "mallory"), ("/b", "eve")]);
    let mut after = DenyRules::after(earlier).renewed(&policy, &things);
    after.keep_earlier(None).unwrap();
    let both = after.numbers().of_all(&after.things.values().copied().collect()).unwrap();
    assert!(numbers(&after).is_disjoint(&numbers(&before)), "{after:?}");
    let wanted = actors(&after);
    assert!(wanted.keys().any(|actor| actor.rule == both), "{wanted:?}");
    let written = after.in_transition(wanted.clone());
    let of_first: Allowances =
        written.iter().filter(|(actor, _)| actor.rule == 1).map(|(a, b)| (*a, *b)).collect();
    assert_eq!(of_first, of_eve);
    assert!(wanted.iter().all(|(actor, bits)| written.get(actor) == Some(bits)), "{written:?}");
    assert!(!written.contains_key(&dead), "an earlier daemon's process of Holdfast");
    after.drop_earlier();
    assert_eq!(after.in_transition(wanted.clone()), wanted);
}

#[test]
fn many_starts_leave_numbers_for_each_rule_and_each_set() {
    let things = [directory("/a"), directory("/b")];
    let policy = policy(&[("/a", "root"), ("/b", "alice")]);
    let mut left = EarlierRules::default();
    for start in 0..3 * HOLDFAST_ONLY {
        let earlier = left.numbers.clone();
        let deny = DenyRules::after(left).renewed(&policy, &things);
        let now = numbers(&deny);
        assert_eq!(now.len(), 3);
        assert!(now.is_disjoint(&earlier) && !now.contains(&HOLDFAST_ONLY), "start {start}: {now:?}");
        assert!(!deny.numbers().are_many(), "start {start}");
        left = EarlierRules { actors: actors(&deny), numbers: now };
    }
}

#[test]
fn with_too_many_earlier_numbers_only_holdfast_is_allowed_until_all_things_are_enrolled() {
    let earlier = EarlierRules {
        numbers: (1..HOLDFAST_ONLY).collect(),
        actors: [(entry(1, ALLOWED_LOGIN, 1000), ALLOWED_ALL)].into(),
    };
    let mut deny = DenyRules::after(earlier).renewed(&policy(&[("/a", "root")]), &[directory("/a")]);
    deny.keep_earlier(None).unwrap();
    let mut wanted = actors(&deny);
    wanted.insert(HOLDFAST, ALLOWED_ALL);
    assert_eq!(wanted.len(), 2);
    assert_eq!(deny.in_transition(wanted.clone()), Allowances::from([(HOLDFAST, ALLOWED_ALL)]));
    deny.drop_earlier();
    assert_eq!(deny.in_transition(wanted.clone()), wanted);
}

#[test]
fn a_rule_protects_the_path_where_nothing_may_be_and_is_another_one_than_that_of_a_declared_object_there() {
    let actors = |user: &str| serde_json::json!({ "users": [user] });
    let policy = policy_of(&[
        serde_json::json!({ "path": "/a", "action": "deny", "absent": true, "allowedActors": actors("eve") }),
        serde_json::json!({ "path": "/a", "action": "deny", "allowedActors": actors("bob") }),
    ]);
    let absent = absent_paths(&[], &[], &policy, &HostDirectories::default());
    let things = [absent[0].clone(), directory("/a")];
    let deny = DenyRules::default().renewed(&policy, &things);
    let [absent, declared] = [0, 1].map(|thing| deny.rule_of(ThingId(thing)).unwrap());
    assert_ne!(absent, declared);
}
