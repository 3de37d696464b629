//! Records that are written and read, and journals that were cut or changed.

use super::{
    codec::*,
    machine::{Machine, MachineAnswer, MachineEnd, MachineRequest},
    target_edit::{Side, TargetState},
    *,
};
use crate::{
    changes::ChangeOperation,
    waiting::{Waiting, WaitingArgument},
};
use proptest::prelude::*;

fn begin() -> Begin {
    let file = |mode| {
        PathState::File(FileState {
            metadata: Metadata {
                mode,
                uid: 0,
                gid: 0,
                xattrs: [("user.a".to_owned(), "00ff".to_owned())].into(),
            },
            sha256: "ab".repeat(32),
            size: 3,
            modified_ns: Some(17),
            hard: None,
            names: 0,
        })
    };
    Begin {
        id: 7,
        previous: Some(6),
        rollback_to: None,
        time: "2026-01-01T00:00:00Z".to_owned(),
        boot: Boot::of_kernel("b"),
        old: "o".to_owned(),
        new: "n".to_owned(),
        targets: vec![
            Target { path: "/etc/a".into(), before: file(0o600), after: file(0o644) },
            Target {
                path: "/etc/l".into(),
                before: PathState::Absent,
                after: PathState::Link(LinkState { target: "/dev/null".into(), uid: 0, gid: 0, label: None }),
            },
        ],
        unmanaged: vec!["/etc/l".into()],
        matching: Vec::new(),
        shipped: Vec::new(),
        released: Vec::new(),
        units: vec!["a.service".to_owned()],
        overwritten: Vec::new(),
        os: None,
        acts: vec![Act {
            kind: Action::Reload,
            unit: Some("a.service".to_owned()),
            timeout_s: 90,
            fallback: Fallback::Rollback,
            because: vec!["/etc/a".to_owned()],
            masked: false,
        }],
        reboot: true,
        beside_mco: false,
    }
}

fn records() -> Vec<JournalRecord> {
    vec![
        JournalRecord::Begin(Box::new(begin())),
        JournalRecord::Written,
        JournalRecord::Started { act: 0 },
        JournalRecord::Finished { act: 0 },
        JournalRecord::RebootRequested { boot: Boot::of_kernel("b") },
        JournalRecord::RollingBack { reason: "it differs".to_owned() },
        JournalRecord::ReturnRequested { boot: Boot::of_kernel("c") },
        JournalRecord::RolledBack { problems: vec!["left".to_owned()], left: vec!["/etc/a".to_owned()] },
    ]
}

fn text(records: &[JournalRecord]) -> Vec<u8> {
    let mut text = String::new();
    let mut digest = String::new();
    for record in records {
        let (line, next) = line(&digest, record).unwrap();
        text.push_str(&line);
        digest = next;
    }
    text.into_bytes()
}

#[test]
fn records_that_are_written_and_read_are_the_same() {
    let bytes = text(&records());
    let parsed = parse(&bytes).unwrap();
    assert_eq!((parsed.records, parsed.sound, parsed.torn), (records(), bytes.len(), 0));
    assert_eq!(parsed.begin, begin());
}

#[test]
fn a_rolled_back_record_of_an_older_version_has_the_left_paths_in_its_problems() {
    let older =
        r#"{"record":"rolled-back","problems":["/a: left as somebody else wrote it","/b: it stays"]}"#;
    let records = [records()[0].clone(), serde_json::from_str(older).unwrap()];
    let machine = Machine::resume(&begin(), &records, &Boot::of_kernel("b"));
    assert_eq!(machine.left(), ["/a"]);
    assert_eq!(machine.problems().len(), 2);
}

#[test]
fn a_changed_line_before_the_end_is_an_error_with_its_number() {
    let mut bytes = text(&records());
    let second = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 70;
    bytes[second] ^= 1;
    assert_eq!(parse(&bytes).unwrap_err().line, 2);
}

