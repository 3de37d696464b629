//! The table of scenarios.
//!
//! In: nothing. Out: for each scenario its guest, its kernels and the kernel parameters of its boot. The host
//! reads the table to start guests, the guest reads it to find the function. A scenario reports each of its checks. An
//! error or a panic in a scenario is a failed check of its own.

#[macro_use]
mod machine_config;

mod apply;
mod blindness;
pub(crate) mod burst;
mod closed;
mod demo;
mod demo_image;
mod deny;
mod deny_actors;
mod deny_node;
mod deny_restarts;
mod deny_ways;
mod doctor;
mod duties;
mod extensions;
mod fanotify;
mod faulty;
mod faulty_disk;
mod faulty_state;
mod find;
pub(crate) mod flood;
mod groups;
mod hanging;
mod image;
mod kube;
mod kube_alerts;
pub(crate) mod kube_apparmor;
mod kube_people;
mod kube_policy;
mod kube_remove;
mod manage;
mod node;
mod order;
mod ostree;
pub(crate) mod pod;
mod pod_capabilities;
mod power;
mod preempted;
mod restarts;
mod selinux;
mod simple;
mod smoke;
mod soft_reboot;
mod soft_reboot_pod;
#[cfg(test)]
mod tests;
mod thread;
mod units;
mod upgrade;
pub(crate) mod vectors;
mod watched;
mod watched_node;
mod ways;

pub use crate::scenario::{ByDefault, Guest, SEALED_USR_BYTES, Scenario};
pub use find::find;

/// For a row that runs on some kernels before each merge, with the reason.
const fn only(kernels: &'static [&'static str], because: &'static str) -> ByDefault {
    ByDefault { kernels, because }
}

/// Security modules without `bpf`.
const WITHOUT_BPF: &str = "lsm=lockdown,yama,apparmor";

/// SELinux among the security modules, before `bpf`.
const WITH_SELINUX: &[&str] = &["lsm=landlock,lockdown,yama,selinux,bpf", "selinux=1"];

