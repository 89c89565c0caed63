//! Rounds of attempts. Each round runs a fixed number of attempts, in parallel, and merges them in the order
//! of their numbers, so that the number of threads changes nothing but the time.

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_pcg::Pcg64;
use rayon::prelude::*;

use super::anneal::{self, FIRST_RUN, Island, first_run, plain_ranks};
use super::attempt::{
    Candidate, Tried, construct, draw_paths, draw_routes, executed, finish, found_of, paths_of, priority, ranked,
    reordered, replace, scheduled, straight_routes, travelled,
};
use super::cbs::{self, Termination};
use super::order::OrderSearch;
use super::outlook::Outlook;
use super::proof::{Prover, demand_of};
use super::router::Router;
use super::sequence::SequenceAnnealing;
use super::trace::{SearchTrace, statistics_of};
use super::{Context, FEW_TASKS, Method, Objective, Options, Solution, Start, nothing_exists};
use crate::bound::{is_tight, lower_bound, route_bound};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::problem::Instance;
use crate::report::SearchReport;
use crate::route::{Lengths, RouteTask, StageSet};
use crate::rules::{MemoryRule, Strategy};
use crate::time::{NEVER, Time};

/// How much of the time the look-ahead may take.
const SHARE_OF_TIME: f64 = 0.2;
/// Attempts of one round.
const ATTEMPTS: u64 = 6;
/// Work of an attempt, after which it ends as soon as it can.
const ROUND_WORK: u64 = 100_000;
/// Exchanges that an improving attempt makes one after the other.
const EXCHANGES: usize = 40;
/// Up to so many nodes, searches that place routes get less of the work, and proofs no more than others.
const FEW_NODES: usize = 12;
const SHARE_OF_FEW: f64 = 0.25;
/// Up to so many nodes, complete schedules are annealed from the best plan on; with more, routes decide rather than order.
const MODERATELY_MANY_NODES: usize = 32;
/// Steps of the first run in which schedules are annealed.
const FIRST_STEPS: u64 = 10_000;
/// The most routes that one exchange takes off.
const MOST_REMOVED: usize = 6;
/// Steps that the search for one way may take before any good one will do.
const PATIENCE: u64 = 40_000;
/// Draws for a first plan at once.
const FIRST_DRAWS: u64 = 500;
/// Without a limit of work or time a search that finds nothing any more ends after so many rounds.
const MOST_ROUNDS: u64 = 1_000_000;
/// Rounds without any plan after which the search says so.
const MOST_BARREN_ROUNDS: u64 = 200;

/// The best plan of the routed strategies.
pub(super) fn solve(
    instance: &Instance,
    below: &Instance,
    tasks: &[RouteTask],
    sets: Option<&[StageSet]>,
    options: Options,
    budget: &Budget,
    start: Option<&Start>,
) -> Result<Solution> {
    let lengths = Lengths::new(tasks.len(), instance.present.len(), instance.skip_ratio);
    let objective = if instance.rules.tc2 { Objective::Simulated } else { Objective::Travel };
    // A first plan before anything that takes time at scale.
    let blank = Outlook::blank(instance, lengths.long());
    let unprepared = Context { instance, tasks, outlook: &blank, budget, objective, seed: options.seed, sets };
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
    let blank_again = || Outlook::blank(instance, lengths.long());
    let prepared = Outlook::new(instance, lengths.long(), budget, SHARE_OF_TIME);
    let outlook = unless_stopped(prepared, first.as_ref())?.unwrap_or_else(blank_again);
    let context = Context { outlook: &outlook, ..unprepared };
    let travel = (objective == Objective::Simulated).then_some(Context { objective: Objective::Travel, ..context });
    let prepared = Outlook::new(below, lengths.long(), budget, 2.0 * SHARE_OF_TIME);
    let beneath = unless_stopped(prepared, first.as_ref())?.unwrap_or_else(blank_again);
    let bound = unless_stopped(lower_bound(below, tasks, &beneath, budget), first.as_ref())?.unwrap_or(0).max(known);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| Error::NotFound(format!("threads could not be started: {error}")))?;
    let search = Search { context, travel, below, beneath: &beneath, options, bound };
    let mut state = State::new(bound, trace);
    state.work = work;
    let mut found = pool.install(|| search.run(state, first))?;
    let batches = found.best.board.batches();
    if options.strategy == Strategy::SkippipeNoTc2 {
        found.bound = route_bound(below, &batches);
    }
    Ok(Solution { batches, order: found.best.order, bound: found.bound, report: found.report })
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
    let mut router = Router::new(context.instance, context.outlook, PATIENCE);
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

