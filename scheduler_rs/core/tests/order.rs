//! The best order for given routes, against plain simulation and an exhaustive search.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "common/clusters.rs"]
mod clusters;

use std::collections::BTreeMap;

use clusters::{matrix, node};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skippipe_core::budget::Budget;
use skippipe_core::cluster::{Cluster, ClusterParts, Links};
use skippipe_core::contention::Contention;
use skippipe_core::problem::{Instance, Problem};
use skippipe_core::rules::{Constraints, MemoryRule};
use skippipe_core::search::methods::tabu::{OrderSearch, improve};
use skippipe_core::simulate::{MicrobatchRoute, OrderGraph, Replaced, Simulator, TaskId};
use skippipe_core::time::{Rounding, Time};

/// Three stages of one or two nodes; durations of 0 to 3 s, so that many are equal and some are nothing.
fn instance(rng: &mut Pcg64, memory: u32) -> Instance {
    let mut stages: Vec<Vec<usize>> = (0..3).map(|stage| vec![stage]).collect();
    for node in 3..rng.random_range(3..=5) {
        stages[rng.random_range(0..3)].push(node);
    }
    let n = stages.concat().len();
    let mut whole = |most: u32| f64::from(rng.random_range(0..=most));
    let nodes = (0..n).map(|i| node(i, [whole(3), whole(3), whole(1)], 1 + whole(memory - 1) as u32)).collect();
    let links =
        Links::Rated { latency_s: matrix(n, |_, _| whole(3)), bandwidth: vec![vec![60.0; n]; n], overhead_s: 0.0 };
    let parts = ClusterParts {
        gradient_bytes: (0..3).map(|_| 60.0 * whole(3)).collect(),
        norm_s: whole(1),
        activation_bytes: 60.0 * whole(2),
        contention: [Contention::None, Contention::Link, Contention::Uplink][whole(2) as usize],
        ..ClusterParts::new(nodes, links)
    };
    let tc1 = [MemoryRule::Held, MemoryRule::Held, MemoryRule::Routes, MemoryRule::Off][rng.random_range(0..4)];
    let rules = Constraints { tc1, ..Constraints::default() };
    let counts = stages[0].iter().map(|_| 1).collect();
    let cluster = Cluster::new(parts, "").unwrap();
    // Half of them with shared processors.
    let processors: Vec<Option<u32>> = (0..n).map(|_| rng.random_bool(0.5).then(|| rng.random_range(0..3))).collect();
    let cluster = if rng.random_bool(0.5) { cluster.with_processors(&processors).unwrap() } else { cluster };
    let problem = Problem::new(cluster, stages, vec![], counts, 0.0, rules).unwrap();
    Instance::new(&problem, Rounding::Up)
}

/// Any routes of at most `hops` visits, stage 0 among them or not, some of them of two waves.
fn microbatches(instance: &Instance, rng: &mut Pcg64, count: usize, hops: usize) -> Vec<MicrobatchRoute> {
    let mut microbatches: Vec<MicrobatchRoute> = Vec::new();
    while microbatches.len() < count {
        let id = microbatches.len();
        if id > 0 && microbatches[id - 1].wave == 0 && rng.random_bool(0.25) {
            microbatches.push(MicrobatchRoute { id, wave: 1, ..microbatches[id - 1].clone() });
            continue;
        }
        let source = instance.members[0][rng.random_range(0..instance.members[0].len())];
        let mut nodes = if rng.random_bool(0.8) { vec![source as u32] } else { vec![] };
        for members in &instance.members[1..] {
            if nodes.len() < hops && rng.random_bool(0.8) {
                nodes.push(members[rng.random_range(0..members.len())] as u32);
            }
        }
        if !nodes.is_empty() {
            microbatches.push(MicrobatchRoute { id, source, route: id, wave: 0, class: 0, nodes });
        }
    }
    microbatches
}

/// The order of the dispatch rule.
fn dispatched(instance: &Instance, microbatches: &[MicrobatchRoute]) -> Option<Vec<Vec<TaskId>>> {
    let mut simulator = Simulator::new(instance);
    simulator.load(microbatches);
    simulator.run_dispatch().ok()?;
    Some(simulator.dispatched_order())
}

