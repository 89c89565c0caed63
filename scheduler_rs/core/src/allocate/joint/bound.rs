//! Lower bound on the iteration time over all allocations in scope.
//!
//! The size of stage 0 is known, so an iteration takes at least as long as the best set of so many sources: each has to
//! send out its microbatches and wait for their return, and the shortest round trip of a node leads over the nearest
//! other nodes. Where memory is counted by routes and scarce, every node is on some route, so that distant ones count
//! as well, as a source or on the route of another one.

use rustc_hash::FxHashMap;

use super::placement::AllocationScope;
use crate::bound::source_bound;
use crate::problem::{Instance, Problem};
use crate::quotas::{Quotas, inner_stages};
use crate::route::{Lengths, RouteTask, route_tasks};
use crate::rules::MemoryRule;
use crate::time::{NEVER, Rounding, Time};

/// Work limits of the search for the shortest round trip, in nodes evaluated, for one node and for all. Beyond them the
/// relaxation to walks counts.
const MAX_EVALUATIONS: usize = 2_000_000;
const MAX_EVALUATIONS_IN_ALL: usize = 40_000_000;
/// Limit on enumerated sets of sources; beyond it, a set is assumed to exist.
const MOST_SETS: u64 = 200_000;
/// Where the walks of all nodes take more steps than this, only the nearest node counts.
const MOST_STEPS: usize = 100_000_000;

/// Lower bound in nanoseconds over all allocations of `problem` within `scope`, on durations rounded down.
#[must_use]
pub fn lower_bound(problem: &Problem, scope: AllocationScope) -> Time {
    let mut instance = Instance::new(problem, Rounding::Down).without_contention();
    instance.allreduce.fill(0);
    if !instance.rules.cc1 {
        // Routes need not lead over their source.
        return instance.epilogue;
    }
    let stages = instance.stage_count();
    let tasks = route_tasks(&instance);
    if scope.layers > 0 {
        assume_single_layers(&mut instance, scope.layers as f64 / stages as f64);
    }
    let lengths = Lengths::of(&instance, tasks.len());
    let trips = Trips::new(&instance, &lengths);
    let counts_are_known = scope.layers == 0;
    let nodes: Vec<usize> = (0..instance.node_count()).collect();
    let as_source: Vec<Time> = nodes
        .iter()
        .map(|node| {
            if !counts_are_known {
                return trips.from(*node);
            }
            // Which source a node replaces is open, so the fewest microbatches of all sources count.
            let own = |source: usize| tasks.iter().filter(move |t| t.source == source);
            let of = |s: &crate::problem::Source| {
                source_bound(&instance, *node, s.microbatches, own(s.node).map(|t| t.waves), trips.from(*node))
            };
            if instance.sources.len() < instance.members[0].len() {
                return 0;
            }
            instance.sources.iter().map(of).min().unwrap_or(0)
        })
        .collect();
    // Where microbatches are reassigned, one source may get all of them.
    let source_count = if counts_are_known { instance.members[0].len() } else { 1 };
    // A node that may be left out need not be on any route.
    let used = UsedNodes::new(&instance, &tasks, &lengths, counts_are_known && !scope.unused);
    let bound = if scope.sources {
        let close = |i: usize, j: usize| is_close(problem, scope, i, j);
        let within = |time: Time| {
            let candidates: Vec<usize> = nodes.iter().copied().filter(|n| as_source[*n] <= time).collect();
            let forced = nodes.iter().filter(|n| used.time(&trips, **n) > time).count();
            let is_decided = nodes.iter().all(|n| as_source[*n] <= time || used.time(&trips, *n) <= time);
            is_decided && forced <= source_count && has_group(&candidates, source_count, &close)
        };
        let mut times: Vec<Time> = nodes.iter().flat_map(|n| [as_source[*n], used.time(&trips, *n)]).collect();
        times.sort_unstable();
        times.dedup();
        let reached = times.partition_point(|time| !within(*time));
        times.get(reached).copied().unwrap_or(0)
    } else if scope.layers > 0 {
        instance.members[0].iter().map(|node| as_source[*node]).min().unwrap_or(0)
    } else {
        instance.sources.iter().map(|source| as_source[source.node]).max().unwrap_or(0)
    };
    bound + instance.epilogue
}

