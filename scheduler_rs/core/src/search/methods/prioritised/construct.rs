//! Complete plans made by placing routes, or by taking some off and placing them again.

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::partial_schedule::{PartialSchedule, Targets};
use super::router::{Request, Router};
use super::timed_path::TimedPath;
use crate::search::candidate::{Candidate, Tried, paths_of, targets_of};
use crate::search::context::{Context, Objective};
use crate::search::methods::routes::Path;
use crate::search::methods::{sampling, straight_pipelines};
use crate::simulate::{Outcome, Simulator};
use crate::time::{NEVER, Time};

/// Places every route in `order`, each by the best path among those before it, or, where travel alone counts, by
/// the best path as if it were alone.
pub fn construct<'a>(context: &Context<'a>, router: &mut Router<'_>, order: &[usize], targets: &Targets) -> Tried<'a> {
    let occupied = context.objective == Objective::Simulated;
    let mut schedule = PartialSchedule::new(context.instance, context.tasks, targets, occupied);
    for route in order {
        if !insert(context, router, &mut schedule, *route, None, NEVER) {
            return Err(None);
        }
    }
    finish(context, schedule, &mut router.work)
}

/// Takes `routes` off and places them again in that order; none where no path is left within `limit`.
pub fn replace<'a>(
    context: &Context<'a>,
    router: &mut Router<'_>,
    from: &Candidate<'a>,
    routes: &[usize],
    limit: Time,
) -> Tried<'a> {
    let mut schedule = from.schedule.clone();
    for route in routes {
        schedule.remove(*route);
    }
    for route in routes {
        if !insert(context, router, &mut schedule, *route, None, limit) {
            return Err(None);
        }
    }
    finish(context, schedule, &mut router.work)
}

/// Random routes, with the times that the dispatch rule gives them: a plan at once, whatever the size.
pub fn draw_routes<'a>(context: &Context<'a>, router: &mut Router<'_>, rng: &mut Pcg64) -> Tried<'a> {
    let instance = context.instance;
    let targets = context.targets(rng);
    let mut schedule = PartialSchedule::new(instance, context.tasks, &targets, false);
    if !sampling::routes(&mut schedule, instance, rng) {
        return Err(None);
    }
    if context.objective == Objective::Travel {
        return travelled(context, router, &paths_of(&schedule));
    }
    finish(context, schedule, &mut router.work)
}

/// Given routes by how long they take when every node is free.
pub fn travelled<'a>(context: &Context<'a>, router: &mut Router<'_>, paths: &[Path]) -> Tried<'a> {
    let mut schedule = PartialSchedule::new(context.instance, context.tasks, &targets_of(context, paths), false);
    for (route, path) in paths.iter().enumerate() {
        if !insert(context, router, &mut schedule, route, Some(path), NEVER) {
            return Err(None);
        }
    }
    finish(context, schedule, &mut router.work)
}

/// The straight pipelines of `full`, as a start for `full-routed`; for routes of one microbatch each.
pub fn straight_routes<'a>(context: &Context<'a>, router: &mut Router<'_>, rng: &mut Pcg64) -> Tried<'a> {
    let mut schedule = PartialSchedule::new(context.instance, context.tasks, &context.targets(rng), false);
    for (route, microbatch) in straight_pipelines::pipelines(context.instance, rng).into_iter().enumerate() {
        schedule.place(route, vec![TimedPath { nodes: microbatch.nodes, starts: Vec::new(), completion: 0, value: 0 }]);
    }
    finish(context, schedule, &mut router.work)
}

/// Finds the timed paths of one route's waves, each wave after the one before is complete, and places them.
fn insert(
    context: &Context<'_>,
    router: &mut Router<'_>,
    schedule: &mut PartialSchedule<'_>,
    route: usize,
    forced: Option<&[u32]>,
    limit: Time,
) -> bool {
    let task = context.tasks[route];
    let stop = || context.budget.is_over();
    if stop() {
        return false;
    }
    let mut request = Request {
        source: task.source,
        class: task.class,
        release: 0,
        visits: schedule.visits(route),
        forced: forced.or(context.instance.classes[task.class].forced.as_deref()),
        limit,
    };
    let Some(first) = router.find(schedule, &request, &stop) else { return false };
    let mut timed_paths: Vec<TimedPath> = vec![first];
    let nodes = timed_paths[0].nodes.clone();
    request.forced = Some(&nodes);
    for _ in 1..task.waves {
        request.release = timed_paths[timed_paths.len() - 1].completion;
        // A later wave starts when the one before is complete, so the two never want a node at the same time.
        let Some(timed_path) = router.find(schedule, &request, &stop) else { return false };
        timed_paths.push(timed_path);
    }
    schedule.place(route, timed_paths);
    true
}

/// Gives a complete schedule its times: by the order in which it was made, or by the dispatch rule where that
/// is faster.
pub fn finish<'a>(context: &Context<'a>, mut schedule: PartialSchedule<'a>, work: &mut u64) -> Tried<'a> {
    let microbatches = schedule.microbatches();
    let mut simulator = Simulator::new(context.instance);
    simulator.load(&microbatches);
    *work += simulator.task_count() as u64;
    if context.objective == Objective::Travel {
        let outcome = simulator.run_dispatch().map_err(|deadlock| Some(simulator.error_of(&deadlock)))?;
        let values = (0..context.tasks.len()).flat_map(|r| schedule.timed_paths(r)).map(|timed_path| timed_path.value);
        let cost = values.fold((0, 0), |(most, sum): (Time, Time), value| (most.max(value), sum + value));
        let order = simulator.dispatched_order();
        return Ok(Candidate { schedule, order, outcome, cost });
    }
    let dispatched = simulator.run_dispatch();
    let mut order = schedule.order(&simulator);
    // Memory and order were kept while placing, so this cannot deadlock but for tasks of no length.
    let planned = if schedule.is_occupied() { simulator.run_order(&order).ok() } else { None };
    let key = |outcome: &Outcome| (outcome.iteration, outcome.finish_sum);
    let outcome = match (planned, dispatched) {
        (Some(planned), Ok(dispatched)) if key(&planned) <= key(&dispatched) => planned,
        (Some(planned), Err(_)) => planned,
        (_, Ok(_)) => {
            order = simulator.dispatched_order();
            simulator.run_order(&order).map_err(|_| None)?
        }
        (None, Err(deadlock)) => return Err(Some(simulator.error_of(&deadlock))),
    };
    schedule.retime(&simulator, &order);
    Ok(Candidate { schedule, order, cost: key(&outcome), outcome })
}

/// Routes in a random order that begins, on the whole, with those that have least slack.
pub fn priority(context: &Context<'_>, targets: &Targets, rng: &mut Pcg64, shuffle: f64) -> Vec<usize> {
    use rand::RngExt;
    let hardness = |route: usize| {
        let task = context.tasks[route];
        context.lookahead.round_trip(context.instance, task.source, targets.lengths[route]) as f64 * task.waves as f64
    };
    let mut keyed: Vec<(f64, usize)> =
        (0..context.tasks.len()).map(|r| (hardness(r) * (1.0 - shuffle * rng.random::<f64>()), r)).collect();
    keyed.shuffle(rng);
    keyed.sort_by(|a, b| b.0.total_cmp(&a.0));
    keyed.into_iter().map(|(_, route)| route).collect()
}
