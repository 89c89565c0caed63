//! Nodes that only cost: they run nothing, but their stage's all-reduce has to reach them.

use std::collections::BTreeMap;

use crate::bound::{is_tight, lower_bound_of, route_bound};
use crate::budget::Budget;
use crate::cluster::Cluster;
use crate::error::Result;
use crate::plan::{Plan, Predicted};
use crate::problem::Instance;
use crate::report::{LeftOut, SearchEvent};
use crate::simulate::{Dispatch, Replay, resimulate};
use crate::time::{Rounding, Time, seconds};

/// Of more nodes than these it is not said what each would cost.
const MOST_EXPLAINED: usize = 32;
/// Of a stage with at most so many nodes that run nothing, every choice of those that go is tried.
const MOST_TRIED: usize = 10;

/// The plan without the nodes that run nothing in it and lengthen an all-reduce; sources stay. No allocation is known to
/// take less than `known`.
///
/// # Errors
/// [`crate::Error::Cancelled`]; none else, as the routes stay what they are.
pub fn without_idle(plan: Plan, known: Time, budget: &Budget) -> Result<Plan> {
    let mut is_busy = vec![false; plan.cluster.nodes().len()];
    plan.tasks.iter().for_each(|task| is_busy[task.node] = true);
    let mut stages = plan.stages.clone();
    for (stage, members) in stages.iter_mut().enumerate().skip(1) {
        while let Some(fewer) = fewer(&plan.cluster, stage, members, &is_busy) {
            *members = fewer;
        }
    }
    if stages == plan.stages {
        return Ok(plan);
    }
    let mut plan = resimulate(&with_stages(&plan, stages), Dispatch::Planned)?;
    let problem = plan.problem()?;
    let own_routes = plan.strategy.is_bound_by_routes();
    let bound = if own_routes {
        let below = Instance::new(&problem, Rounding::Down).without_contention();
        route_bound(&below, Replay::new(&plan, &below)?.microbatches())
    } else {
        lower_bound_of(&problem, budget)?.max(known)
    };
    let iteration_s = plan.predicted.iteration_s;
    let lower_bound_s = seconds(bound).min(iteration_s);
    plan.predicted = Predicted { lower_bound_s, gap: Predicted::gap_of(iteration_s, lower_bound_s), ..plan.predicted };
    let optimal = !own_routes && is_tight(Rounding::Up.nanoseconds(iteration_s), bound);
    plan.solver.optimal = Some(optimal);
    follow(&mut plan.solver.events, iteration_s, lower_bound_s);
    Ok(plan)
}

/// Has the events of a search end with this iteration, and their bounds hold for this allocation.
fn follow(events: &mut Vec<SearchEvent>, iteration_s: f64, lower_bound_s: f64) {
    for event in events.iter_mut() {
        event.lower_s = event.lower_s.min(lower_bound_s);
    }
    if let Some(last) = events.last().filter(|last| last.upper_s.is_none_or(|before| before > iteration_s)) {
        events.push(SearchEvent { upper_s: Some(iteration_s), lower_s: lower_bound_s, ..*last });
    }
}

/// A stage without some of its nodes that run nothing, where the others then average their gradients soonest; of equally
/// good choices the one that keeps most. Of many such nodes, one goes.
fn fewer(cluster: &Cluster, stage: usize, members: &[usize], is_busy: &[bool]) -> Option<Vec<usize>> {
    let idle: Vec<usize> = members.iter().copied().filter(|node| !is_busy[*node]).collect();
    let choices: Vec<Vec<usize>> = if idle.len() > MOST_TRIED {
        idle.iter().map(|node| vec![*node]).collect()
    } else {
        let chosen = |mask: usize| (0..idle.len()).filter(|i| mask >> i & 1 == 1).map(|i| idle[i]).collect();
        let mut choices: Vec<Vec<usize>> = (1..1 << idle.len()).map(chosen).collect();
        choices.sort_by_key(Vec::len);
        choices
    };
    choices
        .iter()
        .filter(|gone| gone.len() < members.len())
        .map(|gone| members.iter().copied().filter(|node| !gone.contains(node)).collect::<Vec<_>>())
        .map(|rest| (cluster.allreduce_s(stage, &rest), rest))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(time, _)| *time < cluster.allreduce_s(stage, members))
        .map(|(_, rest)| rest)
}

/// What each absent node would cost in the stage where it costs least, routes and order being the same. Of many absent
/// nodes nothing is said.
pub fn explained(plan: &Plan) -> Vec<LeftOut> {
    if plan.absent_nodes.len() > MOST_EXPLAINED {
        return Vec::new();
    }
    let joined = |node: usize, stage: usize| {
        let members = joined_at_best(&plan.cluster, stage, &plan.stages[stage], node);
        let mut stages = plan.stages.clone();
        stages[stage] = members;
        let plan = resimulate(&with_stages(plan, stages), Dispatch::Planned).ok()?;
        Some((plan.predicted.iteration_s, plan.predicted.allreduce_s[stage], stage))
    };
    let least = |node: usize| {
        let tried = (1..plan.stages.len()).filter_map(|stage| joined(node, stage));
        tried.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))
    };
    let left_out = |node: &usize| {
        let (iteration_s, with_s, stage) = least(*node)?;
        let without_s = plan.predicted.allreduce_s[stage];
        Some(LeftOut { node: *node, stage, allreduce_s: with_s, allreduce_without_s: without_s, iteration_s })
    };
    plan.absent_nodes.iter().filter_map(left_out).collect()
}

/// A stage with one node more, where in the ring it costs least.
pub fn joined_at_best(cluster: &Cluster, stage: usize, members: &[usize], node: usize) -> Vec<usize> {
    let at = |index: usize| [&members[..index], &[node], &members[index..]].concat();
    (1..=members.len())
        .map(at)
        .map(|ring| (cluster.allreduce_s(stage, &ring), ring))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(|| vec![node], |(_, ring)| ring)
}

/// The same routes and tasks with other nodes in the stages, none of which a task needs.
pub(super) fn with_stages(plan: &Plan, stages: Vec<Vec<usize>>) -> Plan {
    let serving: BTreeMap<usize, usize> =
        stages.iter().enumerate().flat_map(|(stage, members)| members.iter().map(move |node| (*node, stage))).collect();
    let absent_nodes = (0..plan.cluster.nodes().len()).filter(|node| !serving.contains_key(node)).collect();
    Plan { stages, absent_nodes, ..plan.clone() }
}
