//! The size of the bitmap, by the number of declared things.
//!
//! In: the number of declared things, and the maps of an earlier run. Out: the bitmap's size for this run, and whether the config has
//! outgrown the maps of an earlier run. Programs and maps of one set have one size, so a new size needs new programs and maps.

use aya::maps::MapInfo;
use sensor_common::bitmap::Bitmap;
use std::path::Path;
use thiserror::Error;

/// The maps are too small for the declared things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the kernel maps of this run are too small for {things} declared things: the daemon ends, and its next start creates new \
     programs and maps"
)]
pub struct Outgrown {
    /// How many things are declared.
    pub things: usize,
}

/// The most inodes of this number of things: each may have a directory of its own.
fn inodes(things: usize) -> u64 {
    u64::try_from(things).unwrap_or(u64::MAX).saturating_mul(2)
}

/// Whether a bitmap is large enough for this number of things.
pub(super) fn hold(bitmap: Bitmap, things: usize) -> Result<(), Outgrown> {
    if bitmap.holds(inodes(things)) { Ok(()) } else { Err(Outgrown { things }) }
}

/// Whether the pinned maps are too small for the declared things, or have a size that no bitmap has.
pub(super) fn is_outgrown(maps: &Path, things: Option<usize>) -> bool {
    let Some(words) = words(maps) else { return false };
    match (Bitmap::of_words(words), things) {
        (Some(bitmap), Some(things)) => hold(bitmap, things).is_err(),
        (Some(_), None) => false,
        (None, _) => true,
    }
}

/// The bitmap's size: that of the pinned bitmap, or else one for the declared things. While their number is not known, it is the
/// largest, because the config might outgrow a smaller one at once.
pub(super) fn choose(maps: Option<&Path>, things: Option<usize>) -> Bitmap {
    let pinned = maps.and_then(words).and_then(Bitmap::of_words);
    pinned.unwrap_or_else(|| things.map_or(Bitmap::LARGEST, |things| Bitmap::for_inodes(inodes(things))))
}

/// Words of the pinned bitmap; `None` if none is pinned.
fn words(maps: &Path) -> Option<u32> {
    let info = MapInfo::from_pin(maps.join("BITMAP")).ok()?;
    Some(info.max_entries())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_pinned_bitmap_the_number_of_things_decides_and_a_config_may_double() {
        let maps = Path::new("/nonexistent");
        assert!(!is_outgrown(maps, Some(usize::MAX)), "no bitmap is pinned");
        assert_eq!(choose(None, None), Bitmap::LARGEST);
        for things in [0, 10_000, 60_000] {
            let bitmap = choose(Some(maps), Some(things));
            assert_eq!(bitmap, choose(None, Some(things)));
            assert_eq!(hold(bitmap, things * 2), Ok(()));
        }
        let few = choose(None, Some(0));
        assert_eq!(hold(few, 16_385), Err(Outgrown { things: 16_385 }));
        assert_eq!(hold(Bitmap::LARGEST, usize::MAX), Ok(()));
    }
}
