//! Every allocation of a small cluster, each planned by itself: what annealing cannot promise, a proof can.
//!
//! Where nodes may serve no stage, allocations without some of them count too, but for those that cannot be better than
//! with one node more: a plan is a plan with that node as well, unless an all-reduce takes longer then.

use std::collections::{BTreeMap, VecDeque};

use rayon::prelude::*;

use crate::allocate::joint::{AllocationScope, Placement};
use crate::bound::{is_tight, lower_bound_of};
use crate::budget::Budget;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::problem::{Instance, NO_STAGE, Problem};
use crate::request::Options;
use crate::search::fixed_allocation::plan_allocated;
use crate::time::{NEVER, Rounding, Time};

/// The most allocations that are looked at one by one, and the most nodes: nine in three stages have at most so many.
const MOST: usize = 1_680;
const MOST_NODES: usize = 9;
/// Work for each of them, one time after the other, for as long as it is open.
const EFFORTS: [u64; 3] = [2_000, 20_000, 200_000];
/// Allocations that are planned side by side, always as many.
const SIDE_BY_SIDE: usize = 8;

/// Allocations planned one by one. Goes on where it stopped.
pub struct ExhaustiveSearch {
    /// Those that may still be better than the best, in the order in which they come.
    open: VecDeque<Open>,
    /// Those that have had their turn and may still be better.
    left: Vec<Open>,
    /// Index in [`EFFORTS`].
    effort: usize,
    /// Whether these are all allocations that are allowed; else those without any node are not among them.
    is_complete: bool,
    /// The best plan, where it is better than all that was known.
    pub plan: Option<Plan>,
    /// What the best plan takes, whoever found it.
    known: Time,
    /// Why an allocation has no plan, where that was proved.
    impossible: Option<Error>,
    /// Search steps.
    pub work: u64,
}

/// An allocation, and the bound for it.
struct Open {
    problem: Problem,
    bound: Time,
    /// The best iteration so far.
    reached: Time,
}

/// Whether so few allocations are allowed that each can be planned by itself.
pub fn is_small(problem: &Problem, scope: AllocationScope) -> bool {
    let nodes = problem.cluster().nodes().len();
    let full = AllocationScope { unused: false, ..scope };
    has_equal_sources(problem, scope) && nodes <= MOST_NODES && count(problem, full) <= MOST
}

/// Whether an allocation is no more than who serves which stage.
pub fn has_equal_sources(problem: &Problem, scope: AllocationScope) -> bool {
    scope.layers == 0 && problem.microbatches().windows(2).all(|pair| pair[0] == pair[1])
}

/// Whether all of them can be listed, those without some of the nodes too where nodes may be left out.
pub fn is_listable(problem: &Problem, scope: AllocationScope) -> bool {
    is_small(problem, scope) && count(problem, scope) <= MOST
}

impl ExhaustiveSearch {
    /// All allocations that `scope` allows, with the bounds that are known before a search.
    ///
    /// # Errors
    /// [`Error::Cancelled`]
    pub fn new(problem: &Problem, scope: AllocationScope, budget: &Budget) -> Result<Self> {
        let mut left = Vec::new();
        let is_complete = count(problem, scope) <= MOST;
        let scope = AllocationScope { unused: scope.unused && is_complete, ..scope };
        for stages in all(problem, scope) {
            let Ok(other) = problem.reallocated(stages) else { continue };
            if Placement::new(&other, scope).is_ok() {
                let bound = lower_bound_of(&other, budget)?;
                left.push(Open { problem: other, bound, reached: NEVER });
            }
        }
        let mut exhaustive = Self {
            open: VecDeque::new(),
            left,
            effort: 0,
            is_complete,
            plan: None,
            known: NEVER,
            impossible: None,
            work: 0,
        };
        exhaustive.sort();
        Ok(exhaustive)
    }

    /// Whether no allocation is better than the best plan, or than `known`, or nothing more is tried.
    pub fn is_over(&self) -> bool {
        self.effort >= EFFORTS.len() || (self.open.is_empty() && self.left.is_empty())
    }

    /// No allocation takes less; `known` is what another plan takes.
    pub fn bound(&self, known: Time) -> Time {
        if !self.is_complete {
            return 0;
        }
        self.open.iter().chain(&self.left).map(|o| o.bound).fold(self.best(known), Time::min)
    }

    /// That no allocation has a plan, where every one was looked through.
    pub fn impossible(&self, known: Time) -> Option<&Error> {
        let is_over = self.is_complete && self.open.is_empty() && self.left.is_empty() && self.best(known) >= NEVER;
        self.impossible.as_ref().filter(|_| is_over)
    }

