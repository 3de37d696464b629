//! Acts against a system bus that the test itself provides.

pub(in crate::apply) mod played;

use super::*;
use crate::{apply::act_error::UnitFailure, clock::boot_id};
use played::{PlayedHost, Plays};
use sensor_model::journal::{Boot, Fallback, LinkState, PathState, Target};
use tokio::net::UnixListener;

fn begin() -> Begin {
    Begin {
        id: 1,
        previous: None,
        rollback_to: None,
        time: String::new(),
        boot: Boot::of_kernel(&boot_id(Path::new("/proc")).unwrap()),
        old: String::new(),
        new: String::new(),
        targets: Vec::new(),
        unmanaged: Vec::new(),
        matching: Vec::new(),
        shipped: Vec::new(),
        released: Vec::new(),
        units: Vec::new(),
        overwritten: Vec::new(),
        os: None,
        acts: Vec::new(),
        reboot: false,
        beside_mco: false,
    }
}

fn act(kind: Action, unit: &str, timeout_s: u64) -> Act {
    let unit = Some(unit.to_owned()).filter(|unit| !unit.is_empty());
    Act { kind, unit, timeout_s, fallback: Fallback::Reboot, because: Vec::new(), masked: false }
}

#[tokio::test]
async fn a_restart_succeeds_if_the_unit_keeps_running() {
    let host = PlayedHost::new(Plays::Well);
    assert_eq!(host.failure(&act(Action::Restart, "there.service", 30), &begin()).await, "");
    assert_eq!(host.failure(&act(Action::DaemonReload, "", 30), &begin()).await, "");
}

#[tokio::test]
async fn a_missing_unit_is_a_failure_unless_the_apply_removes_it() {
    let host = PlayedHost::new(Plays::Well);
    let restart = act(Action::Restart, "chronyd.servce", 30);
    assert_eq!(host.failure(&restart, &begin()).await, "restart chronyd.servce: there is no such unit");
    let gone = Begin { units: vec!["gone.service".to_owned(), "gone@.service".to_owned()], ..begin() };
    for unit in ["gone.service", "gone@1.service"] {
        assert_eq!(host.failure(&act(Action::Restart, unit, 30), &gone).await, "", "{unit}");
    }
}

#[tokio::test]
async fn only_a_running_unit_is_reloaded_and_a_failed_unit_is_a_failure() {
    let reload = act(Action::Reload, "there.service", 30);
    let refused = "reload there.service: the unit has failed, so there is nothing to reload";
    for (plays, wanted, called) in [
        (Plays::RunningUnits, "", &["reload"][..]),
        (Plays::Well, "", &[]),
        (Plays::FailedUnits, refused, &[]),
    ] {
        let host = PlayedHost::new(plays);
        assert_eq!(host.failure(&reload, &begin()).await, wanted, "{plays:?}");
        assert_eq!(*host.called.lock().unwrap(), called, "{plays:?}");
    }
}

#[tokio::test]
async fn for_reload_or_restart_systemd_decides_whether_the_unit_can_reload() {
    let either = act(Action::ReloadOrRestart, "there.service", 30);
    for plays in [Plays::RunningUnits, Plays::Well, Plays::FailedUnits] {
        let host = PlayedHost::new(plays);
        let _ = host.acted(&either, &begin()).await;
        assert_eq!(*host.called.lock().unwrap(), ["reload-or-restart"], "{plays:?}");
    }
    let host = PlayedHost::new(Plays::DyingUnits);
    let wanted = "reload-or-restart there.service: the unit failed";
    assert_eq!(host.failure(&either, &begin()).await, wanted, "its state is read as after a restart");
}

#[tokio::test]
async fn a_running_unit_that_the_apply_removes_is_stopped() {
    let gone = Begin { units: vec!["gone.service".to_owned()], ..begin() };
    for kind in [Action::Reload, Action::ReloadOrRestart, Action::Restart] {
        for (plays, called) in
            [(Plays::RunningUnits, &["stop"][..]), (Plays::Well, &[]), (Plays::FailedUnits, &[])]
        {
            let host = PlayedHost::new(plays);
            assert_eq!(host.failure(&act(kind, "gone.service", 30), &gone).await, "", "{plays:?}");
            assert_eq!(*host.called.lock().unwrap(), called, "{plays:?}");
        }
    }
}

