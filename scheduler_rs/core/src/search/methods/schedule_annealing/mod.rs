//! Simulated annealing over complete schedules, for clusters whose nodes are hardly ever idle.
//!
//! A point of the search is a route for every microbatch and one sequence of all tasks, from which a serial schedule
//! generation scheme makes a schedule (see [`decode`]). Every schedule in which no task could start earlier without
//! another order on its node has such a sequence; a dispatch rule with priorities, as [`super::annealing`] has it, makes
//! few of them. Changes (see [`moves`]): a task goes before or behind another one of its node, most of them on a critical
//! path (van Laarhoven, Aarts and Lenstra 1992); a microbatch takes another route; two microbatches exchange positions.

mod allocation;
mod decode;
mod moves;

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::allocate::joint::Placement;
use crate::budget::Budget;
use crate::search::instance_view::InstanceView;
use crate::search::methods::annealing::{AllocationState, OwnedInstance};
use crate::search::methods::routes::{Path, Routes, first_microbatches};
use crate::simulate::TaskId;
use crate::time::{NEVER, Time};

use decode::{Decoder, Times};

/// Iteration, then sum of completion times.
type Key = (Time, Time);

/// Routes, and the order of tasks on every node.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Nodes of each route.
    pub paths: Vec<Path>,
    /// Tasks of each node, as the simulator numbers them.
    pub order: Vec<Vec<TaskId>>,
    /// Iteration and sum of completion times.
    pub key: Key,
    /// The allocation, where that was searched too.
    pub allocation: Option<Box<AllocationState>>,
}

/// How hot a run begins and ends, as shares of the iteration; and a run that goes on from the best schedule.
const HOT: f64 = 1e-2;
const COLD: f64 = 1.5e-3;
const WARM: f64 = 0.3;
/// Most doublings of a run's steps.
const MOST_DOUBLINGS: u32 = 20;
/// Operations that are placed in the time of one simulated task.
const OPERATIONS_PER_STEP: u64 = 8;
/// Steps between two looks at the clock.
const STEPS_PER_POLL: u64 = 64;

/// See the [module](self).
#[derive(Debug)]
pub struct ScheduleAnnealing {
    owned: OwnedInstance,
    /// Where the allocation may change.
    placement: Option<Placement>,
    /// Whether nodes may join and leave stages, where the allocation may change.
    joins: bool,
    routes: Routes,
    /// First microbatch of each route, and the route of each microbatch.
    first: Vec<usize>,
    route_of: Vec<u32>,
    decoder: Decoder,
    /// The schedule as it stands; its operations by their starts; and a critical path, empty where none is known.
    current: Times,
    energy: f64,
    sequence: Vec<u32>,
    critical: Vec<u32>,
    /// A changed sequence and its times.
    changed: Vec<u32>,
    trial: Times,
    rng: Pcg64,
    best: Option<Schedule>,
    /// Of the run.
    share: f64,
    step: u64,
    steps: u64,
    first_steps: u64,
    restarts: u32,
    is_warm: bool,
    placed: u64,
}

impl ScheduleAnnealing {
    /// From complete routes, with an order where one is known. The first run has so many steps, each further one twice as
    /// many.
    pub fn new(
        view: InstanceView<'_>,
        paths: Vec<Path>,
        order: Option<&[Vec<TaskId>]>,
        first_steps: u64,
        rng: Pcg64,
    ) -> Self {
        let longest = view.instance.present.len();
        let decoder = Decoder::new(view.instance, view.tasks, longest);
        let route_of = (0..).zip(view.tasks).flat_map(|(route, task)| std::iter::repeat_n(route, task.waves));
        let mut annealing = Self {
            owned: OwnedInstance { instance: view.instance.clone(), tasks: view.tasks.to_vec() },
            placement: None,
            joins: false,
            routes: Routes::new(view, paths),
            first: first_microbatches(view.tasks),
            route_of: route_of.collect(),
            current: decoder.blank(),
            trial: decoder.blank(),
            decoder,
            energy: f64::INFINITY,
            sequence: Vec::new(),
            critical: Vec::new(),
            changed: Vec::new(),
            rng,
            best: None,
            share: 0.0,
            step: 0,
            steps: 0,
            first_steps,
            restarts: 0,
            is_warm: order.is_some(),
            placed: 0,
        };
        annealing.begin(order);
        annealing
    }

    /// A search for the allocation too, from this one on; nodes are exchanged, and with `joins` they join and leave
    /// stages where that is allowed. It has one run, which [`ScheduleAnnealing::cool`] takes from hot to cold.
    pub fn free(allocation: &AllocationState, paths: Vec<Path>, joins: bool, rng: Pcg64) -> Self {
        let placement = Some(allocation.placement().clone());
        let new = Self::new(allocation.view(), paths, None, u64::MAX, rng);
        Self { placement, joins, ..new }
    }

    /// Goes on for about `work` search steps, as hot as a run is of which this share has gone.
    pub fn cool(&mut self, share: f64, work: u64, budget: &Budget) {
        self.share = share;
        self.run(work, budget);
    }

    /// Begins the next run, twice as long as the one before: with other routes, or, where there is an order, cooler
    /// and with a schedule as it stands.
    pub fn restart(&mut self, paths: &[Path], order: Option<&[Vec<TaskId>]>) {
        self.restarts += 1;
        self.is_warm = order.is_some();
        self.routes.replace(self.owned.view(), paths);
        self.begin(order);
    }

    /// Whether the run is over: [`ScheduleAnnealing::restart`] is to follow.
    pub fn is_finished(&self) -> bool {
        self.step >= self.steps
    }

    /// Search steps so far.
    pub fn work(&self) -> u64 {
        self.placed / OPERATIONS_PER_STEP
    }

