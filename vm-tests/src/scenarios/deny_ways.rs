//! Ways around deny rules: names that do not exist yet, directories above, mounts over them.
//!
//! In: a bare guest. Out: a check for each way. First an actor tries it whom no rule allows, and is refused with one record. Then an
//! actor tries it whom all rules concerned allow.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, RenameFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use serde_json::Value;

use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, shell, status, wait};

/// The protection of every path below: a rule of its own. All rules allow one user, and the third also requires a
/// program.
const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: ways}
spec:
  rules:
  - path: /etc/ways/a/b/protected.conf
    action: deny
    allowedActors: {users: [warden]}
  - path: /etc/ways/a/absent.conf
    action: deny
    allowedActors: {users: [warden, half]}
  - path: /etc/ways/none/x/deep.conf
    action: deny
    allowedActors: {users: [warden]}
  - path: /etc/ways/program/only.conf
    action: deny
    allowedActors: {exes: [/run/warden/busybox]}
  - path: /srv/ways-link/.ssh/keys
    action: deny
    allowedActors: {users: [warden]}
  - path: /srv/ways-disk/d/kept.conf
    action: deny
    allowedActors: {users: [warden]}
";

const PATHS: [&str; 6] = [
    PROTECTED,
    ABSENT,
    DEEP,
    "/etc/ways/program/only.conf",
    "/srv/ways-link/.ssh/keys",
    "/srv/ways-disk/d/kept.conf",
];
const PROTECTED: &str = "/etc/ways/a/b/protected.conf";
const ABSENT: &str = "/etc/ways/a/absent.conf";
const DEEP: &str = "/etc/ways/none/x/deep.conf";

/// User ids that only these rules name.
const WARDEN: u32 = 4331;
const HALF: u32 = 4332;

const LIMIT: Duration = Duration::from_mins(1);

/// The attempt: a line for the shell, or calls for which the shell has no command.
enum Tried {
    Line(&'static str),
    Call(fn() -> Result<()>),
}

use Tried::{Call, Line};

impl Tried {
    fn run(&self) -> Result<()> {
        match self {
            Line(line) => shell(line).map(drop),
            Call(call) => call(),
        }
    }
}

/// One way: the attempt, and the expected record of its refusal.
struct Way {
    name: &'static str,
    tried: Tried,
    operations: &'static [&'static str],
    /// The protected path, and the path of the attempt if it is another one.
    reported: (&'static str, Option<&'static str>),
    /// Undoes the attempt after it succeeded.
    back: &'static str,
}

const fn way(
    name: &'static str,
    tried: Tried,
    operations: &'static [&'static str],
    reported: (&'static str, Option<&'static str>),
    back: &'static str,
) -> Way {
    Way { name, tried, operations, reported, back }
}

