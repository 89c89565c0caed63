//! All partitions, where they are few.

use super::draft::spread_of;
use super::genetic::Question;
use super::score::scored;
use super::tour;
use crate::budget::Budget;

/// Up to so many partitions are looked through.
const MOST: f64 = 200_000.0;
/// Partial partitions between two looks at the clock.
const POLL: u64 = 256;

/// What looking through all partitions has given.
#[derive(Clone, Debug)]
pub struct Exhausted {
    /// The best partition below the cost that was given, if there is any.
    pub best: Option<Vec<Vec<usize>>>,
    /// Whether all have been looked at.
    pub is_complete: bool,
    /// Partial partitions looked at.
    pub steps: u64,
}

/// Whether all partitions can be looked through, each with its shortest tour.
#[must_use]
pub fn is_small(question: &Question<'_>) -> bool {
    question.sizes.len() <= tour::MOST_EXACT && count(question) <= MOST
}

/// How many partitions there are, stages of the same size other than stage 0 being interchangeable.
fn count(question: &Question<'_>) -> f64 {
    let sizes = &question.sizes[usize::from(question.sources.is_some())..];
    let mut count = 1.0;
    let mut nodes = 0;
    for size in sizes {
        for k in 1..=*size {
            nodes += 1;
            count *= nodes as f64 / k as f64;
        }
    }
    let others = &question.sizes[1..];
    for (i, size) in others.iter().enumerate() {
        count /= (others[..i].iter().filter(|other| *other == size).count() + 1) as f64;
    }
    count
}

/// Looks for the best partition that keeps the limit and scores below `cost`.
#[must_use]
pub fn exhaust(question: &Question<'_>, cost: f64, budget: &Budget) -> Exhausted {
    let mut stages = vec![Vec::new(); question.sizes.len()];
    if let Some(sources) = question.sources {
        stages[0] = sources.to_vec();
    }
    let mut search = Search {
        question: *question,
        nodes: (0..question.costs.nodes()).filter(|n| !stages[0].contains(n)).collect(),
        stages,
        cost,
        found: Exhausted { best: None, is_complete: true, steps: 0 },
        budget,
    };
    let replica_s = spread_of(question.costs, &search.stages[0]);
    search.place(0, replica_s);
    search.found
}

struct Search<'a> {
    question: Question<'a>,
    /// Those to place.
    nodes: Vec<usize>,
    stages: Vec<Vec<usize>>,
    /// What is looked for costs less.
    cost: f64,
    found: Exhausted,
    budget: &'a Budget,
}

impl Search<'_> {
    /// Tries all stages for the node number `next`.
    fn place(&mut self, next: usize, replica_s: f64) {
        self.found.steps += 1;
        if self.found.steps.is_multiple_of(POLL) && self.budget.is_over() {
            self.found.is_complete = false;
        }
        if !self.found.is_complete || replica_s >= self.cost || replica_s > self.question.limit_s {
            return;
        }
        let Question { costs, sizes, .. } = self.question;
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
            self.place(next + 1, farthest);
            self.stages[stage].pop();
        }
    }

    fn score(&mut self) {
        let score_s = scored(self.question.costs, &self.stages).score_s;
        if score_s < self.cost {
            self.cost = score_s;
            self.found.best = Some(self.stages.clone());
        }
    }
}
