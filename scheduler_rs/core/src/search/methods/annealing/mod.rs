//! Simulated annealing over routes and the order in which nodes take their tasks.
//!
//! An [`AnnealingChain`] goes from one set of routes to the next by small changes (see [`super::routes`]). First it looks at
//! an estimate of the iteration alone, which costs nothing: at scale the choice of routes decides, not the order. Then
//! it simulates every change, under priorities that say which task a node takes first, and changes those as well.
//! It can be stopped after any number of steps and resumed; when its run is finished it restarts, for more steps, from
//! other routes or, as a warm restart, from the best plan.

mod allocation_moves;
mod allocation_state;
mod chain;
mod estimate;
#[cfg(test)]
mod estimate_tests;

use std::cmp::Reverse;

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::budget::Budget;
use crate::part::Part;
use crate::problem::Instance;
use crate::route::{Lengths, RouteTask};
use crate::search::effort::FEW_TASKS;
use crate::search::instance_view::InstanceView;
use crate::search::methods::annealing::estimate::Estimate;
use crate::search::methods::routes::{Change, Path, Routes, first_microbatches, microbatches_of_paths};
use crate::simulate::{Outcome, Workspace};
use crate::time::Time;

pub(super) use self::allocation_state::OwnedInstance;
pub use self::allocation_state::{AllocationState, PrioritisedRoutes};
pub use self::chain::AnnealingChain;
pub(super) use self::chain::energy;
use self::chain::{ESTIMATE_WORK, Phase};

/// How often the allocation is changed rather than routes or priorities, where it may be; and how much hotter it is then.
const ALLOCATION_MOVES: f64 = 0.4;
const HOTTER: f64 = 2.0;
/// Length of most runs where the allocation may change, as the number of a run; the others are longer.
const FREE_RUN: u32 = 3;
/// With fewer nodes than these, shorter ones.
const FEW_NODES: usize = 12;
const FREE_RUN_OF_FEW: u32 = 1;
/// Where the allocation may change, the estimate gets less of a run: it does not see what nodes and links are waited for.
const FREE_ESTIMATE: f64 = 0.1;
const FREE_ESTIMATE_OF_WARM_RESTART: f64 = 0.3;
/// So it does where nodes are few: each of them is waited for by most routes, and order decides.
const ESTIMATE_OF_FEW: f64 = 0.1;
/// Work of the first run of a chain, in simulations of all tasks.
pub const FIRST_RUN: u64 = 250;
/// Each further run may do four times as much, from this on twice as much.
const LONG_RUN: u64 = 4_000;
/// Most doublings.
const MOST_DOUBLINGS: u32 = 16;
/// The most routes whose parts one assignment move reassigns.
const MOST_ASSIGNED: usize = 128;
/// Temperatures at which a run begins and ends, as shares of the iteration.
const SIMULATED: Cooling = Cooling { start: 3e-3, end: 1e-4 };
/// The same for the logarithm of the estimate, for each route, since a sum over more routes changes by less; and its
/// powers.
const ESTIMATED: Cooling = Cooling { start: 0.15, end: 0.0075 };
const POWERS: (i32, i32) = (4, 32);
/// A run that goes on from the best plan keeps most of it.
const WARM_RESTART: f64 = 0.3;
const WARM_RESTART_POWER: i32 = 12;

#[derive(Clone, Copy, Debug)]
struct Cooling {
    start: f64,
    end: f64,
}

impl Cooling {
    /// Falls from start to end, by the same factor in each step.
    fn at(self, share: f64) -> f64 {
        self.start * (self.end / self.start).powf(share)
    }
}

impl AnnealingChain {
    /// From complete routes; `scale` is about the iteration that is hoped for.
    #[must_use]
    pub fn new(view: InstanceView<'_>, paths: Vec<Path>, rng: Pcg64, scale: Time) -> Self {
        let microbatches = microbatches_of_paths(view.tasks, &paths);
        let routes = Routes::new(view, paths);
        let mut chain = Self {
            owned: OwnedInstance { instance: view.instance.clone(), tasks: view.tasks.to_vec() },
            placement: None,
            estimate: Estimate::new(view, &routes, scale),
            routes,
            workspace: Workspace::default(),
            priorities: default_priorities(microbatches.len()),
            microbatches,
            first: first_microbatches(view.tasks),
            outcome: Outcome::default(),
            energy: f64::INFINITY,
            rng,
            best: None,
            phase: Phase::Done,
            step: 0,
            steps: 0,
            restarts: 0,
            run: 0,
            warm_restart: false,
            work: 0,
            without: None,
        };
        chain.enter(Phase::Estimate);
        chain
    }

    /// A chain that searches the allocation too, from this one on.
    #[must_use]
    pub fn free(allocation: &AllocationState, paths: Vec<Path>, rng: Pcg64, scale: Time) -> Self {
        Self { placement: Some(allocation.placement.clone()), ..Self::new(allocation.view(), paths, rng, scale) }
    }