const WAYS: &[Way] = &[
    way(
        "create",
        Line("echo x > /etc/ways/a/absent.conf"),
        &["create"],
        (ABSENT, None),
        "rm /etc/ways/a/absent.conf",
    ),
    way(
        "mkdir",
        Line("mkdir /etc/ways/a/absent.conf"),
        &["make-directory"],
        (ABSENT, None),
        "rmdir /etc/ways/a/absent.conf",
    ),
    way(
        "mknod",
        Line("mknod /etc/ways/a/absent.conf c 1 3"),
        &["make-node"],
        (ABSENT, None),
        "rm /etc/ways/a/absent.conf",
    ),
    way(
        "symlink",
        Line("ln -s /dev/null /etc/ways/a/absent.conf"),
        &["symlink"],
        (ABSENT, None),
        "rm /etc/ways/a/absent.conf",
    ),
    way(
        "link",
        Line("ln /etc/ways/spare /etc/ways/a/absent.conf"),
        &["link"],
        (ABSENT, None),
        "rm /etc/ways/a/absent.conf",
    ),
    way(
        "rename_onto",
        Line("mv /etc/ways/spare /etc/ways/a/absent.conf"),
        &["rename-over"],
        (ABSENT, None),
        "mv /etc/ways/a/absent.conf /etc/ways/spare",
    ),
    way(
        "directory_above_absent",
        Line("mkdir /etc/ways/none"),
        &["make-directory"],
        (DEEP, Some("/etc/ways/none")),
        "rmdir /etc/ways/none",
    ),
    way(
        "tree_onto_absent",
        Line("mv /etc/ways/tree /etc/ways/none"),
        &["rename-over"],
        (DEEP, Some("/etc/ways/none")),
        "mv /etc/ways/none /etc/ways/tree",
    ),
    way(
        "behind_a_link",
        Line("mkdir /srv/ways-link/.ssh"),
        &["make-directory"],
        ("/srv/ways-link/.ssh/keys", Some("/srv/ways-real/.ssh")),
        "rmdir /srv/ways-real/.ssh",
    ),
    way(
        "link_on_the_way",
        Line("mv /srv/ways-link /srv/ways-gone"),
        &["rename"],
        ("/srv/ways-link/.ssh/keys", Some("/srv/ways-link")),
        "mv /srv/ways-gone /srv/ways-link",
    ),
    way(
        "rename_directory",
        Line("mv /etc/ways/a/b /etc/ways/gone"),
        &["rename"],
        (PROTECTED, Some("/etc/ways/a/b")),
        "mv /etc/ways/gone /etc/ways/a/b",
    ),
    way(
        "rename_ancestor",
        Line("mv /etc/ways/a /etc/ways-gone"),
        &["rename"],
        (ABSENT, Some("/etc/ways/a")),
        "mv /etc/ways-gone /etc/ways/a",
    ),
    way("exchange", Call(exchange), &["rename", "rename-over"], (ABSENT, Some("/etc/ways/a")), "true"),
    way(
        "bind_over_file",
        Line("mount --bind /etc/ways/spare /etc/ways/a/b/protected.conf"),
        &["mount"],
        (PROTECTED, None),
        "umount -l /etc/ways/a/b/protected.conf",
    ),
    way(
        "mount_over_directory",
        Line("mount -t tmpfs x /etc/ways/a/b"),
        &["mount"],
        (PROTECTED, Some("/etc/ways/a/b")),
        "umount -l /etc/ways/a/b",
    ),
    way(
        "bind_over_ancestor",
        Line("mount --bind /run /etc/ways/a"),
        &["mount"],
        (ABSENT, Some("/etc/ways/a")),
        "umount -l /etc/ways/a",
    ),
    way(
        "move_mount_over",
        Call(move_over),
        &["move-mount"],
        (PROTECTED, Some("/etc/ways/a/b")),
        "umount -l /etc/ways/a/b",
    ),
    way(
        "unmount",
        Line("umount /srv/ways-disk"),
        &["unmount"],
        ("/srv/ways-disk/d/kept.conf", Some("/srv/ways-disk")),
        "mount -t tmpfs x /srv/ways-disk && mkdir /srv/ways-disk/d && echo content > /srv/ways-disk/d/kept.conf",
    ),
];

