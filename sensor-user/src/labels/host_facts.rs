//! The observer's implementation of [`HostFacts`], the facts of a host that the expected state needs.

use super::{expect, version};
use crate::{
    desired::{DirectoriesVersion, HostFacts, LabelVersion},
    image::{self, Undeclared},
    observation::Observer,
    packages,
};
use sensor_model::{
    closed::HostDirectories,
    drift_policy::DriftPolicy,
    expectation::{Expectation, NotCarried, Thing},
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

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

    fn place(&self, path: &Path) -> PathBuf {
        self.root().place(path)
    }

    fn directories(&self, policy: &DriftPolicy, state: &Path) -> HostDirectories {
        let mut found = packages::directories(self, policy);
        let named = policy.closed().filter_map(|(rule, _)| rule.directory()).map(Path::to_owned);
        let matching = found.matching.values().flatten().cloned();
        let roots = named.chain(matching).chain(found.written.values().cloned()).collect();
        let absent = found.places.iter().flat_map(|(path, place)| [path.clone(), place.clone()]).collect();
        image::add_names_below(self, state, &Undeclared { roots, absent }, &mut found);
        found
    }

    fn image_things(&self, policy: &DriftPolicy, state: &Path) -> Vec<Expectation> {
        image::expected(self, policy, state)
    }

    fn not_carried(&self, config: &str, declared: &[Expectation], state: &Path) -> Option<NotCarried> {
        image::not_carried(self, state, config, declared)
    }

    fn built_from(&self, state: &Path) -> Option<String> {
        image::booted_image(self, &image::Images::of(state))?.config
    }

    fn directories_version(&self, policy: &DriftPolicy, state: &Path) -> DirectoriesVersion {
        DirectoriesVersion {
            images: image::version(self, policy, state),
            extensions: image::followed_state(self, policy, state),
            ..packages::version(self, policy)
        }
    }

    fn label(&self, expectations: &mut [Expectation], policy: &DriftPolicy) -> BTreeSet<String> {
        expect(expectations, policy, self)
    }
}
