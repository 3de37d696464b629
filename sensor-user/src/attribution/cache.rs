//! A bounded cache in two generations.
//!
//! New and recently used entries are in the young generation. When that is full, it becomes the old one, and the cache drops the
//! earlier old one. So the cache evicts the least recently used entries with one map operation, and needs no list. It never holds
//! more than twice its capacity.

use std::{collections::HashMap, hash::Hash, mem::take};

#[derive(Debug)]
pub(super) struct Cache<K, V> {
    capacity: usize,
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    /// A cache that keeps at least the `capacity` most recently used entries.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, young: HashMap::new(), old: HashMap::new() }
    }

    pub(super) fn get(&mut self, key: K) -> Option<V> {
        if let Some(value) = self.young.get(&key) {
            return Some(value.clone());
        }
        let value = self.old.remove(&key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.capacity {
            self.old = take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_entries_stay_and_unused_ones_are_evicted() {
        let mut cache = Cache::new(4);
        cache.insert(0, "used");
        for key in 1..100 {
            cache.insert(key, "unused");
            assert_eq!(cache.get(0), Some("used"), "lost after {key}");
            assert!(cache.len() <= 8, "{} entries", cache.len());
        }
        assert_eq!(cache.get(1), None);
    }
}
