//! The cgroup hierarchy in which services and containers have their groups.
//!
//! In: the text of `/proc/PID/cgroup`, and lines of the mount table. Out: a [`Hierarchy`], and a process's path in it. If
//! controllers are bound to hierarchies of version 1, container runtimes create their groups there, and not in version 2.

use super::mountinfo::Mount;

/// Controllers in whose hierarchy of version 1 every container and every service has a group: `pids`, which systemd sets
/// everywhere, and `memory`. Some hosts mount other controllers alone (`net_cls`) and use version 2 for everything else.
const CONTROLLERS: [&str; 2] = ["pids", "memory"];

/// A hierarchy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hierarchy {
    /// The kernel's number; 0 is that of version 2.
    pub number: u32,
    /// The controller of a hierarchy of version 1; `None` for version 2.
    pub controller: Option<&'static str>,
}

impl Hierarchy {
    /// The hierarchy by the text of any process's `/proc/PID/cgroup`, which has a line for each hierarchy. It is version 2 if no
    /// line has one of [`CONTROLLERS`], or if the text is invalid.
    pub fn of(text: &str) -> Self {
        let all = || CONTROLLERS.into_iter();
        let found = text.lines().filter_map(line).filter_map(|(number, controllers, _)| {
            let named = all().find(|wanted| controllers.split(',').any(|name| name == *wanted))?;
            (number != 0).then_some(Self { number, controller: Some(named) })
        });
        let rank = |found: &Self| all().position(|wanted| found.controller == Some(wanted));
        found.min_by_key(rank).unwrap_or_default()
    }

    /// The path of a process in it, by the text of its `/proc/PID/cgroup`; `None` for a path outside the reader's cgroup
    /// namespace.
    pub fn path<'a>(&self, text: &'a str) -> Option<&'a str> {
        let (_, _, path) = text.lines().filter_map(line).find(|(number, _, _)| *number == self.number)?;
        (!path.starts_with("/..")).then(|| path.trim_end_matches(" (deleted)"))
    }

    /// Whether this is a mount of the hierarchy.
    pub fn is_at(&self, mount: &Mount<'_>) -> bool {
        match self.controller {
            None => mount.file_system == Some(b"cgroup2"),
            Some(controller) => mount.file_system == Some(b"cgroup") && mount.has_option(controller),
        }
    }
}

/// `number:controllers:path` (cgroups(7)).
fn line(line: &str) -> Option<(u32, &str, &str)> {
    let mut parts = line.splitn(3, ':');
    Some((parts.next()?.parse().ok()?, parts.next()?, parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::mountinfo::mounts;

    const MIXED: &str = "12:cpu,cpuacct:/a\n7:memory:/kubepods/m\n5:pids:/kubepods/p (deleted)\n\
                         1:name=systemd:/user.slice/session-3.scope\n0::/x.service\n";

    #[test]
    fn version_1_is_used_if_it_has_a_controller_that_every_container_has() {
        let mixed = Hierarchy::of(MIXED);
        assert_eq!(mixed, Hierarchy { number: 5, controller: Some("pids") });
        assert_eq!(mixed.path(MIXED), Some("/kubepods/p"));
        let memory = Hierarchy::of("7:memory:/m\n0::/x\n");
        assert_eq!(memory, Hierarchy { number: 7, controller: Some("memory") });
    }

    #[test]
    fn version_2_is_used_otherwise_even_beside_a_controller_that_is_mounted_alone() {
        for text in ["0::/x.service\n", "3:net_cls:/vpn\n0::/x.service\n"] {
            let unified = Hierarchy::of(text);
            assert_eq!((unified, unified.path(text)), (Hierarchy::default(), Some("/x.service")), "{text}");
        }
        assert_eq!(Hierarchy::of("no such text"), Hierarchy::default());
        assert_eq!(Hierarchy::default().path("0::/../../x\n"), None, "outside of the namespace");
    }

    #[test]
    fn a_mount_shows_the_hierarchy_that_it_is_of() {
        let table = b"30 23 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let at = |hierarchy: Hierarchy| {
            let found: Vec<_> = mounts(table).filter(|mount| hierarchy.is_at(mount)).collect();
            assert_eq!(found.len(), 1);
            found[0].point.display().to_string()
        };
        assert_eq!(at(Hierarchy::of(MIXED)), "/sys/fs/cgroup/pids");
        assert_eq!(at(Hierarchy::default()), "/sys/fs/cgroup/unified");
    }
}
