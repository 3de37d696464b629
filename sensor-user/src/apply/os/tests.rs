mod booted_entry;
mod cluster_image;
mod order;

use super::{change::words, *};
use sensor_model::{changes::ChangeOperation, os::Deployment, waiting::Waiting};
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};
use tempfile::TempDir;

const OLD: &str = "f5c2c58b683884ffee9dca0580863651e5397194a54d34cfbfe3902c42601cb8";
const NEW: &str = "40948b845a13349cb0d57400eebdcfdf72bb8521636a1f067fb22d92b0b73b41";
const LIMIT: Duration = Duration::from_mins(1);

fn change() -> OsChange {
    OsChange {
        old_image: Some("registry/os@sha256:1".to_owned()),
        new_image: Some("registry/os@sha256:2".to_owned()),
        remove_arguments: vec!["quiet".to_owned()],
        add_arguments: vec!["nosmt;reboot".to_owned()],
        old_kernel: "default".to_owned(),
        new_kernel: "default".to_owned(),
        ..OsChange::default()
    }
}

#[test]
fn every_value_is_one_argument_of_one_program() {
    let commands = rpm_ostree::commands(&change()).unwrap();
    assert_eq!(commands[0].last().unwrap(), "ostree-unverified-registry:registry/os@sha256:2");
    let kargs =
        ["kargs", "--delete-if-present=quiet", "--delete-if-present=nosmt;reboot", "--append=nosmt;reboot"];
    assert_eq!(commands[1][1..], kargs);
    let branch = OsChange { new_image: Some("os/v2".to_owned()), ..change() };
    let booted =
        ostree::Booted { arguments: words(&["rw", "quiet", "a=\"b c\""]), ..ostree::Booted::default() };
    let commands = ostree::commands(&branch, &booted).unwrap();
    let arguments =
        ["--karg-none", "--karg-append=rw", "--karg-append=a=\"b c\"", "--karg-append=nosmt;reboot"];
    assert_eq!(commands[0][4..8], arguments);
    assert_eq!(commands[0].last().unwrap(), "os/v2");
    let remote = OsChange { new_image: Some("mirror:os/v2".to_owned()), ..change() };
    assert_eq!(ostree::commands(&remote, &booted).unwrap()[0], ["ostree", "pull", "mirror", "os/v2"]);
}

#[test]
fn each_extension_is_installed_and_removed_with_the_machine_config_operators_packages_for_it() {
    for (extension, packages) in [
        ("two-node-ha", &["pacemaker", "pcs", "fence-agents-all"][..]),
        ("ipsec", &["NetworkManager-libreswan", "libreswan", "openvswitch3.5-ipsec"]),
        ("usbguard", &["usbguard"]),
        ("kerberos", &["krb5-workstation", "libkadm5"]),
        ("kernel-devel", &["kernel-devel", "kernel-headers"]),
        ("sandboxed-containers", &["kata-containers"]),
        ("sysstat", &["sysstat"]),
    ] {
        let comes = OsChange { add_extensions: words(&[extension]), ..OsChange::default() };
        for (change, option) in [(comes.clone(), "--install"), (comes.reversed(), "--uninstall")] {
            let commands = rpm_ostree::commands(&change).unwrap();
            let wanted = packages.iter().flat_map(|package| [option, package]);
            let wanted: Vec<&str> = ["rpm-ostree", "update"].into_iter().chain(wanted).collect();
            assert_eq!(commands, [words(&wanted)], "{extension}");
        }
    }
}

#[test]
fn an_ostree_change_of_arguments_alone_keeps_the_commit_and_its_origin() {
    let arguments = OsChange { new_image: change().old_image, ..change() };
    let (stateroot, name) = ("debian".to_owned(), format!("{OLD}.1"));
    let booted = ostree::Booted { stateroot, name, arguments: Vec::new() };
    let commands = ostree::commands(&arguments, &booted).unwrap();
    let [command] = commands.as_slice() else { panic!("{commands:?}") };
    assert!(
        command.contains(&format!("--origin-file=/ostree/deploy/debian/deploy/{OLD}.1.origin")),
        "{command:?}"
    );
    assert_eq!(command.last().unwrap(), OLD);
}

