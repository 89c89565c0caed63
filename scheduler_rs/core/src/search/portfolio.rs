//! Rounds of attempts. Each round runs a fixed number of attempts, in parallel, and merges them in the order
//! of their numbers, so that the number of threads changes nothing but the time.

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_pcg::Pcg64;
use rayon::prelude::*;
use serde_json::{Map, json};

use super::anneal::{self, Island, plain_ranks};
use super::attempt::{
    Candidate, Tried, construct, draw_paths, draw_routes, finish, found_of, paths_of, priority, ranked, replace,
    straight_routes, travelled,
};
use super::outlook::Outlook;
use super::router::Router;
use super::{Context, Objective, Options, Solution};
use crate::bound::{is_tight, lower_bound, route_bound};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::problem::Instance;
use crate::route::{Lengths, RouteTask, StageSet};
use crate::rules::{MemoryRule, Strategy};
use crate::time::{NEVER, Time, seconds};

/// How much of the time the look-ahead may take.
const SHARE_OF_TIME: f64 = 0.2;
/// Attempts of one round.
const ATTEMPTS: u64 = 4;
/// Work of an attempt, after which it ends as soon as it can.
const ROUND_WORK: u64 = 100_000;
/// Exchanges that an improving attempt makes one after the other.
const EXCHANGES: usize = 40;
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
) -> Result<Solution> {
    let lengths = Lengths::new(tasks.len(), instance.present.len(), instance.skip_ratio);
    let outlook = Outlook::new(instance, lengths.long(), budget, SHARE_OF_TIME)?;
    let objective = if instance.rules.tc2 { Objective::Simulated } else { Objective::Travel };
    let context = Context { instance, tasks, outlook: &outlook, budget, objective, seed: options.seed, sets };
    let travel = (objective == Objective::Simulated).then_some(Context { objective: Objective::Travel, ..context });
    let bound = lower_bound(below, tasks, budget)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| Error::NotFound(format!("threads could not be started: {error}")))?;
    let search = Search { context, travel, bound };
    let found = pool.install(|| search.run())?;
    let batches = found.best.board.batches();
    let by_routes = options.strategy == Strategy::SkippipeNoTc2;
    let bound = if by_routes { route_bound(below, &batches) } else { bound };
    Ok(Solution { batches, order: found.best.order, bound, statistics: found.statistics })
}

struct Search<'a> {
    context: Context<'a>,
    /// The same for travel time alone, a search beside the main one: it is many times faster, and where nodes
    /// are idle most of the time its routes are hard to beat. What it finds is compared as simulated.
    travel: Option<Context<'a>>,
    bound: Time,
}

struct Found<'a> {
    best: Candidate<'a>,
    statistics: Map<String, serde_json::Value>,
}

/// What an attempt gives back.
struct Attempt<'a> {
    tried: Tried<'a>,
    work: u64,
    /// Its cost is one of travel alone.
    by_travel: bool,
}

/// A search and the work that it has taken.
struct Lane<'a> {
    slot: Slot<'a>,
    work: u64,
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
    Anneal(Option<Island<'a>>),
}

