//! `full-routed` with an allocation of its own: never worse than straight pipelines on theirs, which are routes too.
//!
//! The joint search of allocation, routes and order is weak where nothing is skipped: long routes leave it little to
//! gain from one change. So it starts from the allocation that suits straight pipelines best, and those
//! are routed by themselves as well.

use serde_json::{Map, Value, json};

use super::anneal::Found;
use super::{Freely, Options, Start, asked_of, idle, plan_from, strategy_allocation, sweep, told_left_out};
use crate::allocate::joint::Freedom;
use crate::bound::is_tight;
use crate::budget::Budget;
use crate::error::Result;
use crate::plan::{Kind, Microbatch, Plan};
use crate::problem::Problem;
use crate::rules::Strategy;
use crate::search::sweep::iteration_of;
use crate::time::{Rounding, Time, seconds};

/// How much of the time or the work goes into straight pipelines, and how much of the rest into the joint search.
const STRAIGHT_SHARE: f64 = 0.25;
const JOINT_SHARE: f64 = 0.4;

/// Whether straight pipelines answer the question as well, and not every allocation is planned by itself anyway.
pub(super) fn has_straight(asked: &Problem, freedom: Freedom, options: Options) -> bool {
    let is_same = || asked_of(asked, Strategy::Full).is_ok_and(|straight| straight == *asked);
    options.strategy == Strategy::FullRouted && is_same() && !sweep::is_small(asked, freedom)
}

/// The best plan found of three searches.
///
/// # Errors
/// As [`super::plan_freely`].
pub(super) fn plan(asked: &Problem, freedom: Freedom, options: Options, budget: &Budget) -> Result<Plan> {
    let straight = Options { strategy: Strategy::Full, ..options };
    let Ok(straight) = strategy_allocation::plan(asked, freedom, straight, &budget.share(STRAIGHT_SHARE, 0)) else {
        return Freely { problem: asked, asked, freedom, options, budget }.plan();
    };
    let straight = Plan { strategy: Strategy::FullRouted, ..straight };
    let on_its_allocation = straight.problem()?;
    // A search begins with equal layers, where a plan's cluster is that of its own, and cannot bring back nodes beyond the
    // sizes that it begins with.
    let sizes = |problem: &Problem| problem.stages().iter().map(Vec::len).collect::<Vec<_>>();
    let is_first = freedom.layers == 0 && sizes(&on_its_allocation) == sizes(asked);
    let first = if is_first { &on_its_allocation } else { asked };
    let mut work = work_of(&straight);
    let joint = {
        let budget = &budget.share(JOINT_SHARE, work);
        Freely { problem: first, asked: first, freedom, options, budget }.plan()
    };
    work += joint.as_ref().map_or(0, work_of);
    let all: Time = joint.as_ref().map_or(0, bound_of_all);
    let is_best = joint.as_ref().is_ok_and(|plan| is_tight(iteration_of(plan), all));
    let start = Start { found: found_of(&straight), work: 0, bound: all };
    let routed = (!is_best)
        .then(|| plan_from(&on_its_allocation, options, &budget.share(1.0, work), Some(&start)).ok())
        .flatten();
    let routed = match routed {
        Some(plan) if freedom.unused && !budget.is_cancelled() => Some(idle::without_idle(plan, all, budget)?),
        routed => routed,
    };
    let best = best_of(straight, joint.ok(), routed, budget);
    Ok(if freedom.unused { told_left_out(best) } else { best })
}

/// Straight pipelines as routes, each of one microbatch, and ranks that follow the times at which they go out and turn
/// round.
fn found_of(plan: &Plan) -> Found {
    let mut times = vec![(0.0, 0); 2 * plan.microbatches.len()];
    for task in plan.tasks.iter().filter(|task| task.kind == Kind::L || (task.kind == Kind::F && task.hop == 0)) {
        let place = 2 * task.microbatch + usize::from(task.kind == Kind::L);
        times[place] = (task.start_s, place);
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut ranks = vec![0; times.len()];
    for (rank, (_, place)) in (0..).zip(times) {
        ranks[place] = rank;
    }
    let path = |microbatch: &Microbatch| microbatch.nodes.iter().map(|node| *node as u32).collect();
    let paths = plan.microbatches.iter().map(path).collect();
    Found { paths, ranks, key: (iteration_of(plan), 0), settled: None }
}

fn work_of(plan: &Plan) -> u64 {
    plan.solver.get("work").and_then(Value::as_u64).unwrap_or(0)
}

/// What no allocation beats, as a plan tells it.
fn bound_of_all(plan: &Plan) -> Time {
    let told = plan.solver.get("allocation").and_then(|told| told.get("lower_bound_s")).and_then(Value::as_f64);
    Rounding::Down.nanoseconds(told.unwrap_or(0.0))
}

/// The shortest of the plans, which tells of all searches as of one.
fn best_of(straight: Plan, joint: Option<Plan>, routed: Option<Plan>, budget: &Budget) -> Plan {
    let mut events: Vec<Value> = Vec::new();
    let mut work = 0;
    let mut told: Map<String, Value> = Map::new();
    let start_s = straight.solver.get("allocation").and_then(|told| told.get("start_s")).cloned();
    let plans: Vec<Plan> = [Some(straight), joint, routed].into_iter().flatten().collect();
    // The searches have bounds for one allocation each; those of all allocations hold throughout.
    let all_s = plans.iter().map(|plan| seconds(bound_of_all(plan)).min(plan.predicted.lower_bound_s));
    let bound_s = all_s.take(2).fold(0.0, f64::max);
    for plan in &plans {
        append(&mut events, plan, work, bound_s);
        work += work_of(plan);
        if let Some(Value::Object(own)) = plan.solver.get("allocation") {
            told = own.clone();
        }
    }
    let others: Vec<(Vec<Vec<usize>>, f64)> =
        plans.iter().map(|plan| (plan.stages.clone(), plan.predicted.iteration_s)).collect();
    // Of equal ones the last: it has the best bound.
    let best = plans.into_iter().rev().min_by(|a, b| a.predicted.iteration_s.total_cmp(&b.predicted.iteration_s));
    let Some(mut best) = best else { unreachable!("there are straight pipelines") };
    let next = others
        .into_iter()
        .filter(|(stages, _)| *stages != best.stages)
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(stages, iteration_s)| json!({"stages": stages, "iteration_s": iteration_s}));
    let known = told.get("runner_up").filter(|_| next.is_none()).cloned();
    told.insert("runner_up".to_owned(), next.or(known).unwrap_or(Value::Null));
    told.insert("start_s".to_owned(), start_s.unwrap_or(Value::Null));
    let wall_s = budget.elapsed_s();
    let predicted = &best.predicted;
    events.push(json!([wall_s, work, predicted.iteration_s, predicted.lower_bound_s]));
    for (key, value) in [
        ("allocation", Value::Object(told)),
        ("events", Value::Array(events)),
        ("work", json!(work)),
        ("wall_s", json!(wall_s)),
    ] {
        best.solver.insert(key.to_owned(), value);
    }
    best
}

/// What a plan tells of its search, after what is there: better plans than were known, with the work before it.
fn append(events: &mut Vec<Value>, plan: &Plan, work: u64, bound_s: f64) {
    let own = plan.solver.get("events").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for event in own {
        let known = events.last().and_then(|last| last[2].as_f64()).unwrap_or(f64::INFINITY);
        let Some(iteration_s) = event[2].as_f64().filter(|iteration_s| *iteration_s < known) else { continue };
        let done = event[1].as_u64().unwrap_or(0) + work;
        events.push(json!([event[0], done, iteration_s, bound_s]));
    }
}