    /// Plans one allocation after the other, as long as it could be better than what takes `known`, until `share` of
    /// the time is used up or `most` steps are done.
    pub fn advance(&mut self, known: Time, options: Options, budget: &Budget, share: f64, most: u64) {
        self.known = self.known.min(known);
        while !self.is_over() && !budget.is_over() && !budget.is_past(share) && self.work < most {
            let best = self.best(known);
            let effort = EFFORTS[self.effort];
            let one = Options { threads: 1, ..options };
            let count = SIDE_BY_SIDE.min(self.open.len());
            let chunk: Vec<Open> = self.open.drain(..count).collect();
            let planned: Vec<_> = chunk
                .par_iter()
                .map(|o| (o.bound < best).then(|| plan_allocated(&o.problem, one, &budget.within(effort))))
                .collect();
            for (open, planned) in chunk.into_iter().zip(planned) {
                match planned {
                    // It cannot be better than what is there.
                    None => {}
                    Some(Ok(plan)) => self.take(open, plan),
                    Some(Err(error @ Error::Impossible { .. })) => self.impossible = Some(error),
                    Some(Err(_)) => {
                        self.work += effort;
                        self.left.push(open);
                    }
                }
            }
            if self.open.is_empty() {
                let best = self.best(known);
                self.left.retain(|o| o.bound < best && !is_tight(best, o.bound));
                self.effort += 1;
                self.sort();
            }
        }
    }

    fn take(&mut self, mut open: Open, plan: Plan) {
        self.work += plan.solver.work();
        open.bound = open.bound.max(Rounding::Down.nanoseconds(plan.predicted.lower_bound_s));
        let iteration = iteration_of(&plan);
        open.reached = open.reached.min(iteration);
        if iteration < self.known {
            self.known = iteration;
            self.plan = Some(plan);
        }
        if !is_tight(iteration, open.bound) {
            self.left.push(open);
        }
    }

    fn best(&self, known: Time) -> Time {
        known.min(self.known)
    }

    /// What is left has its next turn: what came furthest comes first, at the beginning what has the lowest bound.
    fn sort(&mut self) {
        let key = |open: &Open| (open.reached, open.bound);
        self.left.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.problem.stages().cmp(b.problem.stages())));
        if self.effort < EFFORTS.len() {
            self.open.extend(self.left.drain(..));
        }
    }
}

/// As the search counts it.
pub fn iteration_of(plan: &Plan) -> Time {
    Rounding::Up.nanoseconds(plan.predicted.iteration_s)
}

/// Numbers of nodes that a stage may have.
fn sizes(stage: usize, members: &[usize], scope: AllocationScope) -> std::ops::RangeInclusive<usize> {
    if stage > 0 && scope.unused { 1..=members.len() } else { members.len()..=members.len() }
}

/// How many allocations there are; more than [`MOST`] are not counted on.
fn count(problem: &Problem, scope: AllocationScope) -> usize {
    // By the number of nodes that are left, over the stages so far.
    let mut counts: BTreeMap<usize, usize> = BTreeMap::from([(problem.cluster().nodes().len(), 1)]);
    if !scope.unused {
        counts = BTreeMap::from([(problem.stages().iter().map(Vec::len).sum(), 1)]);
    }
    for (stage, members) in problem.stages().iter().enumerate() {
        let mut next = BTreeMap::new();
        for (left, count) in counts {
            for size in sizes(stage, members, scope).filter(|size| *size <= left) {
                let choices = if stage == 0 && !scope.sources { 1 } else { binomial(left, size) };
                let more: &mut usize = next.entry(left - size).or_default();
                *more = more.saturating_add(count.saturating_mul(choices));
            }
        }
        counts = next;
    }
    counts.into_values().fold(0, usize::saturating_add)
}

fn binomial(of: usize, size: usize) -> usize {
    (0..size).fold(1, |count: usize, i| count.saturating_mul(of - i) / (i + 1))
}

