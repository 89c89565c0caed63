//! The methods that run side by side, and what each does in a round.

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_pcg::Pcg64;

use crate::bound::is_tight;
use crate::bound::lookahead::Lookahead;
use crate::part::Part;
use crate::problem::Instance;
use crate::request::Options;
use crate::search::candidate::{
    Candidate, Tried, draw_paths, executed, found_of, paths_of, prioritised, reordered, scheduled,
};
use crate::search::context::{Context, Objective};
use crate::search::effort::FEW_TASKS;
use crate::search::methods::annealing::{AnnealingChain, FIRST_RUN, PrioritisedRoutes, default_priorities, first_run};
use crate::search::methods::prioritised::construct::{construct, priority, replace};
use crate::search::methods::prioritised::router::Router;
use crate::search::methods::proof::Prover;
use crate::search::methods::routes::Path;
use crate::search::methods::schedule_annealing::ScheduleAnnealing;
use crate::search::methods::tabu::OrderSearch;
use crate::time::{NEVER, Time};

/// Attempts of one round.
pub const ATTEMPTS: u64 = 5;
/// Work of an attempt, after which it ends as soon as it can.
pub const ROUND_WORK: u64 = 100_000;
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
/// Steps that the search for one timed path may take before any good one will do.
pub const PATIENCE: u64 = 40_000;
/// Draws for a first plan at once.
pub const FIRST_DRAWS: u64 = 500;

/// What the methods work on.
pub struct Workers<'a> {
    pub context: Context<'a>,
    /// With durations rounded down.
    pub below: &'a Instance,
    pub beneath: &'a Lookahead,
    /// What is known before the search.
    pub bound: Time,
    pub options: Options,
}

/// A search, and the work that it has taken as a part of its share.
pub struct Worker<'a> {
    pub part: Part,
    pub method: WorkerMethod<'a>,
    pub work: u64,
    pub share: f64,
    /// Work as it is, whatever the share.
    pub spent: u64,
}

/// One of the searches that run beside each other and learn of what the others found after every round.
pub enum WorkerMethod<'a> {
    /// Routes of the best plan are taken off and placed again.
    Exchange,
    /// Small changes of routes and order.
    Anneal(Option<Box<AnnealingChain>>),
    /// Small changes of complete schedules.
    AnnealSchedule(Option<Box<ScheduleAnnealing>>),
    /// The order of the best plan, its routes as they are.
    Order(Option<Box<OrderSearch>>),
    /// Lower bounds.
    Prove(Box<Prover<'a>>),
}

/// What an attempt gives back.
pub struct Attempt<'a> {
    pub tried: Tried<'a>,
    pub work: u64,
    /// No plan takes less.
    pub bound: Time,
    /// Proved: there is no plan.
    pub is_impossible: bool,
}

impl Attempt<'_> {
    pub fn failed(work: u64) -> Self {
        Self { tried: Err(None), work, bound: 0, is_impossible: false }
    }
}

/// Whether an annealing goes on from the best plan in every run; the first one begins every run with other routes.
fn stays_with_best(number: u64) -> bool {
    !number.is_multiple_of(ATTEMPTS)
}

