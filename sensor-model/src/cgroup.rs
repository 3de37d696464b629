//! A process's systemd unit and slice, its container and its pod, by its cgroup path.
//!
//! In: a path of the cgroup tree, or the text of `/proc/PID/cgroup`; any text is valid. Out: a [`Placement`]. The meaning of a
//! name depends on its form and its parent group. A container id has 64 hexadecimal digits, after a runtime's prefix or alone.
//! The search ends at the first group below which a user may create groups: a unit (systemd nests no units) or a plain group.

use serde::Serialize;

/// The owner of a process's control group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The systemd unit of the *host*: `sshd.service`, `session-3.scope`, `user@1000.service`, `crio-<id>.scope`; or
    /// `lxc.payload.<name>`. A service of a user's systemd, or of one within a container, is not the host's.
    pub unit: Option<String>,
    /// The innermost slice of the host.
    pub slice: Option<String>,
    /// Id of the container, 64 hexadecimal digits. Of nested containers the outermost, which the host's runtime created.
    pub container_id: Option<String>,
    /// Uid of the pod, with dashes (or the 32 digits of a static pod).
    pub pod_uid: Option<String>,
    /// The container's runtime: `cri-containerd`, `crio`, `docker`, `libpod`, `nerdctl`; `None` if the path does not show it.
    pub runtime: Option<&'static str>,
}

/// Prefixes of scopes and their runtimes.
const RUNTIMES: [(&str, &str); 6] = [
    ("cri-containerd-", "cri-containerd"),
    ("crio-", "crio"),
    ("docker-", "docker"),
    ("libpod-", "libpod"),
    ("nerdctl-", "nerdctl"),
    ("containerd-", "containerd"),
];

