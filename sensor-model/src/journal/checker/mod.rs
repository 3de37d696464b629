//! Runs the machine through every interleaving of its own steps, kills, failing calls, a reboot, and another process that writes
//! or removes a target.
//!
//! The machine and its decisions are the real ones; the disk and the journal are models. A test breaks one rule at a time. The
//! checker has to find a node in neither the old nor the new state, or a lost object of the other process.

mod setting;
mod world;

use super::target_edit::Side;
use super::{machine::MachineEnd, mutation::Mutation};
use setting::{Object, Setting};
use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{OtherProcess, World};

/// What is checked.
#[derive(Debug, Clone)]
struct ApplyModel {
    settings: Vec<Setting>,
    mutation: Option<Mutation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    /// The machine's next request succeeds.
    Go,
    /// The request fails and leaves no effect.
    Fail,
    /// The process dies before it.
    Die,
    /// It dies while it sets a directory's attributes.
    DieHalfWay,
    /// A new process starts.
    Start,
    /// The reboot that was asked for, or a power cut.
    Boot,
    /// The same, but another OS than the expected one boots.
    BootLost,
    /// The other process.
    OtherProcess(usize, OtherProcess),
}

const WHOLE: &str =
    "without a journal the node is all old or all new, its OS too, except for changes of another process";
const KEPT: &str = "an object of another process is at its path, or will be put back there";
const CLEAN: &str = "without a journal no temporary name is left";
const TRUE_END: &str = "done means new, rolled back means old";
const NO_REASON: &str = "a path that an update of the OS overwrote is no reason to roll back";
const ENDS: &str = "without interference the apply ends";

impl Model for ApplyModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        self.settings.iter().map(|setting| World::new(setting, self.mutation)).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        match &world.machine {
            None => {
                actions.push(Action::Start);
                if world.may_lose_power() {
                    actions.push(Action::Boot);
                }
            }
            Some(machine) => match machine.end() {
                None => {
                    actions.push(Action::Go);
                    if world.failures > 0 {
                        actions.push(Action::Fail);
                    }
                    if world.deaths > 0 {
                        actions.push(Action::Die);
                        if world.sets().is_some() {
                            actions.push(Action::DieHalfWay);
                        }
                    }
                }
                Some(MachineEnd::Rebooting) => {
                    actions.push(Action::Boot);
                    if world.os.is_some() {
                        actions.push(Action::BootLost);
                    }
                }
                Some(MachineEnd::Halted(_)) => actions.push(Action::Die),
                Some(MachineEnd::Closed(_)) => {}
            },
        }
        if world.interferences > 0 {
            for slot in 0..world.slots.len() {
                actions.extend(
                    [OtherProcess::Writes, OtherProcess::Removes]
                        .map(|what| Action::OtherProcess(slot, what)),
                );
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Go => world.go(),
            Action::Fail => world.fail(),
            Action::Die => world.die(),
            Action::DieHalfWay => world.die_half_way(),
            Action::Start => world.start(self.mutation),
            Action::Boot => world.boot(false),
            Action::BootLost => world.boot(true),
            Action::OtherProcess(slot, what) => world.other_process(slot, what)?,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WHOLE, |_, world: &World| !world.journal.is_empty() || world.is_whole()),
            Property::always(KEPT, |_, world: &World| {
                world.slots.iter().all(|slot| {
                    !slot.written
                        || slot.path == Object::Foreign
                        || slot.temporary == Some(Object::Foreign) && !world.journal.is_empty()
                })
            }),
            Property::always(CLEAN, |_, world: &World| {
                !world.journal.is_empty() || world.slots.iter().all(|slot| slot.temporary.is_none())
            }),
            Property::always(TRUE_END, |_, world: &World| world.ended_truly()),
            Property::always(NO_REASON, |_, world: &World| !world.differs_by_update),
            Property::always(ENDS, |model: &Self, world: &World| world.comes_to_an_end(model.mutation)),
            Property::sometimes("the apply is done", |_, world: &World| {
                world.is_closed(super::ApplyEnd::Done)
            }),
            Property::sometimes("the apply is done after a death", |_, world: &World| {
                world.is_closed(super::ApplyEnd::Done) && world.died
            }),
            Property::sometimes("the apply is rolled back", |_, world: &World| {
                world.is_closed(super::ApplyEnd::RolledBack)
            }),
            Property::sometimes("an object of another process stays", |_, world: &World| {
                world.is_closed(super::ApplyEnd::RolledBack) && world.slots.iter().any(|slot| slot.written)
            }),
            Property::sometimes("a reboot restores the old OS", |_, world: &World| {
                world.is_closed(super::ApplyEnd::RolledBack)
                    && world.os == Some((Side::Before, Side::Before))
                    && world.boots() == 3
            }),
            Property::sometimes(
                "a later reboot restores an old OS that the first one did not",
                |_, world: &World| world.is_closed(super::ApplyEnd::RolledBack) && world.boots() > 3,
            ),
            Property::sometimes(
                "an old OS that could not be restored at first is restored",
                |_, world: &World| world.is_closed(super::ApplyEnd::RolledBack) && world.undo_failed,
            ),
            Property::sometimes("a unit that failed runs after the reboot", |_, world: &World| {
                world.is_closed(super::ApplyEnd::Done) && world.boots() == 2 && world.act_failed
            }),
            Property::sometimes(
                "a unit that fails after the reboot, too, causes a rollback",
                |_, world: &World| {
                    world.is_closed(super::ApplyEnd::RolledBack) && world.boots() == 2 && world.act_failed
                },
            ),
            Property::sometimes("a directory that was left half-done is restored", |_, world: &World| {
                world.is_closed(super::ApplyEnd::RolledBack) && world.was_half_way
            }),
            Property::sometimes("a path that an update overwrote is written again", |_, world: &World| {
                world.is_closed(super::ApplyEnd::Done) && world.was_taken_back && !world.was_touched()
            }),
            Property::sometimes(
                "a path that an update overwrote is written again before a rollback",
                |_, world: &World| {
                    world.is_closed(super::ApplyEnd::RolledBack)
                        && world.was_taken_back
                        && !world.was_touched()
                },
            ),
            Property::sometimes("the apply does not begin", |_, world: &World| {
                world.is_closed(super::ApplyEnd::Abandoned)
            }),
        ]
    }
}