#[test]
fn an_unsupported_change_is_refused_before_anything_is_done() {
    assert_eq!(OsTool::None.check(&change()), Err(UnsupportedChange::NoTool));
    assert_eq!(OsTool::Bootc.check(&change()), Err(UnsupportedChange::Bootc));
    let odd = OsChange { new_image: Some("--help".to_owned()), ..change() };
    assert_eq!(OsTool::RpmOstree.check(&odd), Err(UnsupportedChange::NotAnImage("--help".to_owned())));
    let kernel = OsChange { new_kernel: "realtime".to_owned(), ..change() };
    assert_eq!(OsTool::Ostree.check(&kernel), Err(UnsupportedChange::Ostree));
    assert_eq!(OsTool::RpmOstree.check(&kernel), Ok(()));
    let unknown = OsChange { new_kernel: "fast".to_owned(), ..change() };
    assert_eq!(OsTool::RpmOstree.check(&unknown), Err(UnsupportedChange::KernelType("fast".to_owned())));
}

#[test]
fn a_reversed_change_restores_image_and_arguments() {
    let there = change();
    assert_eq!(there.reversed().reversed(), there);
    let commands = rpm_ostree::commands(&there.reversed()).unwrap();
    assert_eq!(commands[1].last().unwrap(), "--append=quiet");
}

#[test]
fn an_argument_of_the_hosts_own_stays_in_a_rollback() {
    let there = OsChange {
        add_arguments: words(&["console=ttyS0", "nosmt"]),
        booted_arguments: words(&["rw", "console=ttyS0", "quiet"]),
        ..change()
    };
    let booted =
        |arguments: &[&str]| ostree::Booted { arguments: words(arguments), ..ostree::Booted::default() };
    let appended = |commands: &[Vec<String>]| {
        let words = commands.last().unwrap().iter().filter_map(|word| word.strip_prefix("--karg-append="));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let new = appended(&ostree::commands(&there, &booted(&["rw", "console=ttyS0", "quiet"])).unwrap());
    assert_eq!(new, ["rw", "console=ttyS0", "nosmt"]);
    let back = ostree::commands(&there.reversed(), &booted(&["rw", "console=ttyS0", "nosmt"])).unwrap();
    assert_eq!(appended(&back), ["rw", "console=ttyS0", "quiet"]);
}

/// A root that booted a deployment, and tools that write down how they were called.
struct World {
    folder: TempDir,
    host: OsHost,
}

impl World {
    fn new(tool: OsTool, booted: &str, arguments: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for directory in [
            "proc",
            "run",
            "bin",
            "ostree/boot.1/debian/x",
            "ostree/deploy/debian/deploy",
            "boot/loader/entries",
        ] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("run/ostree-booted"), "").unwrap();
        let deployments = root.join("ostree/deploy/debian/deploy");
        for (commit, image) in [(OLD, "os/v1"), (NEW, "os/v2")] {
            fs::create_dir(deployments.join(format!("{commit}.0"))).unwrap();
            fs::write(deployments.join(format!("{commit}.0.origin")), format!("[origin]\nrefspec={image}\n"))
                .unwrap();
        }
        let target = format!("../../../deploy/debian/deploy/{booted}.0");
        symlink(target, root.join("ostree/boot.1/debian/x/0")).unwrap();
        fs::write(root.join("proc/cmdline"), format!("{arguments} ostree=/ostree/boot.1/debian/x/0\n"))
            .unwrap();
        let options = format!("title Debian\noptions {arguments} ostree=/ostree/boot.1/debian/x/0\n");
        fs::write(root.join("boot/loader/entries/ostree-1-debian.conf"), options).unwrap();
        let other = "options rw ostree=/ostree/boot.1/debian/y/0\n";
        fs::write(root.join("boot/loader/entries/ostree-2-debian.conf"), other).unwrap();
        let (root, programs) = (root.to_owned(), folder.path().join("bin"));
        let host = OsHost { tool, root, programs, pause: Some(Duration::from_millis(1)) };
        Self { folder, host }
    }

    /// A tool: each call is a line of `calls`; then it does as the script says.
    fn tool(self, name: &str, script: &str) -> Self {
        let folder = self.folder.path();
        let path = folder.join("bin").join(name);
        let text = format!("#!/bin/sh\ncd {}\necho \"$*\" >> calls\n{script}\n", folder.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        fs::write(self.folder.path().join(name), content).unwrap();
        self
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|line| line.starts_with(call)).count()
    }
}

