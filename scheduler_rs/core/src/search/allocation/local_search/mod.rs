//! Allocations for the strategies whose plans follow from an allocation by construction: straight pipelines, random
//! routes, routes by travel time alone.
//!
//! A local search over allocations whose objective is the simulated iteration, all-reduce included, of the strategy's
//! own plan. Chains of late acceptance hill climbing (Burke and Bykov) start from the first allocation, from random ones
//! and from the best one so far; the best allocations that they saw are then planned by the strategy as any allocation
//! that is given. Small clusters have every allocation looked at instead. Work is done in rounds of fixed size that
//! are merged in order, so that threads change nothing but the time.

mod candidate;
mod chain;
mod objective;

use rayon::prelude::*;

use crate::allocate::joint::{AllocationScope, Placement, lower_bound};
use crate::bound::{is_tight, lower_bound_of};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::part::Part;
use crate::plan::{Plan, Predicted};
use crate::problem::{Instance, Problem};
use crate::report::{AllocationReport, RunnerUp, SearchEvent};
use crate::request::Options;
use crate::route::route_tasks;
use crate::rules::Strategy;
use crate::search::allocation::local_search::candidate::Candidate;
use crate::search::allocation::local_search::chain::{CHAINS, Chain};
use crate::search::allocation::local_search::objective::{Construction, Key};
use crate::search::allocation::{exhaustive, unused_nodes};
use crate::search::effort;
use crate::search::feasibility::prove_possible;
use crate::search::fixed_allocation::{plan_allocated, plan_of_first};
use crate::search::trace::SearchTrace;
use crate::time::{NEVER, Rounding, Time, seconds};

/// Without a limit of work or time the local search ends after so many rounds.
const MOST_ROUNDS: u64 = 500;
/// Allocations that are planned after the local search, and how many side by side.
const ELITES: usize = 16;
const SIDE_BY_SIDE: usize = 8;
/// Work for the plan of one of them, where there is as much. Straight pipelines stop by themselves.
const PLAN_WORK: u64 = 200_000;

/// The best plan of `options.strategy` for an allocation that `scope` allows; `asked` is the question as the strategy
/// understands it.
///
/// # Errors
/// As [`crate::search::plan`].
pub fn plan(asked: &Problem, scope: AllocationScope, options: Options, budget: &Budget) -> Result<Plan> {
    let instance = Instance::new(asked, Rounding::Up);
    // The first allocation may have no plan where others do: then nothing is known of stage sets.
    let sets = prove_possible(&instance, &route_tasks(&instance)).ok().flatten();
    let construction = Construction::new(options, sets.as_deref());
    LocalSearch { asked, scope, options, budget, construction }.run()
}

/// See [`plan`].
struct LocalSearch<'a> {
    asked: &'a Problem,
    scope: AllocationScope,
    options: Options,
    budget: &'a Budget,
    construction: Construction<'a>,
}

/// The search as it stands.
struct State<'a> {
    elites: Elites,
    first: Candidate,
    work: u64,
    rounds: u64,
    /// Of the first allocation.
    start: Option<Time>,
    /// No allocation takes less.
    bound: Time,
    /// The best iteration so far, whenever there was a better one.
    trace: SearchTrace<'a>,
    best: Time,
}

/// A plan, and what it is compared by: for random routes that is a median, not the plan's own iteration.
struct Planned {
    plan: Plan,
    iteration: Time,
}

impl<'a> LocalSearch<'a> {
    fn run(&self) -> Result<Plan> {
        let bound = lower_bound(self.asked, self.scope);
        let is_small = exhaustive::is_listable(self.asked, self.scope) && self.options.has(Part::OneByOne);
        let most = if is_small { usize::MAX } else { ELITES };
        let first = Candidate::new(Placement::new(self.asked, self.scope)?);
        let elites = Elites::new(most);
        let trace = SearchTrace::new(self.budget);
        let mut state = State { elites, first, work: 0, rounds: 0, start: None, bound, trace, best: NEVER };
        self.start(&mut state);
        if is_small {
            self.look_at_all(&mut state);
        } else if self.options.has(Part::Climbing) {
            self.climb(&mut state);
        }
        let (planned, runner_up) = self.plan_elites(&mut state)?;
        match planned {
            Some(planned) => {
                let plan = self.without_idle(planned.plan, state.bound)?;
                Ok(self.reported(plan, runner_up, state, is_small))
            }
            None => plan_of_first(self.asked, self.options, self.budget),
        }
    }

    /// The first allocation as it stands.
    fn start(&self, state: &mut State<'a>) {
        let judged = self.construction.judge(&state.first, 0, self.budget);
        state.work += judged.work;
        state.start = Some(judged.key.0).filter(|iteration| *iteration < NEVER);
        state.elites.insert(judged.key, &state.first);
        self.report_best(state);
    }