    /// The best so far.
    #[must_use]
    pub fn best(&self) -> Option<&PrioritisedRoutes> {
        self.best.as_ref()
    }

    /// Whether the run is over: [`AnnealingChain::restart`] is to follow.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Runs so far beside the first one.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Begins the next run, longer than the one before, with the routes and priorities of a plan, or with other routes
    /// altogether.
    pub fn restart(&mut self, from: &PrioritisedRoutes, warm_restart: bool) {
        self.restarts += 1;
        self.warm_restart = warm_restart;
        if self.placement.is_some() {
            // Every run shows what it found, so that there is a second best allocation too.
            self.best = None;
        }
        // From afar many short runs find more allocations than a long one: lengths as Luby, Sinclair and Zuckerman.
        let is_afar = self.placement.is_some() && !warm_restart;
        let least = if self.owned.instance.node_count() < FEW_NODES { FREE_RUN_OF_FEW } else { FREE_RUN };
        let run = if is_afar { least + self.restarts.trailing_zeros() } else { self.restarts };
        self.run = run.min(MOST_DOUBLINGS);
        let all: Change = (0..).zip(&from.paths).map(|(route, path)| (route, path.clone())).collect();
        if let Some(allocation) = &from.allocation {
            self.owned = allocation.owned.clone();
            self.placement = Some(allocation.placement.clone());
            self.routes = Routes::new(self.owned.view(), from.paths.clone());
        } else {
            self.routes.replace(self.owned.view(), &from.paths);
        }
        self.write(&all);
        self.priorities.clone_from(&from.priorities);
        self.enter(Phase::Estimate);
    }

    fn enter(&mut self, phase: Phase) {
        let tasks = self.microbatches.iter().map(|b| 2 * b.nodes.len() as u64 + 1).sum::<u64>().max(1);
        let work = run_length(self.run) * tasks;
        self.step = 0;
        self.phase = phase;
        match phase {
            Phase::Estimate => {
                let is_small = self.owned.instance.node_count() <= FEW_NODES && tasks > FEW_TASKS as u64;
                let share = match (&self.placement, self.warm_restart) {
                    (None, _) if is_small => ESTIMATE_OF_FEW,
                    (None, _) => 1.0,
                    (Some(_), true) => FREE_ESTIMATE_OF_WARM_RESTART,
                    (Some(_), false) => FREE_ESTIMATE,
                };
                self.steps = (share * (work / 2 / ESTIMATE_WORK) as f64) as u64;
                self.estimate.rebuild(self.owned.view(), &self.routes);
            }
            Phase::Simulate => {
                self.steps = work / 2 / tasks;
                let simulated = self.simulate();
                self.energy = simulated
                    .as_ref()
                    .map_or(f64::INFINITY, |o| energy(o.iteration, o.finish_sum, self.microbatches.len()));
                if let Some(outcome) = simulated {
                    self.outcome = outcome;
                    self.keep();
                }
            }
            Phase::Done => {}
        }
    }

    /// Goes on until about `work` search steps more are done, the run is over or the time is.
    pub fn run(&mut self, work: u64, budget: &Budget) {
        let until = self.work + work;
        while self.phase != Phase::Done && self.work < until && !budget.is_over() {
            if self.step >= self.steps {
                self.enter(if self.phase == Phase::Estimate { Phase::Simulate } else { Phase::Done });
            } else if self.phase == Phase::Estimate {
                self.run_estimate((self.step + STEPS_PER_POLL).min(self.steps));
            } else {
                self.step += 1;
                self.work += 1;
                let temperature = SIMULATED.at(self.share()) * self.outcome.iteration as f64 * self.temperature();
                if self.placement.is_some() && self.rng.random_bool(ALLOCATION_MOVES) {
                    self.try_allocation_move(temperature);
                } else if self.rng.random_bool(0.3) {
                    self.try_priority(temperature);
                } else {
                    self.try_route(temperature);
                }
            }
        }
    }

    /// How much hotter than others this run is.
    fn temperature(&self) -> f64 {
        (if self.warm_restart { WARM_RESTART } else { 1.0 }) * if self.placement.is_some() { HOTTER } else { 1.0 }
    }

    fn share(&self) -> f64 {
        self.step as f64 / self.steps as f64
    }