const OSTREE: &str = r#"case "$*" in
    "admin status") cat status ;;
    "admin deploy"*) cat staged status > next && mv next status ;;
    "admin undeploy 0") sed -i 1,2d status ;;
esac"#;

fn ostree_host(booted: (&str, &str), staged: (&str, &str), arguments: &str) -> World {
    let line = |mark: &str, (commit, image): (&str, &str), note: &str| {
        format!("{mark} debian {commit}.0{note}\n    origin refspec: {image}\n")
    };
    World::new(OsTool::Ostree, booted.0, arguments)
        .tool("ostree", OSTREE)
        .file("status", &line("*", booted, ""))
        .file("staged", &line(" ", staged, " (staged)"))
}

fn to_v2() -> OsChange {
    OsChange {
        old_image: Some("os/v1".to_owned()),
        new_image: Some("os/v2".to_owned()),
        booted: Some(OLD.to_owned()),
        ..change()
    }
}

#[tokio::test]
async fn a_staged_deployment_is_read_back() {
    let world = ostree_host((OLD, "os/v1"), (NEW, "os/v2"), "quiet");
    world.host.stage(&to_v2(), LIMIT).await.unwrap();
    assert_eq!((world.count("admin deploy"), world.count("admin undeploy")), (1, 0));
    // Staged once more, the first is dropped.
    world.host.stage(&to_v2(), LIMIT).await.unwrap();
    assert_eq!((world.count("admin deploy"), world.count("admin undeploy")), (2, 1));
}

#[tokio::test]
async fn a_wrong_staged_deployment_is_dropped_and_reported() {
    let world = ostree_host((OLD, "os/v1"), (NEW, "os/v3"), "quiet");
    let error = world.host.stage(&to_v2(), LIMIT).await.unwrap_err();
    assert_eq!(error.to_string(), "the next boot would be os/v3, not os/v2");
    assert_eq!(world.calls().iter().rev().nth(1).unwrap(), "admin undeploy 0");
}

#[tokio::test]
async fn an_os_that_is_booted_already_is_not_staged() {
    let world = ostree_host((NEW, "os/v2"), (OLD, "os/v1"), "nosmt;reboot");
    world.host.stage(&to_v2(), LIMIT).await.unwrap();
    assert_eq!(world.count("admin deploy"), 0);
}

#[tokio::test]
async fn a_rollback_before_the_boot_drops_the_staged_deployment() {
    let world = ostree_host((OLD, "os/v1"), (NEW, "os/v2"), "quiet");
    world.host.stage(&to_v2(), LIMIT).await.unwrap();
    assert!(!world.host.unstage(&to_v2(), LIMIT).await.unwrap());
    assert_eq!((world.count("admin deploy"), world.count("admin undeploy")), (1, 1));
}