struct Search<'a> {
    context: Context<'a>,
    /// The same for travel time alone, a search beside the main one: it is many times faster, and where nodes
    /// are idle most of the time its routes are hard to beat. What it finds is compared as simulated.
    travel: Option<Context<'a>>,
    /// With durations rounded down.
    below: &'a Instance,
    beneath: &'a Outlook,
    options: Options,
    /// What is known before the search.
    bound: Time,
}

struct Found<'a> {
    best: Candidate<'a>,
    bound: Time,
    report: SearchReport,
}

/// What an attempt gives back.
struct Attempt<'a> {
    tried: Tried<'a>,
    work: u64,
    /// Its cost is one of travel alone.
    by_travel: bool,
    /// No plan takes less.
    bound: Time,
    /// Proved: there is no plan.
    is_impossible: bool,
}

impl Attempt<'_> {
    fn failed(work: u64) -> Self {
        Self { tried: Err(None), work, by_travel: false, bound: 0, is_impossible: false }
    }
}

/// The search as it stands after some rounds.
struct State<'a> {
    best: Option<Candidate<'a>>,
    /// The best by travel alone.
    fastest: Option<Candidate<'a>>,
    bound: Time,
    work: u64,
    rounds: u64,
    /// Why the dispatch rule ran no routes so far.
    locked: Option<Error>,
    trace: SearchTrace<'a>,
    statistics: cbs::Statistics,
}

impl<'a> State<'a> {
    fn new(bound: Time, trace: SearchTrace<'a>) -> Self {
        Self {
            best: None,
            fastest: None,
            bound,
            work: 0,
            rounds: 0,
            locked: None,
            trace,
            statistics: cbs::Statistics::default(),
        }
    }

    fn note(&mut self) {
        self.trace.note(self.work, self.best.as_ref().map(|best| best.outcome.iteration), self.bound);
    }
}

/// A search, and the work that it has taken as a part of its share.
struct Lane<'a> {
    slot: Slot<'a>,
    work: u64,
    share: f64,
}

/// One of the searches that run beside each other and learn of what the others found after every round.
enum Slot<'a> {
    /// Routes by travel time alone.
    Travel,
    /// Routes of the best plan are taken off and placed again.
    Exchange,
    /// All routes are placed anew.
    Afresh,
    /// Small changes of routes and order.
    Anneal(Option<Box<Island>>),
    /// Small changes of complete schedules.
    Sequence(Option<Box<SequenceAnnealing>>),
    /// The order of the best plan, its routes as they are.
    Order(Option<Box<OrderSearch>>),
    /// Lower bounds.
    Prove(Box<Prover<'a>>),
}

