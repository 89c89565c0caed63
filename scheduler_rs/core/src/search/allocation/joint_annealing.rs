//! Allocation, routes and order at once: rounds of annealing that change all three, before the search goes on with the
//! best allocation as it stands.

use rayon::prelude::*;

use crate::allocate::joint::{AllocationScope, lower_bound};
use crate::bound::is_tight;
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::problem::{Instance, Problem};
use crate::report::RunnerUp;
use crate::request::Options;
use crate::route::{RouteTask, route_tasks};
use crate::search::candidate::{Known, Start};
use crate::search::context::stream_of;
use crate::search::effort;
use crate::search::fixed_allocation::plan_from;
use crate::search::instance_view::InstanceView;
use crate::search::methods::annealing::{AllocationState, AnnealingChain, PrioritisedRoutes, default_priorities};
use crate::search::methods::routes::Path;
use crate::search::methods::sampling::random_paths;
use crate::search::trace::SearchTrace;
use crate::time::{NEVER, Rounding, Time, seconds};

/// Allocations that are tried until one has routes.
const OTHER_STARTS: u64 = 50;
/// Chains side by side: always as many, so that threads change nothing but the time.
const CHAINS: u64 = 2;
/// Steps in which a search goes on where nothing is left to do for the best allocation; looked at for clusters of so
/// many nodes, with so much work.
const LONGER: f64 = 0.1;
const FEW_NODES: usize = 128;
const PROOF_WORK: u64 = 2_000_000;
/// Rounds without a better plan after which both begin elsewhere, now and then.
const PATIENCE: u64 = 15;
/// Without a limit of work or time the search for allocations ends after so many rounds.
const MOST_ROUNDS: u64 = 2_000;

/// Allocations that are remembered.
const MOST_SEEN: usize = 24;

/// The best allocation, and how it was found.
pub struct Joint<'a> {
    /// The question with this allocation.
    pub problem: Problem,
    /// The plan, by the nodes of that problem.
    pub known: Known,
    /// Search steps, and those of them that changed allocation and routes together.
    pub work: u64,
    pub joint_work: u64,
    /// Rounds of the latter.
    pub rounds: u64,
    /// No allocation takes less.
    pub bound: Time,
    /// Iteration on the first allocation, in seconds.
    pub start_s: Option<f64>,
    /// The best other allocation that was seen.
    runner_up: Option<RunnerUp>,
    /// Plans as they were found.
    pub trace: SearchTrace<'a>,
}

impl Joint<'_> {
    /// The best other allocation than that of a plan: where another one than the best one here came out on top, this one
    /// is the next best.
    pub fn runner_up_of(&self, plan: &Plan, iteration: Time) -> Option<RunnerUp> {
        if !is_same(self.problem.stages(), &plan.stages) && iteration <= self.known.key().0 {
            let stages = in_order(self.problem.stages().to_vec());
            return Some(RunnerUp { stages, iteration_s: seconds(self.known.key().0) });
        }
        self.runner_up.clone()
    }
}

/// Whether two allocations have the same nodes in each stage.
fn is_same(one: &[Vec<usize>], other: &[Vec<usize>]) -> bool {
    in_order(one.to_vec()) == in_order(other.to_vec())
}

/// The nodes of each stage in ascending order.
fn in_order(mut stages: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    stages.iter_mut().for_each(|members| members.sort_unstable());
    stages
}

/// An allocation that was seen, and its best iteration.
struct Seen {
    stages: Vec<Vec<usize>>,
    key: (Time, Time),
}

/// Searches allocations, for a share of the time or the work, or for a greater one where the best allocation soon has its
/// proof; none where the first one has no routes, which the search for one allocation then explains.
pub fn search<'a>(
    problem: &'a Problem,
    scope: AllocationScope,
    options: Options,
    budget: &'a Budget,
    (share, late_share): (f64, f64),
) -> Result<Option<Joint<'a>>> {
    let first = AllocationState::of(problem, scope)?;
    let Some((first, fallback, is_first)) = with_routes(first, options.seed, budget) else { return Ok(None) };
    Annealing { problem, scope, first, fallback, options, budget, share, late_share }.run(is_first)
}

/// An allocation that has routes: the first one, or one that a few exchanges of nodes make of it.
///
/// With its routes, and whether it is the first one.
fn with_routes(first: AllocationState, seed: u64, budget: &Budget) -> Option<(AllocationState, Vec<Path>, bool)> {
    let mut rng = stream_of(seed, OTHER_STARTS);
    let mut allocation = first;
    for start in 0..OTHER_STARTS {
        if let Some(paths) = random_paths(allocation.view(), &mut rng) {
            return Some((allocation, paths, start == 0));
        }
        if budget.is_over() {
            return None;
        }
        for _ in 0..allocation.view().instance.node_count() {
            allocation.exchange_any(&mut rng);
        }
    }
    None
}