/// All scenarios, in the order in which to read them.
pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "smoke",
        shows: "the bare guest has what the other scenarios need",
        by_default: Some(only(&["6.12"], "`doctor` and `thread` boot the same guest on the other kernels")),
        needs_holdfast: false,
        limit: 120,
        run: smoke::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "smoke",
        shows: "systemd, a real login and sudo work in the systemd guest",
        guest: Guest::Systemd,
        by_default: Some(only(&["5.10"], "on 6.12 longer scenarios boot the same guest and log in")),
        needs_holdfast: false,
        limit: 180,
        run: smoke::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "doctor",
        shows: "the kernel accepts every program, of both sets",
        limit: 180,
        run: doctor::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "groups",
        shows: "with control groups of version 1, containers, pods and units of ended processes",
        by_default: Some(only(&["5.10"], "hosts with such control groups run the oldest kernels")),
        limit: 180,
        run: groups::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "ways",
        shows: "real paths of mounts, directories that enable units and foreign file systems hide nothing",
        by_default: Some(only(&["6.12"], "what it shows is decided in user space")),
        limit: 300,
        run: ways::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "pod",
        shows: "in a container the daemon enters the host's namespaces, opens no network socket and serves its reporter alone",
        by_default: Some(only(
            &["5.10"],
            "before 6.5 a socket has no descriptor of its peer's process, and all else is the same",
        )),
        run: pod::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "closed",
        shows: "what nothing declares in a closed directory is drift with its actor, whatever it is and whenever it came, or is refused, or moved to the quarantine and back",
        by_default: Some(only(&["6.12"], "`vectors` shows the hooks that see new names")),
        run: closed::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "image",
        shows: "a change of a program that the booted image has is drift with its actor and the layer that put it there, and so is its execution",
        by_default: Some(only(&["6.12"], "`vectors` shows the hooks that see changes")),
        limit: 400,
        run: image::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "image-verity",
        shows: "a /usr on dm-verity with the root hash of the kernel's arguments is sealed, until another table may be in the device",
        by_default: Some(only(&["6.12"], "the interface of the device mapper is the same on all")),
        needs_sealed_usr: true,
        limit: 400,
        run: image::sealed_usr::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "deny",
        shows: "a deny rule refuses changes to all but the allowed actors, and records them",
        by_default: Some(only(
            &["5.10", "7.x"],
            "the oldest and the newest kernel; the others lie between them",
        )),
        run: deny::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "thread",
        shows: "one edit of one file: drift with its actor, recovery, touch, and nothing else; executions and loads of undeclared files with their actors",
        run: thread::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "daemonset",
        shows: "a pod on a real kubelet sees edits by people and pods, the cluster shows who made them, Prometheus fires its alert, and \
                killed containers come back",
        guest: Guest::Kube,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "kubelet is the same on all")),
        needs_prometheus: true,
        limit: 900,
        run: kube::kubelet,
        ..Scenario::USUAL
    },
    Scenario {
        name: "daemonset-people",
        shows: "on a real kubelet `kubectl holdfast` asks the node, a policy of the cluster allows a pod, the audit log names a user, the service \
                and the pod refuse each other, and neither an object nor a deny rule stays after the removal",
        guest: Guest::Kube,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(
            &[],
            "an emulated kubelet takes a fifth of all virtual machines' time; `daemonset` is the one before a merge",
        )),
        limit: 1200,
        run: kube::people,
        ..Scenario::USUAL
    },
    Scenario {
        name: "manage",
        shows: "a pod on a real kubelet applies what the Node's annotations ask for: with a restart, a drain, a rollout in mid-apply and a \
                reboot; the cluster shows its plan",
        guest: Guest::Kube,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(
            &[],
            "as `daemonset-people`; `manage-processes` has the same applies without a kubelet before a merge",
        )),
        reboots: true,
        limit: 900,
        run: manage::kubelet,
        ..Scenario::USUAL
    },
    Scenario {
        name: "manage-processes",
        shows: "without a kubelet, with the rights of the pod's containers: edits degrade the node; applies restart, drain, reboot, and survive SIGTERM",
        guest: Guest::Kube,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "systemd acts, and it is the same on all")),
        reboots: true,
        limit: 600,
        without_kubelet: true,
        run: manage::processes::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "units",
        shows: "a reporter as a unit beside the service: another process of its user is refused, and while the clock is wrong nothing is lost or \
                said twice",
        guest: Guest::Kube,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(
            &[],
            "as `daemonset-people`; the part `control plane` has an API server that does not answer before a merge",
        )),
        limit: 600,
        without_kubelet: true,
        run: units::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "demo",
        shows: "the main job: an edit behind a login and sudo, its drift, record, metric, repair and recovery",
        guest: Guest::Systemd,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "it is for people; `node` shows the same and more")),
        limit: 300,
        run: demo::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "node",
        shows: "units, logins, services, containers and editors on a node with systemd",
        guest: Guest::Systemd,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "`thread` and `vectors` show what differs between kernels")),
        limit: 900,
        run: node::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "apply",
        shows: "configs applied under a real systemd: every act, a failing and a hanging one, and a reboot",
        guest: Guest::Systemd,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "systemd acts, and it is the same on all")),
        reboots: true,
        limit: 400,
        run: apply::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "apply-watched",
        shows: "an apply beside the daemon: its own writes are no drift, those of others are, with their actor",
        kernels: &["6.1", "6.12", "6.18", "7.x"],
        by_default: Some(only(&["6.12"], "the journal and the socket are the same on all")),
        run: watched::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "apply-node",
        shows: "an apply of units, drop-ins and keys beside the daemon's service adds no drift to the log",
        guest: Guest::Systemd,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "systemd is the same on all")),
        limit: 300,
        run: watched_node::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "faulty-disk",
        shows: "applies on a full, a failing and a read-only disk, and cuts of the power, leave everything old or everything new",
        kernels: &["6.1", "6.12", "6.18", "7.x"],
        by_default: Some(only(&["6.12"], "the errors are the same on all")),
        limit: 300,
        run: faulty::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "power-cut",
        shows: "cuts of the power behind each line of an apply leave everything old or everything new",
        kernels: &["6.1", "6.12", "6.18", "7.x"],
        by_default: Some(only(&[], "`faulty-disk` cuts behind the lines that matter most")),
        parameters: &["hf.cuts=24"],
        limit: 600,
        run: power::many,
        ..Scenario::USUAL
    },
    Scenario {
        name: "ostree",
        shows: "an ostree host is upgraded and rolled back, each by a real reboot; changes of its image and merges of extensions are reported",
        guest: Guest::Ostree,
        // The kernel of the boot loader alone: the host's own kernels are those of its two versions.
        kernels: &["6.1"],
        reboots: true,
        limit: 900,
        run: ostree::upgrade,
        ..Scenario::USUAL
    },
    Scenario {
        name: "ostree-failures",
        shows: "the same, and an ostree host is brought back from failed upgrades, in eight reboots",
        guest: Guest::Ostree,
        kernels: &["6.1"],
        by_default: Some(only(
            &[],
            "the six further reboots take a tenth of all virtual machines' time; `ostree` has the first two",
        )),
        reboots: true,
        limit: 1800,
        run: ostree::failures,
        ..Scenario::USUAL
    },
    Scenario {
        name: "demo-image",
        shows: "a login replaces a program of an ostree host's image: its record, layer, execution and recovery",
        guest: Guest::Ostree,
        kernels: &["6.1"],
        by_default: Some(only(
            &[],
            "it is for people; `ostree` shows drift, layer and execution, and `image` explains",
        )),
        limit: 600,
        run: demo_image::ostree,
        ..Scenario::USUAL
    },
    Scenario {
        name: "order",
        shows: "a sensor that is replaced or killed while an apply works changes nothing in its result; in `manage` drift under a `revert` rule is written back",
        guest: Guest::Trixie,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "systemd is the same on all")),
        run: order::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "extensions",
        shows: "an overlay or a system extension over /usr and a configuration extension over /etc are one drift with its actor, and an extension with an index is none",
        guest: Guest::Trixie,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "systemd is the same on all")),
        limit: 400,
        run: extensions::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "soft-reboot",
        shows: "soft reboots into another root directory and into the same one: pinned programs live on, no verdict is wrong, and an apply takes one for its reboot",
        guest: Guest::Trixie,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(&["6.12"], "systemd is the same on all")),
        run: soft_reboot::systemd,
        ..Scenario::USUAL
    },
    Scenario {
        name: "soft-reboot-pod",
        shows: "a soft reboot of a node with a real kubelet into another root directory: the pod's sensor takes over the programs and names who \
                edits the new files",
        guest: Guest::KubeTrixie,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(only(
            &[],
            "as `daemonset-people`; `soft-reboot` has the service's sensor before a merge",
        )),
        limit: 900,
        run: soft_reboot_pod::kubelet,
        ..Scenario::USUAL
    },
    Scenario {
        name: "selinux",
        shows: "Holdfast compares, sets and restores labels by the policy of a host that runs SELinux",
        guest: Guest::Selinux,
        by_default: Some(only(&["6.12"], "the policy is the guest's, the same on all")),
        parameters: WITH_SELINUX,
        limit: 900,
        run: selinux::labels,
        ..Scenario::USUAL
    },
    Scenario {
        name: "vectors",
        shows: "every vector on every file system is reported with its actor, or swept",
        by_default: Some(only(&["7.x"], "the newest kernel; `vectors-fentry` runs the table on the oldest")),
        limit: 500,
        run: vectors::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "vectors-fentry",
        shows: "the same with fentry programs, without bpf among the security modules",
        by_default: Some(only(&["5.10"], "the oldest kernel, whose own list of security modules has no bpf")),
        parameters: &[WITHOUT_BPF],
        limit: 500,
        run: vectors::by_fentry,
        ..Scenario::USUAL
    },
    Scenario {
        name: "vectors-host-root",
        shows: "the same for a daemon that sees the host below a bind mount of its root",
        by_default: Some(only(
            &[],
            "the root decides how paths are found, and no hook; `image` has a daemon below another root",
        )),
        limit: 500,
        run: vectors::below_bind_mount,
        ..Scenario::USUAL
    },
    Scenario {
        name: "blindness",
        shows: "each way to blind the sensor ends in a gap or in adoption, never in a wrong verdict or a panic",
        by_default: Some(only(&["6.18"], "an anonymous mapping panicked there; the rest is the same on all")),
        limit: 400,
        run: blindness::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "hanging",
        shows: "a file system that does not answer hides only the things on it",
        by_default: Some(only(&["6.12"], "what it shows is decided in user space")),
        limit: 300,
        run: hanging::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "without-lsm",
        shows: "without bpf among the security modules the daemon uses fentry programs",
        by_default: Some(only(&["6.12"], "`doctor` loads the same programs on all")),
        parameters: &[WITHOUT_BPF],
        run: blindness::without_lsm,
        ..Scenario::USUAL
    },
    Scenario {
        name: "fanotify",
        shows: "if the kernel accepts no program, the daemon uses fanotify and reports that",
        // The guest's root is a tmpfs. On 5.10 it has no file system id, which fanotify needs.
        kernels: &["6.1", "6.12", "6.18", "7.x"],
        by_default: Some(only(&["6.12"], "a fallback; the events are the same since 5.9")),
        parameters: &["lsm=lockdown", "lockdown=confidentiality"],
        run: fanotify::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "upgrade",
        shows: "a daemon that finds the pins of another version replaces them with its own, and reports what it missed",
        by_default: Some(only(&["6.12"], "pins are the same on all")),
        run: upgrade::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "burst",
        shows: "a flood of changes by several writers hides no drift",
        by_default: Some(only(&["6.12"], "the number of changes decides, not the kernel")),
        limit: 300,
        run: burst::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "burst-million",
        shows: "the same with a million changes",
        kernels: &["6.12"],
        by_default: Some(only(&[], "the ring overflows as often in `burst`, in a tenth of the time")),
        limit: 500,
        run: burst::million,
        ..Scenario::USUAL
    },
    Scenario {
        name: "preempted",
        shows: "no change names a wrong program, also if tasks interrupt each other in kernel programs",
        by_default: Some(only(&["7.x"], "older kernels do not preempt lazily")),
        limit: 500,
        run: preempted::bare,
        ..Scenario::USUAL
    },
    Scenario {
        name: "flood",
        shows: "a user with endless refusals or control groups takes no room from others in the ring, the log and memory, and no time",
        by_default: Some(only(&["6.12"], "what it costs is decided in user space")),
        limit: 400,
        run: flood::bare,
        ..Scenario::USUAL
    },
];
