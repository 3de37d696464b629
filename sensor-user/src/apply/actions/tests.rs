//! Acts against a bus that this test plays, at the place of the host's own.

mod played;

use super::*;
use crate::clock::boot_id;
use played::{Host, Plays};
use sensor_model::journal::{Boot, Fallback, Image, LinkImage, Target};
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
        put_again: Vec::new(),
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
async fn a_unit_that_was_restarted_and_stays_is_a_success() {
    let host = Host::new(Plays::Well);
    assert_eq!(host.act(&act(Action::Restart, "there.service", 30), &begin()).await, Ok(()));
    assert_eq!(host.act(&act(Action::DaemonReload, "", 30), &begin()).await, Ok(()));
}

#[tokio::test]
async fn a_unit_that_does_not_exist_is_a_failure_unless_the_apply_takes_it_away() {
    let host = Host::new(Plays::Well);
    let restart = act(Action::Restart, "chronyd.servce", 30);
    let refused = host.act(&restart, &begin()).await;
    assert_eq!(refused, Err("restart chronyd.servce: there is no such unit".to_owned()));
    let gone = Begin { units: vec!["gone.service".to_owned(), "gone@.service".to_owned()], ..begin() };
    for unit in ["gone.service", "gone@1.service"] {
        assert_eq!(host.act(&act(Action::Restart, unit, 30), &gone).await, Ok(()), "{unit}");
    }
}

#[tokio::test]
async fn only_a_unit_that_runs_is_reloaded_and_one_that_had_failed_is_a_failure() {
    let reload = act(Action::Reload, "there.service", 30);
    let refused = "reload there.service: the unit has failed, so there is nothing to reload".to_owned();
    for (plays, wanted, called) in [
        (Plays::RunningUnits, Ok(()), &["reload"][..]),
        (Plays::Well, Ok(()), &[]),
        (Plays::FailedUnits, Err(refused), &[]),
    ] {
        let host = Host::new(plays);
        assert_eq!(host.act(&reload, &begin()).await, wanted, "{plays:?}");
        assert_eq!(*host.called.lock().unwrap(), called, "{plays:?}");
    }
}

#[tokio::test]
async fn whether_a_unit_can_reload_is_left_to_systemd_where_either_will_do() {
    let either = act(Action::ReloadOrRestart, "there.service", 30);
    for plays in [Plays::RunningUnits, Plays::Well, Plays::FailedUnits] {
        let host = Host::new(plays);
        let _ = host.act(&either, &begin()).await;
        assert_eq!(*host.called.lock().unwrap(), ["reload-or-restart"], "{plays:?}");
    }
    let host = Host::new(Plays::DyingUnits);
    let wanted = "reload-or-restart there.service: the unit failed".to_owned();
    assert_eq!(host.act(&either, &begin()).await, Err(wanted), "it is watched as after a restart");
}

#[tokio::test]
async fn a_unit_that_the_apply_takes_away_is_stopped_where_it_runs() {
    let gone = Begin { units: vec!["gone.service".to_owned()], ..begin() };
    for kind in [Action::Reload, Action::ReloadOrRestart, Action::Restart] {
        for (plays, called) in
            [(Plays::RunningUnits, &["stop"][..]), (Plays::Well, &[]), (Plays::FailedUnits, &[])]
        {
            let host = Host::new(plays);
            assert_eq!(host.act(&act(kind, "gone.service", 30), &gone).await, Ok(()), "{plays:?}");
            assert_eq!(*host.called.lock().unwrap(), called, "{plays:?}");
        }
    }
}

#[tokio::test]
async fn a_masked_unit_is_a_skip_where_the_config_masks_it_else_a_failure_and_is_never_stopped() {
    for kind in [Action::Reload, Action::ReloadOrRestart, Action::Restart] {
        let host = Host::new(Plays::RunningUnits);
        let by_config = Act { masked: true, ..act(kind, "masked.service", 30) };
        let Ok(ActResult::Skipped(reason)) = host.acted(&by_config, &begin()).await else {
            panic!("{kind:?}")
        };
        assert!(reason.ends_with(
            "masked.service: skipped: the config masks the unit, and it runs on until it is stopped"
        ));
        let failed = host.acted(&act(kind, "masked.service", 30), &begin()).await.unwrap_err();
        assert!(failed.contains("masked.service: the unit is masked, and not by the config"), "{failed}");
        assert_eq!(*host.called.lock().unwrap(), [""; 0], "{kind:?}");
        assert!(host.queued.lock().unwrap().is_empty(), "{kind:?}");
    }
    let host = Host::new(Plays::Well);
    // Its mask is not read yet; on the way back it is gone again.
    let restart = Act { masked: true, ..act(Action::Restart, "there.service", 30) };
    let Ok(ActResult::Skipped(reason)) = host.acted(&restart, &begin()).await else {
        panic!("it was started")
    };
    assert!(reason.ends_with("skipped: the config masks the unit, and it does not run"), "{reason}");
    assert_eq!(host.systemd().undo(&restart, &begin()).await, Ok(UndoResult::Done));
    assert!(host.queued.lock().unwrap().is_empty(), "it was started");
    let reload = act(Action::Reload, "masked.service", 30);
    assert_eq!(
        host.acted(&reload, &begin()).await,
        Ok(ActResult::Done),
        "it does not run, so nothing is to be reloaded"
    );
}