struct Annealing<'a> {
    problem: &'a Problem,
    scope: AllocationScope,
    first: AllocationState,
    /// Routes of the first allocation, where drawing others fails.
    fallback: Vec<Path>,
    options: Options,
    budget: &'a Budget,
    share: f64,
    late_share: f64,
}

impl<'a> Annealing<'a> {
    fn run(&self, is_first: bool) -> Result<Option<Joint<'a>>> {
        let budget = self.budget;
        let mut chains: Vec<_> = (0..CHAINS).map(|number| Box::new(self.begin(number))).collect();
        let bound = lower_bound(self.problem, self.scope);
        let most = |share: f64| effort::most_work(budget, share);
        let mut seen: Vec<Seen> = Vec::new();
        let mut trace = SearchTrace::new(budget);
        let (mut best, before) = self.start(most(self.share));
        if let Some(first) = &best {
            note(&mut seen, first);
            trace.record(before, Some(first.key.0), bound);
        }
        let start_s = best.as_ref().filter(|_| is_first).map(|first| seconds(first.key.0));
        let (mut work, mut rounds) = (before, 0_u64);
        let mut improved = 0;
        let mut share = self.share;
        let is_best = |best: &Option<PrioritisedRoutes>| best.as_ref().is_some_and(|best| is_tight(best.key.0, bound));
        while rounds < MOST_ROUNDS && !is_best(&best) && !budget.is_over() {
            if budget.is_past(share) || work >= most(share) {
                // What is the best of its own allocation leaves nothing to the search that follows.
                let is_proved =
                    share < self.late_share && best.as_ref().is_some_and(|best| self.is_proved(best, bound));
                if !is_proved {
                    break;
                }
                share = self.late_share.min(share + LONGER);
            }
            let known = best.as_ref();
            chains.par_iter_mut().enumerate().for_each(|(number, chain)| {
                self.advance(chain, known, number as u64, rounds, rounds - improved > PATIENCE);
            });
            rounds += 1;
            let total = before + chains.iter().map(|chain| chain.work).sum::<u64>();
            budget.add_work(total - work);
            work = total;
            for chain in &chains {
                let Some(found) = chain.best() else { continue };
                note(&mut seen, found);
                if best.as_ref().is_none_or(|best| found.key < best.key) {
                    let iteration = found.key.0;
                    if best.as_ref().is_none_or(|best| iteration < best.key.0) {
                        trace.record(work, Some(iteration), bound);
                    }
                    best = Some(found.clone());
                    improved = rounds;
                }
            }
        }
        budget.check_cancelled().or_else(|error| if best.is_some() { Ok(()) } else { Err(error) })?;
        let Some((best, allocation)) =
            best.and_then(|mut best| best.allocation.take().map(|allocation| (best, allocation)))
        else {
            return Ok(None);
        };
        let (problem, found) = translated(&allocation, &best)?;
        let runner_up = runner_up(&seen, &stages_of(&allocation));
        let known = Known::Prioritised(found);
        Ok(Some(Joint { problem, known, work, joint_work: work, rounds, bound, start_s, runner_up, trace }))
    }

    /// Whether routes and order are soon proved to be the best for their allocation.
    fn is_proved(&self, best: &PrioritisedRoutes, bound: Time) -> bool {
        let allocation = best.allocation.as_deref().filter(|s| s.view().instance.node_count() <= FEW_NODES);
        let plan = allocation.map(|allocation| {
            let (problem, found) = translated(allocation, best)?;
            let start = Start { known: Known::Prioritised(found), work: 0, bound };
            plan_from(&problem, self.options, &self.budget.within(PROOF_WORK), Some(&start))
        });
        plan.is_some_and(|plan| plan.is_ok_and(|plan| plan.solver.optimal == Some(true)))
    }

    /// The first allocation as it stands, with the work that it took: what the search has to beat.
    fn start(&self, most: u64) -> (Option<PrioritisedRoutes>, u64) {
        let paths = self.routes(u64::MAX);
        let mut chain =
            AnnealingChain::new(self.first.view(), paths, stream_of(self.options.seed, CHAINS), self.scale());
        chain.without = self.options.without;
        let is_over = |chain: &AnnealingChain| {
            let worked = chain.work as f64 >= most as f64 * effort::JOINT_START / self.share;
            chain.is_finished() || worked || self.budget.is_past(effort::JOINT_START) || self.budget.is_over()
        };
        while chain.best().is_none() || !is_over(&chain) {
            let before = chain.work;
            chain.run(effort::round_work(self.budget), self.budget);
            if chain.work == before {
                break;
            }
        }
        self.budget.add_work(chain.work);
        let allocation = Some(Box::new(self.first.clone()));
        (chain.best().map(|found| PrioritisedRoutes { allocation, ..found.clone() }), chain.work)
    }

    /// A chain that starts from the first allocation and routes of its own.
    fn begin(&self, number: u64) -> AnnealingChain {
        let paths = self.routes(!number);
        let mut chain = AnnealingChain::free(&self.first, paths, stream_of(self.options.seed, number), self.scale());
        chain.without = self.options.without;
        chain
    }

    /// About how long an iteration takes; what estimates are compared with.
    fn scale(&self) -> Time {
        let instance = self.first.view().instance;
        (0..instance.node_count()).map(|n| instance.least_work(n)).max().unwrap_or(1).max(1) * 16
    }

    /// Other routes of the first allocation.
    fn routes(&self, stream: u64) -> Vec<Path> {
        random_paths(self.first.view(), &mut stream_of(self.options.seed, stream))
            .unwrap_or_else(|| self.fallback.clone())
    }

    /// Lets a chain go on; where its run is over it begins anew: the first one from afar, the other with the best.
    fn advance(
        &self,
        chain: &mut AnnealingChain,
        best: Option<&PrioritisedRoutes>,
        number: u64,
        round: u64,
        is_stale: bool,
    ) {
        if chain.is_finished()
            && let Some(best) = best
        {
            // The first allocation again, with other routes: the best one would keep the search where it is.
            let is_afar = number == 0 || (is_stale && chain.restarts().is_multiple_of(2));
            match is_afar.then(|| self.routes(round * CHAINS + number)) {
                Some(paths) => {
                    let priorities = default_priorities(best.priorities.len() / 2);
                    let allocation = Some(Box::new(self.first.clone()));
                    chain.restart(&PrioritisedRoutes { paths, priorities, key: (NEVER, NEVER), allocation }, false);
                    if number > 0 || chain.restarts() % 2 == 1 {
                        chain.scramble();
                    }
                }
                None => chain.restart(best, true),
            }
        }
        chain.run(effort::round_work(self.budget), self.budget);
    }
}

