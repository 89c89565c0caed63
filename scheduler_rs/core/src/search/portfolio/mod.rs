//! Rounds of attempts. Each round runs a fixed number of attempts, in parallel, and merges them in the order
//! of their numbers, so that the number of threads changes nothing but the time.

mod workers;

use rayon::prelude::*;

use self::workers::{ATTEMPTS, Attempt, FIRST_DRAWS, PATIENCE, ROUND_WORK, WorkerMethod, Workers};
use crate::bound::lookahead::Lookahead;
use crate::bound::{lower_bound, route_bound};
use crate::budget::Budget;
use crate::error::{Error, Result, invalid};
use crate::part::Part;
use crate::problem::Instance;
use crate::report::SearchReport;
use crate::request::{Method, Options};
use crate::route::{Lengths, RouteTask, StageSet};
use crate::rules::{MemoryRule, Strategy};
use crate::search::candidate::{Candidate, Start, executed};
use crate::search::context::{Context, Objective, Solution};
use crate::search::feasibility::nothing_exists;
use crate::search::methods::cbs;
use crate::search::methods::cbs::{MOST_CLASSES, Termination};
use crate::search::methods::prioritised::construct::{draw_routes, straight_routes};
use crate::search::methods::prioritised::router::Router;
use crate::search::trace::{SearchTrace, statistics_of};
use crate::time::{NEVER, Time};

/// How much of the time the look-ahead may take.
const SHARE_OF_TIME: f64 = 0.2;
/// Without a limit of work or time a search that finds nothing any more ends after so many rounds.
const MOST_ROUNDS: u64 = 1_000_000;
/// Rounds without any plan after which the search gives up.
const MOST_ROUNDS_WITHOUT_PLAN: u64 = 200;

/// The best plan of the routed strategies.
pub fn solve(
    instance: &Instance,
    below: &Instance,
    tasks: &[RouteTask],
    sets: Option<&[StageSet]>,
    options: Options,
    budget: &Budget,
    start: Option<&Start>,
) -> Result<Solution> {
    let lengths = Lengths::of(instance, tasks.len());
    let objective = if instance.rules.tc2 { Objective::Simulated } else { Objective::Travel };
    // A first plan before anything that takes time at scale.
    let blank = Lookahead::blank(instance, lengths.long());
    let unprepared = Context { instance, tasks, lookahead: &blank, budget, objective, seed: options.seed, sets };
    let mut trace = SearchTrace::new(budget);
    let (first, work) = match start {
        Some(start) => {
            let mut work = start.work;
            (start.known.timed(&unprepared, &mut work).ok(), work)
        }
        None => first(&unprepared),
    };
    let known = start.map_or(0, |start| start.bound);
    trace.note(work, first.as_ref().map(|first| first.outcome.iteration), known);
    let blank_again = || Lookahead::blank(instance, lengths.long());
    let prepared = Lookahead::new(instance, lengths.long(), budget, SHARE_OF_TIME);
    let lookahead = unless_stopped(prepared, first.as_ref())?.unwrap_or_else(blank_again);
    let context = Context { lookahead: &lookahead, ..unprepared };
    let prepared = Lookahead::new(below, lengths.long(), budget, 2.0 * SHARE_OF_TIME);
    let beneath = unless_stopped(prepared, first.as_ref())?.unwrap_or_else(blank_again);
    let bound = unless_stopped(lower_bound(below, tasks, &beneath, budget), first.as_ref())?.unwrap_or(0).max(known);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| Error::NotFound(format!("threads could not be started: {error}")))?;
    let workers = Workers { context, below, beneath: &beneath, bound, options };
    let search = Portfolio { workers, options };
    let mut state = State::new(bound, trace);
    state.work = work;
    let mut found = pool.install(|| search.run(state, first))?;
    let microbatches = found.best.schedule.microbatches();
    if options.strategy == Strategy::SkippipeNoTc2 {
        found.bound = route_bound(below, &microbatches);
    }
    Ok(Solution { microbatches, order: found.best.order, bound: found.bound, report: found.report })
}

/// What was prepared; none where somebody stopped it and there is a plan already, which is then the answer.
fn unless_stopped<T>(prepared: Result<T>, first: Option<&Candidate<'_>>) -> Result<Option<T>> {
    match prepared {
        Err(Error::Cancelled) if first.is_some() => Ok(None),
        prepared => prepared.map(Some),
    }
}