#[tokio::test]
async fn a_masked_unit_is_skipped_if_the_config_masks_it_else_a_failure_and_is_never_stopped() {
    for kind in [Action::Reload, Action::ReloadOrRestart, Action::Restart] {
        let host = PlayedHost::new(Plays::RunningUnits);
        let by_config = Act { masked: true, ..act(kind, "masked.service", 30) };
        let Ok(ActResult::Skipped(reason)) = host.acted(&by_config, &begin()).await else {
            panic!("{kind:?}")
        };
        assert!(reason.ends_with(
            "masked.service: skipped: the config masks the unit, and it runs on until it is stopped"
        ));
        let failed = host.failure(&act(kind, "masked.service", 30), &begin()).await;
        assert!(failed.contains("masked.service: the unit is masked, and not by the config"), "{failed}");
        assert_eq!(*host.called.lock().unwrap(), [""; 0], "{kind:?}");
        assert!(host.queued.lock().unwrap().is_empty(), "{kind:?}");
    }
    let host = PlayedHost::new(Plays::Well);
    // systemd has not read its mask yet, and the rollback removes the mask.
    let restart = Act { masked: true, ..act(Action::Restart, "there.service", 30) };
    let Ok(ActResult::Skipped(reason)) = host.acted(&restart, &begin()).await else {
        panic!("it was started")
    };
    assert!(reason.ends_with("skipped: the config masks the unit, and it does not run"), "{reason}");
    assert_eq!(host.systemd().undo(&restart, &begin()).await.unwrap(), UndoResult::Done);
    assert!(host.queued.lock().unwrap().is_empty(), "it was started");
    let reload = act(Action::Reload, "masked.service", 30);
    assert_eq!(host.acted(&reload, &begin()).await.unwrap(), ActResult::Done, "it does not run");
}

#[tokio::test]
async fn a_unit_that_the_rollback_masks_again_is_stopped() {
    let link =
        |target: &str| PathState::Link(LinkState { target: target.into(), uid: 0, gid: 0, label: None });
    let unmasked = Target {
        path: "/etc/systemd/system/masked@.service".into(),
        before: link("/dev/null"),
        after: PathState::Absent,
    };
    let begin = Begin { targets: vec![unmasked], ..begin() };
    let restart = act(Action::Restart, "masked@1.service", 30);
    let host = PlayedHost::new(Plays::RunningUnits);
    assert_eq!(host.systemd().undo(&restart, &begin).await.unwrap(), UndoResult::Done);
    assert_eq!(*host.called.lock().unwrap(), ["stop"]);
    let another = act(Action::Restart, "masked.service", 30);
    host.systemd().undo(&another, &begin).await.unwrap_err();
    assert_eq!(*host.called.lock().unwrap(), ["stop"], "the rollback does not mask it");
}

#[tokio::test]
async fn a_unit_that_fails_a_moment_after_its_start_is_a_failure() {
    for (plays, wanted) in [
        (Plays::DyingUnits, "restart there.service: the unit failed"),
        (
            Plays::RestartingUnits,
            "restart there.service: the unit failed, and systemd starts it again and again",
        ),
    ] {
        let host = PlayedHost::new(plays);
        assert_eq!(host.failure(&act(Action::Restart, "there.service", 30), &begin()).await, wanted);
    }
}

#[tokio::test]
async fn an_act_ends_at_its_limit_if_systemd_never_answers() {
    let host = PlayedHost::new(Plays::Frozen);
    for kind in [Action::DaemonReload, Action::Restart] {
        let unit = if kind == Action::Restart { "there.service" } else { "" };
        assert_ne!(host.failure(&act(kind, unit, 1), &begin()).await, "");
    }
    let mut systemd = host.systemd();
    tokio::time::timeout(Duration::from_mins(1), async {
        systemd.inhibit("a test").await;
        assert!(matches!(systemd.reboot().await, Err(ActError::Reboot(_))));
    })
    .await
    .expect("they have a limit");
    assert_eq!(*host.called.lock().unwrap(), ["inhibit", "reboot"]);
}

#[tokio::test]
async fn the_connection_to_a_silent_bus_has_a_limit() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("run/dbus/system_bus_socket");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _listener = UnixListener::bind(socket).unwrap();
    let connected = bus::connect(root.path(), Duration::from_millis(50));
    let connected = tokio::time::timeout(Duration::from_mins(1), connected).await.expect("it has a limit");
    assert!(matches!(connected.unwrap_err(), SystemdError::BusTimeout(_)));
}

#[tokio::test]
async fn only_systemds_own_result_of_a_job_counts_and_a_flood_of_forged_ones_delays_no_job() {
    let restart = act(Action::Restart, "there.service", 30);
    let host = PlayedHost::new(Plays::WellBesideForger);
    assert_eq!(host.failure(&restart, &begin()).await, "");
    let host = PlayedHost::new(Plays::FailingBesideForger);
    let failed = "restart there.service: the job ended as `failed`";
    assert_eq!(host.failure(&restart, &begin()).await, failed);
}

#[tokio::test]
async fn after_systemd_reconnects_only_signals_of_its_new_connection_count() {
    let host = PlayedHost::new(Plays::ConnectedAnew);
    assert_eq!(host.failure(&act(Action::Restart, "there.service", 30), &begin()).await, "");
}

