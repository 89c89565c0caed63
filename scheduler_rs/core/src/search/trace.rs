//! What a search notes as it goes: plans and bounds over time and work.

use serde_json::Number;

use crate::budget::Budget;
use crate::part::Part;
use crate::report::{SearchEvent, Statistics};
use crate::search::methods::cbs;
use crate::time::{Time, seconds};

/// Plans and bounds as they were found.
#[derive(Debug)]
pub struct SearchTrace<'a> {
    budget: &'a Budget,
    events: Vec<SearchEvent>,
    /// Best iteration and lower bound at the last event.
    last: Option<(Option<Time>, Time)>,
}

impl<'a> SearchTrace<'a> {
    /// Empty.
    #[must_use]
    pub fn new(budget: &'a Budget) -> Self {
        Self { budget, events: Vec::new(), last: None }
    }

    /// Notes where the search stands, if it has changed, and reports it to whoever watches.
    pub fn note(&mut self, work: u64, best: Option<Time>, bound: Time) {
        if self.last != Some((best, bound)) {
            self.record(work, best, bound);
        }
    }

    /// As [`SearchTrace::note`], changed or not.
    pub fn record(&mut self, work: u64, best: Option<Time>, bound: Time) {
        let (elapsed_s, upper_s, lower_s) = (self.budget.elapsed_s(), best.map(seconds), seconds(bound));
        self.events.push(SearchEvent { elapsed_s, work, upper_s, lower_s });
        self.budget.report(upper_s.unwrap_or(f64::INFINITY), lower_s);
        self.last = Some((best, bound));
    }

    /// All of them, in order.
    #[must_use]
    pub fn into_events(self) -> Vec<SearchEvent> {
        self.events
    }
}

/// Counts of a search by name, with the work of each of its parts.
#[must_use]
pub fn statistics_of(proof: &cbs::Statistics, rounds: u64, work: u64, spent: &[(Part, u64)]) -> Statistics {
    let counts = [
        ("work", work),
        ("rounds", rounds),
        ("tree_nodes", proof.nodes),
        ("path_evaluations", proof.path_evaluations),
        ("quota_conflicts", proof.quota_conflicts),
        ("length_conflicts", proof.length_conflicts),
        ("memory_conflicts", proof.memory_conflicts),
        ("overlap_conflicts", proof.overlap_conflicts),
        ("detour_conflicts", proof.detours),
        ("cardinal_conflicts", proof.cardinal),
        ("implied_constraints", proof.implied),
        ("bypasses", proof.bypasses),
        ("duplicates", proof.duplicates),
    ];
    let mut named: Vec<(String, Number)> = Vec::new();
    let counts = counts.map(|(name, count)| (name.to_owned(), count)).into_iter();
    for (name, count) in counts.chain(spent.iter().map(|(part, work)| (format!("work of {}", part.name()), *work))) {
        match named.iter_mut().find(|(known, _)| *known == name) {
            // Several searches of one kind count together.
            Some((_, sum)) => *sum = Number::from(sum.as_u64().unwrap_or(0) + count),
            None => named.push((name, Number::from(count))),
        }
    }
    Statistics(named)
}
