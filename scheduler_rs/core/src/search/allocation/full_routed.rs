//! `full-routed` with an allocation of its own: never worse than straight pipelines on theirs, which are routes too.
//!
//! The joint search of allocation, routes and order is weak where nothing is skipped: long routes leave it little to
//! gain from one change. So it starts from the allocation that suits straight pipelines best, and those
//! are routed by themselves as well.

use crate::allocate::joint::AllocationScope;
use crate::bound::is_tight;
use crate::budget::Budget;
use crate::error::Result;
use crate::part::Part;
use crate::plan::{Kind, Microbatch, Plan};
use crate::problem::Problem;
use crate::report::{AllocationReport, RunnerUp, SearchEvent};
use crate::request::Options;
use crate::rules::Strategy;
use crate::search::allocation::exhaustive::iteration_of;
use crate::search::allocation::joint_search::JointSearch;
use crate::search::allocation::{exhaustive, local_search, unused_nodes};
use crate::search::candidate::{Known, Start};
use crate::search::effort;
use crate::search::fixed_allocation::{asked_of, plan_from};
use crate::search::methods::annealing::PrioritisedRoutes;
use crate::time::{Rounding, Time, seconds};

/// Whether straight pipelines answer the question as well, and not every allocation is planned by itself anyway.
pub fn has_straight(asked: &Problem, scope: AllocationScope, options: Options) -> bool {
    let is_same = || asked_of(asked, Strategy::Full).is_ok_and(|straight| straight == *asked);
    options.strategy == Strategy::FullRouted
        && options.has(Part::StraightPipelines)
        && is_same()
        && !exhaustive::is_small(asked, scope)
}

/// The best plan found of three searches.
///
/// # Errors
/// As [`crate::search::plan`].
pub fn plan(asked: &Problem, scope: AllocationScope, options: Options, budget: &Budget) -> Result<Plan> {
    let straight = Options { strategy: Strategy::Full, ..options };
    let Ok(straight) = local_search::plan(asked, scope, straight, &budget.share(effort::STRAIGHT, 0)) else {
        return JointSearch { problem: asked, asked, scope, options, budget }.plan();
    };
    let straight = Plan { strategy: Strategy::FullRouted, ..straight };
    let on_its_allocation = straight.problem()?;
    // A search begins with equal layers, where a plan's cluster is that of its own, and cannot bring back nodes beyond the
    // sizes that it begins with.
    let sizes = |problem: &Problem| problem.stages().iter().map(Vec::len).collect::<Vec<_>>();
    let is_first = scope.layers == 0 && sizes(&on_its_allocation) == sizes(asked);
    let first = if is_first { &on_its_allocation } else { asked };
    let mut work = straight.solver.work();
    let joint = {
        let budget = &budget.share(effort::JOINT_AFTER_STRAIGHT, work);
        JointSearch { problem: first, asked: first, scope, options, budget }.plan()
    };
    work += joint.as_ref().map_or(0, |plan| plan.solver.work());
    let all: Time = joint.as_ref().map_or(0, bound_of_all);
    let is_best = joint.as_ref().is_ok_and(|plan| is_tight(iteration_of(plan), all));
    let start = Start { known: Known::Prioritised(found_of(&straight)), work: 0, bound: all };
    let routed = (!is_best)
        .then(|| plan_from(&on_its_allocation, options, &budget.share(1.0, work), Some(&start)).ok())
        .flatten();
    let routed = match routed {
        Some(plan) if scope.unused && options.has(Part::IdleNodes) && !budget.is_cancelled() => {
            Some(unused_nodes::without_idle(plan, all, budget)?)
        }
        routed => routed,
    };
    Ok(best_of(straight, joint.ok(), routed, budget))
}

/// Straight pipelines as routes, each of one microbatch, and priorities that follow the times at which they go out and turn
/// round.
fn found_of(plan: &Plan) -> PrioritisedRoutes {
    let mut times = vec![(0.0, 0); 2 * plan.microbatches.len()];
    for task in plan.tasks.iter().filter(|task| task.kind == Kind::L || (task.kind == Kind::F && task.hop == 0)) {
        let index = 2 * task.microbatch + usize::from(task.kind == Kind::L);
        times[index] = (task.start_s, index);
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut priorities = vec![0; times.len()];
    for (priority, (_, index)) in (0..).zip(times) {
        priorities[index] = priority;
    }
    let path = |microbatch: &Microbatch| microbatch.nodes.iter().map(|node| *node as u32).collect();
    let paths = plan.microbatches.iter().map(path).collect();
    PrioritisedRoutes { paths, priorities, key: (iteration_of(plan), 0), allocation: None }
}

/// What no allocation beats, as a plan reports it.
fn bound_of_all(plan: &Plan) -> Time {
    Rounding::Down.nanoseconds(plan.solver.bound_of_all_s())
}

/// The shortest of the plans, which reports all searches as one.
fn best_of(straight: Plan, joint: Option<Plan>, routed: Option<Plan>, budget: &Budget) -> Plan {
    let start_s = straight.solver.allocation.as_ref().and_then(|report| report.start_s);
    let plans: Vec<Plan> = [Some(straight), joint, routed].into_iter().flatten().collect();
    // The searches have bounds for one allocation each; those of all allocations hold throughout.
    let all_s = plans.iter().map(|plan| seconds(bound_of_all(plan)).min(plan.predicted.lower_bound_s));
    let bound_s = all_s.take(2).fold(0.0, f64::max);
    let (mut events, mut work) = (Vec::new(), 0);
    let mut report = AllocationReport::default();
    for plan in &plans {
        append(&mut events, plan, work, bound_s);
        work += plan.solver.work();
        if let Some(own) = &plan.solver.allocation {
            report = own.clone();
        }
    }
    let others: Vec<RunnerUp> = plans
        .iter()
        .map(|plan| RunnerUp { stages: plan.stages.clone(), iteration_s: plan.predicted.iteration_s })
        .collect();
    // Of equal ones the last: it has the best bound.
    let best = plans.into_iter().rev().min_by(|a, b| a.predicted.iteration_s.total_cmp(&b.predicted.iteration_s));
    let Some(mut best) = best else { unreachable!("there are straight pipelines") };
    let next = others
        .into_iter()
        .filter(|other| other.stages != best.stages)
        .min_by(|a, b| a.iteration_s.total_cmp(&b.iteration_s));
    report.runner_up = next.or(report.runner_up);
    report.start_s = start_s;
    let elapsed_s = budget.elapsed_s();
    let (upper_s, lower_s) = (Some(best.predicted.iteration_s), best.predicted.lower_bound_s);
    events.push(SearchEvent { elapsed_s, work, upper_s, lower_s });
    best.solver.allocation = Some(report);
    best.solver.events = events;
    best.solver.work = Some(work);
    best.solver.wall_s = Some(elapsed_s);
    best
}

/// The events of a plan's search after those that are there: better plans than were known, with the work before it.
fn append(events: &mut Vec<SearchEvent>, plan: &Plan, work: u64, bound_s: f64) {
    for event in &plan.solver.events {
        let known = events.last().and_then(|last| last.upper_s).unwrap_or(f64::INFINITY);
        if event.upper_s.is_some_and(|upper_s| upper_s < known) {
            events.push(SearchEvent { work: event.work + work, lower_s: bound_s, ..*event });
        }
    }
}