/// The nodes of each stage in ascending order.
fn stages_of(allocation: &AllocationState) -> Vec<Vec<usize>> {
    in_order(allocation.placement().stages(allocation.view().instance))
}

/// The best allocation seen that is not `stages`; the best one comes first.
fn runner_up(seen: &[Seen], stages: &[Vec<usize>]) -> Option<RunnerUp> {
    let other = seen.iter().find(|other| other.stages != stages)?;
    Some(RunnerUp { stages: other.stages.clone(), iteration_s: seconds(other.key.0) })
}

/// Keeps the best allocations, each with its best iteration.
fn note(seen: &mut Vec<Seen>, found: &PrioritisedRoutes) {
    let Some(allocation) = &found.allocation else { return };
    let stages = stages_of(allocation);
    match seen.iter_mut().find(|s| s.stages == stages) {
        Some(known) => known.key = known.key.min(found.key),
        None => seen.push(Seen { stages, key: found.key }),
    }
    seen.sort_by(|a, b| a.key.cmp(&b.key).then_with(|| a.stages.cmp(&b.stages)));
    seen.truncate(MOST_SEEN);
}

/// The problem of an allocation, and what was found by its nodes and in the order of its routes.
fn translated(allocation: &AllocationState, found: &PrioritisedRoutes) -> Result<(Problem, PrioritisedRoutes)> {
    let InstanceView { instance, tasks } = allocation.view();
    let placement = allocation.placement();
    let problem = placement.problem(instance, tasks)?;
    let after = route_tasks(&Instance::new(&problem, Rounding::Up));
    let mut first = Vec::with_capacity(tasks.len());
    let mut microbatches = 0;
    for task in tasks {
        first.push(microbatches);
        microbatches += task.waves;
    }
    let mut taken = vec![false; tasks.len()];
    let mut paths = Vec::with_capacity(tasks.len());
    let mut priorities = Vec::with_capacity(found.priorities.len());
    for task in &after {
        let is_it = |(route, own): &(usize, &RouteTask)| {
            !taken[*route] && placement.node_at(own.source) == task.source && own.waves == task.waves
        };
        let Some((route, own)) = tasks.iter().enumerate().find(is_it) else {
            return Err(Error::NotFound("the routes of an allocation do not fit its sources".to_owned()));
        };
        taken[route] = true;
        paths.push(found.paths[route].iter().map(|position| placement.node_at(*position as usize) as u32).collect());
        priorities.extend_from_slice(&found.priorities[2 * first[route]..2 * (first[route] + own.waves)]);
    }
    Ok((problem, PrioritisedRoutes { paths, priorities, key: found.key, allocation: None }))
}