    /// Iteration and sum of completion times of the best schedule.
    pub fn key(&self) -> Key {
        self.best.as_ref().map_or((NEVER, NEVER), |best| best.key)
    }

    /// The best schedule so far.
    pub fn best(&self) -> Option<&Schedule> {
        self.best.as_ref()
    }

    /// Goes on until about `work` search steps more are done, the run is over or the time is.
    pub fn run(&mut self, work: u64, budget: &Budget) {
        let until = self.placed.saturating_add(work.saturating_mul(OPERATIONS_PER_STEP));
        while !self.is_finished() && self.placed < until {
            if self.step.is_multiple_of(STEPS_PER_POLL) && budget.is_over() {
                break;
            }
            self.step += 1;
            if self.placement.is_none() {
                self.share = self.step as f64 / self.steps as f64;
            }
            self.placed += 2;
            self.change();
        }
    }

    fn begin(&mut self, order: Option<&[Vec<TaskId>]>) {
        for route in 0..self.owned.tasks.len() {
            self.write(route);
        }
        let is_timed = order.is_some_and(|order| self.decodes(&self.merged(order), f64::INFINITY))
            || self.decodes(&self.by_travel(), f64::INFINITY)
            || self.decodes(&self.one_by_one(), f64::INFINITY);
        self.step = 0;
        self.steps = if is_timed { self.first_steps << self.restarts.min(MOST_DOUBLINGS) } else { 0 };
        if is_timed {
            self.accept();
        }
    }

    /// One sequence of what the nodes run in `order`.
    fn merged(&self, order: &[Vec<TaskId>]) -> Vec<u32> {
        // The simulator numbers tasks in this order.
        let ids = self.one_by_one();
        let mut sequence = Vec::with_capacity(ids.len());
        let mut next = vec![0; order.len()];
        let mut is_placed = vec![false; self.decoder.operations.len()];
        loop {
            let before = sequence.len();
            for (tasks, next) in order.iter().zip(&mut next) {
                while let Some(task) = tasks.get(*next) {
                    let id = ids[*task as usize];
                    if self.decoder.before(id).is_some_and(|(before, _)| !is_placed[before as usize]) {
                        break;
                    }
                    is_placed[id as usize] = true;
                    sequence.push(id);
                    *next += 1;
                }
            }
            if sequence.len() == before {
                return sequence;
            }
        }
    }

    /// By the times at which tasks would start if microbatches met nobody.
    fn by_travel(&self) -> Vec<u32> {
        let mut keyed = Vec::new();
        for microbatch in 0..self.decoder.hops.len() {
            let mut time = 0;
            for id in self.decoder.operations_of(microbatch) {
                let operation = &self.decoder.operations[id as usize];
                keyed.push((time + operation.lag, id));
                time += operation.lag + operation.length;
            }
        }
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, id)| id).collect()
    }

    /// One microbatch after the other, which needs no more memory than there is.
    fn one_by_one(&self) -> Vec<u32> {
        (0..self.decoder.hops.len()).flat_map(|microbatch| self.decoder.operations_of(microbatch)).collect()
    }

    /// Hands a route's path to the decoder.
    fn write(&mut self, route: usize) {
        for wave in 0..self.owned.tasks[route].waves {
            let microbatch = self.first[route] + wave;
            self.decoder.set_path(&self.owned.instance, &self.owned.tasks[route], microbatch, self.routes.path(route));
        }
    }

    /// Times of a sequence, into `trial`; false where the energy is above `most`.
    fn decodes(&mut self, sequence: &[u32], most: f64) -> bool {
        self.decoder.decode(sequence, most, &mut self.trial, &mut self.placed)
    }

    /// Times of the changed sequence; whether it stays.
    fn judge(&mut self) -> bool {
        let temperature = HOT * (COLD / HOT).powf(self.share) * if self.is_warm { WARM } else { 1.0 };
        // The energy may rise by so much (Metropolis), which tells in most cases before all is placed.
        let rise = -temperature * self.current.iteration as f64 * self.rng.random::<f64>().ln();
        let changed = std::mem::take(&mut self.changed);
        let is_taken = self.decodes(&changed, self.energy + rise);
        self.changed = changed;
        if is_taken {
            self.accept();
        }
        is_taken
    }

    /// Goes on from `trial`, and remembers it if it is better than anything before.
    fn accept(&mut self) {
        std::mem::swap(&mut self.current, &mut self.trial);
        self.energy = self.decoder.energy(&self.current);
        self.critical.clear();
        self.sequence.clear();
        self.sequence.extend_from_slice(&self.current.placed);
        // Stable, so that tasks of no length stay behind those that they wait for.
        self.sequence.sort_by_key(|id| self.current.start[*id as usize]);
        let key = (self.current.iteration, self.current.finish_sum);
        if key < self.key() {
            self.best = Some(self.schedule(key));
        }
    }

    /// The current schedule, its tasks as the simulator numbers them.
    fn schedule(&self, key: Key) -> Schedule {
        let lengths = self.decoder.hops.iter().map(|hops| 2 * hops + 1);
        let firsts: Vec<TaskId> = lengths.scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n))).collect();
        let mut order = vec![Vec::new(); self.owned.instance.node_count()];
        for id in &self.sequence {
            let operation = &self.decoder.operations[*id as usize];
            order[self.owned.instance.processor(operation.node as usize)]
                .push(firsts[operation.microbatch as usize] + operation.index);
        }
        let paths = (0..self.owned.tasks.len()).map(|route| self.routes.path(route).clone()).collect();
        let allocation = self.placement.as_ref().map(|placement| {
            let OwnedInstance { instance, tasks } = self.owned.clone();
            Box::new(AllocationState::new(placement.clone(), instance, tasks))
        });
        Schedule { paths, order, key, allocation }
    }
}