    /// Every allocation of a small cluster.
    fn look_at_all(&self, state: &mut State<'a>) {
        let all = exhaustive::all(self.asked, self.scope);
        for some in all.chunks(SIDE_BY_SIDE) {
            if self.budget.is_over()
                || self.budget.is_past(effort::LOCAL)
                || state.work >= effort::most_work(self.budget, effort::LOCAL)
            {
                break;
            }
            let judged: Vec<_> = some
                .par_iter()
                .filter_map(|stages| {
                    let other = self.asked.reallocated(stages.clone()).ok()?;
                    let candidate = Candidate::new(Placement::new(&other, self.scope).ok()?);
                    let judged = self.construction.judge(&candidate, 0, self.budget);
                    Some((judged, candidate))
                })
                .collect();
            for (judged, candidate) in judged {
                state.work += judged.work;
                self.budget.add_work(judged.work);
                state.elites.insert(judged.key, &candidate);
            }
            state.rounds += 1;
            self.report_best(state);
        }
    }

    /// Rounds of the chains.
    fn climb(&self, state: &mut State<'a>) {
        let chain = |number| Chain::new(self.construction, &state.first, number, self.options.seed);
        let mut chains: Vec<Chain<'_>> = (0..CHAINS).map(chain).collect();
        let before = state.work;
        while state.rounds < MOST_ROUNDS && state.work < effort::most_work(self.budget, effort::LOCAL) {
            let is_best = state.elites.best().is_some_and(|(key, _)| is_tight(key.0, state.bound));
            if is_best || self.budget.is_over() || self.budget.is_past(effort::LOCAL) {
                break;
            }
            let best = state.elites.best().map(|(_, candidate)| candidate);
            let round_work = effort::round_work(self.budget);
            chains.par_iter_mut().for_each(|chain| chain.advance(best, round_work, self.budget));
            state.rounds += 1;
            let total = before + chains.iter().map(Chain::work).sum::<u64>();
            self.budget.add_work(total - state.work);
            if total == state.work {
                // There is nothing to change.
                break;
            }
            state.work = total;
            for chain in &mut chains {
                for (key, candidate) in chain.seen() {
                    state.elites.insert(key, &candidate);
                }
            }
            self.report_best(state);
        }
    }

