//! A cache of bottleneck matchings: a local search returns to the same pairs of stages again and again.

use super::matching::SiteCount;

/// Entries, a power of 2; direct-mapped, so a newer one replaces an older one.
const CAPACITY: usize = 1 << 13;

/// Incremental hash of a multiset of sites: the sum of a 64-bit key for each node (Zobrist hashing with addition, so
/// that multiplicities count). Collisions are negligible at 64 bits and not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZobristHash(u64);

impl ZobristHash {
    /// The hash of a multiset.
    #[must_use]
    pub fn of(sites: &[SiteCount]) -> Self {
        Self(
            sites
                .iter()
                .fold(0, |sum, (site, count)| sum.wrapping_add(split_mix(*site).wrapping_mul(u64::from(*count)))),
        )
    }

    /// Adds one node of a site.
    pub fn add(&mut self, site: u32) {
        self.0 = self.0.wrapping_add(split_mix(site));
    }

    /// Removes one node of a site.
    pub fn remove(&mut self, site: u32) {
        self.0 = self.0.wrapping_sub(split_mix(site));
    }
}

/// Pseudo-random key of a site (SplitMix64 of Steele, Lea and Flood 2014).
fn split_mix(site: u32) -> u64 {
    let mut bits = (u64::from(site) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// Values of bottleneck matchings by pairs of hashes.
#[derive(Clone, Debug)]
pub struct MatchingCache {
    entries: Vec<(u64, f64)>,
}

impl MatchingCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: vec![(0, 0.0); CAPACITY] }
    }

    /// The cached value of a pair, else that of `compute`, which is then cached.
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
