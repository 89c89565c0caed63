//! The router against the plainest search there is: all routes, all starts of all forwards in whole seconds.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::cluster::{Cluster, ClusterParts, Links};
use crate::problem::{Instance, Problem};
use crate::route::{RouteTask, StageOrder, StageSet, Visits, stage_bit};
use crate::rules::{Constraints, MemoryRule};
use crate::search::methods::prioritised::partial_schedule::{PartialSchedule, Targets};
use crate::search::methods::prioritised::router::{Request, Router};
use crate::search::methods::prioritised::timeline::Reservation;
use crate::test_clusters::{matrix, node};
use crate::time::{NEVER, Rounding, Time};

const SECOND: Time = 1_000_000_000;
const HORIZON: Time = 14;

struct Case {
    instance: Instance,
    visits: Visits,
    /// Busy times and holdings of other microbatches, per node.
    busy: Vec<Vec<(Time, Time)>>,
    holds: Vec<Vec<(Time, Time)>>,
}

fn case(rng: &mut Pcg64) -> Option<Case> {
    let n = rng.random_range(2..6);
    let stage_count = rng.random_range(2..=n.min(4));
    let mut stages = vec![Vec::new(); stage_count];
    for node in 0..n {
        stages[if node < stage_count { node } else { rng.random_range(1..stage_count) }].push(node);
    }
    let seconds = |rng: &mut Pcg64, most: u32| f64::from(rng.random_range(0..=most));
    let nodes = (0..n)
        .map(|i| {
            // Backwards are not 0: to hold for no time at all where no room is left is allowed by the rule, not by the
            // router.
            let times_s = [seconds(rng, 2), 1.0 + seconds(rng, 2), seconds(rng, 1)];
            node(i, times_s, rng.random_range(1..3))
        })
        .collect();
    let transfer = matrix(n, |_, _| seconds(rng, 2));
    let parts = ClusterParts::new(nodes, Links::Transfer(transfer));
    let rules = Constraints {
        cc1: rng.random_bool(0.8),
        cc2: rng.random_bool(0.8),
        tc1: if rng.random_bool(0.7) { MemoryRule::Held } else { MemoryRule::Off },
        max_swaps: rng.random_range(0..3),
        max_stage_jump: rng.random_bool(0.3).then(|| rng.random_range(1..4)),
        ..Constraints::default()
    };
    let counts = vec![1; stages[0].len()];
    let problem = Problem::new(Cluster::new(parts, "").ok()?, stages, vec![], counts, 0.0, rules).ok()?;
    let mut instance = Instance::new(&problem, Rounding::Up);
    for reduce in &mut instance.allreduce {
        *reduce = SECOND * rng.random_range(0..4);
    }
    let all: StageSet = (0..stage_count).map(stage_bit).sum();
    let required = if instance.rules.cc1 { 1 } else { 0 }
        | if rng.random_bool(0.3) { stage_bit(rng.random_range(0..stage_count)) } else { 0 };
    let forbidden = if rng.random_bool(0.3) { stage_bit(rng.random_range(1..stage_count)) } else { 0 };
    let visits =
        Visits { required, allowed: all & !(forbidden & !required), length: rng.random_range(1..=stage_count.min(3)) };
    let mut busy = vec![Vec::new(); n];
    let mut holds = vec![Vec::new(); n];
    for node in 0..n {
        let mut time = 0;
        for _ in 0..rng.random_range(0..4) {
            let start = time + rng.random_range(0..4);
            time = start + rng.random_range(0..3);
            busy[node].push((start, time));
        }
        for _ in 0..rng.random_range(0..=instance.memory[node]) {
            let start = rng.random_range(0..8);
            holds[node].push((start, start + rng.random_range(1..6)));
        }
    }
    Some(Case { instance, visits, busy, holds })
}

impl Case {
    fn schedule<'a>(&'a self, tasks: &'a [RouteTask]) -> PartialSchedule<'a> {
        let targets = Targets { visits: None, lengths: vec![self.visits.length], sets: None };
        let mut schedule = PartialSchedule::new(&self.instance, tasks, &targets, true);
        for node in 0..self.instance.node_count() {
            let line = schedule.timeline_mut(node);
            for (start, end) in &self.busy[node] {
                line.reserve(Reservation { start: start * SECOND, end: end * SECOND, route: 9, task: 0 });
            }
            if self.instance.memory_is_held() {
                for (start, end) in &self.holds[node] {
                    line.hold(start * SECOND, end * SECOND, 9);
                }
                line.find_windows(self.instance.memory[node]);
            }
        }
        schedule
    }