    /// Plans the best allocations that were seen, best first; the best plan, and that of another allocation.
    fn plan_elites(&self, state: &mut State<'a>) -> Result<(Option<Planned>, Option<RunnerUp>)> {
        let mut elites = std::mem::take(&mut state.elites.all);
        elites.retain(|(key, _)| key.0 < NEVER);
        // What seemed good may have been good luck: the first allocation is held against it as well.
        if let Some(start) = state.start.filter(|_| !elites.iter().any(|(_, other)| other.is_same(&state.first))) {
            elites.insert(elites.len().min(SIDE_BY_SIDE - 1), ((start, start), state.first.clone()));
        }
        let elites: Vec<Problem> = elites.iter().map(|(_, candidate)| candidate.problem()).collect::<Result<_>>()?;
        let mut planned: Vec<Planned> = Vec::new();
        for some in elites.chunks(SIDE_BY_SIDE) {
            let best = planned.first().map_or(NEVER, |best| best.iteration);
            let is_enough = self.budget.is_over()
                || state.work >= effort::most_work(self.budget, 1.0)
                || is_tight(best, state.bound);
            if !planned.is_empty() && is_enough {
                break;
            }
            // Where hardly anything is left, the first one has to do.
            let some = if self.budget.is_over() { &some[..1] } else { some };
            let results: Vec<_> = some.par_iter().map(|problem| self.planned(problem, best)).collect();
            for (result, work) in results {
                state.work += work;
                self.budget.add_work(work);
                match result {
                    Ok(Some(other)) => planned.push(other),
                    Ok(None)
                    | Err(Error::Cancelled | Error::Impossible { .. } | Error::NotFound(_) | Error::Deadlock(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            // Stable: of equal ones the one that was better in the local search stays first.
            planned.sort_by_key(|other| other.iteration);
            planned.truncate(2);
            if let Some(best) = planned.first() {
                self.note(state, best.iteration);
            }
        }
        let mut planned = planned.into_iter();
        let best = planned.next();
        let runner_up =
            planned.next().map(|other| RunnerUp { stages: other.plan.stages, iteration_s: seconds(other.iteration) });
        Ok((best, runner_up))
    }

    /// The strategy's plan for one allocation, none where it cannot take less than `best`; with the work of it.
    fn planned(&self, problem: &Problem, best: Time) -> (Result<Option<Planned>>, u64) {
        // What was stopped by hand still needs the plan of what it has found.
        let fresh = Budget::new(None, Some(1));
        let within = self.budget.within(self.plan_work());
        let budget = if self.budget.is_over() { &fresh } else { &within };
        match lower_bound_of(problem, budget) {
            Ok(bound) if bound >= best => return (Ok(None), 0),
            Ok(_) => {}
            Err(error) => return (Err(error), 0),
        }
        let plan = match plan_allocated(problem, Options { threads: 1, ..self.options }, budget) {
            Ok(plan) => plan,
            Err(error) => return (Err(error), self.plan_work()),
        };
        let work = plan.solver.work();
        let own = Rounding::Up.nanoseconds(plan.predicted.iteration_s);
        let (iteration, more) = self.construction.validate(problem, own);
        (Ok(Some(Planned { plan, iteration })), work + more)
    }

    /// The plan without nodes that only cost, where they may be left out. Which nodes random routes leave idle is chance.
    fn without_idle(&self, plan: Plan, bound: Time) -> Result<Plan> {
        let is_chance = self.options.strategy.is_random();
        let stays = !self.scope.unused || !self.options.has(Part::IdleNodes) || is_chance || self.budget.is_cancelled();
        if stays { Ok(plan) } else { unused_nodes::without_idle(plan, bound, self.budget) }
    }

    /// The plan, which reports how its allocation was found.
    fn reported(&self, mut plan: Plan, runner_up: Option<RunnerUp>, state: State<'a>, is_small: bool) -> Plan {
        let iteration_s = plan.predicted.iteration_s;
        let bound_s = seconds(state.bound).min(iteration_s);
        // What holds for all allocations holds for this one.
        let lower_bound_s = plan.predicted.lower_bound_s.max(bound_s);
        plan.predicted.lower_bound_s = lower_bound_s;
        plan.predicted.gap = Predicted::gap_of(iteration_s, lower_bound_s);
        let is_full = self.options.strategy == Strategy::Full;
        if is_full && is_tight(Rounding::Up.nanoseconds(iteration_s), state.bound) {
            plan.solver.optimal = Some(true);
        }
        let elapsed_s = self.budget.elapsed_s();
        let mut events = state.trace.into_events();
        for event in &mut events {
            // Lucky draws on an allocation that then gave no better plan are not what was found.
            event.upper_s = event.upper_s.map(|upper_s| upper_s.max(iteration_s));
        }
        events.push(SearchEvent { elapsed_s, work: state.work, upper_s: Some(iteration_s), lower_s: lower_bound_s });
        plan.solver.allocation = Some(AllocationReport {
            start_s: state.start.map(seconds),
            runner_up,
            rounds: state.rounds,
            work: state.work,
            lower_bound_s: bound_s,
            planned_one_by_one: is_small,
            left_out: Vec::new(),
        });
        plan.solver.events = events;
        plan.solver.work = Some(state.work);
        plan.solver.threads = Some(self.options.threads);
        plan.solver.wall_s = Some(elapsed_s);
        plan
    }

    /// Notes the best allocation so far.
    fn report_best(&self, state: &mut State<'a>) {
        if let Some(iteration) = state.elites.best().map(|(key, _)| key.0).filter(|time| *time < NEVER) {
            self.note(state, iteration);
        }
    }

    fn note(&self, state: &mut State<'a>, iteration: Time) {
        if iteration < state.best {
            state.best = iteration;
            state.trace.record(state.work, Some(iteration), state.bound);
        }
    }

    /// Work for one plan: the first ones together take no more than the local search leaves.
    fn plan_work(&self) -> u64 {
        let left = |limit: u64| ((limit as f64 * (1.0 - effort::LOCAL)) as u64 / SIDE_BY_SIDE as u64).max(1_000);
        self.budget.work_limit.map_or(PLAN_WORK, |limit| left(limit).min(PLAN_WORK))
    }
}

/// The best allocations, best first, each once.
struct Elites {
    most: usize,
    all: Vec<(Key, Candidate)>,
}

impl Elites {
    fn new(most: usize) -> Self {
        Self { most, all: Vec::new() }
    }

    fn best(&self) -> Option<(Key, &Candidate)> {
        self.all.first().map(|(key, candidate)| (*key, candidate))
    }

    fn insert(&mut self, key: Key, candidate: &Candidate) {
        if self.all.len() >= self.most && self.all.last().is_some_and(|(worst, _)| key >= *worst) {
            return;
        }
        // Where every allocation comes once, none can be there already.
        let is_same = |(_, other): &(Key, Candidate)| other.is_same(candidate);
        if let Some(same) = (self.most < usize::MAX).then(|| self.all.iter().position(is_same)).flatten() {
            if self.all[same].0 <= key {
                return;
            }
            self.all.remove(same);
        }
        let index = self.all.partition_point(|(other, _)| *other <= key);
        self.all.insert(index, (key, candidate.clone()));
        self.all.truncate(self.most);
    }
}
