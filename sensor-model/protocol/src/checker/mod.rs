//! Runs the detection protocol through every interleaving of two writers and a daemon that may die once. The ring has room for
//! one record, and the kernel's hooks are not atomic.
//!
//! The detector is the real one. The kernel, the writers and the verification are models. Where the protocol needs an order of
//! steps, a test breaks that order, and the checker has to find the lost drift.

mod daemon;
mod kernel;
mod writer;

use crate::{Transition, timing::Mutation, verdict::VerdictKind};
use daemon::{Daemon, Fault, Move, THING, VerificationPhase};
use kernel::Kernel;
use stateright::{Checker, HasDiscoveries, Model, Property};
use writer::{
    Choice, Script,
    Script::{HookedWrite, Metadata, Noise, Remove, Replace, ReplaceHeld, Switch, SwitchAndEdit, Write},
    Writer, WriterStep,
};

/// What is checked.
#[derive(Debug, Clone)]
struct DetectionModel {
    /// Which pairs of writers, and how often the daemon may die.
    pairs: Vec<(Script, Script, u8)>,
    /// Pairs of threads of one process.
    threads: Vec<(Script, Script)>,
    fault: Option<Fault>,
}

/// One state of everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    kernel: Kernel,
    writers: [Writer; 2],
    daemon: Daemon,
    /// How often the daemon may still die.
    lives: u8,
    succeeded: bool,
    /// The disk differed at some time.
    differed: bool,
    /// The transition of the last step.
    transition: Option<TransitionKind>,
    /// A drift was reported though the disk had never differed.
    false_alarm: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum TransitionKind {
    Drifted,
    Recovered,
    Touched,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    /// A writer's next step.
    Writer {
        number: u8,
        effect: bool,
    },
    Daemon(Move),
    /// The daemon dies and another one starts. Pinned maps and links stay.
    Death,
}

impl DetectionModel {
    /// Every pair of writers. The longest pairs have no death, to keep the test short.
    fn all() -> Self {
        let scripts = [Noise, Metadata, Replace, Remove, Write, ReplaceHeld];
        let is_long = |script| matches!(script, Write | ReplaceHeld);
        let is_short = |script| matches!(script, Noise | Metadata);
        let mut pairs = Vec::new();
        for (at, first) in scripts.into_iter().enumerate() {
            for &second in &scripts[at..] {
                let long = is_long(first) || is_long(second);
                let deaths = u8::from(!long || is_short(first) || is_short(second));
                pairs.push((first, second, deaths));
            }
        }
        pairs.push((HookedWrite, Noise, 1));
        pairs.extend([Metadata, Replace, Remove, Write, ReplaceHeld].map(|other| (HookedWrite, other, 0)));
        pairs.push((SwitchAndEdit, Noise, 1));
        pairs.extend([Metadata, Remove, Switch].map(|other| (SwitchAndEdit, other, 0)));
        pairs.push((Switch, Replace, 0));
        let threads = vec![(Metadata, Metadata), (Metadata, Remove), (Metadata, Write)];
        Self { pairs, threads, fault: None }
    }

    fn with_fault(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::all() }
    }

    fn verdict(world: &World) -> VerdictKind {
        world.daemon.detector.thing_verdict(THING).map_or(VerdictKind::Unknown, |thing| thing.verdict)
    }

    /// Whether the daemon has nothing left to do, and no hook is running.
    fn is_settled(&self, world: &World) -> bool {
        world.daemon.is_settled(&world.kernel, self.fault) && !world.writers.iter().any(Writer::in_hook)
    }

    fn settled_verdict_is_true(&self, world: &World) -> bool {
        let verdict = Self::verdict(world);
        let is_true = match world.kernel.differs() {
            // A blind daemon does not report compliance: the thing may have changed since the last verification.
            _ if world.daemon.is_blind() => verdict != VerdictKind::Compliant,
            true => verdict == VerdictKind::Drifted,
            false => verdict == VerdictKind::Compliant,
        };
        !self.is_settled(world) || is_true
    }

    /// Whether the daemon alone reaches a state in which it has nothing to do, once the writers have ended. (A verification under
    /// way leads to a state between verifications, which is checked then.)
    fn settles(&self, world: &World) -> bool {
        if world.daemon.phase != VerificationPhase::Idle
            || world.writers.iter().any(|writer| writer.next().is_some())
        {
            return true;
        }
        let mut world = world.clone();
        for _ in 0..100 {
            let Some(step) = world.daemon.moves(&world.kernel, self.fault).first().copied() else {
                return self.is_settled(&world) && self.settled_verdict_is_true(&world);
            };
            world.daemon.step(step, &mut world.kernel, self.fault);
        }
        false
    }
}

