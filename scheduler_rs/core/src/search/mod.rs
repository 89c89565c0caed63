//! From a question to a plan, for all strategies: the first allocation, the search over allocations, and the search for
//! routes and order on one of them.

mod allocation;
mod anneal;
mod assembly;
mod assign;
mod attempt;
mod board;
pub mod cbs;
mod constructed;
mod draw;
mod effort;
mod estimate;
mod feasibility;
mod full_routed;
mod idle;
mod joint;
#[cfg(test)]
mod local_tests;
pub mod order;
pub mod outlook;
mod portfolio;
mod proof;
mod race;
mod router;
#[cfg(test)]
mod router_tests;
mod routes;
mod sequence;
mod shares;
mod straight;
mod strategy_allocation;
mod sweep;
mod timeline;
mod trace;

use std::borrow::Cow;

use rand::SeedableRng;
use rand_pcg::Pcg64;

use crate::allocate;
use crate::budget::Budget;
use crate::error::Result;
use crate::plan::Plan;
use crate::problem::{Instance, Problem};
use crate::report::SearchReport;
use crate::request::{FirstAllocation, Method, Options, PlanRequest};
use crate::route::{RouteTask, StageSet, route_tasks};
use crate::rules::{Constraints, MemoryRule, Strategy};
use crate::simulate::{MicrobatchRoute, TaskId};
use crate::time::{Rounding, Time};

use allocation::{FEW_TASKS, search_allocation};
use assembly::assemble;
use constructed::{random_routes, solve_full, solve_random};
use feasibility::{nothing_exists, prove_possible};
use outlook::Outlook;
use routes::Ground;

/// The best plan found for `request` within `budget`, whatever the strategy.
///
/// `full` and `full-routed` run every stage; `full` keeps TC1 `held`, and every microbatch has a route number of its own.
/// With a scope the plan may be for another allocation than the first one: for `skippipe` and `full-routed` under TC2
/// allocation, routes and order are searched together; the other strategies make their plans of an allocation, and the
/// search is for the one that suits them best.
///
/// # Errors
/// [`crate::Error::Impossible`] with the rule where no plan can exist, [`crate::Error::NotFound`] where none was found,
/// [`crate::Error::Deadlock`] where the dispatch rule deadlocks, [`crate::Error::Cancelled`], and
/// [`crate::Error::Invalid`] where the scope does not fit the problem.
pub fn plan(request: &PlanRequest, budget: &Budget) -> Result<Plan> {
    let (problem, surrogate) = first_allocation(request, budget)?;
    budget.begin_part();
    let mut plan = match request.scope {
        Some(scope) => search_allocation(&problem, scope, request.options, budget),
        None => plan_allocated(&problem, request.options, budget),
    }?;
    plan.solver.surrogate = surrogate;
    Ok(plan)
}

/// The problem on its first allocation, and what the surrogate says of that where it was asked: [`plan`] begins with it.
/// The surrogate gets a part of the budget.
///
/// # Errors
/// As [`allocate::allocate`].
pub fn first_allocation<'a>(
    request: &'a PlanRequest,
    budget: &Budget,
) -> Result<(Cow<'a, Problem>, Option<allocate::Allocated>)> {
    match &request.first {
        FirstAllocation::Given(problem) => Ok((Cow::Borrowed(problem), None)),
        FirstAllocation::Surrogate(open) => {
            let options = allocate::Options { seed: request.options.seed, threads: request.options.threads };
            let (time, work) = effort::surrogate_limits(budget);
            let (problem, found) = open.allocate(options, &budget.apart(time, work))?;
            Ok((Cow::Owned(problem), Some(found)))
        }
    }
}

/// The best plan found for the allocation of `problem`.
fn plan_allocated(problem: &Problem, options: Options, budget: &Budget) -> Result<Plan> {
    plan_from(problem, options, budget, None)
}

/// The same, from a plan that is known.
fn plan_from(problem: &Problem, options: Options, budget: &Budget, start: Option<&Start>) -> Result<Plan> {
    let problem = asked_of(problem, options.strategy)?;
    let instance = Instance::new(&problem, Rounding::Up);
    let tasks = route_tasks(&instance);
    let sets = prove_possible(&instance, &tasks)?;
    let sets = sets.as_deref();
    let below = Instance::new(&problem, Rounding::Down);
    let solution = match options.strategy {
        Strategy::Full => solve_full(&problem, &instance, options, budget),
        Strategy::RandomSkip => solve_random(&instance, &below, &tasks, sets, options, budget),
        Strategy::FullRouted | Strategy::SkippipeNoTc2 | Strategy::Skippipe => {
            portfolio::solve(&instance, &below, &tasks, sets, options, budget, start)
        }
    }?;
    assemble(&problem, &instance, options, budget, solution)
}

/// The problem as the strategy understands it.
fn asked_of(problem: &Problem, strategy: Strategy) -> Result<Problem> {
    let rules = problem.constraints().clone();
    match strategy {
        Strategy::Full => problem.with(0.0, Constraints { tc1: MemoryRule::Held, waves: 1, ..rules }),
        Strategy::FullRouted => problem.with(0.0, rules),
        Strategy::SkippipeNoTc2 => problem.with(problem.skip_ratio(), Constraints { tc2: false, ..rules }),
        Strategy::RandomSkip | Strategy::Skippipe => Ok(problem.clone()),
    }
}

/// What a search begins with.
struct Start {
    known: attempt::Known,
    /// Search steps that it took.
    work: u64,
    /// No plan takes less.
    bound: Time,
}

/// What attempts are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Objective {
    /// The simulated iteration.
    Simulated,
    /// The longest travel (no TC2).
    Travel,
}

/// What all attempts of one search share.
#[derive(Clone, Copy)]
struct Context<'a> {
    instance: &'a Instance,
    tasks: &'a [RouteTask],
    outlook: &'a Outlook,
    budget: &'a Budget,
    objective: Objective,
    seed: u64,
    /// Stage sets that meet all quotas, where `max_stage_jump` makes that a question.
    sets: Option<&'a [StageSet]>,
}

impl<'a> Context<'a> {
    fn ground(&self) -> Ground<'a> {
        Ground { instance: self.instance, tasks: self.tasks }
    }

    /// Quotas and lengths of one attempt.
    fn targets(&self, rng: &mut Pcg64) -> board::Targets {
        match self.sets {
            Some(sets) if rand::RngExt::random_bool(rng, 0.5) => draw::dealt(self.instance, sets, rng),
            _ => draw::targets(self.instance, self.tasks, rng),
        }
    }

    /// The random numbers of one attempt.
    fn rng(&self, stream: u64) -> Pcg64 {
        stream_of(self.seed, stream)
    }
}

/// One of many independent streams of random numbers for a seed.
fn stream_of(seed: u64, stream: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The end of a search: an execution and what is known of it.
struct Solution {
    batches: Vec<MicrobatchRoute>,
    order: Vec<Vec<TaskId>>,
    /// Lower bound in nanoseconds, on durations rounded down.
    bound: Time,
    /// Work, events and counts.
    report: SearchReport,
}