/// Random routes, and for `full-routed` those of `full`: a plan at once, whatever the size. And the work of it.
fn first<'a>(context: &Context<'a>) -> (Option<Candidate<'a>>, u64) {
    let mut router = Router::new(context.instance, context.lookahead, PATIENCE);
    let mut rng = context.rng(u64::MAX);
    let drawn = (0..FIRST_DRAWS)
        .take_while(|i| *i == 0 || !context.budget.is_over())
        .find_map(|_| draw_routes(context, &mut router, &mut rng).ok());
    let rules = &context.instance.rules;
    let comparable = rules.waves == 1 && rules.max_stage_jump.is_none() && rules.tc1 != MemoryRule::Routes;
    if context.objective == Objective::Travel || context.instance.skip_ratio > 0.0 || !comparable {
        return (drawn, router.work);
    }
    let straight = straight_routes(context, &mut router, &mut rng).ok();
    (drawn.into_iter().chain(straight).min_by_key(|candidate| candidate.cost), router.work)
}

/// Rounds of the workers, and what is known after each.
struct Portfolio<'a> {
    workers: Workers<'a>,
    options: Options,
}

struct Found<'a> {
    best: Candidate<'a>,
    bound: Time,
    report: SearchReport,
}

/// The search as it stands after some rounds.
struct State<'a> {
    best: Option<Candidate<'a>>,
    bound: Time,
    work: u64,
    rounds: u64,
    /// Why the dispatch rule ran no routes so far.
    deadlock: Option<Error>,
    trace: SearchTrace<'a>,
    statistics: cbs::Statistics,
    /// Work of each method.
    spent: Vec<(Part, u64)>,
}

impl<'a> State<'a> {
    fn new(bound: Time, trace: SearchTrace<'a>) -> Self {
        Self {
            best: None,
            bound,
            work: 0,
            rounds: 0,
            deadlock: None,
            trace,
            statistics: cbs::Statistics::default(),
            spent: Vec::new(),
        }
    }

    fn note(&mut self) {
        self.trace.note(self.work, self.best.as_ref().map(|best| best.outcome.iteration), self.bound);
    }

    fn merge(&mut self, attempt: Attempt<'a>) -> Result<()> {
        self.work += attempt.work;
        if attempt.is_impossible && self.best.is_none() {
            return nothing_exists();
        }
        if attempt.bound > self.bound {
            self.bound = attempt.bound;
            self.note();
        }
        match attempt.tried {
            Ok(candidate) => self.take(candidate),
            Err(deadlock) => {
                if self.deadlock.is_none() {
                    self.deadlock = deadlock;
                }
            }
        }
        Ok(())
    }

    /// Keeps a candidate that is better than the best.
    fn take(&mut self, candidate: Candidate<'a>) {
        if self.best.as_ref().is_some_and(|best| candidate.cost >= best.cost) {
            return;
        }
        let better = self.best.as_ref().is_none_or(|best| candidate.outcome.iteration < best.outcome.iteration);
        self.best = Some(candidate);
        if better {
            self.note();
        }
    }
}

