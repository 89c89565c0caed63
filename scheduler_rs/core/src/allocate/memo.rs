//! Matchings that have been looked at: a search comes back to the same pairs of stages again and again.

use super::matching::Alike;

/// Pairs remembered, a power of 2; a newer one takes the place of an older one.
const ROOM: usize = 1 << 13;

/// What stands for a set of sites with their numbers of nodes. Sets differ where their marks do; that two sets share a
/// mark by chance is as good as impossible at 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The mark of a whole set.
    #[must_use]
    pub fn of(sites: &[Alike]) -> Self {
        Self(
            sites.iter().fold(0, |sum, (site, count)| sum.wrapping_add(scatter(*site).wrapping_mul(u64::from(*count)))),
        )
    }

    /// One node more.
    pub fn put(&mut self, site: u32) {
        self.0 = self.0.wrapping_add(scatter(site));
    }

    /// One node less.
    pub fn take(&mut self, site: u32) {
        self.0 = self.0.wrapping_sub(scatter(site));
    }
}

/// A number of 64 bits that looks like chance (Steele, Lea and Flood's SplitMix64).
fn scatter(site: u32) -> u64 {
    let mut bits = (u64::from(site) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// Bottlenecks by pairs of marks.
#[derive(Clone, Debug)]
pub struct Memo {
    known: Vec<(u64, f64)>,
}

impl Memo {
    /// Nothing is known yet.
    #[must_use]
    pub fn new() -> Self {
        Self { known: vec![(0, 0.0); ROOM] }
    }

    /// What is known of the pair, else what `find` says.
    pub fn get(&mut self, a: Mark, b: Mark, find: impl FnOnce() -> f64) -> f64 {
        let (low, high) = (a.0.min(b.0), a.0.max(b.0));
        let key = (low.rotate_left(32) ^ high).wrapping_mul(0xD6E8_FEB8_6659_FD93).wrapping_add(low) | 1;
        let entry = &mut self.known[(key >> 40) as usize & (ROOM - 1)];
        if entry.0 != key {
            *entry = (key, find());
        }
        entry.1
    }
}
