//! Proofs beside the search for plans: conflict-based search over the whole instance, and over some of its sources
//! alone, which leaves out what the others ask for and so never takes longer than the whole.

use std::cmp::Reverse;

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::problem::Instance;
use crate::route::RouteTask;
use crate::search::methods::cbs;
use crate::search::methods::cbs::{Subproblem, Termination, VisitDemand};
use crate::time::{NEVER, Time};

/// What [`crate::search::methods::cbs`] counts, in simulated tasks.
const STEP_WORK: u64 = 4;
/// Steps of the first search of each question; every further one may take twice as many.
const FIRST_STEPS: u64 = 20_000;

/// So many times as much work as on a part goes to the whole.
const SHARE_OF_WHOLE: u64 = 4;

/// A question of conflict-based search.
#[derive(Debug)]
struct Part {
    /// Sources, by their index in the instance.
    sources: Vec<usize>,
    tasks: Vec<RouteTask>,
    demand: VisitDemand,
    steps: u64,
    spent: u64,
    /// In nanoseconds, what follows once after everything left out.
    bound: Time,
    is_over: bool,
    /// It was too large to be listed below this limit; below a lower one it may not be.
    too_large_below: Option<Time>,
}

/// What one call found.
#[derive(Debug, Default)]
pub struct Step {
    /// Search steps done.
    pub work: u64,
    /// A better plan.
    pub found: Option<cbs::Solution>,
    /// Proved: there is no plan at all.
    pub is_impossible: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Prover<'a> {
    /// Durations rounded down.
    below: &'a Instance,
    lookahead: &'a Lookahead,
    all: &'a [RouteTask],
    parts: Vec<Part>,
    /// Sources whose relaxations differ, those with the greatest bound first once they are known.
    singles: usize,
    bound: Time,
    statistics: cbs::Statistics,
}

impl<'a> Prover<'a> {
    /// `bound` is what is known already.
    #[must_use]
    pub fn new(below: &'a Instance, lookahead: &'a Lookahead, all: &'a [RouteTask], bound: Time) -> Self {
        let mut prover = Self {
            below,
            lookahead,
            all,
            parts: Vec::new(),
            singles: 0,
            bound,
            statistics: cbs::Statistics::default(),
        };
        prover.add((0..below.sources.len()).collect());
        let mut seen = Vec::new();
        for (index, source) in below.sources.iter().enumerate() {
            // Sources that are alike have the same relaxation.
            let class = &below.classes[source.class];
            let node = source.node;
            let times = (class.forward[node], class.backward[node], class.loss[node], below.memory[node]);
            let key = (below.place(node), source.class, source.microbatches, times);
            if below.sources.len() > 1 && !seen.contains(&key) {
                seen.push(key);
                prover.add(vec![index]);
            }
        }
        prover.singles = prover.parts.len();
        prover
    }

    /// No plan takes less.
    #[must_use]
    pub fn bound(&self) -> Time {
        self.bound
    }

    /// Counts over all questions.
    #[must_use]
    pub fn into_statistics(self) -> cbs::Statistics {
        self.statistics
    }

    /// Whether nothing is left to ask, now that only what is below `upper` is of interest.
    pub fn is_over(&mut self, upper: Time) -> bool {
        for part in &mut self.parts {
            if part.too_large_below.is_some_and(|limit| upper < limit - limit / 50) {
                part.is_over = false;
                part.too_large_below = None;
            }
        }
        self.parts.iter().all(|part| part.is_over)
    }

    fn is_whole(&self, part: usize) -> bool {
        self.parts[part].tasks.len() == self.all.len()
    }