impl<'a> Portfolio<'a> {
    fn run(&self, mut state: State<'a>, first: Option<Candidate<'a>>) -> Result<Found<'a>> {
        let budget = self.workers.context.budget;
        if let Some(first) = first {
            state.take(first);
        }
        if self.options.method == Method::Cbs && self.workers.context.objective == Objective::Simulated {
            self.prove(&mut state)?;
        } else {
            self.rounds(&mut state)?;
        }
        let State { best, bound, work, rounds, deadlock, mut trace, statistics, spent, .. } = state;
        let Some(best) = best else {
            budget.check_cancelled()?;
            let fruitless = || format!("{rounds} rounds of {ATTEMPTS} attempts placed no complete set of routes");
            return Err(deadlock.unwrap_or_else(|| Error::NotFound(fruitless())));
        };
        trace.record(work, Some(best.outcome.iteration), bound);
        let report = SearchReport {
            work: Some(work),
            rounds: Some(rounds),
            events: trace.into_events(),
            statistics: statistics_of(&statistics, rounds, work, &spent),
            ..SearchReport::default()
        };
        Ok(Found { best, bound, report })
    }

    /// Conflict-based search over the whole instance and nothing else, below a first plan.
    fn prove(&self, state: &mut State<'a>) -> Result<()> {
        let budget = self.workers.context.budget;
        let count = self.workers.context.tasks.len();
        let Some(demand) = cbs::VisitDemand::of(self.workers.below, count, count) else {
            return invalid(
                "planner.method",
                "cbs",
                format!(
                    "auto, as conflict-based search takes no profile without CC1 and at most {MOST_CLASSES} classes"
                ),
            );
        };
        // Routes placed one after the other are a better start than random ones.
        let placed = self.workers.attempt(None, 0);
        state.work += placed.work;
        if let Ok(candidate) = placed.tried {
            state.take(candidate);
        }
        let epilogue = self.workers.below.epilogue;
        let limit = state.best.as_ref().map_or(NEVER, |best| best.outcome.iteration - epilogue);
        let answer = cbs::solve(
            &cbs::Subproblem {
                instance: self.workers.below,
                tasks: self.workers.context.tasks,
                demand: &demand,
                limit,
                suboptimality: self.options.suboptimality,
                work_limit: budget.work_limit.unwrap_or(u64::MAX),
            },
            self.workers.beneath,
            budget,
        );
        if answer.termination == Termination::Exhausted && answer.best.is_none() && state.best.is_none() {
            return nothing_exists();
        }
        state.work += answer.statistics.path_evaluations + answer.statistics.nodes;
        state.bound = state.bound.max(answer.bound.min(limit).saturating_add(epilogue));
        state.statistics = answer.statistics;
        if let Some(candidate) =
            answer.best.and_then(|found| executed(&self.workers.context, found, &mut state.work).ok())
        {
            state.take(candidate);
        }
        Ok(())
    }

    /// Rounds of attempts until the proof or the first limit.
    fn rounds(&self, state: &mut State<'a>) -> Result<()> {
        let budget = self.workers.context.budget;
        let mut workers = self.workers.start();
        while state.rounds < MOST_ROUNDS {
            // The first draws may use up the work and find nothing; one round is always worth it.
            let worked = budget.work_limit.is_some_and(|limit| state.work >= limit)
                && (state.rounds > 0 || state.best.is_some());
            let is_fruitless = state.best.is_none() && state.rounds >= MOST_ROUNDS_WITHOUT_PLAN;
            if budget.is_over() || worked || is_fruitless || self.is_proved(state) {
                break;
            }
            let rounds = state.rounds;
            let best = state.best.as_ref();
            // What has taken more than its share sits out until the others have caught up.
            let attempts: Vec<Attempt<'a>> = workers
                .par_iter_mut()
                .enumerate()
                .filter(|(_, worker)| self.options.has(worker.part))
                .filter(|(_, worker)| best.is_none() || worker.work <= rounds * ROUND_WORK)
                .map(|(i, worker)| {
                    let attempt = self.workers.advance(&mut worker.method, best, rounds * ATTEMPTS + i as u64);
                    worker.work += (attempt.work as f64 / worker.share) as u64;
                    worker.spent += attempt.work;
                    attempt
                })
                .collect();
            state.rounds += 1;
            for attempt in attempts {
                state.merge(attempt)?;
            }
        }
        state.spent = workers.iter().map(|worker| (worker.part, worker.spent)).collect();
        state.statistics = workers
            .into_iter()
            .find_map(|worker| {
                if let WorkerMethod::Prove(prover) = worker.method { Some(prover.into_statistics()) } else { None }
            })
            .unwrap_or_default();
        Ok(())
    }

    /// Nothing is left to gain: durations are rounded up for plans and down for bounds, each by less than a
    /// nanosecond, and no path has more tasks and transfers than there are.
    fn is_proved(&self, state: &State<'_>) -> bool {
        let tasks = |best: &Candidate<'_>| best.order.iter().map(Vec::len).sum::<usize>() as Time;
        let rounding = |best: &Candidate<'_>| (4 * tasks(best)).min(state.bound / 10_000_000);
        let within = |best: &Candidate<'_>| best.outcome.iteration - state.bound <= rounding(best);
        self.workers.context.objective == Objective::Simulated && state.best.as_ref().is_some_and(within)
    }
}