#[tokio::test]
async fn a_unit_that_the_way_back_masks_again_is_stopped() {
    let link = |target: &str| Image::Link(LinkImage { target: target.into(), uid: 0, gid: 0, label: None });
    let unmasked = Target {
        path: "/etc/systemd/system/masked@.service".into(),
        before: link("/dev/null"),
        after: Image::Absent,
    };
    let begin = Begin { targets: vec![unmasked], ..begin() };
    let restart = act(Action::Restart, "masked@1.service", 30);
    let host = Host::new(Plays::RunningUnits);
    assert_eq!(host.systemd().undo(&restart, &begin).await, Ok(UndoResult::Done));
    assert_eq!(*host.called.lock().unwrap(), ["stop"]);
    let another = act(Action::Restart, "masked.service", 30);
    host.systemd().undo(&another, &begin).await.unwrap_err();
    assert_eq!(*host.called.lock().unwrap(), ["stop"], "somebody else's mask");
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
        let host = Host::new(plays);
        let acted = host.act(&act(Action::Restart, "there.service", 30), &begin()).await;
        assert_eq!(acted, Err(wanted.to_owned()));
    }
}

#[tokio::test]
async fn a_manager_that_never_answers_is_not_waited_for_longer_than_the_limit() {
    let host = Host::new(Plays::Frozen);
    for kind in [Action::DaemonReload, Action::Restart] {
        let unit = if kind == Action::Restart { "there.service" } else { "" };
        host.act(&act(kind, unit, 1), &begin()).await.unwrap_err();
    }
    let mut systemd = host.systemd();
    tokio::time::timeout(Duration::from_mins(1), async {
        systemd.inhibit("a test").await;
        assert!(systemd.reboot().await.unwrap_err().starts_with("reboot: "));
    })
    .await
    .expect("they have a limit");
    assert_eq!(*host.called.lock().unwrap(), ["inhibit", "reboot"]);
}

#[tokio::test]
async fn a_bus_that_does_not_even_greet_is_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("run/dbus/system_bus_socket");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _listener = UnixListener::bind(socket).unwrap();
    let connected = bus::connect(root.path(), Duration::from_millis(50));
    let connected = tokio::time::timeout(Duration::from_mins(1), connected).await.expect("it has a limit");
    assert!(connected.unwrap_err().contains("gave no answer"));
}

#[tokio::test]
async fn a_result_of_a_job_is_believed_from_systemd_alone_and_a_flood_of_others_delays_nothing() {
    let restart = act(Action::Restart, "there.service", 30);
    let host = Host::new(Plays::WellBesideForger);
    assert_eq!(host.act(&restart, &begin()).await, Ok(()));
    let host = Host::new(Plays::FailingBesideForger);
    let failed = "restart there.service: the job ended as `failed`".to_owned();
    assert_eq!(host.act(&restart, &begin()).await, Err(failed));
}

#[tokio::test]
async fn a_systemd_that_connects_to_the_bus_anew_is_believed_at_its_new_connection_alone() {
    let host = Host::new(Plays::ConnectedAnew);
    assert_eq!(host.act(&act(Action::Restart, "there.service", 30), &begin()).await, Ok(()));
}

#[tokio::test]
async fn a_job_that_systemd_has_no_more_and_says_nothing_of_is_a_failure_before_the_limit() {
    let host = Host::new(Plays::Forgetful);
    let acted = host.act(&act(Action::Restart, "there.service", 600), &begin()).await;
    let wanted = "restart there.service: the job is over, and systemd did not report its result";
    assert_eq!(acted, Err(wanted.to_owned()));
}

