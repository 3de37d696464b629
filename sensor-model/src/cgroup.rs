//! What a cgroup path says about a process: its systemd unit and slice, its container, its pod.
//!
//! Comes in: a path of the cgroup tree, or the text of `/proc/PID/cgroup`. Goes out: a [`Placement`]. A
//! name is taken for what it is by its form and by its place: container ids are 64 hexadecimal digits behind a known
//! runtime's prefix or alone in a container's place. The search ends at the first group below which a user may make
//! groups: a unit, since systemd nests none, or a plain group. Any text is fine and nothing is looked up.

use serde::Serialize;

/// Where a process runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The systemd unit of the *host*: `sshd.service`, `session-3.scope`, `user@1000.service`, `crio-<id>.scope`; or
    /// `lxc.payload.<name>`. A service of a user's systemd, or of one within a container, is not the host's.
    pub unit: Option<String>,
    /// The innermost slice of the host.
    pub slice: Option<String>,
    /// Id of the container, 64 hexadecimal digits; of the outermost, which the host's runtime knows.
    pub container_id: Option<String>,
    /// Uid of the pod, with dashes (or the 32 digits of a static pod).
    pub pod_uid: Option<String>,
    /// Which runtime made the container: `cri-containerd`, `crio`, `docker`, `libpod`, `nerdctl`; unknown
    /// where the path does not tell.
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

/// Where a walk down a path has come to. Below a unit or a plain group the names are those of whoever the group was handed
/// to, which may be any user: only what is listed here is looked into.
#[derive(Clone, Copy)]
enum Place<'a> {
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
    /// The plain group in which a runtime makes its containers.
    Runtime(&'static str),
    /// Somebody else's.
    Delegated,
}

impl Placement {
    /// From one path, `/system.slice/sshd.service`.
    pub fn of_path(path: &str) -> Self {
        let mut placement = Self::default();
        let mut place = Place::Slice("");
        for name in path.trim_end_matches(" (deleted)").split('/').filter(|name| !name.is_empty()) {
            place = placement.descend(place, name);
            if matches!(place, Place::Delegated) {
                break;
            }
        }
        placement
    }

