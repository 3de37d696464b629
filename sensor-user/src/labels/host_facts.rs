//! The observer's implementation of [`HostFacts`], the facts of a host that the expected state needs.

use super::{expect, version};
use crate::{
    desired::{DirectoriesVersion, HostFacts, LabelVersion},
    observation::Observer,
    packages,
};
use sensor_model::{
    closed::HostDirectories,
    drift_policy::DriftPolicy,
    expectation::{Expectation, Thing},
};
use std::collections::BTreeSet;

impl HostFacts for Observer {
    fn user_id(&self, name: &str) -> Option<u32> {
        self.uid(name)
    }

    fn group_id(&self, name: &str) -> Option<u32> {
        self.gid(name)
    }

    fn unchecked(&self, thing: &Thing) -> Option<String> {
        Self::unchecked(self, thing)
    }

    fn label_version(&self) -> LabelVersion {
        version(self)
    }

    fn directories(&self, policy: &DriftPolicy) -> HostDirectories {
        packages::directories(self, policy)
    }

    fn directories_version(&self, policy: &DriftPolicy) -> DirectoriesVersion {
        packages::version(self, policy)
    }

    fn label(&self, expectations: &mut [Expectation], policy: &DriftPolicy) -> BTreeSet<String> {
        expect(expectations, policy, self)
    }
}
