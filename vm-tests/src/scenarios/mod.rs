//! The table of scenarios.
//!
//! Comes in: nothing. Goes out: for each scenario its guest, its kernels and what the kernel is told at boot; the
//! host reads the table to start guests, the guest reads it to find the function. A scenario reports each of its
//! checks; an error or a panic in it is a failed check of its own.

mod apply;
mod blindness;
pub(crate) mod burst;
mod demo;
mod deny;
mod deny_actors;
mod deny_node;
mod deny_ways;
mod doctor;
mod duties;
mod fanotify;
mod faulty;
mod faulty_disk;
mod faulty_state;
pub(crate) mod flood;
mod groups;
mod hanging;
mod node;
mod ostree;
mod power;
mod restarts;
mod selinux;
mod simple;
mod smoke;
mod thread;
mod upgrade;
pub(crate) mod vectors;
mod watched;
mod watched_node;
mod ways;

use crate::guest::Context;

/// What kind of system the scenario needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// An initramfs with busybox; boots in a few seconds.
    Bare,
    /// Debian with systemd, D-Bus, sudo and sshd, and a user `alice` who may use sudo.
    Systemd,
    /// The same as an ostree host: two versions in the disk's repository, the first one deployed.
    Ostree,
    /// The same with SELinux's policy, every file labelled by it.
    Selinux,
}

impl Guest {
    /// Its name on command lines and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Systemd => "systemd",
            Self::Ostree => "ostree",
            Self::Selinux => "selinux",
        }
    }
}

/// A part of the kernels, for tests that take long: everything together is to take a quarter of an hour.
#[derive(Debug)]
pub struct ByDefault {
    /// Kernel series.
    pub kernels: &'static [&'static str],
    /// Why these are enough before each merge. All others run with `cargo xtask test --full`.
    pub because: &'static str,
}

/// One thing that is shown in a virtual machine.
#[derive(Debug)]
pub struct Scenario {
    /// Its name, unique among those of the same guest.
    pub name: &'static str,
    /// What it shows, in one line.
    pub shows: &'static str,
    /// Where it runs.
    pub guest: Guest,
    /// The kernel series it runs on; empty means all.
    pub kernels: &'static [&'static str],
    /// Where `cargo xtask test` runs it of those, and why not on all; `None` means on all of them.
    pub by_default: Option<ByDefault>,
    /// More kernel parameters; a later one overrides an earlier one of the same name.
    pub parameters: &'static [&'static str],
    /// Whether the guest gets the `holdfast` binary.
    pub needs_holdfast: bool,
    /// Seconds after which the host gives up.
    pub limit: u64,
    /// What is done.
    pub run: fn(&mut Context) -> anyhow::Result<()>,
}

impl Scenario {
    /// Whether it runs on a kernel series; with `full` wherever it can, else where it does by default.
    pub fn runs_on(&self, series: &str, full: bool) -> bool {
        let can = self.kernels.is_empty() || self.kernels.contains(&series);
        let does = self.by_default.as_ref().is_none_or(|by_default| by_default.kernels.contains(&series));
        can && (full || does)
    }
}

/// Security modules without `bpf`.
const WITHOUT_BPF: &str = "lsm=lockdown,yama,apparmor";

/// SELinux among the security modules, before `bpf`.
const WITH_SELINUX: &[&str] = &["lsm=landlock,lockdown,yama,selinux,bpf", "selinux=1"];