/// Tries every way as an actor without a rule, then as an allowed one.
pub(super) fn check(context: &mut Context) -> Result<()> {
    shell(
        "echo 'warden:x:4331:4331::/:/bin/sh' >> /etc/passwd && echo 'half:x:4332:4332::/:/bin/sh' >> /etc/passwd",
    )?;
    shell(
        "umask 022 && mkdir -p /etc/ways/a/b /etc/ways/program /etc/ways/tree/x /srv/ways-real /srv/ways-disk /run/warden /run/copy",
    )?;
    shell(
        "chown 0:0 / /srv && chmod 755 / /srv && ln -s /srv/ways-real /srv/ways-link && cp /bin/busybox /run/warden/",
    )?;
    shell("mount -t tmpfs x /srv/ways-disk && mkdir /srv/ways-disk/d /etc/ways/other /etc/ways/other/b")?;
    shell(
        "for f in /etc/ways/a/b/protected.conf /srv/ways-disk/d/kept.conf /etc/ways/spare; do echo content > $f; done",
    )?;
    // Otherwise the config applied last would be used, and not this one.
    shell("rm -rf /var/lib/holdfast/apply")?;
    fs::write("/run/ways.yaml", config())?;
    fs::write("/run/ways-policy.yaml", POLICY)?;
    let mut agent = RunningDaemon::start(&[
        "--standalone",
        "--config",
        "/run/ways.yaml",
        "--policy",
        "/run/ways-policy.yaml",
    ])?;
    // The last daemon's things were compliant. Some of these are missing.
    status::wait_for("drifted", LIMIT)?;
    let before = agent.records()?.len();
    let mut refusals = 0;
    for way in WAYS {
        context.check(&format!("{}_is_refused", way.name), refused(&mut agent, way, &mut refusals, None));
    }
    context.check("other_names_are_unprotected", unprotected());
    context.check("half_allowed", half_allowed(&mut agent, &mut refusals));
    context.check("another_namespace", another_namespace());
    context.check("a_namespace_that_propagates", propagated(&mut agent, &mut refusals));
    context.check("each_refusal_has_one_record", one_record_each(&agent, before, refusals));
    for way in WAYS {
        context.check(&format!("{}_is_allowed", way.name), allowed(way));
    }
    context.check("by_user_and_program", by_both());
    context.check("a_new_directory_is_protected", protected_again());
    context.check("without_the_daemon", without_the_daemon(agent));
    Ok(())
}

fn config() -> String {
    const HEAD: &str = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: 99-ways\n  \
                        labels: {machineconfiguration.openshift.io/role: worker}\nspec:\n  config:\n    ignition: \
                        {version: 3.4.0}\n    storage:\n      files:\n";
    let file = |path| {
        format!("      - path: {path}\n        mode: 420\n        contents: {{source: 'data:,content%0A'}}\n")
    };
    HEAD.to_owned() + &PATHS.map(file).concat()
}

/// Does something as a user who logged in, in a scope as logind creates it.
fn as_user(uid: u32, work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    const GROUPS: &str = "/sys/fs/cgroup";
    let moved = |to: &str| fs::write(format!("{to}/cgroup.procs"), "0").context("enter a control group");
    thread::scope(|scope| {
        let done = scope.spawn(|| {
            fs::write("/proc/thread-self/loginuid", uid.to_string()).context("log in")?;
            let session = fs::read_to_string("/proc/thread-self/sessionid")?;
            let group = format!("{GROUPS}/user.slice/user-{uid}.slice/session-{}.scope", session.trim());
            fs::create_dir_all(&group)?;
            moved(&group)?;
            let done = work();
            moved(GROUPS)?;
            fs::remove_dir(&group).context("end the session")?;
            done
        });
        done.join().map_err(|_| anyhow!("it panicked"))?
    })
}

/// Whether the error is `EPERM`; the guest's mount(8) prints its own words for it.
fn is_eperm(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    text.contains("not permitted") || text.contains("are you root?")
}

/// Expects `EPERM`, and one record with an actor. `refusals`: how many there were, including this one.
fn refused(agent: &mut RunningDaemon, way: &Way, refusals: &mut usize, uid: Option<u32>) -> Result<String> {
    let before = agent.records()?.len();
    let done = match uid {
        Some(uid) => as_user(uid, || way.tried.run()),
        None => way.tried.run(),
    };
    match done {
        Ok(()) => {
            shell(way.back)?;
            bail!("it was not refused");
        }
        Err(error) => ensure!(is_eperm(&error), "{error:#}"),
    }
    *refusals += 1;
    let record = agent.wait_for("denied", before, |record| record["kind"] == "denied")?;
    let (path, at) = way.reported;
    ensure!(record["path"] == path && record["detail"]["at"].as_str() == at, "{record}");
    let operation = record["operation"].as_str().unwrap_or_default();
    ensure!(way.operations.contains(&operation), "{record}");
    ensure!(record["actor"]["pid"].is_u64() && record["actor"]["exe"].is_string(), "{record}");
    Ok(format!("{operation} by {}", record["actor"]["exe"]))
}

