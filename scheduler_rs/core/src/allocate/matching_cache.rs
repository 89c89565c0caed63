//! Matchings that have been looked at: a search comes back to the same pairs of stages again and again.

use super::matching::SiteCount;

/// Pairs remembered, a power of 2; a newer one takes the place of an older one.
const CAPACITY: usize = 1 << 13;

/// What stands for a set of sites with their numbers of nodes. Sets differ where their hashes do; that two sets share a
/// hash by chance is as good as impossible at 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZobristHash(u64);

impl ZobristHash {
    /// The hash of a whole set.
    #[must_use]
    pub fn of(sites: &[SiteCount]) -> Self {
        Self(
            sites
                .iter()
                .fold(0, |sum, (site, count)| sum.wrapping_add(split_mix(*site).wrapping_mul(u64::from(*count)))),
        )
    }

    /// One node more.
    pub fn add(&mut self, site: u32) {
        self.0 = self.0.wrapping_add(split_mix(site));
    }

    /// One node less.
    pub fn remove(&mut self, site: u32) {
        self.0 = self.0.wrapping_sub(split_mix(site));
    }
}

/// A number of 64 bits that looks like chance (Steele, Lea and Flood's SplitMix64).
fn split_mix(site: u32) -> u64 {
    let mut bits = (u64::from(site) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// Bottlenecks by pairs of hashes.
#[derive(Clone, Debug)]
pub struct MatchingCache {
    entries: Vec<(u64, f64)>,
}

impl MatchingCache {
    /// Nothing is entries yet.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: vec![(0, 0.0); CAPACITY] }
    }

    /// What is entries of the pair, else what `compute` says.
    pub fn get(&mut self, a: ZobristHash, b: ZobristHash, compute: impl FnOnce() -> f64) -> f64 {
        let (low, high) = (a.0.min(b.0), a.0.max(b.0));
        let key = (low.rotate_left(32) ^ high).wrapping_mul(0xD6E8_FEB8_6659_FD93).wrapping_add(low) | 1;
        let entry = &mut self.entries[(key >> 40) as usize & (CAPACITY - 1)];
        if entry.0 != key {
            *entry = (key, compute());
        }
        entry.1
    }
}
