//! Recovery of an apply with a journal: the results of the OS and of units, and the rights of the daemon and of a
//! person.

use crate::{
    standing::{engine, run},
    world::World,
};
use holdfast::{
    apply::{
        ActError, ActFuture, ActResult, ActRunner, Applied, Recovered, ResumeLimit, UndoResult,
        UnitAfterBoot, UnitFailure,
    },
    store::note_milestone,
};
use sensor_model::{
    journal::{
        Act, Action, ApplyEnd, Begin, Boot, Fallback, JournalRecord, OsChange, codec, machine::MachineEnd,
    },
    node_state::{Milestone, NodeState},
};
use std::{fs, process::Command};

/// A host with prepared answers, which notes the requests.
#[derive(Default)]
pub(crate) struct PreparedHost {
    pub(crate) asked: Vec<String>,
    /// Why actions fail.
    pub(crate) acts: Option<&'static str>,
    /// Why an undo fails.
    pub(crate) undoes: Option<&'static str>,
    /// The result of a unit after a boot; other units run.
    pub(crate) after_boot: Option<(&'static str, UnitAfterBoot)>,
    /// A unit whose state after a boot cannot be read, and why.
    pub(crate) unreadable: Option<(&'static str, &'static str)>,
    /// The count of soft reboots of its systemd.
    pub(crate) soft_reboots: Option<u32>,
}

fn name(act: &Act) -> String {
    format!("{:?} {}", act.kind, act.unit.as_deref().unwrap_or_default()).trim().to_owned()
}

impl ActRunner for PreparedHost {
    fn act<'a>(&'a mut self, act: &'a Act, _: &'a Begin) -> ActFuture<'a, ActResult> {
        self.asked.push(format!("act {}", name(act)));
        Box::pin(async {
            self.acts.map_or(Ok(ActResult::Done), |reason| Err(ActError::Other(reason.into())))
        })
    }

    fn unit_after_boot<'a>(&'a mut self, act: &'a Act, _: &'a Begin) -> ActFuture<'a, UnitAfterBoot> {
        self.asked.push(format!("look {}", name(act)));
        let is_it = |unit: &str| act.unit.as_deref() == Some(unit);
        let answer = match (&self.unreadable, &self.after_boot) {
            (Some((unit, reason)), _) if is_it(unit) => Err(ActError::Other((*reason).into())),
            (_, Some((unit, state))) if is_it(unit) => Ok(state.clone()),
            _ => Ok(UnitAfterBoot::Settled),
        };
        Box::pin(async { answer })
    }

    fn undo<'a>(&'a mut self, act: &'a Act, _: &'a Begin) -> ActFuture<'a, UndoResult> {
        self.asked.push(format!("undo {}", name(act)));
        Box::pin(async {
            self.undoes.map_or(Ok(UndoResult::Done), |reason| Err(ActError::Other(reason.into())))
        })
    }

    fn is_back(&mut self, _: &OsChange) -> Result<(), ActError> {
        Ok(())
    }

    fn reboot(&mut self) -> ActFuture<'_> {
        self.asked.push("reboot".to_owned());
        Box::pin(async { Ok(()) })
    }

    fn soft_reboots(&mut self) -> ActFuture<'_, Option<u32>> {
        Box::pin(async { Ok(self.soft_reboots) })
    }
}

pub(crate) fn this_boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

pub(crate) fn act(kind: Action, unit: &str, fallback: Fallback) -> Act {
    let unit = Some(unit.to_owned()).filter(|unit| !unit.is_empty());
    Act { kind, unit, timeout_s: 30, fallback, because: Vec::new(), masked: false }
}

/// An apply with the number two that began in a boot, wrote nothing, and has these actions.
pub(crate) fn begin(boot_id: &str, acts: Vec<Act>) -> Begin {
    let os = acts.iter().any(|act| act.kind == Action::Os).then(OsChange::default);
    Begin {
        id: 2,
        previous: Some(1),
        rollback_to: None,
        time: "2026-01-01T00:00:00Z".to_owned(),
        boot: Boot::of_kernel(boot_id),
        old: String::new(),
        new: String::new(),
        targets: Vec::new(),
        unmanaged: Vec::new(),
        matching: Vec::new(),
        shipped: Vec::new(),
        released: Vec::new(),
        units: Vec::new(),
        overwritten: Vec::new(),
        os,
        acts,
        reboot: false,
        beside_mco: false,
    }
}