#[tokio::test]
async fn a_job_that_takes_too_long_is_taken_back() {
    let host = Host::new(Plays::Busy);
    let acted = host.act(&act(Action::Restart, "there.service", 1), &begin()).await;
    assert_eq!(acted, Err("restart there.service: not done within 1 s".to_owned()));
    assert_eq!(*host.cancelled.lock().unwrap(), [5]);
}

#[tokio::test]
async fn all_that_is_asked_of_the_host_is_asked_on_its_own_bus() {
    let host = Host::new(Plays::Well);
    assert_eq!(bus::missing(host.root.path()), None);
    let mut systemd = host.systemd();
    systemd.inhibit("a test").await;
    assert!(systemd.inhibitor.is_some());
    systemd.reboot().await.unwrap();
    assert_eq!(*host.called.lock().unwrap(), ["inhibit", "reboot", "released"]);
}

#[tokio::test]
async fn a_lock_against_shutdowns_that_is_refused_keeps_nobody_from_the_work() {
    let host = Host::new(Plays::Busy);
    let mut systemd = host.systemd();
    systemd.inhibit("a test").await;
    assert!(systemd.inhibitor.is_none());
    systemd.reboot().await.unwrap();
    assert_eq!(*host.called.lock().unwrap(), ["inhibit", "reboot"]);
}

#[tokio::test]
async fn in_a_root_without_a_bus_nothing_is_asked_of_any_other() {
    let root = tempfile::tempdir().unwrap();
    let mut systemd = Systemd::new(root.path());
    assert!(systemd.reboot().await.unwrap_err().contains("the system bus does not answer"));
    systemd.inhibit("a test").await;
    assert!(systemd.inhibitor.is_none());
    assert!(bus::missing(root.path()).unwrap().contains("--no-acts"));
}

/// What a boot made of a unit that an act is about; nothing may be started for that.
async fn rested(plays: Plays, act: &Act) -> Result<UnitAfterBoot, String> {
    let host = Host::new(plays);
    let mut systemd = host.systemd();
    let gone = Begin { units: vec!["gone.service".to_owned()], ..begin() };
    let rested = tokio::time::timeout(Duration::from_mins(1), systemd.unit_after_boot(act, &gone));
    let rested = rested.await.expect("it has a limit");
    assert!(host.queued.lock().unwrap().is_empty(), "a job was queued");
    rested
}

#[tokio::test]
async fn after_a_boot_a_unit_is_looked_at_once_the_boot_has_come_to_it_and_never_started() {
    let restart = |unit| act(Action::Restart, unit, 1);
    let failed = |reason: &str| Ok(UnitAfterBoot::Failed(reason.to_owned()));
    for (plays, unit, wanted) in [
        (Plays::Booting, "there.service", Ok(UnitAfterBoot::Settled)),
        (Plays::BootingInVain, "there.service", failed("there.service: the unit failed")),
        (
            Plays::RestartingUnits,
            "there.service",
            failed("there.service: the unit failed, and systemd starts it again and again"),
        ),
        // Nothing starts it at a boot.
        (Plays::Well, "there.service", Ok(UnitAfterBoot::Settled)),
        (Plays::Well, "nowhere.service", failed("nowhere.service: there is no such unit")),
        (Plays::Well, "gone.service", Ok(UnitAfterBoot::Settled)),
    ] {
        assert_eq!(rested(plays, &restart(unit)).await, wanted, "{plays:?} {unit}");
    }
    assert_eq!(
        rested(Plays::BootingInVain, &act(Action::DaemonReload, "", 1)).await,
        Ok(UnitAfterBoot::Settled)
    );
}

#[tokio::test]
async fn soft_reboots_are_those_that_systemd_counted_and_none_where_it_counts_none() {
    for (plays, wanted) in [(Plays::RebootedSoftly, Ok(Some(3))), (Plays::Well, Ok(None))] {
        let host = Host::new(plays);
        assert_eq!(host.systemd().soft_reboots().await, wanted, "{plays:?}");
    }
    // Where it does not answer, the count is not known: that is no count of none.
    for plays in [Plays::Busy, Plays::Frozen] {
        let host = Host::new(plays);
        let mut systemd = host.systemd();
        let asked = tokio::time::timeout(Duration::from_mins(1), systemd.soft_reboots());
        assert!(asked.await.expect("it has a limit").is_err(), "{plays:?}");
    }
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Systemd::new(root.path()).soft_reboots().await, Ok(None), "a root that does not run");
}
