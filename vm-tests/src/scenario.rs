//! A row of the table of scenarios.
//!
//! In: the constants of the table. Out: what the host needs to start a guest, and the function that the guest runs.

use std::time::Duration;

use crate::guest::Context;

/// What kind of system the scenario needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// An initramfs with busybox; boots in a few seconds.
    Bare,
    /// Debian with systemd, D-Bus, sudo and sshd, and a user `alice` who may use sudo.
    Systemd,
    /// A newer Debian, whose systemd has soft reboots, without logins.
    Trixie,
    /// That of `Systemd` as an ostree host: two versions in the disk's repository, the first one deployed.
    Ostree,
    /// That of `Systemd` with SELinux's policy, every file labelled by it.
    Selinux,
    /// That of `Systemd` as a Kubernetes node, with containerd and kubelet. Its control plane runs on the host.
    Kube,
    /// The same on the newer Debian, whose systemd has soft reboots.
    KubeTrixie,
}

impl Guest {
    /// Those with a root disk.
    pub const WITH_A_DISK: [Self; 6] =
        [Self::Systemd, Self::Trixie, Self::Ostree, Self::Selinux, Self::Kube, Self::KubeTrixie];

    /// Its name on command lines and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Systemd => "systemd",
            Self::Trixie => "trixie",
            Self::Ostree => "ostree",
            Self::Selinux => "selinux",
            Self::Kube => "kube",
            Self::KubeTrixie => "kube-trixie",
        }
    }

    /// Whether it is a Kubernetes node.
    pub fn is_kubernetes_node(self) -> bool {
        matches!(self, Self::Kube | Self::KubeTrixie)
    }
}

/// The kernels on which `cargo xtask test` runs a scenario before each merge. Only `--full` runs it on the others.
#[derive(Debug)]
pub struct ByDefault {
    /// Kernel series.
    pub kernels: &'static [&'static str],
    /// Why these are enough before each merge.
    pub because: &'static str,
}

/// One scenario.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one property of a scenario")]
pub struct Scenario {
    /// Its name, unique among those of the same guest.
    pub name: &'static str,
    /// What it shows, in one line.
    pub shows: &'static str,
    /// The kind of guest that it needs.
    pub guest: Guest,
    /// The kernel series on which it can run; empty means all.
    pub kernels: &'static [&'static str],
    /// The ones of these on which `cargo xtask test` runs it; `None` means all of them.
    pub by_default: Option<ByDefault>,
    /// More kernel parameters; a later one overrides an earlier one of the same name. Scenarios with the same guest,
    /// kernel and parameters share one boot.
    pub parameters: &'static [&'static str],
    /// Whether the scenario reboots its guest. A guest that reboots without this has failed.
    pub reboots: bool,
    /// Whether the guest gets the `holdfast` binary.
    pub needs_holdfast: bool,
    /// Whether a Prometheus on the host scrapes the reporter in the guest. Only for a guest with a kubelet.
    pub needs_prometheus: bool,
    /// Whether a guest that could be a Kubernetes node starts neither containerd nor kubelet, and so is no heavier than others.
    pub without_kubelet: bool,
    /// Whether the guest gets a disk with a `/usr` for dm-verity, whose root hash the kernel's arguments name.
    pub needs_sealed_usr: bool,
    /// Seconds that it may take on a host that has nothing else to do. The host gives up after [`Scenario::longest`].
    pub limit: u64,
    /// The scenario's code.
    pub run: fn(&mut Context) -> anyhow::Result<()>,
}

/// Bytes of the file system on the disk of [`Scenario::needs_sealed_usr`]. The hashes are behind it.
pub const SEALED_USR_BYTES: u64 = 4 << 20;

impl Scenario {
    /// The defaults of a row of the table.
    pub(crate) const USUAL: Self = Self {
        name: "",
        shows: "",
        guest: Guest::Bare,
        kernels: &[],
        by_default: None,
        parameters: &[],
        reboots: false,
        needs_holdfast: true,
        needs_prometheus: false,
        without_kubelet: false,
        needs_sealed_usr: false,
        limit: 240,
        run: |_| anyhow::bail!("this row of the table has no function"),
    };

    /// How long the host waits. One that also runs other guests gets a multiple of the limit.
    pub fn longest(&self) -> Duration {
        const PATIENCE: u32 = 2;
        Duration::from_secs(self.limit) * PATIENCE
    }

    /// Whether it runs on a kernel series: with `full` on all on which it can, otherwise on its default ones.
    pub fn runs_on(&self, series: &str, full: bool) -> bool {
        let can = self.kernels.is_empty() || self.kernels.contains(&series);
        let does = self.by_default.as_ref().is_none_or(|by_default| by_default.kernels.contains(&series));
        can && (full || does)
    }
}
