//! Allocations of a small cluster in a race: every one gets a short run of annealing by itself, the better ones longer
//! and longer runs, of complete schedules.
//!
//! Where allocation and routes change together, routes never have the time to suit an allocation, so that one looks good
//! or bad by chance; here each is judged by what its own routes can do.

use rayon::prelude::*;

use crate::budget::Budget;
use crate::problem::{Instance, Problem};
use crate::request::Options;
use crate::route::{RouteTask, route_tasks};
use crate::search::context::stream_of;
use crate::search::instance_view::InstanceView;
use crate::search::methods::annealing::{AnnealingChain, PrioritisedRoutes};
use crate::search::methods::routes::{Path, microbatches_of_paths};
use crate::search::methods::sampling::random_paths;
use crate::search::methods::schedule_annealing::{Schedule, ScheduleAnnealing};
use crate::simulate::Simulator;
use crate::time::{NEVER, Rounding, Time};

/// One of so many goes on to longer runs.
const KEPT: usize = 3;
/// With no more than so many left, they go on until the end.
const LAST: usize = 2;
/// Runs side by side, always as many, so that threads change nothing but the time.
const SIDE_BY_SIDE: usize = 8;
/// Steps of an allocation's first run over complete schedules.
const FIRST_STEPS: u64 = 10_000;
/// Later runs than this one begin with other routes; those before it go on from the best plan, which says more of an
/// allocation where runs are short.
const LAST_WARM: u64 = 3;
/// Work between two looks at the clock.
const SLICE: u64 = 100_000;
/// Work of the many runs that begin the race, as a share of all its work.
const FIRST_SHARE: f64 = 0.5;
/// Streams of random numbers that no other search uses.
const STREAM: u64 = 1 << 32;

/// The winner, and all the work that was done.
pub struct Raced {
    pub problem: Problem,
    pub schedule: Schedule,
    pub work: u64,
}

/// An allocation and the annealing of its routes.
struct Runner {
    problem: Problem,
    instance: Instance,
    tasks: Vec<RouteTask>,
    /// Routes and priorities, for the first run.
    chain: AnnealingChain,
    /// Complete schedules, for all others.
    annealing: Option<ScheduleAnnealing>,
    /// No plan takes less.
    bound: Time,
    /// Index among those that entered.
    number: u64,
}

impl Runner {
    /// None where no routes were found.
    fn new(problem: Problem, bound: Time, number: u64, seed: u64) -> Option<Self> {
        let instance = Instance::new(&problem, Rounding::Up);
        let tasks = route_tasks(&instance);
        let paths = drawn(&instance, &tasks, seed, number, 0)?;
        let scale = (0..instance.node_count()).map(|n| instance.least_work(n)).max().unwrap_or(1).max(1) * 16;
        let rng = stream_of(seed, STREAM + (number << 16));
        let chain = AnnealingChain::new(InstanceView { instance: &instance, tasks: &tasks }, paths, rng, scale);
        Some(Self { problem, instance, tasks, chain, annealing: None, bound, number })
    }

    /// The first run, to its end.
    fn start(&mut self, budget: &Budget) {
        self.chain.run(u64::MAX / 2, budget);
    }

    /// Run number `level` to its end, or until this share of the time is gone or so much work is done.
    fn go_on(&mut self, level: u64, seed: u64, budget: &Budget, share: f64, most: u64) {
        let fresh = (level > LAST_WARM).then(|| drawn(&self.instance, &self.tasks, seed, self.number, level)).flatten();
        let from = fresh.map(|paths| (paths, None));
        let from = from.or_else(|| self.schedule().map(|schedule| (schedule.paths, Some(schedule.order))));
        let Some((paths, order)) = from else { return };
        if let Some(annealing) = &mut self.annealing {
            annealing.restart(&paths, order.as_deref());
        } else {
            let view = InstanceView { instance: &self.instance, tasks: &self.tasks };
            let rng = stream_of(seed, STREAM + (self.number << 16) + (1 << 15));
            self.annealing = Some(ScheduleAnnealing::new(view, paths, order.as_deref(), FIRST_STEPS, rng));
        }
        let Some(annealing) = &mut self.annealing else { return };
        let end = annealing.work().saturating_add(most);
        while !annealing.is_finished() && annealing.work() < end && !budget.is_over() && !budget.is_past(share) {
            annealing.run(SLICE.min(end - annealing.work()), budget);
        }
    }