fn one_record_each(agent: &RunningDaemon, before: usize, refusals: usize) -> Result<String> {
    let records = agent.records()?;
    let denied: Vec<&Value> =
        records.iter().skip(before).filter(|record| record["kind"] == "denied").collect();
    ensure!(denied.len() == refusals, "{} records of {refusals} refusals: {denied:?}", denied.len());
    Ok(format!("{refusals} refusals"))
}

/// Other names in the same directories, their attributes, and mounts elsewhere are not protected.
fn unprotected() -> Result<String> {
    for line in [
        "echo x > /etc/ways/a/other.conf && mv /etc/ways/a/other.conf /etc/ways/a/b/other && rm /etc/ways/a/b/other",
        "mkdir /etc/ways/a/absent.conf.d && rmdir /etc/ways/a/absent.conf.d",
        "chmod 700 /etc/ways/a && chmod 755 /etc/ways/a && touch /etc/ways/a/b",
        "mkdir /srv/ways-real/other && rmdir /srv/ways-real/other",
        "mount -t tmpfs x /run/copy && umount /run/copy",
        "mount --bind /srv/ways-disk /run/copy && umount /run/copy",
        "mount -o remount,rw /srv/ways-disk",
    ] {
        shell(line)?;
    }
    Ok(String::new())
}

/// If one rule below allows an actor, the actor may create what that rule protects, but not move what another rule
/// protects as well.
fn half_allowed(agent: &mut RunningDaemon, refusals: &mut usize) -> Result<String> {
    let find = |name| WAYS.iter().find(|way| way.name == name).context("no such way");
    as_user(HALF, || shell("echo x > /etc/ways/a/absent.conf && rm /etc/ways/a/absent.conf").map(drop))?;
    refused(agent, find("rename_ancestor")?, refusals, Some(HALF))
}

/// A mount that is visible only in another namespace is not refused.
fn another_namespace() -> Result<String> {
    shell("unshare -m sh -c 'mount -t tmpfs x /etc/ways/a && ! test -e /etc/ways/a/b'")?;
    ensure!(Path::new(PROTECTED).exists(), "the host sees it");
    Ok(String::new())
}

/// A mount that propagates to the host is refused, and an unmount that does: the mount below it propagates, while it is private itself.
fn propagated(agent: &mut RunningDaemon, refusals: &mut usize) -> Result<String> {
    let reported = (ABSENT, Some("/etc/ways/a"));
    let way = way("shared", Call(mount_in_namespace), &["mount"], reported, "umount -l /etc/ways/a");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SHARED, None::<&str>)?;
    let mut result = refused(agent, &way, refusals, None);
    if result.is_ok() {
        let way = WAYS.iter().find(|way| way.name == "unmount").context("no such way")?;
        result = refused(agent, &Way { tried: Call(unmount_in_namespace), ..*way }, refusals, None);
    }
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE, None::<&str>)?;
    result
}

/// An actor whom every rule concerned allows does it, and undoes it.
fn allowed(way: &Way) -> Result<String> {
    as_user(WARDEN, || way.tried.run().and_then(|()| taken_back(way)))?;
    Ok(String::new())
}

fn taken_back(way: &Way) -> Result<()> {
    match way.tried {
        Call(call) if way.back == "true" => call(),
        _ => shell(way.back).map(drop),
    }
}