impl<'a> Search<'a> {
    fn run(&self, mut state: State<'a>, first: Option<Candidate<'a>>) -> Result<Found<'a>> {
        let budget = self.context.budget;
        let mut router = Router::new(self.context.instance, self.context.outlook, PATIENCE);
        if let Some(first) = first {
            self.take(&mut state, first, &mut router);
        }
        if self.options.method == Method::Cbs && self.context.objective == Objective::Simulated {
            self.prove(&mut state, &mut router)?;
        } else {
            self.rounds(&mut state, &mut router)?;
        }
        let State { best, bound, work, rounds, locked, mut trace, statistics, .. } = state;
        let Some(best) = best else {
            budget.check_cancelled()?;
            let barren = || format!("{rounds} rounds of {ATTEMPTS} attempts placed no complete set of routes");
            return Err(locked.unwrap_or_else(|| Error::NotFound(barren())));
        };
        trace.record(work, Some(best.outcome.iteration), bound);
        let report = SearchReport {
            work: Some(work),
            rounds: Some(rounds),
            events: trace.into_events(),
            statistics: statistics_of(&statistics, rounds, work),
            ..SearchReport::default()
        };
        Ok(Found { best, bound, report })
    }

    /// Conflict-based search over the whole instance and nothing else, below a first plan.
    fn prove(&self, state: &mut State<'a>, router: &mut Router<'a>) -> Result<()> {
        let budget = self.context.budget;
        // Routes placed one after the other are a better start than random ones.
        let placed = self.attempt(&self.context, None, 0, true);
        state.work += placed.work;
        if let Ok(candidate) = placed.tried {
            self.take(state, candidate, router);
        }
        let Some(demand) = demand_of(self.below, self.context.tasks.len(), self.context.tasks.len()) else {
            return Ok(());
        };
        let epilogue = self.below.epilogue;
        let limit = state.best.as_ref().map_or(NEVER, |best| best.outcome.iteration - epilogue);
        let answer = cbs::solve(
            &cbs::Subproblem {
                instance: self.below,
                tasks: self.context.tasks,
                demand: &demand,
                limit,
                suboptimality: self.options.suboptimality,
                work_limit: budget.work_limit.unwrap_or(u64::MAX),
            },
            self.beneath,
            budget,
        );
        if answer.termination == Termination::Exhausted && answer.best.is_none() && state.best.is_none() {
            return nothing_exists();
        }
        state.work += answer.statistics.labels + answer.statistics.nodes;
        state.bound = state.bound.max(answer.bound.min(limit).saturating_add(epilogue));
        state.statistics = answer.statistics;
        if let Some(candidate) = answer.best.and_then(|found| executed(&self.context, found, &mut state.work).ok()) {
            self.take(state, candidate, router);
        }
        Ok(())
    }

    /// Rounds of attempts until the proof or the first limit.
    fn rounds(&self, state: &mut State<'a>, router: &mut Router<'a>) -> Result<()> {
        let budget = self.context.budget;
        let mut lanes = self.lanes();
        while state.rounds < MOST_ROUNDS {
            // The first draws may use up the work and find nothing; one round is always worth it.
            let worked = budget.work_limit.is_some_and(|limit| state.work >= limit)
                && (state.rounds > 0 || state.best.is_some());
            let barren = state.best.is_none() && state.rounds >= MOST_BARREN_ROUNDS;
            if budget.is_over() || worked || barren || self.is_proved(state) {
                break;
            }
            let rounds = state.rounds;
            let (best, fastest) = (state.best.as_ref(), state.fastest.as_ref());
            // What has taken more than its share sits out until the others have caught up.
            let attempts: Vec<Attempt<'a>> = lanes
                .par_iter_mut()
                .enumerate()
                .filter(|(_, lane)| best.is_none() || lane.work <= rounds * ROUND_WORK)
                .map(|(i, lane)| {
                    let attempt = self.advance(&mut lane.slot, best, fastest, rounds * ATTEMPTS + i as u64);
                    lane.work += (attempt.work as f64 / lane.share) as u64;
                    attempt
                })
                .collect();
            state.rounds += 1;
            for attempt in attempts {
                self.merge(state, attempt, router)?;
            }
        }
        state.statistics = lanes
            .into_iter()
            .find_map(|lane| if let Slot::Prove(prover) = lane.slot { Some(prover.into_statistics()) } else { None })
            .unwrap_or_default();
        Ok(())
    }

    fn merge(&self, state: &mut State<'a>, attempt: Attempt<'a>, router: &mut Router<'a>) -> Result<()> {
        state.work += attempt.work;
        if attempt.is_impossible && state.best.is_none() {
            return nothing_exists();
        }
        if attempt.bound > state.bound {
            state.bound = attempt.bound;
            state.note();
        }
        match attempt.tried {
            Ok(candidate) if attempt.by_travel => {
                if state.fastest.as_ref().is_none_or(|f| candidate.cost < f.cost) {
                    let board = candidate.board.clone();
                    state.fastest = Some(candidate);
                    if let Ok(candidate) = finish(&self.context, board, &mut state.work) {
                        self.take(state, candidate, router);
                    }
                }
            }
            Ok(candidate) => self.take(state, candidate, router),
            Err(lockup) => {
                if state.locked.is_none() {
                    state.locked = lockup;
                }
            }
        }
        Ok(())
    }

    /// Keeps a candidate that is better than the best.
    fn take(&self, state: &mut State<'a>, candidate: Candidate<'a>, router: &mut Router<'a>) {
        if state.best.as_ref().is_some_and(|best| candidate.cost >= best.cost) {
            return;
        }
        if let Some(travel) = &self.travel
            && let Ok(own) = travelled(travel, router, &paths_of(&candidate.board))
            && state.fastest.as_ref().is_none_or(|f| own.cost < f.cost)
        {
            state.fastest = Some(own);
        }
        let better = state.best.as_ref().is_none_or(|best| candidate.outcome.iteration < best.outcome.iteration);
        state.best = Some(candidate);
        if better {
            state.note();
        }
    }

    /// What the attempts of each round are; always the same number, so that threads change nothing but the time.
    fn lanes(&self) -> Vec<Lane<'a>> {
        let lane = |slot: Slot<'a>, work: u64| Lane { slot, work, share: 1.0 };
        if self.travel.is_none() {
            return vec![
                lane(Slot::Exchange, 0),
                lane(Slot::Afresh, 0),
                lane(Slot::Exchange, 0),
                lane(Slot::Exchange, 0),
            ];
        }
        let prover = Prover::new(self.below, self.beneath, self.context.tasks, self.bound);
        // Those that improve on what is there join when the first run of the annealing has had its time.
        let later = first_run(self.context.tasks, self.context.instance);
        // Where nodes are few and hardly ever idle, small changes of routes and order find what placing routes does not.
        let nodes = self.context.instance.node_count();
        let has_many_tasks = later > FIRST_RUN * FEW_TASKS as u64;
        let is_small = nodes <= FEW_NODES && has_many_tasks;
        let (proving, placing) = if is_small { (1.0, SHARE_OF_FEW) } else { (2.0, 1.0) };
        let annealing = |most_nodes: usize| match has_many_tasks && nodes <= most_nodes {
            true => Slot::Sequence(None),
            false => Slot::Anneal(None),
        };
        vec![
            lane(annealing(FEW_NODES), 0),
            Lane { share: proving, ..lane(Slot::Prove(Box::new(prover)), later / 2) },
            Lane { share: placing, ..lane(Slot::Travel, 2 * later) },
            Lane { share: placing, ..lane(Slot::Exchange, 2 * later) },
            lane(Slot::Order(None), 2 * later),
            lane(annealing(MODERATELY_MANY_NODES), 4 * later),
        ]
    }

    fn advance(
        &self,
        slot: &mut Slot<'a>,
        best: Option<&Candidate<'a>>,
        fastest: Option<&Candidate<'a>>,
        number: u64,
    ) -> Attempt<'a> {
        match (slot, &self.travel) {
            (Slot::Travel, Some(travel)) => Attempt { by_travel: true, ..self.attempt(travel, fastest, number, false) },
            (Slot::Anneal(island), _) => self.anneal(island, best, number),
            (Slot::Sequence(annealing), _) => self.anneal_sequence(annealing, best, number),
            (Slot::Order(search), _) => self.reorder(search, best, number),
            (Slot::Prove(prover), _) => self.advance_proof(prover, best),
            (Slot::Afresh, _) => self.attempt(&self.context, best, number, true),
            _ => self.attempt(&self.context, best, number, best.is_none()),
        }
    }

    /// Goes on with the order of the best plan, from the beginning where that is another plan by now.
    fn reorder(&self, slot: &mut Option<Box<OrderSearch>>, best: Option<&Candidate<'a>>, number: u64) -> Attempt<'a> {
        let context = &self.context;
        let Some(best) = best else { return Attempt::failed(ROUND_WORK) };
        if slot.as_ref().is_none_or(|search| search.start() != best.cost && search.key() != best.cost) {
            let batches = best.board.batches();
            let search =
                OrderSearch::new(context.instance, &batches, &best.order, &mut context.rng(number), self.bound);
            *slot = search.map(Box::new);
        }
        let Some(search) = slot.as_mut().filter(|search| !search.is_over()) else { return Attempt::failed(0) };
        let before = search.work();
        search.run(ROUND_WORK, context.budget);
        let mut work = search.work() - before;
        let better = if search.key() < best.cost { search.best() } else { None };
        let tried = better.map_or(Err(None), |found| reordered(context, best, found.order, &mut work));
        context.budget.add_work(work);
        Attempt { tried, ..Attempt::failed(work) }
    }

    fn advance_proof(&self, prover: &mut Prover<'a>, best: Option<&Candidate<'a>>) -> Attempt<'a> {
        let upper = best.map_or(NEVER, |best| best.outcome.iteration);
        if prover.is_over(upper) {
            return Attempt { bound: prover.bound(), ..Attempt::failed(0) };
        }
        let step = prover.advance(upper, self.context.budget);
        let mut work = step.work;
        let tried = step.found.map_or(Err(None), |found| executed(&self.context, found, &mut work));
        Attempt { tried, work, by_travel: false, bound: prover.bound(), is_impossible: step.is_impossible }
    }

    /// Lets an island go on; where it has cooled down it begins anew.
    fn anneal(&self, slot: &mut Option<Box<Island>>, best: Option<&Candidate<'a>>, number: u64) -> Attempt<'a> {
        let context = &self.context;
        // The first island begins every run with other routes, the other one stays with the best plan.
        let stays = !number.is_multiple_of(ATTEMPTS);
        if slot.is_none() {
            let mut rng = context.rng(number);
            let mut drawn = || (0..FIRST_DRAWS).find_map(|_| draw_paths(context, &mut rng));
            let paths = match best {
                Some(best) if stays => Some(paths_of(&best.board)),
                _ => drawn().or(best.map(|best| paths_of(&best.board))),
            };
            let Some(paths) = paths else { return Attempt::failed(ROUND_WORK) };
            let island = Island::new(context.ground(), paths, context.rng(!number), self.bound);
            *slot = Some(Box::new(island));
            if let (Some(island), Some(best), true) = (slot.as_mut(), best, stays) {
                island.restart(&found_of(best), true);
            }
        }
        let Some(island) = slot else { return Attempt::failed(ROUND_WORK) };
        let before = island.work;
        if island.is_cold() {
            let fresh = if stays { None } else { draw_paths(context, &mut context.rng(number)) };
            match (fresh, best) {
                (Some(paths), _) => {
                    let ranks = plain_ranks(context.tasks.iter().map(|t| t.waves).sum());
                    island.restart(&anneal::Found { paths, ranks, key: (NEVER, NEVER), settled: None }, false);
                }
                (None, Some(best)) => island.restart(&found_of(best), true),
                (None, None) => {}
            }
        }
        island.run(context.budget.round_work(ROUND_WORK), context.budget);
        let mut work = island.work - before;
        let better = island.best().filter(|found| best.is_none_or(|b| found.key < b.cost));
        let tried = better.map_or(Err(None), |found| ranked(context, found, &mut work));
        context.budget.add_work(work);
        Attempt { tried, ..Attempt::failed(work) }
    }

    /// Lets the annealing of schedules go on; the first one begins every run with other routes, the other one goes on from
    /// the best plan.
    fn anneal_sequence(
        &self,
        slot: &mut Option<Box<SequenceAnnealing>>,
        best: Option<&Candidate<'a>>,
        number: u64,
    ) -> Attempt<'a> {
        let context = &self.context;
        let stays = !number.is_multiple_of(ATTEMPTS);
        let before = slot.as_ref().map_or(0, |annealing| annealing.work());
        if slot.as_ref().is_none_or(|annealing| annealing.is_finished()) {
            let mut rng = context.rng(number);
            let mut fresh = || (0..FIRST_DRAWS).find_map(|_| draw_paths(context, &mut rng));
            let from = best.map(|best| (paths_of(&best.board), Some(best.order.as_slice())));
            let from = if stays { from } else { fresh().map(|paths| (paths, None)).or(from) };
            let Some((paths, order)) = from else { return Attempt::failed(ROUND_WORK) };
            if let Some(annealing) = slot {
                annealing.restart(&paths, order);
            } else {
                let annealing =
                    SequenceAnnealing::new(context.ground(), paths, order, FIRST_STEPS, context.rng(!number));
                *slot = Some(Box::new(annealing));
            }
        }
        let Some(annealing) = slot else { return Attempt::failed(ROUND_WORK) };
        annealing.run(context.budget.round_work(ROUND_WORK), context.budget);
        let mut work = annealing.work() - before;
        let is_better = best.is_none_or(|best| annealing.key() < best.cost);
        let better = if is_better { annealing.best() } else { None };
        let tried = better.map_or(Err(None), |schedule| scheduled(context, schedule, &mut work));
        context.budget.add_work(work);
        Attempt { tried, ..Attempt::failed(work) }
    }

    /// Nothing is left to gain: durations are rounded up for plans and down for bounds, each by less than a
    /// nanosecond, and no path has more tasks and transfers than there are.
    fn is_proved(&self, state: &State<'_>) -> bool {
        let tasks = |best: &Candidate<'_>| best.order.iter().map(Vec::len).sum::<usize>() as Time;
        let rounding = |best: &Candidate<'_>| (4 * tasks(best)).min(state.bound / 10_000_000);
        let within = |best: &Candidate<'_>| best.outcome.iteration - state.bound <= rounding(best);
        self.context.objective == Objective::Simulated && state.best.as_ref().is_some_and(within)
    }

    fn attempt(
        &self,
        context: &Context<'a>,
        incumbent: Option<&Candidate<'a>>,
        number: u64,
        afresh: bool,
    ) -> Attempt<'a> {
        let mut router = Router::new(context.instance, context.outlook, PATIENCE);
        let mut rng = context.rng(number);
        let tried = match incumbent {
            Some(incumbent) if !afresh => self.improve(context, incumbent, &mut router, &mut rng).ok_or(None),
            _ => {
                let targets = context.targets(&mut rng);
                // The very first go by hardness alone; the others wander further and further from it.
                let shuffle = if number < 2 { 0.0 } else { rng.random::<f64>() };
                let order = priority(context, &targets, &mut rng, shuffle);
                construct(context, &mut router, &order, &targets)
            }
        };
        context.budget.add_work(router.work);
        Attempt { tried, ..Attempt::failed(router.work) }
    }

    /// Takes a few routes off and places them again, keeps what is no worse, and goes on.
    fn improve(
        &self,
        context: &Context<'a>,
        incumbent: &Candidate<'a>,
        router: &mut Router<'_>,
        rng: &mut Pcg64,
    ) -> Option<Candidate<'a>> {
        let mut current = incumbent.clone();
        for _ in 0..EXCHANGES {
            if context.budget.is_over()
                || router.work >= ROUND_WORK
                || (context.objective == Objective::Simulated && is_tight(current.outcome.iteration, self.bound))
            {
                break;
            }
            let routes = self.choose(&current, rng);
            let limit = match context.objective {
                Objective::Simulated => current.cost.0 - context.instance.epilogue,
                Objective::Travel => current.cost.0,
            };
            if let Ok(next) = replace(context, router, &current, &routes, limit)
                && next.cost <= current.cost
            {
                current = next;
            }
        }
        (current.cost < incumbent.cost).then_some(current)
    }

    /// Routes to take off: often the one that is home last, and others that have something in common.
    fn choose(&self, current: &Candidate<'_>, rng: &mut Pcg64) -> Vec<usize> {
        let board = &current.board;
        let count = self.context.tasks.len();
        let wanted = rng.random_range(1..=MOST_REMOVED).min(count);
        let home = |route: usize| board.ways(route).iter().map(|w| w.home).max().unwrap_or(0);
        let seed = if rng.random_bool(0.5) {
            let last = (0..count).map(home).max().unwrap_or(0);
            let latest: Vec<usize> = (0..count).filter(|r| home(*r) == last).collect();
            latest.choose(rng).copied().unwrap_or(0)
        } else {
            rng.random_range(0..count)
        };
        let mut others: Vec<usize> = (0..count).filter(|r| *r != seed).collect();
        others.shuffle(rng);
        if rng.random_bool(0.6) {
            let shares = |route: usize| {
                let nodes = board.ways(seed).first().map_or(&[][..], |w| &w.nodes);
                let own = board.ways(route).first().map_or(&[][..], |w| &w.nodes);
                own.iter().filter(|n| nodes.contains(n)).count()
            };
            others.sort_by_key(|r| std::cmp::Reverse(shares(*r)));
            // Not always the same neighbours.
            let near = (2 * wanted).min(others.len());
            others[..near].shuffle(rng);
        }
        let mut routes: Vec<usize> = [seed].into_iter().chain(others).take(wanted).collect();
        routes.shuffle(rng);
        routes
    }
}
