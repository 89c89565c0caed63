//! Strategies whose plan follows from an allocation by construction: straight pipelines and random routes, dispatched.

use crate::bound::{is_tight, lower_bound_of, route_bound};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::problem::{Instance, Problem, impossible};
use crate::report::SearchReport;
use crate::request::Options;
use crate::route::{RouteTask, StageOrder, StageSet};
use crate::search::context::{Solution, stream_of};
use crate::search::methods::sampling::random_routes;
use crate::search::methods::straight_pipelines;
use crate::simulate::{MicrobatchRoute, Outcome, Simulator};
use crate::time::seconds;

/// Draws after which a search for routes gives up.
const MOST_DRAWS: u64 = 1000;

/// Random ties until the limit; the first matching is always there.
pub fn solve_full(problem: &Problem, instance: &Instance, options: Options, budget: &Budget) -> Result<Solution> {
    let mut simulator = Simulator::new(instance);
    let mut best: Option<(Outcome, Vec<MicrobatchRoute>)> = None;
    let bound = lower_bound_of(problem, budget)?;
    let mut deadlock = None;
    let mut work = 0_u64;
    let mut draws = 0_u64;
    let is_proved = |best: &Option<(Outcome, Vec<MicrobatchRoute>)>| {
        best.as_ref().is_some_and(|(o, _)| is_tight(o.iteration, bound))
    };
    while draws == 0
        || !(budget.is_over()
            || draws >= MOST_DRAWS
            || is_proved(&best)
            || budget.work_limit.is_some_and(|limit| work >= limit))
    {
        let mut rng = stream_of(options.seed, draws);
        draws += 1;
        let microbatches = straight_pipelines::pipelines(instance, &mut rng);
        if let Some(microbatch) = microbatches.iter().find(|b| !keeps_order(instance, &b.nodes)) {
            return impossible("max_stage_jump", format!("the straight pipeline {:?} jumps too far", microbatch.nodes));
        }
        simulator.load(&microbatches);
        work += simulator.task_count() as u64;
        budget.add_work(simulator.task_count() as u64);
        match simulator.run_dispatch() {
            Ok(outcome) if best.as_ref().is_none_or(|(least, _)| outcome.iteration < least.iteration) => {
                budget.report(seconds(outcome.iteration), seconds(bound));
                best = Some((outcome, microbatches));
            }
            Ok(_) => {}
            Err(cycle) => deadlock = Some(simulator.error_of(&cycle)),
        }
        budget.check_cancelled()?;
    }
    let Some((_, microbatches)) = best else { return Err(deadlock.unwrap_or(Error::Deadlock(Vec::new()))) };
    simulator.load(&microbatches);
    dispatched(&mut simulator)?;
    let order = simulator.dispatched_order();
    Ok(Solution { microbatches, order, bound, report: drawn(work, draws) })
}

fn drawn(work: u64, attempts: u64) -> SearchReport {
    SearchReport { work: Some(work), attempts: Some(attempts), ..SearchReport::default() }
}

fn keeps_order(instance: &Instance, nodes: &[u32]) -> bool {
    let stages = nodes.iter().map(|n| instance.stage_of[*n as usize]);
    stages
        .into_iter()
        .try_fold(StageOrder::start(&instance.rules), |order, stage| order.step(stage, &instance.rules))
        .is_some()
}

/// Runs the dispatch rule, a deadlock by its names.
fn dispatched(simulator: &mut Simulator<'_>) -> Result<Outcome> {
    simulator.run_dispatch().map_err(|deadlock| simulator.error_of(&deadlock))
}

/// The first draw that does not deadlock.
pub fn solve_random(
    instance: &Instance,
    below: &Instance,
    tasks: &[RouteTask],
    sets: Option<&[StageSet]>,
    options: Options,
    budget: &Budget,
) -> Result<Solution> {
    let mut deadlock = None;
    for draw in 0..MOST_DRAWS {
        budget.check_cancelled()?;
        let mut rng = stream_of(options.seed, draw);
        // Guided only where free drawing does not get there, so that the draw stays as random as it can be.
        let guide = sets.filter(|_| draw >= MOST_DRAWS / 2);
        let Some(microbatches) = random_routes(instance, tasks, guide, &mut rng) else { continue };
        let mut simulator = Simulator::new(instance);
        simulator.load(&microbatches);
        budget.add_work(simulator.task_count() as u64);
        match dispatched(&mut simulator) {
            Ok(_) => {
                let bound = route_bound(below, &microbatches);
                let order = simulator.dispatched_order();
                let report = drawn(simulator.task_count() as u64, draw + 1);
                return Ok(Solution { microbatches, order, bound, report });
            }
            Err(error) => deadlock = Some(error),
        }
        if draw > 0 && budget.is_over() {
            break;
        }
    }
    Err(deadlock.unwrap_or_else(|| Error::NotFound("no random routes keep the rules".to_owned())))
}