/// A host with the journal of such an apply: its begin, the record that everything is written, and these records.
pub(crate) fn interrupted(begin: Begin, more: &[JournalRecord]) -> World {
    let world = World::old();
    let generations = world.state().join("apply/generations");
    let copied = Command::new("cp").arg("-a").args([generations.join("1"), generations.join("2")]).status();
    assert!(copied.unwrap().success());
    fs::remove_file(generations.join("2/history.json")).unwrap();
    let records = [JournalRecord::Begin(Box::new(begin)), JournalRecord::Written]
        .into_iter()
        .chain(more.iter().cloned());
    let (mut text, mut digest) = (String::new(), String::new());
    for record in records {
        let (line, next) = codec::line(&digest, &record).unwrap();
        text += &line;
        digest = next;
    }
    fs::write(world.state().join("apply/journal"), text).unwrap();
    let (engine, now) = (engine(&world), jiff::Timestamp::now());
    note_milestone(engine.store(), Milestone::Begun, Some(2), "", "files to be written", now).unwrap();
    world
}

/// The result of the recovery.
pub(crate) fn recover(world: &World, host: &mut PreparedHost, limit: ResumeLimit) -> Applied {
    match run(engine(world).recover(host, limit, &mut |_| {})).unwrap() {
        Recovered::Over(applied) => applied,
        other => panic!("{other:?}"),
    }
}

fn os() -> Vec<Act> {
    vec![act(Action::Os, "", Fallback::Rollback), act(Action::Restart, "a.service", Fallback::Rollback)]
}

fn started(acts: usize) -> Vec<JournalRecord> {
    let done = (0..acts).flat_map(|act| [JournalRecord::Started { act }, JournalRecord::Finished { act }]);
    done.chain([JournalRecord::Started { act: acts }]).collect()
}

fn halted(applied: &Applied) -> &str {
    match &applied.end {
        MachineEnd::Halted(reason) => reason,
        rest => panic!("{rest:?}"),
    }
}

#[test]
fn an_os_that_cannot_be_undone_keeps_the_journal_and_is_tried_again_at_the_next_start() {
    let back = JournalRecord::RollingBack { reason: "restart a.service: it failed".to_owned() };
    let world = interrupted(begin(&this_boot(), os()), &[started(1), vec![back]].concat());
    let mut host = PreparedHost { undoes: Some("the registry is away"), ..PreparedHost::default() };
    for _ in 0..2 {
        let applied = recover(&world, &mut host, ResumeLimit::Unlimited);
        let reason = halted(&applied);
        assert!(reason.starts_with("restart a.service: it failed; "), "{reason}");
        assert!(reason.contains("not everything could be restored: the registry is away"), "{reason}");
        assert!(world.has_journal());
        let standing = engine(&world).store().standing().unwrap().unwrap();
        assert_eq!((standing.state, standing.reason.as_str()), (NodeState::Degraded, reason));
        assert_eq!(std::mem::take(&mut host.asked), ["undo Os", "undo Restart a.service"]);
    }
    let applied = recover(&world, &mut PreparedHost::default(), ResumeLimit::Unlimited);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::RolledBack), "{applied:?}");
    assert!(!world.has_journal());
}

#[test]
fn a_unit_that_fails_during_the_rollback_does_not_keep_the_journal_open() {
    let acts = vec![act(Action::Restart, "a.service", Fallback::Rollback)];
    let back = JournalRecord::RollingBack { reason: "first".to_owned() };
    let world = interrupted(begin(&this_boot(), acts), &[started(0), vec![back]].concat());
    let applied = recover(
        &world,
        &mut PreparedHost { undoes: Some("it failed"), ..PreparedHost::default() },
        ResumeLimit::Unlimited,
    );
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::RolledBack));
    assert_eq!((applied.reason.as_str(), applied.problems), ("first", vec!["it failed".to_owned()]));
}