#[tokio::test]
async fn a_rollback_after_the_boot_stages_the_old_deployment_and_needs_another_boot() {
    let world = ostree_host((NEW, "os/v2"), (OLD, "os/v1"), "nosmt;reboot");
    assert!(world.host.unstage(&to_v2(), LIMIT).await.unwrap());
    assert_eq!(
        world.count("admin deploy --stage --karg-none --karg-append=quiet os/v1"),
        1,
        "{:?}",
        world.calls()
    );
    let problems = world.host.is_back(&to_v2()).unwrap().join("; ");
    assert!(problems.contains("missing expected kernel arguments: [quiet]"), "{problems}");
    assert!(problems.contains("expected target osImageURL \"os/v1\", have \"os/v2\""), "{problems}");
    let back = ostree_host((OLD, "os/v1"), (NEW, "os/v2"), "quiet");
    assert_eq!(back.host.is_back(&to_v2()).unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_failed_download_is_tried_again_and_then_stages_no_change() {
    let status = format!(r#"{{"deployments":[{{"booted":true,"origin":"os/v1","checksum":"{OLD}"}}]}}"#);
    let script = r#"case "$*" in
        "status --json") cat status ;;
        rebase*) echo "manifest unknown" >&2; exit 1 ;;
    esac"#;
    let world =
        World::new(OsTool::RpmOstree, OLD, "quiet").tool("rpm-ostree", script).file("status", &status);
    let error = world.host.stage(&change(), LIMIT).await.unwrap_err().to_string();
    assert!(error.contains("manifest unknown") && error.contains("tried 7 times"), "{error}");
    assert_eq!((world.count("rebase"), world.count("kargs")), (7, 0));
}

#[tokio::test]
async fn arguments_and_packages_that_rpm_ostree_did_not_stage_are_reported() {
    let staged = format!(
        r#"{{"deployments":[{{"staged":true,"container-image-reference":"ostree-unverified-registry:registry/os@sha256:2",
            "checksum":"{NEW}"}},{{"booted":true,"origin":"os/v1","checksum":"{OLD}"}}]}}"#
    );
    let booted = format!(r#"{{"deployments":[{{"booted":true,"origin":"os/v1","checksum":"{OLD}"}}]}}"#);
    let script = r#"case "$*" in
        "status --json") cat status ;;
        rebase*) cp staged status ;;
        "cleanup -p") cp booted status ;;
        "kargs --deploy-index=0") echo "root=/dev/vda quiet" ;;
    esac"#;
    let world = World::new(OsTool::RpmOstree, OLD, "quiet")
        .tool("rpm-ostree", script)
        .file("status", &booted)
        .file("booted", &booted)
        .file("staged", &staged);
    let wished = OsChange { add_extensions: vec!["usbguard".to_owned()], ..change() };
    let error = world.host.stage(&wished, LIMIT).await.unwrap_err().to_string();
    for part in ["package usbguard is not staged", "[nosmt;reboot]", "kernel argument quiet is still staged"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(world.count("cleanup -p"), 1);
}

#[tokio::test]
async fn a_command_that_hangs_is_killed_with_its_children_and_reported() {
    // The lock is held by all who have it open, the grandchild among them.
    let world =
        World::new(OsTool::Ostree, OLD, "quiet").tool("ostree", "exec 9>lock; flock 9; sleep 1000 & wait");
    let error = world.host.stage(&to_v2(), Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.to_string(), "ostree admin status: not done within 1 s; it was killed");
    fs::File::create(world.folder.path().join("lock")).unwrap().lock().unwrap();
}

#[tokio::test]
async fn bootc_rolls_back_before_the_boot_by_another_switch() {
    let status = |staged: &str| {
        let entry = |image: &str| {
            format!(r#"{{"image":{{"image":{{"image":"{image}"}}}},"ostree":{{"checksum":"{OLD}"}}}}"#)
        };
        let staged = if staged.is_empty() { "null".to_owned() } else { entry(staged) };
        format!(r#"{{"status":{{"staged":{staged},"booted":{},"rollback":null}}}}"#, entry("os/v1"))
    };
    let script = r#"case "$*" in
        status*) cat status ;;
        "switch os/v2") cp staged status ;;
        "switch os/v1") cp quiet status ;;
    esac"#;
    let world = World::new(OsTool::Bootc, OLD, "rw")
        .tool("bootc", script)
        .file("status", &status(""))
        .file("quiet", &status(""))
        .file("staged", &status("os/v2"));
    let image = OsChange { remove_arguments: Vec::new(), add_arguments: Vec::new(), ..to_v2() };
    world.host.stage(&image, LIMIT).await.unwrap();
    assert!(!world.host.unstage(&image, LIMIT).await.unwrap());
    assert_eq!(world.count("switch os/v1"), 1, "{:?}", world.calls());
}