#[test]
fn records_in_an_impossible_order_are_refused() {
    let impossible = [
        vec![JournalRecord::Written],
        vec![records()[0].clone(), records()[0].clone()],
        vec![records()[0].clone(), JournalRecord::Done],
        vec![
            records()[0].clone(),
            JournalRecord::Written,
            JournalRecord::ReturnRequested { boot: Boot::of_kernel("b") },
        ],
        vec![records()[0].clone(), JournalRecord::Written, JournalRecord::Finished { act: 0 }],
        vec![
            records()[0].clone(),
            JournalRecord::RolledBack { problems: Vec::new(), left: Vec::new() },
            JournalRecord::Done,
        ],
    ];
    for records in impossible {
        // The last line is complete, so it is not taken for a cut one.
        assert!(parse(&text(&records)).is_err(), "{records:?}");
    }
}

#[test]
fn a_journal_cannot_lead_out_of_the_root_or_the_store() {
    for (path, sha256) in
        [("/etc/../x", "ab".repeat(32)), ("etc", "ab".repeat(32)), ("/etc/a", "../x".to_owned())]
    {
        let mut begin = begin();
        begin.targets[0].path = path.into();
        if let PathState::File(file) = &mut begin.targets[0].after {
            file.sha256 = sha256;
        }
        let bytes = text(&[JournalRecord::Begin(Box::new(begin)), JournalRecord::Written]);
        assert!(parse(&bytes).is_err(), "{path}");
    }
}

#[test]
fn attributes_that_the_kernel_writes_are_compared_only_if_the_image_has_them() {
    let seen =
        Metadata { xattrs: [("security.selinux".to_owned(), "aa".to_owned())].into(), ..Metadata::default() };
    let wanted = PathState::Directory(Metadata::default());
    assert!(wanted.is(&PathState::Directory(seen.clone())));
    let mut other = seen.clone();
    other.xattrs.insert("user.x".to_owned(), "00".to_owned());
    assert!(!wanted.is(&PathState::Directory(other)));
    let named = PathState::Directory(seen);
    assert!(!named.is(&PathState::Directory(Metadata::default())));
}

#[test]
fn a_changed_first_line_is_an_error_and_never_taken_for_an_unfinished_one() {
    let bytes = text(&records()[..1]);
    for at in 0..bytes.len() {
        for change in [1, 0x80, bytes[at]].into_iter().filter(|change| *change != 0) {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert_eq!(parse(&changed).map_err(|error| error.line), Err(1), "byte {at}");
        }
        assert_eq!(parse(&bytes[..at]).map_err(|error| error.line), Err(1), "cut at {at}");
    }
}

#[test]
fn a_last_line_without_its_end_or_with_an_unwritten_block_is_unfinished_and_any_other_is_changed() {
    let bytes = text(&records()[..2]);
    let first = text(&records()[..1]).len();
    for at in first..bytes.len() - 1 {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert_eq!(parse(&changed).map_err(|error| error.line), Err(2), "byte {at}");
        changed[at] = 0;
        assert_eq!(parse(&changed).map(|parsed| parsed.records.len()), Ok(1), "byte {at}");
    }
}

#[test]
fn a_half_done_change_of_a_directory_differs_from_that_of_another_process() {
    let state = |mode, uid, xattrs: &[(&str, &str)]| {
        let xattrs = xattrs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        PathState::Directory(Metadata { mode, uid, gid: 0, xattrs })
    };
    let target = Target {
        path: "/etc/app".into(),
        before: state(0o755, 0, &[("user.a", "00")]),
        after: state(0o750, 7, &[]),
    };
    let label = ("security.selinux", "aa");
    for ours in [
        state(0o755, 0, &[("user.a", "00")]),
        state(0o755, 7, &[("user.a", "00"), label]),
        state(0o755, 7, &[]),
        state(0o750, 7, &[label]),
    ] {
        assert!(target.is_between(&ours), "{ours:?}");
    }
    for others in [
        state(0o700, 7, &[]),
        state(0o755, 8, &[]),
        state(0o755, 7, &[("user.a", "01")]),
        state(0o755, 7, &[("user.x", "")]),
        PathState::Absent,
    ] {
        assert!(!target.is_between(&others), "{others:?}");
    }
}