/// Any stage may have a single layer, where the instance's times are for `equal` layers.
fn assume_single_layers(instance: &mut Instance, equal: f64) {
    let least = |time: &mut Time| *time = (*time as f64 / equal.max(1.0)).floor() as Time;
    for class in &mut instance.classes {
        class.forward.iter_mut().chain(&mut class.backward).for_each(least);
    }
}

fn is_close(problem: &Problem, scope: AllocationScope, i: usize, j: usize) -> bool {
    let cluster = problem.cluster();
    let bytes = cluster.activation_bytes();
    scope
        .max_replica_transfer_s
        .is_none_or(|limit| cluster.transfer_s(i, j, bytes).max(cluster.transfer_s(j, i, bytes)) <= limit)
}

/// Whether `size` of the candidates can be pairwise close; false only where that is proved impossible.
fn has_group(candidates: &[usize], size: usize, close: &impl Fn(usize, usize) -> bool) -> bool {
    let mut left: Vec<usize> = candidates.to_vec();
    // Nodes with too few close ones cannot belong to it; without them, others may not either.
    loop {
        let before = left.len();
        let all = left.clone();
        left.retain(|i| all.iter().filter(|j| *j != i && close(*i, **j)).count() + 1 >= size);
        if left.len() == before {
            break;
        }
    }
    let mut steps = MOST_SETS;
    left.len() >= size && grows(&left, size, close, &mut steps)
}

fn grows(candidates: &[usize], size: usize, close: &impl Fn(usize, usize) -> bool, steps: &mut u64) -> bool {
    if size == 0 {
        return true;
    }
    candidates.iter().enumerate().any(|(i, node)| {
        *steps = steps.saturating_sub(1);
        if *steps == 0 {
            return true;
        }
        let rest: Vec<usize> = candidates[i + 1..].iter().copied().filter(|other| close(*node, *other)).collect();
        rest.len() + 1 >= size && grows(&rest, size - 1, close, steps)
    })
}

/// Nodes that have to be on some route unless they are sources, because the others of their stage have no room.
struct UsedNodes {
    waves: Option<usize>,
}

impl UsedNodes {
    fn new(instance: &Instance, tasks: &[RouteTask], lengths: &Lengths, sizes_are_known: bool) -> Self {
        let rules = &instance.rules;
        let inner: Vec<usize> = inner_stages(instance).collect();
        let largest = inner.iter().map(|s| instance.members[*s].len()).max().unwrap_or(0);
        let mut memory: Vec<usize> = instance.memory.iter().map(|m| *m as usize).collect();
        memory.sort_unstable_by(|a, b| b.cmp(a));
        let room: usize = memory.iter().take(largest.saturating_sub(1)).sum();
        let least = Quotas::least_of(instance, lengths).least;
        let quota = inner.iter().map(|s| least[*s]).min().unwrap_or(0);
        let is_scarce = sizes_are_known
            && rules.cc1
            && rules.cc3
            && rules.tc1 == MemoryRule::Routes
            && lengths.long_routes() == 0
            && quota > room;
        Self { waves: is_scarce.then(|| tasks.iter().map(|t| t.waves).min().unwrap_or(1)) }
    }

    /// Lower bound on the iteration time if the node is no source.
    fn time(&self, trips: &Trips<'_>, node: usize) -> Time {
        self.waves.map_or(0, |waves| waves as Time * trips.through(node))
    }
}

/// Shortest round trips of a microbatch.
struct Trips<'a> {
    instance: &'a Instance,
    /// Of each kind of node, as many as a route can visit.
    nodes: Vec<usize>,
    /// Limit on the steps of a walk.
    most_steps: usize,
    from: Vec<Time>,
    through: Vec<Time>,
}

impl<'a> Trips<'a> {
    fn new(instance: &'a Instance, lengths: &Lengths) -> Self {
        let n = instance.node_count();
        // Nodes of one site and speed have the same round trips.
        let kind = |node: usize| (instance.place(node), instance.least_work(node));
        let mut count: FxHashMap<((usize, usize), Time), usize> = FxHashMap::default();
        let nodes: Vec<usize> = (0..n)
            .filter(|node| {
                let seen = count.entry(kind(*node)).or_insert(0);
                *seen += 1;
                *seen <= lengths.long()
            })
            .collect();
        let kinds = count.len();
        let is_much = kinds.saturating_mul(nodes.len().pow(2)).saturating_mul(lengths.long()) > MOST_STEPS;
        let most_steps = MAX_EVALUATIONS.min(MAX_EVALUATIONS_IN_ALL / kinds) / nodes.len();
        let mut trips = Self { instance, nodes, most_steps, from: Vec::new(), through: Vec::new() };
        // A longer route may be faster, where a detour is shorter than the direct link.
        let round = |trips: &Self, node: usize| {
            let of = |length| if is_much { trips.least_round(node, length) } else { trips.round(node, length) };
            (lengths.short()..=lengths.long()).map(of).min().filter(|round| *round < NEVER).unwrap_or(0)
        };
        // The cheapest source's loss, wherever on the round trip that source is.
        let least_loss = (0..n).map(|node| instance.least_loss(node)).min().unwrap_or(0);
        let mut known: FxHashMap<((usize, usize), Time), Time> = FxHashMap::default();
        for node in 0..n {
            let round = *known.entry(kind(node)).or_insert_with(|| round(&trips, node));
            trips.from.push(round + instance.least_loss(node));
            trips.through.push(round + least_loss);
        }
        trips
    }

