//! A complete plan as the methods exchange it, and what turns the result of each method into one.

use rand_pcg::Pcg64;
use smallvec::SmallVec;

use crate::error::Error;
use crate::search::context::Context;
use crate::search::methods::annealing::PrioritisedRoutes;
use crate::search::methods::cbs;
use crate::search::methods::prioritised::partial_schedule::{PartialSchedule, Targets};
use crate::search::methods::prioritised::timed_path::TimedPath;
use crate::search::methods::routes::{Path, paths_of_microbatches, stage_set};
use crate::search::methods::sampling;
use crate::search::methods::schedule_annealing::Schedule;
use crate::simulate::{Outcome, Simulator, TaskId};
use crate::time::Time;

/// A complete plan of an attempt.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its routes and reservations.
    pub schedule: PartialSchedule<'a>,
    /// The order on every processor.
    pub order: Vec<Vec<TaskId>>,
    /// Its times.
    pub outcome: Outcome,
    /// What attempts are compared by: lower is better.
    pub cost: (Time, Time),
}

/// A candidate, or why there is none: the deadlock of the dispatch rule, or nothing where a route found no path.
pub type Tried<'a> = Result<Candidate<'a>, Option<Error>>;

/// Quotas and lengths that complete routes have.
pub fn targets_of(context: &Context<'_>, paths: &[Path]) -> Targets {
    let instance = context.instance;
    let mut visits = vec![0; instance.stage_count()];
    for node in paths.iter().flatten() {
        visits[instance.stage_of[*node as usize]] += 1;
    }
    let lengths = paths.iter().map(SmallVec::len).collect();
    let sets = instance.rules.classes.is_some().then(|| paths.iter().map(|path| stage_set(instance, path)).collect());
    Targets { visits: instance.rules.cc3.then_some(visits), lengths, sets }
}

/// Random routes alone; none where the drawing ran into a dead end.
pub fn draw_paths(context: &Context<'_>, rng: &mut Pcg64) -> Option<Vec<Path>> {
    let targets = context.targets(rng);
    let mut schedule = PartialSchedule::new(context.instance, context.tasks, &targets, false);
    sampling::routes(&mut schedule, context.instance, rng).then(|| paths_of(&schedule))
}

/// Nodes of each route of a complete schedule.
pub fn paths_of(schedule: &PartialSchedule<'_>) -> Vec<Path> {
    let nodes = |route: usize| schedule.timed_paths(route).first().map_or(&[][..], |timed_path| &timed_path.nodes);
    (0..schedule.tasks().len()).map(|route| Path::from_slice(nodes(route))).collect()
}

/// What a chain has found, with the times that its priorities give.
pub fn prioritised<'a>(context: &Context<'a>, found: &PrioritisedRoutes, work: &mut u64) -> Tried<'a> {
    let schedule = untimed_schedule(context, &found.paths);
    let mut simulator = Simulator::new(context.instance);
    simulator.load(&schedule.microbatches());
    *work += simulator.task_count() as u64;
    simulator.run_prioritised(&found.priorities).map_err(|_| None)?;
    timed(context, schedule, simulator.dispatched_order(), work)
}

/// A plan as one search hands it on to the next.
#[derive(Clone, Debug)]
pub enum Known {
    /// Routes and the priorities of their tasks.
    Prioritised(PrioritisedRoutes),
    /// Routes and the order of tasks on every processor.
    Scheduled(Schedule),
}

impl Known {
    /// Iteration and sum of completion times.
    pub fn key(&self) -> (Time, Time) {
        match self {
            Self::Prioritised(found) => found.key,
            Self::Scheduled(schedule) => schedule.key,
        }
    }

    /// The plan with its times.
    pub fn timed<'a>(&self, context: &Context<'a>, work: &mut u64) -> Tried<'a> {
        match self {
            Self::Prioritised(found) => prioritised(context, found, work),
            Self::Scheduled(schedule) => scheduled(context, schedule, work),
        }
    }
}

/// A schedule as it stands.
pub fn scheduled<'a>(context: &Context<'a>, schedule: &Schedule, work: &mut u64) -> Tried<'a> {
    timed(context, untimed_schedule(context, &schedule.paths), schedule.order.clone(), work)
}

/// What conflict-based search has found: the routes and order of its execution.
pub fn executed<'a>(context: &Context<'a>, found: cbs::Solution, work: &mut u64) -> Tried<'a> {
    let paths = paths_of_microbatches(&found.microbatches, context.tasks.len());
    timed(context, untimed_schedule(context, &paths), found.order, work)
}

/// The routes of a candidate in another order.
pub fn reordered<'a>(
    context: &Context<'a>,
    from: &Candidate<'a>,
    order: Vec<Vec<TaskId>>,
    work: &mut u64,
) -> Tried<'a> {
    timed(context, from.schedule.clone(), order, work)
}

/// A complete schedule in a given order.
fn timed<'a>(
    context: &Context<'a>,
    mut schedule: PartialSchedule<'a>,
    order: Vec<Vec<TaskId>>,
    work: &mut u64,
) -> Tried<'a> {
    let mut simulator = Simulator::new(context.instance);
    simulator.load(&schedule.microbatches());
    *work += simulator.task_count() as u64;
    let outcome = simulator.run_order(&order).map_err(|_| None)?;
    schedule.retime(&simulator, &order);
    Ok(Candidate { schedule, order, cost: (outcome.iteration, outcome.finish_sum), outcome })
}

/// A schedule with these routes, not yet timed.
fn untimed_schedule<'a>(context: &Context<'a>, paths: &[Path]) -> PartialSchedule<'a> {
    let mut schedule = PartialSchedule::new(context.instance, context.tasks, &targets_of(context, paths), false);
    for (route, path) in paths.iter().enumerate() {
        let timed_path = TimedPath { nodes: path.to_vec(), starts: Vec::new(), completion: 0, value: 0 };
        schedule.place(route, vec![timed_path; context.tasks[route].waves]);
    }
    schedule
}

/// A candidate as chains see it; its priorities follow the times at which its microbatches go out and turn round.
pub fn found_of(candidate: &Candidate<'_>) -> PrioritisedRoutes {
    let schedule = &candidate.schedule;
    let mut times: Vec<(Time, u32)> = Vec::new();
    for timed_path in (0..schedule.tasks().len()).flat_map(|route| schedule.timed_paths(route)) {
        let index = times.len() as u32;
        times.push((timed_path.starts[0], index));
        times.push((timed_path.starts[timed_path.nodes.len()], index + 1));
    }
    times.sort_unstable();
    let mut priorities = vec![0; times.len()];
    for (priority, (_, index)) in (0..).zip(times) {
        priorities[index as usize] = priority;
    }
    PrioritisedRoutes { paths: paths_of(schedule), priorities, key: candidate.cost, allocation: None }
}

/// What a search begins with.
pub struct Start {
    pub known: Known,
    /// Search steps that it took.
    pub work: u64,
    /// No plan takes less.
    pub bound: Time,
}