/// Answers requests until the machine ends. `fails` returns the failure of a request, if it is to fail.
fn run_to_end(machine: &mut Machine, fails: impl Fn(&MachineRequest) -> Option<MachineAnswer>) -> MachineEnd {
    while let Some(request) = machine.next() {
        let seen =
            |path| MachineAnswer::Observed(TargetState { path: Some(path), between: false, temporary: None });
        let outcome = fails(&request).unwrap_or_else(|| match request {
            MachineRequest::Observe(_) if machine.is_going_back() => seen(Side::Before),
            MachineRequest::Observe(_) => seen(Side::After),
            _ => MachineAnswer::Done,
        });
        machine.answer(outcome);
    }
    machine.end().cloned().unwrap()
}

#[test]
fn a_halted_machine_reports_the_first_reason_first_and_later_problems_after_it() {
    let failed = |reason: &str| Some(MachineAnswer::Failed(reason.to_owned()));
    let broken = |reason: &str| Some(MachineAnswer::Broken(reason.to_owned()));
    for last in [failed("EIO"), broken("EIO")] {
        let mut machine = Machine::new(&begin(), &Boot::of_kernel("b"));
        let rest = run_to_end(&mut machine, |request| match request {
            MachineRequest::Act(_) => failed("reload failed"),
            MachineRequest::Undo(_) => failed("and again"),
            MachineRequest::Append(JournalRecord::RolledBack { .. }) => last.clone(),
            _ => None,
        });
        assert_eq!(rest, MachineEnd::Halted("reload failed; and again; EIO".to_owned()));
    }
    for (fails, reason) in [
        (
            MachineRequest::Append(JournalRecord::RollingBack { reason: "reload failed".to_owned() }),
            "the rollback could not begin: EIO",
        ),
        (MachineRequest::Observe(0), "not everything could be restored: EIO"),
        (MachineRequest::Commit(ApplyEnd::RolledBack), "EIO"),
        (MachineRequest::Close, "EIO"),
    ] {
        let mut machine = Machine::new(&begin(), &Boot::of_kernel("b"));
        let turned = std::cell::Cell::new(false);
        let rest = run_to_end(&mut machine, |request| match request {
            MachineRequest::Act(_) => {
                turned.set(true);
                failed("reload failed")
            }
            request if turned.get() && *request == fails => failed("EIO"),
            _ => None,
        });
        assert_eq!(rest, MachineEnd::Halted(format!("reload failed; {reason}")), "{fails:?}");
    }
}

#[test]
fn a_skipped_action_does_not_stop_the_apply_and_is_among_the_problems() {
    let mut machine = Machine::new(&Begin { reboot: false, ..begin() }, &Boot::of_kernel("b"));
    let rest = run_to_end(&mut machine, |request| {
        matches!(request, MachineRequest::Act(_))
            .then(|| MachineAnswer::Skipped("skipped: masked".to_owned()))
    });
    assert_eq!(rest, MachineEnd::Closed(ApplyEnd::Done));
    assert_eq!(machine.problems(), ["skipped: masked"]);
}

#[test]
fn the_failure_that_leads_to_a_reboot_is_one_of_the_problems() {
    let mut begin = Begin { reboot: false, ..begin() };
    begin.acts.iter_mut().for_each(|act| act.fallback = Fallback::Reboot);
    begin.acts.push(begin.acts[0].clone());
    let mut machine = Machine::new(&begin, &Boot::of_kernel("b"));
    let rest = run_to_end(&mut machine, |request| match request {
        MachineRequest::Act(0) => Some(MachineAnswer::Skipped("skipped: masked".to_owned())),
        MachineRequest::Act(_) => Some(MachineAnswer::Failed("reload failed".to_owned())),
        _ => None,
    });
    assert_eq!(rest, MachineEnd::Rebooting);
    let failure = "reload failed; so the node reboots";
    assert_eq!(
        (machine.failure(), machine.problems()),
        (Some(failure), &["skipped: masked".to_owned(), failure.to_owned()][..])
    );
}