/// One rule allows the user and another the program: only an actor with both may move what is above both.
fn by_both() -> Result<String> {
    let there = "mv /etc/ways /etc/ways-moved";
    let alone = as_user(WARDEN, || shell(there).map(drop));
    ensure!(alone.is_err(), "the user alone was enough");
    let alone = shell(&format!("/run/warden/busybox {there}"));
    ensure!(alone.is_err(), "the program alone was enough");
    as_user(WARDEN, || {
        shell(&format!("/run/warden/busybox {there} && /run/warden/busybox mv /etc/ways-moved /etc/ways"))
            .map(drop)
    })?;
    Ok(String::new())
}

/// If an allowed actor replaces a directory, the protected names in the new one are protected again.
fn protected_again() -> Result<String> {
    as_user(WARDEN, || {
        shell("mv /etc/ways/a /etc/ways/before && mkdir /etc/ways/a /etc/ways/a/b").map(drop)
    })?;
    for path in [ABSENT, PROTECTED] {
        becomes_protected(path)?;
    }
    // In the directory that was moved away they are not protected any more.
    wait::until("the old names to be free", LIMIT, || {
        let made = shell("mkdir /etc/ways/before/absent.conf && rmdir /etc/ways/before/absent.conf");
        Ok(made.is_ok().then_some(()))
    })?;
    as_user(WARDEN, || shell("rm -r /etc/ways/a && mv /etc/ways/before /etc/ways/a").map(drop))?;
    becomes_protected(ABSENT)?;
    Ok(String::new())
}

/// Waits until the name cannot be created. Removes what was created before that.
fn becomes_protected(path: &str) -> Result<()> {
    wait::until("the name to be protected", LIMIT, || match shell(&format!("mkdir {path}")) {
        Err(error) if is_eperm(&error) => Ok(Some(())),
        Err(error) => Err(error),
        Ok(_) => {
            as_user(WARDEN, || shell(&format!("rmdir {path}")).map(drop))?;
            Ok(None)
        }
    })
}

/// The pinned programs keep refusing.
fn without_the_daemon(agent: RunningDaemon) -> Result<String> {
    // What an allowed actor created again is protected after the daemon has seen it. Undoing one attempt below may
    // touch the path of another, so all attempts are made one after the other.
    let mut last = "";
    let all_refused = wait::until("what was taken back to be refused again", LIMIT, || {
        for way in WAYS {
            match way.tried.run() {
                Err(error) if is_eperm(&error) => {}
                Err(error) => return Err(error.context(way.name)),
                Ok(()) => {
                    last = way.name;
                    return as_user(WARDEN, || taken_back(way)).map(|()| None);
                }
            }
        }
        Ok(Some(()))
    });
    all_refused.with_context(|| format!("{last} was the last that was not refused"))?;
    agent.kill()?;
    for way in WAYS {
        let Err(error) = way.tried.run() else {
            shell(way.back)?;
            bail!("{} was not refused", way.name);
        };
        ensure!(is_eperm(&error), "{}: {error:#}", way.name);
    }
    Ok(String::new())
}

/// In its own mount namespace, with the same mounts as the host.
fn in_namespace(work: fn() -> nix::Result<()>) -> Result<()> {
    let thread = thread::spawn(move || unshare(CloneFlags::CLONE_NEWNS).and_then(|()| work()));
    Ok(thread.join().map_err(|_| anyhow!("it panicked"))??)
}

fn mount_in_namespace() -> Result<()> {
    in_namespace(|| mount(Some("x"), "/etc/ways/a", Some("tmpfs"), MsFlags::empty(), None::<&str>))
}

fn unmount_in_namespace() -> Result<()> {
    in_namespace(|| umount("/srv/ways-disk"))
}

fn exchange() -> Result<()> {
    Ok(rustix::fs::renameat_with(CWD, "/etc/ways/other", CWD, "/etc/ways/a", RenameFlags::EXCHANGE)?)
}

fn move_over() -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, "/run/copy", flags)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&tree, "", CWD, "/etc/ways/a/b", flags)?)
}
