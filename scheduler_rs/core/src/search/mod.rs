//! From a question to a plan, for all strategies. What is tried when:
//!
//! 1. [`first_allocation`]: the allocation that was given, or the surrogate's ([`crate::allocate`]).
//! 2. With a scope, `allocation/`: `joint_search` (annealing of allocation, routes and order, `schedule_chains` and
//!    `exhaustive` search of small clusters), `full_routed`, or `local_search` for strategies that plan by construction;
//!    `unused_nodes` leaves out what only costs. `effort` shares time and work among all of them.
//! 3. `fixed_allocation`: one strategy on one allocation. `feasibility` refuses what cannot have a plan; `full` and
//!    `random-skip` follow from `methods/constructed`, the other strategies from the `portfolio`.
//! 4. `portfolio/`: rounds of `methods/` side by side (`prioritised` planning, `annealing`, `schedule_annealing`,
//!    [`tabu`](methods::tabu) and proofs by [`cbs`](methods::cbs)), each with the best `candidate` so far; the bounds and the
//!    look-ahead are [`crate::bound`]'s.
//! 5. `assembly` writes the plan with the simulator's times; `trace` has what the search reports of itself.

mod allocation;
mod assembly;
mod candidate;
mod context;
mod effort;
mod feasibility;
mod fixed_allocation;
mod instance_view;
pub mod methods;
mod portfolio;
mod trace;

use std::borrow::Cow;

use self::allocation::search_allocation;
use self::fixed_allocation::plan_allocated;
use crate::allocate;
use crate::budget::Budget;
use crate::error::Result;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::request::{FirstAllocation, Options, PlanRequest};

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
            let options = {
                let Options { seed, threads, without, .. } = request.options;
                allocate::Options { seed, threads, without }
            };
            let (time, work) = effort::surrogate_limits(budget);
            let (problem, found) = open.allocate(options, &budget.apart(time, work))?;
            Ok((Cow::Owned(problem), Some(found)))
        }
    }
}