/// All scenarios, in the order in which they are run.
pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "smoke",
        shows: "the bare guest has what the other scenarios build on",
        guest: Guest::Bare,
        kernels: &[],
        by_default: None,
        parameters: &[],
        needs_holdfast: false,
        limit: 120,
        run: smoke::bare,
    },
    Scenario {
        name: "smoke",
        shows: "systemd, a real login and sudo work in the systemd guest",
        guest: Guest::Systemd,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["5.10", "6.18"],
            because: "on the others a longer scenario boots the same guest and logs in",
        }),
        parameters: &[],
        needs_holdfast: false,
        limit: 180,
        run: smoke::systemd,
    },
    Scenario {
        name: "doctor",
        shows: "the kernel takes every program, in both modes",
        guest: Guest::Bare,
        kernels: &[],
        by_default: None,
        parameters: &[],
        needs_holdfast: true,
        limit: 180,
        run: doctor::bare,
    },
    Scenario {
        name: "groups",
        shows: "with control groups of version 1, containers, pods and units of processes that are gone",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["5.10", "6.12"],
            because: "the oldest, on which such hosts run, and the one of the budgets",
        }),
        parameters: &[],
        needs_holdfast: true,
        limit: 180,
        run: groups::bare,
    },
    Scenario {
        name: "ways",
        shows: "real paths of mounts, directories that enable units and foreign file systems hide nothing",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault { kernels: &["6.12"], because: "what it shows is decided in user space" }),
        parameters: &[],
        needs_holdfast: true,
        limit: 300,
        run: ways::bare,
    },
    Scenario {
        name: "deny",
        shows: "a deny rule refuses changes to all but the allowed actors, and records them",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["5.10", "6.12", "7.x"],
            because: "those left out lie between them",
        }),
        parameters: &[],
        needs_holdfast: true,
        limit: 240,
        run: deny::bare,
    },
    Scenario {
        name: "thread",
        shows: "one edit of one file: drift with its actor, recovery, touch, and nothing else",
        guest: Guest::Bare,
        kernels: &[],
        by_default: None,
        parameters: &[],
        needs_holdfast: true,
        limit: 240,
        run: thread::bare,
    },
    Scenario {
        name: "demo",
        shows: "the main job: an edit behind a login and sudo, its drift, record, metric, repair and recovery",
        guest: Guest::Systemd,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(ByDefault {
            kernels: &["6.12"],
            because: "it is for people; `node` shows the same and more",
        }),
        parameters: &[],
        needs_holdfast: true,
        limit: 300,
        run: demo::systemd,
    },
    Scenario {
        name: "node",
        shows: "units, logins, services, containers and editors on a node with systemd",
        guest: Guest::Systemd,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(ByDefault {
            kernels: &["6.12"],
            because: "three minutes each; what differs between kernels is shown by `thread` and `vectors`",
        }),
        parameters: &[],
        needs_holdfast: true,
        limit: 900,
        run: node::systemd,
    },
    Scenario {
        name: "apply",
        shows: "configs applied under a real systemd: every act, a failing and a hanging one, and a reboot",
        guest: Guest::Systemd,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(ByDefault {
            kernels: &["6.1", "7.x"],
            because: "what acts is systemd, the same on all",
        }),
        parameters: &["hf.reboots=1"],
        needs_holdfast: true,
        limit: 400,
        run: apply::systemd,
    },
    Scenario {
        name: "apply-watched",
        shows: "an apply with the daemon beside it: its own writes are no drift, somebody else's are, with their actor",
        guest: Guest::Bare,
        kernels: &["6.1", "6.12", "6.18", "7.x"],
        by_default: Some(ByDefault {
            kernels: &["6.12"],
            because: "the journal and the socket are the same on all",
        }),
        parameters: &[],
        needs_holdfast: true,
        limit: 240,
        run: watched::bare,
    },
    Scenario {
        name: "apply-node",
        shows: "an apply of units, drop-ins and keys beside the daemon's service is no news in its log",
        guest: Guest::Systemd,
        kernels: &["6.1", "6.12", "7.x"],
        by_default: Some(ByDefault { kernels: &["6.12"], because: "systemd is the same on all" }),
        parameters: &[],
        needs_holdfast: true,
        limit: 300,
        run: watched_node::systemd,
    },
    Scenario {
        name: "faulty-disk",
        shows: "applies on a full, a failing and a read-only disk, and cuts of the power, leave everything old or everything new",
        guest: Guest::Bare,
        kernels: &["6.1", "6.12", "6.18", "7.x"],
        by_default: Some(ByDefault { kernels: &["6.12"], because: "the errors are the same on all" }),
        parameters: &[],
        needs_holdfast: true,
        limit: 300,
        run: faulty::bare,
    },
    Scenario {
        name: "power-cut",
        shows: "cuts of the power behind each line of an apply leave everything old or everything new",
        guest: Guest::Bare,
        kernels: &["6.1", "6.12", "6.18", "7.x"],
        by_default: Some(ByDefault {
            kernels: &[],
            because: "`faulty-disk` cuts behind the lines that matter most",
        }),
        parameters: &["hf.cuts=24"],
        needs_holdfast: true,
        limit: 600,
        run: power::many,
    },
    Scenario {
        name: "ostree",
        shows: "an ostree host is upgraded, rolled back and brought back from failed upgrades, each by a real reboot",
        guest: Guest::Ostree,
        // That of the boot loader alone: the host's own are those of its two versions.
        kernels: &["6.1"],
        by_default: None,
        parameters: &["hf.reboots=1"],
        needs_holdfast: true,
        limit: 1800,
        run: ostree::upgrade,
    },
    Scenario {
        name: "selinux",
        shows: "labels are compared with the policy of a host that runs SELinux, written by it and put back",
        guest: Guest::Selinux,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["6.1", "6.12"],
            because: "the policy is the guest's, the same on all",
        }),
        parameters: WITH_SELINUX,
        needs_holdfast: true,
        limit: 900,
        run: selinux::labels,
    },
    Scenario {
        name: "vectors",
        shows: "every vector on every file system is reported with its actor, or swept",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["6.1", "6.12", "7.x"],
            because: "a minute each; the oldest and the one between are run before a release",
        }),
        parameters: &[],
        needs_holdfast: true,
        limit: 500,
        run: vectors::bare,
    },
    Scenario {
        name: "vectors-fentry",
        shows: "the same without bpf among the security modules, where fentry sees them",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["5.10"],
            because: "its list of security modules has no bpf unless it is told so",
        }),
        parameters: &[WITHOUT_BPF],
        needs_holdfast: true,
        limit: 500,
        run: vectors::by_fentry,
    },
    Scenario {
        name: "blindness",
        shows: "what blinds the sensor ends in a gap or in adoption, never in a wrong word or a panic",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["6.12", "6.18"],
            because: "where an anonymous mapping panicked; the other ways are alike on all",
        }),
        parameters: &[],
        needs_holdfast: true,
        limit: 400,
        run: blindness::bare,
    },
    Scenario {
        name: "hanging",
        shows: "a file system that does not answer hides nothing but what lies on it",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault { kernels: &["6.12"], because: "what it shows is decided in user space" }),
        parameters: &[],
        needs_holdfast: true,
        limit: 300,
        run: hanging::bare,
    },
    Scenario {
        name: "without-lsm",
        shows: "without bpf among the security modules the daemon sees through fentry",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["6.12"],
            because: "`doctor` loads the same programs on all",
        }),
        parameters: &[WITHOUT_BPF],
        needs_holdfast: true,
        limit: 240,
        run: blindness::without_lsm,
    },
    Scenario {
        name: "fanotify",
        shows: "where the kernel takes no program, changes are seen through fanotify, and that is said",
        guest: Guest::Bare,
        // On 5.10 a tmpfs, which the guest's root is, has no number by which fanotify could name it.
        kernels: &["6.1", "6.12", "6.18", "7.x"],
        by_default: Some(ByDefault {
            kernels: &["6.12"],
            because: "a fallback; the events are the same since 5.9",
        }),
        parameters: &["lsm=lockdown", "lockdown=confidentiality"],
        needs_holdfast: true,
        limit: 240,
        run: fanotify::bare,
    },
    Scenario {
        name: "upgrade",
        shows: "a daemon that finds the pins of another version puts its own in their place, and says what it missed",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault { kernels: &["6.12"], because: "pins are the same on all" }),
        parameters: &[],
        needs_holdfast: true,
        limit: 240,
        run: upgrade::bare,
    },
    Scenario {
        name: "burst",
        shows: "a flood of changes by several writers hides no drift",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault {
            kernels: &["6.12"],
            because: "the number of changes decides, not the kernel",
        }),
        parameters: &[],
        needs_holdfast: true,
        limit: 500,
        run: burst::bare,
    },
    Scenario {
        name: "flood",
        shows: "a user who is refused without end takes no room from others, in the ring, the log and memory",
        guest: Guest::Bare,
        kernels: &[],
        by_default: Some(ByDefault { kernels: &["6.12"], because: "what it costs is decided in user space" }),
        parameters: &[],
        needs_holdfast: true,
        limit: 240,
        run: flood::bare,
    },
];

/// Finds a scenario.
pub fn find(guest: &str, name: &str) -> Option<&'static Scenario> {
    let all = SCENARIOS.iter().chain([&crate::bench::SCENARIO, &crate::bench::many::SCENARIO]);
    all.into_iter().find(|scenario| scenario.name == name && scenario.guest.name() == guest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_is_found_by_its_guest_and_name_and_no_two_share_them() {
        for scenario in SCENARIOS {
            let found = find(scenario.guest.name(), scenario.name).expect("in the table");
            assert!(std::ptr::eq(found, scenario), "{} is there twice", scenario.name);
        }
    }
}
