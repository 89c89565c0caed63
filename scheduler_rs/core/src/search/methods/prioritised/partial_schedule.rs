//! A plan in the making: which routes are placed, what every node is reserved for, what is left to the rest.

use crate::plan::Kind;
use crate::problem::Instance;
use crate::route::{RouteTask, StageSet, Visits, stage_bit};
use crate::rules::MemoryRule;
use crate::search::methods::prioritised::timed_path::TimedPath;
use crate::search::methods::prioritised::timeline::{Reservation, Timeline};
use crate::simulate::{MicrobatchRoute, Simulator, TaskId};
use crate::time::Time;

/// Quotas and lengths of one attempt: where the totals do not divide, which stages and which routes get one
/// visit more is drawn anew for each attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    /// Routes that each stage lies on; none: free (CC3 off).
    pub visits: Option<Vec<usize>>,
    /// Visits of each route.
    pub lengths: Vec<usize>,
    /// The very stages of each route, where that was decided beforehand; only for placing them first, but for classes.
    pub sets: Option<Vec<StageSet>>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct PartialSchedule<'a> {
    instance: &'a Instance,
    tasks: &'a [RouteTask],
    /// Tasks by processor, holdings by node.
    timelines: Vec<Timeline>,
    /// Routes that may still lead over each node.
    room: Vec<u32>,
    /// Visits that each stage still needs.
    need: Vec<usize>,
    quotas: bool,
    lengths: Vec<usize>,
    sets: Option<Vec<StageSet>>,
    timed_paths: Vec<Vec<TimedPath>>,
    unplaced: usize,
    /// Whether tasks occupy their nodes; without TC2 they do not.
    occupied: bool,
}

const NO_LIMIT: u32 = u32::MAX;

impl<'a> PartialSchedule<'a> {
    /// Nothing placed. `occupied`: whether placed tasks keep others from their nodes and memory.
    #[must_use]
    pub fn new(instance: &'a Instance, tasks: &'a [RouteTask], targets: &Targets, occupied: bool) -> Self {
        let limited = instance.rules.tc1 == MemoryRule::Routes;
        Self {
            instance,
            tasks,
            timelines: vec![Timeline::new(); instance.node_count()],
            room: instance.memory.iter().map(|m| if limited { *m } else { NO_LIMIT }).collect(),
            quotas: targets.visits.is_some(),
            need: targets.visits.clone().unwrap_or_else(|| vec![0; instance.stage_count()]),
            lengths: targets.lengths.clone(),
            sets: targets.sets.clone(),
            timed_paths: vec![Vec::new(); tasks.len()],
            unplaced: tasks.len(),
            occupied,
        }
    }

    /// Times in which a node may hold one more microbatch.
    #[must_use]
    pub fn windows(&self, node: usize) -> &[(Time, Time)] {
        self.timelines[node].windows()
    }

    /// The timeline with the tasks of a node's processor.
    #[must_use]
    pub fn timeline(&self, node: usize) -> &Timeline {
        &self.timelines[self.instance.processor(node)]
    }

    /// Reservations of a node, to be filled by hand.
    #[cfg(test)]
    pub fn timeline_mut(&mut self, node: usize) -> &mut Timeline {
        &mut self.timelines[node]
    }

    /// Routes that may still lead over a node.
    #[must_use]
    pub fn room(&self, node: usize) -> u32 {
        self.room[node]
    }

