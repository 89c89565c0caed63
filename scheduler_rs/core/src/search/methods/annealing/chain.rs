//! The state of a chain and the steps that all of its moves share: propose, evaluate, accept or take back.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::allocation_state::{AllocationState, OwnedInstance, PrioritisedRoutes};
use crate::allocate::joint::Placement;
use crate::part::Part;
use crate::search::methods::annealing::estimate::Estimate;
use crate::search::methods::routes::{Change, Routes};
use crate::simulate::{MicrobatchRoute, Outcome, Simulator, Workspace};
use crate::time::Time;

/// Work of a change that is only estimated, in simulated tasks.
pub(super) const ESTIMATE_WORK: u64 = 4;
/// Weight of the mean completion time beside the iteration: a change that helps all but the last one counts a little.
const MEAN: f64 = 0.1;

/// Which part of a run a chain is in, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Estimate,
    Simulate,
    Done,
}

/// A chain as it stands: allocation, routes, priorities and the best of its run. See the [module](super).
#[derive(Debug)]
pub struct AnnealingChain {
    pub(super) owned: OwnedInstance,
    /// Where the allocation may change.
    pub(super) placement: Option<Placement>,
    pub(super) routes: Routes,
    pub(super) estimate: Estimate,
    pub(super) workspace: Workspace,
    pub(super) microbatches: Vec<MicrobatchRoute>,
    /// First microbatch of each route.
    pub(super) first: Vec<usize>,
    pub(super) priorities: Vec<u32>,
    pub(super) outcome: Outcome,
    pub(super) energy: f64,
    pub(super) rng: Pcg64,
    pub(super) best: Option<PrioritisedRoutes>,
    pub(super) phase: Phase,
    pub(super) step: u64,
    pub(super) steps: u64,
    pub(super) restarts: u32,
    /// Says how long this run is.
    pub(super) run: u32,
    pub(super) warm_restart: bool,
    /// Search steps done.
    pub work: u64,
    /// A part that is left out.
    pub without: Option<Part>,
}

impl AnnealingChain {
    /// Changes a route by the estimate alone; `temperature` says how far the sum may rise.
    pub(super) fn estimate_route_move(&mut self, temperature: f64) {
        let several = self.owned.tasks.len() / 16;
        let route = self.pick(0.3, several, |chain, route| chain.estimate.route_time(chain.owned.view(), route));
        let Some(change) = self.routes.propose(self.owned.view(), route, &mut self.rng) else { return };
        // The sum may rise by so much; the routes alone show in most cases that it rises further.
        let most = -self.estimate.sum() * temperature * self.rng.random::<f64>().ln();
        if self.estimate.rise_of_routes(self.owned.view(), &change) > most {
            return;
        }
        let before = self.estimate.sum();
        let Some(back) = self.routes.apply(self.owned.view(), change) else { return };
        self.estimate.follow(self.owned.view(), &self.routes, &back);
        if self.estimate.sum() - before <= most {
            self.write(&back);
        } else {
            self.take_back(back);
        }
    }

    /// Takes a change back that the estimate has followed; `back` is what undoes it.
    pub(super) fn take_back(&mut self, back: Change) {
        let forth: Change = back.iter().map(|(r, _)| (*r, self.routes.path(*r as usize).clone())).collect();
        self.routes.undo(self.owned.view(), back);
        self.estimate.follow(self.owned.view(), &self.routes, &forth);
    }

    /// A random route, now and then the longest one of several.
    pub(super) fn pick(&mut self, often: f64, several: usize, time: impl Fn(&Self, usize) -> Time) -> usize {
        let count = self.owned.tasks.len();
        let mut route = self.rng.random_range(0..count);
        if self.rng.random_bool(often) {
            for _ in 0..several.max(2) {
                let other = self.rng.random_range(0..count);
                if time(self, other) > time(self, route) {
                    route = other;
                }
            }
        }
        route
    }

    /// Simulates what has been changed; whether it stays.
    pub(super) fn judge(&mut self, temperature: f64) -> bool {
        let Some(outcome) = self.simulate() else { return false };
        let energy = energy(outcome.iteration, outcome.finish_sum, self.microbatches.len());
        let rise = energy - self.energy;
        if rise > 0.0 && self.rng.random::<f64>() >= (-rise / temperature).exp() {
            return false;
        }
        self.outcome = outcome;
        self.energy = energy;
        self.keep();
        true
    }

    pub(super) fn simulate(&mut self) -> Option<Outcome> {
        let mut simulator = Simulator::with(&self.owned.instance, std::mem::take(&mut self.workspace));
        simulator.load(&self.microbatches);
        self.work += simulator.task_count() as u64;
        let outcome = simulator.run_prioritised(&self.priorities).ok();
        self.workspace = simulator.into_workspace();
        outcome
    }

    /// Remembers where it is, if that is better than anything before.
    pub(super) fn keep(&mut self) {
        let key = (self.outcome.iteration, self.outcome.finish_sum);
        if self.best.as_ref().is_none_or(|best| key < best.key) {
            let paths = (0..self.owned.tasks.len()).map(|r| self.routes.path(r).clone()).collect();
            let allocation = self
                .placement
                .as_ref()
                .map(|placement| AllocationState { owned: self.owned.clone(), placement: placement.clone() });
            self.best = Some(PrioritisedRoutes {
                paths,
                priorities: self.priorities.clone(),
                key,
                allocation: allocation.map(Box::new),
            });
        }
    }

    /// Hands the paths of the routes named in `change` to the simulator's microbatches.
    pub(super) fn write(&mut self, change: &Change) {
        for (route, _) in change {
            let route = *route as usize;
            for wave in 0..self.owned.tasks[route].waves {
                let microbatch = &mut self.microbatches[self.first[route] + wave];
                microbatch.source = self.owned.tasks[route].source;
                microbatch.nodes.clear();
                microbatch.nodes.extend_from_slice(self.routes.path(route));
            }
        }
    }
}

/// What annealing minimises: the iteration and, a little, the mean completion time of `count` microbatches.
pub fn energy(iteration: Time, finish_sum: Time, count: usize) -> f64 {
    iteration as f64 + MEAN * finish_sum as f64 / count as f64
}