/// A host that booted version 1 with `quiet`, where arguments wait for the next boot; what is staged over version 1 is
/// version 1 again.
fn waiting_host() -> World {
    let script = r#"case "$*" in
        "admin status") cat status ;;
        "admin deploy"*--origin-file* | "admin deploy"*os/v1) cat again status > next && mv next status ;;
        "admin deploy"*) cat staged status > next && mv next status ;;
        "admin undeploy 0") sed -i 1,2d status ;;
    esac"#;
    let again = format!("  debian {OLD}.1 (staged)\n    origin refspec: os/v1\n");
    ostree_host((OLD, "os/v1"), (NEW, "os/v2"), "rw quiet").tool("ostree", script).file("again", &again)
}

/// What waits: `a=1` comes and `quiet` goes.
fn waited(boot_id: &str) -> Waiting {
    let waits = |argument: &str, operation| WaitingArgument {
        argument: argument.to_owned(),
        operation,
        policy: "site.yaml: kernelArguments *".to_owned(),
    };
    let arguments = vec![waits("a=1", ChangeOperation::Add), waits("quiet", ChangeOperation::Remove)];
    Waiting { boot_id: boot_id.to_owned(), config: "99-a".to_owned(), arguments }
}

fn this_boot() -> String {
    boot_id(Path::new("/proc")).unwrap()
}

/// The last deployment that was asked for.
fn deployed(world: &World) -> String {
    world.calls().into_iter().rfind(|call| call.starts_with("admin deploy")).unwrap_or_default()
}

/// To version 2, with the arguments that both configs declare.
fn image_alone(waited: Waiting) -> OsChange {
    let change = OsChange { remove_arguments: Vec::new(), add_arguments: Vec::new(), ..to_v2() };
    change.beside(waited, words(&["a=1"]), words(&["a=1"]))
}

#[tokio::test]
async fn a_new_image_is_staged_with_the_arguments_that_waited_for_the_next_boot() {
    let world = waiting_host();
    world.host.stage(&image_alone(waited(&this_boot())), LIMIT).await.unwrap();
    assert_eq!(deployed(&world), "admin deploy --stage --karg-none --karg-append=rw --karg-append=a=1 os/v2");
    let alone = OsChange { remove_arguments: Vec::new(), add_arguments: Vec::new(), ..to_v2() };
    assert_eq!(alone.clone().beside(Waiting::default(), words(&["a"]), words(&["a"])), alone);
}

#[tokio::test]
async fn after_a_rollback_in_the_same_boot_the_waiting_arguments_wait_again() {
    let world = waiting_host();
    let change = image_alone(waited(&this_boot()));
    world.host.stage(&change, LIMIT).await.unwrap();
    assert!(!world.host.unstage(&change, LIMIT).await.unwrap(), "it needs no boot");
    let again = deployed(&world);
    assert!(again.contains("--karg-none --karg-append=rw --karg-append=a=1 --origin-file="), "{again}");
    assert!(again.ends_with(OLD), "over the OS that is booted: {again}");
    assert_eq!(world.host.is_back(&change).unwrap(), [""; 0]);
}

#[tokio::test]
async fn in_another_boot_no_argument_waits_and_declared_ones_must_be_set() {
    let world = waiting_host();
    let change = image_alone(waited("another"));
    let problems = world.host.is_back(&change).unwrap().join("; ");
    assert_eq!(problems, "missing expected kernel arguments: [a=1]; kernel argument quiet is still there");
    assert!(world.host.unstage(&change, LIMIT).await.unwrap());
}