impl<'a> Search<'a> {
    fn run(&self) -> Result<Found<'a>> {
        let budget = self.context.budget;
        let mut router = Router::new(self.context.instance, self.context.outlook, PATIENCE);
        let mut best = self.first(&mut router);
        let mut fastest: Option<Candidate<'a>> = None; // by travel alone
        let mut work = router.work;
        let mut rounds = 0_u64;
        let mut locked = None;
        let mut events = Vec::new();
        let mut record = |best: &Candidate<'a>, work: u64| {
            let iteration_s = seconds(best.outcome.iteration);
            events.push(json!([budget.elapsed_s(), iteration_s, work]));
            budget.report(iteration_s, seconds(self.bound));
        };
        if let Some(first) = &best {
            record(first, work);
            fastest =
                self.travel.as_ref().and_then(|travel| travelled(travel, &mut router, &paths_of(&first.board)).ok());
        }
        let mut lanes = self.lanes();
        while rounds < MOST_ROUNDS {
            budget.check_cancelled()?;
            // The first draws may use up the work and find nothing; one round is always worth it.
            let worked = budget.work_limit.is_some_and(|limit| work >= limit) && (rounds > 0 || best.is_some());
            let over = budget.is_over() || worked;
            if over
                || best.as_ref().is_some_and(|b| self.is_proved(b))
                || (best.is_none() && rounds >= MOST_BARREN_ROUNDS)
            {
                break;
            }
            // What has taken more than its share sits out until the others have caught up.
            let attempts: Vec<Attempt<'a>> = lanes
                .par_iter_mut()
                .enumerate()
                .filter(|(_, lane)| lane.work <= rounds * ROUND_WORK)
                .map(|(i, lane)| {
                    let number = rounds * ATTEMPTS + i as u64;
                    let attempt = self.advance(&mut lane.slot, best.as_ref(), fastest.as_ref(), number);
                    lane.work += attempt.work;
                    attempt
                })
                .collect();
            rounds += 1;
            for attempt in attempts {
                work += attempt.work;
                let candidate = match attempt.tried {
                    Ok(candidate) if attempt.by_travel => {
                        if fastest.as_ref().is_some_and(|f| candidate.cost >= f.cost) {
                            continue;
                        }
                        let board = candidate.board.clone();
                        fastest = Some(candidate);
                        match finish(&self.context, board, &mut work) {
                            Ok(candidate) => candidate,
                            Err(_) => continue,
                        }
                    }
                    Ok(candidate) => candidate,
                    Err(lockup) => {
                        locked = locked.or(lockup);
                        continue;
                    }
                };
                if best.as_ref().is_none_or(|b| candidate.cost < b.cost) {
                    let better = best.as_ref().is_none_or(|b| candidate.outcome.iteration < b.outcome.iteration);
                    if better {
                        record(&candidate, work);
                    }
                    let travelled = self.travel.as_ref().and_then(|travel| {
                        let tried = travelled(travel, &mut router, &paths_of(&candidate.board));
                        tried.ok().filter(|own| fastest.as_ref().is_none_or(|f| own.cost < f.cost))
                    });
                    fastest = travelled.or(fastest);
                    best = Some(candidate);
                }
            }
        }
        budget.check_cancelled()?;
        let Some(best) = best else {
            let barren = || format!("{rounds} rounds of {ATTEMPTS} attempts placed no complete set of routes");
            return Err(locked.unwrap_or_else(|| Error::NotFound(barren())));
        };
        let statistics = [("work", json!(work)), ("rounds", json!(rounds)), ("incumbents", json!(events))];
        Ok(Found { best, statistics: statistics.into_iter().map(|(k, v)| (k.to_owned(), v)).collect() })
    }

    /// What the attempts of each round are; always the same number, so that threads change nothing but the time.
    fn lanes(&self) -> Vec<Lane<'a>> {
        let slots = match self.travel {
            Some(_) => vec![Slot::Anneal(None), Slot::Travel, Slot::Exchange, Slot::Anneal(None)],
            None => vec![Slot::Exchange, Slot::Afresh, Slot::Exchange, Slot::Exchange],
        };
        slots.into_iter().map(|slot| Lane { slot, work: 0 }).collect()
    }

    fn advance(
        &self,
        slot: &mut Slot<'a>,
        best: Option<&Candidate<'a>>,
        fastest: Option<&Candidate<'a>>,
        number: u64,
    ) -> Attempt<'a> {
        match (slot, &self.travel) {
            (Slot::Travel, Some(travel)) => {
                Attempt { by_travel: true, ..self.attempt(travel, fastest, number, false) }
            }
            (Slot::Anneal(island), _) => self.anneal(island, best, number),
            (Slot::Afresh, _) => self.attempt(&self.context, best, number, true),
            _ => self.attempt(&self.context, best, number, best.is_none()),
        }
    }

    /// Lets an island go on; where it has cooled down it begins anew, with other routes or those of the best plan in
    /// turn.
    fn anneal(&self, slot: &mut Option<Island<'a>>, best: Option<&Candidate<'a>>, number: u64) -> Attempt<'a> {
        let context = &self.context;
        let mut rng = context.rng(number);
        let nothing = |work: u64| Attempt { tried: Err(None), work, by_travel: false };
        if slot.is_none() {
            let paths = (0..FIRST_DRAWS).find_map(|_| draw_paths(context, &mut rng)).or(best.map(|b| paths_of(&b.board)));
            let Some(paths) = paths else { return nothing(1) };
            *slot = Some(Island::new(context.instance, context.tasks, paths, context.rng(!number), self.bound));
        }
        let Some(island) = slot else { return nothing(1) };
        let before = island.work;
        if island.is_cold() {
            // The first island looks elsewhere in every other run, the others stay with the best plan.
            let elsewhere = number % ATTEMPTS == 0 && island.is_for_fresh_routes();
            let fresh = if elsewhere { draw_paths(context, &mut rng) } else { None };
            match (fresh, best) {
                (Some(paths), _) => {
                    let ranks = plain_ranks(context.tasks.iter().map(|t| t.waves).sum());
                    island.restart(&anneal::Found { paths, ranks, key: (NEVER, NEVER) }, false);
                }
                (None, Some(best)) => island.restart(&found_of(best), true),
                (None, None) => {}
            }
        }
        island.run(ROUND_WORK, context.budget);
        let mut work = island.work - before;
        let better = island.best().filter(|found| best.is_none_or(|b| found.key < b.cost));
        let tried = better.map_or(Err(None), |found| ranked(context, found, &mut work));
        context.budget.add_work(work);
        Attempt { tried, work, by_travel: false }
    }

    /// Nothing better exists.
    fn is_proved(&self, candidate: &Candidate<'_>) -> bool {
        self.context.objective == Objective::Simulated && is_tight(candidate.outcome.iteration, self.bound)
    }

    /// Random routes, and for `full-routed` those of `full`: a plan at once, whatever the size.
    fn first(&self, router: &mut Router<'_>) -> Option<Candidate<'a>> {
        let context = &self.context;
        let mut rng = context.rng(u64::MAX);
        let drawn = (0..FIRST_DRAWS)
            .take_while(|i| *i == 0 || !context.budget.is_over())
            .find_map(|_| draw_routes(context, router, &mut rng).ok());
        let rules = &context.instance.rules;
        let comparable = rules.waves == 1 && rules.max_stage_jump.is_none() && rules.tc1 != MemoryRule::Routes;
        if context.objective == Objective::Travel || context.instance.skip_ratio > 0.0 || !comparable {
            return drawn;
        }
        let straight = straight_routes(context, router, &mut rng).ok();
        drawn.into_iter().chain(straight).min_by_key(|candidate| candidate.cost)
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
        Attempt { tried, work: router.work, by_travel: false }
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
                || (context.objective == self.context.objective && self.is_proved(&current)) {
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
