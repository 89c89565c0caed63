//! The best order for given routes: tabu search on the disjunctive graph, as for job shops (Nowicki and Smutnicki; Balas
//! and Vazacopoulos).
//!
//! The iteration can only get shorter if some task of a critical path's block (tasks of one node without a gap) goes
//! before the block's first or behind its last. Each step takes the best of these moves by an estimate, also where it
//! is worse than staying, and forbids the reverse move for a while. Where nothing better comes for long, the search
//! restarts from the best order so far, perturbed a little.
//!
//! With TC1 `held` the order of a node says how many microbatches it holds. Where a move would have it hold too many,
//! only the forwards (or only the backwards) between change their order, which leaves the number at every position as
//! it was; and a forward that waits for memory may go before those that hold it.

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::budget::Budget;
use crate::problem::Instance;
use crate::simulate::{MicrobatchRoute, OrderGraph, Outcome, Replaced, TaskId};
use crate::time::Time;

/// Steps without a better order after which the search restarts: so many a task, and at most.
const PATIENCE: u64 = 40;
const MOST_PATIENCE: u64 = 10_000;
/// A task is moved past at most so many others of its block.
const REACH: usize = 24;
/// Forwards past which one that waits for memory is moved.
const GATED_REACH: usize = 3;
/// Senders past which one whose message waits for its link is moved.
const LINK_REACH: usize = 3;
/// Steps for which the reverse move is forbidden, from and to.
const TENURE: (u64, u64) = (14, 28);
/// Forbidden moves that are remembered before the old ones are forgotten.
const MOST_TABU: usize = 100_000;
/// Random moves that perturb an order, from and to.
const PERTURBATIONS: (u64, u64) = (3, 12);
/// How often microbatches are shifted instead, earlier or later with all their tasks, by at most a share of the
/// iteration: where memory binds the orders of several nodes together, no change of one of them alone goes far.
const SHIFTS: f64 = 0.25;
const MOST_SHIFT: f64 = 0.5;
/// How often a random move is anywhere rather than on a critical path.
const ANYWHERE: f64 = 0.25;
/// Steps between two looks at the clock.
const STEPS_PER_POLL: u64 = 64;

/// A better order for the same routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Improved {
    /// What every node runs.
    pub order: Vec<Vec<TaskId>>,
    /// Its times.
    pub outcome: Outcome,
    /// Search steps.
    pub work: u64,
}

/// Improves `order` until about `work_limit` search steps are done, the iteration is no more than `limit`, or the
/// budget is over; none where nothing better was found or `order` deadlocks.
#[must_use]
pub fn improve(
    instance: &Instance,
    microbatches: &[MicrobatchRoute],
    order: &[Vec<TaskId>],
    rng: &mut Pcg64,
    work_limit: u64,
    limit: Time,
    budget: &Budget,
) -> Option<Improved> {
    let mut search = OrderSearch::new(instance, microbatches, order, rng, limit)?;
    search.run(work_limit, budget);
    search.best()
}

/// Iteration, then sum of completion times.
pub type Key = (Time, Time);

/// A node's tasks from index `from` on in another order; they stand in `OrderSearch::segments`.
#[derive(Clone, Copy, Debug)]
struct Move {
    estimate: Time,
    tie: u32,
    from: usize,
    segment: (usize, usize),
    /// What goes past the others, and whether behind them.
    task: TaskId,
    is_behind: bool,
}

/// See the [module](self). Goes on where it stopped, with the same steps whatever the slices.
#[derive(Clone, Debug)]
pub struct OrderSearch {
    graph: OrderGraph,
    rng: Pcg64,
    limit: Time,
    start: Key,
    best: Vec<TaskId>,
    best_key: Key,
    /// Best since the restart, and the step at which it was found.
    recent: Key,
    recent_step: u64,
    step: u64,
    /// Until which step the first of two tasks may not be moved before the second.
    tabu: FxHashMap<(TaskId, TaskId), u64>,
    is_over: bool,
    path: Vec<TaskId>,
    moves: Vec<Move>,
    segments: Vec<TaskId>,
    segment: Vec<TaskId>,
}