    /// The routes to be placed.
    #[must_use]
    pub fn tasks(&self) -> &'a [RouteTask] {
        self.tasks
    }

    /// Whether placed tasks keep others from their nodes.
    #[must_use]
    pub fn is_occupied(&self) -> bool {
        self.occupied
    }

    /// The timed paths of a route's waves; empty where it is not placed.
    #[must_use]
    pub fn timed_paths(&self, route: usize) -> &[TimedPath] {
        &self.timed_paths[route]
    }

    /// What an unplaced route must and may visit, so that the rest can still meet the quotas: a stage that
    /// needs as many visits as routes are left must be on each. (Lengths differ by at most one, so that is
    /// also enough: Gale and Ryser.) With classes it keeps those of its class.
    #[must_use]
    pub fn visits(&self, route: usize) -> Visits {
        let length = self.lengths[route];
        if let Some(sets) = &self.sets {
            return Visits { required: sets[route], allowed: sets[route], length };
        }
        let (mut required, mut allowed) = (0, 0);
        for stage in &self.instance.present {
            if !self.quotas || self.need[*stage] > 0 {
                allowed |= stage_bit(*stage);
            }
            if self.quotas && self.need[*stage] >= self.unplaced {
                required |= stage_bit(*stage);
            }
        }
        Visits { required, allowed, length }
    }

    /// Reserves what the waves of a route use.
    pub fn place(&mut self, route: usize, timed_paths: Vec<TimedPath>) {
        let Some(first) = timed_paths.first() else { return };
        for node in &first.nodes {
            let node = *node as usize;
            if self.quotas {
                self.need[self.instance.stage_of[node]] -= 1;
            }
            if self.room[node] != NO_LIMIT {
                self.room[node] -= 1;
            }
        }
        if self.occupied {
            for (wave, timed_path) in timed_paths.iter().enumerate() {
                self.reserve(route, wave, timed_path);
            }
        }
        self.timed_paths[route] = timed_paths;
        self.unplaced -= 1;
    }

    /// Reserves a wave whose route is being placed; the rest of [`PartialSchedule::place`] follows.
    fn reserve(&mut self, route: usize, wave: usize, timed_path: &TimedPath) {
        let microbatch = self.tasks[route].first_microbatch + wave;
        let hops = timed_path.nodes.len();
        for (position, start) in timed_path.starts.iter().enumerate() {
            let (node, length) = self.task(route, timed_path, position);
            self.timelines[self.instance.processor(node)].reserve(Reservation {
                start: *start,
                end: start + length,
                route: route as u32,
                task: task_code(microbatch, position),
            });
        }
        if self.instance.memory_is_held() {
            for (hop, node) in timed_path.nodes.iter().enumerate() {
                let node = *node as usize;
                let end = timed_path.starts[2 * hops - hop] + self.instance.backward(self.tasks[route].class, node);
                self.timelines[node].hold(timed_path.starts[hop], end, route as u32);
                self.timelines[node].find_windows(self.instance.memory[node]);
            }
        }
    }

    /// Node and duration of a task by its position in the chain.
    fn task(&self, route: usize, timed_path: &TimedPath, position: usize) -> (usize, Time) {
        let hops = timed_path.nodes.len();
        let class = self.tasks[route].class;
        if position < hops {
            let node = timed_path.nodes[position] as usize;
            (node, self.instance.forward(class, node))
        } else if position == hops {
            let source = self.tasks[route].source;
            (source, self.instance.loss(class, source))
        } else {
            let node = timed_path.nodes[2 * hops - position] as usize;
            (node, self.instance.backward(class, node))
        }
    }

    /// Takes a route off the schedule; from then on quotas alone say what a route visits, or its class.
    pub fn remove(&mut self, route: usize) {
        if self.instance.rules.classes.is_none() {
            self.sets = None;
        }
        let timed_paths = std::mem::take(&mut self.timed_paths[route]);
        let Some(first) = timed_paths.first() else { return };
        for node in first.nodes.iter().map(|n| *n as usize).chain([self.tasks[route].source]) {
            self.timelines[node].remove(route as u32, self.instance.memory[node]);
            let processor = self.instance.processor(node);
            if processor != node {
                self.timelines[processor].remove(route as u32, self.instance.memory[processor]);
            }
        }
        for node in &first.nodes {
            let node = *node as usize;
            if self.quotas {
                self.need[self.instance.stage_of[node]] += 1;
            }
            if self.room[node] != NO_LIMIT {
                self.room[node] += 1;
            }
        }
        self.unplaced += 1;
    }

    /// The microbatches for the simulator, where every route is placed.
    #[must_use]
    pub fn microbatches(&self) -> Vec<MicrobatchRoute> {
        let mut microbatches = Vec::new();
        for (route, timed_paths) in self.timed_paths.iter().enumerate() {
            for (wave, timed_path) in timed_paths.iter().enumerate() {
                microbatches.push(MicrobatchRoute {
                    id: microbatches.len(),
                    source: self.tasks[route].source,
                    route,
                    wave,
                    class: self.tasks[route].class,
                    nodes: timed_path.nodes.clone(),
                });
            }
        }
        microbatches
    }

    /// The order on every processor in the simulator's task numbers; `simulator` holds [`PartialSchedule::microbatches`].
    #[must_use]
    pub fn order(&self, simulator: &Simulator<'_>) -> Vec<Vec<TaskId>> {
        let id = |reservation: &Reservation| {
            simulator.tasks_of((reservation.task >> POSITION_BITS) as usize).start + (reservation.task & POSITION_MASK)
        };
        self.timelines.iter().map(|line| line.reservations().iter().map(id).collect()).collect()
    }

    /// Moves every task to the time that `simulator` found for it under `order`; from then on it occupies its
    /// processor.
    pub fn retime(&mut self, simulator: &Simulator<'_>, order: &[Vec<TaskId>]) {
        self.occupied = true;
        for line in &mut self.timelines {
            line.clear();
        }
        for (route, task) in self.tasks.iter().enumerate() {
            for (wave, timed_path) in self.timed_paths[route].iter_mut().enumerate() {
                let microbatch = task.first_microbatch + wave;
                timed_path.starts.clear();
                timed_path.starts.extend(simulator.tasks_of(microbatch).map(|id| simulator.start_of(id)));
                timed_path.completion = simulator.completion_of(microbatch);
            }
        }
        for (processor, tasks) in order.iter().enumerate() {
            for task in tasks {
                let microbatch = simulator.microbatch_of(*task);
                let position = (task - simulator.tasks_of(microbatch).start) as usize;
                let route = self.route_of(microbatch) as u32;
                let (start, end) = (simulator.start_of(*task), simulator.end_of(*task));
                self.timelines[processor].push(Reservation {
                    start,
                    end,
                    route,
                    task: task_code(microbatch, position),
                });
            }
        }
        if self.instance.memory_is_held() {
            for microbatch in 0..simulator.microbatch_count() {
                let route = self.route_of(microbatch) as u32;
                let hops = simulator.tasks_of(microbatch).len() / 2;
                for hop in 0..hops {
                    let (forward, backward) =
                        (simulator.task(microbatch, Kind::F, hop), simulator.task(microbatch, Kind::B, hop));
                    let node = simulator.node_of(forward);
                    self.timelines[node].hold(simulator.start_of(forward), simulator.end_of(backward), route);
                }
            }
            for (line, memory) in self.timelines.iter_mut().zip(&self.instance.memory) {
                line.find_windows(*memory);
            }
        }
    }

    fn route_of(&self, microbatch: usize) -> usize {
        self.tasks.partition_point(|t| t.first_microbatch <= microbatch) - 1
    }
}

/// A route has at most [`crate::problem::MOST_STAGES`] visits, so its positions fit.
const POSITION_BITS: u32 = 9;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;

fn task_code(microbatch: usize, position: usize) -> u32 {
    (microbatch as u32) << POSITION_BITS | position as u32
}