impl<'a> Workers<'a> {
    /// What the attempts of each round are; always the same number, so that threads change nothing but the time.
    pub fn start(&self) -> Vec<Worker<'a>> {
        let worker =
            |part: Part, method: WorkerMethod<'a>, work: u64| Worker { part, method, work, share: 1.0, spent: 0 };
        if self.context.objective == Objective::Travel {
            let exchange = || worker(Part::Exchange, WorkerMethod::Exchange, 0);
            return vec![exchange(), exchange(), exchange(), exchange()];
        }
        let prover = Prover::new(self.below, self.beneath, self.context.tasks, self.bound);
        // Those that improve on what is there join when the first run of the annealing has had its time.
        let later = first_run(self.context.tasks, self.context.instance);
        // Where nodes are few and hardly ever idle, small changes of routes and order find what placing routes does not.
        let nodes = self.context.instance.node_count();
        let has_many_tasks = later > FIRST_RUN * FEW_TASKS as u64;
        let is_small = nodes <= FEW_NODES && has_many_tasks;
        let (proving, placing) = if is_small { (1.0, SHARE_OF_FEW) } else { (2.0, 1.0) };
        // Few tasks are left to the proof, which takes messages to be free, though.
        let takes_turns = !self.context.instance.contention().is_none();
        let anneals_schedules = (has_many_tasks || takes_turns) && self.options.has(Part::ScheduleAnnealing);
        let annealing = |most_nodes: usize| match anneals_schedules && nodes <= most_nodes {
            true => WorkerMethod::AnnealSchedule(None),
            false => WorkerMethod::Anneal(None),
        };
        vec![
            worker(Part::FirstAnnealing, annealing(FEW_NODES), 0),
            Worker { share: proving, ..worker(Part::Proof, WorkerMethod::Prove(Box::new(prover)), later / 2) },
            Worker { share: placing, ..worker(Part::Exchange, WorkerMethod::Exchange, 2 * later) },
            worker(Part::Order, WorkerMethod::Order(None), 2 * later),
            worker(Part::SecondAnnealing, annealing(MODERATELY_MANY_NODES), 4 * later),
        ]
    }

    pub fn advance(&self, method: &mut WorkerMethod<'a>, best: Option<&Candidate<'a>>, number: u64) -> Attempt<'a> {
        match method {
            WorkerMethod::Anneal(chain) => self.anneal(chain, best, number),
            WorkerMethod::AnnealSchedule(annealing) => self.anneal_schedule(annealing, best, number),
            WorkerMethod::Order(search) => self.reorder(search, best, number),
            WorkerMethod::Prove(prover) => self.advance_proof(prover, best),
            WorkerMethod::Exchange => self.attempt(best, number),
        }
    }

    /// Goes on with the order of the best plan, from the beginning where that is another plan by now.
    fn reorder(
        &self,
        current: &mut Option<Box<OrderSearch>>,
        best: Option<&Candidate<'a>>,
        number: u64,
    ) -> Attempt<'a> {
        let context = &self.context;
        let Some(best) = best else { return Attempt::failed(ROUND_WORK) };
        if current.as_ref().is_none_or(|search| search.start() != best.cost && search.key() != best.cost) {
            let microbatches = best.schedule.microbatches();
            let search =
                OrderSearch::new(context.instance, &microbatches, &best.order, &mut context.rng(number), self.bound);
            *current = search.map(Box::new);
        }
        let Some(search) = current.as_mut().filter(|search| !search.is_over()) else { return Attempt::failed(0) };
        let before = search.work();
        search.run(ROUND_WORK, context.budget);
        let better = if search.key() < best.cost { search.best() } else { None };
        self.attempted(better, search.work() - before, |context, found, work| {
            reordered(context, best, found.order, work)
        })
    }

    fn advance_proof(&self, prover: &mut Prover<'a>, best: Option<&Candidate<'a>>) -> Attempt<'a> {
        let upper = best.map_or(NEVER, |best| best.outcome.iteration);
        if prover.is_over(upper) {
            return Attempt { bound: prover.bound(), ..Attempt::failed(0) };
        }
        let step = prover.advance(upper, self.context.budget);
        let mut work = step.work;
        let tried = step.found.map_or(Err(None), |found| executed(&self.context, found, &mut work));
        Attempt { tried, work, bound: prover.bound(), is_impossible: step.is_impossible }
    }

    /// Lets a chain go on; where its run is over it begins anew.
    fn anneal(
        &self,
        current: &mut Option<Box<AnnealingChain>>,
        best: Option<&Candidate<'a>>,
        number: u64,
    ) -> Attempt<'a> {
        let before = current.as_ref().map_or(0, |chain| chain.work);
        match current {
            None => *current = self.first_chain(best, number).map(Box::new),
            Some(chain) if chain.is_finished() => self.restart_chain(chain, best, number),
            Some(_) => {}
        }
        let Some(chain) = current else { return Attempt::failed(ROUND_WORK) };
        chain.run(self.context.budget.round_work(ROUND_WORK), self.context.budget);
        let better = chain.best().filter(|found| best.is_none_or(|best| found.key < best.cost));
        self.attempted(better, chain.work - before, prioritised)
    }

    fn first_chain(&self, best: Option<&Candidate<'a>>, number: u64) -> Option<AnnealingChain> {
        let context = &self.context;
        let best = best.map(|best| (best, paths_of(&best.schedule)));
        let (kept, paths) = match best {
            Some((best, paths)) if stays_with_best(number) => (Some(best), paths),
            best => (None, self.draw(FIRST_DRAWS, number).or(best.map(|(_, paths)| paths))?),
        };
        let mut chain = AnnealingChain::new(context.view(), paths, context.rng(!number), self.bound);
        chain.without = self.options.without;
        if let Some(best) = kept {
            chain.restart(&found_of(best), true);
        }
        Some(chain)
    }

    fn restart_chain(&self, chain: &mut AnnealingChain, best: Option<&Candidate<'a>>, number: u64) {
        let fresh = if stays_with_best(number) { None } else { self.draw(1, number) };
        match (fresh, best) {
            (Some(paths), _) => {
                let priorities = default_priorities(self.context.tasks.iter().map(|t| t.waves).sum());
                chain.restart(&PrioritisedRoutes { paths, priorities, key: (NEVER, NEVER), allocation: None }, false);
            }
            (None, Some(best)) => chain.restart(&found_of(best), true),
            (None, None) => {}
        }
    }

    /// Lets the annealing of schedules go on; where its run is over it begins anew.
    fn anneal_schedule(
        &self,
        current: &mut Option<Box<ScheduleAnnealing>>,
        best: Option<&Candidate<'a>>,
        number: u64,
    ) -> Attempt<'a> {
        let context = &self.context;
        let before = current.as_ref().map_or(0, |annealing| annealing.work());
        if current.as_ref().is_none_or(|annealing| annealing.is_finished()) {
            let from = best.map(|best| (paths_of(&best.schedule), Some(best.order.as_slice())));
            let from = if stays_with_best(number) {
                from
            } else {
                self.draw(FIRST_DRAWS, number).map(|paths| (paths, None)).or(from)
            };
            let Some((paths, order)) = from else { return Attempt::failed(ROUND_WORK) };
            if let Some(annealing) = current {
                annealing.restart(&paths, order);
            } else {
                let annealing = ScheduleAnnealing::new(context.view(), paths, order, FIRST_STEPS, context.rng(!number));
                *current = Some(Box::new(annealing));
            }
        }
        let Some(annealing) = current else { return Attempt::failed(ROUND_WORK) };
        annealing.run(context.budget.round_work(ROUND_WORK), context.budget);
        let better = annealing.best().filter(|schedule| best.is_none_or(|best| schedule.key < best.cost));
        self.attempted(better, annealing.work() - before, scheduled)
    }

    /// Random routes for attempt `number`; none where so many draws ran into dead ends.
    fn draw(&self, draws: u64, number: u64) -> Option<Vec<Path>> {
        let mut rng = self.context.rng(number);
        (0..draws).find_map(|_| draw_paths(&self.context, &mut rng))
    }

    /// What `work` search steps came to; `timed` gives what was found its times.
    fn attempted<T>(
        &self,
        found: Option<T>,
        mut work: u64,
        timed: impl FnOnce(&Context<'a>, T, &mut u64) -> Tried<'a>,
    ) -> Attempt<'a> {
        let tried = found.map_or(Err(None), |found| timed(&self.context, found, &mut work));
        self.context.budget.add_work(work);
        Attempt { tried, ..Attempt::failed(work) }
    }

    /// Improves on a candidate, or places all routes where there is none.
    pub fn attempt(&self, incumbent: Option<&Candidate<'a>>, number: u64) -> Attempt<'a> {
        let context = &self.context;
        let mut router = Router::new(context.instance, context.lookahead, PATIENCE);
        let mut rng = context.rng(number);
        let tried = match incumbent {
            Some(incumbent) => self.improve(incumbent, &mut router, &mut rng).ok_or(None),
            None => {
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
    fn improve(&self, incumbent: &Candidate<'a>, router: &mut Router<'_>, rng: &mut Pcg64) -> Option<Candidate<'a>> {
        let context = &self.context;
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

    /// Routes to take off: often the one that completes last, and others that have something in common.
    fn choose(&self, current: &Candidate<'_>, rng: &mut Pcg64) -> Vec<usize> {
        let schedule = &current.schedule;
        let count = self.context.tasks.len();
        let wanted = rng.random_range(1..=MOST_REMOVED).min(count);
        let completion = |route: usize| schedule.timed_paths(route).iter().map(|w| w.completion).max().unwrap_or(0);
        let seed = if rng.random_bool(0.5) {
            let last = (0..count).map(completion).max().unwrap_or(0);
            let latest: Vec<usize> = (0..count).filter(|r| completion(*r) == last).collect();
            latest.choose(rng).copied().unwrap_or(0)
        } else {
            rng.random_range(0..count)
        };
        let mut others: Vec<usize> = (0..count).filter(|r| *r != seed).collect();
        others.shuffle(rng);
        if rng.random_bool(0.6) {
            let shares = |route: usize| {
                let nodes = schedule.timed_paths(seed).first().map_or(&[][..], |w| &w.nodes);
                let own = schedule.timed_paths(route).first().map_or(&[][..], |w| &w.nodes);
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
