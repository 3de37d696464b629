//! The identity of a boot, and whether it is over.
//!
//! In: the recorded boot, and the current one. Out: whether the requested reboot has happened. A soft reboot restarts everything
//! except the kernel: the boot id stays the same, and systemd counts it.

use super::OsChange;
use serde::{Deserialize, Serialize};

/// One boot. An unknown field proves nothing: records of older versions have only the boot id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Boot {
    /// The kernel's boot id.
    pub boot_id: String,
    /// systemd's count of soft reboots since the kernel started; absent if systemd has no count or did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_reboots: Option<u32>,
    /// The ostree commit of the root directory; absent on a host without ostree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
}

/// What must be new after a reboot for it to be the requested one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Brings {
    /// Restarted services.
    Services,
    /// Another deployment.
    Deployment,
    /// Another kernel, or other kernel arguments, which a soft reboot cannot change.
    Kernel,
}

impl Brings {
    /// What must be new after the reboot for a change of the OS.
    pub fn of(os: Option<&OsChange>) -> Self {
        match os {
            Some(change) if change.has_arguments() || change.old_kernel != change.new_kernel => Self::Kernel,
            Some(_) => Self::Deployment,
            None => Self::Services,
        }
    }
}

impl Boot {
    /// A boot of which only the kernel's boot id is known.
    pub fn of_kernel(boot_id: &str) -> Self {
        Self { boot_id: boot_id.to_owned(), ..Self::default() }
    }

    /// Whether this boot is over: compares it with the current one, of which `brings` must be new.
    pub fn is_over(&self, now: &Self, brings: Brings) -> bool {
        let is_another_deployment = differ(self.deployment.as_ref(), now.deployment.as_ref());
        self.boot_id != now.boot_id
            || match brings {
                Brings::Services => {
                    is_another_deployment || differ(self.soft_reboots.as_ref(), now.soft_reboots.as_ref())
                }
                Brings::Deployment => is_another_deployment,
                Brings::Kernel => false,
            }
    }
}

/// Whether both are known and differ.
fn differ<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(soft_reboots: Option<u32>, deployment: Option<&str>) -> Boot {
        Boot { boot_id: "b".to_owned(), soft_reboots, deployment: deployment.map(str::to_owned) }
    }

    #[test]
    fn a_boot_is_over_if_boot_id_count_or_deployment_is_known_and_new() {
        use Brings::{Deployment, Kernel, Services};
        let asked = boot(Some(1), Some("old"));
        let over = |now: &Boot| [Services, Deployment, Kernel].map(|brings| asked.is_over(now, brings));
        assert_eq!(over(&asked), [false; 3], "it is the same boot");
        let other = Boot { boot_id: "c".to_owned(), ..asked.clone() };
        assert_eq!(over(&other), [true; 3], "the kernel started again");
        assert_eq!(over(&boot(Some(2), Some("old"))), [true, false, false], "a soft reboot");
        assert_eq!(over(&boot(Some(2), Some("new"))), [true, true, false], "one into another deployment");
        assert_eq!(over(&boot(None, Some("new"))), [true, true, false], "systemd counts none");
        assert_eq!(over(&boot(None, None)), [false; 3], "neither is known now");
        assert!(!boot(None, None).is_over(&boot(Some(1), Some("new")), Services), "neither was known then");
    }

    #[test]
    fn arguments_and_kernel_type_need_a_boot_of_the_kernel_and_an_image_needs_another_deployment() {
        let images = OsChange { new_image: Some("b".to_owned()), ..OsChange::default() };
        assert_eq!(Brings::of(None), Brings::Services);
        assert_eq!(Brings::of(Some(&images)), Brings::Deployment);
        let arguments = OsChange { add_arguments: vec!["nosmt".to_owned()], ..images.clone() };
        assert_eq!(Brings::of(Some(&arguments)), Brings::Kernel);
        let kernel = OsChange { new_kernel: "realtime".to_owned(), ..images };
        assert_eq!(Brings::of(Some(&kernel)), Brings::Kernel);
    }

    #[test]
    fn records_of_older_versions_with_the_boot_id_alone_are_read() {
        let old: super::super::JournalRecord =
            serde_json::from_str(r#"{"record":"reboot-requested","boot_id":"b"}"#).unwrap();
        assert_eq!(old, super::super::JournalRecord::RebootRequested { boot: Boot::of_kernel("b") });
        assert_eq!(serde_json::to_string(&old).unwrap(), r#"{"record":"reboot-requested","boot_id":"b"}"#);
        let new = super::super::JournalRecord::ReturnRequested { boot: boot(Some(3), Some("d")) };
        let text = serde_json::to_string(&new).unwrap();
        assert!(text.contains(r#""boot_id":"b","soft_reboots":3,"deployment":"d""#), "{text}");
        assert_eq!(serde_json::from_str::<super::super::JournalRecord>(&text).unwrap(), new);
    }
}