/// All allocations, but only one of those that differ in nodes that are just like each other.
pub fn all(problem: &Problem, scope: AllocationScope) -> Vec<Vec<Vec<usize>>> {
    let instance = Instance::new(problem, Rounding::Up);
    let serves = |node: &usize| scope.unused || instance.stage_of[*node] != NO_STAGE;
    let nodes: Vec<usize> = (0..instance.node_count()).collect();
    let kinds: Vec<usize> =
        nodes.iter().map(|a| nodes.iter().position(|b| a == b || instance.is_alike(*a, *b)).unwrap_or(*a)).collect();
    let mut found: Vec<Vec<Vec<usize>>> = vec![Vec::new()];
    for (stage, members) in problem.stages().iter().enumerate() {
        let mut next = Vec::new();
        for stages in &found {
            if stage == 0 && !scope.sources {
                next.push(vec![members.clone()]);
                continue;
            }
            let is_free = |node: &usize| serves(node) && !stages.iter().any(|s: &Vec<usize>| s.contains(node));
            let free: Vec<usize> = nodes.iter().copied().filter(is_free).collect();
            for chosen in sizes(stage, members, scope).flat_map(|size| choices(&free, &kinds, size)) {
                let ring = shortest_ring(problem.cluster(), stage, chosen);
                next.push([stages.clone(), vec![ring]].concat());
            }
        }
        found = next;
    }
    if scope.unused {
        found.retain(|stages| is_best_without(problem, scope, stages));
    }
    found
}

/// Whether no absent node could join a stage for nothing: where none could, the allocation may be better without them.
fn is_best_without(problem: &Problem, scope: AllocationScope, stages: &[Vec<usize>]) -> bool {
    let cluster = problem.cluster();
    let absent = |node: &usize| !stages.iter().any(|members| members.contains(node));
    let costs = |node: usize, stage: usize, members: &[usize]| {
        let joined = shortest_ring(cluster, stage, [members, &[node]].concat());
        let has_room = members.len() < problem.stages()[stage].len();
        !has_room
            || scope.max_replica_transfer_s.is_some()
            || cluster.allreduce_s(stage, &joined) > cluster.allreduce_s(stage, members)
    };
    (0..cluster.nodes().len())
        .filter(absent)
        .all(|node| stages.iter().enumerate().skip(1).all(|(stage, members)| costs(node, stage, members)))
}

/// The nodes of a stage in the order in which they average their gradients fastest; nothing else depends on it.
fn shortest_ring(cluster: &Cluster, stage: usize, members: Vec<usize>) -> Vec<usize> {
    if members.len() < 3 || cluster.gradient_bytes().is_empty() {
        return members;
    }
    let (first, others) = (members[0], members[1..].to_vec());
    let mut best = (cluster.allreduce_s(stage, &members), members);
    for order in orders(&others) {
        let ring = [vec![first], order].concat();
        let time = cluster.allreduce_s(stage, &ring);
        if time < best.0 {
            best = (time, ring);
        }
    }
    best.1
}

fn orders(nodes: &[usize]) -> Vec<Vec<usize>> {
    if nodes.is_empty() {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        let rest: Vec<usize> = nodes.iter().copied().enumerate().filter(|(j, _)| *j != i).map(|(_, n)| n).collect();
        found.extend(orders(&rest).into_iter().map(|order| [vec![*node], order].concat()));
    }
    found
}