#[test]
fn the_daemon_restores_files_and_units_and_leaves_the_os_to_a_person() {
    let back = JournalRecord::RollingBack { reason: "first".to_owned() };
    let world = interrupted(begin(&this_boot(), os()), &[started(1), vec![back]].concat());
    let mut host = PreparedHost::default();
    let applied = recover(&world, &mut host, ResumeLimit::NoOsChange);
    assert!(halted(&applied).contains("`holdfast apply --resume`"), "{applied:?}");
    assert_eq!(host.asked, ["undo Restart a.service"]);
    let standing = engine(&world).store().standing().unwrap().unwrap();
    assert_eq!(standing.waiting_for, "`holdfast apply --resume`");
    assert_eq!(standing.state, NodeState::Degraded);
    let applied = recover(&world, &mut host, ResumeLimit::Unlimited);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::RolledBack));
    assert!(host.asked.contains(&"undo Os".to_owned()));
}

#[test]
fn an_interrupted_change_of_the_os_stays_in_the_journal_although_the_daemon_may_not_continue_it() {
    let world = interrupted(begin(&this_boot(), os()), &started(0));
    let mut host = PreparedHost::default();
    let applied = recover(&world, &mut host, ResumeLimit::NoOsChange);
    assert!(halted(&applied).contains("`holdfast apply --resume`"), "{applied:?}");
    assert!(host.asked.is_empty() && world.has_journal(), "{:?}", host.asked);
    let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
    assert_eq!(host.asked, ["act Os", "act Restart a.service"]);
}

fn restarts(fallback: Fallback) -> Vec<Act> {
    ["a.service", "b.service"].map(|unit| act(Action::Restart, unit, fallback)).to_vec()
}

#[test]
fn after_another_boot_units_are_checked_and_not_reloaded_or_restarted() {
    let world = interrupted(begin("another", restarts(Fallback::Rollback)), &started(0));
    let mut host = PreparedHost::default();
    let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
    assert_eq!(host.asked, ["look Restart a.service", "look Restart b.service"]);

    let world = interrupted(begin("another", restarts(Fallback::Rollback)), &started(0));
    let failed = UnitAfterBoot::Failed(UnitFailure::Failed);
    let mut host = PreparedHost { after_boot: Some(("b.service", failed)), ..PreparedHost::default() };
    let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::RolledBack), "{applied:?}");
    assert_eq!(applied.reason, "after the reboot: b.service: the unit failed");
}

/// The first unit failed in another boot, and the node was rebooted as the fallback.
fn rebooted() -> World {
    let failed = JournalRecord::Failed { act: 0, reason: "restart a.service: the unit failed".to_owned() };
    let asked = JournalRecord::RebootRequested { boot: Boot::of_kernel("another") };
    interrupted(begin("another", restarts(Fallback::Reboot)), &[started(0), vec![failed, asked]].concat())
}

#[test]
fn a_reboot_as_a_fallback_succeeds_only_if_its_unit_and_the_later_ones_run() {
    let world = rebooted();
    let mut host = PreparedHost::default();
    let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
    assert_eq!(host.asked, ["look Restart a.service", "look Restart b.service"]);
    assert_eq!(applied.problems, ["restart a.service: the unit failed; so the node reboots"]);

    for unit in ["a.service", "b.service"] {
        let world = rebooted();
        let failed = UnitAfterBoot::Failed(UnitFailure::Failed);
        let mut host = PreparedHost { after_boot: Some((unit, failed)), ..PreparedHost::default() };
        let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
        assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::RolledBack), "{applied:?}");
        assert_eq!(applied.reason, format!("after the reboot: {unit}: the unit failed"));
        // Both units run with the files written before the boot.
        assert!(
            host.asked.ends_with(&["undo Restart a.service", "undo Restart b.service"].map(str::to_owned))
        );
        assert_eq!(world.current().as_deref(), Some("generations/1/config"));
    }

    let world = rebooted();
    let unknown = ("a.service", "a.service: the boot has not come to it");
    let mut host = PreparedHost { unreadable: Some(unknown), ..PreparedHost::default() };
    let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
    assert!(halted(&applied).contains("the boot has not come to it"), "{applied:?}");
    assert!(world.has_journal());
}

