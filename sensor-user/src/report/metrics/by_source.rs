//! The drifted things of each layer, package and config by its name.
//!
//! In: the open drifts. Out: one gauge with a series for each source that has drifted things now. A source without any has no
//! series, and only the first [`MOST`] have one of their own, so the number of series is limited.

use super::families::{UNKNOWN_SOURCE, Word};
use crate::agent::open_drift::{OpenDrift, OpenDrifts};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};
use sensor_model::{expectation::SourceKind, image::without_history};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

/// Most sources with a series of their own. `holdfast status` has all.
pub(super) const MOST: usize = 20;

/// Most characters of a source's name.
const MOST_CHARACTERS: usize = 160;

/// The labels of all further sources together. No kind of source has this name.
const OTHERS: Word = "others";

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
        // Each drift and each recovery calls this: a name is copied once, and not for each of its drifts.
        let mut counts: HashMap<(Word, &str), u64> = HashMap::new();
        for (_, open) in drifts.iter() {
            let source = open.source_kind.map_or(UNKNOWN_SOURCE, SourceKind::as_str);
            *counts.entry((source, name_of(open))).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable_by_key(|(source, count)| (Reverse(*count), *source));
        let further = counts.iter().skip(MOST).map(|(_, count)| count).sum();
        counts.truncate(MOST);
        if further > 0 {
            counts.push(((OTHERS, OTHERS), further));
        }
        let mut series: BTreeMap<NamedLabels, u64> = BTreeMap::new();
        for ((source, name), count) in counts {
            *series.entry(NamedLabels { source, name: shortened(name) }).or_default() += count;
        }
        // A panic leaves the map intact: one assignment replaces it.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = series;
    }
}

/// The name of a source. Every user of the host may read the page, so a layer's line of history is left out: it may have a password.
fn name_of(open: &OpenDrift) -> &str {
    match open.source_kind {
        Some(SourceKind::Image) => without_history(&open.source),
        _ => &open.source,
    }
}

impl Collector for BySource {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut family = encoder.encode_descriptor(
            "holdfast_source_drifted_things",
            "Things with an open drift, by the layer, package, config or rule that declares them; a source without any has no series",
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
