//! Every allocation of a small cluster, each planned by itself: what annealing cannot promise, a proof can.

use rayon::prelude::*;

use super::{Options, plan_for};
use crate::allocate::joint::{Freedom, Seats};
use crate::bound::{is_tight, lower_bound_of};
use crate::budget::Budget;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::problem::{Instance, Problem};
use crate::time::{Rounding, Time};

/// The most allocations that are looked at one by one, and the most nodes: nine in three stages have at most so many.
const MOST: usize = 1_680;
const MOST_NODES: usize = 9;
/// Work for each of them, one time after the other, for as long as it is open.
const EFFORTS: [u64; 3] = [2_000, 20_000, 200_000];
/// Allocations that are planned side by side, always as many.
const SIDE_BY_SIDE: usize = 8;

/// What is known of all allocations together.
#[derive(Default)]
pub(super) struct Swept {
    /// The best plan.
    pub plan: Option<Plan>,
    /// No allocation takes less.
    pub bound: Time,
    /// No allocation has any plan: why the last one has none.
    pub impossible: Option<Error>,
    /// Search steps.
    pub work: u64,
}

/// An allocation, and the bound for it.
struct Open {
    problem: Problem,
    bound: Time,
}

/// Whether so few allocations are allowed that each can be planned by itself.
pub(super) fn is_small(problem: &Problem, freedom: Freedom) -> bool {
    let nodes = problem.cluster().nodes().len();
    let equal = problem.microbatches().windows(2).all(|pair| pair[0] == pair[1]);
    !freedom.sizes && freedom.layers == 0 && equal && nodes <= MOST_NODES && count(problem, freedom) <= MOST
}

/// Plans all allocations that `freedom` allows, in the order of their bounds, until a share of the time or the work is
/// used up.
///
/// # Errors
/// [`Error::Cancelled`] where there is no plan yet.
pub(super) fn sweep(
    problem: &Problem,
    freedom: Freedom,
    options: Options,
    budget: &Budget,
    share: f64,
) -> Result<Swept> {
    let most = budget.work_limit.map_or(u64::MAX, |limit| (limit as f64 * share) as u64);
    let mut open = Vec::new();
    let mut swept = Swept::default();
    let mut impossible = None;
    for stages in all(problem, freedom) {
        let Ok(other) = problem.reallocated(stages) else { continue };
        if Seats::new(&other, freedom).is_err() {
            continue;
        }
        let bound = lower_bound_of(&other, budget)?;
        open.push(Open { problem: other, bound });
    }
    for effort in EFFORTS {
        open.sort_by(|a, b| a.bound.cmp(&b.bound).then_with(|| a.problem.stages().cmp(b.problem.stages())));
        let mut left = Vec::new();
        let mut rest = open.into_iter();
        loop {
            let chunk: Vec<Open> = rest.by_ref().take(SIDE_BY_SIDE).collect();
            if chunk.is_empty() {
                break;
            }
            let best = iteration_of(swept.plan.as_ref());
            if budget.is_over() || budget.is_past(share) || swept.work >= most {
                left.extend(chunk);
                left.extend(rest);
                swept.bound = least(&left, best);
                return Ok(swept);
            }
            let one = Options { threads: 1, ..options };
            let planned: Vec<_> = chunk
                .par_iter()
                .map(|o| (o.bound < best).then(|| plan_for(&o.problem, one, &budget.within(effort))))
                .collect();
            for (mut open, planned) in chunk.into_iter().zip(planned) {
                match planned {
                    // It cannot be better than what is there.
                    None => {}
                    Some(Ok(plan)) => {
                        swept.work += plan.solver.get("work").and_then(serde_json::Value::as_u64).unwrap_or(0);
                        open.bound = open.bound.max(Rounding::Down.nanoseconds(plan.predicted.lower_bound_s));
                        let iteration = iteration_of(Some(&plan));
                        if iteration < iteration_of(swept.plan.as_ref()) {
                            swept.plan = Some(plan);
                        }
                        if !is_tight(iteration, open.bound) {
                            left.push(open);
                        }
                    }
                    Some(Err(error @ Error::Impossible { .. })) => impossible = Some(error),
                    Some(Err(_)) => {
                        swept.work += effort;
                        left.push(open);
                    }
                }
            }
        }
        let best = iteration_of(swept.plan.as_ref());
        left.retain(|o| o.bound < best && !is_tight(best, o.bound));
        open = left;
    }
    swept.bound = least(&open, iteration_of(swept.plan.as_ref()));
    if open.is_empty() && swept.plan.is_none() {
        swept.impossible = impossible;
    }
    Ok(swept)
}

fn least(open: &[Open], best: Time) -> Time {
    open.iter().map(|o| o.bound).fold(best, Time::min)
}

/// As the search counts it; none: later than anything.
fn iteration_of(plan: Option<&Plan>) -> Time {
    plan.map_or(crate::time::NEVER, |plan| Rounding::Up.nanoseconds(plan.predicted.iteration_s))
}

/// How many allocations there are; more than [`MOST`] are not counted on.
fn count(problem: &Problem, freedom: Freedom) -> usize {
    let mut left: usize = problem.stages().iter().map(Vec::len).sum();
    let mut count = 1_usize;
    for (stage, members) in problem.stages().iter().enumerate() {
        if stage > 0 || freedom.sources {
            for i in 0..members.len() {
                count = count.saturating_mul(left - i) / (i + 1);
                if count > 1_000 * MOST {
                    return count;
                }
            }
        }
        left -= members.len();
    }
    count
}

/// All allocations, but only one of those that differ in nodes that are just like each other.
fn all(problem: &Problem, freedom: Freedom) -> Vec<Vec<Vec<usize>>> {
    let instance = Instance::new(problem, Rounding::Up);
    let nodes: Vec<usize> = (0..instance.node_count()).collect();
    let kinds: Vec<usize> =
        nodes.iter().map(|a| nodes.iter().position(|b| a == b || instance.is_alike(*a, *b)).unwrap_or(*a)).collect();
    let mut found: Vec<Vec<Vec<usize>>> = vec![Vec::new()];
    for (stage, members) in problem.stages().iter().enumerate() {
        let mut next = Vec::new();
        for stages in &found {
            if stage == 0 && !freedom.sources {
                next.push(vec![members.clone()]);
                continue;
            }
            let is_free = |node: &usize| !stages.iter().any(|s: &Vec<usize>| s.contains(node));
            let free: Vec<usize> = nodes.iter().copied().filter(is_free).collect();
            for chosen in choices(&free, &kinds, members.len()) {
                let ring = shortest_ring(problem.cluster(), stage, chosen);
                next.push([stages.clone(), vec![ring]].concat());
            }
        }
        found = next;
    }
    found
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