fn check(settings: Vec<Setting>) {
    let checker = ApplyModel { settings, mutation: None }.checker().spawn_dfs().join();
    println!("{} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Runs until the property is broken.
fn breaks(mutation: Mutation, property: &'static str) {
    let protocol = ApplyModel { settings: Setting::all(), mutation: Some(mutation) };
    let checker = protocol.checker().finish_when(HasDiscoveries::AllOf([property].into())).spawn_dfs().join();
    assert!(checker.discovery(property).is_some(), "{mutation:?} does not break: {property}");
}

#[test]
fn no_kill_failure_or_other_process_leaves_a_node_that_is_neither_old_nor_new() {
    check(Setting::all());
}

#[test]
fn a_target_must_not_be_written_before_its_journal() {
    breaks(Mutation::WriteBeforeBegin, WHOLE);
}

#[test]
fn a_displaced_object_must_be_observed_before_it_is_deleted() {
    breaks(Mutation::DropUnseen, KEPT);
}

#[test]
fn a_journal_must_be_completed_before_it_is_closed() {
    breaks(Mutation::CloseOnResume, WHOLE);
}

#[test]
fn without_verification_done_is_not_always_new() {
    breaks(Mutation::SkipVerify, TRUE_END);
}

#[test]
fn a_rollback_must_be_journalled_before_it_begins() {
    breaks(Mutation::SkipRollingBack, TRUE_END);
}

#[test]
fn steps_without_progress_must_end() {
    breaks(Mutation::StepForEver, ENDS);
}

#[test]
fn a_directory_that_another_process_changed_must_not_pass_for_a_half_done_change() {
    breaks(Mutation::SetWhatIsForeign, KEPT);
}

#[test]
fn an_old_os_is_not_restored_before_it_is_booted() {
    breaks(Mutation::SkipReturn, TRUE_END);
}

#[test]
fn an_os_that_could_not_be_undone_keeps_the_journal() {
    breaks(Mutation::ForgetUndo, WHOLE);
}

#[test]
fn a_reboot_in_place_of_an_action_is_not_done_before_its_unit_is_checked() {
    breaks(Mutation::SkipAwait, TRUE_END);
}

#[test]
fn paths_that_an_update_overwrote_must_be_written_again_before_the_verification() {
    breaks(Mutation::SkipOverwritten, NO_REASON);
}