/// The kind of a group on the path. Below a unit or a plain group any user may have created the groups, so the search enters only
/// the kinds listed here.
#[derive(Clone, Copy)]
enum GroupKind<'a> {
    /// The root (an empty text), or a slice of the host's manager by its name without the suffix.
    Slice(&'a str),
    /// `containerd.service` of the host.
    Containerd,
    /// The kubelet's root among plain groups.
    Kubelet,
    /// A class of pods below it: `burstable` or `besteffort`.
    Class,
    /// A pod, and whether it is a slice: only then its groups may be units.
    Pod { is_slice: bool },
    /// The plain group in which a runtime creates its containers.
    Runtime(&'static str),
    /// Any other group: a user may have created the groups below it.
    Delegated,
}

impl Placement {
    /// Reads one path, `/system.slice/sshd.service`.
    pub fn of_path(path: &str) -> Self {
        let mut placement = Self::default();
        let mut group = GroupKind::Slice("");
        for name in path.trim_end_matches(" (deleted)").split('/').filter(|name| !name.is_empty()) {
            group = placement.descend(group, name);
            if matches!(group, GroupKind::Delegated) {
                break;
            }
        }
        placement
    }

    /// Reads the text of `/proc/PID/cgroup`: the hierarchy with the most information. Of equal ones the unified hierarchy comes
    /// first.
    pub fn of_proc(text: &str) -> Self {
        let (mut unified, mut named, mut other) = (Self::default(), Self::default(), Self::default());
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let placement = Self::of_path(path);
            match controllers {
                "" => unified = placement,
                "name=systemd" => named = placement,
                _ if other.knowledge() < placement.knowledge() => other = placement,
                _ => {}
            }
        }
        // systemd's own hierarchy comes before the other ones of version 1, because it always has the unit.
        let best = unified.knowledge().max(named.knowledge()).max(other.knowledge());
        [unified, named, other]
            .into_iter()
            .find(|placement| placement.knowledge() == best)
            .unwrap_or_default()
    }

    /// Whether it has more than a slice, which many processes share.
    pub fn is_specific(&self) -> bool {
        self.unit.is_some() || self.container_id.is_some() || self.pod_uid.is_some()
    }

    /// Sort key for the amount of information, a container first.
    fn knowledge(&self) -> (bool, bool, bool) {
        (self.container_id.is_some(), self.pod_uid.is_some(), self.unit.is_some() || self.slice.is_some())
    }

    /// Reads the next name of the path. Returns the kind of its group.
    fn descend<'a>(&mut self, parent: GroupKind<'_>, name: &'a str) -> GroupKind<'a> {
        match parent {
            GroupKind::Slice(parent) => self.in_slice(parent, name),
            GroupKind::Containerd => self.in_containerd(name),
            GroupKind::Kubelet if matches!(name, "burstable" | "besteffort") => GroupKind::Class,
            GroupKind::Kubelet | GroupKind::Class => {
                self.pod_uid = pod(name);
                if self.pod_uid.is_some() { GroupKind::Pod { is_slice: false } } else { GroupKind::Delegated }
            }
            GroupKind::Pod { is_slice } => {
                if !is_slice || !self.unit(name) {
                    self.container(name, None);
                }
                GroupKind::Delegated
            }
            GroupKind::Runtime(runtime) => {
                self.container(name, Some(runtime));
                GroupKind::Delegated
            }
            GroupKind::Delegated => GroupKind::Delegated,
        }
    }

    /// Reads a group in a slice, which only root creates.
    fn in_slice<'a>(&mut self, parent: &str, name: &'a str) -> GroupKind<'a> {
        if let Some(stem) = name.strip_suffix(".slice") {
            self.slice = Some(name.to_owned());
            let of_pod = stem.strip_prefix(parent).and_then(|rest| rest.strip_prefix('-'));
            self.pod_uid = of_pod.filter(|_| holds_pods(parent)).and_then(pod);
            return if self.pod_uid.is_some() {
                GroupKind::Pod { is_slice: true }
            } else {
                GroupKind::Slice(stem)
            };
        }
        if self.unit(name) {
            // A containerd with the cgroupfs driver creates containers below its own unit, which belongs to root.
            return if name == "containerd.service" { GroupKind::Containerd } else { GroupKind::Delegated };
        }
        match name {
            "kubepods" => GroupKind::Kubelet,
            "docker" => GroupKind::Runtime("docker"),
            "libpod_parent" => GroupKind::Runtime("libpod"),
            _ => {
                if name.starts_with("lxc.payload") {
                    self.unit = Some(name.to_owned());
                }
                self.in_containerd(name)
            }
        }
    }

    /// Reads `slice:prefix:id`, the name that containerd with the cgroupfs driver gives a group if the kubelet uses systemd's.
    fn in_containerd<'a>(&mut self, name: &str) -> GroupKind<'a> {
        if let [slice, prefix, id] = name.split(':').collect::<Vec<_>>()[..]
            && is_container_id(id)
        {
            self.container_id = Some(id.to_owned());
            self.runtime =
                RUNTIMES.iter().find(|(_, runtime)| *runtime == prefix).map(|(_, runtime)| *runtime);
            let of_pod = slice.trim_end_matches(".slice").rsplit_once('-');
            self.pod_uid = of_pod.filter(|(parent, _)| holds_pods(parent)).and_then(|(_, name)| pod(name));
        }
        GroupKind::Delegated
    }

    /// Reads a unit of the host's systemd, which may be a container's. Returns whether the name is a unit's.
    fn unit(&mut self, name: &str) -> bool {
        let Some(stem) = name.strip_suffix(".scope").or_else(|| name.strip_suffix(".service")) else {
            return false;
        };
        self.unit = Some(name.to_owned());
        self.prefixed(stem);
        true
    }

    /// Reads a plain group in a parent group of containers.
    fn container(&mut self, name: &str, runtime: Option<&'static str>) {
        if is_container_id(name) {
            self.container_id = Some(name.to_owned());
            self.runtime = runtime;
        } else {
            self.prefixed(name);
        }
    }

    /// Reads a container's id after a runtime's prefix.
    fn prefixed(&mut self, stem: &str) {
        for (prefix, runtime) in RUNTIMES {
            if let Some(id) = stem.strip_prefix(prefix)
                && is_container_id(id)
            {
                self.container_id = Some(id.to_owned());
                self.runtime = Some(runtime);
                return;
            }
        }
    }
}

/// Whether a slice of this name (without the suffix) may have pods: the kubelet's root slice or one of its classes.
fn holds_pods(slice: &str) -> bool {
    let root =
        slice.strip_suffix("-burstable").or_else(|| slice.strip_suffix("-besteffort")).unwrap_or(slice);
    root == "kubepods" || root.ends_with("-kubepods")
}

/// The uid in `pod<uid>`. The name of a slice has underscores for the dashes.
fn pod(name: &str) -> Option<String> {
    let uid = name.strip_prefix("pod")?.replace('_', "-");
    let lengths: Vec<usize> = uid.split('-').map(str::len).collect();
    let digits = uid.chars().all(|digit| digit == '-' || digit.is_ascii_hexdigit());
    // The uid of a static pod is the digest of its manifest.
    (digits && (lengths == [8, 4, 4, 4, 12] || lengths == [32])).then_some(uid)
}

