//! The bitmap that rejects most unmanaged inodes before the lookup in the hash map.
//!
//! A managed inode has two bits in one word: one by its number alone, and one by number and device. A program tests the first
//! one first, because it needs a single field. The daemon chooses the size when it loads the programs, by the number of
//! declared things. It keeps so many bits for each inode that few unmanaged inodes pass the first test.

use crate::map::InodeKey;

/// The size of a bitmap. It gives the places of an inode's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bitmap {
    /// How far the hash of a number is shifted to the right to give the index of its bit.
    shift: u32,
}

/// Words of the smallest bitmap: 64 KiB.
const FEWEST_WORDS: u32 = 1 << 13;
/// Words of the largest bitmap: 512 KiB, which are 32 bits for each entry of a full map of managed inodes.
const MOST_WORDS: u32 = 1 << 16;

/// Bits for each expected inode in a new bitmap. With 32 of them, 6 % of all other numbers pass the first test.
const BITS_AT_LOAD: u64 = 32;
/// Fewest bits for each inode. With fewer the config has outgrown the bitmap. With 16 of them, 12 % of all other numbers pass the
/// first test.
const BITS_AT_LEAST: u64 = 16;

/// Bits of a word, as a power of two.
const WORD: u32 = 6;

/// The place of the second bit in the hash. It is below the bits that give the place in the largest bitmap, so that the two tests
/// are independent.
const SECOND: u32 = 36;

impl Bitmap {
    /// The largest bitmap.
    pub const LARGEST: Self = Self::with_words(MOST_WORDS);

    /// The bitmap for a number of inodes.
    pub const fn for_inodes(inodes: u64) -> Self {
        let mut words = FEWEST_WORDS;
        while words < MOST_WORDS && Self::with_words(words).bits() < inodes.saturating_mul(BITS_AT_LOAD) {
            words <<= 1;
        }
        Self::with_words(words)
    }

    /// The bitmap of a map with this number of words; `None` if no bitmap has this size.
    pub const fn of_words(words: u32) -> Option<Self> {
        if words.is_power_of_two() && words >= FEWEST_WORDS && words <= MOST_WORDS {
            Some(Self::with_words(words))
        } else {
            None
        }
    }

    /// The bitmap with this shift, which must be below 64.
    #[inline(always)]
    pub const fn of_shift(shift: u32) -> Self {
        Self { shift }
    }

    const fn with_words(words: u32) -> Self {
        Self { shift: u64::BITS - WORD - words.ilog2() }
    }

    /// The shift, which the daemon gives to the programs.
    pub const fn shift(self) -> u32 {
        self.shift
    }

    /// Words of the bitmap's map.
    pub const fn words(self) -> u32 {
        1 << (u64::BITS - WORD - self.shift)
    }

    const fn bits(self) -> u64 {
        (self.words() as u64) << WORD
    }

    /// Whether the bitmap is large enough for a number of inodes.
    pub const fn holds(self, inodes: u64) -> bool {
        self.words() == MOST_WORDS || self.bits() >= inodes.saturating_mul(BITS_AT_LEAST)
    }

    /// The word of all inodes with this number, and the mask of the bit that they share.
    #[inline(always)]
    pub const fn place(self, ino: u64) -> (u32, u64) {
        let index = spread(ino) >> self.shift;
        ((index >> WORD) as u32, 1 << (index & 63))
    }

    /// The mask of the inode's own bit in that word. Without it, pipes and files of each tmpfs would pass, since their small
    /// numbers repeat those of managed files. The subvolume is no part of it: the programs read it only if both bits are set.
    #[inline(always)]
    pub const fn own_bit(key: InodeKey) -> u64 {
        1 << (spread(key.ino ^ (key.dev as u64) << 32) >> SECOND & 63)
    }
}

/// Fibonacci hashing: it spreads neighbouring numbers, which the files of a directory tend to have.
#[inline(always)]
const fn spread(name: u64) -> u64 {
    name.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

const _: () = {
    assert!(SECOND + WORD <= Bitmap::LARGEST.shift);
    assert!(Bitmap::LARGEST.bits() >= crate::limits::MANAGED_ENTRIES as u64 * BITS_AT_LOAD);
};

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec;

    fn key(ino: u64, dev: u32) -> InodeKey {
        InodeKey { ino, dev, volume: 0 }
    }

    #[test]
    fn it_rejects_most_other_numbers_and_most_equal_numbers_on_another_device() {
        for inodes in [10_000, 16_000, 40_000, 100_000] {
            let bitmap = Bitmap::for_inodes(inodes);
            let mut words = vec![0_u64; bitmap.words() as usize];
            let managed = 130_000..130_000 + inodes;
            for ino in managed.clone() {
                let (word, of_number) = bitmap.place(ino);
                words[word as usize] |= of_number | Bitmap::own_bit(key(ino, 0x80_0001));
            }
            let passes = |ino, dev| {
                let (word, of_number) = bitmap.place(ino);
                let bits = words[word as usize];
                (bits & of_number != 0, bits & of_number != 0 && bits & Bitmap::own_bit(key(ino, dev)) != 0)
            };
            assert!(managed.clone().all(|ino| passes(ino, 0x80_0001).1), "every managed one passes");
            let (mut first, mut both) = (0, 0);
            for ino in 300_000..400_000 {
                let passed = passes(ino, 0x80_0001);
                first += u32::from(passed.0);
                both += u32::from(passed.1);
            }
            assert!(
                first < 7_500 && both < 1_000,
                "{inodes}: of 100,000 others {first} pass the first test, {both} both"
            );
            let elsewhere = managed.filter(|ino| passes(*ino, 0x19).1).count() as u64;
            assert!(elsewhere < inodes / 8, "{inodes}: of as many with the same numbers {elsewhere} pass");
        }
    }

    #[test]
    fn a_new_bitmap_holds_twice_the_inodes_it_is_made_for_and_the_largest_holds_any_number() {
        for inodes in [0, 1, 10_000, 16_384, 16_385, 65_536] {
            let bitmap = Bitmap::for_inodes(inodes);
            assert!(bitmap.holds(inodes * 2), "{inodes}");
            assert_eq!(Bitmap::of_words(bitmap.words()), Some(bitmap));
            assert_eq!(Bitmap::of_shift(bitmap.shift()), bitmap);
        }
        assert!(!Bitmap::for_inodes(0).holds(32_769));
        assert_eq!(Bitmap::for_inodes(u64::MAX), Bitmap::LARGEST);
        assert!(Bitmap::LARGEST.holds(u64::MAX));
        for words in [0, 1, 8_191, 12_288, 1 << 17] {
            assert_eq!(Bitmap::of_words(words), None, "{words}");
        }
    }
}