/// Ways to choose so many nodes, of each kind the first ones.
fn choices(free: &[usize], kinds: &[usize], size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (i, node) in free.iter().enumerate() {
        let is_first = free[..i].iter().all(|other| kinds[*other] != kinds[*node]);
        if is_first {
            // Later ones of its kind may follow, earlier kinds not.
            let rest: Vec<usize> = free[i + 1..].to_vec();
            let earlier: Vec<usize> = free[..i].iter().map(|n| kinds[*n]).collect();
            let rest: Vec<usize> = rest.into_iter().filter(|n| !earlier.contains(&kinds[*n])).collect();
            for others in choices(&rest, kinds, size - 1) {
                found.push([vec![*node], others].concat());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;
    use crate::cluster::{ClusterParts, Links};
    use crate::rules::Constraints;
    use crate::test_clusters::{matrix, node};

    /// Up to six nodes of two regions and two speeds, so that some are just like each other, in two or three stages.
    fn problem(rng: &mut Pcg64) -> Problem {
        let count = rng.random_range(3..7);
        let nodes = (0..count).map(|i| node(i, [[1.0, 2.0][rng.random_range(0..2)], 1.0, 0.1], 2)).collect();
        let mut links = |low: f64| matrix(2, |_, _| low * rng.random_range(1.0..3.0));
        let links = Links::Rated { latency_s: links(0.1), bandwidth: links(10.0), overhead_s: 0.0 };
        let stages = rng.random_range(2..4);
        let parts = ClusterParts {
            region_of: Some((0..count).map(|_| rng.random_range(0..2)).collect()),
            activation_bytes: 1.0,
            gradient_bytes: if rng.random_bool(0.7) { vec![5.0; stages] } else { Vec::new() },
            ..ClusterParts::new(nodes, links)
        };
        let cluster = Cluster::new(parts, "").unwrap();
        let mut cuts: Vec<usize> = (1..count).collect();
        while cuts.len() > stages - 1 {
            cuts.remove(rng.random_range(0..cuts.len()));
        }
        let (from, to) = ([vec![0], cuts.clone()].concat(), [cuts, vec![count]].concat());
        let members: Vec<Vec<usize>> = from.into_iter().zip(to).map(|(from, to)| (from..to).collect()).collect();
        let microbatches = vec![1; members[0].len()];
        Problem::new(cluster, members, vec![], microbatches, 0.0, Constraints::default()).unwrap()
    }

    /// Every way to give each node a stage, or none where that is allowed, with sizes that the scope allows.
    fn every_allocation(problem: &Problem, scope: AllocationScope) -> Vec<Vec<Vec<usize>>> {
        let (given, nodes) = (problem.stages(), problem.cluster().nodes().len());
        let ways = given.len() + usize::from(scope.unused);
        let allocation = |number: usize| {
            let mut stages = vec![Vec::new(); ways];
            (0..nodes).fold(number, |left, node| {
                stages[left % ways].push(node);
                left / ways
            });
            stages.truncate(given.len());
            stages
        };
        let is_allowed = |stages: &Vec<Vec<usize>>| {
            stages.iter().zip(given).enumerate().all(|(stage, (own, given))| match stage {
                0 => own.len() == given.len() && (scope.sources || own == given),
                _ if scope.unused => !own.is_empty() && own.len() <= given.len(),
                _ => own.len() == given.len(),
            })
        };
        (0..ways.pow(nodes as u32)).map(allocation).filter(is_allowed).collect()
    }

    /// The all-reduce of a stage in the best order of its nodes.
    fn least_allreduce(cluster: &Cluster, stage: usize, members: &[usize]) -> f64 {
        let rings = orders(members);
        rings.iter().map(|ring| cluster.allreduce_s(stage, ring)).fold(f64::INFINITY, f64::min)
    }

    /// Whether some absent node could join a stage that has lost one without a longer all-reduce.
    fn could_have_more(problem: &Problem, stages: &[Vec<usize>]) -> bool {
        let cluster = problem.cluster();
        let absent = |node: &usize| !stages.concat().contains(node);
        (0..cluster.nodes().len()).filter(absent).any(|node| {
            (1..stages.len()).any(|stage| {
                let joined = [stages[stage].clone(), vec![node]].concat();
                stages[stage].len() < problem.stages()[stage].len()
                    && least_allreduce(cluster, stage, &joined) <= least_allreduce(cluster, stage, &stages[stage])
            })
        })
    }

    #[test]
    fn one_of_each_kind_of_allocation_is_listed() {
        let mut rng = Pcg64::seed_from_u64(3);
        let (mut alike, mut left_out) = (0, 0);
        for case in 0..150 {
            let problem = problem(&mut rng);
            let limit = rng.random_bool(0.2).then_some(100.0);
            let scope = AllocationScope {
                unused: rng.random_bool(0.5),
                sources: rng.random_bool(0.7),
                max_replica_transfer_s: limit,
                ..AllocationScope::default()
            };
            let (instance, cluster) = (Instance::new(&problem, Rounding::Up), problem.cluster());
            let first_alike = |node: &usize| (0..*node).find(|other| instance.is_alike(*other, *node)).unwrap_or(*node);
            let kinds = |stages: &Vec<Vec<usize>>| -> Vec<Vec<usize>> {
                let of = |members: &Vec<usize>| {
                    let mut kinds: Vec<usize> = members.iter().map(first_alike).collect();
                    kinds.sort_unstable();
                    kinds
                };
                stages.iter().map(of).collect()
            };
            let every = every_allocation(&problem, scope);
            assert_eq!(count(&problem, scope), every.len(), "{case}");
            let can_be_best = |stages: &&Vec<Vec<usize>>| limit.is_some() || !could_have_more(&problem, stages);
            let expected: BTreeSet<_> = every.iter().filter(can_be_best).map(kinds).collect();
            let listed = all(&problem, scope);
            let found: BTreeSet<_> = listed.iter().map(kinds).collect();
            assert_eq!(found, expected, "{case}");
            assert_eq!(listed.len(), found.len(), "{case}: none twice");
            for stages in &listed {
                for (stage, members) in stages.iter().enumerate().skip(usize::from(!scope.sources)) {
                    assert_eq!(cluster.allreduce_s(stage, members), least_allreduce(cluster, stage, members), "{case}");
                }
            }
            alike += every.len() - found.len();
            left_out += listed.iter().filter(|stages| stages.concat().len() < cluster.nodes().len()).count();
        }
        assert!(alike > 0 && left_out > 0);
    }
}