fn is_container_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4d1a5b0f3c2e9d8776655443322110ffeeddccbbaa99887766554433221100aa";
    const UID: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
    const UID_: &str = "2b6f1d3e_8c47_4d0a_9e51_7a3c5b8d9f10";
    const STATIC: &str = "0123456789abcdef0123456789abcdef";

    /// Path (`ID`, `UID_`, `UID` and `STATIC` filled in), then unit, slice, is a container, pod, runtime.
    type Case = (
        &'static str,
        Option<&'static str>,
        Option<&'static str>,
        bool,
        Option<&'static str>,
        Option<&'static str>,
    );

    const CASES: [Case; 27] = [
        ("/", None, None, false, None, None),
        ("/init.scope", Some("init.scope"), None, false, None, None),
        ("/system.slice/sshd.service", Some("sshd.service"), Some("system.slice"), false, None, None),
        (
            "/system.slice/system-getty.slice/getty@tty1.service",
            Some("getty@tty1.service"),
            Some("system-getty.slice"),
            false,
            None,
            None,
        ),
        (
            "/user.slice/user-1000.slice/session-3.scope",
            Some("session-3.scope"),
            Some("user-1000.slice"),
            false,
            None,
            None,
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-foo.service",
            Some("user@1000.service"),
            Some("user-1000.slice"),
            false,
            None,
            None,
        ),
        ("/system.slice/foo.service (deleted)", Some("foo.service"), Some("system.slice"), false, None, None),
        (
            "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope",
            Some("machine-qemu\\x2d1\\x2dvm.scope"),
            Some("machine.slice"),
            false,
            None,
            None,
        ),
        // kubelet with the systemd driver
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID_.slice/cri-containerd-ID.scope",
            Some("cri-containerd-ID.scope"),
            Some("kubepods-burstable-podUID_.slice"),
            true,
            Some(UID),
            Some("cri-containerd"),
        ),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID_.slice/crio-ID.scope",
            Some("crio-ID.scope"),
            Some("kubepods-besteffort-podUID_.slice"),
            true,
            Some(UID),
            Some("crio"),
        ),
        (
            "/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope/container",
            Some("crio-ID.scope"),
            Some("kubepods-podUID_.slice"),
            true,
            Some(UID),
            Some("crio"),
        ),
        (
            "/kubepods.slice/kubepods-podUID_.slice/docker-ID.scope",
            Some("docker-ID.scope"),
            Some("kubepods-podUID_.slice"),
            true,
            Some(UID),
            Some("docker"),
        ),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podSTATIC.slice/crio-ID.scope",
            Some("crio-ID.scope"),
            Some("kubepods-burstable-podSTATIC.slice"),
            true,
            Some(STATIC),
            Some("crio"),
        ),
        (
            "/kubepods.slice/kubepods-podUID_.slice/crio-conmon-ID.scope",
            Some("crio-conmon-ID.scope"),
            Some("kubepods-podUID_.slice"),
            false,
            Some(UID),
            None,
        ),
        (
            "/system.slice/containerd.service/kubepods-burstable-podUID_.slice:cri-containerd:ID",
            Some("containerd.service"),
            Some("system.slice"),
            true,
            Some(UID),
            Some("cri-containerd"),
        ),
        // kubelet with the cgroupfs driver
        ("/kubepods/burstable/podUID/ID", None, None, true, Some(UID), None),
        ("/kubepods/podUID/ID", None, None, true, Some(UID), None),
        ("/kubepods/besteffort/podUID", None, None, false, Some(UID), None),
        ("/kubepods/podUID/crio-ID", None, None, true, Some(UID), Some("crio")),
        // a systemd within a container, and kind: the host's view comes first
        (
            "/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope/system.slice/httpd.service",
            Some("crio-ID.scope"),
            Some("kubepods-podUID_.slice"),
            true,
            Some(UID),
            Some("crio"),
        ),
        (
            "/system.slice/docker-ID.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUID_.slice/cri-containerd-ID.scope",
            Some("docker-ID.scope"),
            Some("system.slice"),
            true,
            None,
            Some("docker"),
        ),
        // without Kubernetes
        (
            "/system.slice/docker-ID.scope",
            Some("docker-ID.scope"),
            Some("system.slice"),
            true,
            None,
            Some("docker"),
        ),
        ("/docker/ID", None, None, true, None, Some("docker")),
        (
            "/machine.slice/libpod-ID.scope/container",
            Some("libpod-ID.scope"),
            Some("machine.slice"),
            true,
            None,
            Some("libpod"),
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope",
            Some("user@1000.service"),
            Some("user-1000.slice"),
            false,
            None,
            None,
        ),
        ("/libpod_parent/libpod-ID", None, None, true, None, Some("libpod")),
        // no ids
        (
            "/system.slice/docker-abc.scope/podnot-a-uid",
            Some("docker-abc.scope"),
            Some("system.slice"),
            false,
            None,
            None,
        ),
    ];

    fn fill(text: &str) -> String {
        text.replace("UID_", UID_).replace("UID", UID).replace("STATIC", STATIC).replace("ID", ID)
    }

    #[test]
    fn every_runtime_and_driver_is_read() {
        for (path, unit, slice, container, pod, runtime) in CASES {
            let expected = Placement {
                unit: unit.map(fill),
                slice: slice.map(fill),
                container_id: container.then(|| ID.to_owned()),
                pod_uid: pod.map(str::to_owned),
                runtime,
            };
            assert_eq!(Placement::of_path(&fill(path)), expected, "{path}");
        }
    }

    #[test]
    fn groups_that_a_user_makes_below_a_delegated_one_change_neither_unit_nor_pod_nor_container() {
        let handed = [
            ("/user.slice/user-1000.slice/user@1000.service", Some("user@1000.service")),
            ("/user.slice/user-1000.slice/session-3.scope", Some("session-3.scope")),
            ("/system.slice/web.service", Some("web.service")),
            ("/system.slice/containerd.service", Some("containerd.service")),
            ("/machine.slice/machine-a.scope", Some("machine-a.scope")),
            ("/lxc.payload.a", Some("lxc.payload.a")),
            // Created by libpam-cgfs.
            ("/user/alice/0", None),
        ];
        let made = [
            "app.slice/x.service",
            "system.slice/sshd.service",
            "init.scope",
            "sshd.service",
            "kubepods.slice/kubepods-podUID_.slice/crio-ID.scope",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID_.slice",
            "kubepods-podUID_.slice",
            "kubepods/podUID/ID",
            "kubepods/burstable/podUID",
            "podUID",
            "podUID/ID",
            "docker/ID",
            "docker-ID.scope",
            "ID",
            "user.slice/user-0.slice/session-1.scope",
        ];
        for (path, unit) in handed {
            let own = Placement::of_path(path);
            assert_eq!(
                (own.unit.as_deref(), &own.pod_uid, &own.container_id),
                (unit, &None, &None),
                "{path}"
            );
            for made in made {
                let path = fill(&format!("{path}/{made}"));
                assert_eq!(Placement::of_path(&path), own, "{path}");
                assert_eq!(Placement::of_proc(&format!("0::{path}\n")), own, "{path}");
            }
        }
    }

    #[test]
    fn a_pod_is_accepted_only_in_the_kubelets_groups_and_a_container_only_in_a_pod_or_a_runtimes_group() {
        for path in [
            "/system.slice/kubepods-podUID_.slice",
            "/a.slice/a-podUID_.slice/crio-conmon-ID.scope",
            "/kubepods.slice/podUID_.slice",
            "/kubepods.slice/kubepods-guaranteed.slice/kubepods-guaranteed-podUID_.slice",
            "/kubepods/guaranteed/podUID",
            "/kubepods/x/podUID/ID",
            "/x/kubepods/podUID/ID",
            "/podUID/ID",
            "/ID",
            "/x/ID",
            "/docker/x/ID",
            "/system.slice:cri-containerd:ID/podUID",
        ] {
            let placement = Placement::of_path(&fill(path));
            assert_eq!(placement.pod_uid, None, "{path}");
            assert!(placement.container_id.is_none() || path.contains(':'), "{path}");
        }
        let below_another =
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUID_.slice/crio-ID.scope";
        assert_eq!(Placement::of_path(&fill(below_another)).pod_uid.as_deref(), Some(UID));
    }

    #[test]
    fn the_hierarchy_with_the_most_facts_is_used() {
        let v1 = fill("12:pids:/kubepods/podUID/ID\n3:cpu,cpuacct:/\n1:name=systemd:/kubepods/podUID/ID\n");
        assert_eq!(Placement::of_proc(&v1).pod_uid.as_deref(), Some(UID));
        let hybrid =
            fill("5:memory:/docker/ID\n1:name=systemd:/system.slice/x.service\n0::/system.slice/x.service\n");
        assert_eq!(Placement::of_proc(&hybrid).container_id.as_deref(), Some(ID));
        let session = "1:name=systemd:/user.slice/user-0.slice/session-1.scope\n0::/\n";
        assert_eq!(Placement::of_proc(session).unit.as_deref(), Some("session-1.scope"));
        assert_eq!(Placement::of_proc("0::/a.service\n").unit.as_deref(), Some("a.service"));
        for nothing in ["", "0::", "garbage", "0::/\n", ":::::\n"] {
            assert_eq!(Placement::of_proc(nothing), Placement::default(), "{nothing:?}");
        }
    }
}