    /// Search steps so far.
    fn work(&self) -> u64 {
        self.chain.work + self.annealing.as_ref().map_or(0, ScheduleAnnealing::work)
    }

    /// The best plan so far.
    fn schedule(&self) -> Option<Schedule> {
        let annealed = self.annealing.as_ref().and_then(|annealing| annealing.best().cloned());
        annealed.or_else(|| scheduled(&self.instance, &self.tasks, self.chain.best()?))
    }

    fn key(&self) -> (Time, Time) {
        let annealed = self.annealing.as_ref().map_or((NEVER, NEVER), ScheduleAnnealing::key);
        self.chain.best().map_or(annealed, |found| found.key.min(annealed))
    }
}

/// A plan by priorities, as the schedule that they make.
fn scheduled(instance: &Instance, tasks: &[RouteTask], found: &PrioritisedRoutes) -> Option<Schedule> {
    let mut simulator = Simulator::new(instance);
    simulator.load(&microbatches_of_paths(tasks, &found.paths));
    let outcome = simulator.run_prioritised(&found.priorities).ok()?;
    let key = (outcome.iteration, outcome.finish_sum);
    Some(Schedule { paths: found.paths.clone(), order: simulator.dispatched_order(), key })
}

/// Random routes of an allocation.
fn drawn(instance: &Instance, tasks: &[RouteTask], seed: u64, number: u64, level: u64) -> Option<Vec<Path>> {
    let mut rng = stream_of(seed, STREAM + (number << 16) + 1 + level);
    random_paths(InstanceView { instance, tasks }, &mut rng)
}

/// The best of `entered` (allocations and their bounds, the most promising first). Whoever cannot beat what takes `known`
/// stays out. First runs end at the first of the two `shares` of the time, the race at the second or after `most` steps.
pub fn race(
    entered: Vec<(Problem, Time)>,
    known: Time,
    options: Options,
    budget: &Budget,
    shares: (f64, f64),
    most: u64,
) -> Option<Raced> {
    let mut runners: Vec<Runner> = Vec::new();
    let mut waiting = (0..).zip(entered).peekable();
    let (mut work, mut best, mut level) = (0_u64, known, 0);
    let is_over = |work: u64, share: f64, most: f64| budget.is_over() || budget.is_past(share) || work as f64 >= most;
    while waiting.peek().is_some() && !is_over(work, shares.0, most as f64 * FIRST_SHARE) {
        let next: Vec<_> = waiting.by_ref().filter(|(_, (_, bound))| *bound < best).take(SIDE_BY_SIDE).collect();
        let ran: Vec<Option<Runner>> = next
            .into_par_iter()
            .map(|(number, (problem, bound))| {
                let mut runner = Runner::new(problem, bound, number, options.seed)?;
                runner.start(budget);
                Some(runner)
            })
            .collect();
        for runner in ran.into_iter().flatten() {
            work += runner.work();
            best = best.min(runner.key().0);
            runners.push(runner);
        }
    }
    while !runners.is_empty() && !is_over(work, shares.1, most as f64) {
        level += 1;
        runners.sort_by_key(|runner| (runner.key(), runner.number));
        let first = runners[0].number;
        // Nothing is left to do for those that are at their bound; the best one stays.
        runners.retain(|runner| runner.number == first || runner.bound < best);
        runners.truncate((runners.len() / KEPT).max(LAST));
        if runners.iter().all(|runner| runner.bound >= best) {
            break;
        }
        for chunk in runners.chunks_mut(SIDE_BY_SIDE) {
            if is_over(work, shares.1, most as f64) {
                break;
            }
            let before: u64 = chunk.iter().map(Runner::work).sum();
            let left = most.saturating_sub(work) / chunk.len() as u64;
            chunk.par_iter_mut().for_each(|runner| runner.go_on(level, options.seed, budget, shares.1, left));
            work += chunk.iter().map(Runner::work).sum::<u64>() - before;
            best = chunk.iter().map(|runner| runner.key().0).fold(best, Time::min);
        }
    }
    budget.add_work(work);
    let winner = runners.into_iter().filter(|r| r.key().0 < NEVER).min_by_key(|r| (r.key(), r.number))?;
    let schedule = winner.schedule()?;
    Some(Raced { problem: winner.problem, schedule, work })
}