    fn add(&mut self, sources: Vec<usize>) {
        let tasks: Vec<RouteTask> = {
            let of_part = |task: &&RouteTask| {
                sources.iter().any(|index| {
                    let source = self.below.sources[*index];
                    (source.node, source.class) == (task.source, task.class)
                })
            };
            self.all.iter().filter(of_part).copied().collect()
        };
        if let Some(demand) = VisitDemand::of(self.below, tasks.len(), self.all.len()) {
            let part = Part {
                sources,
                tasks,
                demand,
                steps: FIRST_STEPS,
                spent: 0,
                bound: 0,
                is_over: false,
                too_large_below: None,
            };
            self.parts.push(part);
        }
    }

    /// Works on the question that has had least of its share so far; only what is below `upper` is of interest.
    pub fn advance(&mut self, upper: Time, budget: &Budget) -> Step {
        let open = (0..self.parts.len()).filter(|i| !self.parts[*i].is_over);
        // The whole decides in the end, so it may take more than any part.
        let taken =
            |i: usize| if self.is_whole(i) { self.parts[i].spent / SHARE_OF_WHOLE } else { self.parts[i].spent };
        let Some(index) = open.min_by_key(|i| (taken(*i), *i)) else { return Step::default() };
        let is_whole = self.is_whole(index);
        let epilogue = self.below.epilogue;
        let part = &mut self.parts[index];
        let limit = if upper >= NEVER { NEVER } else { upper - epilogue };
        let allowed = part.steps;
        let subproblem = Subproblem {
            instance: self.below,
            tasks: &part.tasks,
            demand: &part.demand,
            limit,
            suboptimality: 1.0,
            work_limit: part.steps,
        };
        let answer = cbs::solve(&subproblem, self.lookahead, budget);
        let steps = answer.statistics.path_evaluations + answer.statistics.nodes;
        part.spent += steps.max(allowed / 8);
        part.steps *= 2;
        part.bound = part.bound.max(answer.bound.min(limit));
        part.is_over = answer.termination == Termination::Exhausted;
        // It may also end because the question is too large for it; asked again it would end there again, but for a
        // lower limit.
        if !part.is_over && steps < allowed && !budget.is_over() {
            part.is_over = true;
            part.too_large_below = Some(upper);
        }
        self.bound = self.bound.max(part.bound.min(NEVER).saturating_add(epilogue));
        let work = STEP_WORK * steps.max(1) + answer.statistics.listed / 2;
        add(&mut self.statistics, &answer.statistics);
        budget.add_work(work);
        if self.parts[1.min(self.parts.len() - 1)..].iter().all(|part| part.is_over) {
            self.widen();
        }
        let nothing = is_whole && limit >= NEVER && answer.best.is_none();
        Step {
            work,
            is_impossible: nothing && answer.termination == Termination::Exhausted,
            found: answer.best.filter(|_| is_whole),
        }
    }

    /// All relaxations are solved: one more, of the sources with the greatest bounds, one source more than before.
    fn widen(&mut self) {
        if self.parts.len() < self.singles || self.singles < 3 {
            return;
        }
        let count = self.parts.len() - self.singles + 2;
        if count >= self.below.sources.len() {
            return;
        }
        let mut order: Vec<usize> = (1..self.singles).collect();
        order.sort_by_key(|i| (Reverse(self.parts[*i].bound), *i));
        let mut sources: Vec<usize> = order.iter().map(|i| self.parts[*i].sources[0]).take(count).collect();
        if sources.len() < count {
            return;
        }
        sources.sort_unstable();
        self.add(sources);
    }
}

fn add(all: &mut cbs::Statistics, one: &cbs::Statistics) {
    all.nodes += one.nodes;
    all.listed += one.listed;
    all.path_evaluations += one.path_evaluations;
    all.quota_conflicts += one.quota_conflicts;
    all.length_conflicts += one.length_conflicts;
    all.memory_conflicts += one.memory_conflicts;
    all.overlap_conflicts += one.overlap_conflicts;
    all.detours += one.detours;
    all.cardinal += one.cardinal;
    all.implied += one.implied;
    all.bypasses += one.bypasses;
    all.duplicates += one.duplicates;
}