    /// Changes routes by the estimate alone, up to step `until`.
    fn run_estimate(&mut self, until: u64) {
        let share = self.share();
        let low = if self.warm_restart { WARM_RESTART_POWER } else { POWERS.0 };
        self.estimate.raise(self.owned.view(), low + (f64::from(POWERS.1 - low) * share) as i32);
        let temperature = ESTIMATED.at(share) / self.owned.tasks.len() as f64 * self.temperature();
        self.work += (until - self.step) * ESTIMATE_WORK;
        let is_due = self.step / self.assignment_interval() != until / self.assignment_interval();
        if is_due && self.without != Some(Part::AssignmentMoves) {
            self.assignment_move();
        }
        while self.step < until {
            self.step += 1;
            if self.placement.is_some() && self.rng.random_bool(ALLOCATION_MOVES) {
                self.estimate_allocation_move(temperature);
                continue;
            }
            self.estimate_route_move(temperature);
        }
    }

    /// Steps between two assignment moves: these take about a fifth of the time.
    fn assignment_interval(&self) -> u64 {
        assignment_work(self.owned.tasks.len().min(MOST_ASSIGNED) as u64).max(STEPS_PER_POLL)
    }

    /// Reassigns the parts of many routes between two positions, so that the estimate falls by as much as it can: what
    /// would take chains of changes, most of them for the worse, is one step here.
    fn assignment_move(&mut self) {
        let count = self.owned.tasks.len();
        let model = self.pick(0.5, count / 16, |chain, route| chain.estimate.route_time(chain.owned.view(), route));
        let length = self.routes.path(model).len();
        let is_open = |route: &usize| self.routes.path(*route).len() == length && !self.owned.view().is_forced(*route);
        let mut chosen: Vec<usize> = (0..count).filter(is_open).collect();
        if chosen.len() > MOST_ASSIGNED {
            // The longest ones and any others.
            chosen.sort_by_key(|route| (Reverse(self.estimate.route_time(self.owned.view(), *route)), *route));
            for i in MOST_ASSIGNED / 2..MOST_ASSIGNED {
                let other = self.rng.random_range(i..chosen.len());
                chosen.swap(i, other);
            }
            chosen.truncate(MOST_ASSIGNED);
        }
        let first = self.owned.view().free_from();
        if length <= first || chosen.len() < 2 {
            return;
        }
        let from = self.rng.random_range(first..length);
        let to = if self.rng.random_bool(0.5) { from + 1 } else { self.rng.random_range(from + 1..=length) };
        self.work += assignment_work(chosen.len() as u64);
        let change = self.routes.reassign(self.owned.view(), &chosen, from, to, |route, path| {
            self.estimate.of_path(self.owned.view(), route, path)
        });
        let before = self.estimate.sum();
        let Some(back) = change.and_then(|change| self.routes.apply(self.owned.view(), change)) else {
            return;
        };
        self.estimate.follow(self.owned.view(), &self.routes, &back);
        if self.estimate.sum() <= before {
            self.write(&back);
        } else {
            self.take_back(back);
        }
    }

    fn try_route(&mut self, temperature: f64) {
        let completion =
            |chain: &Self, r: usize| chain.workspace.completion_of(chain.first[r] + chain.owned.tasks[r].waves - 1);
        let route = self.pick(0.3, self.owned.tasks.len() / 16, completion);
        let Some(change) = self.routes.propose(self.owned.view(), route, &mut self.rng) else {
            return;
        };
        let Some(back) = self.routes.apply(self.owned.view(), change) else {
            return;
        };
        self.write(&back);
        if !self.judge(temperature) {
            let forth: Change = back.iter().map(|(r, _)| (*r, Path::new())).collect();
            self.routes.undo(self.owned.view(), back);
            self.write(&forth);
        }
    }

    fn try_priority(&mut self, temperature: f64) {
        let (a, b) = (self.rng.random_range(0..self.priorities.len()), self.rng.random_range(0..self.priorities.len()));
        self.priorities.swap(a, b);
        if !self.judge(temperature) {
            self.priorities.swap(a, b);
        }
    }
}

/// Work of an assignment move among `n` routes: costs of all pairs, then the assignment.
fn assignment_work(n: u64) -> u64 {
    n * n + n * n * n / 60
}

/// Work of a chain's first run.
#[must_use]
pub fn first_run(tasks: &[RouteTask], instance: &Instance) -> u64 {
    let lengths = Lengths::of(instance, tasks.len());
    let microbatches: usize = tasks.iter().map(|t| t.waves).sum();
    FIRST_RUN * (microbatches * (2 * lengths.short() + 1)) as u64
}

/// Work of run number `run`, in simulations of all tasks.
fn run_length(run: u32) -> u64 {
    (0..run).fold(FIRST_RUN, |length, _| if length < LONG_RUN { 4 * length } else { 2 * length })
}

/// Changes between two looks at the clock.
const STEPS_PER_POLL: u64 = 256;

/// Backwards and losses first, then forwards; microbatches in order.
#[must_use]
pub fn default_priorities(microbatches: usize) -> Vec<u32> {
    let count = microbatches as u32;
    (0..count).flat_map(|b| [count + b, b]).collect()
}