    /// Round trip of a source.
    fn from(&self, node: usize) -> Time {
        self.from[node]
    }

    /// Round trip of any source over this node.
    fn through(&self, node: usize) -> Time {
        self.through[node]
    }

    /// Transfers between two nodes, both directions.
    fn hop(&self, i: usize, j: usize) -> Time {
        self.instance.transfer(i, j) + self.instance.transfer(j, i)
    }

    /// Relaxed round trip: transfers to and from the nearest node, and the work of the fastest others.
    fn least_round(&self, node: usize, length: usize) -> Time {
        let instance = self.instance;
        if length < 2 {
            return instance.least_work(node);
        }
        let others = || self.nodes.iter().filter(|j| **j != node);
        let nearest = others().map(|j| self.hop(node, *j)).min().unwrap_or(0);
        let work = others().map(|j| instance.least_work(*j)).min().unwrap_or(0);
        instance.least_work(node) + 2 * nearest + (length - 1) as Time * work
    }

    /// The shortest round trip of so many nodes over `node`, with their work; [`NEVER`] or more where there is none. It
    /// may begin at any of them.
    fn round(&self, node: usize, length: usize) -> Time {
        let instance = self.instance;
        if length < 2 {
            return instance.least_work(node);
        }
        // From each node over so many others to `node`, where nodes may come twice: no round trip is shorter.
        let n = instance.node_count();
        let over = |i: usize, behind: &[Time]| {
            let others = self.nodes.iter().filter(|j| **j != i && **j != node);
            others.map(|j| self.hop(i, *j) + instance.least_work(*j) + behind[*j]).min().unwrap_or(NEVER)
        };
        let mut ahead: Vec<Vec<Time>> = vec![(0..n).map(|i| self.hop(i, node)).collect()];
        for step in 1..length - 1 {
            let mut next = vec![NEVER; n];
            for i in &self.nodes {
                next[*i] = over(*i, &ahead[step - 1]);
            }
            ahead.push(next);
        }
        let mut walk = Walk { trips: self, ahead: &ahead, best: NEVER, steps: 0, seen: vec![node] };
        walk.extend(node, 0, length - 1);
        let shortest = if walk.is_over() { over(node, &ahead[length - 2]) } else { walk.best };
        instance.least_work(node) + shortest
    }
}

struct Walk<'a> {
    trips: &'a Trips<'a>,
    ahead: &'a [Vec<Time>],
    best: Time,
    steps: usize,
    /// Nodes so far; the walk returns to the first.
    seen: Vec<usize>,
}

impl Walk<'_> {
    fn is_over(&self) -> bool {
        self.steps >= self.trips.most_steps
    }

    /// Extends the walk from `at` by `left` more nodes and the return; depth-first branch and bound.
    fn extend(&mut self, at: usize, cost: Time, left: usize) {
        let trips = self.trips;
        if left == 0 {
            self.best = self.best.min(cost + trips.hop(at, self.seen[0]));
            return;
        }
        let step = |j: usize| trips.hop(at, j) + trips.instance.least_work(j);
        let open = trips.nodes.iter().filter(|j| !self.seen.contains(j));
        let mut next: Vec<(Time, usize)> = open.map(|j| (step(*j) + self.ahead[left - 1][*j], *j)).collect();
        next.sort_unstable();
        for (estimate, node) in next {
            self.steps += 1;
            if cost + estimate >= self.best || self.is_over() {
                return;
            }
            self.seen.push(node);
            self.extend(node, cost + step(node), left - 1);
            self.seen.pop();
        }
    }
}