#[test]
fn after_three_reboots_without_the_old_os_the_machine_halts_and_the_journal_stays() {
    let mut begin = begin();
    begin.acts[0] = Act { kind: Action::Os, unit: None, ..begin.acts[0].clone() };
    let mut records = vec![
        JournalRecord::Begin(Box::new(begin.clone())),
        JournalRecord::Written,
        JournalRecord::Started { act: 0 },
        JournalRecord::RollingBack { reason: "first".to_owned() },
    ];
    for boot in ["b", "c", "d"] {
        let mut machine = Machine::resume(&begin, &records, &Boot::of_kernel(boot));
        let rest = run_to_end(&mut machine, |request| match request {
            MachineRequest::VerifyBack => Some(MachineAnswer::Failed("the new OS runs".to_owned())),
            MachineRequest::Undo(_) => Some(MachineAnswer::NeedsReboot),
            _ => None,
        });
        assert_eq!(rest, MachineEnd::Rebooting, "{boot}");
        records.push(JournalRecord::ReturnRequested { boot: Boot::of_kernel(boot) });
        assert!(parse(&text(&records)).is_ok(), "{boot}");
    }
    let mut machine = Machine::resume(&begin, &records, &Boot::of_kernel("e"));
    let lost = |request: &MachineRequest| {
        (*request == MachineRequest::VerifyBack).then(|| MachineAnswer::Failed("the new OS runs".to_owned()))
    };
    let rest = run_to_end(&mut machine, lost);
    assert!(
        matches!(&rest, MachineEnd::Halted(reason) if reason.starts_with("first; the new OS runs")),
        "{rest:?}"
    );
    let mut machine = Machine::resume(&begin, &records, &Boot::of_kernel("e"));
    assert_eq!(run_to_end(&mut machine, |_| None), MachineEnd::Closed(ApplyEnd::RolledBack));
}

#[test]
fn a_rollback_removes_no_kernel_argument_that_the_host_had_and_adds_none_that_it_had_not() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let change = OsChange {
        add_arguments: words("console=ttyS0 nosmt"),
        remove_arguments: words("quiet never=there"),
        booted_arguments: words("root=/dev/vda console=ttyS0 quiet"),
        ..OsChange::default()
    };
    let back = change.reversed();
    assert_eq!((back.remove_arguments, back.add_arguments), (words("nosmt"), words("console=ttyS0 quiet")));
    let unknown = OsChange { booted_arguments: Vec::new(), ..change.clone() }.reversed();
    assert_eq!(
        (unknown.remove_arguments, unknown.add_arguments),
        (change.add_arguments, change.remove_arguments)
    );
}

#[test]
fn a_rollback_restores_the_order_that_the_arguments_had_or_would_have_had() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let change = |booted: &str| OsChange {
        remove_arguments: words("a b"),
        add_arguments: words("b a c"),
        booted_arguments: words(booted),
        ..OsChange::default()
    };
    for (booted, back) in [("a host b", "a b"), ("b rw a", "b a"), ("c a b c", "a b c"), ("b", "b")] {
        assert_eq!(change(booted).reversed().add_arguments, words(back), "{booted}");
    }
    // A change of order waited besides added and removed arguments.
    let waits = |argument: &str, operation| WaitingArgument {
        argument: argument.to_owned(),
        operation,
        policy: String::new(),
    };
    let arguments = vec![
        waits("c", ChangeOperation::Add),
        waits("d", ChangeOperation::Remove),
        waits("b a", ChangeOperation::Change),
    ];
    let waited = Waiting { arguments, ..Waiting::default() };
    let beside = change("a d host b").beside(waited, words("b c a"), words("b c a e"));
    assert_eq!(beside.reversed().add_arguments, words("b c a"));
    assert_eq!((beside.reversed().remove_arguments, beside.gone()), (words("e"), words("b c a d")));
}

proptest! {
    #[test]
    fn a_journal_that_was_cut_anywhere_gives_the_records_before_the_cut(cut in 0..4000_usize) {
        let bytes = text(&records());
        let first = text(&records()[..1]).len();
        let cut = first + cut % (bytes.len() - first + 1);
        let parsed = parse(&bytes[..cut]).unwrap();
        prop_assert_eq!(&parsed.records[..], &records()[..parsed.records.len()]);
        prop_assert_eq!(parsed.sound + parsed.torn, cut);
        prop_assert!(parsed.torn == 0 || !bytes[parsed.sound..cut].contains(&b'\n'));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }
}