proptest! {
    /// Random moves; some of them are refused, for the very reasons that the simulator would give.
    #[test]
    fn a_changed_order_is_simulated_as_a_new_one(seed: u64, count in 1_usize..20) {
        let mut rng = Pcg64::seed_from_u64(seed);
        let instance = instance(&mut rng, 4);
        let microbatches = microbatches(&instance, &mut rng, count, 3);
        let Some(mut order) = dispatched(&instance, &microbatches) else { return Ok(()) };
        let mut graph = OrderGraph::new(&instance, &microbatches, &order).unwrap();
        let mut simulator = Simulator::new(&instance);
        simulator.load(&microbatches);
        for _ in 0..50 {
            let processor = rng.random_range(0..order.len());
            if order[processor].is_empty() {
                continue;
            }
            let (a, b) = (rng.random_range(0..order[processor].len()), rng.random_range(0..order[processor].len()));
            let (from, to) = (a.min(b), a.max(b) + 1);
            let before = order[processor].clone();
            if rng.random_bool(0.5) {
                order[processor][from..to].rotate_left(1);
            } else {
                order[processor].swap(a, b);
            }
            let done = graph.replace(graph.indices_of(processor).start + from, &order[processor][from..to]);
            if let Ok(outcome) = simulator.run_order(&order) {
                prop_assert_eq!(done, Replaced::Done);
                prop_assert_eq!(graph.outcome(), outcome);
                for task in 0..simulator.task_count() as TaskId {
                    prop_assert_eq!(graph.head_of(task), simulator.start_of(task));
                    // No path is longer than the longest, and each backward ends one.
                    prop_assert!(simulator.end_of(task) + graph.tail_of(task) <= graph.end());
                }
            } else {
                prop_assert_ne!(done, Replaced::Done);
                order[processor] = before;
            }
        }
        prop_assert_eq!(graph.order(), order.concat());
        let mut again = OrderGraph::new(&instance, &microbatches, &order).unwrap();
        for task in 0..simulator.task_count() as TaskId {
            prop_assert_eq!(graph.tail_of(task), again.tail_of(task));
        }
        prop_assert!(again.reset(graph.order()));
        prop_assert_eq!(again.outcome(), graph.outcome());
    }
}

#[test]
fn slices_change_nothing() {
    let mut rng = Pcg64::seed_from_u64(3);
    let instance = instance(&mut rng, 4);
    let microbatches = microbatches(&instance, &mut rng, 30, 3);
    let order = dispatched(&instance, &microbatches).unwrap();
    let (budget, total) = (Budget::new(None, None), 50_000);
    let search = || OrderSearch::new(&instance, &microbatches, &order, &mut Pcg64::seed_from_u64(1), 0).unwrap();
    let (mut whole, mut sliced) = (search(), search());
    whole.run(total - whole.work(), &budget);
    while sliced.work() < total {
        sliced.run(777.min(total - sliced.work()), &budget);
    }
    assert!(whole.best().is_some());
    assert_eq!(whole.best(), sliced.best());
}

/// Every order of every processor, by appending the next task of any microbatch in all possible sequences.
struct Exhaustive<'a> {
    instance: &'a Instance,
    microbatches: &'a [MicrobatchRoute],
    /// Per microbatch: tasks done, and when the next may start.
    done: Vec<usize>,
    ready: Vec<Time>,
    free: Vec<Time>,
    held: Vec<u32>,
    /// When the link from one processor to another is free; all links of a sender are one where they share its uplink.
    sent: BTreeMap<(usize, Option<usize>), Time>,
    best: Time,
}

