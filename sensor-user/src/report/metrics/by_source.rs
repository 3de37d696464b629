//! The drifted things of each layer, package and config by its name.
//!
//! In: the open drifts. Out: one gauge with a series for each source that has drifted things now. A source without any has no
//! series, and only the first [`MOST`] have one of their own, so the number of series is limited.

use super::families::{UNKNOWN_SOURCE, Word};
use crate::agent::open_drift::OpenDrifts;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};
use sensor_model::expectation::SourceKind;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Most sources with a series of their own. More at once are a broken node, whose status names all.
pub(super) const MOST: usize = 20;

/// Most characters of a source's name. The blame of a layer has its number and digest first.
const MOST_CHARACTERS: usize = 160;

/// The name of all further sources together.
const OTHERS: &str = "others";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct NamedLabels {
    source: Word,
    name: String,
}

/// The drifted things by source. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct BySource(Arc<Mutex<BTreeMap<NamedLabels, u64>>>);

impl BySource {
    /// Takes the drifts that are open now in place of those before.
    pub(super) fn set(&self, drifts: &OpenDrifts) {
        let mut counts: BTreeMap<NamedLabels, u64> = BTreeMap::new();
        for (_, open) in drifts.iter() {
            let source = open.source_kind.map_or(UNKNOWN_SOURCE, SourceKind::as_str);
            *counts.entry(NamedLabels { source, name: shortened(&open.source) }).or_default() += 1;
        }
        if counts.len() > MOST {
            let mut sorted: Vec<_> = counts.into_iter().collect();
            // The sort is stable: of sources with as many things, the first by name keep their series.
            sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let others = sorted.split_off(MOST);
            counts = sorted.into_iter().collect();
            for (NamedLabels { source, .. }, count) in others {
                *counts.entry(NamedLabels { source, name: OTHERS.to_owned() }).or_default() += count;
            }
        }
        // A map that a panic left is whole: it is replaced at once.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

impl Collector for BySource {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut family = encoder.encode_descriptor(
            "holdfast_source_drifted_things",
            "Things with an open drift, by the layer, package, config or rule that declares them; only sources that have any",
            None,
            MetricType::Gauge,
        )?;
        for (labels, count) in &counts {
            ConstGauge::new(*count).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

/// A name of limited length.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