    fn is_free(&self, node: usize, start: Time, length: Time) -> bool {
        self.busy[node].iter().all(|(a, b)| start + length <= *a || start >= *b)
    }

    fn can_hold(&self, node: usize, start: Time, end: Time) -> bool {
        if !self.instance.memory_is_held() {
            return true;
        }
        (start..end).all(|t| {
            self.holds[node].iter().filter(|(a, b)| *a <= t && t < *b).count() < self.instance.memory[node] as usize
        })
    }

    fn routes(&self, order: StageOrder, visited: StageSet, nodes: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
        if nodes.len() == self.visits.length {
            if self.visits.required & !visited == 0 {
                out.push(nodes.clone());
            }
            return;
        }
        for stage in &self.instance.present {
            let Some(next) = order.step(*stage, &self.instance.rules) else { continue };
            if self.visits.allowed & stage_bit(*stage) == 0 {
                continue;
            }
            for node in &self.instance.members[*stage] {
                nodes.push(*node);
                self.routes(next, visited | stage_bit(*stage), nodes, out);
                nodes.pop();
            }
        }
    }

    fn best(&self, source: usize) -> Option<Time> {
        let mut routes = Vec::new();
        self.routes(StageOrder::start(&self.instance.rules), 0, &mut Vec::new(), &mut routes);
        let mut best = None;
        for route in routes {
            if !self.instance.rules.cc1 || route[0] == source {
                self.forwards(source, &route, &mut Vec::new(), source, 0, &mut best);
            }
        }
        best
    }

    /// All starts of the forwards, whole seconds.
    fn forwards(
        &self,
        source: usize,
        route: &[usize],
        starts: &mut Vec<Time>,
        before: usize,
        ready: Time,
        best: &mut Option<Time>,
    ) {
        let hop = starts.len();
        if hop == route.len() {
            if let Some(value) = self.back(source, route, starts, ready) {
                *best = Some(best.map_or(value, |b: Time| b.min(value)));
            }
            return;
        }
        let node = route[hop];
        let forward = self.instance.forward(0, node) / SECOND;
        let arrival = ready + self.instance.transfer(before, node) / SECOND;
        for start in arrival..HORIZON.max(arrival + 1) {
            if self.is_free(node, start, forward) {
                starts.push(start);
                self.forwards(source, route, starts, node, start + forward, best);
                starts.pop();
            }
        }
    }

    /// The backward pass as early as it can be: a later backward only holds longer and completes later.
    fn back(&self, source: usize, route: &[usize], starts: &[Time], ready: Time) -> Option<Time> {
        let travel = |a: usize, b: usize| self.instance.transfer(a, b) / SECOND;
        let last = *route.last()?;
        let soonest = |node: usize, from: Time, length: Time| (from..).find(|t| self.is_free(node, *t, length));
        let loss = self.instance.loss(0, source) / SECOND;
        let mut time = soonest(source, ready + travel(last, source), loss)? + loss;
        let mut before = source;
        let mut value = 0;
        for (hop, node) in route.iter().enumerate().rev() {
            let backward = self.instance.backward(0, *node) / SECOND;
            time = soonest(*node, time + travel(before, *node), backward)? + backward;
            if !self.can_hold(*node, starts[hop], time) {
                return None;
            }
            value = value.max(time + self.instance.allreduce[self.instance.stage_of[*node]] / SECOND);
            before = *node;
        }
        Some(value.max(time + travel(before, source)))
    }
}

#[test]
fn router_finds_the_best_path_of_one_microbatch() {
    let mut rng = Pcg64::seed_from_u64(7);
    let (mut found, mut none) = (0, 0);
    for number in 0..4000 {
        let Some(case) = case(&mut rng) else { continue };
        let source = case.instance.sources[0].node;
        let tasks = [RouteTask { source, class: 0, waves: 1, first_microbatch: 0 }];
        let schedule = case.schedule(&tasks);
        let lookahead = Lookahead::new(&case.instance, case.visits.length, &Budget::new(None, None), 1.0).unwrap();
        let mut router = Router::new(&case.instance, &lookahead, u64::MAX);
        let request = Request { source, class: 0, release: 0, visits: case.visits, forced: None, limit: NEVER };
        let timed_path = router.find(&schedule, &request, &|| false);
        let expected = case.best(source);
        assert_eq!(timed_path.as_ref().map(|w| w.value / SECOND), expected, "case {number}");
        match timed_path {
            Some(_) => found += 1,
            None => none += 1,
        }
    }
    assert!(found > 1000 && none > 50, "{found} found, {none} without");
}