impl OrderSearch {
    /// A search that begins with `order`, which lists every task of `microbatches` once on its own node; none where
    /// that deadlocks. It ends where an iteration of `limit` is reached.
    #[must_use]
    pub fn new(
        instance: &Instance,
        microbatches: &[MicrobatchRoute],
        order: &[Vec<TaskId>],
        rng: &mut Pcg64,
        limit: Time,
    ) -> Option<Self> {
        let graph = OrderGraph::new(instance, microbatches, order).ok()?;
        let key = (graph.iteration(), graph.finish_sum());
        Some(Self {
            rng: Pcg64::seed_from_u64(rng.random()),
            limit,
            start: key,
            best: graph.order().to_vec(),
            best_key: key,
            recent: key,
            recent_step: 0,
            step: 0,
            tabu: FxHashMap::default(),
            is_over: key.0 <= limit,
            path: Vec::new(),
            moves: Vec::new(),
            segments: Vec::new(),
            segment: Vec::new(),
            graph,
        })
    }

    /// Whether no order of these routes is better: the limit is reached, or no task of a critical path waits for its
    /// node, and no message for its link.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Search steps so far.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.graph.work()
    }

    /// Iteration and sum of completion times of the order that it began with.
    #[must_use]
    pub fn start(&self) -> Key {
        self.start
    }

    /// Iteration and sum of completion times of the best order so far.
    #[must_use]
    pub fn key(&self) -> Key {
        self.best_key
    }

    /// The best order so far, if it is better than the first.
    #[must_use]
    pub fn best(&self) -> Option<Improved> {
        if self.best_key >= self.start {
            return None;
        }
        let mut graph = self.graph.clone();
        graph.reset(&self.best);
        let processors = (0..graph.processor_count()).map(|processor| self.best[graph.indices_of(processor)].to_vec());
        Some(Improved { order: processors.collect(), outcome: graph.outcome(), work: self.work() })
    }

    /// Goes on until about `work` more search steps are done, the search or the budget is over.
    pub fn run(&mut self, work: u64, budget: &Budget) {
        let until = self.work().saturating_add(work);
        while !self.is_over && self.work() < until {
            if self.step.is_multiple_of(STEPS_PER_POLL) && budget.is_over() {
                break;
            }
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.step += 1;
        let patience = MOST_PATIENCE.min(PATIENCE * self.best.len() as u64);
        if self.step - self.recent_step > patience {
            self.restart();
        }
        self.find_moves();
        if self.is_over {
            return;
        }
        if !self.take_best() {
            self.restart();
        }
        self.record();
    }

    /// Remembers where it is, if that is better than before.
    fn record(&mut self) {
        let iteration = self.graph.iteration();
        if iteration > self.recent.0 {
            return;
        }
        let key = (iteration, self.graph.finish_sum());
        if key >= self.recent {
            return;
        }
        if iteration < self.recent.0 {
            self.recent_step = self.step;
        }
        self.recent = key;
        self.record_best(key);
    }

    fn record_best(&mut self, key: Key) {
        if key < self.best_key {
            self.best_key = key;
            self.best.clear();
            self.best.extend_from_slice(self.graph.order());
            self.is_over |= key.0 <= self.limit;
        }
    }

    /// The moves of a critical path, best first.
    fn find_moves(&mut self) {
        let rng = &mut self.rng;
        self.graph.critical_path(&mut self.path, |count| if count == 1 { 0 } else { rng.random_range(0..count) });
        self.moves.clear();
        self.segments.clear();
        let graph = &self.graph;
        let waits = |pair: &[TaskId]| graph.after(pair[0]) != Some(pair[1]) || graph.waits_for_link(pair[1]);
        if !self.path.windows(2).any(waits) {
            // No task of the critical path waits for its node, and no message for its link, so no order makes it shorter.
            self.record();
            self.is_over = true;
            return;
        }
        let path = std::mem::take(&mut self.path);
        let mut first = 0;
        for i in 1..=path.len() {
            let goes_on = i < path.len()
                && self.graph.processor_of(path[i]) == self.graph.processor_of(path[i - 1])
                && self.graph.index_of(path[i]) == self.graph.index_of(path[i - 1]) + 1;
            if !goes_on {
                self.find_block_moves(self.graph.index_of(path[first]), self.graph.index_of(path[i - 1]));
                first = i;
            }
        }
        for pair in path.windows(2) {
            if self.graph.after(pair[0]) == Some(pair[1]) && self.graph.waits_for_link(pair[1]) {
                self.propose_sending_earlier(pair[0]);
            }
        }
        self.path = path;
        self.moves.sort_unstable_by_key(|m| (m.estimate, m.tie));
    }

    /// Moves of a block at indices `first..=last`.
    fn find_block_moves(&mut self, first: usize, last: usize) {
        for index in first + 1..=last.min(first + REACH) {
            self.propose(index, first);
        }
        // Of two neighbours one move is enough.
        let nearest = if last == first + 1 { last } else { first.max(last.saturating_sub(REACH)) };
        for index in nearest..last {
            self.propose(index, last);
        }
        for index in first + 1..=last {
            if self.graph.is_gated(self.graph.order()[index]) {
                self.propose_gated(index);
            }
        }
    }

    /// The task at `index` to index `to`; where the node has no memory for that, only tasks of its kind move.
    fn propose(&mut self, index: usize, to: usize) {
        let order = self.graph.order();
        let (task, other) = (order[index], order[to]);
        let is_behind = to > index;
        let is_open = if is_behind { self.graph.may_follow(task, other) } else { self.graph.may_precede(task, other) };
        if !is_open {
            return;
        }
        let (from, end) = (index.min(to), index.max(to) + 1);
        self.segment.clear();
        self.segment.extend_from_slice(&order[from..end]);
        if is_behind {
            self.segment.rotate_left(1);
        } else {
            self.segment.rotate_right(1);
        }
        if !self.graph.fits(from, &self.segment) {
            self.rotate_kind(index, to);
        }
        self.add(from, task, is_behind);
    }

    /// Puts into `segment` what stands between `index` and `to`, with the task at `index` at the last position there of
    /// a task of its kind and the others of that kind moved up: what the node holds stays the same.
    fn rotate_kind(&mut self, index: usize, to: usize) {
        let order = self.graph.order();
        let (from, end) = (index.min(to), index.max(to) + 1);
        let kind = self.graph.holds(order[index]);
        self.segment.clear();
        self.segment.extend_from_slice(&order[from..end]);
        let mut carried = order[index];
        let count = end - from;
        for i in 0..count {
            // From the far end towards the task.
            let i = if to > index { count - 1 - i } else { i };
            if self.graph.holds(self.segment[i]) == kind {
                std::mem::swap(&mut carried, &mut self.segment[i]);
            }
        }
    }

    /// A forward that waits for memory: before one of the forwards that hold it.
    fn propose_gated(&mut self, index: usize) {
        let order = self.graph.order();
        let begin = self.graph.indices_of(self.graph.processor_of(order[index])).start;
        let task = order[index];
        let mut left = GATED_REACH;
        for to in (begin..index).rev() {
            if self.graph.holds(self.graph.order()[to]) <= 0 {
                continue;
            }
            self.rotate_kind(index, to);
            self.add(to, task, false);
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }

    /// A task whose message waits for others of its node: before one of those that send them.
    fn propose_sending_earlier(&mut self, task: TaskId) {
        let senders: SmallVec<[usize; LINK_REACH]> = self.graph.sent_before(task).take(LINK_REACH).collect();
        for to in senders {
            self.propose(self.graph.index_of(task), to);
        }
    }

    /// Adds the move that makes `segment` of what begins at `from`.
    fn add(&mut self, from: usize, task: TaskId, is_behind: bool) {
        if self.segment[..] == self.graph.order()[from..from + self.segment.len()] {
            return;
        }
        let estimate = self.graph.estimate(from, &self.segment);
        let begin = self.segments.len();
        self.segments.extend_from_slice(&self.segment);
        let tie = self.rng.random();
        self.moves.push(Move { estimate, tie, from, segment: (begin, self.segments.len()), task, is_behind });
    }

    /// Makes the best move that is not forbidden or promises a better order than any; else any move. False where none
    /// is possible.
    fn take_best(&mut self) -> bool {
        let best = self.best_key.0 - (self.graph.iteration() - self.graph.end());
        for i in 0..self.moves.len() {
            let chosen = self.moves[i];
            if (chosen.estimate < best || !self.is_tabu(&chosen)) && self.make(&chosen) {
                return true;
            }
        }
        if self.moves.is_empty() {
            return false;
        }
        let any = self.rng.random_range(0..self.moves.len());
        (0..self.moves.len()).any(|i| {
            let chosen = self.moves[(any + i) % self.moves.len()];
            self.make(&chosen)
        })
    }

    fn is_tabu(&self, chosen: &Move) -> bool {
        let others = &self.segments[chosen.segment.0..chosen.segment.1];
        others.iter().filter(|other| **other != chosen.task).any(|other| {
            let pair = if chosen.is_behind { (*other, chosen.task) } else { (chosen.task, *other) };
            self.tabu.get(&pair).is_some_and(|until| *until > self.step)
        })
    }

    fn make(&mut self, chosen: &Move) -> bool {
        let tasks = &self.segments[chosen.segment.0..chosen.segment.1];
        if self.graph.replace(chosen.from, tasks) != Replaced::Done {
            return false;
        }
        let until = self.step + self.rng.random_range(TENURE.0..=TENURE.1);
        if self.tabu.len() > MOST_TABU {
            let step = self.step;
            self.tabu.retain(|_, until| *until > step);
        }
        for other in tasks.iter().filter(|other| **other != chosen.task) {
            let back = if chosen.is_behind { (chosen.task, *other) } else { (*other, chosen.task) };
            self.tabu.insert(back, until);
        }
        true
    }

    /// Goes on from the best order, changed at random.
    fn restart(&mut self) {
        self.graph.reset(&self.best);
        if !(self.rng.random_bool(SHIFTS) && self.shift_microbatches()) {
            self.perturb();
        }
        self.tabu.clear();
        self.recent = (self.graph.iteration(), self.graph.finish_sum());
        self.recent_step = self.step;
        self.record_best(self.recent);
    }

    /// Every task when it is now, but for the shift of its microbatch; false where that deadlocks.
    fn shift_microbatches(&mut self) -> bool {
        let most = (self.graph.iteration() as f64 * MOST_SHIFT * self.rng.random::<f64>()) as Time;
        let shifts: Vec<Time> =
            (0..self.graph.microbatch_count()).map(|_| self.rng.random_range(-most..=most)).collect();
        let keys: Vec<Time> = (0..self.graph.order().len() as TaskId)
            .map(|task| self.graph.head_of(task) + shifts[self.graph.microbatch_of(task)])
            .collect();
        let listed = self.graph.listed(|task| keys[task as usize]);
        listed.is_some_and(|order| self.graph.reset(&order))
    }

    /// Some random moves.
    fn perturb(&mut self) {
        for _ in 0..self.rng.random_range(PERTURBATIONS.0..=PERTURBATIONS.1) {
            self.find_moves();
            if self.is_over {
                return;
            }
            if self.moves.is_empty() || self.rng.random_bool(ANYWHERE) {
                self.propose_anywhere();
            }
            if let Some(chosen) = self.moves.choose(&mut self.rng).copied() {
                self.make(&chosen);
            }
        }
    }

    /// Any task to any index near it, as the only move.
    fn propose_anywhere(&mut self) {
        self.moves.clear();
        self.segments.clear();
        let index = self.rng.random_range(0..self.graph.order().len());
        let own = self.graph.indices_of(self.graph.processor_of(self.graph.order()[index]));
        let (least, most) = (index.saturating_sub(REACH).max(own.start), (index + REACH).min(own.end - 1));
        let to = self.rng.random_range(least..=most);
        if self.rng.random_bool(0.5) {
            self.propose(index, to);
        } else {
            self.rotate_kind(index, to);
            self.add(index.min(to), self.graph.order()[index], to > index);
        }
    }
}
