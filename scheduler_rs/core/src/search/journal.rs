//! What a search tells of itself: plans and bounds over time and work, and counts.

use serde_json::{Value, json};

use super::cbs::Statistics;
use crate::budget::Budget;
use crate::time::{Time, seconds};

/// Plans and bounds as they were found.
#[derive(Debug)]
pub struct Journal<'a> {
    budget: &'a Budget,
    /// Seconds since the start, work, best iteration and lower bound.
    events: Vec<(f64, u64, Option<Time>, Time)>,
}

impl<'a> Journal<'a> {
    /// Empty.
    #[must_use]
    pub fn new(budget: &'a Budget) -> Self {
        Self { budget, events: Vec::new() }
    }

    /// Writes down where the search stands, and tells whoever watches.
    pub fn note(&mut self, work: u64, best: Option<Time>, bound: Time) {
        let known = self.events.last().is_some_and(|(_, _, upper, lower)| (*upper, *lower) == (best, bound));
        if !known {
            self.end(work, best, bound);
        }
    }

    /// Writes down where the search ended, changed or not.
    pub fn end(&mut self, work: u64, best: Option<Time>, bound: Time) {
        self.events.push((self.budget.elapsed_s(), work, best, bound));
        self.budget.report(best.map_or(f64::INFINITY, seconds), seconds(bound));
    }

    /// `[[elapsed_s, work, upper_s or null, lower_s], ...]`.
    #[must_use]
    pub fn into_json(self) -> Value {
        let row = |(elapsed_s, work, upper, lower): (f64, u64, Option<Time>, Time)| {
            json!([elapsed_s, work, upper.map(seconds), seconds(lower)])
        };
        self.events.into_iter().map(row).collect()
    }
}

/// Counts of a search by name.
#[must_use]
pub fn counts_of(proof: &Statistics, rounds: u64, work: u64) -> Value {
    json!({
        "work": work,
        "rounds": rounds,
        "tree_nodes": proof.nodes,
        "ways_tried": proof.labels,
        "quota_conflicts": proof.quota_conflicts,
        "length_conflicts": proof.length_conflicts,
        "memory_conflicts": proof.memory_conflicts,
        "overlap_conflicts": proof.overlap_conflicts,
        "detour_conflicts": proof.detours,
        "cardinal_conflicts": proof.cardinal,
        "implied_constraints": proof.implied,
        "bypasses": proof.bypasses,
        "duplicates": proof.duplicates,
    })
}