impl Model for DetectionModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut worlds = Vec::new();
        let pairs = self.pairs.iter().map(|&(first, second, lives)| (first, second, lives, false));
        let threads = self.threads.iter().map(|&(first, second)| (first, second, 0, true));
        for (first, second, lives, one_process) in pairs.chain(threads) {
            for prepared in [true, false] {
                let mut kernel = Kernel { one_process, ..Kernel::new(prepared) };
                let writers = [Writer::new(first, &mut kernel), Writer::new(second, &mut kernel)];
                let daemon = Daemon::new(&kernel, self.fault);
                worlds.push(World {
                    kernel,
                    writers,
                    daemon,
                    lives,
                    succeeded: false,
                    differed: false,
                    transition: None,
                    false_alarm: false,
                });
            }
        }
        worlds
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (number, writer) in (0..).zip(&world.writers) {
            match writer.next() {
                Some(WriterStep::MaybeEffect) => {
                    actions.extend([true, false].map(|effect| Action::Writer { number, effect }));
                }
                Some(_) => actions.push(Action::Writer { number, effect: true }),
                None => {}
            }
        }
        actions.extend(world.daemon.moves(&world.kernel, self.fault).into_iter().map(Action::Daemon));
        // While the hooks are off another daemon would use another backend.
        if world.lives > 0 && !world.kernel.switch.off {
            actions.push(Action::Death);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        world.transition = None;
        match action {
            Action::Writer { number, effect } => {
                let choice = Choice {
                    effect,
                    rw_hook: world.daemon.detector.needs_rw_hook(),
                    open_counts_late: self.fault == Some(Fault::OpenCountsLate),
                };
                if !world.writers[usize::from(number)].step(number, choice, &mut world.kernel) {
                    return None;
                }
                world.differed |= world.kernel.differs();
            }
            Action::Daemon(step) => {
                for transition in world.daemon.step(step, &mut world.kernel, self.fault) {
                    world.transition = match transition {
                        Transition::Drifted { .. } => Some(TransitionKind::Drifted),
                        Transition::Recovered { .. } => Some(TransitionKind::Recovered),
                        Transition::Touched { .. } => Some(TransitionKind::Touched),
                        Transition::GapOpened(_) | Transition::GapClosed(_) => None,
                    };
                    world.false_alarm |= world.transition == Some(TransitionKind::Drifted) && !world.differed;
                }
            }
            Action::Death => {
                world.lives -= 1;
                world.succeeded = true;
                world.daemon = Daemon::new(&world.kernel, self.fault);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TRUE_VERDICT, Self::settled_verdict_is_true),
            Property::always("no drift is reported of a disk that never differed", |_, world: &World| {
                !world.false_alarm
            }),
            Property::always("once the writers have ended, the daemon has nothing left to do", Self::settles),
            Property::sometimes("a drift is reported", |_, world: &World| {
                world.transition == Some(TransitionKind::Drifted)
            }),
            Property::sometimes("a recovery is reported", |_, world: &World| {
                world.transition == Some(TransitionKind::Recovered)
            }),
            Property::sometimes("a touch is reported", |_, world: &World| {
                world.transition == Some(TransitionKind::Touched)
            }),
            Property::sometimes("the daemon is blind", |_, world: &World| world.daemon.is_blind()),
            Property::sometimes("a drift that no hook saw is found", |model: &Self, world: &World| {
                let switched = world.writers.iter().any(|writer| writer.is(SwitchAndEdit));
                switched && model.is_settled(world) && Self::verdict(world) == VerdictKind::Drifted
            }),
            Property::sometimes("a record is lost", |_, world: &World| world.kernel.lost),
            Property::sometimes("a successor ends with a drift", |model: &Self, world: &World| {
                world.succeeded && model.is_settled(world) && Self::verdict(world) == VerdictKind::Drifted
            }),
        ]
    }
}

const TRUE_VERDICT: &str = "a verdict that no further step changes matches the disk";

/// Runs until a verdict is wrong. Returns the actions up to that state.
fn find_wrong_verdict(fault: Fault) -> Vec<Action> {
    let protocol = DetectionModel::with_fault(fault);
    let checker =
        protocol.checker().finish_when(HasDiscoveries::AllOf([TRUE_VERDICT].into())).spawn_dfs().join();
    let path = checker.discovery(TRUE_VERDICT).unwrap_or_else(|| panic!("{fault:?} breaks nothing"));
    path.into_actions()
}

#[test]
fn no_interleaving_ends_in_a_wrong_verdict() {
    // One thread that goes into the depth needs a third of the processor time of two that go into the breadth: it keeps few states.
    let checker = DetectionModel::all().checker().spawn_dfs().join();
    println!("{} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

#[test]
fn without_the_second_read_of_the_counter_a_drift_is_lost() {
    let path = find_wrong_verdict(Fault::Detector(Mutation::IgnoreSecondRead));
    assert!(path.iter().any(|action| matches!(action, Action::Daemon(Move::Verify))));
}

#[test]
fn without_the_sweep_after_a_loss_a_drift_is_lost() {
    find_wrong_verdict(Fault::Detector(Mutation::SkipSweep));
}

#[test]
fn a_sweep_by_the_dirty_bit_alone_loses_a_drift_if_another_thing_of_the_inode_is_verified() {
    let path = find_wrong_verdict(Fault::SweepOnlyDirty);
    assert!(path.iter().any(|action| matches!(action, Action::Daemon(Move::Sibling(_)))));
}

#[test]
fn every_order_that_the_protocol_needs_matters() {
    for fault in
        [Fault::SkipSecondLookup, Fault::SampleFirst, Fault::LossOnlyAfterDrain, Fault::OpenCountsLate]
    {
        find_wrong_verdict(fault);
    }
}

#[test]
fn a_drift_is_lost_if_a_process_that_can_switch_the_hooks_off_is_ignored() {
    for fault in [Fault::SwitchOnlyRechecked, Fault::OpenSwitchForgotten, Fault::SwitchForgottenAtStart] {
        find_wrong_verdict(fault);
    }
}