#[tokio::test]
async fn an_argument_that_is_removed_before_the_boot_leaves_no_staged_deployment() {
    let world = waiting_host();
    let come = OsChange { add_arguments: words(&["a=1"]), ..OsChange::default() };
    world.host.stage(&come, LIMIT).await.unwrap();
    let mut waiting = waited(&this_boot());
    waiting.arguments.truncate(1);
    let go = OsChange { remove_arguments: words(&["a=1"]), ..OsChange::default() };
    let go = go.beside(waiting.clone(), words(&["a=1"]), Vec::new());
    world.host.stage(&go, LIMIT).await.unwrap();
    assert_eq!((world.count("admin deploy"), world.count("admin undeploy")), (1, 1));
    // And if that is undone, it waits again.
    assert!(!world.host.unstage(&go, LIMIT).await.unwrap());
    assert!(deployed(&world).contains("--karg-append=a=1"), "{:?}", world.calls());
    assert_eq!(world.count("admin deploy"), 2);
}

#[test]
fn force_restores_an_image_and_arguments_that_are_not_booted() {
    let world = World::new(OsTool::Ostree, NEW, "rw");
    let observer = Observer::new(world.folder.path()).unwrap();
    let source = || Source::new("a", "a");
    let sourced = |text: &str| Sourced { value: text.to_owned(), source: source() };
    let wanted = Rendered {
        os_image_url: Some(sourced("os/v1")),
        kernel_arguments: vec![sourced("rw nosmt")],
        ..Rendered::default()
    };
    let change = restoring(&wanted, &observer).unwrap();
    assert_eq!((change.old_image.as_deref(), change.new_image.as_deref()), (Some("os/v2"), Some("os/v1")));
    assert_eq!(change.add_arguments, ["rw", "nosmt"], "all of them, in their order");
    let there = Rendered { os_image_url: Some(sourced("os/v2")), ..Rendered::default() };
    assert_eq!(restoring(&there, &observer), None);
}

#[test]
fn force_starts_from_the_booted_os_and_not_from_the_old_config() {
    // Version 2 was booted by hand, without an argument that both configs declare.
    let world = World::new(OsTool::Ostree, NEW, "rw");
    let observer = Observer::new(world.folder.path()).unwrap();
    let source = || Source::new("a", "a");
    let sourced = |text: &str| Sourced { value: text.to_owned(), source: source() };
    let config = |image: &str, arguments: &[&str]| Rendered {
        os_image_url: Some(sourced(image)),
        kernel_arguments: arguments.iter().map(|argument| sourced(argument)).collect(),
        ..Rendered::default()
    };
    let forced = |new: Rendered| forced(&config("os/v1", &["nosmt"]), &new, &observer).unwrap();
    let images = |change: &OsChange| (change.old_image.clone(), change.new_image.clone());
    let (v1, v2, v3) = (Some("os/v1".to_owned()), Some("os/v2".to_owned()), Some("os/v3".to_owned()));
    let arguments = forced(config("os/v1", &["nosmt", "quiet"]));
    assert_eq!(images(&arguments), (v2.clone(), v1), "the image comes back with the arguments");
    assert_eq!(arguments.add_arguments, ["nosmt", "quiet"]);
    let image = forced(config("os/v3", &["nosmt"]));
    assert_eq!(images(&image), (v2.clone(), v3));
    assert_eq!(image.add_arguments, ["nosmt"], "what is missing comes with the image");
    let there = forced(config("os/v2", &["nosmt"]));
    assert_eq!((images(&there), there.add_arguments.len()), ((v2.clone(), v2), 1));
}

#[test]
fn a_change_has_the_booted_image_as_its_old_one_if_no_config_declares_one() {
    let world = World::new(OsTool::Ostree, OLD, "rw");
    let observer = Observer::new(world.folder.path()).unwrap();
    let here = from_here(OsChange { old_image: None, ..to_v2() }, &observer);
    assert_eq!((here.old_image.as_deref(), here.booted.as_deref()), (Some("os/v1"), Some(OLD)));
    assert!(here.booted_arguments.contains(&"rw".to_owned()), "{:?}", here.booted_arguments);
    assert_eq!(
        booted(&observer).unwrap(),
        Deployment {
            image: Some("os/v1".to_owned()),
            checksum: Some(OLD.to_owned()),
            ..Deployment::default()
        }
    );
}
