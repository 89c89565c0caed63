//! Enumeration of all partitions, where there are few.

use super::partition::diameter_of;
use super::problem::AllocationProblem;
use super::score::scored;
use super::tour;
use crate::budget::Budget;

/// Up to so many partitions are enumerated.
const MAX_PARTITIONS: f64 = 200_000.0;
/// Partial partitions between two checks of the budget.
const POLL: u64 = 256;

/// The result of an enumeration.
#[derive(Clone, Debug)]
pub struct Enumerated {
    /// The best partition below the given cost.
    pub best: Option<Vec<Vec<usize>>>,
    /// Whether the enumeration is complete.
    pub is_complete: bool,
    /// Partial partitions visited.
    pub steps: u64,
}

/// Whether all partitions can be enumerated, each with its shortest tour.
#[must_use]
pub fn is_small(problem: &AllocationProblem<'_>) -> bool {
    problem.sizes.len() <= tour::MAX_EXACT && count(problem) <= MAX_PARTITIONS
}

/// Number of partitions; stages of the same size are interchangeable, except stage 0.
fn count(problem: &AllocationProblem<'_>) -> f64 {
    let sizes = &problem.sizes[usize::from(problem.sources.is_some())..];
    let mut count = 1.0;
    let mut nodes = 0;
    for size in sizes {
        for k in 1..=*size {
            nodes += 1;
            count *= nodes as f64 / k as f64;
        }
    }
    let others = &problem.sizes[1..];
    for (i, size) in others.iter().enumerate() {
        count /= (others[..i].iter().filter(|other| *other == size).count() + 1) as f64;
    }
    count
}

/// Finds the best partition within the limit that scores below `cost`.
#[must_use]
pub fn enumerate(problem: &AllocationProblem<'_>, cost: f64, budget: &Budget) -> Enumerated {
    let mut stages = vec![Vec::new(); problem.sizes.len()];
    if let Some(sources) = problem.sources {
        stages[0] = sources.to_vec();
    }
    let mut enumeration = Enumeration {
        problem: *problem,
        nodes: (0..problem.costs.nodes()).filter(|n| !stages[0].contains(n)).collect(),
        stages,
        cost,
        found: Enumerated { best: None, is_complete: true, steps: 0 },
        budget,
    };
    let replica_s = diameter_of(problem.costs, &enumeration.stages[0]);
    enumeration.assign(0, replica_s);
    enumeration.found
}

struct Enumeration<'a> {
    problem: AllocationProblem<'a>,
    /// Nodes to assign.
    nodes: Vec<usize>,
    stages: Vec<Vec<usize>>,
    /// Exclusive upper bound on the score.
    cost: f64,
    found: Enumerated,
    budget: &'a Budget,
}

impl Enumeration<'_> {
    /// Tries all stages for node number `next`.
    fn assign(&mut self, next: usize, replica_s: f64) {
        self.found.steps += 1;
        if self.found.steps.is_multiple_of(POLL) && self.budget.is_over() {
            self.found.is_complete = false;
        }
        if !self.found.is_complete || replica_s >= self.cost || replica_s > self.problem.limit_s {
            return;
        }
        let AllocationProblem { costs, sizes, .. } = self.problem;
        let Some(node) = self.nodes.get(next).copied() else { return self.score() };
        for stage in 0..sizes.len() {
            let is_same_as_before = stage > 0
                && self.stages[stage].is_empty()
                && (1..stage).any(|s| sizes[s] == sizes[stage] && self.stages[s].is_empty());
            if self.stages[stage].len() == sizes[stage] || is_same_as_before {
                continue;
            }
            let apart = |other: &usize| costs.apart_s(costs.site(node), costs.site(*other));
            let farthest = self.stages[stage].iter().map(apart).fold(replica_s, f64::max);
            self.stages[stage].push(node);
            self.assign(next + 1, farthest);
            self.stages[stage].pop();
        }
    }

    fn score(&mut self) {
        let score_s = scored(self.problem.costs, &self.stages).score_s;
        if score_s < self.cost {
            self.cost = score_s;
            self.found.best = Some(self.stages.clone());
        }
    }
}