#[test]
fn a_failed_action_whose_fallback_is_a_reboot_is_the_reason_for_the_reboot() {
    let world = interrupted(begin(&this_boot(), restarts(Fallback::Reboot)), &[]);
    let mut host =
        PreparedHost { acts: Some("restart a.service: the unit failed"), ..PreparedHost::default() };
    let applied = recover(&world, &mut host, ResumeLimit::Unlimited);
    assert_eq!(applied.end, MachineEnd::Rebooting);
    let why = "restart a.service: the unit failed; so the node reboots";
    assert_eq!((applied.reason.as_str(), applied.rolls_back), (why, false));
    let standing = engine(&world).store().standing().unwrap().unwrap();
    assert_eq!((standing.state, standing.reason.as_str()), (NodeState::Rebooting, why));
    assert_eq!(host.asked, ["act Restart a.service", "reboot"]);
    // A second attempt in the same boot reports the same.
    let applied = recover(&world, &mut host, ResumeLimit::Unlimited);
    assert_eq!((applied.end, applied.reason.as_str()), (MachineEnd::Rebooting, why));
    let standing = engine(&world).store().standing().unwrap().unwrap();
    assert_eq!(standing.state, NodeState::Rebooting);
}

/// This boot, after a number of soft reboots.
fn softly(soft_reboots: Option<u32>) -> Boot {
    Boot { boot_id: this_boot(), soft_reboots, deployment: None }
}

#[test]
fn a_soft_reboot_ends_the_wait_of_an_apply_that_changes_nothing_of_the_os() {
    let failed = JournalRecord::Failed { act: 0, reason: "restart a.service: the unit failed".to_owned() };
    let journal = |asked: Boot| {
        let begin = Begin { boot: asked.clone(), ..begin("", restarts(Fallback::Reboot)) };
        let asked = JournalRecord::RebootRequested { boot: asked };
        interrupted(begin, &[started(0), vec![failed.clone(), asked]].concat())
    };
    let world = journal(softly(Some(1)));
    let mut host = PreparedHost { soft_reboots: Some(2), ..PreparedHost::default() };
    let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
    assert_eq!(host.asked, ["look Restart a.service", "look Restart b.service"]);

    // The same boot, and one with an unknown value.
    for (asked, now) in [(Some(1), Some(1)), (None, Some(2)), (Some(1), None)] {
        let world = journal(softly(asked));
        let mut host = PreparedHost { soft_reboots: now, ..PreparedHost::default() };
        let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
        assert!(halted(&applied).contains("a reboot is needed"), "{applied:?}");
        assert!(host.asked.is_empty() && world.has_journal(), "{:?}", host.asked);
    }
}

#[test]
fn a_soft_reboot_brings_no_other_os_and_the_node_keeps_waiting_and_reports_it() {
    for os in [
        OsChange { add_arguments: vec!["nosmt".to_owned()], ..OsChange::default() },
        OsChange { new_image: Some("b".to_owned()), ..OsChange::default() },
    ] {
        let acts = vec![act(Action::Os, "", Fallback::Rollback)];
        let begin = Begin { boot: softly(Some(0)), os: Some(os), ..begin("", acts) };
        let asked = JournalRecord::RebootRequested { boot: softly(Some(0)) };
        let world =
            interrupted(begin, &[started(0), vec![JournalRecord::Finished { act: 0 }, asked]].concat());
        let mut host = PreparedHost { soft_reboots: Some(1), ..PreparedHost::default() };
        let applied = recover(&world, &mut host, ResumeLimit::NoReboot);
        assert!(halted(&applied).contains("the soft reboot since then has not brought"), "{applied:?}");
        let standing = engine(&world).store().standing().unwrap().unwrap();
        assert!(standing.waiting_for.contains("has not brought the new OS"), "{standing:?}");
        assert_eq!(recover(&world, &mut host, ResumeLimit::Unlimited).end, MachineEnd::Rebooting);
        assert_eq!(host.asked, ["reboot"]);
    }
}