#[tokio::test]
async fn a_job_that_ended_without_a_result_is_a_failure_before_the_limit() {
    let host = PlayedHost::new(Plays::Forgetful);
    let failure = host.failure(&act(Action::Restart, "there.service", 600), &begin()).await;
    assert_eq!(failure, "restart there.service: the job is over, and systemd did not report its result");
}

#[tokio::test]
async fn a_job_that_exceeds_its_limit_is_cancelled() {
    let host = PlayedHost::new(Plays::Busy);
    let failure = host.failure(&act(Action::Restart, "there.service", 1), &begin()).await;
    assert_eq!(failure, "restart there.service: not done within 1 s");
    assert_eq!(*host.cancelled.lock().unwrap(), [5]);
}

#[tokio::test]
async fn all_calls_go_to_the_bus_of_the_host() {
    let host = PlayedHost::new(Plays::Well);
    assert_eq!(bus::check(host.root.path()), Ok(()));
    let mut systemd = host.systemd();
    systemd.inhibit("a test").await;
    assert!(systemd.inhibitor.is_some());
    systemd.reboot().await.unwrap();
    assert_eq!(*host.called.lock().unwrap(), ["inhibit", "reboot", "released"]);
}

#[tokio::test]
async fn without_a_lock_against_shutdowns_the_reboot_still_works() {
    let host = PlayedHost::new(Plays::Busy);
    let mut systemd = host.systemd();
    systemd.inhibit("a test").await;
    assert!(systemd.inhibitor.is_none());
    systemd.reboot().await.unwrap();
    assert_eq!(*host.called.lock().unwrap(), ["inhibit", "reboot"]);
}

#[tokio::test]
async fn for_a_root_without_a_bus_no_other_bus_is_used() {
    let root = tempfile::tempdir().unwrap();
    let mut systemd = Systemd::new(root.path());
    assert!(matches!(systemd.reboot().await, Err(ActError::Reboot(SystemdError::Socket(_)))));
    systemd.inhibit("a test").await;
    assert!(systemd.inhibitor.is_none());
    assert!(bus::check(root.path()).unwrap_err().to_string().contains("--no-acts"));
}

/// The state of an act's unit after a boot. Reading it may start no unit.
async fn state_after_boot(plays: Plays, act: &Act) -> UnitAfterBoot {
    let host = PlayedHost::new(plays);
    let mut systemd = host.systemd();
    let gone = Begin { units: vec!["gone.service".to_owned()], ..begin() };
    let state = tokio::time::timeout(Duration::from_mins(1), systemd.unit_after_boot(act, &gone));
    let state = state.await.expect("it has a limit").unwrap();
    assert!(host.queued.lock().unwrap().is_empty(), "a job was queued");
    state
}

#[tokio::test]
async fn after_a_boot_a_units_state_is_read_when_its_job_has_begun_and_the_unit_is_never_started() {
    let restart = |unit| act(Action::Restart, unit, 1);
    for (plays, unit, wanted) in [
        (Plays::Booting, "there.service", UnitAfterBoot::Settled),
        (Plays::BootingInVain, "there.service", UnitAfterBoot::Failed(UnitFailure::Failed)),
        (Plays::RestartingUnits, "there.service", UnitAfterBoot::Failed(UnitFailure::Restarting)),
        // No boot starts it.
        (Plays::Well, "there.service", UnitAfterBoot::Settled),
        (Plays::Well, "nowhere.service", UnitAfterBoot::Failed(UnitFailure::Missing)),
        (Plays::Well, "gone.service", UnitAfterBoot::Settled),
    ] {
        assert_eq!(state_after_boot(plays, &restart(unit)).await, wanted, "{plays:?} {unit}");
    }
    let reload = act(Action::DaemonReload, "", 1);
    assert_eq!(state_after_boot(Plays::BootingInVain, &reload).await, UnitAfterBoot::Settled);
}

#[tokio::test]
async fn the_count_of_soft_reboots_is_that_of_systemd_and_missing_if_systemd_does_not_count() {
    for (plays, wanted) in [(Plays::RebootedSoftly, Some(3)), (Plays::Well, None)] {
        let host = PlayedHost::new(plays);
        assert_eq!(host.systemd().soft_reboots().await.unwrap(), wanted, "{plays:?}");
    }
    // If systemd does not answer, the count is an error and not `None`.
    for plays in [Plays::Busy, Plays::Frozen] {
        let host = PlayedHost::new(plays);
        let mut systemd = host.systemd();
        let asked = tokio::time::timeout(Duration::from_mins(1), systemd.soft_reboots());
        assert!(asked.await.expect("it has a limit").is_err(), "{plays:?}");
    }
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Systemd::new(root.path()).soft_reboots().await.unwrap(), None, "a root that does not run");
}