    /// From the text of `/proc/PID/cgroup`: the unified hierarchy where it says something, else those of
    /// version 1, the one that tells most.
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
        // On a tie the first; systemd's own hierarchy says more about units than the others.
        let best = unified.knowledge().max(named.knowledge()).max(other.knowledge());
        [unified, named, other]
            .into_iter()
            .find(|placement| placement.knowledge() == best)
            .unwrap_or_default()
    }

    /// Whether it tells more than a slice, which many share.
    pub fn names_somebody(&self) -> bool {
        self.unit.is_some() || self.container_id.is_some() || self.pod_uid.is_some()
    }

    /// How much it tells, a container first.
    fn knowledge(&self) -> (bool, bool, bool) {
        (self.container_id.is_some(), self.pod_uid.is_some(), self.unit.is_some() || self.slice.is_some())
    }

    /// Takes what the next name of the path says; gives the place that it leads to.
    fn descend<'a>(&mut self, place: Place<'_>, name: &'a str) -> Place<'a> {
        match place {
            Place::Slice(parent) => self.in_slice(parent, name),
            Place::Containerd => self.in_containerd(name),
            Place::Kubelet if matches!(name, "burstable" | "besteffort") => Place::Class,
            Place::Kubelet | Place::Class => {
                self.pod_uid = pod(name);
                if self.pod_uid.is_some() { Place::Pod { is_slice: false } } else { Place::Delegated }
            }
            Place::Pod { is_slice } => {
                if !is_slice || !self.unit(name) {
                    self.container(name, None);
                }
                Place::Delegated
            }
            Place::Runtime(runtime) => {
                self.container(name, Some(runtime));
                Place::Delegated
            }
            Place::Delegated => Place::Delegated,
        }
    }

    /// A group in a slice, which only root makes.
    fn in_slice<'a>(&mut self, parent: &str, name: &'a str) -> Place<'a> {
        if let Some(stem) = name.strip_suffix(".slice") {
            self.slice = Some(name.to_owned());
            let of_pod = stem.strip_prefix(parent).and_then(|rest| rest.strip_prefix('-'));
            self.pod_uid = of_pod.filter(|_| holds_pods(parent)).and_then(pod);
            return if self.pod_uid.is_some() { Place::Pod { is_slice: true } } else { Place::Slice(stem) };
        }
        if self.unit(name) {
            // Containers of a containerd that was set up for plain groups lie below its unit, which is root's.
            return if name == "containerd.service" { Place::Containerd } else { Place::Delegated };
        }
        match name {
            "kubepods" => Place::Kubelet,
            "docker" => Place::Runtime("docker"),
            "libpod_parent" => Place::Runtime("libpod"),
            _ => {
                if name.starts_with("lxc.payload") {
                    self.unit = Some(name.to_owned());
                }
                self.in_containerd(name)
            }
        }
    }

    /// What containerd makes of a systemd name when it was set up for plain groups.
    fn in_containerd<'a>(&mut self, name: &str) -> Place<'a> {
        if let [slice, prefix, id] = name.split(':').collect::<Vec<_>>()[..]
            && is_container_id(id)
        {
            self.container_id = Some(id.to_owned());
            self.runtime =
                RUNTIMES.iter().find(|(_, runtime)| *runtime == prefix).map(|(_, runtime)| *runtime);
            let of_pod = slice.trim_end_matches(".slice").rsplit_once('-');
            self.pod_uid = of_pod.filter(|(parent, _)| holds_pods(parent)).and_then(|(_, name)| pod(name));
        }
        Place::Delegated
    }

    /// A unit of the host's manager, which may be a container's; whether the name is one.
    fn unit(&mut self, name: &str) -> bool {
        let Some(stem) = name.strip_suffix(".scope").or_else(|| name.strip_suffix(".service")) else {
            return false;
        };
        self.unit = Some(name.to_owned());
        self.prefixed(stem);
        true
    }

    /// A plain group in a place of containers.
    fn container(&mut self, name: &str, runtime: Option<&'static str>) {
        if is_container_id(name) {
            self.container_id = Some(name.to_owned());
            self.runtime = runtime;
        } else {
            self.prefixed(name);
        }
    }

    /// A container's id behind a runtime's prefix.
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

/// Whether pods may be in a slice of this name (without the suffix): the kubelet's root, which may lie below another
/// slice, and its classes.
fn holds_pods(slice: &str) -> bool {
    let root =
        slice.strip_suffix("-burstable").or_else(|| slice.strip_suffix("-besteffort")).unwrap_or(slice);
    root == "kubepods" || root.ends_with("-kubepods")
}

/// The uid in `pod<uid>`, the dashes as underscores where the name is a slice's.
fn pod(name: &str) -> Option<String> {
    let uid = name.strip_prefix("pod")?.replace('_', "-");
    let lengths: Vec<usize> = uid.split('-').map(str::len).collect();
    let digits = uid.chars().all(|digit| digit == '-' || digit.is_ascii_hexdigit());
    // A static pod's uid is the digest of its manifest.
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
    fn a_user_who_makes_groups_below_what_was_handed_to_them_is_no_other_unit_pod_or_container() {
        let handed = [
            ("/user.slice/user-1000.slice/user@1000.service", Some("user@1000.service")),
            ("/user.slice/user-1000.slice/session-3.scope", Some("session-3.scope")),
            ("/system.slice/web.service", Some("web.service")),
            ("/system.slice/containerd.service", Some("containerd.service")),
            ("/machine.slice/machine-a.scope", Some("machine-a.scope")),
            ("/lxc.payload.a", Some("lxc.payload.a")),
            // As libpam-cgfs hands them out.
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
    fn a_pod_is_one_only_in_the_kubelets_groups_and_a_container_only_in_a_pod_or_a_runtimes_group() {
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
    fn the_hierarchy_that_says_most_counts() {
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