impl Exhaustive<'_> {
    fn best(instance: &Instance, microbatches: &[MicrobatchRoute]) -> Time {
        let mut search = Exhaustive {
            instance,
            microbatches,
            done: vec![0; microbatches.len()],
            ready: microbatches.iter().map(|b| instance.transfer(b.source, b.nodes[0] as usize)).collect(),
            free: vec![0; instance.node_count()],
            held: vec![0; instance.node_count()],
            sent: BTreeMap::new(),
            best: Time::MAX,
        };
        search.go(instance.allreduce.iter().copied().max().unwrap());
        search.best + instance.epilogue
    }

    fn go(&mut self, ends: Time) {
        if ends >= self.best {
            return;
        }
        if (0..self.microbatches.len()).all(|b| self.done[b] > 2 * self.microbatches[b].nodes.len()) {
            self.best = ends;
            return;
        }
        for b in 0..self.microbatches.len() {
            let microbatch = &self.microbatches[b];
            let (hops, index) = (microbatch.nodes.len(), self.done[b]);
            let first = self.microbatches.iter().position(|other| other.route == microbatch.route).unwrap();
            if index > 2 * hops || (b > first && self.done[b - 1] <= 2 * hops) {
                continue;
            }
            let node_at = |index: usize| match index {
                p if p < hops => microbatch.nodes[p] as usize,
                p if p == hops => microbatch.source,
                p => microbatch.nodes[2 * hops - p] as usize,
            };
            let node = node_at(index);
            let (is_forward, is_backward) = (index < hops, index > hops);
            if is_forward && self.instance.memory_is_held() && self.held[node] == self.instance.memory[node] {
                continue;
            }
            let length = match (is_forward, is_backward) {
                (true, _) => self.instance.forward(0, node),
                (_, true) => self.instance.backward(0, node),
                _ => self.instance.loss(0, node),
            };
            let processor = self.instance.processor(node);
            let end = self.ready[b].max(self.free[processor]) + length;
            let saved = (self.ready.clone(), self.free.clone(), self.held[node], self.sent.clone());
            self.free[processor] = end;
            self.held[node] = self.held[node] + u32::from(is_forward) - u32::from(is_backward);
            self.done[b] += 1;
            let mut ends = ends;
            if is_backward {
                ends = ends.max(end + self.instance.allreduce[self.instance.stage_of[node]]);
            }
            if index == 2 * hops {
                let completion = end + self.instance.transfer(node, microbatch.source);
                ends = ends.max(completion);
                if self.microbatches.get(b + 1).is_some_and(|next| next.route == microbatch.route) {
                    self.ready[b + 1] = completion + self.instance.transfer(microbatch.source, node);
                }
            } else {
                self.ready[b] = self.arrival(node, node_at(index + 1), end);
            }
            self.go(ends);
            self.done[b] -= 1;
            (self.ready, self.free, self.held[node], self.sent) = saved;
        }
    }

    /// When a message arrives that is computed at `end`, after all others of its sender so far.
    fn arrival(&mut self, from: usize, to: usize, end: Time) -> Time {
        let (sender, receiver) = (self.instance.processor(from), self.instance.processor(to));
        let link = match self.instance.contention() {
            Contention::Link => Some((sender, Some(receiver))),
            Contention::Uplink => Some((sender, None)),
            Contention::None => None,
        };
        let Some(link) = link.filter(|_| sender != receiver) else { return end + self.instance.transfer(from, to) };
        let free = self.sent.entry(link).or_default();
        let leaves = end.max(*free);
        *free = leaves + self.instance.occupied(from, to);
        leaves + self.instance.transfer(from, to)
    }
}

#[test]
fn the_best_order_is_found() {
    let mut better = 0;
    for seed in 0..150 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let instance = instance(&mut rng, 2);
        let count = rng.random_range(2..=4);
        let microbatches = microbatches(&instance, &mut rng, count, if count < 4 { 2 } else { 1 });
        let Some(order) = dispatched(&instance, &microbatches) else { continue };
        let mut simulator = Simulator::new(&instance);
        simulator.load(&microbatches);
        let first = simulator.run_order(&order).unwrap();
        let least = Exhaustive::best(&instance, &microbatches);
        let found = improve(&instance, &microbatches, &order, &mut rng, 500_000, least, &Budget::new(None, None));
        let outcome = found.map_or(first.clone(), |found| {
            assert_eq!(simulator.run_order(&found.order).unwrap(), found.outcome);
            assert!((found.outcome.iteration, found.outcome.finish_sum) < (first.iteration, first.finish_sum));
            found.outcome
        });
        assert_eq!(outcome.iteration, least, "seed {seed}, first {}", first.iteration);
        better += usize::from(outcome.iteration < first.iteration);
    }
    assert!(better > 20, "too easy: {better}");
}
